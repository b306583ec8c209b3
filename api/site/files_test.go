package site

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/internal/testkit"
)

// addWorkshop adds a library whose files are in folders, and change.
func addWorkshop(t testing.TB, s *testkit.Shelf) {
	t.Helper()
	s.Register("workshop", packageJSON(t, "workshop", nil))
	many := strings.Builder{}
	for i := range 4500 {
		fmt.Fprintf(&many, "export const n%d = %d; // the %d. line\n", i, i, i)
	}
	files := map[string]string{
		"main.js":  "// a\nimport { b } from './lib/b.js';\nconst s = \"<i>\" + `x${b / 2}y`;\nif (/[/]\\//.test(s)) { let c = 0x1f; }\n",
		"lib/b.js": "export const b = 1;\n", "lib/deep/c.css": "@media print { a { color: #fff; --x: 1px } } /* no */\n",
		"lib/deep/d.txt": "plain <b>text</b>\n", "many.js": many.String(), "one-line.min.js": "x(" + strings.Repeat("1,", 40_000) + "2)",
		"noise.bin": "\x00\x01", "empty.js": "", "odd/a b%41&'\"<i>.js": "1\n",
	}
	s.Publish("workshop", "1.0.0", "main.js", files)
	files["main.js"] += "export default s;\n"
	delete(files, "lib/deep/d.txt")
	files["new.js"] = "let made;\n"
	s.Publish("workshop", "1.1.0", "main.js", files)
}

func TestFolders(t *testing.T) {
	shelf := filled(t)
	addWorkshop(t, shelf)
	addPantry(t, shelf)
	site := newSite(t, shelf, nil)
	for _, tt := range []struct {
		target   string
		status   int
		location string
		shows    []string
	}{
		{"/files/workshop/1.0.0", 200, "", []string{`href="/files/workshop/1.0.0/lib"`, `href="/files/workshop/1.0.0/main.js"`, `href="/files/workshop/1.0.0/odd"`, "9 files"}},
		{"/files/workshop/1.0.0/lib", 200, "", []string{`href="/files/workshop/1.0.0/lib/deep"`, `href="/files/workshop/1.0.0/lib/b.js"`, "3 files"}},
		{"/files/workshop/1.0.0/lib/deep", 200, "", []string{`href="/files/workshop/1.0.0/lib/deep/d.txt"`, `<a href="/files/workshop/1.0.0/lib">lib</a>`}},
		{"/files/workshop/1.0.0/lib/", 308, "/files/workshop/1.0.0/lib", nil},
		{"/files/workshop/1.0.0/lib?version=1.1.0", 303, "/files/workshop/1.1.0/lib", nil},
		{"/files/workshop/1.0.0/lib/missing.js", 404, "", []string{"has no file “lib/missing.js”", `href="/files/workshop/1.0.0"`}},
		{"/files/workshop/1.0.0/mian.js", 404, "", []string{`href="/files/workshop/1.0.0/main.js"`}},
		{"/files/workshop/1.0.0/lib/%2e%2e/main.js", 400, "", []string{"This address is broken"}},
		{"/files/workshop/1.0.5", 404, "", []string{"1.0.5 is not published here", `href="/library/workshop"`}},
		{"/files/workshop/1", 404, "", []string{`href="/library/workshop/1.1.0"`}},
		{"/files/workshpo/1.0.0", 404, "", []string{`href="/library/workshop"`}},
		{"/files/workshop", 303, "/library/workshop", nil},
		{"/files/", 308, "/files", nil},
		{"/files", 303, "/search", nil},
		{"/files/pantry/1.0.0/icons", 200, "", []string{"Page 1 of 7", `href="/files/pantry/1.0.0/icons?page=2"`}},
		{"/files/pickle/0.9.0/pickle.js", 410, "", []string{"stole"}},
		{"/jquery/workshop.html", 404, "", []string{`href="/library/workshop"`}},
		{"/library/workshop?version=1.0.0&file=lib%2Fb.js", 303, "/library/workshop/1.0.0?file=lib%2Fb.js", nil},
		{"/library/workshop/1.0.0?file=new.js", 200, "", []string{"1.0.0 has no file <code>new.js</code>", `name="file" value="new.js"`}},
		{"/library/workshop/1.1.0?file=new.js", 200, "", []string{`Use <span class="path">new.js</span>`, `name="file" value="new.js"`}},
	} {
		w := get(t, site, tt.target)
		if w.Code != tt.status || w.Header().Get("Location") != tt.location {
			t.Errorf("%s: %d, to %q; want %d, %q", tt.target, w.Code, w.Header().Get("Location"), tt.status, tt.location)
			continue
		}
		body := w.Body.String()
		if tt.location == "" {
			checkPage(t, w)
		}
		for _, want := range tt.shows {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %s", tt.target, want)
			}
		}
	}
}

// sourceOf returns the lines of source that a page shows.
func sourceOf(t testing.TB, w *httptest.ResponseRecorder) string {
	t.Helper()
	var b strings.Builder
	for _, n := range find(t, w.Body.String(), func(n *html.Node) bool { return n.Data == "code" && attr(n.Parent, "class") == "line" }) {
		b.WriteString(textOf(n))
	}
	return b.String()
}

func TestSource(t *testing.T) {
	shelf := filled(t)
	addWorkshop(t, shelf)
	site := newSite(t, shelf, nil)
	checkPage(t, get(t, site, "/files/workshop/1.0.0/main.js"))
	w := get(t, site, "/files/workshop/1.0.0/main.js")
	body := w.Body.String()
	if got, want := sourceOf(t, w), "// a\nimport { b } from './lib/b.js';\nconst s = \"<i>\" + `x${b / 2}y`;\nif (/[/]\\//.test(s)) { let c = 0x1f; }\n"; got != want {
		t.Errorf("the source is\n%s\nwant\n%s", got, want)
	}
	for _, want := range []string{
		`id="L4"`, `href="#L4"`, `<span class="c">// a</span>`, `<span class="k">import</span>`, `<span class="s">&#39;./lib/b.js&#39;</span>`, `<span class="s">/[/]\//</span>`, `<span class="n">0x1f</span>`,
		`/library/workshop/1.0.0?file=main.js#use`, `href="http://larder.example/ajax/libs/workshop/1.0.0/main.js"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(body, "Changes since") {
		t.Error("there is something before the first version")
	}
	style := get(t, site, "/files/workshop/1.1.0/lib/deep/c.css").Body.String()
	for _, want := range []string{`<span class="k">@media</span>`, `<span class="n">#fff</span>`, `<span class="p">--x</span>`, `<span class="c">/* no */</span>`, "Changes since 1.0.0"} {
		if !strings.Contains(style, want) {
			t.Errorf("the style sheet's page lacks %s", want)
		}
	}
	if got := sourceOf(t, get(t, site, "/files/workshop/1.0.0/many.js?page=3")); !strings.HasPrefix(got, "export const n4000 ") || strings.Count(got, "\n") != 500 {
		t.Errorf("the third page begins with %.40q and has %d lines", got, strings.Count(got, "\n"))
	}
	for target, want := range map[string]string{
		"/files/workshop/1.0.0/noise.bin":                     "It is not text.",
		"/files/workshop/1.0.0/empty.js":                      "The file is empty.",
		"/files/workshop/1.0.0/one-line.min.js":               "Very long lines are cut off",
		"/files/workshop/1.0.0/odd/a%20b%2541&'%22%3Ci%3E.js": `<span class="n">1</span>`,
	} {
		body := get(t, site, target).Body.String()
		checkPage(t, get(t, site, target))
		if !strings.Contains(body, want) || len(body) > 100_000 {
			t.Errorf("%s has %d bytes, and should say %s", target, len(body), want)
		}
	}
}

func TestDiff(t *testing.T) {
	shelf := filled(t)
	addWorkshop(t, shelf)
	site := newSite(t, shelf, nil)
	checkPage(t, get(t, site, "/compare/workshop?from=1.0.0&to=1.1.0&file=main.js"))
	w := get(t, site, "/compare/workshop?from=1.0.0&to=1.1.0&file=main.js")
	body := strings.ReplaceAll(w.Body.String(), "&#43;", "+")
	for _, want := range []string{"<span>@@ -2,3 +2,4 @@\n</span>", "<ins>+export default s;\n</ins>", "1 line added, 0 removed", `name="file" value="main.js"`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	for target, want := range map[string]string{
		"/compare/workshop?from=1.0.0&to=1.1.0":                       `/compare/workshop?from=1.0.0&amp;to=1.1.0&amp;file=new.js`,
		"/compare/workshop?from=1.0.0&to=1.1.0&file=lib/b.js":         "The file is the same in both",
		"/compare/workshop?from=1.0.0&to=1.1.0&file=new.js":           "1 line added",
		"/compare/workshop?from=1.0.0&to=1.1.0&file=lib/deep/d.txt":   "0 lines added, 1 removed",
		"/compare/workshop?from=1.0.0&to=1.1.0&file=noise.bin":        "The file is the same in both",
		"/compare/pickle?from=1.0.0&to=2.0.0&file=pickle.min.js":      "2 lines added",
		"/compare/pickle?from=1.0.0&to=2.0.0&file=fonts/pickle.woff2": "The file is the same in both",
	} {
		body := get(t, site, target).Body.String()
		checkPage(t, get(t, site, target))
		if !strings.Contains(body, want) {
			t.Errorf("%s lacks %s", target, want)
		}
	}
	if w := get(t, site, "/compare/workshop?from=1.0.0&to=1.1.0&file=nothing.js"); w.Code != 404 {
		t.Errorf("a file that neither has: %d", w.Code)
	}
}

func TestRecipe(t *testing.T) {
	shelf := filled(t)
	addWorkshop(t, shelf)
	site := newSite(t, shelf, nil)
	target := "/recipe/workshop/1.0.0?file=lib/deep/c.css&file=main.js&file=many.js&file=lib/deep/d.txt&file=nothing.js&filter=lib"
	checkPage(t, get(t, site, target))
	body := get(t, site, target).Body.String()
	code := find(t, body, func(n *html.Node) bool { return n.Data == "code" && attr(n, "id") == "tags" })
	if len(code) != 1 {
		t.Fatalf("there are %d lists of tags", len(code))
	}
	tags := textOf(code[0])
	last := -1
	for _, want := range []string{`<link rel="stylesheet" href="http://larder.example/ajax/libs/workshop/1.0.0/lib/deep/c.css" integrity="sha512-`, `/main.js"`, `/many.js"`} {
		at := strings.Index(tags, want)
		if at <= last {
			t.Errorf("%s is at %d, after %d:\n%s", want, at, last, tags)
		}
		last = at
	}
	for _, want := range []string{"workshop 1.0.0 has no file nothing.js.", "No tag loads lib/deep/d.txt by itself.", `<input type="hidden" name="file" value="main.js">`, `value="lib/deep/c.css" checked`} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	empty := get(t, site, "/recipe/workshop/1.0.0")
	if empty.Code != 200 || strings.Contains(empty.Body.String(), `id="tags"`) {
		t.Errorf("nothing chosen: %d", empty.Code)
	}
	if w := get(t, site, "/recipe/workshop/1.0.0?version=1.1.0&file=main.js"); w.Code != 303 || w.Header().Get("Location") != "/recipe/workshop/1.1.0?file=main.js" {
		t.Errorf("another version: %d, to %q", w.Code, w.Header().Get("Location"))
	}
	preserve := get(t, site, "/recipe/preserve/1.0.0?file=preserve.mjs").Body.String()
	for _, want := range []string{"&lt;script type=&#34;importmap&#34;&gt;", "&#34;integrity&#34;: {", "&lt;script type=&#34;module&#34; src="} {
		if !strings.Contains(preserve, want) {
			t.Errorf("the recipe of a module lacks %s", want)
		}
	}
}
