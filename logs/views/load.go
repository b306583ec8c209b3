package views

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Record appends a change's entry to the log and applies the change, in the batch of tx. It ignores c.Index. It reads
// nothing: c has the contents that its kind needs, see [Load]. After an error, such as a manifest of another release, tx must not be
// committed. If the entry
// publishes a release, it states the root of the manifest's files, whatever c.Files is.
func Record(tx *logs.Tx, c Change) error {
	if c.Kind.Publishes() {
		c.Entry.Files = c.Manifest.Root()
	}
	e, err := tx.Append(c.Entry)
	if err != nil {
		return err
	}
	c.Index, c.Entry = e.Index, e.Entry
	return Apply(tx.Batch, c)
}

// Load reads the contents that an entry names and Apply needs: the package JSON, the manifest or the erasure, whichever goes
// with its kind. With a manifest it also reads whether the release is absent.
func Load(store *kvstore.Store, e logs.Indexed) (Change, error) {
	c := Change{Index: e.Index, Entry: e.Entry}
	var err error
	switch e.Kind {
	case logs.PackageAdded, logs.PackageChanged, logs.PackageRemoved:
		c.PackageJSON, err = store.Identity(e.PackageJSON)
	case logs.Published, logs.Mirrored, logs.Confirmed, logs.Replaced, logs.Withdrawn, logs.Restored:
		if c.Manifest, err = logs.ReadManifest(store, e.Entry.Manifest); err == nil {
			c.Absent, err = IsAbsent(store, e.Package, e.Version)
		}
	case logs.Erased:
		c.Erasure, err = logs.ReadErasure(store, e.Entry.Erasure)
	}
	if err != nil {
		return Change{}, fmt.Errorf("views: entry %d (%s %s %s): %w", e.Index, e.Kind, e.Package, e.Version, err)
	}
	return c, nil
}

// Contents calls fn for every content that the log in r needs, some repeatedly: what its entries name, and the files in the
// manifests, except those of absent releases. Files of withdrawn releases are needed as evidence until an Erased entry lists
// them.
func Contents(ctx context.Context, store *kvstore.Store, r kvstore.Reader, fn func(kvstore.Hash)) error {
	served := make(map[[2]string]struct{}) // releases that the log leaves served, by package and version
	entries := func(yield func(logs.Indexed, error) bool) {
		for e, err := range logs.Entries(r, 0) {
			switch {
			case e.Kind.Serves():
				served[[2]string{e.Package, e.Version}] = struct{}{}
			case e.Kind == logs.Withdrawn:
				delete(served, [2]string{e.Package, e.Version})
			}
			if !yield(e, err) {
				return
			}
		}
	}
	erased, err := ScanErasures(ctx, store, entries, func(_ logs.Indexed, err error) error { return err })
	if err != nil {
		return err
	}
	for e, err := range logs.Entries(r, 0) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		c, err := Load(store, e)
		if err != nil {
			return err
		}
		for _, h := range e.Contents() {
			fn(h)
		}
		if c.Manifest == nil {
			continue
		}
		_, live := served[[2]string{e.Package, e.Version}]
		for _, f := range c.Manifest.Files {
			if _, gone := erased[f.SHA256]; !c.Absent && (live || !gone) {
				fn(f.SHA256)
			}
		}
	}
	return nil
}

// ScanErasures reads entries of the log in their order, and returns the contents that they erase and no later one publishes or restores again. For an
// entry whose erasure or manifest cannot be read it calls unreadable, and continues without what the entry names if that returns nil.
func ScanErasures(
	ctx context.Context, store *kvstore.Store, entries iter.Seq2[logs.Indexed, error], unreadable func(logs.Indexed, error) error,
) (map[kvstore.Hash]struct{}, error) {
	erased := make(map[kvstore.Hash]struct{})
	for e, err := range entries {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return erased, err
		}
		if e.Kind != logs.Erased && (len(erased) == 0 || !e.Kind.Serves()) {
			continue
		}
		c, err := Load(store, e)
		if err != nil {
			if err := unreadable(e, err); err != nil {
				return erased, err
			}
			continue
		}
		if c.Erasure != nil {
			for _, h := range c.Erasure.Contents {
				erased[h] = struct{}{}
			}
			continue
		}
		for _, f := range c.Manifest.Files {
			delete(erased, f.SHA256)
		}
	}
	return erased, nil
}
