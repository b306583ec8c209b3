package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// smallLog is the number of entries up to which all of them are read: 16 bundles. That is quick, and detects a signer that lies about
// which releases are live.
const smallLog = 4096

// maxReplayed bounds the live releases in the map that is computed from the log, because they take memory.
const maxReplayed = 1 << 18

// A Release is the log's entries and manifest of a release.
type Release struct {
	Package string
	Version string
	// Published is the entry that names the manifest.
	Published logs.Indexed
	// Confirmed is the entry that says that upstream has the bytes of a release that was copied from another origin, nil for none.
	Confirmed *logs.Indexed
	Manifest  *logs.Manifest
	// Live says that the release is served at the end of the log.
	Live bool
	// Withdrawn is the entry since which the release is not served. It is nil for a live release, or if the server does not say.
	Withdrawn *logs.Indexed
	// Changed is the last entry that says that upstream has changed or removed what the release was published from, nil for none.
	Changed *logs.Indexed
	// Complete says that every entry of the log was read, and that each states the map of live releases that follows from the
	// entries up to it. Otherwise only the signer vouches for that map.
	Complete bool

	packageJSON logs.Indexed // the last entry that has the package JSON, of a log that was read whole
	compared    *Comparison
}

// errNoRelease says that the log has no publication of a release.
var errNoRelease = errors.New("the log does not say that it was published")

// Release returns what the log says about a release, and verifies whether it is live and that its manifest is the published
// one. A withdrawn release is no error. If the log does not publish the release, the error is errNoRelease; entries, a
// proof or a manifest that contradict the log are a [Difference]. It reads all of a small log, or of any with Options.All,
// and else has the server prove it; then errNoRelease rests on the server's word. It caches the last release.
func (l *Log) Release(ctx context.Context, pkg, version string) (*Release, error) {
	name := [2]string{pkg, version}
	if r, ok := l.releases[name]; ok {
		return r, nil
	}
	r := &Release{Package: pkg, Version: version, Complete: l.options.All || l.Tree.N <= smallLog}
	read := l.readFromProof
	if r.Complete {
		read = l.readFromHistory
	}
	err := read(ctx, r)
	if err != nil {
		return nil, err
	}
	if r.Manifest, err = l.fetchManifest(ctx, r.Published); err != nil {
		return nil, err
	}
	clear(l.releases) // files of one release come one after the other
	l.releases[name] = r
	return r, nil
}

// A history is what all entries of a log say about its releases.
type history struct {
	only      *[2]string // package and version of the only release in it; nil for all releases
	releases  map[[2]string]*Release
	wrong     map[[2]string]error     // the first contradiction among the entries about a release
	documents map[string]logs.Indexed // the last entry that has the package JSON of a package
	bytes     int                     // of all entries that were applied to it, also of replaced or deleted ones
}

// maxHistory bounds the entries in a history, in bytes. A log with more is read again for each release.
const maxHistory = 32 << 20

// addEntry applies the next entry of the log to the history. If [Release.applyEntry] says that the entry contradicts those
// before it about a release, addEntry records that in h.wrong, and ignores later ones about the release. It also ignores
// entries of all other kinds than those that publish, confirm, withdraw or restore a release, report a change upstream, or add or
// change package JSON, and those that h.only leaves out. A withdrawal never
// contradicts, even if the release was not published.
func (h *history) addEntry(e logs.Indexed) {
	size := len(e.Raw)
	e.Raw = nil // it keeps a bundle of some MB in memory
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
	if err := r.applyEntry(e); err != nil {
		h.wrong[name] = err
	}
	h.bytes += size
}

// restrictTo deletes all releases but one, given by its package and version, and the package JSON of other packages from
// the history, and has addEntry ignore others.
func (h *history) restrictTo(name [2]string) {
	h.only = &name
	maps.DeleteFunc(h.releases, func(other [2]string, _ *Release) bool { return other != name })
	maps.DeleteFunc(h.wrong, func(other [2]string, _ error) bool { return other != name })
	maps.DeleteFunc(h.documents, func(pkg string, _ logs.Indexed) bool { return pkg != name[0] })
}

// readFromHistory sets all of r but its Manifest to what all entries of the log say about the release r.Package, r.Version.
// A release that no entry publishes is errNoRelease; entries about it that contradict each other are a [Difference], and so
// is a wrong map of live releases. It reads the entries once if the history of all releases fits in memory, and again for
// each release if not.
func (l *Log) readFromHistory(ctx context.Context, r *Release) error {
	name := [2]string{r.Package, r.Version}
	h := l.history
	if h == nil {
		var err error
		if h, err = l.readHistory(ctx, name); err != nil {
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
	if found == nil || !found.isPublished() {
		return errNoRelease
	}
	*r = *found
	r.packageJSON, r.Live = h.documents[r.Package], r.Withdrawn == nil
	return nil
}

// readHistory reads all entries of the log, calls Options.Progress after each 1,024, and verifies the map of live releases
// after each entry; another map is a [Difference]. If the history is over maxHistory, it has only the release name, a
// package and a version.
func (l *Log) readHistory(ctx context.Context, name [2]string) (*history, error) {
	h := &history{releases: map[[2]string]*Release{}, wrong: map[[2]string]error{}, documents: map[string]logs.Indexed{}}
	live := logs.NewLiveMap()
	end := (l.Tree.N + fullWidth - 1) >> height
	for n := int64(0); n < end; n += bundlesAtOnce {
		entries, err := l.readBundles(ctx, n, min(n+bundlesAtOnce, end))
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if err := applyToMap(live, e); err != nil {
				return nil, err
			}
			h.addEntry(e)
			if h.only == nil && h.bytes > maxHistory {
				h.restrictTo(name)
			}
		}
		if l.options.Progress != nil {
			l.options.Progress(min((n+bundlesAtOnce)<<height, l.Tree.N), l.Tree.N)
		}
	}
	return h, nil
}

// applyToMap applies a log entry to live, the map of the releases that are served at that point of the log, and returns a
// [Difference] if the map then does not have the root hash that the entry states. A map that becomes too large to compute
// here is another error.
func applyToMap(live *logs.LiveMap, e logs.Indexed) error {
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

// isProvisional reports whether only the word of another CDN, such as cdnjs, from which the release was copied, vouches for
// its files, and no entry says that upstream has the same.
func (r *Release) isProvisional() bool { return r.Confirmed == nil && r.Published.Mirror.Provisional() }

// isPublished reports whether an entry was read that publishes the release, even if a later one withdrew it.
func (r *Release) isPublished() bool { return r.Published.Manifest != (kvstore.Hash{}) }

// applyEntry applies the next entry about the release, of which it changes what the entry says. It returns a [Difference],
// and changes nothing, if the entry publishes other files again, replaces a release that is not provisional, or confirms or
// restores other files than the published ones. If r.Complete, the latter also holds for a release that was not published
// before. A withdrawal or change upstream never is a Difference, and entries of other kinds change nothing.
func (r *Release) applyEntry(e logs.Indexed) error {
	switch e.Kind {
	case logs.Published, logs.Mirrored:
		if r.isPublished() && e.Manifest != r.Published.Manifest {
			return differs("entry %d publishes %s %s again, which entry %d had published with other files", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Published, r.Withdrawn = e, nil
	case logs.Replaced:
		if r.isPublished() && !r.isProvisional() {
			return differs("entry %d publishes %s %s with other files than entry %d, which were not only another origin's word", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Published, r.Withdrawn, r.Confirmed, r.Changed = e, nil, nil, nil
	case logs.Confirmed:
		if e.Manifest != r.Published.Manifest && (r.isPublished() || r.Complete) {
			return differs("entry %d confirms %s %s with other files than those that entry %d published", e.Index, e.Package, e.Version, r.Published.Index)
		}
		r.Confirmed = &e
	case logs.Restored:
		if e.Manifest != r.Published.Manifest && (r.isPublished() || r.Complete) {
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

// fetchManifest fetches the manifest that an entry names, and verifies that it is that one, that it is about the entry's
// release, and that its files have the root that the entry states. If not, the error is a [Difference]; a manifest that
// cannot be fetched or decoded is another error.
func (l *Log) fetchManifest(ctx context.Context, e logs.Indexed) (*logs.Manifest, error) {
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

// File returns the manifest's record of the release's file at a path, which is relative to the release. It returns false if
// the manifest has none.
func (r *Release) File(path string) (logs.File, bool) {
	for _, f := range r.Manifest.Files {
		if f.Path == path {
			return f, true
		}
	}
	return logs.File{}, false
}

// maxLiveProof bounds the proof of whether a release is live, in bytes: three entries of up to 16 KiB, and some hundred hashes.
const maxLiveProof = 256 << 10

// maxAbout bounds the entries about a release in such a proof.
const maxAbout = 8

// readFromProof sets r, without its Manifest and package JSON, from the server's proof of whether the release is live at
// the end of the log, which it verifies. The proof also has the newest entries about the release, as far as the server
// shows them. A wrong proof is a [Difference]. A release that is neither live nor published by these entries is
// errNoRelease. With an error, r may be changed in part. The cost grows with the logarithm of the log's size.
func (l *Log) readFromProof(ctx context.Context, r *Release) error {
	path := tiles.LivePath(r.Package, r.Version, l.Tree.N)
	data, err := l.remote.get(ctx, path, maxLiveProof)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the server has no proof of whether %s %s is live for the checkpoint of %d entries, as after it has grown by thousands; try again, or read the whole log (--all): %w", r.Package, r.Version, l.Tree.N, err)
	}
	if err != nil {
		return fmt.Errorf("couldn't get the proof of whether %s %s is live: %w", r.Package, r.Version, err)
	}
	var p tiles.LiveProof
	if err := json.Unmarshal(data, &p); err != nil {
		return fmt.Errorf("%s%s: %w", l.remote.base, path, err)
	}
	if p.Size != l.Tree.N || p.Last.Index != l.Tree.N-1 {
		return differs("the request is for what is live after %d entries, and the response is about %d", l.Tree.N, p.Size)
	}
	if len(p.About) > maxAbout {
		return differs("the server's proof has %d entries about %s %s, over the limit of %d", len(p.About), r.Package, r.Version, maxAbout)
	}
	last, err := l.parseProvenEntry(p.Last)
	if err != nil {
		return err
	}
	if err := p.Map.Check(last.Live, r.Package, r.Version); err != nil {
		return differs("entry %d, the last one, has the root of what is live, and %v", last.Index, err)
	}
	about := map[int64]logs.Indexed{}
	newest := int64(-1)
	for _, shown := range p.About {
		e, err := l.parseProvenEntry(shown)
		if err != nil {
			return err
		}
		if e.Package != r.Package || e.Version != r.Version || e.Index <= newest {
			return differs("the server's proof has entry %d about %s %s, which is not the next one about it", e.Index, r.Package, r.Version)
		}
		if err := r.applyEntry(e); err != nil {
			return err
		}
		newest, about[e.Index] = e.Index, e
	}
	if live := p.Map.Live; live != nil {
		return l.applyLive(ctx, r, live.Entry, live.Manifest, about)
	}
	if !r.isPublished() {
		return fmt.Errorf("%w, as far as the server says; it is not among the live ones", errNoRelease)
	}
	return nil
}

// applyLive records that r is live since the entry number index with a manifest, as the map of live releases states, and
// verifies that this entry says so, and that the entries in r do not contradict it. If they do, the error is a
// [Difference]. about has the entries that the server showed, by number; applyLive fetches the entry if it is not among
// them. If that entry restores the release and the server showed none that publishes it, that is another error.
func (l *Log) applyLive(ctx context.Context, r *Release, index int64, manifest kvstore.Hash, about map[int64]logs.Indexed) error {
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
	if !r.isPublished() && since.Kind.Publishes() {
		r.Published = since
	}
	if !r.isPublished() {
		return fmt.Errorf("entry %d restored %s %s, and the server does not say which one published it", index, r.Package, r.Version)
	}
	if r.Published.Manifest != manifest {
		return differs("entry %d publishes %s %s with other files than those that are live", r.Published.Index, r.Package, r.Version)
	}
	r.Live, r.Withdrawn = true, nil
	return nil
}

// parseProvenEntry verifies the proof that an entry is in the log's tree, and parses the entry. A wrong proof is a
// [Difference]; an entry that this program cannot parse is another error.
func (l *Log) parseProvenEntry(shown tiles.ProvenEntry) (logs.Indexed, error) {
	if err := shown.Check(l.Tree); err != nil {
		return logs.Indexed{}, differs("entry %d is not in the signed tree: %v", shown.Index, err)
	}
	e, err := logs.ParseEntry(shown.Index, []byte(shown.Entry))
	if err != nil {
		return logs.Indexed{}, fmt.Errorf("%w; a newer larder may know it", err)
	}
	return e, nil
}
