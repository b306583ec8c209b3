package logs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
)

// A Checkpoint is the state of the log at one moment: how many entries it has
// and the hash of the tree over them.
type Checkpoint struct {
	Size int64     `json:"size"`
	Root tlog.Hash `json:"root"`
}

// stateKey is the row of the LogState namespace with the size and root of the log.
var stateKey = kvstore.Key("checkpoint")

// A Log appends to the log in a store. It is safe for concurrent use; there must
// be one for a store.
type Log struct {
	store *kvstore.Store

	writing sync.Mutex // serialises Update, Adopt and Exclusive; taken before mu; guards the next three
	live    *LiveMap   // after the last entry; nil until it is read
	kept    keptMaps
	commit  func(Growth) error // decides whether a shared log grows; nil for any other; set with mu held, too
	updates []*update          // those that wait for writing; guarded by mu

	mu         sync.Mutex
	checkpoint Checkpoint
	grown      chan struct{} // closed when the log has grown
}

// Open returns the log in a store, which may be empty. It reads the stored checkpoint, and does not verify the entries.
func Open(store *kvstore.Store) (*Log, error) {
	checkpoint, err := ReadCheckpoint(store)
	if err != nil {
		return nil, err
	}
	return &Log{store: store, checkpoint: checkpoint, grown: make(chan struct{})}, nil
}

// Checkpoint returns the state after the last durable Update.
func (l *Log) Checkpoint() Checkpoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.checkpoint
}

// Wait waits until the log has more than size entries, and returns its checkpoint. It returns ctx's error if that ends first.
func (l *Log) Wait(ctx context.Context, size int64) (Checkpoint, error) {
	for {
		l.mu.Lock()
		checkpoint, grown := l.checkpoint, l.grown
		l.mu.Unlock()
		if checkpoint.Size > size {
			return checkpoint, nil
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Checkpoint{}, ctx.Err()
		}
	}
}

// Update calls fn to append entries and to set the rows that belong to them, and commits all of them in one synced write. If
// fn or the write fails, nothing changes, and Update returns that error. If fn ignores an error after which the whole Tx
// fails, Update returns that. If the log is shared, see [Log.Share], fn may be called again after it has appended, because
// an Update that shares the write failed or needs a write of its own; and the error may be [ErrUnconfirmed].
func (l *Log) Update(fn func(*Tx) error) error {
	l.mu.Lock()
	shared := l.commit != nil
	l.mu.Unlock()
	if shared {
		return l.updateShared(fn)
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(nil, fn)
}

// Adopt is Update for entries that another store of the same log has, which fn appends with [Tx.AppendRaw]. It calls fn
// once, and does not call the commit function of a shared log, see [Log.Share].
func (l *Log) Adopt(fn func(*Tx) error) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.write(nil, fn)
}

// write calls fn once and commits what it adds in one synced write, which wakes [Log.Wait] if it has entries. If commit is
// not nil and entries were added, nothing is written unless it returns nil. After an error, nothing has changed, except that
// the map of live releases is read again. The caller holds l.writing.
func (l *Log) write(commit func(Growth) error, fn func(*Tx) error) error {
	batch := l.store.NewBatch()
	defer batch.Close()
	before := l.Checkpoint()
	tx := &Tx{Batch: batch, store: l.store, size: before.Size, hashes: make(map[int64]tlog.Hash), live: l.live}
	l.live = nil // until the write succeeds
	err := fn(tx)
	if err == nil {
		err = tx.err
	}
	if err != nil {
		return err
	}
	next := before
	if tx.size > before.Size {
		if next, err = tx.Checkpoint(); err != nil {
			return err
		}
		batch.Set(kvstore.LogState, stateKey, encodeCheckpoint(next))
		if err := l.writeLive(tx); err != nil {
			return err
		}
		if commit != nil {
			if err := commit(Growth{Before: before, After: next, Entries: tx.entries, Batch: batch}); err != nil {
				return err
			}
		}
	}
	if err := batch.Commit(); err != nil {
		return fmt.Errorf("logs: couldn't commit %d entries: %w", tx.size-before.Size, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if next.Size > before.Size {
		close(l.grown)
		l.grown = make(chan struct{})
	}
	l.checkpoint, l.live = next, tx.live
	return nil
}

// Exclusive calls fn while no Update runs, and returns its error. fn may write rows that follow from the log, and must not
// append to it. Readers do not wait. The next Update reads the map of live releases again.
func (l *Log) Exclusive(fn func() error) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	err := fn()
	l.live = nil // fn may have changed its rows
	return err
}

// A Tx is an Update before its commit.
type Tx struct {
	// Batch is for the rows that belong to the entries.
	Batch *kvstore.Batch

	store   *kvstore.Store
	size    int64
	hashes  map[int64]tlog.Hash // of this Tx, by stored-hash index
	entries []Indexed           // of this Tx
	live    *LiveMap            // after the last entry; nil until it is read
	err     error               // why nothing of this Tx may be committed
}

// Append appends an entry and returns it as readers see it: with its index, times to the millisecond, a long reason cut, and
// the root of the map of live releases, whatever e.Format and e.Live are. Readers see it when the Update is committed. After
// an error the whole Tx fails, unless only the map's root could not be read.
func (tx *Tx) Append(e Entry) (Indexed, error) {
	e = e.normalized()
	var err error
	if e.Live, err = tx.applyLive(e); err != nil {
		return Indexed{}, err
	}
	data, err := e.encode()
	if err != nil {
		return Indexed{}, tx.fail(err)
	}
	return tx.addEncoded(e, data)
}

// addEncoded appends an entry with its encoding, and adds its rows, also those of the tree and of the index, to the batch.
// If the tree cannot be hashed, the whole Tx fails.
func (tx *Tx) addEncoded(e Entry, data []byte) (Indexed, error) {
	index := tx.size
	hashes, err := tlog.StoredHashes(index, data, tx)
	if err != nil {
		return Indexed{}, tx.fail(fmt.Errorf("logs: couldn't hash entry %d: %w", index, err))
	}
	tx.Batch.Set(kvstore.LogEntries, indexKey(index), data)
	first := tlog.StoredHashIndex(0, index)
	for i, h := range hashes {
		tx.hashes[first+int64(i)] = h
		tx.Batch.Set(kvstore.LogHashes, indexKey(first+int64(i)), h[:])
	}
	AddToIndex(tx.Batch, index, e)
	tx.size++
	added := Indexed{Index: index, Entry: e, Raw: data}
	tx.entries = append(tx.entries, added)
	return added, nil
}

// fail records err, so that nothing of this Tx can be committed, and returns it. The map of live releases may be ahead of
// the entries then.
func (tx *Tx) fail(err error) error {
	tx.err = errors.Join(tx.err, err)
	return err
}

// ReadHashes implements [tlog.HashReader] over the store and what this Tx adds.
func (tx *Tx) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	return readHashes(indexes, func(index int64) (tlog.Hash, error) {
		if h, ok := tx.hashes[index]; ok {
			return h, nil
		}
		return readHash(tx.store, index)
	})
}

// ReadCheckpoint returns the size and root of the log in r. Without a stored row, it returns those of an empty log.
func ReadCheckpoint(r kvstore.Getter) (Checkpoint, error) {
	data, err := r.Get(kvstore.LogState, stateKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		root, err := tlog.TreeHash(0, nil)
		return Checkpoint{Root: root}, err
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("logs: couldn't read the checkpoint state: %w", err)
	}
	return decodeCheckpoint(data)
}

// MaxSize is the largest valid size of a log. Package tlog does not terminate with sizes near the largest integer.
const MaxSize = 1 << 40

// CheckpointSize returns how many entries a signed checkpoint has according to the second line of its text, without
// verifying anything. The error says that it is not a checkpoint, or that the number is over [MaxSize].
func CheckpointSize(checkpoint []byte) (int64, error) {
	if lines := strings.SplitN(string(checkpoint), "\n", 3); len(lines) == 3 {
		if n, err := strconv.ParseInt(lines[1], 10, 64); err == nil && n >= 0 && n <= MaxSize {
			return n, nil
		}
	}
	return 0, errors.New("not a checkpoint")
}

// An Indexed is an entry with its place in the log and the bytes that the tree
// hashes.
type Indexed struct {
	Index int64 `json:"index"`
	Entry
	Raw []byte `json:"-"`
}

// ReadEntry returns the entry at an index, or kvstore.ErrNotFound.
func ReadEntry(r kvstore.Reader, index int64) (Indexed, error) {
	data, err := RawEntry(r, index)
	if err != nil {
		return Indexed{}, err
	}
	return ParseEntry(index, data)
}

// Entries iterates over the entries from an index on, oldest first. It ends after an error of the store; an entry that
// cannot be decoded is an error too, after which the caller may continue. It skips missing entries without an error.
func Entries(r kvstore.Reader, from int64) iter.Seq2[Indexed, error] {
	return allEntries(r, span{from: from})
}

// readHash returns a hash of the tree, by the index that package tlog gives it, which is not that of an entry.
func readHash(r kvstore.Getter, index int64) (tlog.Hash, error) {
	data, err := r.Get(kvstore.LogHashes, indexKey(index))
	if err != nil {
		return tlog.Hash{}, fmt.Errorf("logs: tree hash %d: %w", index, err)
	}
	if len(data) != tlog.HashSize {
		return tlog.Hash{}, fmt.Errorf("logs: tree hash %d has %d bytes, not %d", index, len(data), tlog.HashSize)
	}
	return tlog.Hash(data), nil
}

// indexKey returns the key of the row of an index. Keys have the order of indexes.
func indexKey(index int64) []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(index))
}

// parseIndexKey returns the index in a key that indexKey has returned.
func parseIndexKey(key []byte) (int64, error) {
	if len(key) != 8 {
		return 0, fmt.Errorf("logs: the key %x is not an index", key)
	}
	return int64(binary.BigEndian.Uint64(key)), nil
}

const checkpointFormat = 1

// encodeCheckpoint encodes the row with the log's size and root: a byte for the format, the size in 8 bytes (big-endian),
// and the root.
func encodeCheckpoint(c Checkpoint) []byte {
	data := binary.BigEndian.AppendUint64([]byte{checkpointFormat}, uint64(c.Size))
	return append(data, c.Root[:]...)
}

// decodeCheckpoint decodes a row that encodeCheckpoint has encoded. A malformed row, an unknown format and a negative size
// are errors.
func decodeCheckpoint(data []byte) (Checkpoint, error) {
	if len(data) == 1+8+tlog.HashSize && data[0] == checkpointFormat {
		c := Checkpoint{Size: int64(binary.BigEndian.Uint64(data[1:9])), Root: tlog.Hash(data[9:])}
		if c.Size >= 0 {
			return c, nil
		}
	}
	return Checkpoint{}, fmt.Errorf("logs: the checkpoint state is malformed: %x", data)
}

// Checkpoint returns the size and root of the log with what was appended so far.
func (tx *Tx) Checkpoint() (Checkpoint, error) {
	root, err := tlog.TreeHash(tx.size, tx)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("logs: couldn't hash the tree of %d entries: %w", tx.size, err)
	}
	return Checkpoint{Size: tx.size, Root: root}, nil
}
