package browsertest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/packages"
)

// modulesTable is the file for whose table `make modules` prints the rows, and rewrites them if LARDER_TEST_REWRITE is set.
const modulesTable = "../../../docs/modules-packages.md"

// modulePages are scripts of pages that use packages, by package. They pass true to out.
var modulePages = map[string]string{
	"react":     `import { createElement, version } from "react"; out(createElement("p").type === "p" && version.startsWith("19."))`,
	"preact":    `import { h, render } from "preact"; render(h("p", null, "jam"), box); out(box.textContent === "jam")`,
	"vue":       `import { createApp, h, nextTick, ref } from "vue"; const n = ref(1); createApp({ render: () => h("p", n.value) }).mount(box); n.value = 2; await nextTick(); out(box.textContent === "2")`,
	"svelte":    `import { mount } from "svelte"; import { append, from_html } from "svelte/internal/client"; const p = from_html("<p>jam</p>"); mount(anchor => append(anchor, p()), { target: box }); out(box.textContent === "jam")`,
	"three":     `import { Vector3 } from "three"; out(new Vector3(1, 2, 2).length() === 3)`,
	"d3":        `import { scaleLinear, select } from "d3"; select(box).append("p").text(scaleLinear([0, 1], [0, 10])(0.5)); out(box.textContent === "5")`,
	"lodash-es": `import { chunk } from "lodash-es"; out(chunk([1, 2, 3], 2).length === 2)`,
	"zod":       `import { z } from "zod"; out(z.string().parse("jam") === "jam" && !z.string().safeParse(1).success)`,
	"date-fns":  `import { format } from "date-fns"; out(format(new Date(2026, 0, 2), "yyyy-MM-dd") === "2026-01-02")`,
	"rxjs":      `import { map, of } from "rxjs"; const seen = []; of(1, 2).pipe(map(n => n * 2)).subscribe(n => seen.push(n)); out(String(seen) === "2,4")`,
	"htmx.org":  `import htmx from "htmx.org"; out(typeof htmx.process === "function" && htmx.version !== "")`,
}

// moduleSubpaths are the modules of packages of whose subpaths other packages need some that no "exports" lists.
var moduleSubpaths = map[string]string{"has-symbols": `[".", "./shams"]`}

// TestModules has Chromium import modules that were built from packages, from another origin, with their import maps. `make modules` does so
// with the npm packages in testdata/modules.txt, which LARDER_TEST_MODULES names a node_modules folder of, and compares their exports with Node's.
func TestModules(t *testing.T) {
	t.Parallel()
	shared, _ := open(t)
	registry, names := npmtest.New(t), []string{"react", "react-dom", "shelf-styles"}
	published := names
	installed := os.Getenv("LARDER_TEST_MODULES")
	if installed == "" {
		publishPackages(registry)
	} else {
		listed, err := os.ReadFile("testdata/modules.txt")
		if err != nil {
			t.Fatal(err)
		}
		names, published = strings.Fields(string(listed)), publishInstalled(t, registry, installed)
	}
	start := time.Now()
	instance := serveModules(t, shared.binary, published, registry.URL)
	t.Logf("%d packages were published in %s", len(published), time.Since(start).Round(time.Second))
	rows := make([]string, len(names))
	t.Run("packages", func(t *testing.T) {
		for i, name := range names {
			t.Run(name, func(t *testing.T) { rows[i] = importInBrowser(t, instance, name, installed) })
		}
		t.Run("React on a page", func(t *testing.T) { showReact(t, instance) })
	})
	if installed != "" {
		writeModulesTable(t, rows)
	}
}

// importInBrowser has Chromium import the modules of a package by its name, and run its page if it has one. It returns the package's row of the
// table. A package that does not load is an error, unless the table in the documentation says the same of it.
func importInBrowser(t *testing.T, i *instance, name, installed string) (row string) {
	m, version, refused := fetchModuleMap(t, i, nameHere(name))
	fail := func(outcome string) string {
		row := fmt.Sprintf("| %s | %s | %s | | |", name, version, outcome)
		if table, err := os.ReadFile(modulesTable); err != nil || !strings.Contains(string(table), "\n"+row+"\n") {
			t.Errorf("the documented table does not have the row %s\n%v, %q", row, err, m.Problems)
		}
		return row
	}
	if refused != "" {
		return fail("no modules: " + refused)
	}
	quoted, _ := json.Marshal(name)
	b := openModules(t, i, m, `import(`+string(quoted)+`).then(m => { window.names = Object.keys(m); window.module = m }, e => { window.names = ["failed: " + e] })`)
	b.until(`"names" in window`)
	names := eval[[]string](b, "window.names")
	if len(names) == 1 && strings.HasPrefix(names[0], "failed: ") {
		return fail(names[0])
	}
	if name == "react-dom" && !slices.Contains(names, "createPortal") {
		t.Errorf("%q", names)
	}
	loads := "loads"
	if script := modulePages[name]; script != "" && installed != "" {
		b := openModules(t, i, m, `const box = document.body.appendChild(document.createElement("div")), out = v => { window.outcome = v };`+"\n"+script)
		b.until(`"outcome" in window`)
		if !eval[bool](b, "window.outcome === true") {
			t.Errorf("the page fails: %s", script)
		}
		loads = "loads, page works"
	}
	return fmt.Sprintf("| %s | %s | %s | %d | %s |", name, version, loads, len(names), compareWithNode(t, name, names, installed))
}

// openModules opens a page of another origin with an import map and a module script.
func openModules(t *testing.T, i *instance, m library.Graph, script string) *tab {
	t.Helper()
	markup, err := json.Marshal(m.ImportMap)
	if err != nil {
		t.Fatal(err)
	}
	site := elsewhere(t, `<body><script type="importmap">`+string(markup)+`</script><script type="module">`+script+`</script>`)
	b := newTabOn(t, i)
	b.allow(site.URL)
	b.visit(site.URL + "/")
	return b
}

// nodeNames is a script for Node.js that writes the names which the package exports into a file. Where Node.js has a module of the same name,
// it imports that of the npm package.
const nodeNames = `import { createRequire, isBuiltin } from "node:module"; import { writeFileSync } from "node:fs"; import { pathToFileURL } from "node:url";
const [, name, file] = process.argv;
const from = isBuiltin(name) ? pathToFileURL(createRequire(process.cwd() + "/").resolve(name + "/")) : name;
writeFileSync(file, JSON.stringify(Object.keys(await import(from)))); process.exit()`

// compareWithNode says how the exported names of a package differ from those that Node.js has in production, as the modules are built.
func compareWithNode(t *testing.T, name string, names []string, installed string) string {
	if installed == "" {
		return ""
	}
	file := filepath.Join(t.TempDir(), "names.json")
	node := exec.Command("node", "--input-type=module", "-e", nodeNames, name, file)
	node.Dir, node.Env = filepath.Dir(installed), append(os.Environ(), "NODE_ENV=production")
	if err := node.Run(); err != nil {
		return "Node.js cannot import it"
	}
	var theirs []string
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &theirs)
	}
	if err != nil {
		t.Fatal(err)
	}
	missing := func(of, from []string) (n int) {
		for _, name := range of {
			if name != "module.exports" && name != "__esModule" && !slices.Contains(from, name) {
				n++
			}
		}
		return n
	}
	var differences []string
	if n := missing(theirs, names); n > 0 {
		differences = append(differences, fmt.Sprintf("%d fewer", n))
	}
	if n := missing(names, theirs); n > 0 {
		differences = append(differences, fmt.Sprintf("%d more", n))
	}
	return cmp.Or(strings.Join(differences, ", "), "equal")
}

// showReact opens the page in docs/modules.md that uses React, with the import map that the command above it prints.
func showReact(t *testing.T, i *instance) {
	text, err := os.ReadFile("../../../docs/modules.md")
	if err != nil {
		t.Fatal(err)
	}
	command := regexp.MustCompile("\nlarder (tag --modules .*)\n").FindSubmatch(text)
	page := regexp.MustCompile("(?s)```html\n(.*?)```").FindSubmatch(text)
	if command == nil || page == nil {
		t.Fatal("docs/modules.md has no command or no page")
	}
	tag := exec.Command(i.binary, append(strings.Fields(string(command[1])), "--data", i.data, "--asset-base", i.address)...)
	var problems bytes.Buffer
	tag.Stderr = &problems
	tag.Env = larder(i.binary, i.data, "tag").Env
	importMap, err := tag.Output()
	if err != nil {
		t.Fatalf("%q: %v\n%s", tag.Args, err, &problems)
	}
	markup := regexp.MustCompile(`(?s)<script type="importmap">.*?</script>`).ReplaceAllLiteral(page[1], importMap)
	site := elsewhere(t, string(markup))
	b := newTabOn(t, i)
	b.allow(site.URL)
	b.visit(site.URL + "/")
	b.find("button", "Clicked 0 times")
}

// writeModulesTable logs the rows of the table, or replaces them in the documentation.
func writeModulesTable(t *testing.T, rows []string) {
	t.Logf("\n%s", strings.Join(rows, "\n"))
	if os.Getenv("LARDER_TEST_REWRITE") == "" {
		return
	}
	text, err := os.ReadFile(modulesTable)
	if err != nil {
		t.Fatal(err)
	}
	before, after, _ := strings.Cut(string(text), "| --- |")
	header, after, _ := strings.Cut(after, "\n")
	_, after, _ = strings.Cut(after, "\n\n")
	if err := os.WriteFile(modulesTable, []byte(before+"| --- |"+header+"\n"+strings.Join(rows, "\n")+"\n\n"+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// publishInstalled publishes what npm has installed in a folder, and returns the names of the packages.
func publishInstalled(t *testing.T, registry *npmtest.Registry, folder string) (names []string) {
	t.Helper()
	for _, p := range findInstalled(t, folder) {
		files := map[string]string{}
		source := os.DirFS(p.folder)
		err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "node_modules":
				return fs.SkipDir
			case !d.Type().IsRegular():
				return nil
			}
			data, err := fs.ReadFile(source, path)
			files[path] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		registry.Add(p.Name, p.Version, time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), files)
		if !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names
}

// publishPackages publishes packages like React's: CommonJS that requires another package.
func publishPackages(r *npmtest.Registry) {
	released := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	r.Add("react", "19.0.0", released, map[string]string{
		"package.json": `{"name":"react","version":"19.0.0","main":"index.js"}`, "LICENSE": "MIT",
		"index.js": `if (process.env.NODE_ENV === "production") { module.exports = require("./react.production.js") } else { module.exports = require("./react.development.js") }`,

		"react.production.js":  `exports.createElement = (type, props, text) => ({ type, text }); exports.useState = value => [value, () => {}]`,
		"react.development.js": `throw "development"`,
	})
	r.Add("react-dom", "19.0.0", released, map[string]string{
		"LICENSE": "MIT", "package.json": `{"name":"react-dom","version":"19.0.0","peerDependencies":{"react":"^19.0.0"},"exports":{".":"./index.js","./client":"./client.js"}}`,
		"index.js": `var react = require("react"); exports.createPortal = react.createElement`,
		"client.js": `var react = require("react"); exports.createRoot = root => ({ render(e) {
			while (typeof e.type === "function") e = e.type();
			root.appendChild(document.createElement(e.type)).textContent = e.text;
		} })`,
	})
	r.Add("shelf-styles", "1.0.0", released, map[string]string{"package.json": `{"name":"shelf-styles","version":"1.0.0","type":"module"}`, "index.js": `import "./a.css"; export default {...{}, a: 1}`, "a.css": "a { color: red }"})
}

// serveModules starts an instance with the releases of packages and their modules. The package JSONs of those that the starter catalogue has with
// modules, such as React's, are from there.
func serveModules(t *testing.T, binary string, names []string, registry string) *instance {
	t.Helper()
	folder := t.TempDir()
	catalogue, data := filepath.Join(folder, "catalogue"), filepath.Join(folder, "data")
	if err := os.Mkdir(catalogue, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		modules := cmp.Or(moduleSubpaths[name], "true")
		text := fmt.Sprintf(`{"name": %q, "description": "Modules.", "keywords": ["module"], "filename": "esm/index.mjs", "repository": {"type": "git", "url": "https://git.example/m.git"},
			"autoupdate": {"source": "npm", "target": %q, "fileMap": [{"basePath": "", "files": ["package.json"]}], "modules": %s}}`, nameHere(name), name, modules)
		if p, ok := packages.Starter().Get(name); ok && p.Autoupdate.Modules != nil {
			data, err := os.ReadFile(filepath.Join("../../../packages/starter", packages.Path(name)))
			if err != nil {
				t.Fatal(err)
			}
			text = string(data)
		}
		if err := os.WriteFile(filepath.Join(catalogue, nameHere(name)+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fill := larder(binary, data, "bot", "--once", "--releases", "10", "--catalogue", catalogue)
	fill.Env = slices.DeleteFunc(fill.Env, func(v string) bool { return strings.HasPrefix(v, "npm_config_registry=http://127.0.0.1:1") })
	fill.Env = append(fill.Env, "npm_config_registry="+registry)
	if out, err := fill.CombinedOutput(); err != nil {
		t.Fatalf("larder bot: %v\n%s", err, out)
	}
	i, err := serve(binary, data, "--catalogue", catalogue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.stop)
	return i
}

// fetchModuleMap returns the import map of the newest release of a library, or why it has no modules.
func fetchModuleMap(t *testing.T, i *instance, name string) (m library.Graph, version, refused string) {
	t.Helper()
	var l struct{ Version string }
	if status, text := getJSON(t, i.address+"/libraries/"+name+"?fields=version", &l); status != http.StatusOK {
		return m, "", text
	}
	for t.Context().Err() == nil { // until ranges are known
		status, text := getJSON(t, i.address+"/packages/"+name+"/modules/"+url.PathEscape(l.Version), &m)
		switch status {
		case http.StatusOK:
			return m, l.Version, ""
		case http.StatusServiceUnavailable:
			time.Sleep(100 * time.Millisecond)
		default:
			return m, l.Version, text
		}
	}
	return m, l.Version, "the test has ended"
}

// getJSON requests a document, and decodes it if the status is 200. Otherwise it returns the error's message.
func getJSON(t *testing.T, address string, into any) (status int, text string) {
	t.Helper()
	r, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var raw json.RawMessage
	if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	if r.StatusCode != http.StatusOK {
		var failure struct{ Message string }
		_ = json.Unmarshal(raw, &failure)
		return r.StatusCode, cmp.Or(failure.Message, string(raw))
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return r.StatusCode, ""
}
