package kvstore

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// A PinnedError says that a [Batch] was refused because it removes contents that
// are pinned: what is about to be published may name them.
type PinnedError struct{ Hashes []Hash }

func (e *PinnedError) Error() string {
	return fmt.Sprintf("%d contents are needed by a release that is being made, content %s among them", len(e.Hashes), e.Hashes[0])
}

// writeRemoving writes b and removes the contents in the same write, unless one
// of them is pinned. The locks make a [Pins.Has] see a content either pinned in
// time, or gone.
func (s *Store) writeRemoving(b *pebble.Batch, removed []Hash) error {
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
	for _, h := range removed {
		c, err := s.Content(h)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil {
			err = deleteContent(b, h, c)
		}
		if err != nil {
			return errors.Join(err, b.Close())
		}
		stale += c.coded()
	}
	s.reclaim.soon = stale > 0
	return s.writeReplacing(b, stale, pebble.Sync)
}

// deleteContent adds to b that a content goes.
func deleteContent(b *pebble.Batch, h Hash, c Content) error {
	err := b.Delete(Contents.physical(h[:]), nil)
	for _, r := range c.Representations {
		err = errors.Join(err, b.Delete(Blobs.physical(blobKey(h, r.Coding)), nil))
	}
	if err != nil {
		return fmt.Errorf("content %s: %w", h, err)
	}
	return nil
}

// coded returns the bytes of all codings.
func (c Content) coded() (n int64) {
	for _, r := range c.Representations {
		n += r.Length
	}
	return n
}
