package worker

import (
	"bytes"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	goldhtml "github.com/yuin/goldmark/renderer/html"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/text"
)

// This file renders READMEs: Markdown becomes HTML, whose links, headings and pictures are made to fit the page. Of elements
// and attributes stays what package document accepts, which checks the result again in the process that shows it.

// readmeID matches the id of a heading.
var readmeID = text.NewRegexp(`^readme-[\p{L}\p{N}_.-]+$`) // a bound of 200 would take 5 MB

// markdown creates the parser of GitHub's Markdown once, and returns it. Its output may have hostile HTML, which
// sanitizeChildren removes.
var markdown = sync.OnceValue(func() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(goldhtml.WithUnsafe()), // what must not stay is removed after it
	)
})

// Limits of a README. The Markdown parser's work on these grows with the square of their number.
const (
	deepestMarkdown = 100  // quotes and lists in each other that one line opens
	longestRun      = 1000 // characters for emphasis, code, links or quotes, next to each other
)

// checkMarkdown returns an error if a README would take the Markdown parser long: too many quotes and lists that one line
// opens in each other, or too many equal characters next to each other that Markdown gives a meaning, such as * or [.
func checkMarkdown(source string) error {
	for line := range strings.Lines(source) {
		depth, run, before := 0, 0, byte(0)
		start := true
		for i := range len(line) {
			c := line[i]
			if c == before {
				run++
			} else {
				run = 1
			}
			if run > longestRun && strings.IndexByte("~*_`[]()!<>&\\", c) >= 0 {
				return fmt.Errorf("over %d times %q next to each other", longestRun, c)
			}
			start = start && strings.IndexByte(" \t>-*+.)0123456789", c) >= 0
			if start && (c == '>' || (c == ' ' || c == '\t') && strings.IndexByte("-*+.)", before) >= 0) {
				if depth++; depth > deepestMarkdown {
					return fmt.Errorf("a line opens over %d quotes and lists in each other", deepestMarkdown)
				}
			}
			before = c
		}
	}
	return nil
}

// renderReadme returns the README r.Text, which is Markdown, as HTML that is safe on Larder's page of the release r.Library
// r.Version. r.Files, sorted, and r.Repository are for its links. It returns an error if parsing the README would take long, see
// checkMarkdown, or if a parser fails.
func renderReadme(r document.Request) (document.Result, error) {
	if err := checkMarkdown(r.Text); err != nil {
		return document.Result{}, err
	}
	var raw bytes.Buffer
	if err := markdown().Convert([]byte(r.Text), &raw); err != nil {
		return document.Result{}, err
	}
	body := &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body}
	nodes, err := html.ParseFragment(&raw, body)
	if err != nil {
		return document.Result{}, err
	}
	var fitted bytes.Buffer
	for _, n := range nodes {
		body.AppendChild(n)
	}
	(&readmeFitter{Request: r}).sanitizeChildren(body, 0)
	removeBrokenLinks(body)
	for n := body.FirstChild; n != nil; n = n.NextSibling {
		if err := html.Render(&fitted, n); err != nil {
			return document.Result{}, err
		}
	}
	return document.Result{Markup: fitted.String()}, nil
}

// removeBrokenLinks replaces each link below body to a heading of the README that body does not have by the link's content.
// A README that was cut off lacks some headings.
func removeBrokenLinks(body *html.Node) {
	headings := map[string]bool{}
	for n := range body.Descendants() {
		if id := attributeOf(n, "id"); readmeID.MatchString(id) {
			headings["#"+id] = true
		}
	}
	for _, n := range slices.Collect(body.Descendants()) {
		if n.DataAtom != atom.A {
			continue
		}
		to, err := url.PathUnescape(attributeOf(n, "href"))
		if strings.HasPrefix(to, "#") && (err != nil || !headings[to]) {
			unwrap(n)
		}
	}
}

// unwrap removes an HTML element from its parent, which is not nil, and puts the element's children in its place.
func unwrap(n *html.Node) {
	for n.FirstChild != nil {
		child := n.FirstChild
		n.RemoveChild(child)
		n.Parent.InsertBefore(child, n)
	}
	n.Parent.RemoveChild(n)
}

// A readmeFitter makes a README fit its page.
type readmeFitter struct {
	document.Request
	headings []byte // the README's levels of the headings whose sections are open, as digits
}

// headingLevel returns the level, as a digit such as '3', that the README's next heading gets on the page. level is the heading's
// own, as a digit. The result is one below that of the section around the heading, at most '6', because assistive technology
// presents a skipped level as a missing heading. The caller passes all headings in order; headingLevel updates f.headings.
func (f *readmeFitter) headingLevel(level byte) byte {
	for n := len(f.headings); n > 0 && f.headings[n-1] >= level; n-- {
		f.headings = f.headings[:n-1]
	}
	f.headings = append(f.headings, level)
	return min(firstHeading+byte(len(f.headings))-1, '6')
}

// firstHeading is the level of a README's first heading, below the page's own h2.
const firstHeading = '3'

// deepestMarkup limits the nesting of elements. Deeper ones are replaced by their text.
const deepestMarkup = 60

// sanitizeChildren changes the nodes below parent so that they are safe and fit the page. It removes comments, the elements in
// dropped, and links without text. It replaces elements below deepestMarkup by their text, cut to 1000 bytes. It changes all
// other elements with fitElement, and then replaces those that a README may not have, and links without an address, by their
// children. depth is the number of elements around the children.
func (f *readmeFitter) sanitizeChildren(parent *html.Node, depth int) {
	for n := parent.FirstChild; n != nil; {
		next := n.NextSibling
		switch {
		case n.Type == html.CommentNode || n.Type == html.ElementNode && dropped[n.DataAtom]:
			parent.RemoveChild(n)
		case n.Type == html.ElementNode && depth >= deepestMarkup:
			words := &html.Node{Type: html.TextNode, Data: text.Short(textOf(n), 1000)}
			parent.InsertBefore(words, n)
			parent.RemoveChild(n)
		case n.Type == html.ElementNode:
			f.fitElement(parent, n)
			f.sanitizeChildren(n, depth+1)
			switch {
			case n.Data == "a" && strings.TrimSpace(textOf(n)) == "": // nothing can be pressed
				parent.RemoveChild(n)
			case n.Namespace != "" || !document.IsReadmeElement(n.Data) || n.Data == "a" && len(n.Attr) == 0:
				unwrap(n)
			}
		}
		n = next
	}
}

// dropped are the elements that are removed with their content.
var dropped = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Template: true, atom.Iframe: true, atom.Object: true, atom.Embed: true, atom.Svg: true, atom.Math: true,
	atom.Noscript: true, atom.Title: true, atom.Textarea: true, atom.Select: true, atom.Audio: true, atom.Video: true, atom.Button: true, atom.Form: true,
}

// fitElement adapts one element, n, to the page, but not what is in it: the level of a heading, which depends on the headings
// before, so that the caller passes each element once in the document's order; the target of a link; an image, which becomes an
// empty span behind its alternative text; and the checkbox of a task, before which it puts a sign. It removes the attributes that
// the page does not allow, and n itself never. parent is the parent of n.
func (f *readmeFitter) fitElement(parent, n *html.Node) {
	var kept []html.Attribute
	switch n.DataAtom {
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		n.Data, n.DataAtom = "h"+string(f.headingLevel(n.Data[1])), 0
		if id := "readme-" + attributeOf(n, "id"); readmeID.MatchString(id) {
			kept = append(kept, html.Attribute{Key: "id", Val: id})
		}
	case atom.A:
		if to := f.resolveLink(attributeOf(n, "href")); to != "" {
			kept = append(kept, html.Attribute{Key: "href", Val: to}, html.Attribute{Key: "rel", Val: "nofollow noopener"})
		}
	case atom.Img:
		// The page loads nothing from other hosts: an image is replaced by its alternative text.
		words := &html.Node{Type: html.TextNode, Data: text.Short(attributeOf(n, "alt"), 200)}
		parent.InsertBefore(words, n)
		n.Data, n.DataAtom = "span", atom.Span
	case atom.Pre:
		kept = append(kept, html.Attribute{Key: "tabindex", Val: "0"})
	case atom.Input: // of a list of tasks
		done := "☐ "
		for _, a := range n.Attr {
			if a.Key == "checked" {
				done = "☑ "
			}
		}
		parent.InsertBefore(&html.Node{Type: html.TextNode, Data: done}, n)
	}
	n.Attr = kept
}

// resolveLink returns the address that a link of the README to the address to gets on the release's page, "" if it must not be
// linked: it is empty, malformed, over 2 KiB, or of a scheme that is not allowed. A relative path starts at the root of the
// release: it leads to the page of that file, or to the repository, if that is known and the release lacks the file. f.Files is
// sorted. A fragment gets the prefix of the README's headings.
func (f *readmeFitter) resolveLink(to string) string {
	u, err := url.Parse(strings.TrimSpace(to))
	switch {
	case err != nil || to == "" || len(to) > 2<<10:
		return ""
	case u.Scheme == "" && u.Host == "" && u.Path == "":
		if u.Fragment == "" {
			return ""
		}
		return "#readme-" + u.EscapedFragment()
	case u.Scheme == "mailto":
		return u.String()
	case u.Scheme != "" || u.Host != "":
		if u.Scheme == "" {
			u.Scheme = "https"
		}
		return text.WebLink(u.String())
	}
	file := strings.TrimPrefix(path.Clean("/"+u.Path), "/")
	if _, ok := slices.BinarySearch(f.Files, file); ok {
		return "/files/" + url.PathEscape(f.Library) + "/" + url.PathEscape(f.Version) + (&url.URL{Path: "/" + file}).EscapedPath()
	}
	if f.Repository == "" || file == "" {
		return ""
	}
	return f.Repository + "/blob/HEAD/" + (&url.URL{Path: file}).EscapedPath()
}

// attributeOf returns the value of the attribute key of an HTML element, "" if the element does not have it.
func attributeOf(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// textOf returns all text inside an HTML element, without markup, but with that of scripts and styles.
func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
