// Package prepared keeps values that are expensive to make, within bounds on their number and size. It must not know what they are.
package prepared

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

var errPanicked = errors.New("prepared: what was waited for could not be made; the panic before this tells why")

// A Cache keeps what is expensive to make, the most recently used of it, within bounds. A request for what is being
// made waits for that. It is safe for concurrent use.
type Cache[K comparable, V any] struct {
	// Most is how many are kept; MostBytes bounds the sum of what make reports.
	Most      int
	MostBytes int

	mu      sync.Mutex
	entries []*entry[K, V] // most recently used last
}

type entry[K comparable, V any] struct {
	key   K
	once  sync.Once
	made  atomic.Bool
	value V
	bytes int
	err   error
}

// Get returns what make made for key, now or before. What failed is not kept.
func (p *Cache[K, V]) Get(key K, make func() (value V, bytes int, err error)) (V, error) {
	e := p.entry(key)
	e.once.Do(func() {
		made := false
		defer func() {
			if !made || e.err != nil { // also after a panic
				p.drop(func(other *entry[K, V]) bool { return other == e })
			}
		}()
		e.err = errPanicked // for the requests that wait, unless the call returns
		e.value, e.bytes, e.err = make()
		made = true
		e.made.Store(e.err == nil)
		p.trim()
	})
	return e.value, e.err
}

// Kept returns what was made for key before, false where nothing is kept.
func (p *Cache[K, V]) Kept(key K) (value V, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.index(key); i >= 0 && p.entries[i].made.Load() {
		return p.use(i).value, true
	}
	return value, false
}

// Len returns how many are kept.
func (p *Cache[K, V]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.entries)
}

// entry returns the entry of key as the most recently used one.
func (p *Cache[K, V]) entry(key K) *entry[K, V] {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.index(key)
	if i >= 0 {
		return p.use(i)
	}
	if len(p.entries) >= p.Most {
		p.entries = slices.Delete(p.entries, 0, 1)
	}
	e := &entry[K, V]{key: key}
	p.entries = append(p.entries, e)
	return e
}

func (p *Cache[K, V]) index(key K) int {
	return slices.IndexFunc(p.entries, func(e *entry[K, V]) bool { return e.key == key })
}

// use makes an entry the most recently used one.
func (p *Cache[K, V]) use(i int) *entry[K, V] {
	e := p.entries[i]
	copy(p.entries[i:], p.entries[i+1:])
	p.entries[len(p.entries)-1] = e
	return e
}

// trim lets go of the least recently used until the rest is within bounds.
func (p *Cache[K, V]) trim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	total := 0
	for i := len(p.entries) - 1; i >= 0; i-- {
		if total += p.entries[i].bytes; total > p.MostBytes {
			p.entries = slices.Delete(p.entries, 0, i+1)
			return
		}
	}
}

// Forget lets go of what has a key for which gone is true.
func (p *Cache[K, V]) Forget(gone func(K) bool) {
	p.drop(func(e *entry[K, V]) bool { return gone(e.key) })
}

func (p *Cache[K, V]) drop(gone func(*entry[K, V]) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries = slices.DeleteFunc(p.entries, gone)
}
