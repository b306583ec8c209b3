package library

import (
	"bytes"
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
)

// A Graph is what loads when a page imports a module: that, and all that it imports.
type Graph struct {
	// Modules are the files, the first one first.
	Modules []GraphModule
	// Imports are the addresses that specifiers lead to, which an import map needs: names of packages, and addresses of
	// files in the place of which their minified forms are loaded.
	Imports map[string]string
	// Problems say in words what the graph lacks.
	Problems []string
	// Libraries are the inputs of the graph, [Catalogue] among them where one is missing.
	Libraries []string
	// Pending says that what some modules import is not known yet, so the graph lacks that.
	Pending bool
}

// Imports returns what a module imports, or a *document.RefusedError where that cannot be found out. Any error for which pending is
// true says that it will be known later. The owner is the release.
type Imports func(ctx context.Context, owner string, module kvstore.Hash, source []byte) (imports []document.Import, pending bool, err error)

// Documents find out what documents of releases say.
type Documents struct {
	Imports Imports
	Ranges  Ranges
}

// A GraphModule is one of its files.
type GraphModule struct {
	Library, Version string
	Snippet
	Path string
}

// Bytes estimates how much memory the graph takes.
func (g *Graph) Bytes() int {
	const module, importOf = 600, 400 // addresses, tags and integrity
	return module*len(g.Modules) + importOf*len(g.Imports)
}

const (
	mostModules       = 300
	mostBuiltModules  = 1000 // of those that were built here: what these import is in the manifest
	mostImports       = 3000 // of all modules together
	mostGraphBytes    = 8 << 20
	mostGraphProblems = 10
)

// Graph finds all modules that a module of a release imports, directly or not, here. If the module is minified, it prefers
// minified modules.
func (x *Index) Graph(ctx context.Context, assetBase string, r *Release, file views.PublishedFile, documents Documents) (*Graph, error) {
	w, err := x.newWalk(ctx, assetBase, r, documents)
	if err != nil {
		return nil, err
	}
	w.minified = isMinified(file.Path)
	if _, built, err := w.builtImports(r, file.Path); err != nil {
		return nil, err
	} else if built {
		w.minified = true
	}
	w.add(r, file)
	return w.followAll()
}

// newWalk returns a walk that starts in a release.
func (x *Index) newWalk(ctx context.Context, assetBase string, r *Release, documents Documents) (*walk, error) {
	listing, err := x.Listing(ctx)
	if err != nil {
		return nil, err
	}
	return &walk{
		Index: x, ctx: ctx, documents: documents, listing: listing, base: assetBase,
		graph: &Graph{Imports: map[string]string{}}, seen: map[moduleKey]string{}, releases: map[[2]string]*Release{{r.Library, r.Version}: r}, abouts: map[kvstore.Hash]*logs.About{}, wanted: map[kvstore.Hash]Wanted{},
		chosen: map[string]string{}, most: mostModules,
	}, nil
}

// followAll follows all imports, and returns the graph.
func (w *walk) followAll() (*Graph, error) {
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
	most      int // modules
	imports   int // that were followed
	releases  map[[2]string]*Release
	abouts    map[kvstore.Hash]*logs.About
	wanted    map[kvstore.Hash]Wanted
	chosen    map[string]string // the versions of libraries that imports lead to
}

// A moduleKey identifies a file of a release.
type moduleKey struct{ library, version, path string }

// A place is a file of a release.
type place struct {
	release *Release
	file    views.PublishedFile
}

// addProblem records a problem of the graph, once.
func (w *walk) addProblem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if len(w.graph.Problems) < mostGraphProblems && !slices.Contains(w.graph.Problems, text) {
		w.graph.Problems = append(w.graph.Problems, text)
	}
}

// addDependency records that the graph depends on a library, so that it is built again when the library changes.
func (w *walk) addDependency(library string) {
	if !slices.Contains(w.graph.Libraries, library) {
		w.graph.Libraries = append(w.graph.Libraries, library)
	}
}

// add puts a file into the graph, if it is not there yet, and returns its URL.
func (w *walk) add(r *Release, f views.PublishedFile) string {
	key := moduleKey{r.Library, r.Version, f.Path}
	if url := w.seen[key]; url != "" {
		return url
	}
	s := NewSnippet(w.base, r.Library, r.Version, f)
	w.seen[key] = s.URL
	if len(w.graph.Modules) == w.most || w.bytes+f.Size > mostGraphBytes {
		w.addProblem("It imports more than %d files or %d MB; those beyond are not in the map, and are not checked.", w.most, mostGraphBytes>>20)
		return s.URL
	}
	w.bytes += f.Size
	w.graph.Modules = append(w.graph.Modules, GraphModule{r.Library, r.Version, s, f.Path})
	switch path.Ext(strings.ToLower(f.Path)) {
	case ".js", ".mjs":
		w.queue = append(w.queue, place{r, f})
	}
	return s.URL
}

// addImports adds the modules that a file of the graph imports.
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

// followImports adds what a file imports.
func (w *walk) followImports(p place, imports []document.Import) error {
	for _, i := range imports {
		if w.imports++; w.imports > mostImports {
			w.addProblem("Its modules import others over %d times; what comes after that is not in the map, and is not checked.", mostImports)
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

// addRelativeImport adds the module that an import with a relative path loads.
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

// findMinified returns the minified file beside f, if the graph prefers minified files and there is one.
func (w *walk) findMinified(r *Release, f views.PublishedFile) (views.PublishedFile, bool) {
	if !w.minified || isMinified(f.Path) {
		return f, false
	}
	ext := path.Ext(f.Path)
	return r.Find(strings.TrimSuffix(f.Path, ext) + ".min" + ext)
}

// looksWritten reports whether a module looks as its authors wrote it, not minified, by the length of its lines.
func looksWritten(source []byte) bool {
	const small, longLine = 1 << 10, 120
	return len(source) > small && bytes.Count(source, []byte("\n"))*longLine > len(source)
}

// isMinified reports whether the name of a file says that it is minified.
func isMinified(file string) bool {
	name := path.Base(file)
	return strings.Contains(name, ".min.") || strings.Contains(name, ".prod.") || strings.Contains(name, ".production.")
}

// addPackageImport adds the module that an import of a package, perhaps with a path in it, loads.
func (w *walk) addPackageImport(p place, i document.Import) error {
	name, sub := packageOf(i.Specifier)
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
	if w.graph.Imports[i.Specifier] != "" {
		return nil
	}
	f, ok, err := w.entry(r, sub)
	if err != nil {
		return err
	}
	if !ok {
		w.addProblem("%s imports %q, and %s %s has no module for that.", p.file.Path, i.Specifier, r.Library, r.Version)
		return nil
	}
	w.graph.Imports[i.Specifier] = w.add(r, f)
	return nil
}

// releaseOf returns the release of library l, which has the npm package npm, that the package of file p wants; nil if l has
// no release.
func (w *walk) releaseOf(p place, l *Library, npm string) (*Release, error) {
	if l.Name == p.release.Library {
		return p.release, nil
	}
	about, err := w.aboutOf(p.release)
	if err != nil {
		return nil, err
	}
	wanted := about.Dependencies[npm]
	if wanted == "" {
		wanted = about.Peers[npm]
	}
	version, fits, err := w.ChooseVersion(l, w.wanted[p.release.Manifest], wanted)
	if err != nil || version == "" {
		return nil, err
	}
	if !fits && !w.graph.Pending {
		w.addProblem("%s %s wants %s %s; here is only %s.", p.release.Library, p.release.Version, npm, wanted, version)
	}
	// A map has one address for each name, and most libraries work only if there is one copy of them.
	if first := w.chosen[l.Name]; first == "" {
		w.chosen[l.Name] = version
	} else if first != version {
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

// aboutOf returns what a release says of itself, and finds out what its ranges mean.
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

// entry returns the module of a release that an import of the package loads, or of the path sub in it; ok is false if there
// is none.
func (w *walk) entry(r *Release, sub string) (f views.PublishedFile, ok bool, err error) {
	about, err := w.About(r)
	if err != nil {
		return f, false, err
	}
	if about.Modules != nil {
		subpath := "."
		if sub != "" {
			subpath = "./" + sub
		}
		if f, ok := r.Find(about.Modules.Subpaths[subpath]); ok {
			return f, true, nil
		}
	}
	f, ok = w.publishedEntry(r, sub)
	return f, ok, nil
}

// publishedEntry returns the module that a package is imported by, or a path in it, among those that upstream published.
func (w *walk) publishedEntry(r *Release, sub string) (views.PublishedFile, bool) {
	if sub != "" {
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
	if f, ok := r.Find(r.Default); ok && KindOf(f.Path, f.Module) == Module {
		return f, true
	}
	if modules := r.Modules(); len(modules) > 0 {
		return modules[0], true
	}
	return views.PublishedFile{}, false
}

// packageOf splits the specifier of an import into the name of the package and the path in it, "" for none.
func packageOf(specifier string) (name, sub string) {
	parts := 1
	if strings.HasPrefix(specifier, "@") {
		parts = 2
	}
	at := 0
	for ; parts > 0; parts-- {
		i := strings.IndexByte(specifier[at:], '/')
		if i < 0 {
			return specifier, ""
		}
		at += i + 1
	}
	return specifier[:at-1], specifier[at:]
}

// Modules returns the modules of a release, those first that a page would load. The result must not be changed.
func (r *Release) Modules() []views.PublishedFile {
	if r.modules == nil { // it was not read from a store
		return findModules(r.Files)
	}
	return r.modules()
}

// findModules returns the modules among files, those first that a page is likely to load.
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
