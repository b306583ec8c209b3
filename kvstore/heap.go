package kvstore

// HeapBytes is how much of the memory of a store with these options is Go's, in bytes, so
// that the garbage collector and its limit see it: all that Pebble keeps of blocks and of
// what is not yet in tables, or nothing where Larder was built with cgo, because then that
// is allocated by C.
func (o Options) HeapBytes() int64 {
	if !inGoHeap {
		return 0
	}
	o.defaults()
	return o.CacheBytes + memTables*o.MemTableBytes
}
