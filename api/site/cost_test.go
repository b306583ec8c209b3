package site

import (
	"fmt"
	"html/template"
	"maps"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// TestPagesOfManyFiles holds what a page of a release of 6,000 files costs when it is made anew: about as much as one of 600 files. Allocations stand
// for processor time, which depends on the machine: BenchmarkManyFiles measures up to 1 ms for 4,000 of them. Before lists were written by rows.go the library's
// page had 29,000.
func TestPagesOfManyFiles(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for library, n := range map[string]int{"small": 600, "large": 6_000} {
		shelf.Register(library, packageJSON(t, library, nil))
		files := map[string]string{"w.js": "w"}
		for i := len(files); i < n; i++ {
			files[fmt.Sprintf("shelf-%d/jar-%05d.js", i/200, i)] = "j"
		}
		shelf.Publish(library, "1.0.0", "w.js", files)
		changed := maps.Clone(files)
		for i := range 200 {
			changed[fmt.Sprintf("new-%d.js", i)] = "n"
		}
		shelf.Publish(library, "1.0.1", "w.js", changed)
	}
	shelf.Register("web", packageJSON(t, "web", nil))
	modules := map[string]string{}
	for i := range 400 {
		var b strings.Builder
		for j := range 100 {
			fmt.Fprintf(&b, "import\"./m%d.mjs\";", (i+j)%400)
		}
		modules[fmt.Sprintf("m%d.mjs", i)] = b.String()
	}
	shelf.Publish("web", "1.0.0", "m0.mjs", modules)
	site := newSite(t, shelf, nil)
	for _, page := range []struct {
		target string
		anew   bool // the graph is not cached
		most   float64
	}{
		{"/library/web?filter=m1", false, 5_000},
		{"/library/web?file=m7.mjs", false, 5_000},
		{"/recipe/web/1.0.0?file=m1.mjs&file=m2.mjs&file=m3.mjs", false, 3_000},
		{"/recipe/web/1.0.0?file=m1.mjs&file=m2.mjs&file=m3.mjs", true, 60_000},
	} {
		get := func() {
			site.cachedPages.Remove(func(pageKey) bool { return true })
			if page.anew {
				site.graphs.Remove(func(graphKey) bool { return true })
			}
			w := httptest.NewRecorder()
			if site.ServeHTTP(w, httptest.NewRequest("GET", page.target, nil)); w.Code != 200 {
				t.Fatal(page.target, w.Code)
			}
		}
		for before := site.graphs.Len(); !page.anew && site.graphs.Len() == before; { // until the worker has read the modules
			get()
		}
		if cost := testing.AllocsPerRun(5, get); cost > page.most {
			t.Errorf("%s: %v allocations, want at most %v: imports of modules are followed too often", page.target, cost, page.most)
		}
	}
	for _, page := range []struct {
		target string
		most   float64 // allocations
	}{
		{"/library/LIB", 5_000},
		{"/library/LIB?filter=jar-0012", 3_000},
		{"/files/LIB/1.0.1", 6_000},
		{"/recipe/LIB/1.0.1", 3_000},
		{"/compare/LIB?from=1.0.0&to=1.0.1", 6_000},
		{"/history/LIB", 3_000},
		{"/history/LIB/1.0.1", 5_000},
	} {
		cost := map[string]float64{}
		for _, library := range []string{"small", "large"} {
			r := httptest.NewRequest("GET", strings.ReplaceAll(page.target, "LIB", library), nil)
			cost[library] = testing.AllocsPerRun(5, func() {
				site.cachedPages.Remove(func(pageKey) bool { return true })
				w := httptest.NewRecorder()
				if site.ServeHTTP(w, r); w.Code != 200 {
					t.Fatal(page.target, w.Code)
				}
			})
		}
		t.Logf("%s: %v allocations", page.target, cost)
		if cost["large"] > page.most || cost["large"] > 1.5*cost["small"]+500 {
			t.Errorf("%s: %v allocations, want at most %v and no more for more files", page.target, cost, page.most)
		}
	}
}

// TestRowsEscape holds that nothing in a row becomes markup.
func TestRowsEscape(t *testing.T) {
	hostile := `"><script>alert(1)</script>'&`
	for _, rows := range []template.HTML{
		writeOptions([]views.Version{{Version: hostile}}, hostile, library.Marks{}),
		writeFileRows([]fileRow{{fileLink: fileLink{hostile, hostile}, Snippet: library.Snippet{URL: hostile, HTML: hostile, Integrity: hostile}, Gzip: 1, Chosen: true, Main: true, Minified: true}}),
		writeFolderRows([]folderEntry{{Name: hostile, Address: hostile}}),
		writeProcessingRows([]logs.File{{Path: hostile, Origin: logs.Minified, From: hostile}}),
		writeChangeRows([]change{{Kind: changed, Path: hostile, Address: hostile}}),
		writeChoices([]recipeFile{{Path: hostile, Chosen: true}}),
	} {
		if strings.Contains(string(rows), "<script") || !strings.Contains(string(rows), "&#34;&gt;&lt;script&gt;alert(1)&lt;/script&gt;&#39;&amp;") {
			t.Errorf("not escaped: %s", rows)
		}
	}
}
