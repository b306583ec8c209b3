package kvstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
)

// pinned is the contents that the collector must spare.
type pinned struct {
	collector sync.Mutex // held by the one that collects

	sync.Mutex
	count map[Hash]int
	// spared has as its keys what was pinned at any time since the running collection
	// began, and is nil between collections. Its values mean nothing: it starts as a copy of count.
	spared map[Hash]int
}

// Pins keep contents from being removed while a release is being made: from
// [Pins.Has], which says whether one is stored, to the commit of the rows that name it.
type Pins struct {
	store  *Store
	hashes map[Hash]struct{} // guarded by the store's pins
}

// Pin returns an empty set of pins. The caller pins contents with [Pins.Has], and releases the set after the commit, or when it gives up.
func (s *Store) Pin() *Pins {
	return &Pins{store: s, hashes: make(map[Hash]struct{})}
}

// Has pins a content, stored or not, and reports whether it is stored. Until Release no collection of orphans removes it, and no [Batch.Remove]
// either. If the content's row cannot be read, it returns false and the error, and the content stays pinned.
func (p *Pins) Has(h Hash) (bool, error) {
	pins := &p.store.pins
	pins.Lock()
	defer pins.Unlock()
	if _, ok := p.hashes[h]; !ok {
		p.hashes[h] = struct{}{}
		pins.count[h]++
		if pins.spared != nil {
			pins.spared[h] = 1
		}
	}
	_, err := p.store.Content(h)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Release removes all pins of the set, which is empty afterwards and may be used again.
func (p *Pins) Release() {
	pins := &p.store.pins
	pins.Lock()
	defer pins.Unlock()
	for h := range p.hashes {
		if pins.count[h]--; pins.count[h] == 0 {
			delete(pins.count, h)
		}
	}
	clear(p.hashes)
}

// CollectOrphans removes all contents for which live returns false: nothing names them, such as those of an interrupted release. It returns how many
// it removed, and the bytes of their encodings and deltas. It stops at the first error, such as [ErrCorrupt] for a damaged row; what it removed
// before stays removed, and is counted. It does not wait for the disk.
//
// It calls live for every content in turn, without a lock of the contents or the pins. live must decide by rows that were committed when
// CollectOrphans was called, or later; a set that it needs for that is best gathered at its first call. Contents that are pinned at the start or
// during the collection are not removed. Collections run one at a time.
func (s *Store) CollectOrphans(ctx context.Context, live func(Hash) bool) (n int, bytes int64, err error) {
	s.pins.collector.Lock()
	defer s.pins.collector.Unlock()
	s.pins.setCollecting(true)
	defer s.pins.setCollecting(false)
	for item, err := range s.Scan(Contents, Range{}) {
		if err != nil {
			return n, bytes, err
		}
		if err := ctx.Err(); err != nil {
			return n, bytes, err
		}
		if len(item.Key) != len(Hash{}) {
			return n, bytes, fmt.Errorf("%w: a content's key has %d bytes", ErrCorrupt, len(item.Key))
		}
		h := Hash(item.Key)
		if live(h) {
			continue
		}
		removed, size, err := s.removeUnpinned(h)
		if err != nil {
			return n, bytes, err
		}
		n += removed
		bytes += size
	}
	return n, bytes, nil
}

// setCollecting makes the store record, or for false no longer record, all contents that are pinned now or at any time from now on, also those whose
// pins end meanwhile. A running collector must not remove them.
func (p *pinned) setCollecting(running bool) {
	p.Lock()
	defer p.Unlock()
	p.spared = nil
	if running {
		p.spared = maps.Clone(p.count)
	}
}

// removeUnpinned removes a content with its encodings and deltas, unless it was pinned since the running collection began. It returns 1 and the bytes
// that this makes useless, or 0 if the content was pinned, or erased since the collector saw it. It holds the locks of the pins and the contents, so
// that [Pins.Has] either pins a content in time, or does not find it. It does not wait for the disk.
func (s *Store) removeUnpinned(h Hash) (removed int, bytes int64, err error) {
	s.pins.Lock()
	defer s.pins.Unlock()
	if _, ok := s.pins.spared[h]; ok {
		return 0, 0, nil
	}
	return s.removeContents(s.NewBatch(), []Hash{h}, false)
}
