package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// smallLog is the number of entries up to which all of them are read: 16 bundles.
const smallLog = 4096

// maxContent bounds a manifest: it is more than one of 100,000 files has.
const maxContent = 64 << 20

// A Release is what the log says about one.
type Release struct {
	Package string
	Version string
	// Published is the entry that names the manifest.
	Published logs.Indexed
	Manifest  *logs.Manifest
	// Withdrawn is the entry since which the release is not served, or nil.
	Withdrawn *logs.Indexed
	// Complete tells that every entry of the log was read. Else those are known that
	// the server told of, and nothing proves that there is no later one.
	Complete bool
}

// errNoRelease is that the log has no publication of a release.
var errNoRelease = errors.New("the log does not say that it was published")

// Release reads what the log says about a release.
func (l *Log) Release(ctx context.Context, pkg, version string) (*Release, error) {
	r := &Release{Package: pkg, Version: version, Complete: l.options.All || l.tree.N <= smallLog}
	var err error
	if r.Complete {
		err = l.scan(ctx, r)
	} else {
		err = l.hinted(ctx, r)
	}
	if err != nil {
		return nil, err
	}
	if r.Manifest, err = l.manifest(ctx, r.Published); err != nil {
		return nil, err
	}
	return r, nil
}

// scan reads the whole log.
func (l *Log) scan(ctx context.Context, r *Release) error {
	for n := int64(0); n<<height < l.tree.N; n++ {
		entries, err := l.bundle(ctx, n)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Package != r.Package || e.Version != r.Version {
				continue
			}
			if err := r.happened(e); err != nil {
				return err
			}
		}
		if l.options.Progress != nil {
			l.options.Progress(n<<height+int64(len(entries)), l.tree.N)
		}
	}
	if !r.published() {
		return errNoRelease
	}
	return nil
}

// hinted reads the entries that the server tells of.
func (l *Log) hinted(ctx context.Context, r *Release) error {
	indexes, err := l.hints(ctx, r.Package, r.Version)
	if err != nil {
		return err
	}
	for _, index := range indexes {
		e, err := l.Entry(ctx, index)
		if err != nil {
			return err
		}
		if e.Package != r.Package || e.Version != r.Version {
			return differs("the server says that entry %d is about %s %s, and it is about %s %s", index, r.Package, r.Version, e.Package, e.Version)
		}
		if err := r.happened(e); err != nil {
			return err
		}
	}
	if !r.published() {
		return fmt.Errorf("%w, as far as the server tells; reading all %d entries (--all) makes sure", errNoRelease, l.tree.N)
	}
	return nil
}

// hints asks which entries are about a release, in the order of the log.
func (l *Log) hints(ctx context.Context, pkg, version string) ([]int64, error) {
	path := "/logs/" + url.PathEscape(pkg) + "/" + url.PathEscape(version) + "?kind=published,withdrawn,restored&limit=1000"
	data, err := l.remote.get(ctx, path, maxContent)
	if err != nil {
		return nil, fmt.Errorf("couldn't ask which entries are about %s %s; reading all %d entries (--all) makes that unnecessary: %w", pkg, version, l.tree.N, err)
	}
	var told []struct {
		Index int64 `json:"index"`
	}
	if err := json.Unmarshal(data, &told); err != nil {
		return nil, fmt.Errorf("%s%s: %w", l.remote.base, path, err)
	}
	var indexes []int64
	for _, e := range told {
		if e.Index < l.tree.N { // else it is not signed yet
			indexes = append(indexes, e.Index)
		}
	}
	slices.Sort(indexes)
	return slices.Compact(indexes), nil
}

func (r *Release) published() bool { return r.Published.Manifest != (kvstore.Hash{}) }

// happened takes the next entry about the release.
func (r *Release) happened(e logs.Indexed) error {
	switch e.Kind {
	case logs.Published:
		if r.published() && r.Withdrawn == nil && e.Manifest != r.Published.Manifest {
			return differs("entry %d publishes %s %s again, which entry %d had published with other files", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Published, r.Withdrawn = e, nil
	case logs.Restored:
		if e.Manifest != r.Published.Manifest {
			return differs("entry %d restores %s %s with other files than those that entry %d published", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Withdrawn = nil
	case logs.Withdrawn:
		r.Withdrawn = &e
	}
	return nil
}

// manifest returns the manifest that an entry names.
func (l *Log) manifest(ctx context.Context, e logs.Indexed) (*logs.Manifest, error) {
	data, err := l.remote.get(ctx, tiles.ContentPath(e.Index, e.Manifest), maxContent)
	if err != nil {
		return nil, fmt.Errorf("couldn't get the manifest of %s %s: %w", e.Package, e.Version, err)
	}
	if sum := kvstore.Sum(data); sum != e.Manifest {
		return nil, differs("the manifest of %s %s has the hash %s, entry %d says %s", e.Package, e.Version, sum, e.Index, e.Manifest)
	}
	m, err := logs.DecodeManifest(data)
	if err != nil {
		return nil, err
	}
	if m.Package != e.Package || m.Version != e.Version {
		return nil, differs("entry %d is about %s %s, and its manifest about %s %s", e.Index, e.Package, e.Version, m.Package, m.Version)
	}
	return m, nil
}

// File returns a line of the manifest.
func (r *Release) File(path string) (logs.File, bool) {
	for _, f := range r.Manifest.Files {
		if f.Path == path {
			return f, true
		}
	}
	return logs.File{}, false
}
