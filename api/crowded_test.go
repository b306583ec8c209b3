package api

import (
	"fmt"
	"net/http"
	"runtime"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// crowded returns a service with n libraries.
func crowded(t testing.TB, n int) *service {
	t.Helper()
	shelf := testkit.NewShelf(t)
	// One batch: n of them would be synced to the disk one by one.
	err := shelf.Log.Update(func(tx *logs.Tx) error {
		for i := range n {
			name := fmt.Sprintf("library-%d", i)
			text := []byte(plainJSON(name, "One of many, which says what it does in a sentence."))
			e := logs.Entry{Kind: logs.PackageAdded, Time: testkit.Released, Actor: "bot", Package: name, PackageJSON: kvstore.Sum(text)}
			if err := views.Record(tx, views.Change{Entry: e, PackageJSON: text}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return serviceOf(t, shelf)
}

// sink is a client that keeps nothing.
type sink struct {
	header http.Header
	status int
	bytes  int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(status int)      { s.status = status }
func (s *sink) Write(b []byte) (int, error) { s.bytes += len(b); return len(b), nil }

// The list of all libraries is prepared: a request for it allocates what any request does, however many there are.
func TestAllLibrariesArePrepared(t *testing.T) {
	perRequest := func(libraries int) (bytes uint64, sent int) {
		s := crowded(t, libraries)
		r := newRequest("GET", "/libraries?fields=name,description,version", "Accept-Encoding: gzip")
		ask := func() {
			w := &sink{header: http.Header{}}
			s.handler.ServeHTTP(w, r)
			if w.status != 200 {
				t.Fatalf("status %d", w.status)
			}
			sent = w.bytes
		}
		ask()
		const times = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			ask()
		}
		runtime.ReadMemStats(&after)
		return (after.TotalAlloc - before.TotalAlloc) / times, sent
	}
	few, sentFew := perRequest(20)
	many, sentMany := perRequest(2000)
	if sentMany < 5*sentFew {
		t.Errorf("the lists have %d and %d bytes", sentFew, sentMany)
	}
	// Something else may allocate meanwhile, but not a list.
	if many > 2*few+4096 {
		t.Errorf("a request takes %d bytes of memory with 20 libraries, %d with 2000", few, many)
	}
}

func BenchmarkAllLibraries(b *testing.B) {
	s := crowded(b, 6000)
	for _, target := range []string{"/libraries", "/libraries?fields=*", "/libraries?fields=*&limit=10", "/libraries?search=library-77", "/libraries/library-77", "/packages"} {
		b.Run(target, func(b *testing.B) {
			b.ReportAllocs()
			r := newRequest("GET", target, "Accept-Encoding: br")
			for b.Loop() {
				w := &sink{header: http.Header{}}
				s.handler.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkPrepare is what the first request after a change costs.
func BenchmarkPrepare(b *testing.B) {
	s := crowded(b, 6000)
	r := newRequest("GET", "/libraries?fields=*", "Accept-Encoding: br")
	for b.Loop() {
		s.public.lists.Remove(func(listKey) bool { return true })
		w := &sink{header: http.Header{}}
		s.handler.ServeHTTP(w, r)
	}
}
