package answers

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

var errCachePanicked = errors.New("answers: making the value panicked; the panic's own report says why")

// A Cache has the most recently used values. It makes a value once for all callers who request it at the same time. It is safe for
// concurrent use.
type Cache[K comparable, V any] struct {
	// Most limits the number of values, and MostBytes the sum of their bytes as make returns them.
	Most      int
	MostBytes int

	mu      sync.Mutex
	entries []*cacheEntry[K, V] // most recently used last
}

type cacheEntry[K comparable, V any] struct {
	key   K
	once  sync.Once
	made  atomic.Bool
	value V
	bytes int
	err   error
}

// Get returns the value of key. If it is not cached, it calls make, once for all callers who wait for the same key, and caches the value.
// It does not cache errors. make also returns how many bytes the value counts.
func (p *Cache[K, V]) Get(key K, make func() (value V, bytes int, err error)) (V, error) {
	e := p.addEntry(key)
	e.once.Do(func() {
		made := false
		defer func() {
			if !made || e.err != nil { // also after a panic
				p.remove(func(other *cacheEntry[K, V]) bool { return other == e })
			}
		}()
		e.err = errCachePanicked // for the requests that wait, unless the call returns
		e.value, e.bytes, e.err = make()
		made = true
		e.made.Store(e.err == nil)
		p.evict()
	})
	return e.value, e.err
}

// Cached returns the value of key if it is cached.
func (p *Cache[K, V]) Cached(key K) (value V, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.index(key); i >= 0 && p.entries[i].made.Load() {
		return p.touch(i).value, true
	}
	return value, false
}

// CachedIf returns the value of key if it is cached and isFresh reports so. It removes a cached value that is not.
func (p *Cache[K, V]) CachedIf(key K, isFresh func(V) bool) (value V, ok bool) {
	value, ok = p.Cached(key)
	if ok && !isFresh(value) {
		p.Remove(func(k K) bool { return k == key })
		return *new(V), false
	}
	return value, ok
}

// Len returns the number of entries, those that are being made included.
func (p *Cache[K, V]) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.entries)
}

// addEntry returns the entry of key, a new one if necessary, and makes it the most recently used one.
func (p *Cache[K, V]) addEntry(key K) *cacheEntry[K, V] {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.index(key)
	if i >= 0 {
		return p.touch(i)
	}
	if len(p.entries) >= p.Most {
		p.entries = slices.Delete(p.entries, 0, 1)
	}
	e := &cacheEntry[K, V]{key: key}
	p.entries = append(p.entries, e)
	return e
}

// index returns the index of the entry of key, or -1.
func (p *Cache[K, V]) index(key K) int {
	return slices.IndexFunc(p.entries, func(e *cacheEntry[K, V]) bool { return e.key == key })
}

// touch makes the entry at an index the most recently used one, and returns it.
func (p *Cache[K, V]) touch(i int) *cacheEntry[K, V] {
	e := p.entries[i]
	copy(p.entries[i:], p.entries[i+1:])
	p.entries[len(p.entries)-1] = e
	return e
}

// evict removes the least recently used entries until the rest is within MostBytes.
func (p *Cache[K, V]) evict() {
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

// Remove removes the values of the keys for which gone returns true.
func (p *Cache[K, V]) Remove(gone func(K) bool) {
	p.remove(func(e *cacheEntry[K, V]) bool { return gone(e.key) })
}

// remove removes the entries for which gone returns true.
func (p *Cache[K, V]) remove(gone func(*cacheEntry[K, V]) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.entries = slices.DeleteFunc(p.entries, gone)
}
