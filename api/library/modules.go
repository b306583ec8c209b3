package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/logs"
)

// An ImportMap is the JSON of an import map: https://html.spec.whatwg.org/multipage/webappapis.html#import-maps.
type ImportMap struct {
	Imports   map[string]string `json:"imports,omitempty"`
	Integrity map[string]string `json:"integrity"` // by URL
}

// NewImportMap returns the import map with these addresses by specifier, and the integrity of these modules.
func NewImportMap(imports map[string]string, modules []GraphModule) ImportMap {
	m := ImportMap{Imports: imports, Integrity: make(map[string]string, len(modules))}
	for _, module := range modules {
		m.Integrity[module.URL] = module.Integrity
	}
	return m
}

// A ModuleMap is what a page needs to import the modules that were built from a release.
type ModuleMap struct {
	ImportMap
	// Problems say in words what the map lacks.
	Problems []string `json:"problems,omitempty"`
	// Pending says that the map is not complete yet.
	Pending bool `json:"pending,omitempty"`

	// Libraries are the inputs of the map.
	Libraries []string `json:"-"`
}

// A NoModulesError says why a release has no built modules.
type NoModulesError struct{ Library, Version, Reason string }

func (e *NoModulesError) Error() string {
	return fmt.Sprintf("%s %s has no built modules: %s", e.Library, e.Version, e.Reason)
}

// ModuleMap returns the import map of the modules that were built from a release: those for these subpaths, such as "." and "./client", or all
// if there are none, with everything that they import. The error is a *NoModulesError if the release has no such modules.
func (x *Index) ModuleMap(ctx context.Context, assetBase string, r *Release, subpaths []string, documents Documents) (ModuleMap, error) {
	about, err := x.About(r)
	if err != nil {
		return ModuleMap{}, err
	}
	built := about.Modules
	switch {
	case built == nil:
		return ModuleMap{}, &NoModulesError{r.Library, r.Version, `"modules" was not in its package JSON when it was published`}
	case built.Problem != "":
		return ModuleMap{}, &NoModulesError{r.Library, r.Version, built.Problem}
	}
	if len(subpaths) == 0 {
		subpaths = slices.Sorted(maps.Keys(built.Subpaths))
	}
	w, err := x.newWalk(ctx, assetBase, r, documents)
	if err != nil {
		return ModuleMap{}, err
	}
	w.minified, w.most = true, mostBuiltModules
	w.addDependency(r.Library)
	l, err := x.Library(ctx, r.Library)
	if err != nil {
		return ModuleMap{}, err
	}
	for _, subpath := range subpaths {
		f, ok := r.Find(built.Subpaths[subpath])
		if !ok {
			reason := built.Skipped[subpath]
			if reason == "" {
				reason = "there is none for " + subpath + "; there are " + strings.Join(slices.Sorted(maps.Keys(built.Subpaths)), " ")
			}
			return ModuleMap{}, &NoModulesError{r.Library, r.Version, reason}
		}
		w.graph.Imports[l.ModuleName()+strings.TrimPrefix(subpath, ".")] = w.add(r, f)
	}
	g, err := w.followAll()
	if err != nil {
		return ModuleMap{}, err
	}
	return ModuleMap{NewImportMap(g.Imports, g.Modules), g.Problems, g.Pending, g.Libraries}, nil
}

// builtImports returns what a file imports according to the manifest, and reports whether it is one of the modules that were built from the
// release.
func (w *walk) builtImports(r *Release, file string) (imports []document.Import, built bool, err error) {
	about, err := w.About(r)
	if err != nil || about.Modules == nil || !isBuilt(about.Modules, file) {
		return nil, false, err
	}
	for _, specifier := range about.Modules.Imports[file] {
		imports = append(imports, document.Import{Specifier: specifier})
	}
	for _, specifier := range about.Modules.Dynamic[file] {
		imports = append(imports, document.Import{Specifier: specifier, Dynamic: true})
	}
	return imports, true, nil
}

// BuiltSpecifier returns what a page imports to get a file that was built from a release of the library, such as "react-dom/client"; "" for other
// files.
func (x *Index) BuiltSpecifier(l *Library, r *Release, file string) (string, error) {
	about, err := x.About(r)
	if err != nil || about.Modules == nil {
		return "", err
	}
	for subpath, path := range about.Modules.Subpaths {
		if path == file {
			return l.ModuleName() + strings.TrimPrefix(subpath, "."), nil
		}
	}
	return "", nil
}

// ModuleName returns what the library's own documentation imports it as: its name on npm if it has one.
func (l *Library) ModuleName() string { return cmp.Or(l.NPM(), l.Name) }

// isBuilt reports whether a file is a module or a part of several, and not one that upstream published beside them.
func isBuilt(m *logs.Modules, file string) bool {
	if m.Imports[file] != nil || m.Dynamic[file] != nil || strings.HasPrefix(file, "esm/chunks/") && len(m.Subpaths) > 0 {
		return true
	}
	for _, path := range m.Subpaths {
		if path == file {
			return true
		}
	}
	return false
}

// Modules returns the import map of the modules that were built from a release.
func (d Directory) Modules(ctx context.Context, q ModulesRequest) (ModuleMap, error) {
	if d.AssetBase == "" {
		return ModuleMap{}, errNoAssetBase
	}
	snapshot := d.Store.Snapshot()
	defer snapshot.Close()
	release, err := d.latestOr(ctx, snapshot, q.Library, q.Version)
	if err != nil {
		return ModuleMap{}, err
	}
	index, err := d.Index()
	if err != nil {
		return ModuleMap{}, err
	}
	m, err := index.ModuleMap(ctx, d.AssetBase, release, q.Subpaths, d.Documents)
	if none := new(NoModulesError); errors.As(err, &none) && none.Reason != "" {
		return m, fmt.Errorf("%w; `larder tag %s@%s` prints tags of its files", err, release.Library, release.Version)
	}
	return m, err
}
