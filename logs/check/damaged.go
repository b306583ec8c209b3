package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
)

// scannedRows are the rows that a repair needs of a damaged store. Views are not among them: they follow from the log.
var scannedRows = []kvstore.Namespace{
	kvstore.LogEntries, kvstore.LogHashes, kvstore.LogState, kvstore.Absent, kvstore.Deltas, kvstore.Durable, kvstore.Meta,
	kvstore.Upstreams, kvstore.Queue, kvstore.States, kvstore.Usage,
}

// A damagedStore is the rows that a scan has found of a damaged store, as a source.
type damagedStore struct {
	scan *kvstore.FileScan
	tree *tree // of all entries that the store had, also those that were not signed yet
}

// scanStore scans all files of the damaged store in the data folder into an index in e.Temp. It returns nil if the folder has no store. The caller
// closes the scan.
func (e *engine) scanStore(ctx context.Context) (*damagedStore, error) {
	if _, err := os.Stat(e.path(storeName)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	o := e.storeOptions(storeName, e.beside)
	scan, err := kvstore.ScanFiles(ctx, e.path(storeName), e.Temp, o, scannedRows, func(done, of int64) { e.reportProgress("scanning", done, of) })
	if err != nil {
		return nil, err
	}
	return &damagedStore{scan: scan}, nil
}

// readLog finds, among the rows of the scan, the entries of the log: those that the signed checkpoint covers, and the later ones that the store had.
// It sets d.tree. Entries that were not found are no error.
func (d *damagedStore) readLog(ctx context.Context, signed logs.Checkpoint) (err error) {
	if d.tree, err = readTree(ctx, d.scan, signed); err != nil {
		return err
	}
	// The log cannot have had more entries than this. The checkpoint in the store may be a row that someone has forged.
	most := signed.Size + d.scan.Count(kvstore.LogEntries) + d.scan.Count(kvstore.LogHashes) + mostLost
	had, err := logs.ReadCheckpoint(d.scan)
	if err != nil || had.Size <= 0 || had.Size > most { // the row is lost: then the entries count that are there
		had = logs.Checkpoint{Size: readablePrefix(d.scan, signed.Size, math.MaxInt64)}
	}
	if had.Size > signed.Size {
		proven := d.tree.leaves
		d.tree, err = readTree(ctx, d.scan, had)
		copy(d.tree.leaves, proven)
	}
	return errors.Join(err, d.scan.Err(), ctx.Err())
}

// mostLost is how many entries may be missing from the end of a log of which the checkpoint is believed.
const mostLost = 1 << 16

// isStored reports whether a store, or what a scan has found of one, has an entry whose hash is the one that its tree has at that index.
func isStored(from kvstore.Getter, index int64) bool {
	raw, err := logs.RawEntry(from, index)
	return err == nil && logs.MatchesTree(from, index, raw)
}

// completePrefix returns how many entries were found from the first one on without a gap.
func (d *damagedStore) completePrefix() (n int64) {
	for d.tree.entry(n) != nil {
		n++
	}
	return n
}

// Name implements [Source]: it returns a name for messages.
func (d *damagedStore) Name() string { return "the damaged store" }

// Entries returns the raw entries from index on that were found, without a gap and at most 256, for [replication.ReadEntries]; [fs.ErrNotExist] if
// the one at index was not found.
func (d *damagedStore) Entries(ctx context.Context, index int64) (entries [][]byte, err error) {
	return replication.ReadUntilGap(ctx, index, d.tree.entry)
}

// Content implements [Source]: it returns the encodings of a content that the scan found and that decode to it. If there are none, the error is
// [fs.ErrNotExist].
func (d *damagedStore) Content(ctx context.Context, w replication.Wanted) (replication.Found, error) {
	squeezed, coded, err := d.scan.Content(ctx, w.Hash, w.Limit)
	if errors.Is(err, kvstore.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return replication.Found{Squeezed: squeezed, Coded: coded}, err
}
