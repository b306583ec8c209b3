package browsertest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/html"
)

// A moduleRelease is one whose modules a page loads.
type moduleRelease struct {
	name, version string
	folder        string
	module        string // that a page would import
}

// keptGraphs are releases whose modules import each other in the ways that there are, by their files.
var keptGraphs = map[string]map[string]string{
	// A minified module that imports a sibling that is not, as three.js has it.
	"trio":  {"trio.module.min.js": `import{a}from"./trio.core.js";export{a};`, "trio.core.js": "export const a = 1;\n", "trio.core.min.js": "export const a=1;"},
	"plain": {"plain.mjs": "export const plain = true;\n"},
	"deep":  {"deep.mjs": "export * from './lib/one.mjs';\n", "lib/one.mjs": "export * from './two.mjs';\nimport './round.mjs';\n", "lib/two.mjs": "export const two = 2;\n", "lib/round.mjs": "import './one.mjs';\nexport const round = 3;\n"},
	// By the names of other packages, and a path in one.
	"outer": {"outer.mjs": "import { plain } from 'plain';\nimport { two } from 'deep/lib/two.mjs';\nexport const outer = plain && two;\n"},
	"lazy":  {"lazy.mjs": "export const load = () => import('./later.mjs');\n", "later.mjs": "export const later = 5;\n"},
}

// TestGraphs has Chromium load what the recipe of a module says, from another origin, and refuse it where one byte of one module
// anywhere in the graph is another. `make graphs` runs it over real packages, which LARDER_TEST_GRAPHS names.
func TestGraphs(t *testing.T) {
	t.Parallel()
	shared, _ := open(t)
	seed, _ := strconv.ParseUint(os.Getenv("LARDER_TEST_SEED"), 10, 64)
	random := rand.New(rand.NewPCG(seed, 1))
	var all, loaded []moduleRelease
	real := os.Getenv("LARDER_TEST_GRAPHS")
	if real == "" {
		all = keptReleases(t)
		loaded = all
	} else {
		all, loaded = installedReleases(t, real, random)
	}
	instance := serveReleases(t, shared.binary, all)
	for i, r := range loaded {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, uint64(i)+2)) // of this release, whichever others run beside it
			markup, modules, told := recipeOf(t, instance, r)
			b := newTabOn(t, instance)
			b.tolerate(".") // real modules say what they like
			if said := load(b, markup, modules, "", 0); unloaded.MatchString(said) {
				if real != "" && told != "" { // the page says why
					t.Skipf("%s; the page says: %s", said, told)
				}
				t.Fatalf("%d modules do not load: %s\n%s", len(modules), said, markup)
			}
			flipped := modules
			if real != "" {
				flipped = []string{modules[random.IntN(len(modules))]}
			}
			for _, module := range flipped {
				if said := load(b, markup, modules, module, random.Int()); !unloaded.MatchString(said) {
					t.Errorf("with another byte in %s all is loaded: %q", module, said)
				}
			}
		})
	}
}

// unloaded matches what browsers say of modules that they have not loaded. Others have run, and have said what they lack.
var unloaded = regexp.MustCompile(`(?i)fetch|resolve|specifier|syntax|does not provide`)

// load opens a page of a recipe and returns what it could not load. One byte of the module at the path flipped is another.
func load(b *tab, markup string, modules []string, flipped string, at int) string {
	b.Helper()
	origin, err := url.Parse(b.address)
	if err != nil {
		b.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(origin)
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != flipped {
			return nil
		}
		data, err := io.ReadAll(r.Body)
		if err != nil || len(data) == 0 {
			return fmt.Errorf("%s: %d bytes, %w", flipped, len(data), err)
		}
		data[at%len(data)] ^= 1
		r.Body = io.NopCloser(bytes.NewReader(data))
		return nil
	}
	assets := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Accept-Encoding")
		proxy.ServeHTTP(w, r)
	}))
	defer assets.Close()
	addresses := make([]string, len(modules))
	for i, path := range modules {
		addresses[i] = assets.URL + path
	}
	list, err := json.Marshal(addresses)
	if err != nil {
		b.Fatal(err)
	}
	site := elsewhere(b.T, strings.ReplaceAll(markup, b.address, assets.URL)+`<script type="module">
		Promise.all(`+string(list)+`.map(a => import(a))).then(() => { window.outcome = "" }, e => { window.outcome = String(e) })</script>`)
	b.allow(assets.URL)
	b.allow(site.URL)
	b.visit(site.URL + "/")
	b.until(`"outcome" in window`)
	return eval[string](b, "window.outcome")
}

// recipeOf returns the tags that the site has for a module, the paths of all modules in their import map, and what the page
// says that they lack.
func recipeOf(t *testing.T, i *instance, r moduleRelease) (markup string, modules []string, told string) {
	t.Helper()
	page, err := html.Parse(bytes.NewReader(getRendered(t, i.address+"/recipe/"+url.PathEscape(nameHere(r.name))+"/"+r.version+"?file="+url.QueryEscape(r.module))))
	if err != nil {
		t.Fatal(err)
	}
	for n := range page.Descendants() {
		for _, a := range n.Attr {
			into := &markup
			switch a.Key + "=" + a.Val {
			case "class=notice warm":
				into = &told
			case "id=tags":
			default:
				continue
			}
			for text := range n.Descendants() {
				if text.Type == html.TextNode {
					*into += text.Data
				}
			}
		}
	}
	_, after, _ := strings.Cut(markup, `<script type="importmap">`)
	text, _, _ := strings.Cut(after, "</script>")
	var m struct{ Integrity map[string]string }
	if err := json.Unmarshal([]byte(text), &m); err != nil || len(m.Integrity) == 0 {
		t.Fatalf("there is no import map: %v\n%s", err, markup)
	}
	for address := range m.Integrity {
		modules = append(modules, strings.TrimPrefix(address, i.address))
	}
	slices.Sort(modules)
	return markup, modules, told
}

// serveReleases publishes releases and serves them.
func serveReleases(t *testing.T, binary string, all []moduleRelease) *instance {
	t.Helper()
	folder := t.TempDir()
	catalogue, data := filepath.Join(folder, "catalogue"), filepath.Join(folder, "data")
	if err := os.Mkdir(catalogue, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		text := fmt.Sprintf(`{"name": %q, "description": "Modules.", "keywords": ["module"], "filename": %q, "repository": {"type": "git", "url": "https://git.example/m.git"},
			"autoupdate": {"source": "npm", "target": %q, "fileMap": [{"basePath": "", "files": ["**/*.?(m)js"]}]}}`, nameHere(r.name), r.module, r.name)
		if err := os.WriteFile(filepath.Join(catalogue, nameHere(r.name)+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range all {
		// One that a catalogue cannot have, such as one without scripts, is left out: its importers say so.
		if out, err := larder(binary, data, "import", nameHere(r.name), r.version, r.folder, "--catalogue", catalogue).CombinedOutput(); err != nil {
			t.Logf("larder import %s %s: %v\n%s", r.name, r.version, err, out)
		}
	}
	i, err := serve(binary, data, "--catalogue", catalogue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.stop)
	return i
}

// nameHere is what a package is called here.
func nameHere(npm string) string { return strings.ReplaceAll(strings.TrimPrefix(npm, "@"), "/", "-") }

func keptReleases(t *testing.T) (all []moduleRelease) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(keptGraphs)) {
		r := moduleRelease{name: name, version: "1.0.0", folder: t.TempDir(), module: name + ".mjs"}
		if name == "trio" {
			r.module = "trio.module.min.js"
		}
		for file, text := range keptGraphs[name] {
			writeModule(t, filepath.Join(r.folder, filepath.FromSlash(file)), []byte(text))
		}
		all = append(all, r)
	}
	return all
}

func writeModule(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// exported returns the file that a browser would import by a package's name.
func exported(exports json.RawMessage) string {
	var file string
	var conditions map[string]json.RawMessage
	if json.Unmarshal(exports, &file) == nil || json.Unmarshal(exports, &conditions) != nil {
		return file
	}
	for _, condition := range []string{".", "browser", "import", "default"} {
		if file := exported(conditions[condition]); file != "" {
			return file
		}
	}
	return ""
}

// mostLoaded is how many real packages are loaded.
const mostLoaded = 50

// script matches the files of a package that are published.
var script = regexp.MustCompile(`\.m?js$`)

// installedReleases reads what npm has installed in a folder, with all dependencies: all that can be published, and those of
// which a page loads the module, some of those in testdata/graphs.txt.
func installedReleases(t *testing.T, folder string, random *rand.Rand) (all, loaded []moduleRelease) {
	t.Helper()
	listed, err := os.ReadFile("testdata/graphs.txt")
	if err != nil {
		t.Fatal(err)
	}
	wanted := strings.Fields(string(listed))
	random.Shuffle(len(wanted), func(i, j int) { wanted[i], wanted[j] = wanted[j], wanted[i] })
	wanted = wanted[:min(len(wanted), mostLoaded)]
	for _, p := range findInstalled(t, folder) {
		r := moduleRelease{name: p.Name, version: p.Version, folder: t.TempDir(), module: strings.TrimPrefix(p.Module, "./")}
		if r.module == "" {
			r.module = strings.TrimPrefix(cmp.Or(exported(p.Exports), p.Main), "./")
		}
		source := os.DirFS(p.folder)
		err := fs.WalkDir(source, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() && path != "." && d.Name() == "node_modules" {
				return fs.SkipDir
			}
			if script.MatchString(path) && !d.IsDir() {
				data, err := fs.ReadFile(source, path)
				if err != nil {
					return err
				}
				writeModule(t, filepath.Join(r.folder, path), data)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
		if slices.Contains(wanted, r.name) {
			loaded = append(loaded, r)
		}
	}
	return all, loaded
}

// An installedPackage is one that npm has installed.
type installedPackage struct {
	Name, Version, Module, Main string
	Exports                     json.RawMessage
	folder                      string
}

// findInstalled returns the packages that npm has installed in a node_modules folder and those below it, outer ones first.
func findInstalled(t *testing.T, nodeModules string) (all []installedPackage) {
	t.Helper()
	for _, pattern := range []string{"*", "@*/*"} {
		found, err := filepath.Glob(filepath.Join(nodeModules, pattern, "package.json"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p := installedPackage{folder: filepath.Dir(file)}
			if err := json.Unmarshal(data, &p); p.Name == "" { // some have "main": false
				t.Fatal(file, err)
			}
			all = append(all, p)
		}
	}
	for _, p := range slices.Clone(all) {
		all = append(all, findInstalled(t, filepath.Join(p.folder, "node_modules"))...)
	}
	return all
}
