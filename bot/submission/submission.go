// Package submission checks a package JSON against its upstream before it is registered: whether the target exists, how many people use it, and
// which files the bot would publish of its newest releases. It also drafts a package JSON from a release.
//
// It guarantees that a preview is what the bot would publish: the archive is verified, and the files are selected by the bot's own plan. It never runs
// files of a release, or stores them under their own names. All untrusted input has limits.
//
// The package must not know stores, nor which command or page uses it.
package submission

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

// ErrNoReleases reports a target that exists, but has no release that could be published.
var ErrNoReleases = errors.New("it has no release")

// A Preview lists the releases and files of a package that the bot would publish.
type Preview struct {
	Package *packages.Package
	// Latest is the newest release that is not a prerelease.
	Latest Release
	// Older are others of the releases that the bot would start with, newest first.
	Older []Release
	// Tags are the HTML tags by which pages load the files of TagFiles; empty if they are not displayed.
	Tags []string
	// Change is the difference from the published package JSON; nil for a new package.
	Change *Change
}

// A Release lists the files of one release that the bot would publish.
type Release struct {
	sources.Candidate
	// Files are the files that would be published, by path; LeftOut are selected but would not be published.
	Files   []packages.PlannedFile
	LeftOut []packages.LeftOut
	// Default is the main file; "" without one.
	Default string
	// Entries is how many files the release has; Sources are their paths.
	Entries int
	Sources []string
	// Integrity has the SHA-512 of the latest release's files that upstream has, by path, and those of built modules.
	Integrity map[string][sha512.Size]byte
	// Modules is what the package JSON's modules would come to; nil if it asks for none, or if they were not built.
	Modules *logs.Modules
	// Refused says why nothing would be published; "" where something is.
	Refused string
	// Err is why the release could not be fetched; then nothing is known of it.
	Err error
}

// Bytes returns the size of all files in bytes, except for minified ones, whose sizes are not known yet.
func (r *Release) Bytes() (total int64) {
	for _, f := range r.Files {
		total += f.Size
	}
	return total
}

// Made returns how many of the files are minified here, and how many are built as modules.
func (r *Release) Made() (minified, built int) {
	for _, f := range r.Files {
		switch {
		case f.Minified:
			minified++
		case r.Modules != nil && f.Source == "":
			built++
		}
	}
	return minified, built
}

// fetchedAtOnce is how many archives are fetched at once.
const fetchedAtOnce = 3

// NewPreview fetches the latest stable release of a package, which has an upstream, and up to older of its newest others, at
// most two of them prereleases, and returns what the bot would publish of them. If older is
// positive, the release that upstream tags as latest is among the others even beyond that number. Errors are those of the source
// about the list or the latest release, [ErrNoReleases], and that of ctx. A release that would be refused is no error: its Refused
// says why. An older release has its own error in Err.
func NewPreview(ctx context.Context, source sources.Source, p *packages.Package, older int) (*Preview, error) {
	listing, err := source.List(ctx, p.Autoupdate.Target, fetch.Validators{})
	if err != nil {
		return nil, err
	}
	names := slices.SortedFunc(maps.Keys(listing.Versions), func(a, b string) int { return packages.CompareVersions(b, a) })
	names = slices.DeleteFunc(names, func(name string) bool { return !packages.ValidVersion(name) || p.IgnoresVersion(name) })
	if len(names) == 0 {
		return nil, ErrNoReleases
	}
	// A prerelease may be newer, but pages and tags display this one.
	latest := packages.LatestVersion(names)
	start := packages.NewStart(1 + older)
	chosen := []sources.Candidate{listing.Versions[latest]}
	start.Take(latest)
	for _, name := range names {
		switch {
		case name == latest:
		case start.Wants(name):
			start.Take(name)
			chosen = append(chosen, listing.Versions[name])
		case name == listing.Latest && older > 0:
			chosen = append(chosen, listing.Versions[name])
		}
	}
	releases := make([]Release, len(chosen))
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(fetchedAtOnce)
	for i, v := range chosen {
		g.Go(func() error {
			releases[i] = previewRelease(groupCtx, source, p, v, i == 0)
			if i == 0 {
				return releases[i].Err
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return &Preview{Package: p, Latest: releases[0], Older: releases[1:]}, ctx.Err()
}

// A Maker makes files that upstream does not have, as the bot does.
type Maker struct {
	// Minify returns an error if no minified form can be made of a script (".js") or a style sheet (".css"), and ctx's error if it could not
	// find out.
	Minify func(ctx context.Context, extension string, data []byte) error
	// BuildModules builds the modules of a release, as [ingest.BuildModules] does.
	BuildModules func(ctx context.Context, r ingest.ModulesRelease) (*logs.Modules, []worker.ModuleFile, error)
}

// WithMaker returns a source of whose releases [NewPreview] lists modules, and only those minified files that can be made. Without it, a preview lists
// all minified files that the bot would try to make.
func WithMaker(s sources.Source, m Maker) sources.Source { return makingSource{s, m} }

// A makingSource is a source with a Maker.
type makingSource struct {
	sources.Source
	Maker
}

// previewRelease fetches a version and returns what the bot would publish of it, with the hashes of the files if hashed is true. Errors are in the
// result: Refused if each attempt would fail, else Err.
func previewRelease(ctx context.Context, source sources.Source, p *packages.Package, v sources.Candidate, hashed bool) (r Release) {
	r.Candidate = v
	r.Err = withArchive(ctx, source, p, p.Autoupdate.Target, v, func(a archive.Source) error {
		s, err := packages.NewPlan(ctx, p, a)
		if err != nil {
			return err
		}
		r.Files, r.LeftOut, r.Entries, r.Sources, r.Refused = s.Files(), s.LeftOut, s.Entries, s.Sources(), s.Nothing()
		if with, ok := source.(makingSource); ok {
			err = r.removeUnminifiable(ctx, a, with.Minify)
			if err == nil && p.Autoupdate.Modules != nil && r.Refused == "" {
				err = r.buildModules(ctx, p, a, with)
			}
		}
		if err == nil && hashed {
			err = r.hashFiles(ctx, s, a)
		}
		r.Default = packages.DefaultFile(p.Filename, r.paths())
		return err
	})
	if reason, ok := sources.RefusalReason(r.Err); ok {
		r.Refused, r.Err = reason, nil // as the bot does
	}
	return r
}

// buildModules builds the modules that the package JSON asks for. It adds their files to Files, which it sorts, stores the record in Modules, and
// replaces Integrity by their hashes.
func (r *Release) buildModules(ctx context.Context, p *packages.Package, a archive.Source, with makingSource) error {
	published := r.paths()
	record, files, err := with.BuildModules(ctx, ingest.ModulesRelease{
		Owner: p.Name + "@" + r.Name, Package: p.Autoupdate.Target, Subpaths: p.Autoupdate.Modules.Subpaths, Archive: a,
		Published: func(path string) bool { return slices.Contains(published, path) },
	})
	r.Modules, r.Integrity = record, make(map[string][sha512.Size]byte)
	for _, f := range files {
		r.Files = append(r.Files, packages.PlannedFile{Path: f.Path, Size: int64(len(f.Data))})
		r.Integrity[f.Path] = sha512.Sum512(f.Data)
	}
	slices.SortFunc(r.Files, func(x, y packages.PlannedFile) int { return strings.Compare(x.Path, y.Path) })
	return err
}

// paths returns the paths of Files.
func (r *Release) paths() []string {
	return text.Each(r.Files, func(f packages.PlannedFile) string { return f.Path })
}

// removeUnminifiable deletes from Files each minified file whose source in the archive minify rejects. A file whose source the archive
// lacks stays. It returns an error if the archive cannot be read or ctx ends, and Files means nothing then.
func (r *Release) removeUnminifiable(ctx context.Context, a archive.Source, minify func(ctx context.Context, extension string, data []byte) error) error {
	if minified, _ := r.Made(); minified == 0 {
		return nil
	}
	unmade := make(map[string]bool) // by the source's path
	err := archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, content io.Reader) error {
		i := slices.IndexFunc(r.Files, func(f packages.PlannedFile) bool { return f.Minified && f.Source == e.Name })
		if i < 0 {
			return nil
		}
		data, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		unmade[e.Name] = minify(ctx, path.Ext(r.Files[i].Path), data) != nil
		return ctx.Err()
	})
	r.Files = slices.DeleteFunc(r.Files, func(f packages.PlannedFile) bool { return f.Minified && unmade[f.Source] })
	return err
}

// hashFiles reads the archive's files that would be published unchanged, and stores their SHA-512 in Integrity by the paths under which they are
// published.
func (r *Release) hashFiles(ctx context.Context, s *packages.Plan, a archive.Source) error {
	if r.Integrity == nil {
		r.Integrity = make(map[string][sha512.Size]byte)
	}
	return archive.Walk(ctx, a, archive.DefaultLimits, func(e archive.Entry, content io.Reader) error {
		targets := s.Targets[e.Name]
		if len(targets) == 0 {
			return nil
		}
		h := sha512.New()
		if _, err := io.Copy(h, content); err != nil {
			return err
		}
		for _, path := range targets {
			r.Integrity[path] = [sha512.Size]byte(h.Sum(nil))
		}
		return nil
	})
}

// withArchive fetches the archive of a version of target into a temporary file, and calls use with it. The file is deleted afterwards. The archive
// may lack files that the package p does not publish; p may be nil for npm.
func withArchive(ctx context.Context, source sources.Source, p *packages.Package, target string, v sources.Candidate, use func(archive.Source) error) error {
	file, err := os.CreateTemp("", "larder-look-*")
	if err != nil {
		return fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	fetched, err := source.Fetch(ctx, p, target, v, file)
	if err != nil {
		return err
	}
	return use(fetched.Archive)
}
