package site

import (
	"fmt"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
)

// BenchmarkManyFiles makes the pages of a release of 25,000 files, as docs/site.md says what they cost.
func BenchmarkManyFiles(b *testing.B) {
	shelf := testkit.NewShelf(b)
	shelf.Enrol("warehouse", `{"name":"warehouse","filename":"w.js","description":"Much.","keywords":["much"],"repository":{"type":"git","url":"https://git.example/w.git"}}`)
	files := map[string]string{"w.js": "w"}
	for n := len(files); n < 25_000; n++ {
		files[fmt.Sprintf("shelf-%d/jar-%05d.js", n/1000, n)] = fmt.Sprint(n)
	}
	shelf.Publish("warehouse", "1.0.0", "w.js", files)
	shelf.Publish("warehouse", "1.0.1", "w.js", files)
	site := newSite(b, shelf, nil)
	for _, page := range []struct{ name, target string }{
		{"library", "/library/warehouse"},
		{"filter", "/library/warehouse?filter=jar-123"},
		{"files", "/files/warehouse/1.0.1"},
		{"folder", "/files/warehouse/1.0.1/shelf-3"},
		{"recipe", "/recipe/warehouse/1.0.1"},
		{"compare", "/compare/warehouse?from=1.0.0&to=1.0.1"},
		{"history", "/history/warehouse/1.0.1"},
	} {
		b.Run(page.name, func(b *testing.B) {
			bytes := 0
			for b.Loop() {
				site.kept.Forget(func(pageKey) bool { return true })
				w := get(b, site, page.target)
				if w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
				bytes = w.Body.Len()
			}
			b.ReportMetric(float64(bytes), "page-bytes")
		})
	}
}
