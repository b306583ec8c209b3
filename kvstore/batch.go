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

// NewBatch begins a batch. Close it, committed or not.
//
//go:noinline
func (s *Store) NewBatch() *Batch {
	return &Batch{store: s, batch: pebbleOf(s).NewBatch()}
}

// Set stores value under key. Both are copied.
func (b *Batch) Set(ns Namespace, key, value []byte) {
	if b.fits(len(key) + len(value)) {
		b.err = pebbleBatch(b).Set(ns.physical(key), value, nil)
	}
}

// Delete removes key, if it is there.
func (b *Batch) Delete(ns Namespace, key []byte) {
	if b.fits(len(key)) {
		b.err = pebbleBatch(b).Delete(ns.physical(key), nil)
	}
}

// Remove removes a content in all its codings, if it is there. Commit refuses the
// whole batch with a [PinnedError] where a publication under way is about to name one of them.
func (b *Batch) Remove(h Hash) {
	b.removed = append(b.removed, h)
}

// fits reports whether a change of n bytes may be added to the batch.
func (b *Batch) fits(n int) bool {
	if b.err == nil && pebbleBatch(b).Len()+n > maxBatch {
		b.err = fmt.Errorf("a batch for the store in %s would exceed %d bytes: split it", b.store.dir, maxBatch)
	}
	return b.err == nil
}

// Commit writes the batch and waits until it, and every content put before
// it, is on the disk. A batch is committed once.
//
// A write that is refused, because the disk is nearly full or failed before,
// leaves no trace. If the disk fails in the middle of one, the store becomes
// read-only, and after the next Open the batch is there whole or not at all.
func (b *Batch) Commit() error {
	if b.err != nil {
		return b.err
	}
	b.err = errDone
	if len(b.removed) > 0 {
		return b.store.writeRemoving(b.batch, b.removed)
	}
	return b.store.write(b.batch, pebble.Sync)
}

// Close releases the batch. What was not committed is dropped.
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

func (e *PinnedError) Error() string {
	return fmt.Sprintf("%d contents are needed by a release that is being made, content %s among them", len(e.Hashes), e.Hashes[0])
}

// writeRemoving writes a batch and removes contents in the same write, unless one of them is pinned. The locks make [Pins.Has] find a
// content either pinned in time, or gone.
func (s *Store) writeRemoving(b handle, removed []Hash) error {
	s.pins.Lock()
	defer s.pins.Unlock()
	var pinned []Hash
	for _, h := range removed {
		if s.pins.count[h] > 0 {
			pinned = append(pinned, h)
		}
	}
	if pinned != nil {
		return errors.Join(&PinnedError{pinned}, b.Close())
	}
	s.contents.Lock()
	defer s.contents.Unlock()
	var stale int64
	edits := deltaEdits{}
	for _, h := range removed {
		c, err := s.Content(h)
		if errors.Is(err, ErrNotFound) {
			if _, err := s.deleteDeltas(b, edits, h); err != nil { // its row was lost
				return errors.Join(err, b.Close())
			}
			continue
		}
		if err == nil {
			var bytes int64
			bytes, err = s.deleteContent(b, edits, h, c)
			stale += bytes
		}
		if err != nil {
			return errors.Join(err, b.Close())
		}
	}
	s.reclaim.soon = stale > 0
	if err := s.writeReplacing(b, stale, pebble.Sync); err != nil {
		return err
	}
	s.repairer.recordRemoved(removed...)
	return nil
}

// deleteContent adds the removal of a content to a batch, with its deltas and those that need it as their dictionary. It returns the bytes of
// the encodings that become stale. The caller holds s.contents.
func (s *Store) deleteContent(from handle, e deltaEdits, h Hash, c Content) (stale int64, err error) {
	b := from.(*pebble.Batch)
	err = b.Delete(Contents.physical(h[:]), nil)
	for _, r := range c.Representations {
		err = errors.Join(err, b.Delete(Blobs.physical(blobKey(h, r.Coding)), nil))
	}
	deltas, failed := s.deleteDeltas(b, e, h)
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("content %s: %w", h, err)
	}
	return c.encodedBytes() + deltas, nil
}

// encodedBytes returns the bytes of all encodings.
func (c Content) encodedBytes() (n int64) {
	for _, r := range c.Representations {
		n += r.Length
	}
	return n
}
