package download_test

import (
	"net/http/httptest"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/server/download"
)

// BenchmarkArchive is in bytes of the release's files, not of the archive.
func BenchmarkArchive(b *testing.B) {
	r := testkit.Releases()[0]
	h := newHandler(b, download.Options{Store: openStore(b, r)})
	for suffix := range readers {
		b.Run(suffix[1:], func(b *testing.B) {
			request := httptest.NewRequest("GET", "/download/demo/1.0.0"+suffix, nil)
			var identity, archive int64
			for _, data := range r.Files {
				identity += int64(len(data))
			}
			b.SetBytes(identity)
			b.ReportAllocs()
			for b.Loop() {
				archive = 0
				if ended := serve(h, request, func(p []byte) error { archive += int64(len(p)); return nil }); ended != nil {
					b.Fatal(ended)
				}
			}
			b.ReportMetric(float64(archive)/float64(identity), "size")
		})
	}
}
