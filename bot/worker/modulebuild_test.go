package worker

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// build builds a package with these files.
func build(t *testing.T, files map[string]string, subpaths ...string) (ModulesResult, error) {
	t.Helper()
	q := ModulesRequest{Package: "jar", Subpaths: subpaths, Files: map[string][]byte{}}
	for name, text := range files {
		q.Files[name] = []byte(text)
	}
	return buildModules(q)
}

func TestBuild(t *testing.T) {
	tests := []struct {
		name     string
		files    map[string]string
		subpaths []string
		want     string   // the subpaths with modules, and with a minus those without
		has      []string // in the module for the package, or for the first subpath
		hasNot   []string
	}{
		{"CommonJS with names", map[string]string{"package.json": `{}`, "index.js": `exports.a = 1; exports.default = 2; Object.defineProperty(exports, "__esModule", { value: true })`}, nil, ".",
			[]string{"as a,", `as"module.exports"`, "as __esModule,", "as default"}, nil},
		{"one module for production, one for development", map[string]string{"package.json": `{"main":"main"}`,
			"main.js": `if (process.env.NODE_ENV === "production") { module.exports = require("./p.js") } else { module.exports = require("./d.js") }`,
			"p.js":    `exports.useState = 1`, "d.js": `exports.useState = 1; exports.act = "development"`}, nil, ".", []string{"as useState"}, []string{"act"}},
		{"require of another package", map[string]string{"package.json": `{}`, "index.js": `var r = require("react"); exports.a = r.useState`}, nil, ".",
			[]string{`from"react"`, `["module.exports"]`, "as a"}, []string{"Dynamic require"}},
		{"ES module without a default", map[string]string{"package.json": `{"module":"m.js"}`, "m.js": `export let a = 1`}, nil, ".", []string{"as a}"}, []string{"default"}},
		{"ES module with a default", map[string]string{"package.json": `{"module":"m.js"}`, "m.js": `export let a = 1; export default 2`}, nil, ".", []string{"as a,", "as default"}, nil},
		{"exports of other packages", map[string]string{"package.json": `{"module":"m.js"}`, "m.js": `export * from "./more.js"; export * from "d3-array"`, "more.js": `export * from "d3-axis"; export let own = 1`}, nil, ".",
			[]string{`export*from"d3-array"`, `export*from"d3-axis"`, "as own}"}, []string{"as default"}},
		{"exports of other packages that it imports itself", map[string]string{"package.json": `{"exports":{".":"./m.js","./query":"./q.js"}}`, "m.js": `export * from "redux"`, "q.js": `import { combine } from "jar"; export let q = combine`}, nil, ". ./query",
			[]string{`export*from"redux"`}, nil},
		{"a browser field for the package", map[string]string{"package.json": `{"main":"node.js","browser":{".":"./web.js"}}`, "web.js": `exports.a = "web"`, "node.js": `exports.a = "node"`}, nil, ".", []string{"web"}, []string{"node"}},
		{"conditions", map[string]string{"package.json": `{"exports":{".":{"node":"./n.js","development":"./n.js","browser":{"require":"./n.js","import":"./b.js"},"default":"./n.js"}}}`,
			"b.js": `export let b = 1`, "n.js": `export let n = 1`}, nil, ".", []string{"as b}"}, nil},
		{"a condition before a more general one", map[string]string{"package.json": `{"exports":{"import":"./b.js","default":"./n.js"}}`, "b.js": `export let b = 1`, "n.js": ``}, nil, ".", []string{"as b}"}, nil},
		{"all subpaths", map[string]string{"package.json": `{"exports":{".":"./a.js","./client":"./c.js","./style.css":"./s.css","./package.json":"./package.json","./null":null,"./lib/*":"./l/*.js","./lib/private/*":null}}`,
			"a.js": `export {}`, "c.js": `export {}`, "l/x.js": `export {}`, "l/private/y.js": `export {}`, "s.css": ``}, nil, ". ./client ./lib/x", nil, nil},
		{"subpaths that differ only in case", map[string]string{"package.json": `{"exports":{".":"./i.js","./Button":"./i.js","./button":"./b.js"}}`, "i.js": `export {}`, "b.js": `export {}`}, nil, ". ./Button -./button", nil, nil},
		{"subpaths above the package", map[string]string{"package.json": `{"exports":{".":"./i.js","./../b":"./b.js"}}`, "i.js": `export {}`, "b.js": `export {}`}, nil, ". -./../b", nil, nil},
		{"listed subpaths", map[string]string{"package.json": `{}`, "debounce.js": `export {}`, "index.js": `export {}`}, []string{"./debounce", "./gone"}, "./debounce -./gone", nil, nil},
		{"browser field", map[string]string{"package.json": `{"browser":{"fs":false,"./node.js":"./web.js","util":"./web.js"},"main":"main.js"}`,
			"main.js": `require("fs"); require("util"); exports.x = require("./node")`, "node.js": `throw "node"`, "web.js": `exports.a = "web"`}, nil, ".", []string{"web"}, []string{"node"}},
		{"browser field of a folder", map[string]string{"package.json": `{"main":"main.js"}`, "main.js": `exports.x = require("./lib")`, "lib/package.json": `{"browser":"web.js","main":"node.js"}`, "lib/web.js": `exports.a = "web"`, "lib/node.js": `"node"`},
			nil, ".", []string{"web"}, []string{"node"}},
		{"Node.js modules", map[string]string{"package.json": `{"exports":{".":"./a.js","./server":"./s.js"}}`, "a.js": `export let a = 1`, "s.js": `import "./deep.js"`, "deep.js": `import fs from "node:fs"; export default fs`}, nil, ". -./server", nil, nil},
		{"only Node.js", map[string]string{"package.json": `{}`, "index.js": `require("fs")`}, nil, "-.", nil, nil},
		{"a Node.js module that is tried", map[string]string{"package.json": `{}`, "index.js": `try { require("util") } catch (e) { exports.a = 1 }`}, nil, ".", nil, nil},
		{"a package that is tried", map[string]string{"package.json": `{"dependencies":{"source-map":"0.6"}}`, "index.js": `try { exports.m = require("source-map") } catch (e) { exports.a = 1 }`}, nil, ".", []string{"as a,"}, []string{`from"source-map"`}},
		{"packages that are tried and required", map[string]string{"package.json": `{}`, "index.js": `try { require("tried"); require("both") } catch (e) {} exports.a = require("both"); exports.b = require("./more")`,
			"more.js": `module.exports = [require("tried"), require("needed")]`}, nil, ".", []string{`from"both"`, `from"tried"`, `from"needed"`}, nil},
		{"a package with a Node.js module's name", map[string]string{"package.json": `{"dependencies":{"events":"1"}}`, "index.js": `exports.a = require("events")`}, nil, ".", []string{`from"events"`}, nil},
		{"a package's folder", map[string]string{"package.json": `{}`, "index.js": `exports.a = require("buffer/"); exports.b = require("jar/more/")`, "more/index.js": `exports.own = "jam"`}, nil, ".", []string{`from"buffer"`, "jam"}, nil},
		{"a file with the name of another package", map[string]string{"package.json": `{"module":"m.js"}`, "m.js": `export * from "big.js"`, "big.js": `export let own = "jam"`}, nil, ".", []string{`export*from"big.js"`}, []string{"jam"}},
		{"environment variables", map[string]string{"package.json": `{}`, "index.js": `exports.a = process.env.NODE_DEBUG; exports.b = process.env.NODE_ENV`}, nil, ".", []string{"={}", `="production"`}, []string{"process"}},
		{"private names", map[string]string{"package.json": `{"imports":{"#a":{"browser":"./web.js","default":"fs"},"#b":"other"}}`, "index.js": `import a from "#a"; import b from "#b"; export { a, b }`, "web.js": `export default "web"`}, nil, ".", []string{"web", `from"other"`}, nil},
		{"its own name", map[string]string{"package.json": `{"exports":{".":"./a.js","./b":"./b.js"}}`, "a.js": `export { b } from "jar/b"`, "b.js": `export let b = 1`}, nil, ". ./b", []string{"./chunks/"}, []string{`"jar/b"`}},
		{"JSON and style sheets", map[string]string{"package.json": `{}`, "index.js": `import d from "./d.json"; import "./s.css"; export default d.value`, "d.json": `{"value":"from JSON"}`, "s.css": `a { color: red }`}, nil, ".", []string{"from JSON"}, nil},
		{"cycle", map[string]string{"package.json": `{}`, "index.js": `import { b } from "./b.js"; export let a = () => b`, "b.js": `import { a } from "./index.js"; export let b = () => a`}, nil, ".", []string{"as a"}, nil},
		{"no side effects", map[string]string{"package.json": `{"sideEffects":["keep.js"]}`, "index.js": `import "./drop.js"; import "./keep.js"; export let a = 1`, "drop.js": `console.log("drop")`, "keep.js": `console.log("keep")`}, nil, ".", []string{"keep"}, []string{"drop"}},
		{"an error", map[string]string{"package.json": `{}`, "index.js": `var =`}, nil, "-.", nil, nil},
		{"an empty script", map[string]string{"package.json": `{}`, "index.js": ``}, nil, ".", []string{"as default"}, nil},
		{"a value that is null", map[string]string{"package.json": `{}`, "index.js": `module.exports = null`}, nil, ".", []string{"as default"}, nil},
		{"a name that is no identifier", map[string]string{"package.json": `{}`, "index.js": `exports["a-b"] = 1; exports.delete = 2`}, nil, ".", []string{`as"a-b"`, "as delete"}, nil},
		{"a target outside", map[string]string{"package.json": `{"exports":"../../etc/passwd"}`}, nil, "-.", nil, nil},
		{"a main that is its own folder", map[string]string{"package.json": `{"main":"."}`}, nil, "-.", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := build(t, tt.files, tt.subpaths...)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, m := range got.Modules {
				names = append(names, m.Subpath)
			}
			for _, s := range got.Skipped {
				names = append(names, "-"+s.Subpath)
			}
			if text := strings.Join(names, " "); text != tt.want {
				t.Fatalf("got %s, want %s; skipped %+v", text, tt.want, got.Skipped)
			}
			var text string
			for _, f := range got.Files {
				if f.Path == modulePath(strings.TrimPrefix(names[0], "-")) || strings.Contains(f.Path, "/chunks/") && !strings.HasSuffix(f.Path, ".map") {
					text += string(f.Data)
				}
			}
			for _, part := range tt.has {
				if !strings.Contains(text, part) {
					t.Errorf("%s lacks %s", text, part)
				}
			}
			for _, part := range tt.hasNot {
				if strings.Contains(text, part) {
					t.Errorf("%s has %s", text, part)
				}
			}
		})
	}
}

// TestSharedOnce holds that what several subpaths share is in one file, and that every module has a source map.
func TestSharedOnce(t *testing.T) {
	files := map[string]string{"package.json": `{"exports":{".":"./a.js","./b":"./b.js"}}`, "a.js": `exports.state = require("./state.js")`, "b.js": `exports.state = require("./state.js")`, "state.js": `module.exports = { shared: "the state" }`}
	got, err := build(t, files)
	if err != nil {
		t.Fatal(err)
	}
	with, sourceMaps := 0, 0
	for _, f := range got.Files {
		switch {
		case strings.HasSuffix(f.Path, ".map"):
			sourceMaps++
		case strings.Contains(string(f.Data), "the state"):
			with++
			if !strings.HasPrefix(f.Path, "esm/chunks/") {
				t.Errorf("the shared code is in %s", f.Path)
			}
		case len(f.Imports) != 1 || !strings.HasPrefix(f.Imports[0], "./chunks/"):
			t.Errorf("%s imports %q", f.Path, f.Imports)
		}
	}
	if with != 1 || sourceMaps != 3 || !slices.Equal(got.Inputs, []string{"a.js", "b.js", "package.json", "state.js"}) {
		t.Errorf("the shared code is in %d files; %d source maps; inputs %q", with, sourceMaps, got.Inputs)
	}
	again, err := build(t, maps.Clone(files))
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Files {
		if got.Files[i].Path != again.Files[i].Path || string(got.Files[i].Data) != string(again.Files[i].Data) {
			t.Errorf("%s and %s differ between two builds", got.Files[i].Path, again.Files[i].Path)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	many := map[string]string{"package.json": `{}`}
	var subpaths []string
	for i := range MaxSubpaths + 1 {
		subpaths = append(subpaths, "./"+strings.Repeat("a", i+1))
	}
	for _, tt := range []struct {
		name     string
		files    map[string]string
		subpaths []string
		want     string
	}{
		{"too many subpaths", many, subpaths, "over the limit of 500"},
		{"no package.json", map[string]string{"index.js": ``}, nil, "has no package.json"},
		{"a malformed package.json", map[string]string{"package.json": `[`}, nil, "package.json: unexpected end"},
		{"deep exports", map[string]string{"package.json": `{"exports":` + strings.Repeat(`{"default":`, 30) + `"a"` + strings.Repeat("}", 30) + `}`}, nil, "over 20 levels"},
	} {
		if _, err := build(t, tt.files, tt.subpaths...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	chain := map[string]string{"package.json": `{"exports":{".":"./0.js","./last":"./last.js"}}`, "last.js": ""}
	for i := range maxLoaded {
		chain[fmt.Sprint(i, ".js")] = fmt.Sprintf(`import "./%d.js"`, i+1)
	}
	chain[fmt.Sprint(maxLoaded, ".js")] = ""
	if _, err := build(t, chain); err == nil || !strings.Contains(err.Error(), "import over 4000 files") {
		t.Errorf("a chain of files: %v", err)
	}
	ring := map[string]string{"package.json": `{"exports":{"./*":"./*.js"}}`}
	for i := range MaxSubpaths {
		ring[fmt.Sprint(i, ".js")] = fmt.Sprintf("export * from './%d.js'; export * from '%s'", (i+1)%MaxSubpaths, strings.Repeat("a", 100)+fmt.Sprint(i))
	}
	if _, err := build(t, ring); !errors.Is(err, errTooMuchExported) {
		t.Errorf("a ring of files: %v", err)
	}
	large := api.BuildResult{Metafile: "{}", OutputFiles: []api.OutputFile{{Path: "/esm/index.mjs"}, {Path: "/esm/index.mjs.map", Contents: make([]byte, MaxModulesOutput+1)}}}
	if _, err := (&builder{entries: []*entry{{}}}).makeResult(large); err == nil || !strings.Contains(err.Error(), "the modules have over 67108864 bytes") {
		t.Errorf("a large result: %v", err)
	}
	q := ModulesRequest{Package: "jar", Files: map[string][]byte{"package.json": []byte(`{"exports":{".":"./a.js","./b":"./b.js"}}`), "a.js": []byte(`import "./c.js"`), "b.js": {}, "c.js": []byte(strings.Repeat("{", 300))}}
	checked, err := buildModules(q)
	if err != nil || len(checked.Modules) != 1 || len(checked.Skipped) != 1 || checked.Skipped[0] != (SkippedSubpath{".", "c.js: over 256 blocks in each other"}) {
		t.Errorf("a costly file: %+v, %v", checked, err)
	}
	pattern := map[string]string{"package.json": `{"exports":{".":"./index.js","./lib/*":"./lib/*.js"}}`, "index.js": ``}
	for i := range MaxSubpaths {
		pattern["lib/"+strings.Repeat("a", i+1)+".js"] = ``
	}
	got, err := build(t, pattern)
	if err != nil || len(got.Modules) != 1 || len(got.Skipped) != 1 || got.Skipped[0].Subpath != OtherSubpaths {
		t.Errorf("%d modules, skipped %+v, %v", len(got.Modules), got.Skipped, err)
	}
}

// TestManySubpaths holds that of a package with more subpaths than the limit those with the fewest segments are built, and that the result says so.
func TestManySubpaths(t *testing.T) {
	exports := func(subpaths ...string) map[string]string {
		for i := range subpaths {
			subpaths[i] = quote(subpaths[i]) + `:"./a.js"`
		}
		return map[string]string{"package.json": `{"exports":{` + strings.Join(subpaths, ",") + `}}`, "a.js": `export let a = 1`}
	}
	numbered := func(prefix string, n int) (all []string) {
		for i := range n {
			all = append(all, prefix+fmt.Sprint(i))
		}
		return all
	}
	for _, tt := range []struct {
		name    string
		files   map[string]string
		modules int
		reason  string
	}{
		{"deep ones", exports(slices.Concat([]string{".", "./add"}, numbered("./locale/", 300), numbered("./fp/", 199))...), 2, "the package exports 499 more, 501 in all, over the limit of 500: list those that you need in the package JSON"},
		{"the limit", exports(slices.Concat([]string{".", "./add"}, numbered("./locale/", 498))...), 500, ""},
		{"flat ones", exports(append(numbered("./", 501), ".")...), 1, "the package exports 501 more, 502 in all"},
	} {
		got, err := build(t, tt.files)
		if err != nil || len(got.Modules) != tt.modules || (tt.reason != "") != (len(got.Skipped) == 1) || tt.reason != "" && (got.Skipped[0].Subpath != OtherSubpaths || !strings.HasPrefix(got.Skipped[0].Reason, tt.reason)) {
			t.Errorf("%s: %d modules, skipped %+v, %v", tt.name, len(got.Modules), got.Skipped, err)
		}
	}
	if _, err := build(t, exports(numbered("./", 501)...)); err == nil || !strings.Contains(err.Error(), "exports 501 subpaths, over the limit of 500: list") {
		t.Errorf("no subpath is left: %v", err)
	}
}

// TestLoadedOnDemand holds that a module is skipped that loads many files on demand, as those of icons, if the others can be built without it.
func TestLoadedOnDemand(t *testing.T) {
	files := map[string]string{"package.json": `{"exports":{".":"./index.js","./dynamic":"./dynamic.js","./few":"./few.js"}}`, "index.js": `export let a = 1`, "few.js": `export let few = () => import("./0.js")`}
	for _, tt := range []struct {
		icons, modules int
	}{{MaxModulesFiles/2 - 10, 3}, {MaxModulesFiles/2 + 10, 2}} {
		var dynamic strings.Builder
		for i := range tt.icons {
			name := fmt.Sprintf("./%d.js", i)
			files[path.Join(name)] = fmt.Sprint("export default ", i)
			fmt.Fprintf(&dynamic, "export let i%d = () => import(%q)\n", i, name)
		}
		files["dynamic.js"] = dynamic.String()
		got, err := build(t, files)
		if err != nil || len(got.Modules) != tt.modules || len(got.Files) > MaxModulesFiles || len(got.Skipped) != 3-tt.modules ||
			tt.modules == 2 && got.Skipped[0] != (SkippedSubpath{"./dynamic", fmt.Sprintf("it loads %d files on demand, over the limit of 500 for packages whose modules would have over 2000 files", tt.icons)}) {
			t.Errorf("%d icons: %d modules, %d files, skipped %+v, %v", tt.icons, len(got.Modules), len(got.Files), got.Skipped, err)
		}
	}
}

// TestReadExports holds the patterns of cjs-module-lexer's documentation.
func TestReadExports(t *testing.T) {
	for _, tt := range []struct{ source, names, reexports string }{
		{`exports.a = 1; exports['b'] = 2; module.exports.c = 3; exports.d == 4; x.exports.e = 5`, "a b c", ""},
		{`(function () { exports.a = 'a' })(); /* exports.b = 1 */ "exports.c = 1"`, "a", ""},
		{`Object.defineProperty(exports, 'a', { enumerable: true, get: function () { return q.p; } }); Object.defineProperty(exports, 'b', { value: 1 }); Object.defineProperty(exports, 'c', { get: f })`, "a b", ""},
		{`Object.defineProperty(module.exports, 'd', { enumerable: !0, get() { return q } })`, "d", ""},
		{`module.exports = { a, b: b, 'c': c, ...d, e: require('e'), f: "not seen" }`, "a b c e f", ""},
		{`module.exports = { a: function () { return { x: 1, y } }, b: [1, 2], "c": ` + "`${ {z: 1} }`" + `, d() {}, e }`, "a b c", ""},
		{`module.exports = { a, ...require('./d') }`, "a", "./d"},
		{`module.exports = require('./a'); module.exports = require('./b')`, "", "./b"},
		{`exports = module.exports = require('./a')`, "", "./a"},
		{`__export(require("external")); tslib_1.__exportStar(require("./other"), exports)`, "", "external ./other"},
		{`var _x = require("./x"); Object.keys(_x).forEach(function (key) { exports[key] = _x[key] })`, "", "./x"},
		{`var _x = _interopRequireWildcard(require("./x")); Object.keys(_x).forEach(function (k) {})`, "", "./x"},
		{`0 && (module.exports = { a, b })`, "a b", ""},
		{`process.env.NODE_ENV !== "production" ? module.exports = require("./dev") : module.exports = require("./prod")`, "", "./prod"},
		{`!function (e, t) { module.exports = t() }(this, function () { return 1 })`, "", ""},
	} {
		got := readCommonJS([]byte(tt.source))
		if names, reexports := strings.Join(got.names, " "), strings.Join(got.from, " "); names != tt.names || reexports != tt.reexports {
			t.Errorf("%s\nnames %q, want %q; reexports %q, want %q", tt.source, names, tt.names, reexports, tt.reexports)
		}
	}
}

// TestFindNodeGlobals holds that a global of Node.js is found where a script of a module uses it without asking for it.
func TestFindNodeGlobals(t *testing.T) {
	for source, want := range map[string]string{
		`exports.a = Buffer.from(process.version)`:                                              "Buffer process",
		`exports.a = typeof Buffer === "undefined" ? 1 : Buffer.from("a")`:                      "",
		`function f(process) { return process.nextTick } var Buffer = f; exports.a = f(Buffer)`: "",
		`exports.a = process.env.NODE_DEBUG || a.process`:                                       "",
		`if (process.env.NODE_ENV !== "production") process.emitWarning("a"); exports.a = 1`:    "",
		`"process"; /* Buffer */ exports.__dirname = 1`:                                         "",
	} {
		if got := strings.Join(findNodeGlobals([]byte(source)), " "); got != want {
			t.Errorf("%s: %q, want %q", source, got, want)
		}
	}
	got, err := build(t, map[string]string{"package.json": `{"sideEffects":false}`, "index.js": `import "./unused.js"; export { a } from "./a.js"`, "unused.js": `process.exit()`, "a.js": `export let a = __dirname`})
	if err != nil || len(got.Globals) != 1 || !slices.Equal(got.Globals["a.js"], []string{"__dirname"}) {
		t.Errorf("%v, %v", got.Globals, err)
	}
}
