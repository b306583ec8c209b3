package app

import (
	"context"

	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/verify"
)

// BundleRequest says which bundle is written.
type BundleRequest struct {
	File string `json:"file"` // an absolute path
	// Since is how many log entries the reader of the bundle has.
	Since int64 `json:"since,omitempty"`
	// Packages are patterns of the releases whose files are in it, PACKAGE or PACKAGE@VERSION. Default: all.
	Packages []string `json:"packages,omitempty"`
}

// OpBundle writes the log and its contents into one file.
const OpBundle Operation[BundleRequest, EntryProgress, replication.BundleResult] = "bundle"

// writeBundle writes the signed log, and the contents of the entries that q selects, into the file of q, from which another
// Larder can read them. It calls report with the number of entries done. The error is errUnsigned if the log is not signed.
func (r *Reader) writeBundle(ctx context.Context, q BundleRequest, report func(EntryProgress)) (replication.BundleResult, error) {
	note, key, err := signing.PublishedNote(r.store, r.settings.KeyFolder())
	if err != nil {
		return replication.BundleResult{}, err
	}
	if note == nil {
		return replication.BundleResult{}, errUnsigned
	}
	return replication.WriteBundle(ctx, q.File, replication.BundleOptions{
		Source: replication.FromStore(r.store, r.settings.Data).WithCheckpoint(note), Trust: verify.Trust{Key: key}, Since: q.Since, Packages: q.Packages,
		Progress: func(entries, of int64) { report(EntryProgress{entries, of}) },
	})
}
