package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/livemap"
	"github.com/larder-cdn/larder/logs/tiles"
)

// smallLog is the number of entries up to which all of them are read: 16 bundles. That is
// quick, and finds a log whose signer lies about which releases are live.
const smallLog = 4096

// together is the number of bundles that are read at once, of 4 MiB at most.
const together = 4

// maxReplayed bounds the live releases of which the map is made again, as they take memory.
const maxReplayed = 1 << 18

// A Release is what the log says about one.
type Release struct {
	Package string
	Version string
	// Published is the entry that names the manifest.
	Published logs.Indexed
	// Confirmed is the entry that says that upstream has the bytes of a release which only another
	// origin vouched for, nil for none.
	Confirmed *logs.Indexed
	Manifest  *logs.Manifest
	// Live tells that the release is served at the end of the log.
	Live bool
	// Withdrawn is the entry since which the release is not served, nil where that is
	// served, or where the server does not tell.
	Withdrawn *logs.Indexed
	// Changed is the entry that says last that upstream has changed or removed what the release was published from, nil
	// for none.
	Changed *logs.Indexed
	// Complete tells that every entry of the log was read, and that each says what is
	// live as the entries up to it do. Else that is the signer's word.
	Complete bool

	packageJSON logs.Indexed // the last entry that has the package JSON, of a log that was read whole
	compared    *Comparison
}

// errNoRelease is that the log has no publication of a release.
var errNoRelease = errors.New("the log does not say that it was published")

// Release reads what the log says about a release, and whether it is live by the map whose
// root is in the log's last entry.
func (l *Log) Release(ctx context.Context, pkg, version string) (*Release, error) {
	name := [2]string{pkg, version}
	if r, ok := l.releases[name]; ok {
		return r, nil
	}
	r := &Release{Package: pkg, Version: version, Complete: l.options.All || l.tree.N <= smallLog}
	read := l.askLive
	if r.Complete {
		read = l.replay
	}
	err := read(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Manifest, err = l.manifest(ctx, r.Published); err != nil {
		return nil, err
	}
	clear(l.releases) // files of one release come one after the other
	l.releases[name] = r
	return r, nil
}

// A history is what a log that was read whole says of its releases.
type history struct {
	only      *[2]string // the one that it is of, where the log has too many to keep them all
	releases  map[[2]string]*Release
	wrong     map[[2]string]error     // why nothing counts that is said of a release
	documents map[string]logs.Indexed // the last entry that has the package JSON of a package
	bytes     int                     // of the entries that are kept
}

// maxHistory bounds the entries of a history that are kept, in bytes. The log of anything larger is read again for each release.
const maxHistory = 32 << 20

// add takes the next entry of the log.
func (h *history) add(e logs.Indexed) {
	size := len(e.Raw)
	e.Raw = nil // it is a part of some MB
	if e.Kind == logs.PackageAdded || e.Kind == logs.PackageChanged {
		if h.only == nil || h.only[0] == e.Package {
			h.documents[e.Package] = e
			h.bytes += size
		}
		return
	}
	name := [2]string{e.Package, e.Version}
	switch {
	case h.only != nil && *h.only != name || h.wrong[name] != nil:
		return
	case e.Kind != logs.Confirmed && e.Kind != logs.Withdrawn && e.Kind != logs.UpstreamChanged && !e.Kind.Serves():
		return
	}
	r := h.releases[name]
	if r == nil {
		r = &Release{Package: e.Package, Version: e.Version, Complete: true}
		h.releases[name] = r
	}
	if err := r.happened(e); err != nil {
		h.wrong[name] = err
	}
	h.bytes += size
}

// narrow keeps one release only.
func (h *history) narrow(name [2]string) {
	h.only = &name
	for other := range h.releases {
		if other != name {
			delete(h.releases, other)
		}
	}
	for other := range h.wrong {
		if other != name {
			delete(h.wrong, other)
		}
	}
	for pkg := range h.documents {
		if pkg != name[0] {
			delete(h.documents, pkg)
		}
	}
}

// replay reads the whole log, once for all releases where they can be kept, and makes the map of live releases again.
func (l *Log) replay(ctx context.Context, r *Release) error {
	name := [2]string{r.Package, r.Version}
	h := l.history
	if h == nil {
		var err error
		if h, err = l.readAll(ctx, name); err != nil {
			return err
		}
		if h.only == nil {
			l.history = h
		}
	}
	if err := h.wrong[name]; err != nil {
		return err
	}
	found := h.releases[name]
	if found == nil || !found.published() {
		return errNoRelease
	}
	*r = *found
	r.packageJSON, r.Live = h.documents[r.Package], r.Withdrawn == nil
	return nil
}

// readAll reads the whole log. What it returns is of that release only where there is too much to keep.
func (l *Log) readAll(ctx context.Context, name [2]string) (*history, error) {
	h := &history{releases: map[[2]string]*Release{}, wrong: map[[2]string]error{}, documents: map[string]logs.Indexed{}}
	live := livemap.New()
	end := (l.tree.N + fullWidth - 1) >> height
	for n := int64(0); n < end; n += together {
		entries, err := l.bundles(ctx, n, min(n+together, end))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := replayed(live, e); err != nil {
				return nil, err
			}
			h.add(e)
			if h.only == nil && h.bytes > maxHistory {
				h.narrow(name)
			}
		}
		if l.options.Progress != nil {
			l.options.Progress(min((n+together)<<height, l.tree.N), l.tree.N)
		}
	}
	return h, nil
}

// replayed adds an entry to the map and compares its root.
func replayed(live *livemap.Map, e logs.Indexed) error {
	if err := logs.ApplyLive(live, e.Index, e.Entry); err != nil {
		return err
	}
	if live.Len() > maxReplayed {
		return fmt.Errorf("the log has over %d live releases, too many to compute here what each entry says of them", maxReplayed)
	}
	if root := live.Root(); root != e.Live {
		return differs("entry %d says that the map of live releases has the root %s, and the entries up to it make %s", e.Index, e.Live, root)
	}
	return nil
}

// provisional reports whether only another origin vouched for the files.
func (r *Release) provisional() bool { return r.Confirmed == nil && r.Published.Mirror.Provisional() }

func (r *Release) published() bool { return r.Published.Manifest != (kvstore.Hash{}) }

// happened takes the next entry about the release.
func (r *Release) happened(e logs.Indexed) error {
	switch e.Kind {
	case logs.Published, logs.Mirrored:
		if r.published() && e.Manifest != r.Published.Manifest {
			return differs("entry %d publishes %s %s again, which entry %d had published with other files", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Published, r.Withdrawn = e, nil
	case logs.Replaced:
		if r.published() && !r.provisional() {
			return differs("entry %d publishes %s %s with other files than entry %d, which were not only another origin's word", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Published, r.Withdrawn, r.Confirmed, r.Changed = e, nil, nil, nil
	case logs.Confirmed:
		if e.Manifest != r.Published.Manifest && (r.published() || r.Complete) {
			return differs("entry %d confirms %s %s with other files than those that entry %d published", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Confirmed = &e
	case logs.Restored:
		if e.Manifest != r.Published.Manifest && (r.published() || r.Complete) {
			return differs("entry %d restores %s %s with other files than those that entry %d published", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Withdrawn = nil
	case logs.Withdrawn:
		r.Withdrawn = &e
	case logs.UpstreamChanged:
		r.Changed = &e
	}
	return nil
}

// manifest returns the manifest that an entry names.
func (l *Log) manifest(ctx context.Context, e logs.Indexed) (*logs.Manifest, error) {
	data, err := l.remote.get(ctx, tiles.ContentPath(e.Index, e.Manifest), logs.MaxManifest)
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
	if root := m.Root(); root != e.Files {
		return nil, differs("the files of %s %s have the root %s, entry %d says %s", e.Package, e.Version, root, e.Index, e.Files)
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

// maxLiveProof bounds the proof of whether a release is live: three entries of up to 16 KiB,
// and some hundred hashes.
const maxLiveProof = 256 << 10

// maxAbout bounds the entries that the server shows about a release.
const maxAbout = 8

// askLive has the server prove whether a release is live at the end of the log. The cost
// grows with the logarithm of the log's size.
func (l *Log) askLive(ctx context.Context, r *Release) error {
	path := tiles.LivePath(r.Package, r.Version, l.tree.N)
	data, err := l.remote.get(ctx, path, maxLiveProof)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the server has no proof of whether %s %s is live for the checkpoint of %d entries, as after it has grown by thousands; try again, or read the whole log (--all): %w", r.Package, r.Version, l.tree.N, err)
	}
	if err != nil {
		return fmt.Errorf("couldn't get the proof of whether %s %s is live: %w", r.Package, r.Version, err)
	}
	var p tiles.LiveProof
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("%s%s: %w", l.remote.base, path, err)
	}
	if p.Size != l.tree.N || p.Last.Index != l.tree.N-1 {
		return differs("the server was asked what is live after %d entries, and tells of %d", l.tree.N, p.Size)
	}
	if len(p.About) > maxAbout {
		return differs("the server shows %d entries about %s %s, and %d are the most", len(p.About), r.Package, r.Version, maxAbout)
	}
	last, err := l.proven(p.Last)
	if err != nil {
		return err
	}
	if err := p.Map.Check(last.Live, r.Package, r.Version); err != nil {
		return differs("entry %d, the last one, has the root of what is live, and %v", last.Index, err)
	}
	about := map[int64]logs.Indexed{}
	newest := int64(-1)
	for _, shown := range p.About {
		e, err := l.proven(shown)
		if err != nil {
			return err
		}
		if e.Package != r.Package || e.Version != r.Version || e.Index <= newest {
			return differs("the server shows entry %d about %s %s, which is not the next one about it", e.Index, r.Package, r.Version)
		}
		if err := r.happened(e); err != nil {
			return err
		}
		newest, about[e.Index] = e.Index, e
	}
	if live := p.Map.Live; live != nil {
		return l.isLive(ctx, r, live.Entry, live.Manifest, about)
	}
	if !r.published() {
		return fmt.Errorf("%w, as far as the server tells; it is not among the live ones", errNoRelease)
	}
	return nil
}

// isLive takes that the map has a release as live since an entry, by a manifest. That entry
// must say so.
func (l *Log) isLive(ctx context.Context, r *Release, index int64, manifest kvstore.Hash, about map[int64]logs.Indexed) error {
	since, ok := about[index]
	if !ok {
		var err error
		if since, err = l.Entry(ctx, index); err != nil {
			return fmt.Errorf("couldn't get entry %d, since which %s %s is live: %w", index, r.Package, r.Version, err)
		}
	}
	if !since.Kind.Serves() || since.Package != r.Package || since.Version != r.Version || since.Manifest != manifest {
		return differs("the last entry says that %s %s is live since entry %d, and that does not say so", r.Package, r.Version, index)
	}
	if r.Withdrawn != nil && r.Withdrawn.Index > index {
		return differs("the last entry says that %s %s is live, and entry %d withdrew it", r.Package, r.Version, r.Withdrawn.Index)
	}
	if !r.published() && since.Kind.Publishes() {
		r.Published = since
	}
	if !r.published() {
		return fmt.Errorf("entry %d restored %s %s, and the server does not show which one published it", index, r.Package, r.Version)
	}
	if r.Published.Manifest != manifest {
		return differs("entry %d publishes %s %s with other files than those that are live", r.Published.Index, r.Package, r.Version)
	}
	r.Live, r.Withdrawn = true, nil
	return nil
}

// proven reads an entry that the server shows with its proof.
func (l *Log) proven(shown tiles.ProvenEntry) (logs.Indexed, error) {
	if err := shown.Check(l.tree); err != nil {
		return logs.Indexed{}, differs("entry %d is not in the signed tree: %v", shown.Index, err)
	}
	e, err := logs.ParseEntry(shown.Index, []byte(shown.Entry))
	if err != nil {
		return logs.Indexed{}, fmt.Errorf("%w; a newer larder may know it", err)
	}
	return e, nil
}
