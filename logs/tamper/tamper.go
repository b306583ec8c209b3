// Package tamper does to a store what somebody would who has broken in: it changes
// what is served so that the server knows no better. It is for tests and for the
// demonstration in docs/demonstration, and shows what only the log finds.
package tamper

import (
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// Replace has a published file be other bytes from now on: with their own hash and
// integrity, so that checksums, tags and pages are all as they have to be. It changes
// everything but the log, which nobody can without its key.
func Replace(store *kvstore.Store, pkg, version, path string, data []byte) error {
	v, err := views.LookupVersion(store, pkg, version)
	if errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("%s %s is not here", pkg, version)
	}
	if err != nil {
		return err
	}
	entry, err := logs.ReadEntry(store, v.Entry)
	if err != nil {
		return err
	}
	change, err := views.Load(store, entry)
	if err != nil {
		return err
	}
	found := false
	for i := range change.Manifest.Files {
		if f := &change.Manifest.Files[i]; f.Path == path {
			f.Size, f.SHA256, f.SRI = int64(len(data)), kvstore.Sum(data), logs.SumSRI(data)
			found = true
		}
	}
	if !found {
		return fmt.Errorf("%s %s has no file %s", pkg, version, path)
	}
	if err := store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		return err
	}
	b := store.NewBatch()
	defer b.Close()
	if err := views.Apply(b, change); err != nil {
		return err
	}
	return b.Commit()
}

// Append is Replace with the bytes that there are and some more.
func Append(store *kvstore.Store, pkg, version, path string, more []byte) error {
	file, err := views.LookupFile(store, pkg, version, path)
	if errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("%s %s has no file %s", pkg, version, path)
	}
	if err != nil {
		return err
	}
	data, err := store.Identity(file.Hash)
	if err != nil {
		return err
	}
	return Replace(store, pkg, version, path, append(data[:len(data):len(data)], more...))
}
