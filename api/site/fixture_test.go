package site

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/views"
)

// script is a file that compresses.
func script(n int) string { return strings.Repeat("const jar = lid => lid + 1;\n", n) }

// packageJSON is that of a library whose metadata are these.
func packageJSON(t testing.TB, name string, more map[string]any) string {
	t.Helper()
	fields := map[string]any{
		"name": name, "description": "What " + name + " is for.", "keywords": []string{name},
		"repository": map[string]string{"type": "git", "url": "git+https://github.com/jars/" + name + ".git"},
	}
	maps.Copy(fields, more)
	b, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// hostile is what a stranger might write into each field.
const hostile = `"><script>alert(1)</script><img src=x onerror=alert(1)>'`

// filled returns a shelf with what the pages have to show.
func filled(t testing.TB) *testkit.Shelf {
	t.Helper()
	s := testkit.NewShelf(t)
	s.Register("pickle", packageJSON(t, "pickle", map[string]any{
		"filename": "pickle.min.js", "homepage": "https://pickle.example/a?b=c&d", "license": "MIT",
		"authors":    []map[string]string{{"name": "Pickle people"}},
		"autoupdate": map[string]any{"source": "npm", "target": "@jars/pickle", "fileMap": []map[string]any{{"basePath": "", "files": []string{"*"}}}},
	}))
	for i, version := range []string{"1.0.0", "1.1.0", "2.0.0"} {
		files := map[string]string{
			"pickle.min.js": script(100 + i), "pickle.js": script(300 + i), "pickle.mjs": script(200), "pickle.css": script(50),
			"fonts/pickle.woff2": "wOF2", "odd/a b%41&'\"<i>.js": script(10),
		}
		if i == 2 {
			delete(files, "pickle.css")
			files["new.js"] = script(5)
		}
		s.Publish("pickle", version, "pickle.min.js", files)
	}
	s.Publish("pickle", "0.9.0", "pickle.js", map[string]string{"pickle.js": script(9)})
	s.Withdraw("pickle", "0.9.0", "it <b>stole</b> cookies")
	s.Refuse("pickle", "3.0.0", "package/pickle.js is too large")
	s.SetState(views.State{
		Package: "pickle", Version: "2.1.0", Kind: views.Failed, Reason: "the registry is away", Attempts: 3,
		Updated: testkit.Released, Next: testkit.Released.Add(time.Hour),
	})
	s.Register("shelf-css", packageJSON(t, "shelf-css", nil))
	s.Publish("shelf-css", "1.0.0", "shelf.css", map[string]string{"shelf.css": script(30)})
	s.Register("preserve", packageJSON(t, "preserve", nil))
	s.Publish("preserve", "1.0.0", "preserve.mjs", map[string]string{"preserve.mjs": script(30)})
	s.Register("data", packageJSON(t, "data", nil))
	s.Publish("data", "1.0.0", "", map[string]string{"data.json": "{}"})
	s.Register("spoilt", packageJSON(t, "spoilt", nil))
	s.Publish("spoilt", "1.0.0", "spoilt.js", map[string]string{"spoilt.js": script(8)})
	s.Withdraw("spoilt", "1.0.0", "it had gone <b>off</b>")
	s.Register("empty", packageJSON(t, "empty", nil))
	s.Register("refused", packageJSON(t, "refused", nil))
	s.Refuse("refused", "1.0.0", "it selects none of the files")
	s.Register("evil", packageJSON(t, "evil", map[string]any{
		"description": hostile, "keywords": []string{hostile}, "homepage": "javascript:alert(1)", "license": hostile,
		"repository": map[string]string{"type": "git", "url": "javascript:alert(1)//https://github.com/a/b"},
		"authors":    []map[string]string{{"name": hostile}},
	}))
	s.Publish("evil", "1.0.0", hostile+".js", map[string]string{hostile + ".js": "1", "turned-\u202esj.exe": "3", "</code></pre><script>alert(1)</script>.mjs": "2"})
	s.Refuse("evil", "2.0.0", hostile)
	return s
}

// addPantry adds a release of many files, which takes a while.
func addPantry(t testing.TB, s *testkit.Shelf) {
	t.Helper()
	many := map[string]string{}
	for i := range 1234 {
		many[fmt.Sprintf("icons/icon-%04d.svg", i)] = fmt.Sprint(i % 7)
	}
	many["pantry.js"] = script(3)
	s.Register("pantry", packageJSON(t, "pantry", nil))
	s.Publish("pantry", "1.0.0", "pantry.js", many)
}

func newSite(t testing.TB, s *testkit.Shelf, change func(*Options)) *Site {
	t.Helper()
	document, err := os.ReadFile("../openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Library: s.Index(library.Options{}), Renderer: testkit.Renderer(t, s.Store), Document: func() []byte { return document }}
	if change != nil {
		change(&o)
	}
	site, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return site
}

// get asks for a target as it goes on the wire, with headers by name and value.
func get(t testing.TB, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	u, err := url.ParseRequestURI(target)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.URL, r.RequestURI, r.Host = u, target, "larder.example"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
