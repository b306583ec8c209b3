// Package submission looks at what a package JSON says of its upstream before it is enrolled: whether
// the target exists and how many people use it, and which files the bot would publish of its newest
// releases. It also drafts a package JSON from a release.
//
// It guarantees that what it shows is what the bot would publish: the tarball is the real one, held
// against its hash, and the files are chosen by package selection, as the bot does. Nothing of a release
// is ever run, or put on disk by a name of its own. What comes from strangers is bounded.
//
// The package must not know stores, nor which command or page asks.
package submission

import (
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
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
	// Deprecated is what its author says to its users; "" for nearly all.
	Deprecated string
	// Latest tells that upstream calls it so.
	Latest bool
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
		versions = append(versions, Version{Name: name, Published: v.Published, Deprecated: v.Deprecated, Latest: name == packument.DistTags["latest"], Source: v})
	}
	return versions, nil
}

func (s npmSource) Archive(ctx context.Context, v Version, dst *os.File) (archive.Source, error) {
	source, _, err := s.client.Release(ctx, v.Source.(npm.Version), dst)
	return source, err
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
	// Older are others of those that the bot would begin with, newest first.
	Older []Release
	// Tags are the HTML tags by which pages load the files of TagFiles. Default: not shown.
	Tags []string
	// Change is the difference from the published package JSON; nil for a new package.
	Change *Change
}

// A Release is what would become of one release.
type Release struct {
	Version
	// Files are what would be published, by path; LeftOut are selected but would not.
	Files   []packages.PlannedFile
	LeftOut []packages.LeftOut
	// Default is the main file; "" without one.
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
	versions = slices.DeleteFunc(versions, func(v Version) bool { return !packages.ValidVersion(v.Name) || p.IgnoresVersion(v.Name) })
	if len(versions) == 0 {
		return nil, ErrNoReleases
	}
	slices.SortFunc(versions, func(a, b Version) int { return packages.CompareVersions(b.Name, a.Name) })
	names := make([]string, len(versions))
	for i, v := range versions {
		names[i] = v.Name
	}
	// A prerelease may be newer; but pages and tags show the latest by this.
	latest := packages.LatestVersion(names)
	start := packages.NewStart(1 + older)
	chosen := []Version{versions[slices.Index(names, latest)]}
	start.Take(latest)
	for _, v := range versions {
		switch {
		case v.Name == latest:
		case start.Wants(v.Name):
			start.Take(v.Name)
			chosen = append(chosen, v)
		case v.Latest && older > 0:
			chosen = append(chosen, v)
		}
	}
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

// A Minifier tells by its error that no minified form can be made of a script (".js") or a style sheet (".css"), and by
// ctx's error that it could not find out.
type Minifier func(ctx context.Context, extension string, data []byte) error

// Minified returns a source of whose releases [Look] shows those minified forms only that can be made. Without it, all
// are shown that the bot would try to make.
func Minified(s Source, m Minifier) Source { return minifying{s, m} }

type minifying struct {
	Source
	minify Minifier
}

func look(ctx context.Context, source Source, p *packages.Package, v Version, hashed bool) (r Release) {
	r.Version = v
	r.Err = withArchive(ctx, source, v, func(a archive.Source) error {
		s, err := packages.NewPlan(ctx, p, a)
		if err != nil {
			return err
		}
		r.Files, r.LeftOut, r.Entries, r.Sources, r.Refused = s.Files(), s.LeftOut, s.Entries, s.Sources(), s.Nothing()
		if with, ok := source.(minifying); ok {
			if err := r.leaveUnmade(ctx, s, a, with.minify); err != nil {
				return err
			}
		}
		r.Default = packages.DefaultFile(p.Filename, r.paths())
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

// paths are those of Files.
func (r *Release) paths() []string {
	paths := make([]string, len(r.Files))
	for i, f := range r.Files {
		paths[i] = f.Path
	}
	return paths
}

// leaveUnmade takes out the minified forms that cannot be made.
func (r *Release) leaveUnmade(ctx context.Context, s *packages.Plan, a archive.Source, minify Minifier) error {
	if r.Made() == 0 {
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

// hash reads what is going to be published.
func (r *Release) hash(ctx context.Context, s *packages.Plan, a archive.Source) error {
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
