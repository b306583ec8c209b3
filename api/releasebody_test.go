package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
)

// manyFiles returns as many files of a release.
func manyFiles(n int) map[string]string {
	files := make(map[string]string, n)
	for i := range n {
		files[fmt.Sprintf("icons/%d/icon-%05d.js", i%100, i)] = "icon"
	}
	return files
}

// TestManyFilesAreCached responds about a release with many files from the cache until the release or its library changes.
func TestManyFilesAreCached(t *testing.T) {
	s := newService(t)
	s.shelf.Register("icons", plainJSON("icons", "Many icons."))
	s.shelf.Publish("icons", "1.0.0", "icons/0/icon-00000.js", manyFiles(fewFiles+1))
	testkit.Await(t, s.index, s.shelf.Log)
	targets := []string{
		"/libraries/icons", "/libraries/icons?fields=assets", "/libraries/icons/1.0.0", "/libraries/icons/1.0.0?fields=sri",
		"/packages/icons/versions/1.0.0", "/packages/icons/sris/1.0.0",
	}
	first := map[string]string{}
	for range 2 {
		for _, target := range targets {
			got := s.get(target)
			if got.status != http.StatusOK || strings.Count(got.body, "icon-00007.js") == 0 {
				t.Fatalf("%s: %d %.200s", target, got.status, got.body)
			}
			if before := first[target]; before != "" && before != got.body {
				t.Errorf("%s: the cached response differs", target)
			}
			first[target] = got.body
		}
	}
	if n := s.public.releases.Len(); n != len(targets) {
		t.Errorf("%d responses are cached, want %d", n, len(targets))
	}

	s.shelf.Publish("icons", "0.9.0", "a.js", map[string]string{"a.js": "a"})
	testkit.Await(t, s.index, s.shelf.Log)
	if got := s.get("/libraries/icons"); !strings.Contains(got.body, `"versions":["1.0.0","0.9.0"]`) {
		t.Errorf("an older version is missing: %.300s", got.body)
	}
	s.shelf.Withdraw("icons", "1.0.0", "a test")
	testkit.Await(t, s.index, s.shelf.Log)
	for _, target := range targets[2:] {
		if got := s.get(target); got.status != http.StatusGone {
			t.Errorf("%s: %d after a withdrawal", target, got.status)
		}
	}
	if got := s.get("/libraries/icons?fields=assets"); strings.Contains(got.body, "icon-00007.js") {
		t.Error("a withdrawn version is in the assets")
	}
}

// BenchmarkManyFiles requests a version with 25,000 files, of which nothing has changed.
func BenchmarkManyFiles(b *testing.B) {
	s := newService(b)
	s.shelf.Register("icons", plainJSON("icons", "Many icons."))
	s.shelf.Publish("icons", "1.0.0", "", manyFiles(25_000))
	testkit.Await(b, s.index, s.shelf.Log)
	for _, target := range []string{"/libraries/icons/1.0.0", "/libraries/icons", "/packages/icons/sris/1.0.0"} {
		b.Run(strings.ReplaceAll(target, "/", "_"), func(b *testing.B) {
			request := func() {
				w := httptest.NewRecorder()
				s.handler.ServeHTTP(w, newRequest(http.MethodGet, target, "Accept-Encoding: br"))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
			request() // makes the response
			start := testkit.ProcessorTime(b)
			for b.Loop() {
				request()
			}
			b.ReportMetric(float64(testkit.ProcessorTime(b)-start)/float64(b.N)/float64(time.Millisecond), "cpu-ms")
		})
	}
}
