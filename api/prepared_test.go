package api

import (
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/larder-cdn/larder/api/library/librarytest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

func made[V any](v V, bytes int) func() (V, int, error) {
	return func() (V, int, error) { return v, bytes, nil }
}

func TestPreparedKeepsTheMostRecent(t *testing.T) {
	p := prepared[int, string]{most: 3, mostBytes: 100}
	ask := func(key int, want string) {
		t.Helper()
		got, err := p.get(key, made("new", 10))
		if err != nil || got != want {
			t.Errorf("%d is %s, want %s: %v", key, got, want, err)
		}
	}
	for key := range 3 {
		if _, err := p.get(key, made("old", 10)); err != nil {
			t.Fatal(err)
		}
	}
	ask(0, "old")
	ask(3, "new")
	ask(1, "new")
	ask(0, "old")
	p.forget(func(key int) bool { return key == 0 })
	ask(0, "new")
}

func TestPreparedIsBounded(t *testing.T) {
	p := prepared[int, int]{most: 10, mostBytes: 100}
	for key := range 10 {
		if _, err := p.get(key, made(key, 30)); err != nil {
			t.Fatal(err)
		}
	}
	equal(t, "entries kept", len(p.entries), 3)
	if v, err := p.get(11, made(11, 101)); v != 11 || err != nil {
		t.Error("what is too large is not answered")
	}
	equal(t, "entries kept beside one that is too large", len(p.entries), 0)
}

func TestPreparedFails(t *testing.T) {
	p := prepared[int, int]{most: 2, mostBytes: 10}
	broken := errors.New("broken")
	if _, err := p.get(1, func() (int, int, error) { return 0, 0, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = p.get(1, func() (int, int, error) { panic("boom") })
		t.Error("the panic is lost")
	}()
	if v, err := p.get(1, made(7, 1)); v != 7 || err != nil {
		t.Errorf("after failures: %d %v", v, err)
	}
}

func TestPreparedIsMadeOnce(t *testing.T) {
	p := prepared[int, int]{most: 2, mostBytes: 10}
	var times atomic.Int32
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	var group sync.WaitGroup
	ask := func() {
		v, err := p.get(1, func() (int, int, error) {
			times.Add(1)
			begun <- struct{}{}
			<-finish
			return 7, 1, nil
		})
		if v != 7 || err != nil {
			t.Errorf("%d %v", v, err)
		}
	}
	group.Go(ask)
	<-begun
	for range 9 {
		group.Go(ask)
	}
	close(finish)
	group.Wait()
	equal(t, "times", times.Load(), int32(1))
}

// crowded returns a service with n libraries.
func crowded(t testing.TB, n int) *service {
	t.Helper()
	shelf := librarytest.New(t)
	// One batch: n of them would be synced to the disk one by one.
	err := shelf.Log.Update(func(tx *logs.Tx) error {
		for i := range n {
			name := fmt.Sprintf("library-%d", i)
			text := []byte(plainJSON(name, "One of many, which says what it does in a sentence."))
			e := logs.Entry{Kind: logs.PackageAdded, Time: librarytest.Released, Actor: "bot", Package: name, PackageJSON: kvstore.Sum(text)}
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
		s.public.lists.forget(func(listKey) bool { return true })
		w := &sink{header: http.Header{}}
		s.handler.ServeHTTP(w, r)
	}
}
