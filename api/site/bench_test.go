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
		{"library", "/library/warehouse?n=%d"},
		{"filter", "/library/warehouse?filter=jar-123&n=%d"},
		{"files", "/files/warehouse/1.0.1?n=%d"},
		{"folder", "/files/warehouse/1.0.1/shelf-3?n=%d"},
		{"recipe", "/recipe/warehouse/1.0.1?n=%d"},
		{"compare", "/compare/warehouse?from=1.0.0&to=1.0.1&n=%d"},
		{"history", "/history/warehouse/1.0.1?n=%d"},
	} {
		b.Run(page.name, func(b *testing.B) {
			n, bytes := 0, 0
			for b.Loop() {
				n++ // so that none is kept
				w := get(b, site, fmt.Sprintf(page.target, n))
				if w.Code != 200 {
					b.Fatal(w.Code, w.Body)
				}
				bytes = w.Body.Len()
			}
			b.ReportMetric(float64(bytes), "page-bytes")
		})
	}
}
