package views

import (
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Change is an entry of the log with the contents that it names.
type Change struct {
	Index int64
	logs.Entry
	// Manifest is that of an entry by which a release is published, confirmed, withdrawn or restored.
	Manifest *logs.Manifest
	// PackageJSON is the content that a PackageAdded, PackageChanged or
	// PackageRemoved entry names.
	PackageJSON []byte
	// Erasure is that of an Erased entry.
	Erasure *logs.Erasure
	// Absent: the contents of the release are not here, see [SetAbsent].
	Absent bool
}

// Apply adds to a batch every change of rows that follows from an entry of the log. An unknown kind of entry, and a
// manifest of another release, are errors; then the batch must not be committed. The caller has loaded what c needs, see
// [Load].
func Apply(b *kvstore.Batch, c Change) error {
	nameDocuments(b, c)
	switch c.Kind {
	case logs.PackageAdded, logs.PackageChanged, logs.PackageRemoved:
		return setJSON(b, kvstore.Packages, kvstore.Key(c.Package),
			Package{Name: c.Package, JSON: c.PackageJSON, Entry: c.Index, Removed: c.Kind == logs.PackageRemoved})
	case logs.Detected:
		return SetState(b, c.newState(Detected))
	case logs.Refused:
		refused := c.newState(Refused)
		refused.Imported = c.Provenance != nil && c.Provenance.Outcome == logs.AttestationMissing
		return SetState(b, refused)
	case logs.Published, logs.Mirrored, logs.Confirmed, logs.Replaced, logs.Restored:
		return applyPublished(b, c)
	case logs.Withdrawn:
		return applyWithdrawn(b, c)
	case logs.Processed, logs.Erased, logs.UpstreamChanged, logs.KeyChanged, logs.LossAccepted:
		// They change nothing of what is served: of an erased release the
		// withdrawal has taken the rows already.
		return nil
	}
	return fmt.Errorf("views: entry %d has the unknown kind %q", c.Index, c.Kind)
}

// applyPublished adds the rows of a published, mirrored, confirmed, replaced or restored release and its files. If the
// release is absent, it adds none, and deletes those of the version and its state for a restored one. A manifest of another
// release is an error.
func applyPublished(b *kvstore.Batch, c Change) error {
	m := c.Manifest
	if m.Package != c.Package || m.Version != c.Version {
		return fmt.Errorf("views: entry %d (%s) is about %s %s, but its manifest is that of %s %s", c.Index, c.Kind, c.Package, c.Version, m.Package, m.Version)
	}
	if c.Absent {
		if c.Kind == logs.Restored { // it is withdrawn no longer, and not here either
			b.Delete(kvstore.Versions, kvstore.Key(c.Package, c.Version))
			b.Delete(kvstore.States, kvstore.Key(c.Package, c.Version))
		}
		return nil
	}
	v := newVersion(c)
	nameFiles(b, c)
	for _, f := range m.Files {
		key := kvstore.Key(c.Package, c.Version, f.Path)
		b.Set(kvstore.Files, key, File{Hash: f.SHA256, Size: f.Size, Released: m.Released, Module: f.Module, Provisional: v.Mirror.Provisional()}.encode())
		b.Set(kvstore.SRIs, key, f.SRI[:])
	}
	if err := setJSON(b, kvstore.Versions, kvstore.Key(c.Package, c.Version), v); err != nil {
		return err
	}
	state := c.newState(Published)
	if v.Mirror.Provisional() {
		state.Kind = Mirrored
	}
	state.Reason = "" // why it was restored explains nothing of what it is now
	return SetState(b, state)
}

// applyWithdrawn deletes the rows of a release's files, so that looking up a file needs only one row, and marks the rows of
// the version and of its state as withdrawn, with the reason.
func applyWithdrawn(b *kvstore.Batch, c Change) error {
	nameFiles(b, c)
	for _, f := range c.Manifest.Files {
		key := kvstore.Key(c.Package, c.Version, f.Path)
		b.Delete(kvstore.Files, key)
		b.Delete(kvstore.SRIs, key)
	}
	v := newVersion(c)
	v.Withdrawn = &Withdrawal{Entry: c.Index, Reason: c.Reason, Time: c.Time}
	if err := setJSON(b, kvstore.Versions, kvstore.Key(c.Package, c.Version), v); err != nil {
		return err
	}
	return SetState(b, c.newState(Withdrawn))
}

// newVersion returns the row of a published version, from the entry and its manifest. It has no withdrawal. Its downloads
// are the entry's, so 0 for an entry that does not publish the release.
func newVersion(c Change) Version {
	v := Version{
		Package:  c.Package,
		Version:  c.Version,
		Released: c.Manifest.Released,
		Manifest: c.Entry.Manifest,
		Entry:    c.Index,
		Default:  c.Manifest.Default,
		Files:    len(c.Manifest.Files),
		Mirror:   c.Mirror,

		Downloads: c.Downloads,
	}
	for _, f := range c.Manifest.Files {
		v.Bytes += f.Size
	}
	return v
}

// newState returns a state of this kind for the version that the change is about, with the entry's reason and times.
func (c Change) newState(kind StateKind) State {
	return State{Package: c.Package, Version: c.Version, Kind: kind, Reason: c.Reason, Released: c.Released, Updated: c.Time}
}
