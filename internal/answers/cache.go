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
	value V // once it is made, as are bytes and err
	bytes int
	err   error
}

// Get returns the value of key. If it is not cached, it calls make, once for all callers who wait for the same key, and caches the
// value. All of them get an error of make, which is not cached. make also returns how many bytes the value counts. The least recently
// used values beyond Most and MostBytes are removed, also those that are being made; a value over MostBytes is returned, but neither
// it nor any less recently used value is kept. If make panics, the panic goes on in the caller whose make it is, and those who wait
// get an error.
func (c *Cache[K, V]) Get(key K, make func() (value V, bytes int, err error)) (V, error) {
	e := c.addEntry(key)
	e.once.Do(func() {
		made := false
		defer func() {
			if !made || e.err != nil { // also after a panic
				c.remove(func(other *cacheEntry[K, V]) bool { return other == e })
			}
		}()
		e.err = errCachePanicked // for the requests that wait, unless the call returns
		e.value, e.bytes, e.err = make()
		made = true
		e.made.Store(e.err == nil)
		c.evict()
	})
	return e.value, e.err
}

// Cached returns the value of key if it is cached, and makes it the most recently used one. It makes no value.
func (c *Cache[K, V]) Cached(key K) (value V, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.index(key); i >= 0 && c.entries[i].made.Load() {
		return c.touch(i).value, true
	}
	return value, false
}

// CachedIf returns the value of key if it is cached and isFresh reports so. It removes a cached value that is not.
func (c *Cache[K, V]) CachedIf(key K, isFresh func(V) bool) (value V, ok bool) {
	value, ok = c.Cached(key)
	if ok && !isFresh(value) {
		c.Remove(func(k K) bool { return k == key })
		return *new(V), false
	}
	return value, ok
}

// Len returns the number of entries, those that are being made included.
func (c *Cache[K, V]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries)
}

// addEntry returns the entry of key, a new one if necessary, and makes it the most recently used one. A new entry takes the place of
// the least recently used one if there are Most already.
func (c *Cache[K, V]) addEntry(key K) *cacheEntry[K, V] {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.index(key)
	if i >= 0 {
		return c.touch(i)
	}
	if len(c.entries) >= c.Most {
		c.entries = slices.Delete(c.entries, 0, 1)
	}
	e := &cacheEntry[K, V]{key: key}
	c.entries = append(c.entries, e)
	return e
}

// index returns the index of the entry of key, also one whose value is still being made, or -1. The caller holds mu.
func (c *Cache[K, V]) index(key K) int {
	return slices.IndexFunc(c.entries, func(e *cacheEntry[K, V]) bool { return e.key == key })
}

// touch makes the entry at an index the most recently used one, and returns it. The caller holds mu.
func (c *Cache[K, V]) touch(i int) *cacheEntry[K, V] {
	e := c.entries[i]
	copy(c.entries[i:], c.entries[i+1:])
	c.entries[len(c.entries)-1] = e
	return e
}

// evict removes the least recently used entries until the values of the rest are within MostBytes, even all. Values that are being
// made count nothing yet.
func (c *Cache[K, V]) evict() {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for i := len(c.entries) - 1; i >= 0; i-- {
		if !c.entries[i].made.Load() { // its bytes are not known yet
			continue
		}
		if total += c.entries[i].bytes; total > c.MostBytes {
			c.entries = slices.Delete(c.entries, 0, i+1)
			return
		}
	}
}

// Remove removes the values of the keys for which gone returns true.
func (c *Cache[K, V]) Remove(gone func(K) bool) {
	c.remove(func(e *cacheEntry[K, V]) bool { return gone(e.key) })
}

// remove removes the entries for which gone returns true.
func (c *Cache[K, V]) remove(gone func(*cacheEntry[K, V]) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entries = slices.DeleteFunc(c.entries, gone)
}
