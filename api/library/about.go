package library

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// About returns what upstream says about a release, such as its README and dependencies, from the release's manifest in the
// store, or from memory if it was read lately. If the manifest says nothing, the result is empty. It is never nil, not even
// with an error; the caller must not change it.
func (x *Index) About(r *Release) (*logs.About, error) {
	about, err := x.abouts.Get(r.Manifest, func() (*logs.About, int, error) {
		about, err := logs.ReadAbout(x.store, r.Manifest)
		about = cmp.Or(about, new(logs.About))
		return about, len(about.Readme) + 200 + sizeOfModules(about.Modules), err
	})
	return cmp.Or(about, new(logs.About)), err
}

// sizeOfModules estimates how many bytes of memory the record of built modules takes, for caches: four times its JSON.
func sizeOfModules(m *logs.Modules) int {
	data, _ := json.Marshal(m) // texts do not fail
	return 4 * len(data)
}

// The limits of what [Index.About] keeps in memory: reading it decodes the manifest of a release, which may list 25,000 files.
const (
	maxAbouts     = 64
	maxAboutBytes = 4 << 20
)

// Deprecations returns the versions of a library that upstream has deprecated, as far as the store has that, with the reason
// of each: an empty map if none is deprecated; nil if that is not known, or the name is invalid.
func (x *Index) Deprecations(name string) (map[string]string, error) {
	if x.options.Deprecations == nil || !validName(name) {
		return nil, nil
	}
	return x.options.Deprecations(x.store, name)
}

// Upstream returns a sentence about what upstream has of a version, as the bot last recorded it in the store, "" if that is
// not known. differs reports whether that is different from what was published here.
func (x *Index) Upstream(name, version string) (note string, differs bool, err error) {
	if x.options.Upstream == nil || !validName(name) {
		return "", false, nil
	}
	return x.options.Upstream(x.store, name, version)
}

// Downloads returns how many downloads of the library with this name npm counted in a month, and when it counted them; ok is
// false if that is not known.
func (x *Index) Downloads(name string) (n int64, asOf time.Time, ok bool) {
	if x.options.Downloads == nil {
		return 0, time.Time{}, false
	}
	return x.options.Downloads(name)
}

// MainSizes returns the size in bytes, without encoding, of the main file in each of these versions of a library, in their
// order; 0 for a version without a main file, or whose main file is not published.
func (x *Index) MainSizes(name string, versions []views.Version) ([]int64, error) {
	snapshot := x.store.Snapshot()
	defer snapshot.Close()
	sizes := make([]int64, len(versions))
	for i, v := range versions {
		if v.Default == "" {
			continue
		}
		f, err := views.LookupFile(snapshot, name, v.Version, v.Default)
		if errors.Is(err, kvstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		sizes[i] = f.Size
	}
	return sizes, nil
}

// OfNPM returns the library whose releases come from the npm package with this name, nil if none exists. Of several it
// returns the one that has the package's name, or else the first in the order of the listing.
func (l *Listing) OfNPM(name string) *Library { return l.byNPM[name] }

// byNPM returns libraries by the names of the npm packages that their releases come from. Of several libraries from one
// package, it has the one with the package's name, or else the first in the slice.
func byNPM(libraries []*Library) map[string]*Library {
	found := make(map[string]*Library, len(libraries))
	for _, l := range libraries {
		if npm := l.NPM(); npm != "" && (found[npm] == nil || l.Name == npm) {
			found[npm] = l
		}
	}
	return found
}

// Ranges parses version ranges, such as "^1.2", of a release, of which owner (NAME@VERSION) is the name, and returns them in
// their order. pending reports that they are not parsed yet, whatever err is. A [*document.RefusedError] says that they
// never will be.
type Ranges func(ctx context.Context, owner string, ranges []string) (parsed []document.Range, pending bool, err error)

// A Wanted has the version ranges that a release wants of other packages, parsed as far as that is possible.
type Wanted struct {
	ranges []string // sorted
	parsed []document.Range
}

// maxRanges limits the dependencies and peer dependencies of a release, as the bot does; the log of a mirror may have more.
const maxRanges = 400

// rangesOf returns the version ranges of the dependencies and peer dependencies of a release, such as "^1.2", as upstream
// wrote them, sorted, without duplicates and without those over [document.MaxRange] bytes. It returns nil if the release has
// more than maxRanges of both together.
func rangesOf(about *logs.About) []string {
	if len(about.Dependencies)+len(about.Peers) > maxRanges {
		return nil
	}
	ranges := slices.AppendSeq(slices.Collect(maps.Values(about.Dependencies)), maps.Values(about.Peers))
	ranges = slices.DeleteFunc(ranges, func(r string) bool { return len(r) > document.MaxRange })
	slices.Sort(ranges)
	return slices.Compact(ranges)
}

// ReadWanted returns the version ranges of the dependencies and peer dependencies in about, parsed by read, which gets owner
// (NAME@VERSION), the name of the release. pending reports that read has no result yet. The result includes no version for
// ranges that are pending or that read refuses, which is not an error, or if there are over maxRanges. Other errors of read
// are returned.
func ReadWanted(ctx context.Context, owner string, about *logs.About, read Ranges) (w Wanted, pending bool, err error) {
	if w.ranges = rangesOf(about); len(w.ranges) == 0 {
		return w, false, nil
	}
	w.parsed, pending, err = read(ctx, owner, w.ranges)
	if errors.As(err, new(*document.RefusedError)) {
		err = nil
	}
	return w, pending, err
}

// newest returns the first of versions, which are sorted newest first, that is in the range wanted, as includes defines it;
// "" if none is.
func (w Wanted) newest(versions []views.Version, wanted string) string {
	for _, v := range versions {
		if w.includes(wanted, v.Version) {
			return v.Version
		}
	}
	return ""
}

// includes reports whether a version is in the range wanted, one of the ranges in w as upstream wrote it, or "", which every
// stable semantic version is in. It is false for a range that w does not have or that was not parsed.
func (w Wanted) includes(wanted, version string) bool {
	r := document.Range{{{Operator: ">=", Version: "0.0.0"}}}
	if wanted != "" {
		i, ok := slices.BinarySearch(w.ranges, wanted)
		if !ok || i >= len(w.parsed) {
			return false
		}
		r = w.parsed[i]
	}
	return r.Has(version)
}

// ChooseVersion returns the newest published version of library l in the range wanted, one of the ranges in w or "" for any
// stable version, and true (fits). If no version is in the range, it returns the library's latest version and false, or ""
// if nothing is published.
func (x *Index) ChooseVersion(l *Library, w Wanted, wanted string) (version string, fits bool, err error) {
	versions, err := x.Versions(l.Name)
	if err != nil || len(versions) == 0 {
		return "", false, err
	}
	if version = w.newest(versions, wanted); version != "" {
		return version, true, nil
	}
	return packages.LatestVersion(VersionNames(versions)), false, nil
}
