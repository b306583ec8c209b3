package durable

import "sync/atomic"

// A cache keeps values of one object that are as the store has them, and which keys
// have none, recently used last. It is guarded by object.mu; all caches of a class
// share a bound.
type cache struct {
	entries      map[string]*cached
	oldest, last *cached
	total        *atomic.Int64 // bytes in all caches
	limit        int64
}

type cached struct {
	key          string
	value        []byte
	ok           bool // whether there is a value
	older, newer *cached
}

// size is about what an entry takes, in bytes.
func (e *cached) size() int64 { return int64(len(e.key) + len(e.value) + 160) }

func (c *cache) get(key string) (value []byte, ok, known bool) {
	e := c.entries[key]
	if e == nil {
		return nil, false, false
	}
	if e != c.last {
		c.unlink(e)
		c.link(e)
	}
	return e.value, e.ok, true
}

// put keeps an entry if there is room for it, once the object's own older ones are
// gone.
func (c *cache) put(key string, value []byte, ok bool) {
	c.remove(key)
	e := &cached{key: key, value: value, ok: ok}
	for c.total.Add(e.size()) > c.limit {
		c.total.Add(-e.size())
		if c.oldest == nil {
			return
		}
		c.remove(c.oldest.key)
	}
	if c.entries == nil {
		c.entries = make(map[string]*cached)
	}
	c.entries[key] = e
	c.link(e)
}

func (c *cache) remove(key string) {
	if e := c.entries[key]; e != nil {
		delete(c.entries, key)
		c.unlink(e)
		c.total.Add(-e.size())
	}
}

func (c *cache) clear() {
	for e := c.oldest; e != nil; e = e.newer {
		c.total.Add(-e.size())
	}
	c.entries, c.oldest, c.last = nil, nil, nil
}

func (c *cache) link(e *cached) {
	e.older, e.newer = c.last, nil
	if c.last != nil {
		c.last.newer = e
	} else {
		c.oldest = e
	}
	c.last = e
}

func (c *cache) unlink(e *cached) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		c.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		c.last = e.older
	}
}
