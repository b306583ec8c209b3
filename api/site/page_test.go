package site

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/internal/text"
)

// everyPage is a page of each kind, with its status.
var everyPage = map[string]int{
	"/": 200, "/search": 200, "/search?q=pickle": 200, "/search?q=nothing+like+it": 200, "/search?page=99": 200, "/statistics": 200, "/docs": 200, "/docs/libraries": 200, "/docs/schemas": 200, "/docs/nothing": 404, "/about": 200,
	"/library/pickle": 200, "/library/pickle/1.0.0": 200, "/library/pickle/2.0.0?file=pickle.mjs": 200, "/library/pickle/2.0.0?file=fonts/pickle.woff2&filter=pick": 200,
	"/library/pickle/2.0.0?file=odd%2Fa+b%2541%26%27%22%3Ci%3E.js": 200, "/library/shelf-css": 200, "/library/preserve": 200, "/library/data": 200, "/library/empty": 200, "/library/spoilt": 200,
	"/library/refused": 200, "/library/evil": 200, "/library/evil/1.0.0?file=%3C/code%3E%3C/pre%3E%3Cscript%3Ealert(1)%3C/script%3E.mjs": 200, "/library/pantry": 200,
	"/library/pantry/1.0.0?page=3&filter=icon": 200, "/library/pantry?filter=nothing-is-called-so": 200,
	"/compare/pickle": 200, "/compare/pickle?from=1.0.0&to=2.0.0": 200, "/compare/pickle?from=2.0.0&to=2.0.0": 200, "/compare/data": 200, "/compare/empty": 200, "/compare/empty?from=1.0.0": 200, "/compare/pickle?to=1.0.0": 200,
	"/history/pickle": 200, "/history/empty": 200, "/history/evil": 200,
	"/history": 200, "/history?package=pickle": 200, "/history?package=nothing": 200, "/history?kind=refused": 200, "/history?kind=refused,withdrawn&package=pickle": 200, "/history?before=3": 200, "/history?since=2d": 200,
	"/history?package=%22%3E%3Cscript%3Ealert(1)%3C/script%3E": 200, "/history?entry=0": 200, "/history?entry=999": 404, "/history?entry=x": 404, "/history?entry=-1": 404, "/history?kind=eaten": 400, "/history?since=x": 400,
	"/history/pickle/2.0.0": 200, "/history/pickle/0.9.0": 200, "/history/pickle/3.0.0": 200, "/history/evil/1.0.0": 200, "/history/evil/2.0.0": 200, "/history/pantry/1.0.0": 200, "/history/pantry/1.0.0?page=3": 200,
	"/history/pickle/2.1.0": 404, "/history/pickle/9": 404, "/history/nothing/1.0.0": 404,
	"/library/pikcle": 404, "/library/%22%3E%3Cscript%3Ealert(1)%3C/script%3E": 404, "/library/pickle/9.9.9": 404, "/library/pickle/latest": 404, "/library/pickle/2.1.0": 404, "/library/evil/2.0.0": 404, "/library/pickle/0.9.0": 410,
	"/compare/nothing": 404, "/compare/pickle?from=9&to=1.0.0": 404, "/compare/pickle?from=0.9.0": 410, "/history/nothing": 404, "/nowhere": 404,
	"/search?q=%ff": 200, "/search?q=50%": 200, "/library/%ff": 400, "/library/a%00b": 400, "/search?q=" + strings.Repeat("a", 9000): 414,
}

func TestEveryPage(t *testing.T) {
	shelf := filled(t)
	addPantry(t, shelf)
	site := newSite(t, shelf, nil)
	for target, status := range everyPage {
		t.Run(text.Cut(target, 80), func(t *testing.T) {
			w := get(t, site, target)
			if w.Code != status {
				t.Fatalf("status %d, want %d:\n%s", w.Code, status, w.Body)
			}
			checkPage(t, w)
		})
	}
}

// checkPage holds what is true of all pages.
func checkPage(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	h := w.Header()
	if got := h.Get("Content-Type"); got != "text/html; charset=utf-8" {
		t.Errorf("Content-Type %q", got)
	}
	for _, name := range []string{"Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy", "Cache-Control", "Vary"} {
		if h.Get(name) == "" {
			t.Errorf("%s is missing", name)
		}
	}
	if strings.Contains(h.Get("Content-Security-Policy"), "unsafe") {
		t.Error("the policy is unsafe")
	}
	doc, err := html.Parse(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	c := pageCheck{T: t, ids: map[string]bool{}, labelled: map[string]bool{}}
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode {
			c.attributes(n)
			c.element(n)
		}
	}
	c.whole()
}

// A pageCheck is what was seen of a page.
type pageCheck struct {
	*testing.T
	ids, labelled map[string]bool
	referred      []string
	inputs        []*html.Node
	headings      []int
	titles        int
}

func (c *pageCheck) attributes(n *html.Node) {
	for _, a := range n.Attr {
		switch {
		case strings.HasPrefix(a.Key, "on"), a.Key == "style":
			c.Errorf("<%s> has the attribute %s", n.Data, a.Key)
		case a.Key == "id":
			if c.ids[a.Val] {
				c.Errorf("two elements have the id %s", a.Val)
			}
			c.ids[a.Val] = true
		case a.Key == "aria-labelledby", a.Key == "for", a.Key == "data-copy-from":
			c.referred = append(c.referred, a.Val)
		case a.Key == "href" || a.Key == "src" || a.Key == "action":
			checkLink(c.T, n, a.Val)
		}
	}
}

func (c *pageCheck) element(n *html.Node) {
	switch n.Data {
	case "style", "iframe", "object", "embed", "base", "img":
		c.Errorf("there is a <%s>", n.Data)
	case "script":
		if src := attr(n, "src"); !strings.HasPrefix(src, "/site/") || n.FirstChild != nil {
			c.Errorf("a script comes from %q, with %v in it", src, n.FirstChild)
		}
	case "title":
		c.titles++
		if strings.TrimSpace(textOf(n)) == "" && n.Parent.Data == "head" {
			c.Error("the title is empty")
		}
	case "label":
		c.labelled[attr(n, "for")] = true
	case "input", "select", "textarea":
		c.inputs = append(c.inputs, n)
	case "button":
		if label := attr(n, "aria-label"); attr(n, "class") == "copy" && !strings.HasPrefix(label, "Copy ") {
			c.Errorf("a button to copy is called %q", label)
		}
	case "h1", "h2", "h3", "h4":
		c.headings = append(c.headings, int(n.Data[1]-'0'))
		if strings.TrimSpace(textOf(n)) == "" {
			c.Errorf("an <%s> is empty", n.Data)
		}
	}
}

// whole checks what only shows when all elements were seen.
func (c *pageCheck) whole() {
	for _, id := range c.referred {
		if !c.ids[id] {
			c.Errorf("nothing has the id %s", id)
		}
	}
	for _, n := range c.inputs {
		if !c.labelled[attr(n, "id")] {
			c.Errorf("<%s name=%s> has no label", n.Data, attr(n, "name"))
		}
	}
	if c.titles != 1 {
		c.Errorf("%d titles", c.titles)
	}
	last := 0
	for i, level := range c.headings {
		if level == 1 && i > 0 || level > last+1 {
			c.Errorf("headings go %v", c.headings)
			break
		}
		last = level
	}
	if len(c.headings) == 0 {
		c.Error("there is no heading")
	}
}

// checkLink holds that a page leads elsewhere only to a library's own pages, and to
// nothing that runs.
func checkLink(t *testing.T, n *html.Node, link string) {
	t.Helper()
	u, err := url.Parse(link)
	switch {
	case err != nil:
		t.Errorf("<%s> leads to %q: %v", n.Data, link, err)
	case u.Scheme == "" && u.Host == "" && (strings.HasPrefix(link, "/") || strings.HasPrefix(link, "#")):
	case u.Host == "larder.example" && (n.Data == "link" || strings.HasPrefix(u.Path, "/ajax/libs/")):
	case n.Data == "a" && (u.Host == "github.com" || u.Host == "pickle.example" || u.Host == "www.npmjs.com") && u.Scheme == "https" && attr(n, "rel") == "noopener":
	default:
		t.Errorf("<%s> leads to %q", n.Data, link)
	}
}

func attr(n *html.Node, key string) string {
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

// find returns the elements for which match holds.
func find(t testing.TB, body string, match func(*html.Node) bool) []*html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var found []*html.Node
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && match(n) {
			found = append(found, n)
		}
	}
	return found
}

func withID(id string) func(*html.Node) bool {
	return func(n *html.Node) bool { return attr(n, "id") == id }
}
