package browsertest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
)

// TestModules has Chromium import modules that were built from packages, from another origin, with their import maps. `make modules` does so
// with the npm packages that LARDER_TEST_MODULES names, from the registry that npm is configured with, and prints a table.
func TestModules(t *testing.T) {
	t.Parallel()
	shared, _ := open(t)
	var names []string
	registry := "" // npm's own configuration
	if file := os.Getenv("LARDER_TEST_MODULES"); file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names = strings.Fields(string(data))
	} else {
		names = []string{"ui", "ui-dom", "shelf-styles"}
		registry = publishPackages(t)
	}
	instance := serveModules(t, shared.binary, names, registry)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			m, refused := fetchModuleMap(t, instance, nameHere(name))
			if refused != "" {
				t.Skip("refused: " + refused)
			}
			markup, err := json.Marshal(m.ImportMap)
			if err != nil {
				t.Fatal(err)
			}
			quoted, _ := json.Marshal(name)
			site := elsewhere(t, `<script type="importmap">`+string(markup)+`</script><script type="module">
				import(`+string(quoted)+`).then(m => { window.names = Object.keys(m); window.module = m }, e => { window.names = ["failed: " + e] })</script>`)
			b := newTabOn(t, instance)
			b.allow(site.URL)
			b.visit(site.URL + "/")
			b.until(`"names" in window`)
			got := eval[[]string](b, "window.names")
			t.Logf("| %s | %d files | %d exports | %s |", name, len(m.Integrity), len(got), strings.Join(m.Problems, " "))
			if len(got) == 1 && strings.HasPrefix(got[0], "failed: ") {
				t.Errorf("%s; %s", got[0], strings.Join(m.Problems, " "))
			}
			if name == "ui-dom" && (!slices.Contains(got, "createRoot") || !eval[bool](b, `window.module.createRoot() === "state of ui"`)) {
				t.Errorf("%q", got)
			}
		})
	}
}

// publishPackages starts a registry with packages like React's: CommonJS that requires another package. It returns its address.
func publishPackages(t *testing.T) string {
	t.Helper()
	r := npmtest.New(t)
	released := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	r.Add("ui", "19.0.0", released, map[string]string{
		"package.json": `{"name":"ui","version":"19.0.0","main":"index.js"}`,
		"index.js":     `if (process.env.NODE_ENV === "production") { module.exports = require("./ui.production.js") } else { module.exports = require("./ui.development.js") }`,

		"ui.production.js": `exports.useState = function () { return "state of ui" }`, "ui.development.js": `throw "development"`,
	})
	r.Add("ui-dom", "19.0.0", released, map[string]string{
		"package.json": `{"name":"ui-dom","version":"19.0.0","peerDependencies":{"ui":"^19.0.0"}}`, "index.js": `var ui = require("ui"); exports.createRoot = function () { return ui.useState() }`,
	})
	r.Add("shelf-styles", "1.0.0", released, map[string]string{"package.json": `{"name":"shelf-styles","version":"1.0.0","type":"module"}`, "index.js": `import "./a.css"; export default {...{}, a: 1}`, "a.css": "a { color: red }"})
	return r.URL
}

// serveModules starts an instance with the newest release of each package and its modules.
func serveModules(t *testing.T, binary string, names []string, registry string) *instance {
	t.Helper()
	folder := t.TempDir()
	catalogue, data := filepath.Join(folder, "catalogue"), filepath.Join(folder, "data")
	if err := os.Mkdir(catalogue, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text := fmt.Sprintf(`{"name": %q, "description": "Modules.", "keywords": ["module"], "filename": "esm/index.mjs", "repository": {"type": "git", "url": "https://git.example/m.git"},
			"autoupdate": {"source": "npm", "target": %q, "fileMap": [{"basePath": "", "files": ["package.json"]}], "ignoreVersions": ["*-*"], "modules": ["."]}}`, nameHere(name), name)
		if err := os.WriteFile(filepath.Join(catalogue, nameHere(name)+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fill := larder(binary, data, "bot", "--once", "--releases", "1", "--catalogue", catalogue)
	fill.Env = slices.DeleteFunc(fill.Env, func(v string) bool { return strings.HasPrefix(v, "npm_config_registry=http://127.0.0.1:1") })
	if registry != "" {
		fill.Env = append(fill.Env, "npm_config_registry="+registry)
	}
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
func fetchModuleMap(t *testing.T, i *instance, name string) (m library.ModuleMap, refused string) {
	t.Helper()
	var l struct{ Version string }
	if status, text := getJSON(t, i.address+"/libraries/"+name+"?fields=version", &l); status != http.StatusOK {
		return m, text
	}
	for range 100 { // until ranges are known
		status, text := getJSON(t, i.address+"/packages/"+name+"/modules/"+url.PathEscape(l.Version)+"?subpath=.", &m)
		switch status {
		case http.StatusOK:
			return m, ""
		case http.StatusServiceUnavailable:
			time.Sleep(100 * time.Millisecond)
		default:
			return m, text
		}
	}
	t.Fatalf("the import map of %s is not complete", name)
	return m, ""
}

// getJSON requests a document, and decodes it if the status is 200. Otherwise it returns the body as text.
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
		return r.StatusCode, string(raw)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatalf("%s: %v", address, err)
	}
	return r.StatusCode, ""
}
