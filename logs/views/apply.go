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
	// Manifest is that of a Published entry; for a Withdrawn one, that of the
	// release that is withdrawn.
	Manifest *logs.Manifest
	// PackageJSON is the content that a PackageAdded or PackageChanged entry names.
	PackageJSON []byte
}

// Apply adds to b every row that the change causes.
func Apply(b *kvstore.Batch, c Change) error {
	switch c.Kind {
	case logs.PackageAdded, logs.PackageChanged:
		return setJSON(b, kvstore.Packages, kvstore.Key(c.Package), Package{Name: c.Package, JSON: c.PackageJSON, Entry: c.Index})
	case logs.Detected:
		return SetState(b, c.state(Detected))
	case logs.Refused:
		return SetState(b, c.state(Refused))
	case logs.Published:
		return applyPublished(b, c)
	case logs.Withdrawn:
		return applyWithdrawn(b, c)
	}
	return fmt.Errorf("views: entry %d has the unknown kind %q", c.Index, c.Kind)
}

func applyPublished(b *kvstore.Batch, c Change) error {
	m := c.Manifest
	if m.Package != c.Package || m.Version != c.Version {
		return fmt.Errorf("views: entry %d publishes %s %s, but its manifest is that of %s %s", c.Index, c.Package, c.Version, m.Package, m.Version)
	}
	v := newVersion(c)
	for _, f := range m.Files {
		key := kvstore.Key(c.Package, c.Version, f.Path)
		b.Set(kvstore.Files, key, File{Hash: f.SHA256, Size: f.Size, Released: m.Released}.encode())
		b.Set(kvstore.SRIs, key, f.SRI[:])
	}
	if err := setJSON(b, kvstore.Versions, kvstore.Key(c.Package, c.Version), v); err != nil {
		return err
	}
	return SetState(b, c.state(Published))
}

// applyWithdrawn takes the files away, so that finding one costs a live version
// no second look-up, and leaves the version with the reason.
func applyWithdrawn(b *kvstore.Batch, c Change) error {
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
	return SetState(b, c.state(Withdrawn))
}

func newVersion(c Change) Version {
	v := Version{
		Package:  c.Package,
		Version:  c.Version,
		Released: c.Manifest.Released,
		Manifest: c.Entry.Manifest,
		Entry:    c.Index,
		Default:  c.Manifest.Default,
		Files:    len(c.Manifest.Files),
	}
	for _, f := range c.Manifest.Files {
		v.Bytes += f.Size
	}
	return v
}

func (c Change) state(kind StateKind) State {
	return State{Package: c.Package, Version: c.Version, Kind: kind, Reason: c.Reason, Released: c.Released, Updated: c.Time}
}
