package kvstore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// pinned is the contents that the collector must spare.
type pinned struct {
	collector sync.Mutex // held by the one that collects

	sync.Mutex
	count map[Hash]int
	// spared has what was pinned at any time since the running collection
	// began, and is nil between collections.
	spared map[Hash]struct{}
}

// Pins keep contents from being collected while a release is being made: from
// the look whether they are there to the commit of what names them.
type Pins struct {
	store  *Store
	hashes map[Hash]struct{} // guarded by the store's pins
}

// Pin returns a new set of pins. The caller releases it after the commit, or when it gives up.
func (s *Store) Pin() *Pins {
	return &Pins{store: s, hashes: make(map[Hash]struct{})}
}

// Has pins a content and reports whether it is stored. If so, it stays until Release.
func (p *Pins) Has(h Hash) (bool, error) {
	pins := &p.store.pins
	pins.Lock()
	defer pins.Unlock()
	if _, ok := p.hashes[h]; !ok {
		p.hashes[h] = struct{}{}
		pins.count[h]++
		if pins.spared != nil {
			pins.spared[h] = struct{}{}
		}
	}
	_, err := p.store.Content(h)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Release ends the pins. It may be called again, and for more of them.
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

// CollectOrphans removes contents that nothing names, such as those of an
// interrupted release. It returns how many, and their coded bytes.
//
// It calls live for every content in turn, without a lock. Live must return
// from what was committed when CollectOrphans was called, or later; a set that
// it needs for that is best gathered at its first call. What is pinned then or
// is pinned meanwhile is spared, so nothing is lost between the two.
func (s *Store) CollectOrphans(ctx context.Context, live func(Hash) bool) (n int, bytes int64, err error) {
	s.pins.collector.Lock()
	defer s.pins.collector.Unlock()
	s.pins.beginCollection()
	defer s.pins.endCollection()
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
		if removed {
			n++
			bytes += size
		}
	}
	return n, bytes, nil
}

// beginCollection begins to record what is pinned while orphans are collected.
func (p *pinned) beginCollection() {
	p.Lock()
	defer p.Unlock()
	p.spared = make(map[Hash]struct{}, len(p.count))
	for h := range p.count {
		p.spared[h] = struct{}{}
	}
}

// endCollection ends that.
func (p *pinned) endCollection() {
	p.Lock()
	defer p.Unlock()
	p.spared = nil
}

// removeUnpinned removes a content unless it is pinned. The lock makes [Pins.Has] find it either pinned in time, or gone. It returns the
// bytes of its encodings.
func (s *Store) removeUnpinned(h Hash) (removed bool, bytes int64, err error) {
	s.pins.Lock()
	defer s.pins.Unlock()
	if _, ok := s.pins.spared[h]; ok {
		return false, 0, nil
	}
	s.contents.Lock()
	defer s.contents.Unlock()
	c, err := s.Content(h)
	if errors.Is(err, ErrNotFound) {
		return false, 0, nil // it was erased since the collector saw it
	}
	if err != nil {
		return false, 0, err
	}
	b := pebbleOf(s).NewBatch()
	bytes, err = s.deleteContent(b, deltaEdits{}, h, c)
	if err != nil {
		return false, 0, errors.Join(err, b.Close())
	}
	if err := s.writeReplacing(b, bytes, pebble.NoSync); err != nil {
		return false, 0, err
	}
	s.repairer.recordRemoved(h)
	return true, bytes, nil
}
