package ingest

import (
	"context"
	"slices"

	"github.com/larder-cdn/larder/bot/modules"
	"github.com/larder-cdn/larder/logs"
)

// buildModules builds the ES modules that the package JSON asks for, stores them, and adds them to the manifest, with a record of
// how they were built in About.Modules. It does nothing if the package JSON asks for none, and for a release that is not from
// npm. If the release's files cannot be built, the release is published all the same, and a note says why. An error means that
// another attempt may succeed; then the release is not published now. processFiles has run before, because a module must not
// replace a file of the manifest.
func (a *assembly) buildModules(ctx context.Context) error {
	u := a.pkg.Autoupdate
	if u == nil || u.Modules == nil || a.pendingRelease.source.Type != "npm" {
		return nil
	}
	owner := ReleaseID(a.pkg.Name, a.version)
	record, files, err := modules.Build(ctx, a.minifiers, modules.Release{
		Owner: owner, Package: a.pendingRelease.source.Name, Subpaths: u.Modules.Subpaths, Archive: a.archive,
		Acquire: func(here, child int64) (func(), error) {
			return a.options.Budget.AcquireFile(ctx, owner, a.pendingRelease.fresh, here, child)
		},
		Published: func(path string) bool {
			return slices.ContainsFunc(a.manifest.Files, func(f logs.File) bool { return f.Path == path })
		},
	})
	if err != nil {
		return err
	}
	if record.Problem != "" {
		a.addNote("no modules were built: %s", record.Problem)
	}
	for _, sentence := range record.DescribeSkipped(maxNotes) {
		a.addNote("%s", sentence)
	}
	if sentence := record.DescribeGlobals(); sentence != "" {
		a.addNote("%s", sentence)
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
