package site

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/library/librarytest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// script is a file that compresses.
func script(n int) string { return strings.Repeat("const jar = lid => lid + 1;\n", n) }

// packageJSON is that of a library whose metadata are these.
func packageJSON(t testing.TB, name string, more map[string]any) string {
	t.Helper()
	fields := map[string]any{
		"name": name, "description": "What " + name + " is for.", "keywords": []string{name},
		"repository": map[string]string{"type": "git", "url": "git+https://github.com/jars/" + name + ".git"},
	}
	for k, v := range more {
		fields[k] = v
	}
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// hostile is what a stranger might write into each field.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>'`

// filled returns a shelf with what the pages have to show.
func filled(t testing.TB) *librarytest.Shelf {
	t.Helper()
	s := librarytest.New(t)
	s.Enrol("pickle", packageJSON(t, "pickle", map[string]any{
		"filename": "pickle.min.js", "homepage": "https://pickle.example/a?b=c&d", "license": "MIT",
		"authors":    []map[string]string{{"name": "Pickle people"}},
		"autoupdate": map[string]any{"source": "npm", "target": "@jars/pickle", "fileMap": []map[string]any{{"basePath": "", "files": []string{"*"}}}},
	}))
	for i, version := range []string{"1.0.0", "1.1.0", "2.0.0"} {
		files := map[string]string{
			"pickle.min.js": script(100 + i), "pickle.js": script(300 + i), "pickle.mjs": script(200), "pickle.css": script(50),
			"fonts/pickle.woff2": "wOF2", "odd/a b%41&'\"<i>.js": script(10),
		}
		if i == 2 {
			delete(files, "pickle.css")
			files["new.js"] = script(5)
		}
		s.Publish("pickle", version, "pickle.min.js", files)
	}
	s.Publish("pickle", "0.9.0", "pickle.js", map[string]string{"pickle.js": script(9)})
	s.Withdraw("pickle", "0.9.0", "it <b>stole</b> cookies")
	s.Refuse("pickle", "3.0.0", "package/pickle.js is too large")
	s.SetState(views.State{
		Package: "pickle", Version: "2.1.0", Kind: views.Failed, Reason: "the registry is away", Attempts: 3,
		Updated: librarytest.Released, Next: librarytest.Released.Add(time.Hour),
	})
	s.Enrol("shelf-css", packageJSON(t, "shelf-css", nil))
	s.Publish("shelf-css", "1.0.0", "shelf.css", map[string]string{"shelf.css": script(30)})
	s.Enrol("preserve", packageJSON(t, "preserve", nil))
	s.Publish("preserve", "1.0.0", "preserve.mjs", map[string]string{"preserve.mjs": script(30)})
	s.Enrol("data", packageJSON(t, "data", nil))
	s.Publish("data", "1.0.0", "", map[string]string{"data.json": "{}"})
	s.Enrol("spoilt", packageJSON(t, "spoilt", nil))
	s.Publish("spoilt", "1.0.0", "spoilt.js", map[string]string{"spoilt.js": script(8)})
	s.Withdraw("spoilt", "1.0.0", "it had gone <b>off</b>")
	s.Enrol("empty", packageJSON(t, "empty", nil))
	s.Enrol("refused", packageJSON(t, "refused", nil))
	s.Refuse("refused", "1.0.0", "it selects none of the files")
	s.Enrol("evil", packageJSON(t, "evil", map[string]any{
		"description": hostile, "keywords": []string{hostile}, "homepage": "javascript:alert(1)", "license": hostile,
		"repository": map[string]string{"type": "git", "url": "javascript:alert(1)//https://github.com/a/b"},
		"authors":    []map[string]string{{"name": hostile}},
	}))
	s.Publish("evil", "1.0.0", hostile+".js", map[string]string{hostile + ".js": "1", "turned-\u202esj.exe": "3", "</code></pre><script>alert(1)</script>.mjs": "2"})
	s.Refuse("evil", "2.0.0", hostile)
	return s
}

// addPantry adds a release of many files, which takes a while.
func addPantry(t testing.TB, s *librarytest.Shelf) {
	t.Helper()
	many := map[string]string{}
	for i := range 1234 {
		many[fmt.Sprintf("icons/icon-%04d.svg", i)] = fmt.Sprint(i % 7)
	}
	many["pantry.js"] = script(3)
	s.Enrol("pantry", packageJSON(t, "pantry", nil))
	s.Publish("pantry", "1.0.0", "pantry.js", many)
}

func newSite(t testing.TB, s *librarytest.Shelf, change func(*Options)) *Site {
	t.Helper()
	document, err := os.ReadFile("../openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Library: s.Index(library.Options{}), Document: func() []byte { return document }}
	if change != nil {
		change(&o)
	}
	site, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return site
}

// get asks for a target as it goes on the wire, with headers by name and value.
func get(t testing.TB, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.URL, r.RequestURI, r.Host = u, target, "larder.example"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// everyPage is a page of each kind, with its status.
var everyPage = map[string]int{
	"/": 200, "/search": 200, "/search?q=pickle": 200, "/search?q=nothing+like+it": 200, "/search?page=99": 200, "/statistics": 200, "/docs": 200, "/about": 200,
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
	"/search?q=%ff": 400, "/search?q=%zz": 400, "/library/%ff": 400, "/library/a%00b": 400, "/search?q=" + strings.Repeat("a", 9000): 414,
}

func TestEveryPage(t *testing.T) {
	shelf := filled(t)
	addPantry(t, shelf)
	site := newSite(t, shelf, nil)
	for target, status := range everyPage {
		t.Run(cut(target, 80), func(t *testing.T) {
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
	var (
		ids      = map[string]bool{}
		labelled = map[string]bool{}
		referred []string
		inputs   []*html.Node
		headings []int
		titles   int
	)
	for n := range doc.Descendants() {
		if n.Type != html.ElementNode {
			continue
		}
		for _, a := range n.Attr {
			switch {
			case strings.HasPrefix(a.Key, "on"), a.Key == "style":
				t.Errorf("<%s> has the attribute %s", n.Data, a.Key)
			case a.Key == "id":
				if ids[a.Val] {
					t.Errorf("two elements have the id %s", a.Val)
				}
				ids[a.Val] = true
			case a.Key == "aria-labelledby", a.Key == "for", a.Key == "data-copy-from":
				referred = append(referred, a.Val)
			case a.Key == "href" || a.Key == "src" || a.Key == "action":
				checkLink(t, n, a.Val)
			}
		}
		switch n.Data {
		case "style", "iframe", "object", "embed", "base", "img":
			t.Errorf("there is a <%s>", n.Data)
		case "script":
			if src := attr(n, "src"); !strings.HasPrefix(src, "/site/") || n.FirstChild != nil {
				t.Errorf("a script comes from %q, with %v in it", src, n.FirstChild)
			}
		case "title":
			titles++
			if strings.TrimSpace(text(n)) == "" && n.Parent.Data == "head" {
				t.Error("the title is empty")
			}
		case "label":
			labelled[attr(n, "for")] = true
		case "input", "select", "textarea":
			inputs = append(inputs, n)
		case "button":
			if label := attr(n, "aria-label"); attr(n, "class") == "copy" && !strings.HasPrefix(label, "Copy ") {
				t.Errorf("a button to copy is called %q", label)
			}
		case "h1", "h2", "h3", "h4":
			headings = append(headings, int(n.Data[1]-'0'))
			if strings.TrimSpace(text(n)) == "" {
				t.Errorf("an <%s> is empty", n.Data)
			}
		}
	}
	for _, id := range referred {
		if !ids[id] {
			t.Errorf("nothing has the id %s", id)
		}
	}
	for _, n := range inputs {
		if !labelled[attr(n, "id")] {
			t.Errorf("<%s name=%s> has no label", n.Data, attr(n, "name"))
		}
	}
	if titles != 1 {
		t.Errorf("%d titles", titles)
	}
	last := 0
	for i, level := range headings {
		if level == 1 && i > 0 || level > last+1 {
			t.Errorf("headings go %v", headings)
			break
		}
		last = level
	}
	if len(headings) == 0 {
		t.Error("there is no heading")
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
	case n.Data == "a" && (u.Host == "github.com" || u.Host == "pickle.example") && u.Scheme == "https" && attr(n, "rel") == "noopener":
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

func text(n *html.Node) string {
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

func TestSnippets(t *testing.T) {
	site := newSite(t, filled(t), func(o *Options) {
		o.AssetBase, o.SiteBase, o.Name = "https://assets.example", "https://site.example", "Jars & Co"
	})
	shown := func(target, id string) string {
		t.Helper()
		found := find(t, get(t, site, target).Body.String(), withID(id))
		if len(found) != 1 {
			t.Fatalf("%s has %d elements with the id %s", target, len(found), id)
		}
		return text(found[0])
	}
	const at = "https://assets.example/ajax/libs/pickle/2.0.0/"
	sri := func(data string) string { return logs.SumSRI([]byte(data)).String() }
	main := sri(script(102))
	if got, want := shown("/library/pickle", "tag"), `<script src="`+at+`pickle.min.js" integrity="`+main+`" crossorigin="anonymous"></script>`; got != want {
		t.Errorf("the tag is\n%s\nwant\n%s", got, want)
	}
	if got := shown("/library/pickle", "url"); got != at+"pickle.min.js" {
		t.Errorf("the URL is %s", got)
	}
	if got := shown("/library/pickle", "sri"); got != main {
		t.Errorf("the integrity is %s", got)
	}
	if got := shown("/library/pickle/2.0.0?file=odd/a+b%2541%26'%22%3Ci%3E.js", "url"); got != at+"odd/a%20b%2541&%27%22%3Ci%3E.js" {
		t.Errorf("the URL of a file with an odd name is %s", got)
	}
	if got := shown("/library/shelf-css", "tag"); !strings.HasPrefix(got, `<link rel="stylesheet" href="https://assets.example/ajax/libs/shelf-css/1.0.0/shelf.css" integrity="`) {
		t.Errorf("the tag of a style sheet is %s", got)
	}
	module, integrity := at+"pickle.mjs", sri(script(200))
	var parsed struct{ Imports, Integrity map[string]string }
	imports := shown("/library/pickle/2.0.0?file=pickle.mjs", "map")
	inner := strings.TrimPrefix(imports[:strings.Index(imports, "</script>")], `<script type="importmap">`)
	if err := json.Unmarshal([]byte(inner), &parsed); err != nil || parsed.Imports["@jars/pickle"] != module || parsed.Integrity[module] != integrity {
		t.Errorf("the import map is %s: %v", imports, err)
	}
	if !strings.Contains(imports, `import * as pickle from "@jars/pickle";`) {
		t.Errorf("the import is %s", imports)
	}
	if got, want := shown("/library/pickle/2.0.0?file=pickle.mjs", "preload"), `<link rel="modulepreload" href="`+module+`" integrity="`+integrity+`" crossorigin="anonymous">`; got != want {
		t.Errorf("the preload is %s, want %s", got, want)
	}
	body := get(t, site, "/library/pickle").Body.String()
	for _, want := range []string{
		`<link rel="canonical" href="https://site.example/library/pickle">`, `content="https://site.example/banner.png"`, "Jars &amp; Co",
		`href="/download/pickle/2.0.0.tar.gz"`, `href="/download/pickle/2.0.0.zip"`, `href="/compare/pickle?from=1.1.0&amp;to=2.0.0"`, `href="/history/pickle"`,
		"package/pickle.js is too large", "the registry is away", "next attempt 29 February 2024, 13:30 UTC",
		`href="https://pickle.example/a?b=c&amp;d"`, `href="https://github.com/jars/pickle"`, "Pickle people",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(get(t, site, "/library/pickle/1.0.0").Body.String(), "the registry is away") {
		t.Error("an old version's page tells of new ones' troubles")
	}
	// What is copied is what is shown.
	for _, n := range find(t, body, func(n *html.Node) bool {
		return attr(n, "aria-label") == "Copy tag for pickle.min.js" && attr(n, "data-copy") != ""
	}) {
		if attr(n, "data-copy") != shown("/library/pickle", "tag") {
			t.Errorf("the list copies %s", attr(n, "data-copy"))
		}
	}
}

func TestFiles(t *testing.T) {
	shelf := filled(t)
	addPantry(t, shelf)
	site := newSite(t, shelf, nil)
	rows := func(target string) []string {
		t.Helper()
		var paths []string
		for _, n := range find(t, get(t, site, target).Body.String(), func(n *html.Node) bool { return attr(n, "role") == "rowheader" }) {
			paths = append(paths, strings.TrimSpace(strings.TrimSuffix(text(n), " main")))
		}
		return paths
	}
	first := rows("/library/pantry")
	if len(first) != filesShown || first[0] != "pantry.js" || first[1] != "icons/icon-0000.svg" {
		t.Errorf("the first page has %d files: %q…", len(first), first[:2])
	}
	seen := map[string]bool{}
	for page := 1; page <= 13; page++ {
		for _, path := range rows(fmt.Sprintf("/library/pantry/1.0.0?page=%d", page)) {
			if seen[path] {
				t.Errorf("%s is on two pages", path)
			}
			seen[path] = true
		}
	}
	if len(seen) != 1235 {
		t.Errorf("all pages together have %d files", len(seen))
	}
	for _, page := range []string{"abc", "0", "-1", "1e9", "99999999999999999999", ""} {
		if got := rows("/library/pantry/1.0.0?page=" + page); len(got) == 0 || got[0] != "pantry.js" {
			t.Errorf("page %q begins with %.50q", page, got)
		}
	}
	if got := rows("/library/pantry/1.0.0?page=1000"); len(got) != 35 {
		t.Errorf("beyond the last page there are %d files", len(got))
	}
	if got := rows("/library/pantry/1.0.0?filter=ICON+-0012"); len(got) != 1 || got[0] != "icons/icon-0012.svg" {
		t.Errorf("filtered there is %q", got)
	}
	if body := get(t, site, "/library/pantry/1.0.0?filter=icon").Body.String(); !strings.Contains(body, "/library/pantry/1.0.0?filter=icon&amp;page=2#files") {
		t.Error("the next page forgets the filter")
	}

	release, err := site.library.Release(t.Context(), "pickle", "2.0.0")
	if err != nil {
		t.Fatal(err)
	}
	file, _ := release.Find("pickle.js")
	content, err := shelf.Store.Content(file.Hash)
	if err != nil {
		t.Fatal(err)
	}
	body := get(t, site, "/library/pickle").Body.String()
	for _, c := range []coding.Coding{coding.Gzip, coding.Brotli} {
		r, ok := content.Find(c)
		if !ok || !strings.Contains(body, ">"+formatBytes(r.Length)+"</td>") {
			t.Errorf("the size in %v is not shown", c)
		}
	}
	if !strings.Contains(body, ">"+formatBytes(file.Size)+"</td>") || !strings.Contains(body, "not compressed") {
		t.Error("the sizes of files are not shown")
	}
}

func TestHostileMetadata(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, target := range []string{"/", "/search", "/search?q=evil", "/library/evil", "/history/evil", "/compare/evil", "/statistics", "/search?q=" + url.QueryEscape(hostile), "/library/evil?filter=" + url.QueryEscape(hostile)} {
		body := get(t, site, target).Body.String()
		for _, never := range []string{"<script>alert", "<img", `href="javascript:`, "onerror=alert(1)>'<"} {
			if strings.Contains(body, never) {
				t.Errorf("%s has %s", target, never)
			}
		}
	}
	if body := get(t, site, "/library/evil").Body.String(); !strings.Contains(body, "<dd>javascript:alert(1)</dd>") {
		t.Error("a homepage that is no link is not shown as a text")
	}
}

// TestTurnedText holds that no name can look like another by the direction that it is read in.
func TestTurnedText(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, target := range []string{"/library/evil", "/library/evil?filter=%E2%80%AE", "/search?q=%E2%81%A6", "/library/%E2%80%AE"} {
		if body := get(t, site, target).Body.String(); strings.ContainsFunc(body, turns) || !strings.ContainsRune(body, '\ufffd') {
			t.Errorf("%s has characters that turn text", target)
		}
	}
}

// TestLongMetadata holds that what strangers write does not decide how long a page is.
func TestLongMetadata(t *testing.T) {
	shelf := librarytest.New(t)
	long := strings.Repeat("words upon words ", 6000)
	shelf.Enrol("long", packageJSON(t, "long", map[string]any{
		"description": long, "license": long, "homepage": "https://long.example/" + long, "authors": []map[string]string{{"name": long}},
		"repository": map[string]string{"type": "git", "url": "https://long.example/" + long},
	}))
	shelf.Publish("long", "1.0.0", "long.js", map[string]string{"long.js": "1"})
	shelf.Publish("long", "0.9.0", "long.js", map[string]string{"long.js": "0"})
	shelf.Withdraw("long", "0.9.0", long)
	shelf.Refuse("long", "2.0.0", long)
	site := newSite(t, shelf, nil)
	for _, target := range []string{"/", "/search", "/library/long", "/library/lonk", "/library/long/0.9.0", "/library/long/2.0.0", "/history/long", "/statistics"} {
		if n := get(t, site, target).Body.Len(); n > 20_000 {
			t.Errorf("%s has %d bytes", target, n)
		}
	}
}

// TestNothingToShow holds what pages say in the place of a release that is not there.
func TestNothingToShow(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for target, want := range map[string]string{
		"/library/empty":            "no version of it has been found yet",
		"/library/refused":          "was refused: it selects none of the files",
		"/library/spoilt":           "has been withdrawn, 1.0.0 last: it had gone &lt;b&gt;off&lt;/b&gt;",
		"/library/pickle/3.0.0":     "3.0.0 was refused: package/pickle.js is too large",
		"/library/pickle/2.1.0":     "2.1.0 could not be published yet: the registry is away; next attempt 29 February 2024, 13:30 UTC",
		"/compare/pickle?from=7":    "pickle 7 is not published here.",
		"/compare/empty?from=1.0.0": "Nothing of empty is published yet",
		"/library/zzzzzzzz":         "<code>larder add zzzzzzzz</code>",
	} {
		if body := get(t, site, target).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s lacks %q", target, want)
		}
	}
	// Nobody should be led to copy a command that a stranger made up.
	for _, name := range []string{"zzz;reboot", "$(zzz)", "zzz%20--data%20x", "--zzz", "zzz%0a"} {
		if body := get(t, site, "/library/"+name).Body.String(); strings.Contains(body, "larder add") {
			t.Errorf("for %s there is a command", name)
		}
	}
}

func TestSearch(t *testing.T) {
	shelf := filled(t)
	for i := range 50 {
		name := fmt.Sprintf("jar-%02d", i)
		shelf.Enrol(name, packageJSON(t, name, nil))
	}
	site := newSite(t, shelf, nil)
	names := func(target string) []string {
		t.Helper()
		var names []string
		for _, n := range find(t, get(t, site, target).Body.String(), func(n *html.Node) bool { return n.Data == "h2" && n.Parent.Data == "article" }) {
			names = append(names, text(n))
		}
		return names
	}
	if got := names("/search"); len(got) != resultsShown || got[0] != "data" {
		t.Errorf("all libraries begin with %q", got)
	}
	if got := names("/search?page=2"); len(got) != 58-resultsShown {
		t.Errorf("the second page has %d libraries", len(got))
	}
	if got := names("/search?q=pikcle"); len(got) != 1 || got[0] != "pickle" {
		t.Errorf("a search finds %q", got)
	}
	if body := get(t, site, "/search?q=zzzzzz").Body.String(); !strings.Contains(body, "Nothing matches") || !strings.Contains(body, `value="zzzzzz"`) {
		t.Error("a search without results does not say so")
	}
	body := get(t, site, "/search?q=%0a+"+strings.Repeat("%C3%A9", 400)+"%07").Body.String()
	if box := find(t, body, withID("q")); len(box) != 1 || attr(box[0], "value") != strings.Repeat("é", maxText/2) {
		t.Error("a long search is not cut")
	}
	if near := get(t, site, "/library/pikcle").Body.String(); !strings.Contains(near, `<a href="/library/pickle">pickle</a>`) {
		t.Error("a library that is not there has no neighbours")
	}
}

func TestCompare(t *testing.T) {
	site := newSite(t, filled(t), nil)
	body := get(t, site, "/compare/pickle?from=1.1.0&to=2.0.0").Body.String()
	var got []string
	for _, n := range find(t, body, func(n *html.Node) bool { return n.Data == "tr" && n.Parent.Data == "tbody" }) {
		var cells []string
		for c := range n.ChildNodes() {
			cells = append(cells, text(c))
		}
		got = append(got, strings.Join(cells, " | "))
	}
	want := []string{
		"pickle.js | changed | 8.43 kB | 8.46 kB | +28 B (+0.3 %)",
		"pickle.min.js | changed | 2.83 kB | 2.86 kB | +28 B (+1.0 %)",
		"new.js | added | – | 140 B | +140 B",
		"pickle.css | removed | 1.40 kB | – | −1.40 kB",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the changes are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if !strings.Contains(body, "<strong>3</strong> unchanged") {
		t.Error("what is unchanged is not counted")
	}
	if body := get(t, site, "/compare/pickle?from=2.0.0&to=2.0.0").Body.String(); !strings.Contains(body, "All files are the same") {
		t.Error("a version compared with itself has changes")
	}
	if body := get(t, site, "/compare/pickle").Body.String(); !strings.Contains(body, `<option selected>2.0.0</option>`) || !strings.Contains(body, `<option selected>1.1.0</option>`) {
		t.Error("the latest versions are not compared by default")
	}
}

func TestHistory(t *testing.T) {
	site := newSite(t, filled(t), nil)
	var got []string
	for _, n := range find(t, get(t, site, "/history/pickle").Body.String(), func(n *html.Node) bool { return n.Data == "li" && attr(n.Parent, "class") == "events" }) {
		got = append(got, wordsOf(n))
	}
	const moment = "29 February 2024, 12:30 UTC"
	want := []string{
		"3.0.0 refused package/pickle.js is too large Released upstream 29 February 2024 Refused " + moment + " Log all entries",
		"2.1.0 failed the registry is away Last attempt " + moment + " Failed attempts 3 Next attempt 29 February 2024, 13:30 UTC Log all entries",
		"2.0.0 published Released upstream 29 February 2024 Published " + moment + " Files 6, 17.3 kB Log entry 3 Changes since 1.1.0 Log all entries",
		"1.1.0 published Released upstream 29 February 2024 Published " + moment + " Files 6, 18.5 kB Log entry 2 Changes since 1.0.0 Log all entries",
		"1.0.0 published Released upstream 29 February 2024 Published " + moment + " Files 6, 18.5 kB Log entry 1 Log all entries",
		"0.9.0 withdrawn it <b>stole</b> cookies Withdrawn " + moment + " Log entry 5 Log all entries",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEmptyStore(t *testing.T) {
	shelf := librarytest.New(t)
	site := newSite(t, shelf, nil)
	for target, want := range map[string]string{
		"/": "The shelves are still empty", "/search": "The shelves are still empty", "/search?q=a": "Nothing matches", "/statistics": "Nothing is published here yet", "/docs": "/libraries/jquery",
	} {
		w := get(t, site, target)
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d without %q", target, w.Code, want)
		}
		checkPage(t, w)
	}
	shelf.Enrol("first", packageJSON(t, "first", nil))
	librarytest.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/").Body.String(); !strings.Contains(body, "1 library is enrolled") {
		t.Error("the first library does not show")
	}
	shelf.Publish("first", "1.0.0", "first.js", map[string]string{"first.js": script(5), "b.js": "b"})
	librarytest.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/").Body.String(); !strings.Contains(body, "1 release<") {
		t.Error("the first release does not show")
	}
	for range 2 {
		if body := get(t, site, "/statistics").Body.String(); !strings.Contains(body, "<strong>2</strong> files") {
			t.Error("the first release's files are not counted")
		}
	}
	shelf.Publish("first", "1.0.1", "first.js", map[string]string{"first.js": script(5), "b.js": "b", "c.js": "c"})
	librarytest.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/statistics").Body.String(); !strings.Contains(body, "<strong>5</strong> files") {
		t.Error("the second release's files are not counted")
	}
}

// TestCatalogue: whoever has submitted something sees whether it has arrived.
func TestCatalogue(t *testing.T) {
	shelf := librarytest.New(t)
	noon := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	var now Catalogue
	site := newSite(t, shelf, func(o *Options) { o.Catalogue = func() Catalogue { return now } })
	for _, tt := range []struct {
		state Catalogue
		want  string
	}{
		{Catalogue{}, "The catalogue It has not been read yet."},
		{Catalogue{Failing: noon}, "The catalogue It has not been read yet. It cannot be read since 29 February 2024, 12:00 UTC. What is here stays, and is kept up to date."},
		{Catalogue{Packages: 1, Checked: noon}, "The catalogue It has 1 package, as of 29 February 2024, 12:00 UTC."},
		{
			Catalogue{Packages: 4118, Commit: "0123456789ab", Checked: noon, Refused: []string{"packages/b/<b>.json:1:1: error"}},
			"The catalogue It has 4,118 packages at commit 0123456789ab , as of 29 February 2024, 12:00 UTC. These files of it cannot be used, so that their packages stay what they were: packages/b/<b>.json:1:1: error",
		},
	} {
		now = tt.state
		w := get(t, site, "/statistics")
		body := w.Body.String()
		checkPage(t, w)
		sections := find(t, body, func(n *html.Node) bool { return n.Data == "section" && attr(n, "aria-labelledby") == "catalogue" })
		if len(sections) != 1 {
			t.Fatalf("%+v: %d sections\n%s", tt.state, len(sections), body)
		}
		if got := wordsOf(sections[0]); got != tt.want {
			t.Errorf("%+v:\n%s\nwant\n%s", tt.state, got, tt.want)
		}
	}
}

// TestRemoved: a library that the catalogue has no more is served, and its page says so.
func TestRemoved(t *testing.T) {
	shelf := librarytest.New(t)
	site := newSite(t, shelf, nil)
	shelf.Enrol("gone", packageJSON(t, "gone", nil))
	shelf.Publish("gone", "1.0.0", "gone.js", map[string]string{"gone.js": script(5)})
	for _, removed := range []bool{false, true} {
		if removed {
			shelf.Remove("gone")
		}
		librarytest.Await(t, site.library, shelf.Log)
		w := get(t, site, "/library/gone")
		if w.Code != 200 || strings.Contains(w.Body.String(), "not updated any more") != removed {
			t.Errorf("removed %v: %d", removed, w.Code)
		}
		checkPage(t, w)
	}
}

// TestManifest holds what a page tells of a release beyond its files.
func TestManifest(t *testing.T) {
	shelf := filled(t)
	site := newSite(t, shelf, nil)
	release, err := site.library.Release(t.Context(), "shelf-css", "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	m, err := site.library.Manifest(release)
	if err != nil {
		t.Fatal(err)
	}
	m.Version, m.Files[0].Origin = "1.1.0", logs.Minified
	m.Notes = []string{"one <i>went</i> wrong"}
	for i := range 30 {
		m.LeftOut = append(m.LeftOut, logs.LeftOut{Path: fmt.Sprintf("left-%d.css", i), Reason: "it is no CSS"})
	}
	encoded, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	hash := kvstore.Sum(encoded)
	if err := shelf.Store.PutContent(hash, int64(len(encoded)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: encoded}}); err != nil {
		t.Fatal(err)
	}
	entry := logs.Entry{Kind: logs.Published, Package: "shelf-css", Version: "1.1.0", Manifest: hash, Time: librarytest.Released}
	if err := shelf.Log.Update(func(tx *logs.Tx) error { return views.Record(tx, views.Change{Entry: entry, Manifest: m}) }); err != nil {
		t.Fatal(err)
	}
	librarytest.Await(t, site.library, shelf.Log)
	w := get(t, site, "/library/shelf-css")
	body := w.Body.String()
	for _, want := range []string{"minified here", "30 files of the release are not published", "<code>left-19.css</code>: it is no CSS", "one &lt;i&gt;went&lt;/i&gt; wrong"} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(body, "left-20.css") {
		t.Error("all that was left out is listed")
	}
	checkPage(t, w)
}
