package server_test

import (
	"compress/gzip"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server"
)

var contentText = strings.Repeat("let it = 1;\n", 500)

func newContents(t *testing.T) (*testkit.Shelf, http.Handler) {
	t.Helper()
	s := testkit.NewShelf(t)
	h, err := server.NewContents(server.ContentOptions{Store: s.Store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s, server.RouteContents(h, http.NotFoundHandler())
}

func contentPath(data string) string { return "/content/" + kvstore.Sum([]byte(data)).String() }

func askContents(h http.Handler, method, path string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestContents(t *testing.T) {
	s, h := newContents(t)
	s.Register("demo", `{"name":"demo"}`)
	s.Publish("demo", "1.0.0", "a.js", map[string]string{"a.js": contentText, "tiny.txt": "0123456789", "empty": ""})
	s.Publish("evil", "1.0.0", "e.js", map[string]string{"e.js": "steal()", "a.js": contentText})
	s.Withdraw("evil", "1.0.0", "malware")
	// One that is there already, of a release that is being made.
	early := []byte("not yet published")
	if err := s.Store.PutContent(kvstore.Sum(early), int64(len(early)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: early}}); err != nil {
		t.Fatal(err)
	}
	v, err := views.LookupVersion(s.Store, "evil", "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	tag := askContents(h, "GET", contentPath(contentText)).Header().Get("Etag")
	for _, test := range []struct {
		name, method, path string
		fields             []string
		status             int
		body               string
		header             map[string]string
	}{
		{"file", "GET", contentPath(contentText), nil, 200, contentText, map[string]string{
			"Content-Type": "application/octet-stream", "X-Content-Type-Options": "nosniff", "Content-Security-Policy": "sandbox",
			"Cross-Origin-Resource-Policy": "same-origin", "Access-Control-Allow-Origin": "", "Vary": "Accept-Encoding", "Accept-Ranges": "bytes",
		}},
		{"shared with a withdrawn release", "GET", contentPath(contentText), nil, 200, contentText, nil},
		{"empty", "GET", contentPath(""), nil, 200, "", map[string]string{"Content-Length": "0"}},
		{"head", "HEAD", contentPath("0123456789"), nil, 200, "", map[string]string{"Content-Length": "10"}},
		{"package JSON", "GET", contentPath(`{"name":"demo"}`), nil, 200, `{"name":"demo"}`, nil},
		{"a withdrawn release's manifest", "HEAD", "/content/" + v.Manifest.String(), nil, 200, "", nil},
		{"withdrawn", "GET", contentPath("steal()"), nil, 410, "", map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}},
		{"not published yet", "GET", contentPath(string(early)), nil, 404, "", nil},
		{"never", "GET", contentPath("never"), nil, 404, "", nil},
		{"a part", "GET", contentPath("0123456789"), []string{"Range", "bytes=2-4"}, 206, "234", map[string]string{"Content-Range": "bytes 2-4/10"}},
		{"a part of what is kept coded", "GET", contentPath(contentText), []string{"Range", "bytes=-12", "Accept-Encoding", "br"}, 206, "let it = 1;\n", map[string]string{"Content-Encoding": ""}},
		{"a part behind the end", "GET", contentPath("0123456789"), []string{"Range", "bytes=20-"}, 416, "", nil},
		{"known", "GET", contentPath(contentText), []string{"If-None-Match", tag}, 304, "", nil},
		{"known in another coding", "GET", contentPath(contentText), []string{"If-None-Match", tag, "Accept-Encoding", "br"}, 304, "", nil},
		{"post", "POST", contentPath(contentText), nil, 405, "", map[string]string{"Allow": "GET, HEAD"}},
		{"capitals", "GET", "/content/" + strings.ToUpper(kvstore.Sum([]byte(contentText)).String()), nil, 404, "", nil},
		{"short", "GET", "/content/abc", nil, 404, "", nil},
		{"longer", "GET", contentPath(contentText) + "/", nil, 404, "", nil},
		{"encoded", "GET", strings.Replace(contentPath(contentText), "/content/", "/content/%30", 1), nil, 404, "", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := askContents(h, test.method, test.path, test.fields...)
			if w.Code != test.status || test.body != "" && w.Body.String() != test.body {
				t.Errorf("%d %.60q, want %d %.60q", w.Code, w.Body, test.status, test.body)
			}
			for name, want := range test.header {
				if got := w.Header().Get(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if test.status == 200 && !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
				t.Errorf("caching %q", w.Header().Get("Cache-Control"))
			}
		})
	}
	s.Restore("evil", "1.0.0", "it was none")
	if w := askContents(h, "GET", contentPath("steal()")); w.Code != 200 {
		t.Errorf("restored: %d", w.Code)
	}
	s.Withdraw("evil", "1.0.0", "it was")
	if w := askContents(h, "GET", contentPath("steal()")); w.Code != 410 {
		t.Errorf("withdrawn again: %d", w.Code)
	}
}

func TestContentEncodings(t *testing.T) {
	s, h := newContents(t)
	s.Publish("demo", "1.0.0", "a.js", map[string]string{"a.js": contentText})
	tags := map[string]bool{}
	for _, accept := range []string{"br", "gzip", "identity"} {
		w := askContents(h, "GET", contentPath(contentText), "Accept-Encoding", accept)
		got := w.Header().Get("Content-Encoding")
		if accept == "identity" {
			accept = ""
		}
		if got != accept {
			t.Fatalf("%q answered with %q", accept, got)
		}
		tags[w.Header().Get("Etag")] = true
		var r io.Reader = w.Body
		switch accept {
		case "gzip":
			r, _ = gzip.NewReader(w.Body)
		case "br":
			r, _ = coding.NewReader(coding.Brotli, w.Body)
		}
		if data, err := io.ReadAll(r); err != nil || string(data) != contentText {
			t.Errorf("%q: %.60q, %v", accept, data, err)
		}
	}
	if len(tags) != 3 {
		t.Errorf("codings share entity tags: %v", tags)
	}
}

func FuzzContentPath(f *testing.F) {
	store, err := kvstore.Open(f.TempDir(), kvstore.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { store.Close() })
	h, err := server.NewContents(server.ContentOptions{Store: store, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("abc", "bytes=0-")
	f.Add(kvstore.Sum(nil).String(), "bytes=5-2,9-")
	f.Add("%2e%2e/", "")
	f.Fuzz(func(t *testing.T, rest, part string) {
		r := httptest.NewRequest(http.MethodGet, "/content/", nil)
		r.URL.Path, r.URL.RawPath = "/content/"+rest, ""
		r.Header.Set("Range", part)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound {
			t.Errorf("%q: %d of an empty store", rest, w.Code)
		}
	})
}
