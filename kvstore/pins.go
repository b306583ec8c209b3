package kvstore

import (
	"context"
	"errors"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Pins keeps contents from being collected while a release is being made,
// from the look whether they are there to the commit of what names them.
type Pins struct {
	store  *Store
	mu     sync.Mutex
	hashes map[Hash]struct{}
}

// Pin begins a set of pins. Release it.
func (s *Store) Pin() *Pins {
	return &Pins{store: s, hashes: make(map[Hash]struct{})}
}

// Has pins h and says whether it is stored.
func (p *Pins) Has(h Hash) (bool, error) {
	p.store.pinned.Lock()
	defer p.store.pinned.Unlock()
	p.mu.Lock()
	if _, ok := p.hashes[h]; !ok {
		p.hashes[h] = struct{}{}
		p.store.pinned.count[h]++
	}
	p.mu.Unlock()
	_, err := p.store.Get(Contents, h[:])
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Release ends the pins. A second call does nothing.
func (p *Pins) Release() {
	p.store.pinned.Lock()
	defer p.store.pinned.Unlock()
	for h := range p.hashes {
		if p.store.pinned.count[h]--; p.store.pinned.count[h] == 0 {
			delete(p.store.pinned.count, h)
		}
	}
	p.hashes = make(map[Hash]struct{})
}

// CollectOrphans deletes contents that are neither live nor pinned, and says
// how many and how many coded bytes.
func (s *Store) CollectOrphans(ctx context.Context, live func(Hash) bool) (n int, bytes int64, err error) {
	for item, err := range s.Scan(Contents, Range{}) {
		if err != nil {
			return n, bytes, err
		}
		if err := ctx.Err(); err != nil {
			return n, bytes, err
		}
		var h Hash
		copy(h[:], item.Key)
		if live(h) {
			continue
		}
		c, err := decodeContent(item.Value)
		if err != nil {
			return n, bytes, err
		}
		collected, err := s.collect(h, c)
		if err != nil {
			return n, bytes, err
		}
		if collected {
			n++
			for _, r := range c.Representations {
				bytes += r.Length
			}
		}
	}
	return n, bytes, nil
}

func (s *Store) collect(h Hash, c Content) (bool, error) {
	s.pinned.Lock()
	defer s.pinned.Unlock()
	if s.pinned.count[h] > 0 {
		return false, nil
	}
	b := s.db.NewBatch()
	defer b.Close()
	_ = b.Delete(Contents.physical(h[:]), nil)
	for _, r := range c.Representations {
		_ = b.Delete(Blobs.physical(blobKey(h, r.Coding)), nil)
	}
	return true, b.Commit(pebble.NoSync)
}
