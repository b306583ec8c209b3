package logs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/larder-cdn/larder/kvstore"
)

// The map of live releases is stored in LogLive, and changes in the batch of the entries that change it. Clients request proofs from the
// map as it was at a signed checkpoint, which lags behind. So a batch only lists the rows that it replaces, and a later batch deletes
// them, once newer checkpoints are published.

// liveMargin is how many entries a client's checkpoint may be behind the published one before the proofs for it are deleted.
const liveMargin = 4096

// rowsPerList bounds the rows that one list of replaced rows names.
const rowsPerList = 64

// ApplyLive changes m, the map of live releases before an entry, to the one after it. An entry that publishes or restores a
// release sets it, with the entry's index; one that withdraws it deletes it; others change nothing.
func ApplyLive(m *LiveMap, index int64, e Entry) error {
	switch {
	case e.Kind.Serves():
		return m.Set(LiveKey(e.Package, e.Version), LiveRelease{Manifest: e.Manifest, Entry: index})
	case e.Kind == Withdrawn:
		return m.Delete(LiveKey(e.Package, e.Version))
	}
	return nil
}

// ReadLiveMap returns the map of live releases of the log in r when it had size entries. It reads the map's root; the map reads
// its other rows from r when they are needed. The size must be one of the newest at which an Update ended, because the rows
// of older maps may be deleted; then reading them is an error.
func ReadLiveMap(r kvstore.Reader, size int64) (*LiveMap, error) {
	root := EmptyLiveMap
	if size > 0 {
		last, err := ReadEntry(r, size-1)
		if err != nil {
			return nil, err
		}
		root = last.Live
	}
	row, err := LiveRootRow(r, size)
	if err != nil {
		return nil, err
	}
	m, err := OpenLiveMap(root, row, func(row []byte) ([]byte, error) { return r.Get(kvstore.LogLive, row) })
	if err != nil {
		return nil, fmt.Errorf("logs: couldn't read the map of live releases after entry %d; `larder repair` rebuilds it from the log: %w", size-1, err)
	}
	return m, nil
}

// LiveRootRow returns the key of the row in LogLive with the root of the map of live releases for a log of size entries: the
// newest such row that was written with one of these entries. It returns nil if there is none, as before the first release.
// It does not return the row's value.
func LiveRootRow(r kvstore.Reader, size int64) ([]byte, error) {
	if size == 0 {
		return nil, nil
	}
	from, to := LiveRootRows(size - 1)
	for item, err := range r.Scan(kvstore.LogLive, kvstore.Range{From: from, To: to}) {
		if err != nil {
			return nil, fmt.Errorf("logs: couldn't find the map of live releases: %w", err)
		}
		return bytes.Clone(item.Key), nil
	}
	return nil, nil
}

// applyLive applies the next entry of the Tx to its map of live releases, before the entry is appended, and returns the
// map's new root. It first reads the map's root if the Tx has no map yet; if only that fails, the Tx goes on without the
// entry. If the map cannot be changed, the whole Tx fails.
func (tx *Tx) applyLive(e Entry) (kvstore.Hash, error) {
	if tx.live == nil {
		live, err := ReadLiveMap(tx.store, tx.size)
		if err != nil {
			return kvstore.Hash{}, err
		}
		tx.live = live
	}
	if err := ApplyLive(tx.live, tx.size, e); err != nil {
		return kvstore.Hash{}, tx.fail(fmt.Errorf("logs: couldn't change the map of live releases; `larder repair` rebuilds it from the log: %w", err))
	}
	return tx.live.Root(), nil
}

// checkLive applies an entry of another store, before it is appended, to the map of live releases, as applyLive does. If the
// map then does not have the root that the entry states, it returns an error and the whole Tx fails.
func (tx *Tx) checkLive(e Entry) error {
	root, err := tx.applyLive(e)
	if err == nil && root != e.Live {
		err = tx.fail(fmt.Errorf("logs: entry %d says that the map of live releases has the root %s, and the entries up to it make %s", tx.size, e.Live, root))
	}
	return err
}

// keptMaps say for which earlier maps of live releases there must be proofs.
type keptMaps struct {
	signed int64  // the size that is signed
	shown  int64  // the size that was signed before, which is published: nothing newer is signed before that
	from   []byte // the first list of replaced rows
}

// writeLive adds the changed rows of the map of live releases to the batch, with lists of the rows that these replace, and
// drops most of the map from memory. It also adds the deletion of some rows that only maps need which are over
// 4,096 entries older than the checkpoint that was signed before the present one, or than the log if nothing is signed, and updates
// l.kept to what is signed now.
func (l *Log) writeLive(tx *Tx) error {
	last := tx.size - 1
	replaced := tx.live.Write(last, func(row, value []byte) { tx.Batch.Set(kvstore.LogLive, row, value) })
	n := uint16(0)
	for list := range slices.Chunk(replaced, rowsPerList) {
		tx.Batch.Set(kvstore.LogLive, replacedListKey(last, n), encodeRows(list))
		n++
	}
	tx.live.Trim()
	signed, err := signedSize(l.store)
	if err != nil {
		return err
	}
	if l.kept.signed != signed {
		l.kept.shown, l.kept.signed = l.kept.signed, signed
	}
	until := l.kept.shown
	if signed == 0 { // nothing is published
		until = tx.size
	}
	return l.pruneLive(tx.Batch, until-liveMargin, len(replaced))
}

// pruneLive adds to the batch b the deletion of rows that entries with a smaller index than before have replaced, for which
// clients no longer request proofs, and of the lists that name them. replaced is how many rows the batch has replaced; it
// deletes more than that at once, and leaves the rest to later writes, which continue at l.kept.from.
func (l *Log) pruneLive(b *kvstore.Batch, before int64, replaced int) error {
	if before <= 0 {
		return nil
	}
	deleted := 0
	for item, err := range l.store.Scan(kvstore.LogLive, kvstore.Range{Prefix: replacedPrefix, From: l.kept.from, To: replacedListKey(before, 0)}) {
		if err != nil {
			return fmt.Errorf("logs: couldn't read which rows of the map of live releases were replaced: %w", err)
		}
		if deleted > 2*replaced+rowsPerList {
			break
		}
		rows, err := decodeRows(item.Value)
		if err != nil {
			return err
		}
		for _, row := range rows {
			b.Delete(kvstore.LogLive, row)
		}
		b.Delete(kvstore.LogLive, item.Key)
		deleted += len(rows) + 1
		l.kept.from = bytes.Clone(item.Key) // it is there again if the batch fails
	}
	return nil
}

// replacedPrefix begins the keys of the lists of replaced rows, after all that are nodes.
var replacedPrefix = []byte{0xff}

// replacedListKey returns the key of the n-th list of rows of the map of live releases that became obsolete with the write
// whose last entry this is. pruneLive deletes them.
func replacedListKey(entry int64, n uint16) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(bytes.Clone(replacedPrefix), uint64(entry)), n)
}

// encodeRows encodes a list of keys of rows, each after a byte with its length, as the value of a list of replaced rows.
func encodeRows(rows [][]byte) []byte {
	var list []byte
	for _, row := range rows {
		list = append(append(list, byte(len(row))), row...)
	}
	return list
}

// decodeRows decodes a list of keys of rows that encodeRows has encoded. The keys are parts of list. A key that is cut off
// is an error.
func decodeRows(list []byte) (rows [][]byte, err error) {
	for len(list) > 0 {
		n := 1 + int(list[0])
		if len(list) < n {
			return nil, errors.New("logs: a list of replaced rows of the map of live releases is malformed; `larder repair` rebuilds the map")
		}
		rows, list = append(rows, list[1:n]), list[n:]
	}
	return rows, nil
}

// ReplacedRows calls fn with the key of each row of LogLive that is only part of earlier maps and was not deleted yet. The
// key is valid only during the call. It returns the first error of reading the lists of such rows.
func ReplacedRows(r kvstore.Reader, fn func(row []byte)) error {
	for item, err := range r.Scan(kvstore.LogLive, kvstore.Range{Prefix: replacedPrefix}) {
		if err != nil {
			return err
		}
		rows, err := decodeRows(item.Value)
		if err != nil {
			return err
		}
		for _, row := range rows {
			fn(row)
		}
	}
	return nil
}

// SignedRow is the row of LogState in which the signer stores the last checkpoint that it signed of the log in the store, in the
// form of https://c2sp.org/tlog-checkpoint. It says which entries were signed, even after the store was restored from a backup or
// the key folder was lost.
var SignedRow = kvstore.Key("signed")

// signedSize returns how many entries the last signed checkpoint has: 0 only if nothing is signed. It returns 1 for a
// checkpoint of no entries, and for one that cannot be parsed, so that nothing is deleted.
func signedSize(r kvstore.Reader) (int64, error) {
	note, err := r.Get(kvstore.LogState, SignedRow)
	if errors.Is(err, kvstore.ErrNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("logs: couldn't read what is signed: %w", err)
	}
	size, err := CheckpointSize(note)
	if err != nil {
		return 1, nil //nolint:nilerr // the signer reports what is wrong with it; nothing is deleted
	}
	return max(size, 1), nil
}
