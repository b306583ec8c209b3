package ingest

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/packages"
)

// Regenerate fetches a published release, of which w names the log entry and the manifest (nil if the manifest itself is wanted),
// from its upstream again. It stores the contents that the package JSON of that time selects and makes, and variants of the
// manifest, so that lost ones are there again. It publishes nothing, and protects the contents from deletion only while it runs.
// It waits while too many releases are under way. size is that of the downloaded archive in bytes, 0 if the download failed or
// none was made. The error wraps fs.ErrNotExist if that package JSON names no upstream, if the release came from elsewhere, or if
// upstream's list lacks the version or has another archive for it.
func (pb *Publisher) Regenerate(ctx context.Context, w replication.Wanted) (size int64, err error) {
	if err := pb.releasing.Acquire(ctx, 1); err != nil {
		return 0, err
	}
	defer pb.releasing.Release(1)
	json, err := w.PackageJSON()
	if err != nil {
		return 0, fmt.Errorf("its package JSON of that time is lost: %w", err)
	}
	pkg, err := packages.Parse(packages.Path(w.Entry.Package), json)
	if err != nil {
		return 0, err
	}
	source := pb.options.Sources.ForPackage(pkg)
	if source == nil || w.Manifest != nil && w.Manifest.Source.Type != pkg.Autoupdate.Source {
		return 0, fmt.Errorf("it is from no upstream: %w", fs.ErrNotExist)
	}
	target := pkg.Autoupdate.Target
	if w.Manifest != nil {
		target = w.Manifest.Source.Name
	}
	v, err := findUpstreamVersion(ctx, source, target, w)
	if err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(pb.options.TempDir, tempPattern)
	if err != nil {
		return 0, fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	got, err := source.Fetch(ctx, pkg, target, v, file)
	if err != nil {
		return 0, err
	}
	if info, err := file.Stat(); err == nil {
		size = info.Size()
	}
	got.Released = cmp.Or(got.Released, w.Entry.Released)
	pins := pb.store.Pin()
	defer pins.Release()
	manifest, err := pb.assemble(ctx, pendingRelease{Fetched: *got, pkg: pkg, version: w.Entry.Version}, pins)
	if err != nil {
		return size, err
	}
	return size, pb.storeManifestVariants(pins, manifest)
}

// storeManifestVariants stores a manifest as a content, in the four variants that versions of Larder would have written, because
// it is not known which one the log names. The variants have the description of the release (README, dependencies, modules) or
// not, and the hash of the commit's tree or not. It does not change manifest. pins protects the variants from deletion.
func (pb *Publisher) storeManifestVariants(pins *kvstore.Pins, manifest *logs.Manifest) error {
	for _, about := range []*logs.About{manifest.About, nil} {
		for _, tree := range []string{manifest.Source.Tree, ""} {
			variant := *manifest
			variant.About, variant.Source.Tree = about, tree
			data, err := variant.Encode()
			if err == nil {
				_, err = pb.storeContent(pins, data)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// findUpstreamVersion returns the version at the source s from which a published release w was made. target is the package or
// repository there. If the manifest has a commit (of git), it returns the manifest's tag and commit, sends no request, and does
// not check that they still exist. Otherwise it lists the versions at s. The error wraps fs.ErrNotExist if s does not list the
// version, or has another archive for it than the manifest says; it is that of the request if s lacks the whole target. Without a
// manifest it does not compare archives.
func findUpstreamVersion(ctx context.Context, s sources.Source, target string, w replication.Wanted) (sources.Candidate, error) {
	version := w.Entry.Version
	if w.Manifest != nil && w.Manifest.Source.Commit != "" {
		at := w.Manifest.Source
		return sources.Candidate{Name: version, Hash: at.Commit, Ref: git.Tag{Version: version, Name: at.Tag, Commit: at.Commit}}, nil
	}
	listed, err := s.List(ctx, target, fetch.Validators{})
	if err != nil {
		return sources.Candidate{}, err
	}
	v, ok := listed.Versions[version]
	if !ok {
		return sources.Candidate{}, fmt.Errorf("upstream has no such version any more: %w", fs.ErrNotExist)
	}
	if w.Manifest == nil {
		return v, nil
	}
	if same, known := s.Same(v, w.Manifest.Source.Integrity); known && !same {
		return sources.Candidate{}, fmt.Errorf("upstream has another archive for it now: %w", fs.ErrNotExist)
	}
	return v, nil
}
