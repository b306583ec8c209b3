// Package esm builds ES modules for browsers from the files of an npm release, with esbuild.
//
// It reads files only from the release, which it gets in memory, and runs none of their code. Other packages stay imports by their names.
// The output depends on nothing but the request and [Options].
//
// Hostile files can make it take much more time and memory than their size suggests, so only worker processes run it. It must not know stores or
// HTTP.
package esm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/evanw/esbuild/pkg/cli"
)

// Options are the options of esbuild's command line with which modules are built. The last word is the version of what Larder adds: how
// imports are resolved, and the text of entry points.
const Options = options + " larder-modules-1"

const options = `--bundle --format=esm --splitting --minify --target=esnext --platform=browser --charset=utf8 --legal-comments=eof --tree-shaking=true ` +
	`--conditions=import,production --entry-names=[dir]/[name] --chunk-names=chunks/[hash] --out-extension:.js=.mjs`

// defines replaces what only Node.js has.
var defines = map[string]string{"process.env.NODE_ENV": `"production"`, "global": "globalThis"}

// The limits of one build.
const (
	MaxSubpaths = 500
	MaxInput    = 32 << 20 // bytes of all files in a request
	maxLoaded   = 4000     // files that esbuild parses
	maxSkipped  = 20       // rounds in which subpaths are skipped
	maxReason   = 400      // bytes of the reason why a subpath is skipped
)

// Patterns stands among the skipped subpaths for those that patterns in exports match.
const Patterns = "*"

// Folder is where the modules of a release are, and Extension ends their names.
const (
	Folder    = "esm"
	Extension = ".mjs"
)

// A Request asks for the modules of a release.
type Request struct {
	Package  string            `json:"package"`            // npm's name
	Subpaths []string          `json:"subpaths,omitempty"` // such as "." and "./client"; all if empty
	Files    map[string][]byte `json:"files"`              // those of the release for which [Reads] is true
}

// A Result is the modules of a release. It has no modules only if Skipped says why.
type Result struct {
	Modules []Module  `json:"modules"`
	Files   []File    `json:"files"`
	Inputs  []string  `json:"inputs"` // the files of the release that were read, sorted
	Skipped []Skipped `json:"skipped,omitempty"`
}

// A Module is the module for a subpath.
type Module struct {
	Subpath string `json:"subpath"`
	Path    string `json:"path"` // of its file
}

// A File is one file of the modules: a module, what several of them share, a style sheet, or a source map.
type File struct {
	Path    string   `json:"path"`
	Data    []byte   `json:"data"`
	Imports []string `json:"imports,omitempty"` // the specifiers that it imports, sorted
	Dynamic []string `json:"dynamic,omitempty"` // those that it imports only when its code calls import, sorted
}

// Skipped is a subpath that has no module.
type Skipped struct {
	Subpath string `json:"subpath"`
	Reason  string `json:"reason"`
}

// loaders are the files that modules may import, by their extensions.
var loaders = map[string]api.Loader{
	".js": api.LoaderJS, ".mjs": api.LoaderJS, ".cjs": api.LoaderJS, ".json": api.LoaderJSON, ".css": api.LoaderCSS,
	".svg": api.LoaderDataURL, ".png": api.LoaderDataURL, ".gif": api.LoaderDataURL, ".jpg": api.LoaderDataURL, ".woff": api.LoaderDataURL, ".woff2": api.LoaderDataURL,
}

// Reads reports whether a build may need the file of a release with that path.
func Reads(file string) bool { return loaders[path.Ext(file)] != 0 }

// PathOf returns the path of the module for a subpath.
func PathOf(subpath string) string {
	if subpath == "." {
		subpath = "index"
	}
	return path.Join(Folder, subpath) + Extension
}

// Build builds modules. The error says why there are none at all.
func Build(q Request) (Result, error) {
	r, err := newRelease(q.Package, q.Files)
	if err != nil {
		return Result{}, err
	}
	b := &builder{release: r}
	subpaths := q.Subpaths
	if len(subpaths) == 0 {
		if subpaths = r.subpaths(true); len(subpaths) > MaxSubpaths {
			b.skip(Patterns, fmt.Sprintf("%d subpaths with those that patterns in exports match, over the limit of %d: list those that you need in the package JSON", len(subpaths), MaxSubpaths))
			subpaths = r.subpaths(false)
		}
	}
	if len(subpaths) > MaxSubpaths {
		return Result{}, fmt.Errorf("the package exports %d subpaths, over the limit of %d: list those that you need in the package JSON", len(subpaths), MaxSubpaths)
	}
	for _, subpath := range subpaths {
		b.addEntry(subpath)
	}
	// The first build finds out what the entry points export, and which of them cannot be built.
	first, err := b.buildEntries(api.BuildOptions{MinifyWhitespace: true})
	if err != nil {
		return Result{}, err
	}
	if len(b.entries) == 0 {
		return b.result(first)
	}
	if err := b.describeEntries(first); err != nil {
		return Result{}, err
	}
	out, err := b.buildEntries(api.BuildOptions{MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Sourcemap: api.SourceMapLinked})
	if err != nil {
		return Result{}, err
	}
	return b.result(out)
}

// A builder builds the modules of one release.
type builder struct {
	release *release
	entries []*entry
	skipped []Skipped

	mu       sync.Mutex
	loaded   map[string]bool // files of the release
	imports  map[string][]string
	builtins map[string]string // by importing file and specifier
}

// An entry is an entry point.
type entry struct {
	subpath string
	file    string // of the release
	text    string // of the module that esbuild gets as the entry point
}

// The namespaces of esbuild's plugins.
const (
	fromRelease = "release" // files of the release
	fromEntry   = "entry"   // the text of an entry, by its subpath
	fromRequire = "require" // what require returns for another package
	fromImport  = "import"  // the exports of another package
	fromNowhere = "empty"
)

// addEntry adds the entry point for a subpath, or skips it.
func (b *builder) addEntry(subpath string) {
	file, err := b.release.resolveSubpath(subpath, importConditions)
	at := b.release.replaceFile(file)
	switch {
	case strings.Contains(subpath, "*") || !fs.ValidPath(PathOf(subpath)): // esbuild would look for files that a pattern matches
		b.skip(subpath, "it does not name a file")
	case err != nil:
		b.skip(subpath, err.Error())
	case at.file == "":
		b.skip(subpath, "the package has nothing for browsers there")
	case !isScript(at.file):
		b.skip(subpath, at.file+" is not a script")
	case slices.ContainsFunc(b.entries, func(e *entry) bool { return PathOf(e.subpath) == PathOf(subpath) }):
		b.skip(subpath, "another subpath has the same module")
	default:
		b.entries = append(b.entries, &entry{subpath: subpath, file: at.file, text: b.exportAll(at.file) + b.exportDefault(at.file)})
	}
}

// exportAll returns the statements of an entry point that export what a file exports by name. The exports of other packages are named here
// again, because esbuild keeps them as such only in the entry point itself.
func (b *builder) exportAll(file string) string {
	text := "export * from " + quote(file) + ";\n"
	seen, others := map[string]bool{}, map[string]bool{}
	for queue := []string{file}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		for _, specifier := range readStars(b.release.files[queue[0]]).Stars {
			if to := b.release.resolve(queue[0], specifier, importConditions); to.file != "" {
				queue = append(queue, to.file)
			} else if to.external != "" && !others[to.external] {
				others[to.external] = true
				text += "export * from " + quote(to.external) + ";\n"
			}
		}
	}
	return text
}

// exportDefault returns the statement of an entry point that exports the default of a file, "" if it has none.
func (b *builder) exportDefault(file string) string {
	if !readStars(b.release.files[file]).HasDefault {
		return ""
	}
	return "export { default } from " + quote(file) + ";\n"
}

// skip records that a subpath has no module.
func (b *builder) skip(subpath, reason string) {
	b.skipped = append(b.skipped, Skipped{subpath, reason[:min(len(reason), maxReason)]})
}

// buildEntries builds the entry points. It skips those that cannot be built.
func (b *builder) buildEntries(more api.BuildOptions) (api.BuildResult, error) {
	for range maxSkipped {
		if len(b.entries) == 0 {
			return api.BuildResult{}, nil
		}
		o, err := cli.ParseBuildOptions(strings.Fields(options))
		if err != nil {
			return api.BuildResult{}, err
		}
		o.Define, o.Metafile, o.LogLevel, o.LogOverride, o.AbsWorkingDir, o.Outdir = defines, true, api.LogLevelSilent, Silent, "/", "/"+Folder
		o.MinifyWhitespace, o.MinifyIdentifiers, o.MinifySyntax, o.Sourcemap = more.MinifyWhitespace, more.MinifyIdentifiers, more.MinifySyntax, more.Sourcemap
		o.Plugins = []api.Plugin{{Name: "release", Setup: b.setUp}}
		for _, e := range b.entries {
			name := strings.TrimPrefix(strings.TrimSuffix(PathOf(e.subpath), Extension), Folder+"/")
			o.EntryPointsAdvanced = append(o.EntryPointsAdvanced, api.EntryPoint{InputPath: e.subpath, OutputPath: name})
		}
		b.loaded, b.imports, b.builtins = map[string]bool{}, map[string][]string{}, map[string]string{}
		out := api.Build(o)
		if len(out.Errors) == 0 {
			return out, nil
		}
		if err := b.skipFailed(out.Errors); err != nil {
			return api.BuildResult{}, err
		}
	}
	return api.BuildResult{}, errors.New("too many of its files cannot be built")
}

// skipFailed skips the entry points that lead to files with errors. It changes those that export a default of a module that has none.
func (b *builder) skipFailed(all []api.Message) error {
	failed := map[string]string{} // reasons by file
	changed := false
	for _, m := range all {
		if m.Location == nil {
			return fmt.Errorf("%.300s", m.Text)
		}
		file := strings.TrimPrefix(m.Location.File, fromRelease+":")
		if e := b.entryOf(strings.TrimPrefix(file, fromEntry+":")); e != nil && strings.Contains(e.text, "export { default } from") {
			e.text = b.exportAll(e.file)
			changed = true
			continue
		}
		failed[file] = b.describe(file, m)
	}
	if changed {
		return nil // what else failed fails again
	}
	before := len(b.entries)
	b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
		reached := b.reach(e.file)
		for _, file := range slices.Sorted(maps.Keys(failed)) {
			if reached[file] || file == fromEntry+":"+e.subpath {
				b.skip(e.subpath, failed[file])
				return true
			}
		}
		return false
	})
	if len(b.entries) == before {
		return errors.New(slices.Min(slices.Collect(maps.Values(failed))))
	}
	return nil
}

// describe returns why a file cannot be built.
func (b *builder) describe(file string, m api.Message) string {
	specifier, ok := strings.CutPrefix(m.Text, "Could not resolve ")
	specifier = strings.Trim(specifier, `"`)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch module := b.builtins[file+"\x00"+specifier]; {
	case ok && module != "":
		return fmt.Sprintf("%s imports %q of Node.js, which browsers lack, and the package's browser field has nothing in its place", file, module)
	case ok:
		return fmt.Sprintf("%s imports %q, which is not in the release", file, specifier)
	}
	return fmt.Sprintf("%s: line %d: %.200s", file, m.Location.Line, m.Text)
}

// entryOf returns the entry point for a subpath, nil if it has none.
func (b *builder) entryOf(subpath string) *entry {
	i := slices.IndexFunc(b.entries, func(e *entry) bool { return e.subpath == subpath })
	if i < 0 {
		return nil
	}
	return b.entries[i]
}

// reach returns the files that a file imports, directly or not, and itself.
func (b *builder) reach(file string) map[string]bool {
	found := map[string]bool{file: true}
	for queue := []string{file}; len(queue) > 0; queue = queue[1:] {
		for _, next := range b.imports[queue[0]] {
			if !found[next] {
				found[next] = true
				queue = append(queue, next)
			}
		}
	}
	return found
}

// setUp has esbuild resolve and load everything from the release.
func (b *builder) setUp(p api.PluginBuild) {
	p.OnResolve(api.OnResolveOptions{Filter: ".*"}, func(a api.OnResolveArgs) (api.OnResolveResult, error) { return b.resolve(a), nil })
	for namespace, load := range map[string]func(api.OnLoadArgs) (string, api.Loader, error){
		fromRelease: b.load, fromEntry: b.loadEntry, fromRequire: loadRequire, fromImport: loadImport,
		fromNowhere: func(api.OnLoadArgs) (string, api.Loader, error) { return "", api.LoaderJS, nil },
	} {
		p.OnLoad(api.OnLoadOptions{Filter: ".*", Namespace: namespace}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			text, loader, err := load(a)
			return api.OnLoadResult{Contents: &text, Loader: loader}, err
		})
	}
}

// resolve returns what an import leads to. With an empty result esbuild reports an error, except for a call of require that may throw.
func (b *builder) resolve(a api.OnResolveArgs) api.OnResolveResult {
	isRequire := a.Kind == api.ResolveJSRequireCall || a.Kind == api.ResolveJSRequireResolve
	switch {
	case a.Kind == api.ResolveEntryPoint:
		return api.OnResolveResult{Path: a.Path, Namespace: fromEntry}
	case a.Namespace == fromEntry && b.release.files[a.Path] != nil:
		return b.inRelease(a.Path)
	case a.Namespace == fromRequire:
		return api.OnResolveResult{Path: a.Path, Namespace: fromImport}
	case a.Namespace == fromEntry, a.Namespace == fromImport:
		return api.OnResolveResult{Path: a.Path, External: true}
	}
	conditions := importConditions
	if isRequire {
		conditions = requireConditions
	}
	specifier := a.Path
	if a.Kind == api.ResolveCSSURLToken || a.Kind == api.ResolveCSSImportRule {
		if specifier, _, _ = strings.Cut(a.Path, "?"); !isRelative(specifier) && b.release.files[path.Join(path.Dir(a.Importer), specifier)] != nil {
			specifier = "./" + specifier
		}
	}
	to := b.release.resolve(a.Importer, specifier, conditions)
	switch {
	case to.file != "":
		b.mu.Lock()
		b.imports[a.Importer] = append(b.imports[a.Importer], to.file)
		b.mu.Unlock()
		return b.inRelease(to.file)
	case to.disabled:
		return api.OnResolveResult{Path: a.Path, Namespace: fromNowhere}
	case to.external != "" && isRequire:
		return api.OnResolveResult{Path: to.external, Namespace: fromRequire}
	case to.external != "":
		return api.OnResolveResult{Path: to.external, External: true}
	case to.builtin != "":
		b.mu.Lock()
		b.builtins[a.Importer+"\x00"+a.Path] = to.builtin
		b.mu.Unlock()
	}
	return api.OnResolveResult{}
}

// inRelease returns the result for a file of the release.
func (b *builder) inRelease(file string) api.OnResolveResult {
	result := api.OnResolveResult{Path: file, Namespace: fromRelease}
	p, dir := b.release.packageOf(file)
	if !p.hasSideEffects(strings.TrimPrefix(file, dir+"/")) {
		result.SideEffects = api.SideEffectsFalse
	}
	return result
}

// load returns the text of a file of the release.
func (b *builder) load(a api.OnLoadArgs) (text string, loader api.Loader, err error) {
	b.mu.Lock()
	b.loaded[a.Path] = true
	loaded := len(b.loaded)
	b.mu.Unlock()
	if loaded > maxLoaded {
		return "", 0, fmt.Errorf("over %d files are imported", maxLoaded)
	}
	loader = loaders[path.Ext(a.Path)]
	if strings.HasSuffix(a.Path, ".module.css") {
		loader = api.LoaderLocalCSS
	}
	if loader == 0 {
		return "", 0, fmt.Errorf("files of this type cannot be imported")
	}
	return string(b.release.files[a.Path]), loader, nil
}

// loadEntry returns the text of an entry point.
func (b *builder) loadEntry(a api.OnLoadArgs) (text string, loader api.Loader, err error) {
	return b.entryOf(a.Path).text, api.LoaderJS, nil
}

// loadRequire returns the text of a module whose value is what require returns for another package in Node.js: the value that a module
// exports as "module.exports", or else an object with its exports.
func loadRequire(a api.OnLoadArgs) (text string, loader api.Loader, err error) {
	return `var { exports } = require(` + quote(a.Path) + `);
if ("module.exports" in exports) module.exports = exports["module.exports"];
else {
  module.exports = Object.defineProperty({}, "__esModule", { value: true });
  for (let name of Reflect.ownKeys(exports)) if (typeof name === "string") Object.defineProperty(module.exports, name, { enumerable: true, get: () => exports[name] });
}`, api.LoaderJS, nil
}

// loadImport returns the text of a module that exports the exports of another package.
func loadImport(a api.OnLoadArgs) (text string, loader api.Loader, err error) {
	return `import * as exports from ` + quote(a.Path) + `; export { exports };`, api.LoaderJS, nil
}

// A metafile is what esbuild reports about a build.
type metafile struct {
	Inputs map[string]struct {
		Format string `json:"format"`
	} `json:"inputs"`
	Outputs map[string]struct {
		Imports []struct {
			Path     string `json:"path"`
			Kind     string `json:"kind"`
			External bool   `json:"external"`
		} `json:"imports"`
	} `json:"outputs"`
}

// describeEntries has the entry points that are CommonJS modules export by name what Node.js does, after a first build.
func (b *builder) describeEntries(out api.BuildResult) error {
	var m metafile
	if err := json.Unmarshal([]byte(out.Metafile), &m); err != nil {
		return err
	}
	for _, e := range b.entries {
		p, _ := b.release.packageOf(e.file)
		format := m.Inputs[fromRelease+":"+e.file].Format
		isModule := format == "esm" || format == "" && path.Ext(e.file) != ".cjs" && (p.isModule || path.Ext(e.file) == Extension)
		if !isModule {
			e.text = b.describeCommonJS(e.file)
		}
	}
	return nil
}

// describeCommonJS returns the text of the entry point for a CommonJS module. It exports what Node.js exports by name, and the value itself as
// "module.exports" and, as bundlers do, as the default unless the module says that it was an ES module with a default.
func (b *builder) describeCommonJS(file string) string {
	var names, others []string
	seen := map[string]bool{}
	for queue := []string{file}; len(queue) > 0; queue = queue[1:] {
		if seen[queue[0]] {
			continue
		}
		seen[queue[0]] = true
		found := readExports(b.release.files[queue[0]])
		names = append(names, found.Names...)
		for _, specifier := range found.Reexports {
			if to := b.release.resolve(queue[0], specifier, requireConditions); to.file != "" {
				queue = append(queue, to.file)
			} else if to.external != "" {
				others = append(others, to.external)
			}
		}
	}
	var text strings.Builder
	fmt.Fprintf(&text, "var value = require(%s);\nexport default value?.__esModule && \"default\" in value ? value.default : value;\nexport { value as \"module.exports\" };\n", quote(file))
	slices.Sort(names)
	for i, name := range slices.Compact(names) {
		if name != "default" && name != "module.exports" && i < maxExports {
			fmt.Fprintf(&text, "var e%d = value?.[%s];\nexport { e%[1]d as %[2]s };\n", i, quote(name))
		}
	}
	slices.Sort(others)
	for _, other := range slices.Compact(others) {
		fmt.Fprintf(&text, "export * from %s;\n", quote(other))
	}
	return text.String()
}

// specifierOf returns how a file imports another, which is either a path in the release or, if external, a specifier already.
func specifierOf(file, to string, external bool) string {
	if external {
		return to
	}
	relative, _ := filepath.Rel(path.Dir(file), to) // both are relative to the release
	if relative = filepath.ToSlash(relative); !isRelative(relative) {
		relative = "./" + relative
	}
	return relative
}

// sortUnique sorts a list and removes repeated elements.
func sortUnique(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// quote returns a string literal.
func quote(s string) string {
	literal, _ := json.Marshal(s) // a string always encodes
	return string(literal)
}

// result returns the files of a build.
func (b *builder) result(out api.BuildResult) (Result, error) {
	slices.SortFunc(b.skipped, func(x, y Skipped) int { return strings.Compare(x.Subpath, y.Subpath) })
	result := Result{Skipped: b.skipped, Inputs: slices.Sorted(maps.Keys(b.loaded))}
	if len(b.entries) == 0 {
		return result, nil
	}
	var m metafile
	if err := json.Unmarshal([]byte(out.Metafile), &m); err != nil {
		return Result{}, err
	}
	for _, f := range out.OutputFiles {
		file := File{Path: strings.TrimPrefix(f.Path, "/"), Data: f.Contents}
		for _, i := range m.Outputs[file.Path].Imports {
			into := &file.Imports
			if i.Kind == "dynamic-import" {
				into = &file.Dynamic
			}
			if i.Kind == "import-statement" || i.Kind == "dynamic-import" {
				*into = append(*into, specifierOf(file.Path, i.Path, i.External))
			}
		}
		file.Imports, file.Dynamic = sortUnique(file.Imports), sortUnique(file.Dynamic)
		result.Files = append(result.Files, file)
	}
	for _, e := range b.entries {
		result.Modules = append(result.Modules, Module{e.subpath, PathOf(e.subpath)})
	}
	result.Inputs = append(result.Inputs, "package.json")
	for file := range b.release.packages {
		if file = path.Join(file, "package.json"); !slices.Contains(result.Inputs, file) {
			result.Inputs = append(result.Inputs, file)
		}
	}
	slices.Sort(result.Inputs)
	return result, nil
}
