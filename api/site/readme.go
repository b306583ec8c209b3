package site

import (
	"bytes"
	"html/template"
	"net/url"
	"path"
	"strings"
	"sync"

	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	goldhtml "github.com/yuin/goldmark/renderer/html"
	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
)

// This file shows READMEs, which strangers write. What comes of one is made by three steps, of which the last one alone
// would do: Markdown to HTML; links, headings and pictures made to fit the page; and a sanitiser with a list of what may stay.

var markdown = sync.OnceValue(func() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.GFM),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(goldhtml.WithUnsafe()), // the sanitiser comes after it
	)
})

// sanitise returns the function of a policy that allows the elements of text, and none that loads anything. It does not return the policy: a type
// argument of OnceValue keeps all methods of that type in the binary, here 130 KB.
var sanitise = sync.OnceValue(func() func([]byte) []byte {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "kbd", "samp", "var", "em", "strong", "b", "i",
		"s", "del", "ins", "sub", "sup", "table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "details", "summary", "abbr", "small")
	p.AllowAttrs("href").OnElements("a")
	p.AllowAttrs("id").Matching(readmeID.Get()).OnElements("h3", "h4", "h5", "h6")
	p.AllowAttrs("tabindex").Matching(zero.Get()).OnElements("pre")
	p.AllowURLSchemes("http", "https", "mailto")
	p.AllowRelativeURLs(true)
	p.RequireParseableURLs(true)
	p.RequireNoFollowOnLinks(true)
	p.AllowAttrs("rel").Matching(noOpener.Get()).OnElements("a")
	return p.SanitizeBytes
})

// renderReadme returns what a page shows of a README.
func renderReadme(r *library.Release, repository, name, source string) template.HTML {
	var raw bytes.Buffer
	switch strings.ToLower(path.Ext(name)) {
	case ".md", ".markdown":
		if markdown().Convert([]byte(source), &raw) == nil {
			break
		}
		raw.Reset()
		fallthrough
	default:
		raw.WriteString("<pre>" + html.EscapeString(source) + "</pre>")
	}
	body := &html.Node{Type: html.ElementNode, Data: "body", DataAtom: atom.Body}
	nodes, err := html.ParseFragment(&raw, body)
	if err != nil {
		return ""
	}
	f := fitting{release: r, repository: repository}
	var fitted bytes.Buffer
	for _, n := range nodes {
		body.AppendChild(n)
	}
	f.fit(body, 0)
	unlinkLost(body)
	for n := body.FirstChild; n != nil; n = n.NextSibling {
		if html.Render(&fitted, n) != nil {
			return ""
		}
	}
	return template.HTML(sanitise()(fitted.Bytes())) //nolint:gosec // that is what it is for
}

// unlinkLost leaves the words of links to headings that the README does not have, as where it was cut off before them.
func unlinkLost(body *html.Node) {
	headings := map[string]bool{}
	for n := range body.Descendants() {
		if id := attribute(n, "id"); readmeID.MatchString(id) {
			headings["#"+id] = true
		}
	}
	for n := range body.Descendants() {
		if n.DataAtom != atom.A {
			continue
		}
		to, err := url.PathUnescape(attribute(n, "href"))
		if strings.HasPrefix(to, "#") && (err != nil || !headings[to]) {
			n.Attr = nil
		}
	}
}

// A fitting makes a README fit its page.
type fitting struct {
	release    *library.Release
	repository string // where the repository can be looked at, "" where that is unknown
}

// deepestMarkup is how deep elements may be in each other. Below, only the text stays.
const deepestMarkup = 60

// fit changes what is below a node: headings go below the page's own, pictures become their descriptions, links lead from
// the page to what they meant, and what scrolls can be scrolled by keys.
func (f *fitting) fit(parent *html.Node, depth int) {
	for n := parent.FirstChild; n != nil; {
		next := n.NextSibling
		switch {
		case n.Type == html.CommentNode || n.Type == html.ElementNode && dropped[n.DataAtom]:
			parent.RemoveChild(n)
		case n.Type == html.ElementNode && depth >= deepestMarkup:
			words := &html.Node{Type: html.TextNode, Data: text.Short(wordsIn(n), 1000)}
			parent.InsertBefore(words, n)
			parent.RemoveChild(n)
		case n.Type == html.ElementNode:
			f.element(parent, n)
			f.fit(n, depth+1)
			if n.DataAtom == atom.A && strings.TrimSpace(wordsIn(n)) == "" { // nothing can be pressed
				parent.RemoveChild(n)
			}
		}
		n = next
	}
}

// dropped are the elements whose text is no text.
var dropped = map[atom.Atom]bool{
	atom.Script: true, atom.Style: true, atom.Template: true, atom.Iframe: true, atom.Object: true, atom.Embed: true, atom.Svg: true, atom.Math: true,
	atom.Noscript: true, atom.Title: true, atom.Textarea: true, atom.Select: true, atom.Audio: true, atom.Video: true, atom.Button: true, atom.Form: true,
}

func (f *fitting) element(parent, n *html.Node) {
	var kept []html.Attribute
	switch n.DataAtom {
	case atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6:
		level := min(n.Data[1]+2, '6')
		n.Data, n.DataAtom = "h"+string(level), 0
		if id := attribute(n, "id"); id != "" {
			kept = append(kept, html.Attribute{Key: "id", Val: "readme-" + id})
		}
	case atom.A:
		if to := f.link(attribute(n, "href")); to != "" {
			kept = append(kept, html.Attribute{Key: "href", Val: to}, html.Attribute{Key: "rel", Val: "nofollow noopener"})
		}
	case atom.Img:
		// Of other hosts nothing is loaded, so of a picture there is what it says.
		words := &html.Node{Type: html.TextNode, Data: text.Short(attribute(n, "alt"), 200)}
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

// link returns where a link leads from the page, "" for nowhere.
func (f *fitting) link(to string) string {
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
		return webLink(u.String())
	}
	file := strings.TrimPrefix(path.Clean("/"+u.Path), "/")
	if _, ok := f.release.Find(file); ok {
		return filesPath(f.release.Library, f.release.Version, file)
	}
	if f.repository == "" || file == "" {
		return ""
	}
	return f.repository + "/blob/HEAD/" + (&url.URL{Path: file}).EscapedPath()
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func wordsIn(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}
