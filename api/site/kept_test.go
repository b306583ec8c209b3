package site

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/testkit"
)

// TestKeptPages holds that a page is made once while nothing has changed, and anew when something has.
func TestKeptPages(t *testing.T) {
	shelf := filled(t)
	s := newSite(t, shelf, nil)
	now := time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	for _, target := range []string{"/library/pickle", "/history/pickle", "/history"} {
		first := get(t, s, target)
		kept := s.kept.Len()
		if again := get(t, s, target); again.Code != 200 || again.Body.String() != first.Body.String() || s.kept.Len() != kept {
			t.Errorf("%s: %d, and %d pages are kept beside %d", target, again.Code, s.kept.Len(), kept)
		}
		if w := get(t, s, target, "Host", "other.example"); strings.Contains(w.Body.String(), "http://example.com") {
			t.Errorf("%s at another host has the first one's addresses", target)
		}
		r := httptest.NewRequest("POST", target, nil)
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 405 {
			t.Errorf("POST %s: %d", target, w.Code)
		}
	}
	if get(t, s, "/library/chutney").Code != 404 {
		t.Fatal("chutney is there already")
	}
	shelf.Publish("chutney", "1.0.0", "chutney.js", map[string]string{"chutney.js": "1"})
	testkit.Await(t, s.library, shelf.Log)
	if body := get(t, s, "/history").Body.String(); !strings.Contains(body, "chutney") {
		t.Error("a publication does not show")
	}
	kept := s.kept.Len()
	now = now.Add(keptFor)
	if get(t, s, "/history"); s.kept.Len() != kept+1 {
		t.Error("a page is kept for longer than it may be")
	}
	for _, target := range []string{"/search?q=pickle", "/statistics", "/library/none", "/library/pickle/"} {
		kept := s.kept.Len()
		if get(t, s, target); s.kept.Len() != kept {
			t.Errorf("%s is kept", target)
		}
	}
}

// TestPagesInTurn has many clients ask at once; none is refused, and all turns are given back.
func TestPagesInTurn(t *testing.T) {
	turns := client.NewTurns(1)
	s := newSite(t, filled(t), func(o *Options) { o.Turns = turns })
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			if w := get(t, s, fmt.Sprintf("/search?q=pickle&page=%d", i)); w.Code != 200 {
				t.Errorf("%d", w.Code)
			}
			get(t, s, "/library/none")
		})
	}
	all.Wait()
	if turns.Taken() != 0 {
		t.Errorf("%d turns are taken", turns.Taken())
	}
}

// BenchmarkLargePages asks for pages of releases with thousands of files: first of all anew each time, then while nothing
// has changed.
func BenchmarkLargePages(b *testing.B) {
	shelf := testkit.NewShelf(b)
	shelf.Enrol("icons", packageJSON(b, "icons", map[string]any{"filename": "index.js"}))
	for version := range 2 {
		files := map[string]string{"index.js": "1"}
		for i := range 6000 {
			files[fmt.Sprintf("icons/%d/icon-%d.svg", i%50, i)] = fmt.Sprint(version*(i%7), i)
		}
		shelf.Publish("icons", fmt.Sprintf("1.%d.0", version), "index.js", files)
	}
	s := newSite(b, shelf, nil)
	testkit.Await(b, s.library, shelf.Log)
	for _, target := range []string{"/library/icons/1.1.0", "/history/icons/1.1.0", "/compare/icons?from=1.0.0&to=1.1.0"} {
		for _, kept := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/kept=%v", strings.SplitN(target, "/", 3)[1], kept), func(b *testing.B) {
				for b.Loop() {
					if !kept {
						s.kept.Forget(func(pageKey) bool { return true })
					}
					if w := get(b, s, target, "Accept-Encoding", "br"); w.Code != 200 {
						b.Fatal(w.Code)
					}
				}
			})
		}
	}
}
