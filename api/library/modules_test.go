package library_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

// builtUI is the releases of packages like react and react-dom, whose modules were built.
func builtUI(t *testing.T) (*testkit.Shelf, *library.Index) {
	t.Helper()
	s := testkit.NewShelf(t)
	enrol := func(name, npm string) {
		s.Enrol(name, `{"name": "`+name+`", "description": "d", "keywords": ["k"], "repository": {"type": "git", "url": "https://github.com/a/a.git"}, "autoupdate": {"source": "npm", "target": "`+npm+`", "fileMap": [{"basePath": "", "files": ["*"]}], "modules": true}}`)
	}
	enrol("ui", "@acme/ui")
	for _, version := range []string{"18.0.0", "19.0.0"} {
		s.PublishAbout("ui", version, "esm/index.mjs", map[string]string{"esm/index.mjs": "export let version=" + version[:2], "esm/jsx.mjs": "export{}"},
			&logs.About{Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs", "./jsx": "esm/jsx.mjs"}}})
	}
	enrol("ui-dom", "ui-dom")
	dom := &logs.Modules{
		Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs", "./client": "esm/client.mjs"}, Skipped: map[string]string{"./server": "server.js imports stream"},
		Imports: map[string][]string{"esm/index.mjs": {"@acme/ui"}, "esm/client.mjs": {"./chunks/A.mjs", "scheduler"}, "esm/chunks/A.mjs": {"@acme/ui", "empty"}}, Dynamic: map[string][]string{"esm/client.mjs": {"optional"}},
	}
	s.PublishAbout("ui-dom", "18.2.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "dom", "esm/client.mjs": "client", "esm/chunks/A.mjs": "a", "esm/index.mjs.map": "{}"},
		&logs.About{Dependencies: map[string]string{"scheduler": "^0.2.0"}, Peers: map[string]string{"@acme/ui": "^18.0.0"}, Modules: dom})
	enrol("app", "app")
	s.PublishAbout("app", "1.0.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "app"}, &logs.About{Dependencies: map[string]string{"@acme/ui": "^19.0.0", "ui-dom": "*"},
		Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}, Imports: map[string][]string{"esm/index.mjs": {"@acme/ui", "@acme/ui/gone", "ui-dom"}}}})
	enrol("none", "none")
	s.PublishAbout("none", "1.0.0", "LICENSE", map[string]string{"LICENSE": "MIT"}, &logs.About{Modules: &logs.Modules{Program: "esbuild", Problem: "index.js imports fs"}})
	s.Publish("none", "0.1.0", "LICENSE", map[string]string{"LICENSE": "MIT"})
	enrol("empty", "empty")
	return s, s.Index(library.Options{})
}

func TestModuleMap(t *testing.T) {
	shelf, x := builtUI(t)
	d := library.Directory{Documents: testkit.Renderer(t, shelf.Store).DocumentsNow(), Store: shelf.Store, AssetBase: graphBase, Index: func() (*library.Index, error) { return x, nil }}
	for _, tt := range []struct {
		library, version string
		subpaths         []string
		imports          string // names and the ends of their addresses
		integrity        int
		problems         []string // words of each
		err              string
	}{
		{"ui", "", nil, "@acme/ui=ui/19.0.0/esm/index.mjs @acme/ui/jsx=ui/19.0.0/esm/jsx.mjs", 2, nil, ""},
		{"ui", "18.0.0", []string{"./jsx"}, "@acme/ui/jsx=ui/18.0.0/esm/jsx.mjs", 1, nil, ""},
		{"ui-dom", "", nil, "@acme/ui=ui/18.0.0/esm/index.mjs ui-dom=ui-dom/18.2.0/esm/index.mjs ui-dom/client=ui-dom/18.2.0/esm/client.mjs", 4,
			[]string{`imports "scheduler", which is not here`, "`larder new scheduler`", "nothing of empty is published yet: `larder add empty`"}, ""},
		{"app", "", nil, "@acme/ui=ui/19.0.0/esm/index.mjs app=app/1.0.0/esm/index.mjs ui-dom=ui-dom/18.2.0/esm/index.mjs", 3,
			[]string{`imports "@acme/ui/gone", and ui 19.0.0 has no module for that`, "ui-dom 18.2.0 wants @acme/ui ^18.0.0, and the map has 19.0.0 of it"}, ""},
		{"ui-dom", "", []string{"./server"}, "", 0, nil, "server.js imports stream"},
		{"ui-dom", "", []string{"./other"}, "", 0, nil, "there is none for ./other; there are . ./client"},
		{"none", "1.0.0", nil, "", 0, nil, "none 1.0.0 has no built modules: index.js imports fs; `larder tag none@1.0.0`"},
		{"none", "0.1.0", nil, "", 0, nil, `"modules" was not in its package JSON`},
		{"empty", "", nil, "", 0, nil, "nothing of empty is published yet"},
	} {
		got, err := d.Modules(t.Context(), library.ModulesRequest{Library: tt.library, Version: tt.version, Subpaths: tt.subpaths})
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%s: %v, want %q", tt.library, err, tt.err)
			}
			continue
		}
		if err != nil {
			t.Fatal(tt.library, err)
		}
		var imports []string
		for _, name := range slices.Sorted(maps.Keys(got.Imports)) {
			imports = append(imports, name+"="+strings.TrimPrefix(got.Imports[name], graphBase+"/ajax/libs/"))
		}
		if text := strings.Join(imports, " "); text != tt.imports || len(got.Integrity) != tt.integrity || got.Pending {
			t.Errorf("%s: %s, %d integrities\nwant %s, %d", tt.library, text, len(got.Integrity), tt.imports, tt.integrity)
		}
		for _, want := range tt.problems {
			if !strings.Contains(strings.Join(got.Problems, "\n"), want) {
				t.Errorf("%s: %q lacks %q", tt.library, got.Problems, want)
			}
		}
		if tt.problems == nil && got.Problems != nil {
			t.Errorf("%s: %q", tt.library, got.Problems)
		}
	}
	l, err := x.Library(t.Context(), "ui-dom")
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.Release(t.Context(), "ui-dom", "18.2.0")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"esm/client.mjs": "ui-dom/client", "esm/chunks/A.mjs": "", "esm/index.mjs": "ui-dom"} {
		if got, err := x.BuiltSpecifier(l, r, file); got != want || err != nil {
			t.Errorf("%s is imported as %q, %v; want %q", file, got, err, want)
		}
	}
	none := new(library.NoModulesError)
	if _, err := d.Modules(t.Context(), library.ModulesRequest{Library: "none"}); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
}
