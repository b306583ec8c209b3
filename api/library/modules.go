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
	"github.com/larder-cdn/larder/logs/views"
)

// A NoModulesError says why a release has no built modules.
type NoModulesError struct{ Library, Version, Reason string }

// Error returns which release has no built modules, and why.
func (e *NoModulesError) Error() string {
	return fmt.Sprintf("%s %s has no built modules: %s", e.Library, e.Version, e.Reason)
}

// ModuleMap returns the graph, and with it the import map, of modules that were built from release r and of all that they
// import. The modules are those for the given subpaths, such as "." and "./client", or all if there are none. URLs begin
// with assetBase. The error is a [*NoModulesError] if the release has no such modules, or none for one of the subpaths. See
// [Index.Graph].
func (x *Index) ModuleMap(ctx context.Context, assetBase string, r *Release, subpaths []string, documents Documents) (*Graph, error) {
	about, err := x.About(r)
	if err != nil {
		return nil, err
	}
	built := about.Modules
	switch {
	case built == nil:
		return nil, &NoModulesError{r.Library, r.Version, `"modules" was not in its package JSON when it was published`}
	case built.Problem != "":
		return nil, &NoModulesError{r.Library, r.Version, built.Problem}
	}
	if len(subpaths) == 0 {
		subpaths = slices.Sorted(maps.Keys(built.Subpaths))
	}
	modules := make([]views.PublishedFile, len(subpaths))
	for i, subpath := range subpaths {
		var ok bool
		if modules[i], ok = r.Find(built.Subpaths[subpath]); !ok {
			reason := built.Skipped[subpath]
			if reason == "" {
				reason = "no module was built for " + subpath + "; the modules are " + strings.Join(slices.Sorted(maps.Keys(built.Subpaths)), " ")
			}
			return nil, &NoModulesError{r.Library, r.Version, reason}
		}
	}
	return x.Graph(ctx, assetBase, r, modules, documents)
}

// builtImports returns what the file of release r imports according to the release's manifest, static imports first. built
// is false if the file is not one of the modules that were built from the release, so that its source has to be parsed.
func (w *walk) builtImports(r *Release, file string) (imports []document.Import, built bool, err error) {
	about, err := w.About(r)
	if err != nil || !isBuilt(about.Modules, file) {
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

// BuiltModule reports whether the file of release r is an ES module that was built from the release, and not one that
// upstream published. l is the library. specifier is the one by which a page imports the module, such as "react-dom/client";
// "" if the file is none, or a part that several modules share.
func (x *Index) BuiltModule(l *Library, r *Release, file string) (specifier string, built bool, err error) {
	about, err := x.About(r)
	if err != nil || about.Modules == nil {
		return "", false, err
	}
	for subpath, path := range about.Modules.Subpaths {
		if path == file {
			return l.ModuleName() + strings.TrimPrefix(subpath, "."), true, nil
		}
	}
	return "", isBuilt(about.Modules, file), nil
}

// ModuleName returns the name by which the library's own documentation imports it: its name on npm, or else its name here.
func (l *Library) ModuleName() string { return cmp.Or(l.NPM(), l.Name) }

// isBuilt reports whether a file of a release is an ES module that Larder built, or a part that several of them share, and
// not one that upstream published. m is the record of the built modules, nil if none were built.
func isBuilt(m *logs.Modules, file string) bool { return m != nil && m.Imports[file] != nil }

// Modules returns the graph, and with it the import map, of the modules that were built from a release, by default the
// latest one, for the subpaths in the request, by default all. If the release has none, or none for a subpath, the error
// wraps a [*NoModulesError] that says why. If the library or version does not exist, the error suggests others. It returns
// an error if [Directory.AssetBase] is not set.
func (d Directory) Modules(ctx context.Context, q ModulesRequest) (*Graph, error) {
	if d.AssetBase == "" {
		return nil, errNoAssetBase
	}
	snapshot := d.Store.Snapshot()
	defer snapshot.Close()
	release, err := d.latestOr(ctx, snapshot, q.Library, q.Version)
	if err != nil {
		return nil, err
	}
	index, err := d.Index()
	if err != nil {
		return nil, err
	}
	g, err := index.ModuleMap(ctx, d.AssetBase, release, q.Subpaths, d.Documents)
	if none := new(NoModulesError); errors.As(err, &none) && none.Reason != "" {
		return nil, fmt.Errorf("%w; `larder tag %s@%s` prints tags of its files", err, release.Library, release.Version)
	}
	return g, err
}
