package ingest

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/larder-cdn/larder/bot/modules"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
)

// buildModules adds to the manifest the ES modules that the package JSON asks for. Without modules the release is published all the same, and
// a note says why.
func (a *assembly) buildModules(ctx context.Context) error {
	u := a.pkg.Autoupdate
	if u == nil || u.Modules == nil || a.pendingRelease.source.Type != "npm" {
		return nil
	}
	size, err := modules.InputSize(ctx, a.archive)
	if err != nil {
		return err
	}
	owner := ReleaseID(a.pkg.Name, a.version)
	leave, err := a.options.Budget.AcquireFile(ctx, owner, a.pendingRelease.fresh, 4*size, worker.Memory(worker.BuildModules, size))
	if err != nil {
		return err
	}
	defer leave()
	record, files, err := modules.Build(ctx, a.minifiers, modules.Release{Owner: owner, Package: a.pendingRelease.source.Name, Subpaths: u.Modules.Subpaths, Archive: a.archive})
	if err != nil {
		return err
	}
	for _, f := range files {
		if record.Problem == "" && slices.ContainsFunc(a.manifest.Files, func(other logs.File) bool { return other.Path == f.Path }) {
			record.Problem = fmt.Sprintf("the package JSON publishes another file at %s", f.Path)
		}
		if len(f.Data) > packages.MaxFile {
			record.Problem = fmt.Sprintf("%s would have %d bytes, over the limit of %d", f.Path, len(f.Data), packages.MaxFile)
		}
	}
	if record.Problem != "" {
		a.addNote("no modules were built: %s", record.Problem)
		record.Subpaths, record.Imports, record.Dynamic, record.Inputs = nil, nil, nil, nil
		files = nil
	}
	for _, subpath := range slices.Sorted(maps.Keys(record.Skipped)) {
		a.addNote("no module was built for %q: %s", subpath, record.Skipped[subpath])
	}
	for _, f := range files {
		if err := a.addFile(ctx, logs.File{Path: f.Path, Origin: logs.Built}, f.Data); err != nil {
			return err
		}
	}
	if a.manifest.About == nil {
		a.manifest.About = new(logs.About)
	}
	a.manifest.About.Modules = record
	return nil
}
