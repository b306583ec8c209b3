package library

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A Graph is the modules that load when a page imports some: these, and all that they import.
type Graph struct {
	// ImportMap has the integrity of all modules, and the addresses of what is imported by the name of a package. If a module is
	// loaded in its minified form, the map also leads from the address of the imported form to that of the minified one.
	ImportMap
	// Problems are sentences about what the graph lacks, at most ten.
	Problems []string `json:"problems,omitempty"`
	// Pending says that what some modules import is not known yet, so the graph lacks that.
	Pending bool `json:"pending,omitempty"`
	// Modules are the files in the order in which they were found: those that the page imports first.
	Modules []GraphModule `json:"-"`
	// Libraries are the names of the libraries from which the graph was made; [Catalogue] is among them if a module imports
	// a package that no library has.
	Libraries []string `json:"-"`
}

// An ImportMap is the JSON of an import map: https://html.spec.whatwg.org/multipage/webappapis.html#import-maps.
type ImportMap struct {
	Imports map[string]string `json:"imports,omitempty"` // addresses by specifier
	// Scopes has other addresses for the specifiers in modules whose URLs start with the key.
	Scopes    map[string]map[string]string `json:"scopes,omitempty"`
	Integrity map[string]string            `json:"integrity"` // by URL
}

// Imports returns what a module of the release owner (NAME@VERSION) imports; module is its hash, source its bytes. pending
// reports that this is not known yet, whatever err is. A [*document.RefusedError] says that it cannot be found out.
type Imports func(ctx context.Context, owner string, module kvstore.Hash, source []byte) (imports []document.Import, pending bool, err error)

// Documents find out what modules import, and what ranges of versions mean.
type Documents struct {
	Imports Imports
	Ranges  Ranges
}

// A GraphModule is a module of a graph: the file at Path of a version of a library.
type GraphModule struct {
	Library, Version string
	Snippet
	Path string
}

// Bytes estimates how many bytes of memory the graph takes, for caches.
func (g *Graph) Bytes() int {
	const module, importOf = 600, 400 // addresses, tags and integrity
	imports := len(g.Imports)
	for _, scope := range g.Scopes {
		imports += 1 + len(scope)
	}
	return module*len(g.Modules) + importOf*imports
}

const (
	mostModules       = 300
	mostImports       = 3000 // of all modules together
	mostBuiltModules  = 1000 // of those that were built here: what these import is in the manifest
	mostBuiltImports  = 9000
	mostGraphBytes    = 8 << 20
	mostGraphProblems = 10
)

// Graph returns all modules that load when a page imports the given modules of release r: these, and what they import,
// directly or not. Its import map has the integrity of all of them, and URLs that begin with assetBase; it also names those
// of the given modules that were built from the release. documents parses files whose imports are not recorded. If all of
// the given modules are minified or built, the graph prefers minified ones. A missing module, or one beyond limits, becomes
// a problem of the graph, not an error. It waits for the first listing, as [Index.Listing] does.
func (x *Index) Graph(ctx context.Context, assetBase string, r *Release, modules []views.PublishedFile, documents Documents) (*Graph, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	l, err := x.Library(ctx, r.Library)
	if err != nil {
		return nil, err
	}
	w := &walk{
		Index: x, ctx: ctx, documents: documents, listing: listing, base: assetBase, minified: true, mostModules: mostBuiltModules, mostImports: mostBuiltImports,
		graph: &Graph{ImportMap: ImportMap{Imports: map[string]string{}, Integrity: map[string]string{}}, Libraries: []string{r.Library}},
		seen:  map[moduleKey]string{}, releases: map[[2]string]*Release{{r.Library, r.Version}: r}, abouts: map[kvstore.Hash]*logs.About{}, wanted: map[kvstore.Hash]Wanted{},
		chosen: map[string]string{r.Library: r.Version}, found: map[dependencyKey]*Release{},
	}
	for _, f := range modules {
		name, built, err := x.BuiltModule(l, r, f.Path)
		if err != nil {
			return nil, err
		}
		if !built {
			w.mostModules, w.mostImports, w.minified = mostModules, mostImports, w.minified && isMinified(f.Path)
		}
		if url := w.add(r, f); name != "" {
			w.graph.Imports[name] = url
		}
	}
	for len(w.queue) > 0 {
		if err := w.ctx.Err(); err != nil {
			return nil, err
		}
		next := w.queue[0]
		w.queue = w.queue[1:]
		if err := w.addImports(next); err != nil {
			return nil, err
		}
	}
	return w.graph, nil
}

// A walk makes a graph.
type walk struct {
	*Index
	ctx       context.Context
	documents Documents
	listing   *Listing
	base      string
	minified  bool
	graph     *Graph
	queue     []place
	seen      map[moduleKey]string // URLs of files that were met, also of those that are not in the graph
	bytes     int64
	imports   int // that were followed
	releases  map[[2]string]*Release
	abouts    map[kvstore.Hash]*logs.About
	wanted    map[kvstore.Hash]Wanted
	chosen    map[string]string          // the versions of libraries that imports lead to
	found     map[dependencyKey]*Release // the results of findRelease, nil where the library has no release

	mostModules, mostImports int
}

// A moduleKey identifies a file of a release.
type moduleKey struct{ library, version, path string }

// A dependencyKey identifies an npm package that a release imports.
type dependencyKey struct {
	importer kvstore.Hash // the manifest of the release
	npm      string
}

// A place is a file of a release.
type place struct {
	release *Release
	file    views.PublishedFile
}

// addProblem records a formatted sentence about what the graph lacks, for people. It ignores a repeated sentence, and all
// after the first ten.
func (w *walk) addProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(w.graph.Problems) < mostGraphProblems && !slices.Contains(w.graph.Problems, text) {
		w.graph.Problems = append(w.graph.Problems, text)
	}
}

// addDependency records that the graph depends on a library, so that caches make the graph again when the library changes.
// [Catalogue] stands for the set of all libraries.
func (w *walk) addDependency(library string) {
	if !slices.Contains(w.graph.Libraries, library) {
		w.graph.Libraries = append(w.graph.Libraries, library)
	}
}

// add adds the file f of release r, with its integrity, to the graph, and queues it, if it is a script, so that its imports
// are followed. It returns the file's URL, also if the file was there already or if limits forbid adding it, which is
// recorded as a problem.
func (w *walk) add(r *Release, f views.PublishedFile) string {
	key := moduleKey{r.Library, r.Version, f.Path}
	if url := w.seen[key]; url != "" {
		return url
	}
	s := NewSnippet(w.base, r.Library, r.Version, f)
	w.seen[key] = s.URL
	if len(w.graph.Modules) == w.mostModules || w.bytes+f.Size > mostGraphBytes {
		w.addProblem("It imports more than %d files or %d MB; those beyond are not in the map, and are not checked.", w.mostModules, mostGraphBytes>>20)
		return s.URL
	}
	w.bytes += f.Size
	w.graph.Modules = append(w.graph.Modules, GraphModule{r.Library, r.Version, s, f.Path})
	w.graph.Integrity[s.URL] = s.Integrity
	switch path.Ext(strings.ToLower(f.Path)) {
	case ".js", ".mjs":
		w.queue = append(w.queue, place{r, f})
	}
	return s.URL
}

// addImports adds to the graph the modules that its file p imports, according to the manifest or else to a renderer that
// parses the file. A file that was erased adds none. If the renderer has not responded yet, it sets the graph's Pending. A
// file that the renderer refuses, that is for Node.js, or that is not minified although the graph prefers that, becomes a
// problem of the graph; the imports of the latter two are followed.
func (w *walk) addImports(p place) error {
	built, ok, err := w.builtImports(p.release, p.file.Path)
	if err != nil {
		return err
	}
	if ok {
		return w.followImports(p, built)
	}
	source, err := w.File(p.file.Hash)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil // erased since
	}
	if err != nil {
		return err
	}
	if w.minified && !isMinified(p.file.Path) && looksWritten(source) {
		w.addProblem("%s is not minified, and %s %s has no minified form of it.", p.file.Path, p.release.Library, p.release.Version)
	}
	if KindOf(p.file.Path, p.file.Module) == Script && bytes.Contains(source, []byte("module.exports")) {
		w.addProblem("%s is for Node.js and no module, so a browser finds nothing in it to import.", p.file.Path)
	}
	imports, pending, err := w.documents.Imports(w.ctx, p.release.Owner(), p.file.Hash, source)
	var refused *document.RefusedError
	switch {
	case pending:
		w.graph.Pending = true
		return nil
	case errors.As(err, &refused):
		w.addProblem("What %s imports could not be found out: %s.", p.file.Path, refused.Reason)
		return nil
	case err != nil:
		return err
	}
	return w.followImports(p, imports)
}

// followImports adds to the graph the modules that the imports of its file p load: of the same release by a relative path,
// or by the name of an npm package. It does not follow absolute paths and URLs; a static import of an http or https URL
// becomes a problem of the graph, because nothing verifies that file. Beyond the limit of imports it records a problem and
// ends the walk, without an error.
func (w *walk) followImports(p place, imports []document.Import) error {
	for _, i := range imports {
		if w.imports++; w.imports > w.mostImports {
			w.addProblem("Its modules import others over %d times; what comes after that is not in the map, and is not checked.", w.mostImports)
			w.queue = nil
			return nil
		}
		switch {
		case strings.HasPrefix(i.Specifier, "./"), strings.HasPrefix(i.Specifier, "../"):
			w.addRelativeImport(p, i)
		case strings.HasPrefix(i.Specifier, "/"), strings.Contains(i.Specifier, ":"):
			if strings.HasPrefix(i.Specifier, "http") && !i.Dynamic {
				w.addProblem("%s imports %s, which is of another service and is not checked.", p.file.Path, i.Specifier)
			}
		default:
			if err := w.addPackageImport(p, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// addRelativeImport adds to the graph the module in the same release that the import i of file p, with a relative path,
// loads. A query and a fragment in the path do not count, and a path with malformed percent-encoding is ignored. If the file
// does not exist, that becomes a problem of the graph, unless the import is dynamic or leads out of the release. If the
// graph prefers minified modules and the file has a minified form, it adds that instead and maps the import to it, and
// records as a problem that a tag without the map loads the other.
func (w *walk) addRelativeImport(p place, i document.Import) {
	specifier, _, _ := strings.Cut(i.Specifier, "?")
	specifier, _, _ = strings.Cut(specifier, "#")
	decoded, err := url.PathUnescape(specifier)
	if err != nil {
		return
	}
	to := path.Join(path.Dir(p.file.Path), decoded)
	f, ok := p.release.Find(to)
	if !ok {
		if !i.Dynamic && !strings.HasPrefix(to, "..") {
			w.addProblem("%s imports %s, which is not in the release: a browser would fail to load it.", p.file.Path, i.Specifier)
		}
		return
	}
	if small, ok := w.findMinified(p.release, f); ok {
		w.addProblem("%s imports %s, which is not minified; with the import map %s is loaded in its place, with a tag alone it is not.", p.file.Path, i.Specifier, path.Base(small.Path))
		w.graph.Imports[NewSnippet(w.base, p.release.Library, p.release.Version, f).URL] = w.add(p.release, small)
		return
	}
	w.add(p.release, f)
}

// findMinified returns the minified file beside f in release r, such as a.min.js beside a.js. The result is false if none
// exists, if f is minified itself, or if the graph does not prefer minified files.
func (w *walk) findMinified(r *Release, f views.PublishedFile) (views.PublishedFile, bool) {
	if !w.minified || isMinified(f.Path) {
		return f, false
	}
	ext := path.Ext(f.Path)
	return r.Find(strings.TrimSuffix(f.Path, ext) + ".min" + ext)
}

// looksWritten reports whether a module's source looks as its authors wrote it, not minified: it has over 1 KiB, and lines of
// fewer than 120 bytes on average.
func looksWritten(source []byte) bool {
	const small, longLine = 1 << 10, 120
	return len(source) > small && bytes.Count(source, []byte("\n"))*longLine > len(source)
}

// isMinified reports whether the name of a file says that it is minified: it contains .min., .prod. or .production.
func isMinified(file string) bool {
	name := path.Base(file)
	return strings.Contains(name, ".min.") || strings.Contains(name, ".prod.") || strings.Contains(name, ".production.")
}

// addPackageImport adds to the graph, and to its import map, the module that the import i of file p loads, which names an
// npm package, perhaps with a path in it. If it cannot be loaded, that becomes a problem of the graph, except for a dynamic
// import of a package that no library here has. It records the library as an input of the graph, or [Catalogue] if no
// library has the package.
func (w *walk) addPackageImport(p place, i document.Import) error {
	name, subpath := packages.SplitSpecifier(i.Specifier)
	l := w.listing.OfNPM(name)
	if l == nil {
		w.addDependency(Catalogue)
		if !i.Dynamic {
			w.addProblem("%s imports %q, which is not here: name an address for it in the import map, or have the operator add it (`larder new %s` writes its package JSON).", p.file.Path, i.Specifier, name)
		}
		return nil
	}
	w.addDependency(l.Name)
	r, err := w.releaseOf(p, l, name)
	if err != nil {
		return err
	}
	if r == nil {
		w.addProblem("%s imports %q, and nothing of %s is published yet: `larder add %[3]s` fetches it.", p.file.Path, i.Specifier, l.Name)
		return nil
	}
	imports := w.importsFor(p.release, r)
	if imports[i.Specifier] != "" {
		return nil
	}
	f, ok, err := w.findEntry(r, subpath)
	if err != nil {
		return err
	}
	if !ok {
		about, err := w.About(r)
		if err != nil {
			return err
		}
		reason := `those of its next releases that "modules" in its package JSON lists are built`
		if m := about.Modules; m != nil {
			reason = cmp.Or(m.Skipped[subpath], m.Problem, reason)
		}
		w.addProblem("%s imports %q, and %s %s has no module for that: %s.", p.file.Path, i.Specifier, r.Library, r.Version, reason)
		return nil
	}
	imports[i.Specifier] = w.add(r, f)
	return nil
}

// importsFor returns the part of the import map, addresses by specifier, that is for imports of the release imported by
// modules of the release importer: the part for all modules if the graph has chosen this version of the library for all, or
// else the scope of the importer, which it creates if it is missing. The caller adds to the map.
func (w *walk) importsFor(importer, imported *Release) map[string]string {
	if w.chosen[imported.Library] == imported.Version {
		return w.graph.Imports
	}
	scope := w.base + AssetPath(importer.Library, importer.Version, "")
	if w.graph.Scopes == nil {
		w.graph.Scopes = map[string]map[string]string{}
	}
	if w.graph.Scopes[scope] == nil {
		w.graph.Scopes[scope] = map[string]string{}
	}
	return w.graph.Scopes[scope]
}

// releaseOf returns the release of library l that file p imports as the npm package npm, nil if l has none. It calls
// findRelease once for each pair of an importing release and an npm package, and stores the result, because findRelease
// reads all versions of the library.
func (w *walk) releaseOf(p place, l *Library, npm string) (*Release, error) {
	key := dependencyKey{p.release.Manifest, npm}
	if r, ok := w.found[key]; ok {
		return r, nil
	}
	r, err := w.findRelease(p, l, npm)
	if err == nil {
		w.found[key] = r
	}
	return r, err
}

// findRelease returns the release of library l, which has the npm package npm, that the package of file p wants; nil if l
// has no release. A package that imports itself gets its own release. All modules get one version of a library, because most
// libraries work only if they are loaded once, unless that version is not in the range of a dependency that is not a peer
// dependency. A version outside of the range that p's package wants becomes a problem.
func (w *walk) findRelease(p place, l *Library, npm string) (*Release, error) {
	if l.Name == p.release.Library {
		return p.release, nil
	}
	about, err := w.aboutOf(p.release)
	if err != nil {
		return nil, err
	}
	wanted := about.Dependencies[npm]
	isPeer := wanted == ""
	if isPeer {
		wanted = about.Peers[npm]
	}
	ranges := w.wanted[p.release.Manifest]
	version, fits, err := w.ChooseVersion(l, ranges, wanted)
	if err != nil || version == "" {
		return nil, err
	}
	if !fits && !w.graph.Pending {
		w.addProblem("%s %s wants %s %s; here is only %s.", p.release.Library, p.release.Version, npm, wanted, version)
	}
	switch first := w.chosen[l.Name]; {
	case first == "":
		w.chosen[l.Name] = version
	case first == version:
	case ranges.includes(wanted, first) || !fits:
		version = first
	case isPeer:
		w.addProblem("%s %s wants %s %s, and the map has %s of it, which another module wants.", p.release.Library, p.release.Version, npm, wanted, first)
		version = first
	}
	key := [2]string{l.Name, version}
	if r := w.releases[key]; r != nil {
		return r, nil
	}
	r, err := readRelease(w.store, l.Name, version)
	if errors.Is(err, ErrNoVersion) {
		return nil, nil // it has just changed
	}
	if err != nil {
		return nil, err
	}
	w.releases[key] = r
	return r, nil
}

// aboutOf returns what upstream says about a release. Once for each release, it has a renderer parse the version ranges of
// its dependencies, and stores them in w.wanted. If the renderer has not responded yet, it sets the graph's Pending, and no
// version is in the ranges.
func (w *walk) aboutOf(r *Release) (*logs.About, error) {
	if about := w.abouts[r.Manifest]; about != nil {
		return about, nil
	}
	about, err := w.About(r)
	if err != nil {
		return nil, err
	}
	ranges, pending, err := ReadWanted(w.ctx, r.Owner(), about, w.documents.Ranges)
	if err != nil {
		return nil, err
	}
	w.graph.Pending = w.graph.Pending || pending
	w.abouts[r.Manifest], w.wanted[r.Manifest] = about, ranges
	return about, nil
}

// findEntry returns the file of a release that an import of a subpath of the package loads, such as "." or "./client": the
// module that was built for it, or else the result of findFile. ok is false if none exists.
func (w *walk) findEntry(r *Release, subpath string) (f views.PublishedFile, ok bool, err error) {
	about, err := w.About(r)
	if err != nil {
		return f, false, err
	}
	if about.Modules != nil {
		if f, ok := r.Find(about.Modules.Subpaths[subpath]); ok {
			return f, true, nil
		}
	}
	f, ok = w.findFile(r, about.Modules, subpath)
	return f, ok, nil
}

// findFile returns the file that an import of a subpath loads if no module was built for it. For "./name" it is the file
// with that name, whatever its kind; or the one with .js, .mjs, /index.js or /index.mjs added, or dist/name.js; or its
// minified form if the graph prefers that. For "." it is the main file if that is a module of upstream, or else the first
// module of upstream, never one in built, the record of built modules (nil if none were built): those have the exports of
// other subpaths. The result is false if none exists.
func (w *walk) findFile(r *Release, built *logs.Modules, subpath string) (views.PublishedFile, bool) {
	if sub, ok := strings.CutPrefix(subpath, "./"); ok {
		for _, form := range []string{sub, sub + ".js", sub + ".mjs", sub + "/index.js", sub + "/index.mjs", "dist/" + sub + ".js"} {
			if f, ok := r.Find(form); ok {
				if small, ok := w.findMinified(r, f); ok {
					return small, true
				}
				return f, true
			}
		}
		return views.PublishedFile{}, false
	}
	isUpstream := func(f views.PublishedFile) bool { return !isBuilt(built, f.Path) }
	if f, ok := r.Find(r.Default); ok && KindOf(f.Path, f.Module) == Module && isUpstream(f) {
		return f, true
	}
	modules := r.Modules()
	if i := slices.IndexFunc(modules, isUpstream); i >= 0 {
		return modules[i], true
	}
	return views.PublishedFile{}, false
}

// Modules returns the ES modules of a release in the order of findModules: those first that a page is likely to load. The
// result must not be changed.
func (r *Release) Modules() []views.PublishedFile {
	if r.modules == nil { // it was not read from a store
		return findModules(r.Files)
	}
	return r.modules()
}

// findModules returns the ES modules among files: those in fewer folders first, among these those with .min. or .prod. in
// their path, and else in the order of files.
func findModules(files []views.PublishedFile) []views.PublishedFile {
	var found []views.PublishedFile
	for _, f := range files {
		if KindOf(f.Path, f.Module) == Module {
			found = append(found, f)
		}
	}
	rank := func(path string) int {
		rank := strings.Count(path, "/") * 4
		if !strings.Contains(path, ".min.") && !strings.Contains(path, ".prod.") {
			rank += 2
		}
		return rank
	}
	slices.SortStableFunc(found, func(a, b views.PublishedFile) int { return rank(a.Path) - rank(b.Path) })
	return found
}
