package site

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

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
		return textOf(found[0])
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
		"package/pickle.js is too large", "the registry is away", `next attempt <time datetime="2024-02-29T13:30:45Z" data-to="minute">29 February 2024, 13:30 UTC</time>`,
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
			paths = append(paths, strings.TrimSpace(strings.TrimSuffix(textOf(n), " main")))
		}
		return paths
	}
	first := rows("/library/pantry")
	if len(first) != filesShown || first[0] != "pantry.js" || first[1] != "icons/icon-0000.svg" {
		t.Errorf("the first page has %d files: %q…", len(first), first[:2])
	}
	seen := map[string]bool{}
	for page := 1; page <= 25; page++ {
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

func TestSearch(t *testing.T) {
	shelf := filled(t)
	for i := range 50 {
		name := fmt.Sprintf("jar-%02d", i)
		shelf.Register(name, packageJSON(t, name, nil))
	}
	site := newSite(t, shelf, nil)
	names := func(target string) []string {
		t.Helper()
		var names []string
		for _, n := range find(t, get(t, site, target).Body.String(), func(n *html.Node) bool { return n.Data == "h2" && n.Parent.Data == "article" }) {
			names = append(names, textOf(n))
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
			cells = append(cells, textOf(c))
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
	for _, n := range find(t, get(t, site, "/history/pickle").Body.String(), func(n *html.Node) bool { return n.Data == "tr" && n.Parent.Data == "tbody" }) {
		got = append(got, wordsOf(n))
	}
	const day = "29 February 2024"
	want := []string{
		"3.0.0 refused " + day + " " + day + " log package/pickle.js is too large",
		"2.1.0 failed " + day + " log the registry is away (3 failed attempts; next attempt " + day + ", 13:30 UTC )",
		"2.0.0 published " + day + " " + day + " 6 files, 17.3 kB log since 1.1.0",
		"1.1.0 published " + day + " " + day + " 6 files, 18.5 kB log since 1.0.0",
		"1.0.0 published " + day + " " + day + " 6 files, 18.5 kB log",
		"0.9.0 withdrawn " + day + " log it <b>stole</b> cookies",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the history is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestEmptyStore(t *testing.T) {
	shelf := testkit.NewShelf(t)
	site := newSite(t, shelf, nil)
	for target, want := range map[string]string{
		"/": "The shelves are still empty", "/search": "The shelves are still empty", "/search?q=a": "Nothing matches", "/statistics": "Nothing is published here yet", "/docs/libraries": "/libraries/jquery",
	} {
		w := get(t, site, target)
		if w.Code != 200 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d without %q", target, w.Code, want)
		}
		checkPage(t, w)
	}
	shelf.Register("first", packageJSON(t, "first", nil))
	testkit.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/").Body.String(); !strings.Contains(body, "1 library is registered") {
		t.Error("the first library does not show")
	}
	shelf.Publish("first", "1.0.0", "first.js", map[string]string{"first.js": script(5), "b.js": "b"})
	testkit.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/").Body.String(); !strings.Contains(body, "1 release<") {
		t.Error("the first release does not show")
	}
	for range 2 {
		if body := get(t, site, "/statistics").Body.String(); !strings.Contains(body, "<strong>2</strong> files") {
			t.Error("the first release's files are not counted")
		}
	}
	shelf.Publish("first", "1.0.1", "first.js", map[string]string{"first.js": script(5), "b.js": "b", "c.js": "c"})
	testkit.Await(t, site.library, shelf.Log)
	if body := get(t, site, "/statistics").Body.String(); !strings.Contains(body, "<strong>5</strong> files") {
		t.Error("the second release's files are not counted")
	}
}

// TestCatalogue: a contributor sees whether a submission has arrived.
func TestCatalogue(t *testing.T) {
	shelf := testkit.NewShelf(t)
	noon := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	var now Catalogue
	site := newSite(t, shelf, func(o *Options) { o.Catalogue = func() Catalogue { return now } })
	for _, tt := range []struct {
		state Catalogue
		want  string
	}{
		{Catalogue{}, "The catalogue It has not been read yet."},
		{Catalogue{Failing: noon}, "The catalogue It has not been read yet. It cannot be read since 29 February 2024, 12:00 UTC . What is here stays, and is kept up to date."},
		{Catalogue{Packages: 1, Checked: noon}, "The catalogue It has 1 package, as of 29 February 2024, 12:00 UTC ."},
		{
			Catalogue{Packages: 4118, Commit: "0123456789ab", Checked: noon, Refused: []string{"packages/b/<b>.json:1:1: error"}},
			"The catalogue It has 4,118 packages at commit 0123456789ab , as of 29 February 2024, 12:00 UTC . These files of it cannot be used, so that their packages stay what they were: packages/b/<b>.json:1:1: error",
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
	shelf := testkit.NewShelf(t)
	site := newSite(t, shelf, nil)
	shelf.Register("gone", packageJSON(t, "gone", nil))
	shelf.Publish("gone", "1.0.0", "gone.js", map[string]string{"gone.js": script(5)})
	for _, removed := range []bool{false, true} {
		if removed {
			shelf.Remove("gone")
		}
		testkit.Await(t, site.library, shelf.Log)
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
	entry := logs.Entry{Kind: logs.Published, Package: "shelf-css", Version: "1.1.0", Manifest: hash, Time: testkit.Released}
	if err := shelf.Log.Update(func(tx *logs.Tx) error { return views.Record(tx, views.Change{Entry: entry, Manifest: m}) }); err != nil {
		t.Fatal(err)
	}
	testkit.Await(t, site.library, shelf.Log)
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
