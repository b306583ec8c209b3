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
	register := func(name, npm string) {
		s.Register(name, `{"name": "`+name+`", "description": "d", "keywords": ["k"], "repository": {"type": "git", "url": "https://github.com/a/a.git"}, "autoupdate": {"source": "npm", "target": "`+npm+`", "fileMap": [{"basePath": "", "files": ["*"]}], "modules": true}}`)
	}
	register("ui", "@acme/ui")
	for _, version := range []string{"18.0.0", "19.0.0"} {
		s.PublishAbout("ui", version, "esm/index.mjs", map[string]string{"esm/index.mjs": "export let version=" + version[:2], "esm/jsx.mjs": "export{}"},
			&logs.About{Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs", "./jsx": "esm/jsx.mjs"}, Imports: map[string][]string{"esm/index.mjs": {}, "esm/jsx.mjs": {}}}})
	}
	register("ui-dom", "ui-dom")
	dom := &logs.Modules{
		Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs", "./client": "esm/client.mjs"}, Skipped: map[string]string{"./server": "server.js imports stream"},
		Imports: map[string][]string{"esm/index.mjs": {"@acme/ui"}, "esm/client.mjs": {"./chunks/A.mjs", "scheduler"}, "esm/chunks/A.mjs": {"@acme/ui", "empty"}}, Dynamic: map[string][]string{"esm/client.mjs": {"optional"}},
	}
	s.PublishAbout("ui-dom", "18.2.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "dom", "esm/client.mjs": "client", "esm/chunks/A.mjs": "a", "esm/index.mjs.map": "{}"},
		&logs.About{Dependencies: map[string]string{"scheduler": "^0.2.0"}, Peers: map[string]string{"@acme/ui": "^18.0.0"}, Modules: dom})
	register("chart", "chart")
	s.PublishAbout("chart", "1.0.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "chart"}, &logs.About{Dependencies: map[string]string{"@acme/ui": "~18.0.0"},
		Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}, Imports: map[string][]string{"esm/index.mjs": {"@acme/ui", "@acme/ui/jsx"}}}})
	register("page", "page")
	s.PublishAbout("page", "1.0.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "page"}, &logs.About{Dependencies: map[string]string{"@acme/ui": ">=18.0.0", "chart": "1"},
		Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}, Imports: map[string][]string{"esm/index.mjs": {"@acme/ui", "chart"}}}})
	register("app", "app")
	s.PublishAbout("app", "1.0.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "app"}, &logs.About{Dependencies: map[string]string{"@acme/ui": "^19.0.0", "ui-dom": "*"},
		Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}, Imports: map[string][]string{"esm/index.mjs": {"@acme/ui", "@acme/ui/gone", "ui-dom"}}}})
	register("none", "none")
	s.PublishAbout("none", "1.0.0", "LICENSE", map[string]string{"LICENSE": "MIT"}, &logs.About{Modules: &logs.Modules{Program: "esbuild", Problem: "index.js imports fs"}})
	s.Publish("none", "0.1.0", "LICENSE", map[string]string{"LICENSE": "MIT"})
	register("empty", "empty")
	// The package itself has no module in either; upstream published one of the second.
	skipped := &logs.About{Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{"./client": "esm/client.mjs"}, Imports: map[string][]string{"esm/client.mjs": {}}, Skipped: map[string]string{".": "index.js imports fs"}}}
	register("part", "part")
	s.PublishAbout("part", "1.0.0", "esm/client.mjs", map[string]string{"esm/client.mjs": "client"}, skipped)
	register("beside", "beside")
	s.PublishAbout("beside", "1.0.0", "esm/client.mjs", map[string]string{"esm/client.mjs": "client", "esm/chunks/long/way/own.mjs": "own"}, skipped)
	register("user", "user")
	s.PublishAbout("user", "1.0.0", "esm/index.mjs", map[string]string{"esm/index.mjs": "user"}, &logs.About{
		Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}, Imports: map[string][]string{"esm/index.mjs": {"beside", "none", "part", "part/client"}}}})
	return s, s.Index(library.Options{})
}

func TestModuleMap(t *testing.T) {
	shelf, x := builtUI(t)
	d := library.Directory{Documents: testkit.Renderer(t, shelf.Store).DocumentsNow(), Store: shelf.Store, AssetBase: graphBase, Index: func() (*library.Index, error) { return x, nil }}
	for _, tt := range []struct {
		library, version string
		subpaths         []string
		imports          string // names and the ends of their addresses
		scopes           string // as imports, each after the end of its address
		integrity        int
		problems         []string // words of each
		err              string
	}{
		{"ui", "", nil, "@acme/ui=ui/19.0.0/esm/index.mjs @acme/ui/jsx=ui/19.0.0/esm/jsx.mjs", "", 2, nil, ""},
		{"ui", "18.0.0", []string{"./jsx"}, "@acme/ui/jsx=ui/18.0.0/esm/jsx.mjs", "", 1, nil, ""},
		{"ui-dom", "", nil, "@acme/ui=ui/18.0.0/esm/index.mjs ui-dom=ui-dom/18.2.0/esm/index.mjs ui-dom/client=ui-dom/18.2.0/esm/client.mjs", "", 4,
			[]string{`imports "scheduler", which is not here`, "`larder new scheduler`", "nothing of empty is published yet: `larder add empty`"}, ""},
		{"app", "", nil, "@acme/ui=ui/19.0.0/esm/index.mjs app=app/1.0.0/esm/index.mjs ui-dom=ui-dom/18.2.0/esm/index.mjs", "", 3,
			[]string{`imports "@acme/ui/gone", and ui 19.0.0 has no module for that`, "ui-dom 18.2.0 wants @acme/ui ^18.0.0, and the map has 19.0.0 of it"}, ""},
		// Two versions of one dependency.
		{"page", "", nil, "@acme/ui=ui/19.0.0/esm/index.mjs chart=chart/1.0.0/esm/index.mjs page=page/1.0.0/esm/index.mjs",
			"chart/1.0.0/: @acme/ui=ui/18.0.0/esm/index.mjs @acme/ui/jsx=ui/18.0.0/esm/jsx.mjs", 5, nil, ""},
		{"user", "", nil, "beside=beside/1.0.0/esm/chunks/long/way/own.mjs part/client=part/1.0.0/esm/client.mjs user=user/1.0.0/esm/index.mjs", "", 3,
			[]string{`imports "part", and part 1.0.0 has no module for that: index.js imports fs.`, `imports "none", and none 1.0.0 has no module for that: index.js imports fs.`}, ""},
		{"ui-dom", "", []string{"./server"}, "", "", 0, nil, "server.js imports stream"},
		{"ui-dom", "", []string{"./other"}, "", "", 0, nil, "no module was built for ./other; the modules are . ./client"},
		{"none", "1.0.0", nil, "", "", 0, nil, "none 1.0.0 has no built modules: index.js imports fs; `larder tag none@1.0.0`"},
		{"none", "0.1.0", nil, "", "", 0, nil, `"modules" was not in its package JSON`},
		{"empty", "", nil, "", "", 0, nil, "nothing of empty is published yet"},
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
		list := func(imports map[string]string) (text string) {
			for _, name := range slices.Sorted(maps.Keys(imports)) {
				text += " " + name + "=" + strings.TrimPrefix(imports[name], graphBase+"/ajax/libs/")
			}
			return text
		}
		scopes := ""
		for scope, imports := range got.Scopes {
			scopes = strings.TrimPrefix(scope, graphBase+"/ajax/libs/") + ":" + list(imports)
		}
		if text := list(got.Imports); text != " "+tt.imports || scopes != tt.scopes || len(got.Integrity) != tt.integrity || got.Pending {
			t.Errorf("%s:%s, scopes %s, %d integrities\nwant %s, %s, %d", tt.library, text, scopes, len(got.Integrity), tt.imports, tt.scopes, tt.integrity)
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
		if got, built, err := x.BuiltModule(l, r, file); got != want || !built || err != nil {
			t.Errorf("%s is imported as %q, %v; want %q", file, got, err, want)
		}
	}
	none := new(library.NoModulesError)
	if _, err := d.Modules(t.Context(), library.ModulesRequest{Library: "none"}); !errors.As(err, &none) {
		t.Errorf("%v", err)
	}
}
