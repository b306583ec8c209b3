package views

import (
	"context"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// Record appends a change's entry to the log and adds the rows that it causes.
// c.Index is not used.
func Record(tx *logs.Tx, c Change) error {
	e, err := tx.Append(c.Entry)
	if err != nil {
		return err
	}
	c.Index, c.Entry = e.Index, e.Entry
	return Apply(tx.Batch, c)
}

// Load completes an entry with the contents that it names, ready for Apply.
func Load(store *kvstore.Store, e logs.Indexed) (Change, error) {
	c := Change{Index: e.Index, Entry: e.Entry}
	var err error
	switch e.Kind {
	case logs.PackageAdded, logs.PackageChanged:
		c.PackageJSON, err = store.Identity(e.PackageJSON)
	case logs.Published, logs.Withdrawn:
		c.Manifest, err = logs.ReadManifest(store, e.Entry.Manifest)
	}
	if err != nil {
		return Change{}, fmt.Errorf("views: entry %d (%s %s %s): %w", e.Index, e.Kind, e.Package, e.Version, err)
	}
	return c, nil
}

// Contents calls fn for every content that the log in r names: package JSON,
// manifests, and the files in them, repeats included.
func Contents(ctx context.Context, store *kvstore.Store, r kvstore.Reader, fn func(kvstore.Hash)) error {
	for e, err := range logs.Entries(r, 0) {
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := Load(store, e)
		if err != nil {
			return err
		}
		if c.PackageJSON != nil {
			fn(e.PackageJSON)
		}
		if c.Manifest != nil {
			fn(e.Manifest)
			for _, f := range c.Manifest.Files {
				fn(f.SHA256)
			}
		}
	}
	return nil
}
