package library

import (
	"strings"
	"testing"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

func file(path string) views.PublishedFile {
	return views.PublishedFile{Path: path, SRI: logs.SumSRI([]byte(path))}
}

func TestSnippet(t *testing.T) {
	const integrity = ` integrity="sha512-I" crossorigin="anonymous"`
	for _, tt := range []struct {
		path, url, html string
	}{
		{"a.min.js", "a.min.js", `<script src="URL"` + integrity + `></script>`},
		{"A.JS", "A.JS", `<script src="URL"` + integrity + `></script>`},
		{"sub/a.mjs", "sub/a.mjs", `<script type="module" src="URL"` + integrity + `></script>`},
		{"css/a b.css", "css/a%20b.css", `<link rel="stylesheet" href="URL"` + integrity + `>`},
		{"a&b'.js", "a&amp;b%27.js", `<script src="URL"` + integrity + `></script>`},
		{`"><i>.js`, "%22%3E%3Ci%3E.js", `<script src="URL"` + integrity + `></script>`},
		{"50%.js", "50%25.js", `<script src="URL"` + integrity + `></script>`},
		{"a?b#c.js", "a%3Fb%23c.js", `<script src="URL"` + integrity + `></script>`},
		{"a.js.map", "", ""},
		{"a.ts", "", ""},
		{"a.woff2", "", ""},
		{"js", "", ""},
	} {
		s := NewSnippet("https://cdn.example.com", "demo", "1.0.0", file(tt.path))
		want := strings.NewReplacer("URL", "https://cdn.example.com/ajax/libs/demo/1.0.0/"+tt.url, "sha512-I", s.Integrity).Replace(tt.html)
		if s.HTML != want {
			t.Errorf("%s: got %s\nwant %s", tt.path, s.HTML, want)
		}
		if s.Integrity != logs.SumSRI([]byte(tt.path)).String() {
			t.Errorf("%s: integrity %s", tt.path, s.Integrity)
		}
		if (s.HTML == "") != (s.Kind == Other) {
			t.Errorf("%s: kind %d with %q", tt.path, s.Kind, s.HTML)
		}
	}
}

func TestKindOf(t *testing.T) {
	for path, want := range map[string]Kind{
		"three.module.min.js":          Module,
		"vue.esm-browser.prod.js":      Module,
		"dist/esm/index.js":            Module,
		"bootstrap.ESM.js":             Module,
		"module.js":                    Script,
		"module/a.js":                  Script,
		"bootstrap-datepicker.es.js":   Script, // Spanish
		"esmeralda.js":                 Script,
		"require-module.js":            Script,
		"esm/a.css":                    Stylesheet,
		"esm/a.js.map":                 Other,
		"":                             Other,
		".js":                          Script,
		"umd/react.production.min.js":  Script,
		"a.module.css":                 Stylesheet,
		"vue.runtime.global.prod.js":   Script,
		"moment-with-locales.min.js":   Script,
		"htmx.esm.js":                  Module,
		"lib/esm-loader/es-shims.js":   Script,
		"some.folder.esm.js/readme.md": Other,
	} {
		if got := KindOf(path, false); got != want {
			t.Errorf("%s: kind %d, want %d", path, got, want)
		}
	}
	for path, want := range map[string]Kind{"three.core.js": Module, "a.css": Stylesheet, "a.txt": Other} {
		if got := KindOf(path, true); got != want {
			t.Errorf("%s, a module by its syntax: got %d, want %d", path, got, want)
		}
	}
}

// FuzzSnippet holds a tag to being one element with nothing but the attributes that
// belong to it, whatever the file is called.
func FuzzSnippet(f *testing.F) {
	f.Add("demo", "1.0.0", `"><script>alert(1)</script>.js`)
	f.Add(`a"b`, "1&quot;", "x' onload='y.css")
	f.Add("demo", "1", "\x00\xff.mjs")
	f.Fuzz(func(t *testing.T, name, version, path string) {
		s := NewSnippet("https://cdn.example.com", name, version, file(path))
		if s.HTML == "" {
			return
		}
		nodes, err := html.ParseFragment(strings.NewReader(s.HTML), &html.Node{Type: html.ElementNode, Data: "head", DataAtom: atom.Head})
		if err != nil || len(nodes) != 1 || nodes[0].FirstChild != nil {
			t.Fatalf("%q is not one element: %v", s.HTML, err)
		}
		got := map[string]string{}
		for _, a := range nodes[0].Attr {
			got[a.Key] = a.Val
		}
		address := "src"
		want := map[string]string{"integrity": s.Integrity, "crossorigin": "anonymous"}
		switch s.Kind {
		case Module:
			want["type"] = "module"
		case Stylesheet:
			address, want["rel"] = "href", "stylesheet"
		}
		want[address] = s.URL
		if len(got) != len(want) {
			t.Fatalf("%q has attributes %v", s.HTML, got)
		}
		for key, value := range want {
			if got[key] != value {
				t.Errorf("%q: %s is %q, want %q", s.HTML, key, got[key], value)
			}
		}
	})
}
