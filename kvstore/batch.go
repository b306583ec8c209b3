package kvstore

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// maxBatch bounds a batch, in bytes: Pebble panics at 4 GiB, and a batch is
// held in memory as a whole.
const maxBatch = 1 << 30

// Batch gathers changes that become visible and durable together. It is for
// one goroutine.
type Batch struct {
	store   *Store
	batch   handle // a *pebble.Batch, see pebbleBatch
	removed []Hash
	err     error // what makes Commit refuse
}

var errDone = errors.New("the batch was committed or closed before")

// NewBatch returns an empty batch of changes of the store. The caller closes it, committed or not.
//
//go:noinline
func (s *Store) NewBatch() *Batch {
	return &Batch{store: s, batch: pebbleOf(s).NewBatch()}
}

// newSizedBatch returns an empty batch with memory for a value of so many bytes and a few rows.
func (s *Store) newSizedBatch(bytes int) *Batch {
	return &Batch{store: s, batch: pebbleOf(s).NewBatchWithSize(bytes + 1<<10)}
}

// WriteBatch commits the changes that fill adds to a new batch, see [Batch.Commit]. If fill returns an error, it writes nothing and returns that.
func (s *Store) WriteBatch(fill func(*Batch) error) error {
	b := s.NewBatch()
	defer b.Close()
	if err := fill(b); err != nil {
		return err
	}
	return b.Commit()
}

// Set adds to the batch that key has value in ns. Both slices are copied. An error, such as that the batch is too large, is returned by Commit; after
// one, Set and Delete do nothing.
func (b *Batch) Set(ns Namespace, key, value []byte) {
	if b.fits(len(key) + len(value)) {
		b.err = pebbleBatch(b).Set(ns.physical(key), value, nil)
	}
}

// Delete adds to the batch the deletion of a row, if it exists. An error, such as that the batch is too large, is returned by Commit.
func (b *Batch) Delete(ns Namespace, key []byte) {
	if b.fits(len(key)) {
		b.err = pebbleBatch(b).Delete(ns.physical(key), nil)
	}
}

// Remove adds to the batch the removal of a content with all its encodings and deltas. If the content is not stored when the batch is committed, that
// is no error. Commit refuses the whole batch with a [PinnedError] if the content is pinned, because a release that is being made may name it, and
// with [ErrCorrupt] if the content's row is damaged.
func (b *Batch) Remove(h Hash) {
	b.removed = append(b.removed, h)
}

// fits reports whether a change of n bytes may be added to the batch: there was no error before, and the batch stays below maxBatch bytes. If it
// would not, it sets the error that Commit returns.
func (b *Batch) fits(n int) bool {
	if b.err == nil && pebbleBatch(b).Len()+n > maxBatch {
		b.err = fmt.Errorf("a batch for the store in %s would exceed %d bytes: split it", b.store.dir, maxBatch)
	}
	return b.err == nil
}

// Commit writes the batch atomically and waits until it, and every content that was put before it, is on the disk. An empty batch writes nothing and
// waits for nothing. If a call that built the batch failed, Commit writes nothing and returns the first such error. A second call returns an error,
// also if the first has failed.
//
// A write that is refused, because the disk is nearly full or failed before, changes nothing. If the disk fails during a write, the store becomes
// read-only, and after the next Open the batch is there as a whole or not at all.
func (b *Batch) Commit() error {
	if b.err != nil {
		return b.err
	}
	defer func() { b.err = errDone }()
	if len(b.removed) > 0 {
		return b.store.writeRemoving(b)
	}
	return b.store.write(b, pebble.Sync)
}

// Close releases the batch's memory and discards its changes if Commit was not called. After Commit, which releases it too, it does nothing, unless a
// call that built the batch failed. It may be called again.
func (b *Batch) Close() error {
	if b.err == errDone {
		return nil
	}
	b.err = errDone
	return b.batch.Close()
}

// A PinnedError says that a [Batch] was refused because it removes contents that
// are pinned: what is about to be published may name them.
type PinnedError struct{ Hashes []Hash }

// Error returns a message with the number of pinned contents and the hash of the first one.
func (e *PinnedError) Error() string {
	return fmt.Sprintf("%d contents are needed by a release that is being made, content %s among them", len(e.Hashes), e.Hashes[0])
}

// writeRemoving writes a batch, which it closes, and removes its contents with their deltas in the same synced write. If any of them is pinned, it
// writes nothing and returns a [PinnedError]. It holds the locks of the pins and the contents, so that [Pins.Has] either pins a content in time, or
// does not find it.
func (s *Store) writeRemoving(b *Batch) error {
	s.pins.Lock()
	defer s.pins.Unlock()
	var pinned []Hash
	for _, h := range b.removed {
		if s.pins.count[h] > 0 {
			pinned = append(pinned, h)
		}
	}
	if pinned != nil {
		return errors.Join(&PinnedError{pinned}, b.Close())
	}
	_, _, err := s.removeContents(b, b.removed, true)
	return err
}

// removeContents writes a batch, which it closes, and removes contents with their deltas in the same write. It returns how many of them were stored,
// and how many stored bytes of encodings and deltas the write makes useless; both are 0 with an error, after which nothing was removed, unless the
// disk failed during the write. If erased is true, the write is synced, and disk space is reclaimed soon. After the write it deletes what is recorded
// about damage of these contents. The caller holds the lock of the pins.
func (s *Store) removeContents(b *Batch, removed []Hash, erased bool) (n int, stale int64, err error) {
	s.contents.Lock()
	defer s.contents.Unlock()
	deltas := map[[2]Hash]int64{} // bytes by content and dictionary, both of which may be removed
	for _, h := range removed {
		c, err := s.Content(h)
		if err == nil {
			n++
		}
		if err = ignoreMissing(err); err == nil { // if its row is lost, its deltas may not be
			err = s.deleteContent(b, h, c, deltas)
		}
		if err != nil {
			return 0, 0, errors.Join(err, b.Close())
		}
		stale += c.encodedBytes()
	}
	for _, bytes := range deltas {
		stale += bytes
	}
	o := pebble.NoSync
	if erased {
		o, s.reclaim.soon = pebble.Sync, s.reclaim.soon || stale > 0 // a compaction may be running that began before an earlier erasure
	}
	if err := s.writeReplacing(b, stale, o); err != nil {
		return 0, 0, err
	}
	s.repairer.recordRemoved(removed...)
	return n, stale, nil
}

// deleteContent adds to a batch the deletion of the content h, described by c, with its encodings, its deltas, and the deltas that have it as their
// dictionary. It adds to deltas how many stored bytes each deleted delta has, by content and dictionary. After an error the caller closes the batch.
// The caller holds s.contents.
func (s *Store) deleteContent(b *Batch, h Hash, c Content, deltas map[[2]Hash]int64) error {
	b.Delete(Contents, h[:])
	for _, r := range c.Representations {
		b.Delete(Blobs, blobKey(h, r.Coding))
	}
	if err := s.deleteDeltas(b, h, deltas); err != nil {
		return fmt.Errorf("content %s: %w", h, err)
	}
	return nil
}

// encodedBytes returns the sum of the bytes of all encodings, without deltas.
func (c Content) encodedBytes() (n int64) {
	for _, r := range c.Representations {
		n += r.Length
	}
	return n
}
