package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/tiles"
)

// scannedRows are the rows that a repair needs of a damaged store. Views are not among them: they follow from the log.
var scannedRows = []kvstore.Namespace{
	kvstore.LogEntries, kvstore.LogHashes, kvstore.LogState, kvstore.Absent, kvstore.Deltas, kvstore.Durable, kvstore.Meta,
	kvstore.Upstreams, kvstore.Queue, kvstore.States, kvstore.Usage,
}

// A damagedStore is the rows that a scan has found of a damaged store, as a source.
type damagedStore struct {
	scan   *kvstore.FileScan
	signed *tree           // the entries that were signed
	had    logs.Checkpoint // what the store says that it had
	tail   *tree           // all entries that it had, also those that were not signed yet
}

// scanStore scans all files of the damaged store in the data folder into an index. It returns nil if the folder has no store.
func (e *engine) scanStore(ctx context.Context) (*damagedStore, error) {
	if _, err := os.Stat(e.path(storeName)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	o := e.storeOptions()
	o.Mark, o.ReadOnly = e.Mark, e.beside
	scan, err := kvstore.ScanFiles(ctx, e.path(storeName), e.Temp, o, scannedRows, func(done, of int64) { e.reportProgress("scanning", done, of) })
	if err != nil {
		return nil, err
	}
	return &damagedStore{scan: scan}, nil
}

// readLog finds, among the rows of the scan, the entries of the log: those that the signed checkpoint covers, and the later ones that the store had.
func (d *damagedStore) readLog(ctx context.Context, signed logs.Checkpoint) (err error) {
	if d.signed, err = readTree(ctx, d.scan, signed); err != nil {
		return err
	}
	if d.had, err = logs.ReadCheckpoint(d.scan); err != nil || d.had.Size <= 0 || d.had.Size > d.mostEntries(signed) {
		d.had = logs.Checkpoint{} // the row is lost: then the entries count that are there
		for d.isStored(max(d.had.Size, signed.Size)) {
			d.had.Size = max(d.had.Size, signed.Size) + 1
		}
	}
	if d.tail = d.signed; d.had.Size > signed.Size {
		d.tail, err = readTree(ctx, d.scan, d.had)
	}
	return errors.Join(err, d.scan.Err(), ctx.Err())
}

// mostLost is how many entries may be missing from the end of a log of which the checkpoint is believed.
const mostLost = 1 << 16

// mostEntries returns an upper bound for how many entries the log can have had. The checkpoint in the store may be a row that someone has forged.
func (d *damagedStore) mostEntries(signed logs.Checkpoint) int64 {
	return signed.Size + d.scan.Count(kvstore.LogEntries) + d.scan.Count(kvstore.LogHashes) + mostLost
}

// isStored reports whether the scan found an entry and its hash in the tree.
func (d *damagedStore) isStored(index int64) bool {
	raw, err := logs.RawEntry(d.scan, index)
	return err == nil && logs.MatchesTree(d.scan, index, raw)
}

// size implements [ownLog]: it returns how many entries the store had.
func (d *damagedStore) size() int64 { return max(d.had.Size, d.signed.size) }

// entry returns the bytes of an entry that was signed or is in the tree that the store had, nil if they are lost.
func (d *damagedStore) entry(index int64) []byte {
	if index < d.signed.size {
		return d.signed.entry(index)
	}
	return d.tail.entry(index)
}

// hasEntryAt implements [ownLog], by the signed tree or, for later entries, the tree that the store had.
func (d *damagedStore) hasEntryAt(index int64, raw []byte) bool {
	if index < d.signed.size {
		return d.signed.hasEntryAt(index, raw)
	}
	return d.tail.hasEntryAt(index, raw)
}

// completePrefix returns how many entries were found from the first one on without a gap.
func (d *damagedStore) completePrefix() (n int64) {
	for d.entry(n) != nil {
		n++
	}
	return n
}

// lostEntries returns the indexes of the signed entries whose bytes the scan did not find.
func (d *damagedStore) lostEntries() (all []int64) {
	for index := range d.signed.size {
		if d.signed.entry(index) == nil {
			all = append(all, index)
		}
	}
	return all
}

// Name implements [Source]: it returns a name for messages.
func (d *damagedStore) Name() string { return "the damaged store" }

// Entries returns the raw entries from index on that were found, without a gap, for [replication.ReadEntries]; [fs.ErrNotExist] if none exists.
func (d *damagedStore) Entries(ctx context.Context, index int64) (entries [][]byte, err error) {
	for n := index; n < index+tiles.Width; n++ {
		raw := d.entry(n)
		if raw == nil {
			break
		}
		entries = append(entries, raw)
	}
	if entries == nil {
		return nil, fmt.Errorf("entry %d: %w", index, fs.ErrNotExist)
	}
	return entries, ctx.Err()
}

// Content implements [Source]: it returns the encodings of a content that the scan found.
func (d *damagedStore) Content(ctx context.Context, w replication.Wanted) (replication.Found, error) {
	squeezed, coded, err := d.scan.Content(ctx, w.Hash, w.Limit)
	if errors.Is(err, kvstore.ErrNotFound) {
		err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return replication.Found{Squeezed: squeezed, Coded: coded}, err
}
