// Package submission looks at what a package JSON says of its upstream before anybody enrols it: whether
// the target exists and how many people use it, and which files the bot would publish of its newest
// releases. It also drafts a package JSON from a release.
//
// It guarantees that what it shows is what the bot would publish: the tarball is the real one, held
// against its hash, and the files are chosen by package selection, as the bot does. Nothing of a release
// is ever run, or put on disk by a name of its own. What comes from strangers is bounded.
//
// The package must not know stores, nor who asks.
package submission

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/bot/selection"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
	"golang.org/x/sync/errgroup"
)

// ErrNoReleases: the target exists, but has no release that could be published.
var ErrNoReleases = errors.New("it has no release")

// A Source is where releases come from.
type Source interface {
	// Releases returns the versions that target has, in any order. An unknown target is
	// [fetch.ErrNotFound].
	Releases(ctx context.Context, target string) ([]Version, error)
	// Archive gets the archive of a version that Releases returned, into dst, and verifies it.
	Archive(ctx context.Context, v Version, dst *os.File) (archive.Source, error)
}

// Version is one version at a source.
type Version struct {
	// Name is the version itself, such as 1.2.3.
	Name string
	// Published is when it appeared; zero where the source does not say.
	Published time.Time
	// Deprecated is what its author says to whoever still uses it; "" for nearly all.
	Deprecated string
	// Source is for the source itself, which knows the version by it.
	Source any
}

// Npm returns the source of packages from an npm registry.
func Npm(client *npm.Client) Source { return npmSource{client} }

type npmSource struct{ client *npm.Client }

func (s npmSource) Releases(ctx context.Context, target string) ([]Version, error) {
	packument, _, err := s.client.Packument(ctx, target, npm.Validators{})
	if err != nil {
		return nil, err
	}
	versions := make([]Version, 0, len(packument.Versions))
	for name, v := range packument.Versions {
		versions = append(versions, Version{Name: name, Published: v.Published, Deprecated: v.Deprecated, Source: v})
	}
	return versions, nil
}

func (s npmSource) Archive(ctx context.Context, v Version, dst *os.File) (archive.Source, error) {
	if err := s.client.Tarball(ctx, v.Source.(npm.Version), dst); err != nil {
		return archive.Source{}, err
	}
	info, err := dst.Stat()
	if err != nil {
		return archive.Source{}, err
	}
	source, err := archive.Open(dst, info.Size())
	if err != nil {
		return archive.Source{}, &RefusedError{err}
	}
	return source.StripRoot(), nil
}

// RefusedError says that the bot would refuse a release for what it is, so that trying again does not help.
// Besides it, errors of package archive and those that are permanent in package npm mean that.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }

// refused reports whether the bot would refuse a release for err.
func refused(err error) bool {
	var own *RefusedError
	var archived *archive.RefusedError
	return errors.As(err, &own) || errors.As(err, &archived) || npm.IsPermanent(err) && !errors.Is(err, fetch.ErrNotFound)
}

// A Preview is what the bot would publish of a package.
type Preview struct {
	Package *packages.Package
	// Latest is the release that most people are going to get.
	Latest Release
	// Older are others of the newest releases, newest first.
	Older []Release
}

// A Release is what would become of one release.
type Release struct {
	Version
	// Files are what would be published, by path; LeftOut are selected but would not.
	Files   []selection.File
	LeftOut []selection.LeftOut
	// Default is the main file; "" where there is none.
	Default string
	// Entries is how many files the release has; Sources are their paths.
	Entries int
	Sources []string
	// Integrity has the SHA-512 of the files that upstream has, by path; of the latest release alone.
	Integrity map[string][sha512.Size]byte
	// Refused says why nothing would be published; "" where something is.
	Refused string
	// Err is set where the release could not be had, so that nothing is known of it.
	Err error
}

// Bytes is the size of all files that upstream has; those that are made are not known yet.
func (r *Release) Bytes() (total int64) {
	for _, f := range r.Files {
		total += f.Size
	}
	return total
}

// Made is how many of the files are made.
func (r *Release) Made() (n int) {
	for _, f := range r.Files {
		if f.Minified {
			n++
		}
	}
	return n
}

// atOnce is how many archives are looked at at the same time.
const atOnce = 3

// Look gets the latest release of a package, and up to older of its newest others, and tells what the bot
// would publish of them. The errors are those of the source, where the latest release cannot be had, and
// [ErrNoReleases].
func Look(ctx context.Context, source Source, p *packages.Package, older int) (*Preview, error) {
	if p.Autoupdate == nil {
		return nil, errors.New(`the package has no "autoupdate", so there is nowhere to look`)
	}
	versions, err := source.Releases(ctx, p.Autoupdate.Target)
	if err != nil {
		return nil, err
	}
	versions = slices.DeleteFunc(versions, func(v Version) bool {
		return !packages.ValidVersion(v.Name) || p.IgnoresVersion(v.Name)
	})
	if len(versions) == 0 {
		return nil, ErrNoReleases
	}
	slices.SortFunc(versions, func(a, b Version) int { return packages.CompareVersions(b.Name, a.Name) })
	names := make([]string, len(versions))
	for i, v := range versions {
		names[i] = v.Name
	}
	// A prerelease may be newer; but pages and tags show the latest by this.
	i := slices.Index(names, packages.LatestVersion(names))
	latest := versions[i]
	chosen := append([]Version{latest}, slices.Delete(versions, i, i+1)...)
	chosen = chosen[:min(len(chosen), 1+older)]
	releases := make([]Release, len(chosen))
	g, groupCtx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, v := range chosen {
		g.Go(func() error {
			releases[i] = look(groupCtx, source, p, v, i == 0)
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

func look(ctx context.Context, source Source, p *packages.Package, v Version, hashed bool) (r Release) {
	r.Version = v
	r.Err = withArchive(ctx, source, v, func(a archive.Source) error {
		s, err := selection.Of(ctx, p, a)
		if err != nil {
			return err
		}
		r.Files, r.LeftOut, r.Entries, r.Sources, r.Refused = s.Files(), s.LeftOut, s.Entries, s.Sources(), s.Nothing()
		paths := make([]string, len(r.Files))
		for i, f := range r.Files {
			paths[i] = f.Path
		}
		r.Default = selection.DefaultFile(p.Filename, paths)
		if hashed {
			return r.hash(ctx, s, a)
		}
		return nil
	})
	if r.Err != nil && refused(r.Err) {
		r.Refused, r.Err = r.Err.Error(), nil // as the bot does
	}
	return r
}

// hash reads what is going to be published.
func (r *Release) hash(ctx context.Context, s *selection.Selection, a archive.Source) error {
	r.Integrity = make(map[string][sha512.Size]byte)
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

// withArchive hands the archive of a version to use.
func withArchive(ctx context.Context, source Source, v Version, use func(archive.Source) error) error {
	file, err := os.CreateTemp("", "larder-look-*")
	if err != nil {
		return fmt.Errorf("couldn't make a file for the download: %w", err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	a, err := source.Archive(ctx, v, file)
	if err != nil {
		return err
	}
	return use(a)
}
