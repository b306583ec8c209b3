package library

import "sync"

// Changes records which libraries have changed since a moment, so that a cache can keep what was made from libraries until
// one of them changes. The zero value is ready. It is safe for concurrent use.
type Changes struct {
	mu    sync.Mutex
	count uint64
	of    map[string]uint64 // when each library changed last; those that are missing have not since all did
	all   uint64            // when anything may have changed
}

// Catalogue is the name that stands for the set of all libraries, which changes when one is added or removed.
const Catalogue = ""

// Now returns a number for the present moment: how many times changes were recorded. A caller that reads libraries
// afterwards passes it to [Changes.Since] later.
func (c *Changes) Now() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// RecordChange records that the named libraries have changed, so that [Changes.Since] is true for each of them and each
// moment before. The caller makes their new data readable before the call.
func (c *Changes) RecordChange(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if c.of == nil {
		c.of = map[string]uint64{}
	}
	for _, name := range names {
		c.of[name] = c.count
	}
}

// recordAllChanged records that all libraries, and the set of them, may have changed, so that [Changes.Since] reports that
// for any names.
func (c *Changes) recordAllChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	c.all, c.of = c.count, nil
}

// Since reports whether one of the named libraries may have changed since the moment that [Changes.Now] returned. The name
// [Catalogue] stands for the set of all libraries. After recordAllChanged it is true for any names, even none.
func (c *Changes) Since(moment uint64, names []string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all > moment {
		return true
	}
	for _, name := range names {
		if c.of[name] > moment {
			return true
		}
	}
	return false
}
