package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/evanw/esbuild/pkg/api"
	"github.com/evanw/esbuild/pkg/cli"

	"github.com/larder-cdn/larder/internal/text"
)

// This file and the others whose names begin with module build ES modules for browsers from the files of an npm release, with
// esbuild. They read files only from the release, which they get in memory, and run none of their code. Other packages stay
// imports by their names. The output depends on nothing but the request and moduleOptions.

// moduleOptions are the options of esbuild's command line with which modules are built. The last word is the version of what Larder
// adds: how imports are resolved, and the text of entry points.
const moduleOptions = moduleFlags + " larder-modules-3"

const moduleFlags = `--bundle --format=esm --splitting --minify --target=esnext --platform=browser --charset=utf8 --legal-comments=eof --tree-shaking=true ` +
	`--conditions=import,production --entry-names=[dir]/[name] --chunk-names=chunks/[hash] --out-extension:.js=.mjs`

// defines replaces what only Node.js has. Browsers have no environment variables.
var defines = map[string]string{"process.env": "{}", "process.env.NODE_ENV": `"production"`, "global": "globalThis"}

// The limits of one build.
const (
	MaxSubpaths      = 500
	MaxModulesInput  = 32 << 20 // bytes of all files in a request
	MaxModulesOutput = 64 << 20 // bytes of all files in a result
	MaxModulesFiles  = 4 * MaxSubpaths
	maxOnDemand      = 500      // files that a module loads on demand, if there are more than MaxModulesFiles
	maxLoaded        = 4000     // files that esbuild parses
	maxExported      = 16 << 20 // bytes of the names that entry points export, and of the specifiers from which they export others
	maxSkipped       = 20       // rounds in which subpaths are skipped
	maxReason        = 400      // bytes of the reason why a subpath is skipped
)

// ModulesMemory is what a child that builds modules may have, in bytes, besides several copies of its input. It is a third more
// than three and lucide-react need, so that a build does not fail at one time and succeed at another.
const ModulesMemory = 384 << 20

// ModuleBuilder returns the program that builds modules here ("esbuild"), its version, and its options, as a record of how
// modules were built.
func ModuleBuilder() (program, version, options string) {
	return "esbuild", minifierVersion, moduleOptions
}

// OtherSubpaths stands among the skipped subpaths for those that are left out because the package exports more than MaxSubpaths.
const OtherSubpaths = "*"

// ModulesFolder is where the modules of a release are, and ModuleExtension ends their names.
const (
	ModulesFolder   = "esm"
	ModuleExtension = ".mjs"
)

// A ModulesRequest is a request to build the modules of a release.
type ModulesRequest struct {
	Package  string            `json:"package"`            // npm's name
	Subpaths []string          `json:"subpaths,omitempty"` // such as "." and "./client"; all if empty
	Files    map[string][]byte `json:"files"`              // those of the release for which [IsModuleInput] is true
}

// A ModulesResult is the modules of a release. It has no modules only if Skipped says why.
type ModulesResult struct {
	Modules []Module     `json:"modules"`
	Files   []ModuleFile `json:"files"`
	Inputs  []string     `json:"inputs"` // the files of the release that were read, sorted
	// Globals are the globals of Node.js that scripts of the release use although browsers lack them, by the script.
	Globals map[string][]string `json:"globals,omitempty"`
	Skipped []SkippedSubpath    `json:"skipped,omitempty"`
}

// A Module is the module for a subpath.
type Module struct {
	Subpath string `json:"subpath"`
	Path    string `json:"path"` // of its file
}

// A ModuleFile is one file of the modules: a module, what several of them share, a style sheet, or a source map.
type ModuleFile struct {
	Path    string   `json:"path"`
	Data    []byte   `json:"data"`
	Imports []string `json:"imports,omitempty"` // the specifiers that it imports, sorted
	Dynamic []string `json:"dynamic,omitempty"` // those that it imports only when its code calls import, sorted
}

// A SkippedSubpath is a subpath that has no module.
type SkippedSubpath struct {
	Subpath string `json:"subpath"`
	Reason  string `json:"reason"`
}

// loaders are the files that modules may import, by their extensions.
var loaders = map[string]api.Loader{
	".js": api.LoaderJS, ".mjs": api.LoaderJS, ".cjs": api.LoaderJS, ".json": api.LoaderJSON, ".css": api.LoaderCSS,
	".svg": api.LoaderDataURL, ".png": api.LoaderDataURL, ".gif": api.LoaderDataURL, ".jpg": api.LoaderDataURL, ".woff": api.LoaderDataURL, ".woff2": api.LoaderDataURL,
}

// IsModuleInput reports whether the extension of a path, in lower case, is one of the files that modules may import: scripts, JSON,
// style sheets, some images (.svg, .png, .gif, .jpg) and fonts (.woff, .woff2). [BuildModules] needs no other files of a release.
func IsModuleInput(file string) bool { return loaders[path.Ext(file)] != 0 }

// modulePath returns the path in the release of the module that is built for a subpath: esm/client.mjs for "./client", esm/index.mjs
// for "." and "./index". It does not check the subpath: with ".." in it, the path may be outside of esm.
func modulePath(subpath string) string {
	if subpath == "." {
		subpath = "index"
	}
	return path.Join(ModulesFolder, subpath) + ModuleExtension
}

// runBuildModules is the function of the task [BuildModules]. data is a [ModulesRequest] in JSON, with the contents of the
// release's files, and the result a [ModulesResult] in JSON. The error says that the request is malformed, or why the release has
// no modules at all, such as a package.json that is missing.
func runBuildModules(data []byte) ([]byte, error) {
	var q ModulesRequest
	if err := json.Unmarshal(data, &q); err != nil {
		return nil, fmt.Errorf("malformed request: %w", err)
	}
	result, err := buildModules(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// buildModules builds one ES module for each subpath in q or, if it has none, for all subpaths that the release's package.json
// exports, up to MaxSubpaths. A script or style sheet that would take esbuild long is not built, and neither are the subpaths that
// import it. ModulesResult.Skipped has the subpaths without a module and the reasons; these may be all. The error says why the release has no
// modules at all.
func buildModules(q ModulesRequest) (ModulesResult, error) {
	r, err := newRelease(q.Package, q.Files)
	if err != nil {
		return ModulesResult{}, err
	}
	b := &builder{release: r, esCache: map[string]*fileExports{}, commonJSCache: map[string]*fileExports{}, required: map[importSite]bool{}}
	subpaths := q.Subpaths
	if len(subpaths) == 0 {
		var others int
		if subpaths, others = r.selectSubpaths(); others > 0 {
			b.skipSubpath(OtherSubpaths, fmt.Sprintf("the package exports %d more, %d in all, over the limit of %d: list those that you need in the package JSON", others, len(subpaths)+others, MaxSubpaths))
		}
	}
	if len(subpaths) > MaxSubpaths {
		return ModulesResult{}, fmt.Errorf("the package exports %d subpaths, over the limit of %d: list those that you need in the package JSON", len(subpaths), MaxSubpaths)
	}
	for _, subpath := range subpaths {
		if err := b.addEntry(subpath); err != nil {
			return ModulesResult{}, err
		}
	}
	// The first build finds out what the entry points export, and which of them cannot be built.
	first, err := b.buildEntries(api.BuildOptions{MinifyWhitespace: true})
	if err != nil {
		return ModulesResult{}, err
	}
	var m metafile
	if len(b.entries) > 0 {
		if err := json.Unmarshal([]byte(first.Metafile), &m); err != nil {
			return ModulesResult{}, err
		}
		b.skipLargeEntries(m)
	}
	if len(b.entries) == 0 {
		return b.makeResult(first)
	}
	if err := b.rewriteCommonJSEntries(m); err != nil {
		return ModulesResult{}, err
	}
	out, err := b.buildEntries(api.BuildOptions{MinifyWhitespace: true, MinifyIdentifiers: true, MinifySyntax: true, Sourcemap: api.SourceMapLinked})
	if err != nil {
		return ModulesResult{}, err
	}
	return b.makeResult(out)
}

// A builder builds the modules of one release.
type builder struct {
	release       *release
	esCache       map[string]*fileExports // those of ES modules by file
	commonJSCache map[string]*fileExports // those of CommonJS modules by file
	exported      int                     // see maxExported
	entries       []*entry
	skipped       []SkippedSubpath

	mu         sync.Mutex
	loaded     map[string]bool // files of the release
	imports    map[string][]string
	unresolved map[importSite]resolved // what was not resolved
	required   map[importSite]bool     // calls of require for other packages outside of try statements
}

// An importSite is an import, or a call of require, of a specifier in a file of the release.
type importSite struct{ file, specifier string }

// The namespaces of esbuild's plugins.
const (
	fromRelease  = "release" // files of the release
	fromEntry    = "entry"   // the text of an entry, by its subpath
	fromRequire  = "require" // what require returns for another package
	fromImport   = "import"  // the exports of another package
	fromDisabled = "empty"   // what the browser field disables
)

// skipSubpath adds a subpath that gets no module to b.skipped, with the reason, which it cuts to maxReason bytes. It does not
// remove the entry point from b.entries.
func (b *builder) skipSubpath(subpath, reason string) {
	b.skipped = append(b.skipped, SkippedSubpath{subpath, text.Cut(reason, maxReason)})
}

// buildEntries runs esbuild on the entry points b.entries with moduleFlags. Of more, it uses only the three options to
// minify and Sourcemap. After errors it has skipFailed remove or change the entry points that fail, and runs esbuild again, up to
// maxSkipped times in all. If no entry point is left, it returns an empty result and no error. Before each run it clears
// b.loaded, b.imports and b.unresolved, which the run fills. The error, such as errTooManyFiles, says why the release has no
// modules at all.
func (b *builder) buildEntries(more api.BuildOptions) (api.BuildResult, error) {
	for range maxSkipped {
		if len(b.entries) == 0 {
			return api.BuildResult{}, nil
		}
		o, err := cli.ParseBuildOptions(strings.Fields(moduleFlags))
		if err != nil {
			return api.BuildResult{}, err
		}
		o.Define, o.Metafile, o.LogLevel, o.LogOverride, o.AbsWorkingDir, o.Outdir = defines, true, api.LogLevelSilent, silentWarnings, "/", "/"+ModulesFolder
		o.MinifyWhitespace, o.MinifyIdentifiers, o.MinifySyntax, o.Sourcemap = more.MinifyWhitespace, more.MinifyIdentifiers, more.MinifySyntax, more.Sourcemap
		o.Plugins = []api.Plugin{{Name: "release", Setup: b.setUp}}
		for _, e := range b.entries {
			name := strings.TrimPrefix(strings.TrimSuffix(modulePath(e.subpath), ModuleExtension), ModulesFolder+"/")
			o.EntryPointsAdvanced = append(o.EntryPointsAdvanced, api.EntryPoint{InputPath: e.subpath, OutputPath: name})
		}
		b.loaded, b.imports, b.unresolved = map[string]bool{}, map[string][]string{}, map[importSite]resolved{}
		out := api.Build(o)
		if len(b.loaded) > maxLoaded { // which of them are too many depends on chance
			return api.BuildResult{}, errTooManyFiles
		}
		if len(out.Errors) == 0 {
			return out, nil
		}
		if err := b.skipFailed(out.Errors); err != nil {
			return api.BuildResult{}, err
		}
	}
	return api.BuildResult{}, errors.New("too many of its files cannot be built")
}

// skipFailed changes the entry points after a run of esbuild with errors, so that the next run has fewer. It drops the default
// export from the text of an entry point if esbuild reports an error there. It adds calls of require for another package to
// b.required, so that the next run imports that package: esbuild reports such a call only outside of try statements. If it did
// neither, it removes from b.entries the entry points that lead to files with errors, and records their subpaths as skipped. It
// returns an error if no entry point leads to such a file, or an error has no file.
func (b *builder) skipFailed(all []api.Message) error {
	failed := map[string]string{} // reasons by file
	changed := false
	for _, m := range all {
		if m.Location == nil {
			return fmt.Errorf("%.300s", m.Text)
		}
		file := strings.TrimPrefix(m.Location.File, fromRelease+":")
		if e := b.findEntry(strings.TrimPrefix(file, fromEntry+":")); e != nil && strings.Contains(e.text, "export { default } from") {
			e.text = strings.TrimSuffix(e.text, b.defaultExportText(e.file))
			changed = true
			continue
		}
		at := importSite{file, unresolvedSpecifier(m)}
		to, ok := b.unresolved[at]
		if to.external != "" {
			b.required[at] = true
			changed = true
			continue
		}
		failed[file] = describeFailure(at, to, ok, m)
	}
	if changed {
		return nil // what else failed fails again
	}
	before := len(b.entries)
	b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
		reached := b.findReachable(e.file)
		for _, file := range slices.Sorted(maps.Keys(failed)) {
			if reached[file] || file == fromEntry+":"+e.subpath {
				b.skipSubpath(e.subpath, failed[file])
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

// skipLargeEntries removes from b.entries each entry point that loads more than maxOnDemand files by import(), as countOnDemand
// counts, and records its subpath as skipped. m is esbuild's report of a build without source maps. If that build, with a source
// map for each of its files, has at most MaxModulesFiles files, skipLargeEntries does nothing.
func (b *builder) skipLargeEntries(m metafile) {
	if 2*len(m.Outputs) <= MaxModulesFiles {
		return
	}
	b.entries = slices.DeleteFunc(b.entries, func(e *entry) bool {
		onDemand := countOnDemand(m, modulePath(e.subpath))
		if onDemand > maxOnDemand {
			b.skipSubpath(e.subpath, fmt.Sprintf("it loads %d files on demand, over the limit of %d for packages whose modules would have over %d files", onDemand, maxOnDemand, MaxModulesFiles))
		}
		return onDemand > maxOnDemand
	})
}

// countOnDemand returns about how many output files of the build that m reports are loaded only when code calls import(). It
// follows all imports from the output file with the given path, directly and through others, and counts each file that it reaches
// first by an import(). A file that others import statically, too, may count, and one that only counted files import statically
// does not.
func countOnDemand(m metafile, output string) (n int) {
	seen := map[string]bool{output: true}
	for queue := []string{output}; len(queue) > 0; queue = queue[1:] {
		for _, i := range m.Outputs[queue[0]].Imports {
			if i.External || seen[i.Path] {
				continue
			}
			seen[i.Path] = true
			queue = append(queue, i.Path)
			if i.Kind == "dynamic-import" {
				n++
			}
		}
	}
	return n
}

// unresolvedSpecifier returns the import specifier, such as "lodash", from esbuild's error that it could not be resolved. For
// other errors it returns "".
func unresolvedSpecifier(m api.Message) string {
	quoted, _ := strings.CutPrefix(m.Text, "Could not resolve ")
	specifier, err := strconv.Unquote(quoted)
	if err != nil {
		return ""
	}
	return specifier
}

// describeFailure returns the sentence for people why esbuild could not build the file at.file. If to names a module of Node.js,
// the reason is that browsers lack it. Otherwise, if isCause is true, the reason is that its import of at.specifier leads to
// nothing. Otherwise the sentence has the text and line of esbuild's error m, whose Location is not nil.
func describeFailure(at importSite, to resolved, isCause bool, m api.Message) string {
	switch {
	case to.builtin != "":
		return fmt.Sprintf("%s imports %q of Node.js, which browsers lack, and the package's browser field has nothing in its place", at.file, to.builtin)
	case isCause:
		return fmt.Sprintf("%s imports %q, which is not in the release", at.file, at.specifier)
	}
	if m.Location.Line == 0 {
		return fmt.Sprintf("%s: %.200s", at.file, m.Text)
	}
	return fmt.Sprintf("%s: line %d: %.200s", at.file, m.Location.Line, m.Text)
}

// findReachable returns the set of files of the release that a file imported, directly or not, in the last run of esbuild, and
// the file itself. The values of the map are all true. It reads b.imports without a lock, so no run may be under way.
func (b *builder) findReachable(file string) map[string]bool {
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

// setUp adds callbacks to esbuild, for which the builder is a plugin. They resolve every import, and load every file from the
// release in memory or from generated text, so esbuild never reads from disk. esbuild calls them from several goroutines, while
// b.entries and b.required do not change.
func (b *builder) setUp(p api.PluginBuild) {
	p.OnResolve(api.OnResolveOptions{Filter: ".*"}, func(a api.OnResolveArgs) (api.OnResolveResult, error) { return b.resolve(a), nil })
	p.OnLoad(api.OnLoadOptions{Filter: ".*", Namespace: fromRelease}, b.loadFile)
	for namespace, load := range map[string]func(path string) (text string){
		fromEntry: func(subpath string) string { return b.findEntry(subpath).text }, fromRequire: requireShim, fromImport: importShim,
		fromDisabled: func(string) string { return "" },
	} {
		p.OnLoad(api.OnLoadOptions{Filter: ".*", Namespace: namespace}, func(a api.OnLoadArgs) (api.OnLoadResult, error) {
			text := load(a.Path)
			return api.OnLoadResult{Contents: &text, Loader: api.LoaderJS}, nil
		})
	}
}

// resolve is esbuild's callback that says what an import leads to: a file of the release, a bare specifier that stays an import
// (external), an empty module, or the text of an entry point or shim. It records an import of a file in b.imports. It records in
// b.unresolved, and returns an empty result for, an import that leads nowhere or to a module of Node.js that browsers lack, and a
// call of require or require.resolve for another package, unless b.required has that call (by file and specifier; an earlier run
// found it outside of try statements). Then esbuild reports an error, unless the call is in a try statement, where it throws in
// browsers. Esbuild calls resolve from several goroutines; it locks b.mu itself.
func (b *builder) resolve(a api.OnResolveArgs) api.OnResolveResult {
	isRequire := a.Kind == api.ResolveJSRequireCall || a.Kind == api.ResolveJSRequireResolve
	switch {
	case a.Kind == api.ResolveEntryPoint:
		return api.OnResolveResult{Path: a.Path, Namespace: fromEntry}
	case a.Namespace == fromEntry && strings.HasPrefix(a.Path, ownFilePrefix):
		return b.resolveToFile(strings.TrimPrefix(a.Path, ownFilePrefix))
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
		return b.resolveToFile(to.file)
	case to.disabled:
		return api.OnResolveResult{Path: a.Path, Namespace: fromDisabled}
	case to.external != "" && isRequire && b.required[importSite{a.Importer, a.Path}]:
		return api.OnResolveResult{Path: to.external, Namespace: fromRequire}
	case to.external != "" && !isRequire:
		return api.OnResolveResult{Path: to.external, External: true}
	}
	b.mu.Lock()
	b.unresolved[importSite{a.Importer, a.Path}] = to
	b.mu.Unlock()
	return api.OnResolveResult{}
}

// resolveToFile returns esbuild's result for an import of a file of the release: its path, and whether its package.json says that
// importing it has no side effects, so that esbuild may leave the import out. It does not check that the file exists.
func (b *builder) resolveToFile(file string) api.OnResolveResult {
	result := api.OnResolveResult{Path: file, Namespace: fromRelease}
	p, dir := b.release.packageOf(file)
	if !p.hasSideEffects(strings.TrimPrefix(file, dir+"/")) {
		result.SideEffects = api.SideEffectsFalse
	}
	return result
}

// errTooManyFiles is the error if esbuild would parse more than maxLoaded files.
var errTooManyFiles = fmt.Errorf("the modules import over %d files", maxLoaded)

// loadFile is esbuild's callback that returns the text of a file of the release and how to parse it. It records the file in
// b.loaded, and locks b.mu for that. If esbuild would take long for the file, or files of its type cannot be imported, the result has an
// error for this file, and the returned error is nil. If a run loads more than maxLoaded files, loadFile returns errTooManyFiles.
func (b *builder) loadFile(a api.OnLoadArgs) (api.OnLoadResult, error) {
	b.mu.Lock()
	b.loaded[a.Path] = true
	loaded := len(b.loaded)
	b.mu.Unlock()
	if loaded > maxLoaded {
		return api.OnLoadResult{}, errTooManyFiles
	}
	data := b.release.files[a.Path]
	loader := loaders[path.Ext(a.Path)]
	var err error
	switch loader {
	case api.LoaderJS:
		err = checkScriptCost(data)
	case api.LoaderCSS:
		err = checkStyles(data)
	}
	if strings.HasSuffix(a.Path, ".module.css") {
		loader = api.LoaderLocalCSS
	}
	if loader == 0 {
		err = errors.New("files of this type cannot be imported")
	}
	if err != nil {
		return api.OnLoadResult{Errors: []api.Message{{Text: err.Error(), Location: &api.Location{File: fromRelease + ":" + a.Path}}}}, nil
	}
	text := string(data)
	return api.OnLoadResult{Contents: &text, Loader: loader}, nil
}

// A metafile is esbuild's report of a build.
type metafile struct {
	Inputs map[string]struct {
		Format string `json:"format"`
	} `json:"inputs"`
	Outputs map[string]struct {
		Inputs map[string]struct {
			BytesInOutput int `json:"bytesInOutput"`
		} `json:"inputs"`
		Imports []struct {
			Path     string `json:"path"`
			Kind     string `json:"kind"`
			External bool   `json:"external"`
		} `json:"imports"`
	} `json:"outputs"`
}

// relativeSpecifier returns the specifier with which a file imports another, such as "./chunks/a.mjs"; it starts with "./" or
// "../". Both file and to are paths in the release. If external is true, to is the specifier of another package, and it is
// returned as is.
func relativeSpecifier(file, to string, external bool) string {
	if external {
		return to
	}
	relative, _ := filepath.Rel(path.Dir(file), to) // both are relative to the release
	if relative = filepath.ToSlash(relative); !isRelative(relative) {
		relative = "./" + relative
	}
	return relative
}

// sortUnique sorts a list in place, removes repeated elements, and returns the shorter list.
func sortUnique(all []string) []string {
	slices.Sort(all)
	return slices.Compact(all)
}

// quote returns a string as a JavaScript string literal in double quotes.
func quote(s string) string {
	literal, _ := json.Marshal(s) // a string always encodes
	return string(literal)
}

// makeResult returns the result of the last run of esbuild, whose output is out: the files with their imports, a module for each
// of b.entries, the skipped subpaths, the files that were read, among them all valid package.json files, and the globals of
// Node.js. Without entry points it returns only the skipped subpaths and the files that esbuild read. It sorts b.skipped. It
// returns an error if the files have over MaxModulesOutput bytes, source maps included.
func (b *builder) makeResult(out api.BuildResult) (ModulesResult, error) {
	slices.SortFunc(b.skipped, func(x, y SkippedSubpath) int { return strings.Compare(x.Subpath, y.Subpath) })
	result := ModulesResult{Skipped: b.skipped, Inputs: slices.Collect(maps.Keys(b.loaded))}
	if len(b.entries) == 0 {
		return result, nil
	}
	var m metafile
	if err := json.Unmarshal([]byte(out.Metafile), &m); err != nil {
		return ModulesResult{}, err
	}
	size := 0
	for _, f := range out.OutputFiles {
		if size += len(f.Contents); size > MaxModulesOutput {
			return ModulesResult{}, fmt.Errorf("the modules have over %d bytes with their source maps, the limit for one release", MaxModulesOutput)
		}
		file := ModuleFile{Path: strings.TrimPrefix(f.Path, "/"), Data: f.Contents}
		for _, i := range m.Outputs[file.Path].Imports {
			into := &file.Imports
			if i.Kind == "dynamic-import" {
				into = &file.Dynamic
			}
			if i.Kind == "import-statement" || i.Kind == "dynamic-import" {
				*into = append(*into, relativeSpecifier(file.Path, i.Path, i.External))
			}
		}
		file.Imports, file.Dynamic = sortUnique(file.Imports), sortUnique(file.Dynamic)
		result.Files = append(result.Files, file)
	}
	result.Globals = b.findGlobals(m)
	for _, e := range b.entries {
		result.Modules = append(result.Modules, Module{e.subpath, modulePath(e.subpath)})
	}
	result.Inputs = append(result.Inputs, "package.json")
	for folder := range b.release.packages {
		result.Inputs = append(result.Inputs, path.Join(folder, "package.json"))
	}
	result.Inputs = sortUnique(result.Inputs)
	return result, nil
}

// findGlobals returns the globals of Node.js, such as Buffer, that scripts of the release use although browsers lack them. The
// keys are the paths of these scripts in the release; a script that uses none is missing. It looks only at scripts that have code
// in an output file of the build that m reports.
func (b *builder) findGlobals(m metafile) map[string][]string {
	found := map[string][]string{}
	for _, output := range m.Outputs {
		for input, part := range output.Inputs {
			file, ok := strings.CutPrefix(input, fromRelease+":")
			if !ok || part.BytesInOutput == 0 || !isScript(file) || found[file] != nil {
				continue
			}
			if names := findNodeGlobals(b.release.files[file]); len(names) > 0 {
				found[file] = names
			}
		}
	}
	return found
}
