package site

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

func TestOwns(t *testing.T) {
	site := newSite(t, testkit.NewShelf(t), nil)
	for path, want := range map[string]bool{
		"/": true, "/search": true, "/search/": true, "/statistics": true, "/docs": true, "/api": true, "/about": true,
		"/library/jquery": true, "/library/jquery/": true, "/library/jquery/3.7.1": true, "/library/a%2Fb": true, "/compare/jquery": true, "/history/jquery": true,
		site.files.paths["site.css"]: true, site.files.paths["page.js"]: true,
		"/library": true, "/library/": true, "/library//": true, "/library/a/b/c": true, "/compare/": true, "/compare/a/b": true,
		"": false, "//": false, "/compare": false, "/history": true, "/history/": true, "/docs/a": true, "/site/": false, "/site/unknown": false,
		"/libraries": false, "/searchx": false, "/search//": false, "/Search": false, "/site/site.css": false, "//search": false, "/ajax/libs/a": false, "/../search": false,
	} {
		if got := site.Owns(path); got != want {
			t.Errorf("owns %q: %v, want %v", path, got, want)
		}
	}
	without := newSite(t, testkit.NewShelf(t), func(o *Options) { o.Document = nil })
	if without.Owns("/docs") || without.Owns("/api") {
		t.Error("there is documentation of nothing")
	}
	if body := get(t, without, "/").Body.String(); strings.Contains(body, `"/docs"`) {
		t.Error("the navigation leads to documentation that is not there")
	}
}

func TestRedirects(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for target, want := range map[string]string{
		"/search/?q=a":                  "308 /search?q=a",
		"/library/pickle/":              "308 /library/pickle",
		"/library/pickle/1.0.0/?file=a": "308 /library/pickle/1.0.0?file=a",
		"/api":                          "308 /docs",
		"/library":                      "303 /search",
		"/library/":                     "308 /library",
		"/library/pickle?version=1.0.0": "303 /library/pickle/1.0.0",
		"/library/pickle?version=..%2F..%2F%2Fevil": "303 /library/pickle/..%2F..%2F%2Fevil",
		"/library/pickle?version=a%0d%0ab":          "303 /library/pickle/a%20%20b",
	} {
		w := get(t, site, target)
		if got := strings.TrimSpace(strings.Join([]string{w.Result().Status[:3], w.Header().Get("Location")}, " ")); got != want {
			t.Errorf("%s leads to %s, want %s", target, got, want)
		}
	}
}

func TestConditionsAndCodings(t *testing.T) {
	site := newSite(t, filled(t), nil)
	plain := get(t, site, "/library/pickle")
	tag := plain.Header().Get("ETag")
	if plain.Header().Get("Content-Encoding") != "" || tag == "" || strings.HasPrefix(tag, "W/") {
		t.Errorf("headers %v", plain.Header())
	}
	if again := get(t, site, "/library/pickle"); again.Header().Get("ETag") != tag || !bytes.Equal(again.Body.Bytes(), plain.Body.Bytes()) {
		t.Error("a page that has not changed has changed")
	}
	for field, want := range map[string]coding.Coding{"br, gzip": coding.Brotli, "gzip": coding.Gzip, "br;q=0.1, gzip": coding.Gzip, "identity": coding.Identity, "*;q=0": coding.Identity, "deflate": coding.Identity} {
		w := get(t, site, "/library/pickle", "Accept-Encoding", field)
		name := w.Header().Get("Content-Encoding")
		if want != coding.Identity && name != want.String() || want == coding.Identity && name != "" {
			t.Errorf("%q gets the coding %q", field, name)
			continue
		}
		body, err := coding.Decode(want, w.Body.Bytes(), int64(plain.Body.Len()))
		if err != nil || !bytes.Equal(body, plain.Body.Bytes()) {
			t.Errorf("%q gets something else: %v", field, err)
		}
		if want != coding.Identity && w.Header().Get("ETag") == tag {
			t.Errorf("%q has the entity tag of another coding", field)
		}
		same := get(t, site, "/library/pickle", "Accept-Encoding", field, "If-None-Match", `"x", W/`+w.Header().Get("ETag"))
		if same.Code != 304 || same.Body.Len() != 0 || same.Header().Get("ETag") != w.Header().Get("ETag") || same.Header().Get("Vary") == "" || same.Header().Get("Cache-Control") == "" || same.Header().Get("Content-Encoding") != "" {
			t.Errorf("%q: %d %v", field, same.Code, same.Header())
		}
	}
	if w := get(t, site, "/library/nothing"); w.Header().Get("ETag") != "" {
		t.Error("a failure has an entity tag")
	}
	if w := get(t, site, "/library/pickle/0.9.0"); w.Header().Get("Cache-Control") != "no-store" {
		t.Error("a withdrawal may be kept")
	}
}

func TestMethods(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, path := range []string{"/library/pickle", site.files.paths["page.js"]} {
		get := get(t, site, path)
		r := httptest.NewRequest("HEAD", path, nil)
		r.Host = "larder.example"
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		if w.Code != 200 || w.Body.Len() != 0 || w.Header().Get("Content-Length") != get.Header().Get("Content-Length") || w.Header().Get("ETag") != get.Header().Get("ETag") {
			t.Errorf("HEAD %s: %d %v", path, w.Code, w.Header())
		}
		w = httptest.NewRecorder()
		site.ServeHTTP(w, httptest.NewRequest("POST", path, nil))
		if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s: %d %v", path, w.Code, w.Header())
		}
	}
}

func TestEmbeddedFiles(t *testing.T) {
	site := newSite(t, testkit.NewShelf(t), nil)
	if len(site.files.byPath) == 0 {
		t.Fatal("there are none")
	}
	for path := range site.files.byPath {
		if !regexp.MustCompile(`^/site/[a-z]+\.[0-9a-f]{12}\.(css|js)$`).MatchString(path) {
			t.Errorf("a file is at %s", path)
		}
		whole := get(t, site, path)
		if whole.Code != 200 || whole.Header().Get("Cache-Control") != "public, max-age=31536000, immutable" || whole.Header().Get("Content-Type") != fileTypes[filepath.Ext(path)] || fileTypes[filepath.Ext(path)] == "" {
			t.Errorf("%s: %d %v", path, whole.Code, whole.Header())
		}
		w := get(t, site, path, "Accept-Encoding", "br")
		if w.Header().Get("Content-Encoding") == "" && whole.Body.Len() < 1000 { // it would not become smaller by much
			continue
		}
		if body, err := coding.Decode(coding.Brotli, w.Body.Bytes(), int64(whole.Body.Len())); err != nil || !bytes.Equal(body, whole.Body.Bytes()) {
			t.Errorf("%s in Brotli: %v", path, err)
		}
		if again := get(t, site, path, "Accept-Encoding", "br", "If-None-Match", w.Header().Get("ETag")); again.Code != 304 {
			t.Errorf("%s again: %d", path, again.Code)
		}
	}
	if css, err := embeddedFiles.ReadFile("assets/site.css"); err != nil || regexp.MustCompile(`url\(|@import|@font-face|//`).Match(css) {
		t.Errorf("the style sheet loads something: %v", err)
	}
}

func TestOrigin(t *testing.T) {
	site := newSite(t, filled(t), nil)
	ask := func(host string, secure bool) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/library/pickle", nil)
		if r.Host = host; secure {
			r.TLS = &tls.ConnectionState{}
		}
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		return w
	}
	for host, want := range map[string]bool{
		"larder.example": true, "127.0.0.1:8080": true, "[::1]:8080": true, "": false, "a b": false, `a"onload="`: false, "user@host": false,
	} {
		w := ask(host, false)
		if (w.Code == 200) != want || !want && w.Code != 400 {
			t.Errorf("host %q: %d", host, w.Code)
		}
		if want && !strings.Contains(w.Body.String(), "http://"+host+"/ajax/libs/pickle/2.0.0/pickle.min.js") {
			t.Errorf("host %q is not the origin of assets", host)
		}
	}
	if body := ask("larder.example", true).Body.String(); !strings.Contains(body, `"https://larder.example/library/pickle"`) || !strings.Contains(body, "https://larder.example/ajax/") {
		t.Error("over TLS the origin is another")
	}
	fixed := newSite(t, filled(t), func(o *Options) { o.AssetBase, o.SiteBase = "https://a.example", "https://b.example" })
	r := httptest.NewRequest("GET", "/", nil)
	r.Host = "a b"
	w := httptest.NewRecorder()
	if fixed.ServeHTTP(w, r); w.Code != 200 || strings.Contains(w.Body.String(), "a b") {
		t.Errorf("with bases of its own, the host matters: %d", w.Code)
	}
	for target, want := range map[string]string{"/": "no-cache", "/nowhere": "no-store", "/library/nothing": "no-store", "/library/pickle/9.9.9": "no-store"} {
		if got := get(t, fixed, target).Header().Get("Cache-Control"); got != want {
			t.Errorf("%s: Cache-Control is %q, want %q", target, got, want)
		}
	}
}

func TestNotReady(t *testing.T) {
	shelf := testkit.NewShelf(t)
	x := library.New(library.Options{Store: shelf.Store, Log: shelf.Log}) // whose Run is never called
	site, err := New(Options{Library: x, Renderer: testkit.Renderer(t, shelf.Store)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	site.ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if w.Code != 503 || w.Header().Get("Retry-After") == "" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}

func TestUnexpected(t *testing.T) {
	shelf := filled(t)
	var log bytes.Buffer
	site := newSite(t, shelf, func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	b := shelf.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Files, kvstore.Key("pickle", "2.0.0", "pickle.js"), []byte("nonsense"))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	w := get(t, site, "/library/pickle")
	body := w.Body.String()
	ref := regexp.MustCompile(`<code>([A-Z2-7]{20,})</code>`).FindStringSubmatch(body)
	if w.Code != 500 || w.Header().Get("Cache-Control") != "no-store" || ref == nil || !strings.Contains(log.String(), ref[1]) || !strings.Contains(log.String(), "malformed") {
		t.Errorf("%d %v, the log has %s", w.Code, w.Header(), &log)
	}
	if strings.Contains(body, "malformed") {
		t.Error("the page tells strangers what only the log should")
	}
	checkPage(t, w)
	if _, err := New(Options{}); err == nil {
		t.Error("there is a site of nothing")
	}
}

// A store that is damaged may be whole again later, and has the other pages.
func TestDamaged(t *testing.T) {
	var log bytes.Buffer
	site := newSite(t, filled(t), func(o *Options) { o.Logger = slog.New(slog.NewJSONHandler(&log, nil)) })
	q := &request{Request: httptest.NewRequest("GET", "/library/pickle", nil)}
	a := site.failurePage(q, fmt.Errorf("secret: %w", kvstore.ErrCorrupt))
	p, err := site.renderAnswer(q, a)
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	site.sendPage(w, q.Request, p)
	if w.Code != 503 || w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Retry-After") == "" ||
		strings.Contains(w.Body.String(), "secret") || !strings.Contains(w.Body.String(), "try again later") || !strings.Contains(log.String(), "secret") {
		t.Errorf("%d %v %s; the log has %s", w.Code, w.Header(), w.Body, &log)
	}
	checkPage(t, w)
}

// FuzzRequest asks for pages with any path and query. Whatever it is, the answer is a
// page or leads to one, and nothing is the server's fault.
func FuzzRequest(f *testing.F) {
	for target := range everyPage {
		path, query, _ := strings.Cut(target, "?")
		f.Add(path, query)
	}
	f.Add("/library/a%2f..%2fb/", "page=2;q=a&&=&q")
	f.Add("/compare/pickle", "from=%00&to=\xff")
	shelf := filled(f)
	addPantry(f, shelf)
	site := newSite(f, shelf, nil)
	f.Fuzz(func(t *testing.T, path, query string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") {
			t.Skip()
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.URL, r.Host = u, "larder.example"
		r.URL.RawQuery = query
		w := httptest.NewRecorder()
		site.ServeHTTP(w, r)
		switch location := w.Header().Get("Location"); {
		case w.Code >= 500:
			t.Fatalf("%d", w.Code)
		case w.Code >= 300 && w.Code < 400:
			if !strings.HasPrefix(location, "/") || strings.HasPrefix(location, "//") || strings.ContainsAny(location, "\r\n") {
				t.Fatalf("leads to %q", location)
			}
		case w.Header().Get("Content-Type") == "text/html; charset=utf-8":
			if body, _ := io.ReadAll(w.Body); bytes.Contains(body, []byte("<script>alert")) || len(body) > 1<<20 {
				t.Fatalf("a page of %d bytes: %s", len(body), body)
			}
		}
	})
}
