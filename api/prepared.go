package api

import (
	"errors"
	"slices"
	"sync"
)

var errPanicked = errors.New("api: what was waited for could not be made; the panic before this tells why")

// prepared keeps what is expensive to make, the most recently used of it, within bounds. Who asks for what is
// being made waits for that; different things are made one after the other, so that asking for many at once takes
// neither all memory nor all cores.
type prepared[K comparable, V any] struct {
	// most is how many are kept; mostBytes bounds the sum of what make reports.
	most      int
	mostBytes int

	mu      sync.Mutex
	entries []*preparedEntry[K, V] // most recently used last
	making  sync.Mutex
}

type preparedEntry[K comparable, V any] struct {
	key   K
	once  sync.Once
	value V
	bytes int
	err   error
}

// get returns what make made for key, now or before. What failed is not kept.
func (p *prepared[K, V]) get(key K, make func() (value V, bytes int, err error)) (V, error) {
	e := p.entry(key)
	e.once.Do(func() {
		made := false
		defer func() {
			if !made || e.err != nil { // also after a panic
				p.drop(func(other *preparedEntry[K, V]) bool { return other == e })
			}
		}()
		p.making.Lock()
		defer p.making.Unlock()
		e.err = errPanicked // for those who wait, until it is known better
		e.value, e.bytes, e.err = make()
		made = true
		p.trim()
	})
	return e.value, e.err
}

// entry returns the entry of key as the most recently used one.
func (p *prepared[K, V]) entry(key K) *preparedEntry[K, V] {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.entries, func(e *preparedEntry[K, V]) bool { return e.key == key })
	if i < 0 {
		if len(p.entries) >= p.most {
			p.entries = slices.Delete(p.entries, 0, 1)
		}
		p.entries = append(p.entries, &preparedEntry[K, V]{key: key})
		return p.entries[len(p.entries)-1]
	}
	e := p.entries[i]
	copy(p.entries[i:], p.entries[i+1:])
	p.entries[len(p.entries)-1] = e
	return e
}

// trim lets go of the least recently used until the rest is within bounds.
func (p *prepared[K, V]) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for i := len(p.entries) - 1; i >= 0; i-- {
		if total += p.entries[i].bytes; total > p.mostBytes {
			p.entries = slices.Delete(p.entries, 0, i+1)
			return
		}
	}
}

// forget lets go of what has a key for which gone is true.
func (p *prepared[K, V]) forget(gone func(K) bool) {
	p.drop(func(e *preparedEntry[K, V]) bool { return gone(e.key) })
}

func (p *prepared[K, V]) drop(gone func(*preparedEntry[K, V]) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries = slices.DeleteFunc(p.entries, gone)
}
