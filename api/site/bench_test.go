package site

import (
	"fmt"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

// BenchmarkManyFiles makes the pages of a release of 6,000 files anew, as docs/site.md reports. cpu-ms is the processor time of a page, which other
// processes do not change. Names that end in br include the compression of the response, which happens once while a page is cached.
func BenchmarkManyFiles(b *testing.B) {
	shelf := testkit.NewShelf(b)
	shelf.Register("warehouse", `{"name":"warehouse","filename":"w.js","description":"Much.","keywords":["much"],"repository":{"type":"git","url":"https://git.example/w.git"}}`)
	files := map[string]string{"w.js": "w"}
	for n := len(files); n < 6_000; n++ {
		files[fmt.Sprintf("shelf-%d/jar-%05d.js", n/1000, n)] = fmt.Sprint(n)
	}
	dependencies := map[string]string{}
	for n := range 40 {
		dependencies[fmt.Sprintf("dependency-%d", n)] = "^1.2.3 || >=3.0.0"
	}
	about := &logs.About{ReadmeFile: "README.md", Readme: "# Warehouse\n\nMuch of it.", Dependencies: dependencies}
	shelf.PublishAbout("warehouse", "1.0.0", "w.js", files, about)
	files["shelf-2/jar-02000.js"] = "changed"
	shelf.PublishAbout("warehouse", "1.0.1", "w.js", files, about)
	site := newSite(b, shelf, nil)
	for _, page := range []struct{ name, target string }{
		{"library", "/library/warehouse"},
		{"filter", "/library/warehouse?filter=jar-123"},
		{"files", "/files/warehouse/1.0.1"},
		{"folder", "/files/warehouse/1.0.1/shelf-3"},
		{"recipe", "/recipe/warehouse/1.0.1"},
		{"compare", "/compare/warehouse?from=1.0.0&to=1.0.1"},
		{"history", "/history/warehouse/1.0.1"},
		{"history-library", "/history/warehouse"},
	} {
		for name, header := range map[string][]string{"": nil, "-br": {"Accept-Encoding", "br"}} {
			b.Run(page.name+name, func(b *testing.B) {
				get(b, site, page.target) // reads the release
				bytes, start := 0, testkit.ProcessorTime(b)
				for b.Loop() {
					site.cachedPages.Remove(func(pageKey) bool { return true })
					w := get(b, site, page.target, header...)
					if w.Code != 200 {
						b.Fatal(w.Code, w.Body)
					}
					bytes = w.Body.Len()
				}
				b.ReportMetric(float64(bytes), "page-bytes")
				b.ReportMetric(float64(testkit.ProcessorTime(b)-start)/float64(b.N)/float64(time.Millisecond), "cpu-ms")
			})
		}
	}
}
