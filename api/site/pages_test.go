package site

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

// TestKeptPages holds that a page is made once until something changes that it is made of, and again afterwards.
func TestKeptPages(t *testing.T) {
	shelf := filled(t)
	s := newSite(t, shelf, nil)
	now := time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	for _, target := range []string{"/library/pickle", "/library/pickle/2.0.0?file=pickle.mjs", "/history/pickle", "/history/pickle/2.0.0", "/compare/pickle?from=1.0.0&to=2.0.0", "/files/pickle/2.0.0/pickle.js", "/recipe/pickle/2.0.0?file=pickle.js"} {
		first := get(t, s, target)
		kept := s.cachedPages.Len()
		if again := get(t, s, target); again.Code != 200 || again.Body.String() != first.Body.String() || s.cachedPages.Len() != kept || kept == 0 {
			t.Errorf("%s: %d, and %d pages are kept beside %d", target, again.Code, s.cachedPages.Len(), kept)
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
	for _, target := range []string{
		"/search?q=pickle", "/statistics", "/library/none", "/library/pickle/", "/library/pickle?filter=p", "/library/pickle?page=7", "/library/pickle?file=no.js", "/compare/pickle?from=1.0.0&to=2.0.0&page=9",
		"/history/pickle?state=eaten", "/history/pickle?page=9", "/history", "/recipe/pickle/2.0.0?file=no.js", "/files/pickle/2.0.0?page=8", "/files/pickle/2.0.0/pickle.js?page=8",
	} {
		kept := s.cachedPages.Len()
		if get(t, s, target); s.cachedPages.Len() != kept {
			t.Errorf("%s is kept", target)
		}
	}
}

// TestKeptPagesAreBounded checks that other encodings of a path, and hosts that a client made up, do not evict pages.
func TestKeptPagesAreBounded(t *testing.T) {
	s := newSite(t, filled(t), nil)
	now := time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	for _, target := range []string{"/library/pickle", "/library/%70ickle", "/library/p%69ckle", "/library/%70%69ckle"} {
		if w := get(t, s, target); w.Code != 200 || s.cachedPages.Len() != 1 {
			t.Errorf("%s: %d, and %d pages are kept", target, w.Code, s.cachedPages.Len())
		}
	}
	request := func(host string) {
		t.Helper()
		r := httptest.NewRequest("GET", "/library/pickle", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 200 || !strings.Contains(w.Body.String(), "http://"+host+"/") {
			t.Errorf("at %s: %d", host, w.Code)
		}
	}
	for i := range 2 * mostHosts {
		request(fmt.Sprintf("host%d.example", i))
	}
	if s.cachedPages.Len() != mostHosts {
		t.Errorf("pages of %d hosts are kept", s.cachedPages.Len())
	}
	now = now.Add(time.Hour)
	request("another.example")
	if s.cachedPages.Len() != mostHosts+1 {
		t.Errorf("an hour later no other host's page is kept")
	}
}

// TestPagesFollowInputs holds that each thing that a page is made of has it made again, and nothing else.
func TestPagesFollowInputs(t *testing.T) {
	shelf := filled(t)
	s := newSite(t, shelf, nil)
	now := time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC)
	s.now = func() time.Time { return now }
	testkit.Await(t, s.library, shelf.Log)
	key := func(target string) pageKey {
		path, query, _ := strings.Cut(target, "?")
		route, stars, _ := s.findRoute(path)
		return newPageKey(route, stars, query, &request{siteBase: "http://larder.example", assetBase: "http://larder.example"})
	}
	made := func(target string) *page {
		t.Helper()
		get(t, s, target)
		p, ok := s.cachedPages.Cached(key(target))
		if !ok {
			t.Fatalf("%s is not kept", target)
		}
		return p
	}
	targets := []string{"/library/pickle", "/history/pickle", "/compare/pickle?from=1.0.0&to=2.0.0", "/files/pickle/2.0.0/pickle.js", "/recipe/pickle/2.0.0"}
	for _, tt := range []struct {
		name    string
		change  func()
		changes []string // paths whose pages are made again
	}{
		{"a release of another library", func() { shelf.Publish("shelf-css", "1.0.1", "shelf.css", map[string]string{"shelf.css": "a"}) }, nil},
		{"another library", func() { shelf.Register("chutney", packageJSON(t, "chutney", nil)) }, nil},
		{"a release", func() { shelf.Publish("pickle", "2.0.1", "pickle.js", map[string]string{"pickle.js": "1"}) }, targets},
		{"a withdrawal", func() { shelf.Withdraw("pickle", "2.0.1", "spoilt") }, targets},
		{"a state that is in no log", func() { s.library.Changes().RecordChange("pickle") }, targets},
		{"a minute", func() { now = now.Add(time.Minute) }, nil},
		{"an hour", func() { now = now.Add(time.Hour) }, []string{"/library/pickle", "/history/pickle"}},
	} {
		before := map[string]*page{}
		for _, target := range targets {
			before[target] = made(target)
		}
		tt.change()
		testkit.Await(t, s.library, shelf.Log)
		awaitChanges(t, s)
		for _, target := range targets {
			if again := made(target) != before[target]; again != slices.Contains(tt.changes, target) {
				t.Errorf("after %s, %s is made again: %v", tt.name, target, again)
			}
		}
	}
}

// awaitChanges returns when the index has notified of all that it has read: it does that moments after.
func awaitChanges(t *testing.T, s *Site) {
	t.Helper()
	testkit.AwaitTrue(t, func() bool { return s.library.Notified() >= s.library.LogSize() })
}

// TestUnknownParameters holds that what a client appends leads to the page without it, and makes no page.
func TestUnknownParameters(t *testing.T) {
	s := newSite(t, filled(t), nil)
	for target, want := range map[string]string{
		"/library/pickle?x=1":                         "/library/pickle",
		"/library/pickle?utm_source=a&file=pickle.js": "/library/pickle?file=pickle.js",
		"/compare/pickle?to=2.0.0&from=1.0.0&y":       "/compare/pickle?from=1.0.0&to=2.0.0",
		"/history/pickle/2.0.0?page=3&page=4&z=%00":   "/history/pickle/2.0.0?page=3",
		"/search?q=a+b&page=1&fbclid=c":               "/search?q=a+b",
		"/history?kind=refused&kind=withdrawn&q=":     "/history?kind=refused&kind=withdrawn",
		"/?a": "/",
		"/files/pickle/2.0.0/odd/a%20b%2541&'%22%3Ci%3E.js?b=1": "/files/pickle/2.0.0/odd/a%20b%2541&'%22%3Ci%3E.js",
	} {
		w := get(t, s, target)
		if w.Code != 308 || w.Header().Get("Location") != want || w.Header().Get("Cache-Control") != "no-cache" {
			t.Errorf("%s: %d, to %q, want %q", target, w.Code, w.Header().Get("Location"), want)
		}
		if w := get(t, s, want); w.Code != 200 && !strings.HasPrefix(want, "/history?") {
			t.Errorf("%s: %d", want, w.Code)
		}
	}
	// The same in another order, and what means nothing, is one page.
	get(t, s, "/compare/pickle?from=1.0.0&to=2.0.0")
	kept := s.cachedPages.Len()
	for _, target := range []string{"/compare/pickle?to=2.0.0&from=1.0.0", "/compare/pickle?to=2.0.0&from=+1.0.0&page=1", "/compare/pickle?from=1.0.0&to=2.0.0&page=x&file=", "/compare/pickle?from=1.0.0&from=9&to=2.0.0"} {
		if w := get(t, s, target); w.Code != 200 || s.cachedPages.Len() != kept {
			t.Errorf("%s: %d, and %d pages are kept", target, w.Code, s.cachedPages.Len())
		}
	}
}

// TestUnrenderedPages holds that pages show plain text while a worker has not rendered it, which no cache may keep, and where it never can.
func TestUnrenderedPages(t *testing.T) {
	shelf := filled(t)
	addWorkshop(t, shelf)
	shelf.Register("barrel", packageJSON(t, "barrel", nil))
	shelf.PublishAbout("barrel", "1.0.0", "barrel.js", map[string]string{"barrel.js": "const a = 1;"}, &logs.About{Readme: "# <Barrel>\n\n*slow*", ReadmeFile: "README.md"})
	finish := make(chan struct{})
	refuse := true
	renderer := library.NewRenderer(library.RendererOptions{Store: shelf.Store, Render: func(ctx context.Context, _ string, r document.Request) (document.Result, error) {
		select {
		case <-finish:
		case <-ctx.Done():
			return document.Result{}, ctx.Err()
		}
		if refuse {
			return document.Result{}, &document.RefusedError{Reason: "it is a bomb"}
		}
		return worker.RenderDocument(r)
	}})
	s := newSite(t, shelf, func(o *Options) {
		o.Renderer, o.SiteBase, o.AssetBase = renderer, "http://larder.example", "http://larder.example"
	})
	s.renderTimeout = time.Millisecond
	targets := map[string]string{
		"/library/barrel":                                    "<pre># &lt;Barrel&gt;",
		"/files/barrel/1.0.0/barrel.js":                      "<code>const a = 1;",
		"/compare/workshop?from=1.0.0&to=1.1.0&file=main.js": "",
		"/library/preserve":                                  "",
	}
	check := func(caching string) {
		t.Helper()
		for target, want := range targets {
			w := get(t, s, target)
			body := w.Body.String()
			checkPage(t, w)
			if w.Code != 200 || w.Header().Get("Cache-Control") != caching || !strings.Contains(body, want) {
				t.Errorf("%s: %d, %q, and it should have %q", target, w.Code, w.Header().Get("Cache-Control"), want)
			}
		}
	}
	check("no-store")
	for target := range targets {
		if !strings.Contains(get(t, s, target).Body.String(), "in a moment") {
			t.Errorf("%s does not say that a part of it is missing yet", target)
		}
	}
	if s.cachedPages.Len() != 0 {
		t.Errorf("%d pages are kept", s.cachedPages.Len())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		renderer.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	close(finish)
	s.renderTimeout = time.Minute
	check("no-cache")
	for target := range targets {
		if strings.Contains(get(t, s, target).Body.String(), "in a moment") {
			t.Errorf("%s will never be otherwise", target)
		}
	}
}

// TestLargeReadmeIsPlainText holds that what is too large for a worker is shown as text, cut.
func TestLargeReadmeIsPlainText(t *testing.T) {
	shelf := filled(t)
	shelf.Register("barrel", packageJSON(t, "barrel", nil))
	shelf.PublishAbout("barrel", "1.0.0", "barrel.js", map[string]string{"barrel.js": "1", "large.js": strings.Repeat("let a = 1\n", 200_000)}, &logs.About{Readme: strings.Repeat("**bold** ", 20_000), ReadmeFile: "README.md"})
	s := newSite(t, shelf, nil)
	w := get(t, s, "/library/barrel")
	if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, "<pre>**bold** **bold**") || !strings.Contains(body, "It goes on") || len(body) > 150<<10 {
		t.Errorf("%d, %d bytes", w.Code, len(body))
	}
	w = get(t, s, "/files/barrel/1.0.0/large.js?page=2")
	if body := w.Body.String(); w.Code != 200 || !strings.Contains(body, "longer than what is shown") || strings.Contains(body, `class="k"`) || !strings.Contains(body, `id="L2001"`) {
		t.Errorf("%d, %d bytes", w.Code, len(body))
	}
}

// TestAbandonedPages holds that making a page goes on while one of its requests waits, and ends with the last.
func TestAbandonedPages(t *testing.T) {
	var f flights
	started, ended := make(chan struct{}), make(chan error, 1)
	under := func(ctx context.Context) (*page, error) {
		close(started)
		<-ctx.Done()
		ended <- ctx.Err()
		return nil, ctx.Err()
	}
	first, leaveFirst := context.WithCancel(t.Context())
	second, leaveSecond := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = f.do(first, flightKey{pageKey: pageKey{path: "/a"}}, under) })
	<-started
	all.Go(func() {
		_, _ = f.do(second, flightKey{pageKey: pageKey{path: "/a"}}, func(context.Context) (*page, error) { t.Error("it is made twice"); return nil, nil })
	})
	testkit.AwaitTrue(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.under[flightKey{pageKey: pageKey{path: "/a"}}].waiting == 2
	})
	leaveFirst()
	testkit.AwaitTrue(t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.under[flightKey{pageKey: pageKey{path: "/a"}}].waiting == 1
	})
	select {
	case err := <-ended:
		t.Errorf("it ended with the first request: %v", err)
	default:
	}
	leaveSecond()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	all.Wait()
	if len(f.under) != 0 {
		t.Errorf("%d pages are being made", len(f.under))
	}
	if _, err := f.do(t.Context(), flightKey{pageKey: pageKey{path: "/b"}}, func(context.Context) (*page, error) { panic("boom") }); err == nil || !strings.Contains(err.Error(), "boom") {
		t.Errorf("a panic: %v", err)
	}
}

// TestTurnsOfClients checks that a client takes its own turn for a page that another client waits for, and does not get the other's failure.
func TestTurnsOfClients(t *testing.T) {
	turns := answers.NewTurns(1)
	s := newSite(t, filled(t), func(o *Options) { o.Turns = turns })
	_, leave, err := turns.Enter(t.Context(), "192.0.2.1:1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	var all sync.WaitGroup
	request := func(remote string) {
		r := httptest.NewRequest("GET", "/library/pickle", nil)
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 200 {
			t.Errorf("%s: %d", remote, w.Code)
		}
	}
	for _, remote := range []string{"192.0.2.1:1", "192.0.2.1:2", "192.0.2.2:1"} {
		all.Go(func() { request(remote) })
	}
	flying := func(address string) *flight {
		at, _ := requests.ClientOf(address)
		for key, f := range s.flights.under {
			if key.client == at {
				return f
			}
		}
		return &flight{}
	}
	testkit.AwaitTrue(t, func() bool {
		s.flights.mu.Lock()
		defer s.flights.mu.Unlock()
		return len(s.flights.under) == 2 && flying("192.0.2.1:1").waiting == 2 && flying("192.0.2.2:1").waiting == 1
	})
	leave()
	all.Wait()
	if s.cachedPages.Len() != 1 || turns.Taken() != 0 {
		t.Errorf("%d pages are kept, %d turns are taken", s.cachedPages.Len(), turns.Taken())
	}
}

// TestPagesInTurn has many clients ask at once; none is refused, and all turns are given back.
func TestPagesInTurn(t *testing.T) {
	turns := answers.NewTurns(1)
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
	shelf.Register("icons", packageJSON(b, "icons", map[string]any{"filename": "index.js"}))
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
		appended := "?"
		if strings.Contains(target, "?") {
			appended = "&"
		}
		for _, how := range []struct {
			name   string
			append string // with the number of the request
			status int
		}{{"made", "", 200}, {"kept", "", 200}, {"unknown parameter", "x=%d", 308}, {"filter", "filter=%d", 200}, {"page", "page=%d", 200}, {"file", "file=icons/0/icon-%d.svg", 200}} {
			if strings.HasPrefix(target, "/history") && (how.name == "filter" || how.name == "file") || strings.HasPrefix(target, "/compare") && how.name == "filter" {
				continue // they have no such parameter
			}
			b.Run(strings.SplitN(target, "/", 3)[1]+"/"+how.name, func(b *testing.B) {
				n := 0
				for b.Loop() {
					at := target
					if n++; how.append != "" {
						at += appended + fmt.Sprintf(how.append, n%6000)
					}
					if how.name == "made" {
						s.cachedPages.Remove(func(pageKey) bool { return true })
					}
					if w := get(b, s, at, "Accept-Encoding", "br"); w.Code != how.status && w.Code != 404 {
						b.Fatal(w.Code)
					}
				}
			})
		}
	}
}
