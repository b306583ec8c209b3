package audit

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages/archive"
)

// A moduleCheck is the result of building the modules of a release again.
type moduleCheck struct {
	cannot string // why they could not be built again, "" if they were
	built  map[string]kvstore.Hash
}

// compareModules builds the modules of the release again from upstream's archive, and returns the hashes of their files. If that is
// not possible, as without a record of the inputs or with another program, the result says why. It checks first that the archive has
// the files that the manifest names as inputs; if not, the error is a [verify.Difference].
func (c *comparison) compareModules(ctx context.Context, src archive.Source) (found moduleCheck, err error) {
	record := c.recordedModules()
	if record == nil {
		found.cannot = "the manifest does not say how it was built"
		return found, nil
	}
	if err := compareInputs(ctx, src, record); err != nil {
		return found, err
	}
	program, version, options := worker.ModuleBuilder()
	if record.Program != program || record.Version != version || record.Options != options {
		found.cannot = fmt.Sprintf("made by %s %s with %s, and this larder has %s %s with %s",
			text.Short(record.Program, 60), text.Short(record.Version, 60), text.Short(record.Options, 400), program, version, options)
		return found, nil
	}
	m := c.claim.Manifest
	again, files, err := ingest.BuildModules(ctx, c.o.Minifiers, ingest.ModulesRelease{
		Owner: m.Package + "@" + m.Version, Package: m.Source.Name, Subpaths: requestedSubpaths(record), Archive: src,
	})
	if err != nil {
		return found, err
	}
	if again.Problem != "" {
		found.cannot = "it could not be built again: " + again.Problem
		return found, nil
	}
	found.built = map[string]kvstore.Hash{}
	for _, f := range files {
		found.built[f.Path] = kvstore.Sum(f.Data)
	}
	return found, nil
}

// requestedSubpaths returns the value for [ingest.ModulesRelease].Subpaths with which a build makes the modules of a record again: all subpaths
// in the record, built or skipped, sorted, whether the package JSON named them or not; without the mark [worker.OtherSubpaths] of
// the skipped ones. For a record without subpaths the result is empty, which has [ingest.BuildModules] take all that the package exports.
func requestedSubpaths(record *logs.Modules) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(record.Subpaths)), maps.Keys(record.Skipped))
	slices.Sort(all)
	return slices.DeleteFunc(all, func(subpath string) bool { return subpath == worker.OtherSubpaths })
}

// recordedModules returns the manifest's record of how modules were built. It returns nil if none exists or if it does not list the
// inputs, without which modules cannot be built again.
func (c *comparison) recordedModules() *logs.Modules {
	if about := c.claim.Manifest.About; about != nil && about.Modules != nil && about.Modules.Inputs != nil {
		return about.Modules
	}
	return nil
}

// compareInputs returns a [verify.Difference] unless the archive has all inputs of the modules, with the recorded hashes.
func compareInputs(ctx context.Context, src archive.Source, record *logs.Modules) error {
	missing := len(record.Inputs)
	err := archive.Walk(ctx, src, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		want, ok := record.Inputs[e.Name]
		if !ok || e.Skipped != "" {
			return nil
		}
		missing--
		hash, err := kvstore.SumReader(r)
		if err == nil && hash != want {
			err = differs("modules are said to be built from a %s with other bytes than upstream has", text.Short(e.Name, 300))
		}
		return err
	})
	if err == nil && missing > 0 {
		err = differs("modules are said to be built from %d files that upstream does not have", missing)
	}
	return err
}

// compareFile returns why a built file is not what building it again gave: a [verify.Difference], or an error if it could not be checked; nil
// if both have the same bytes.
func (found moduleCheck) compareFile(f logs.File) error {
	switch hash, ok := found.built[f.Path]; {
	case found.cannot != "":
		return fmt.Errorf("%s", found.cannot)
	case !ok:
		return differs("%s is said to be built from the release, and building it again does not give such a file", text.Short(f.Path, 300))
	case hash != f.SHA256:
		return differs("%s comes out otherwise when it is built again", text.Short(f.Path, 300))
	}
	return nil
}
