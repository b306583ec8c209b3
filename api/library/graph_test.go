package library_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

const graphBase = "https://cdn.example"

// graphs is a shelf of libraries whose modules import each other.
func graphs(t *testing.T) (*testkit.Shelf, *library.Index) {
	t.Helper()
	s := testkit.NewShelf(t)
	register := func(name, npm string) {
		s.Register(name, `{"name": "`+name+`", "description": "d", "keywords": ["k"], "repository": {"type": "git", "url": "https://github.com/a/a.git"}, "autoupdate": {"source": "npm", "target": "`+npm+`", "fileMap": [{"basePath": "", "files": ["*"]}]}}`)
	}
	register("three.js", "three")
	s.Publish("three.js", "1.0.0", "three.module.min.js", map[string]string{
		"three.module.js": `import { a } from './three.core.js';` + "\n", "three.module.min.js": `import{a}from"./three.core.js";export*from"./three.core.js";`,
		"three.core.js": "export const a = 1;\n", "three.core.min.js": "export const a=1;", "lone.min.mjs": `import"./part/only.mjs";import("./lazy.mjs");import("./gone.mjs")`,
		"part/only.mjs": `export * from '../lazy.mjs?x#y'; import q from "./missing.mjs"; import z from 'https://other.example/z.mjs'`, "lazy.mjs": "// import nothing from 'nowhere'\n",
		"node.mjs": `import n from "./node.js"`, "node.js": "module.exports = 1",
		"long.min.mjs": `import"./written.js";import"./chunk.js"`, "written.js": strings.Repeat("export const a = 1;\n", 100), "chunk.js": "export default 1;" + strings.Repeat("f();", 500),
	})
	register("glass", "@jars/glass")
	s.Publish("glass", "1.2.0", "glass.mjs", map[string]string{"glass.mjs": "export default 1", "tools/x.js": "export default 2"})
	s.Publish("glass", "2.0.0", "glass.mjs", map[string]string{"glass.mjs": "export default 2"})
	register("jam", "jam")
	s.PublishAbout("jam", "1.0.0", "jam.mjs", map[string]string{
		"jam.mjs": "import glass, {\n  x as y, // and more\n} from '@jars/glass'\nimport \"@jars/glass/tools/x\"\nexport { z } from 'nowhere';\nimport * as own from 'jam/other.mjs';", "other.mjs": "export default import.meta",
	}, &logs.About{Dependencies: map[string]string{"@jars/glass": "^1.0.0"}})
	return s, s.Index(library.Options{})
}

func TestGraph(t *testing.T) {
	shelf, x := graphs(t)
	documents := testkit.Renderer(t, shelf.Store).DocumentsNow()
	at := func(path string) string { return graphBase + "/ajax/libs/" + path }
	for _, tt := range []struct {
		library, version, file string
		modules                string // paths, in order
		imports                map[string]string
		problems               []string // words of each
	}{
		{"three.js", "1.0.0", "three.module.js", "three.module.js three.core.js", map[string]string{}, nil},
		{"three.js", "1.0.0", "three.module.min.js", "three.module.min.js three.core.min.js", map[string]string{
			at("three.js/1.0.0/three.core.js"): at("three.js/1.0.0/three.core.min.js"),
		}, []string{"three.core.min.js is loaded in its place"}},
		{"three.js", "1.0.0", "lone.min.mjs", "lone.min.mjs part/only.mjs lazy.mjs", map[string]string{}, []string{"./missing.mjs, which is not in the release", "of another service"}},
		{"three.js", "1.0.0", "node.mjs", "node.mjs node.js", map[string]string{}, []string{"node.js is for Node.js and no module"}},
		{"three.js", "1.0.0", "long.min.mjs", "long.min.mjs written.js chunk.js", map[string]string{}, []string{"written.js is not minified, and three.js 1.0.0 has no minified form of it"}},
		{"jam", "1.0.0", "jam.mjs", "jam.mjs glass.mjs other.mjs tools/x.js", map[string]string{
			"@jars/glass": at("glass/1.2.0/glass.mjs"), "@jars/glass/tools/x": at("glass/1.2.0/tools/x.js"), "jam/other.mjs": at("jam/1.0.0/other.mjs"),
		}, []string{`"nowhere", which is not here`}},
	} {
		r, err := x.Release(t.Context(), tt.library, tt.version)
		if err != nil {
			t.Fatal(err)
		}
		f, _ := r.Find(tt.file)
		g, err := x.Graph(t.Context(), graphBase, r, []views.PublishedFile{f}, documents)
		if err != nil {
			t.Fatal(err)
		}
		var paths []string
		for _, m := range g.Modules {
			paths = append(paths, m.Path)
		}
		if tt.library == "jam" {
			slices.Sort(paths[1:])
		}
		if got := strings.Join(paths, " "); got != tt.modules || !maps.Equal(g.Imports, tt.imports) {
			t.Errorf("%s: %s, %v\nwant %s, %v", tt.file, got, g.Imports, tt.modules, tt.imports)
		}
		if len(g.Problems) != len(tt.problems) {
			t.Errorf("%s: %q", tt.file, g.Problems)
		}
		for i, want := range tt.problems {
			if i < len(g.Problems) && !strings.Contains(strings.Join(g.Problems, "\n"), want) {
				t.Errorf("%s: %q, want %q", tt.file, g.Problems, want)
			}
		}
	}
}

// TestTagNotes holds that the command says of a module's imports what the page says.
// TestGraphIsBounded holds the limits of modules and of imports.
func TestGraphIsBounded(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Register("jars", `{"name": "jars", "description": "d", "keywords": ["k"], "repository": {"type": "git", "url": "https://github.com/a/a.git"}}`)
	files := map[string]string{"many.mjs": "", "often.mjs": ""}
	for i := range 400 {
		files[fmt.Sprintf("m%d.mjs", i)] = "export default 1"
		files["many.mjs"] += fmt.Sprintf("import'./m%d.mjs';", i)
	}
	for i := range 40 {
		files["often.mjs"] += fmt.Sprintf("import'./o%d.mjs';", i)
	}
	for i := range 40 {
		path := fmt.Sprintf("o%d.mjs", i)
		for j := range 100 {
			files[path] += fmt.Sprintf("import'./o%d.mjs?%d';", j%40, j)
		}
	}
	s.Publish("jars", "1.0.0", "many.mjs", files)
	x, documents := s.Index(library.Options{}), testkit.Renderer(t, s.Store).DocumentsNow()
	r, err := x.Release(t.Context(), "jars", "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"many.mjs": "more than 300 files", "often.mjs": "over 3000 times"} {
		f, _ := r.Find(file)
		g, err := x.Graph(t.Context(), graphBase, r, []views.PublishedFile{f}, documents)
		if err != nil || len(g.Modules) > 300 || !strings.Contains(strings.Join(g.Problems, "\n"), want) {
			t.Errorf("%s: %d modules, %q, %v", file, len(g.Modules), g.Problems, err)
		}
	}
}

// TestGraphReadsVersionsOnce tests that further imports of a package do not read all versions of its library again.
func TestGraphReadsVersionsOnce(t *testing.T) {
	s := testkit.NewShelf(t)
	for name, versions := range map[string]int{"jam": 1, "glass": 20} {
		s.Register(name, `{"name": "`+name+`", "description": "d", "keywords": ["k"], "repository": {"type": "git", "url": "https://github.com/a/a.git"}, "autoupdate": {"source": "npm", "target": "`+name+`", "fileMap": [{"basePath": "", "files": ["*"]}]}}`)
		for i := range versions {
			s.Publish(name, fmt.Sprintf("1.%d.0", i), name+".mjs", map[string]string{name + ".mjs": "export default '" + name + "'"})
		}
	}
	x := s.Index(library.Options{})
	r, err := x.Release(t.Context(), "jam", "1.0.0")
	if err != nil {
		t.Fatal(err)
	}
	cost := func(imports int) float64 {
		documents := library.Documents{Imports: func(_ context.Context, owner string, _ kvstore.Hash, _ []byte) ([]document.Import, bool, error) {
			if owner != r.Owner() {
				return nil, false, nil
			}
			return slices.Repeat([]document.Import{{Specifier: "glass"}}, imports), false, nil
		}}
		return testing.AllocsPerRun(2, func() {
			if g, err := x.Graph(t.Context(), graphBase, r, r.Files, documents); err != nil || len(g.Modules) != 2 {
				t.Fatal(g, err)
			}
		})
	}
	if one, many := cost(1), cost(501); many-one > 500*5 {
		t.Errorf("500 further imports take %v allocations", many-one)
	}
}

func TestTagNotes(t *testing.T) {
	shelf, x := graphs(t)
	d := library.Directory{Documents: testkit.Renderer(t, shelf.Store).DocumentsNow(), Store: shelf.Store, AssetBase: graphBase, Index: func() (*library.Index, error) { return x, nil }}
	got, err := d.Snippets(t.Context(), library.SnippetRequest{Library: "three.js", Files: []string{"three.module.min.js", "long.min.mjs", "chunk.js", "three.core.min.js"}})
	if err != nil || len(got) != 4 {
		t.Fatal(got, err)
	}
	for i, want := range [][]string{
		{"imports ./three.core.js, which is not minified", "/recipe/three.js/1.0.0 has that of all 2 modules"},
		{"written.js is not minified, and three.js 1.0.0 has no minified form of it", "all 3 modules"},
		nil, nil,
	} {
		if len(got[i].Notes) != len(want) {
			t.Errorf("%s: %q, want %q", got[i].File, got[i].Notes, want)
		}
		for j, note := range got[i].Notes {
			if j < len(want) && !strings.Contains(note, want[j]) {
				t.Errorf("%s: %q, want %q", got[i].File, note, want[j])
			}
		}
	}
}
