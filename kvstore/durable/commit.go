package durable

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
)

// A change is a key's new value, or its removal.
type change struct {
	key              string
	value            []byte
	deleted          bool
	noCache, confirm bool
	write            *write
}

// size returns how many bytes the key and the value have.
func (c *change) size() int { return len(c.key) + len(c.value) }

// A write is what happens to an object atomically: first it is the object's pending
// one and grows, then it is sealed and belongs to the committer.
type write struct {
	object   *object
	changes  []*change
	bytes    int
	confirm  bool // whether responses of the object have to wait for it
	alarmed  bool // whether the alarm changes
	from, to *alarm
	done     chan struct{} // closed when it is durable or failed
	err      error         // set before
}

// wait waits until the write is durable or has failed, and returns its error, or until ctx ends, and returns its cause; the write goes on then. For a
// nil write it returns nil.
func (w *write) wait(ctx context.Context) error {
	if w == nil {
		return nil
	}
	select {
	case <-w.done:
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkWriteSize returns [ErrTooLarge] if a write of so many bytes would exceed [MaxWriteBytes] with more bytes. A deletion is always allowed.
func checkWriteSize(bytes, more int, deleted bool) error {
	if !deleted && bytes+more > MaxWriteBytes {
		return fmt.Errorf("%w: more than %d MiB would be written at once", ErrTooLarge, MaxWriteBytes>>20)
	}
	return nil
}

// pendingWrite returns the object's pending write, to which changes are added, and creates it if none exists. The caller holds o.mu.
func (o *object) pendingWrite() *write {
	if o.pending == nil {
		o.pending = &write{object: o, done: make(chan struct{})}
	}
	return o.pending
}

// addChange applies a change of a value to the object: events see it at once, and it is durable with the pending write. It replaces an earlier change
// of the key in that write. If a value would make the write too large, the error is [ErrTooLarge] and nothing changes; a deletion is never refused,
// on which applyTransaction relies. The caller holds o.mu, and has checked that no transaction is open.
func (o *object) addChange(c change) error {
	w := o.pendingWrite()
	old := o.dirty[c.key]
	if old != nil && old.write != w {
		old = nil
	}
	size := c.size()
	if old != nil {
		size -= old.size()
	}
	if err := checkWriteSize(w.bytes, size, c.deleted); err != nil {
		return err
	}
	o.changes++
	o.cache.remove(c.key)
	w.bytes += size
	w.confirm = w.confirm || c.confirm
	c.write = w
	if old != nil {
		*old = c
		return nil
	}
	if o.dirty == nil {
		o.dirty = make(map[string]*change)
	}
	o.dirty[c.key] = &c
	w.changes = append(w.changes, &c)
	return nil
}

// setAlarm sets the object's alarm, or removes it for nil, and records that, so that a handler of the old alarm does not change it. It is durable
// with the pending write, for which responses wait. The caller holds o.mu.
func (o *object) setAlarm(a *alarm) {
	o.alarm, o.replaced = a, true
	w := o.pendingWrite()
	w.alarmed, w.confirm = true, true
}

// commitPending passes the object's pending write to the committer, which writes it with others; later changes start another one. It does nothing
// without one, or if the object was stopped. The caller holds o.mu.
func (o *object) commitPending() {
	w := o.pending
	if w == nil || o.failed != nil {
		return
	}
	o.pending = nil
	if w.alarmed {
		w.from, w.to = o.sealed, o.alarm
		o.sealed = o.alarm
	}
	o.last = w
	if w.confirm {
		o.gate = w
	}
	o.writing++
	o.bytes += w.bytes
	o.class.addUser(o)
	o.class.runtime.commits.add(w)
}

// finish records in the object that the write is durable, or for an error that it failed, which stops the object. It moves durable values to the
// cache, unless they were written with [NoCache]. It wakes the goroutines that wait for the write. The committer calls it.
func (w *write) finish(err error) {
	o := w.object
	o.mu.Lock()
	o.writing--
	o.bytes -= w.bytes
	stopped := o.failed != nil
	if err != nil {
		w.err = err
		if o.lost == nil {
			o.lost = err
		}
		o.fail(err)
	} else {
		for _, c := range w.changes {
			if o.dirty[c.key] == c {
				delete(o.dirty, c.key)
				if !c.noCache && o.failed == nil {
					o.cache.put(c.key, c.value, !c.deleted)
				}
			}
		}
	}
	if o.gate == w {
		o.gate = nil
	}
	if o.last == w {
		o.last = nil
	}
	if stopped && o.writing == 0 {
		o.allowNextInstance()
	}
	if err == nil && w.alarmed {
		o.class.alarms.alarmChanged(o.name, w.to)
	}
	close(w.done)
	o.mu.Unlock()
	o.class.release(o)
}

// A committer writes what all objects of a runtime hand over, in their order, as much
// as there is at a time: one sync for many.
type committer struct {
	mu     sync.Mutex
	queue  []*write
	closed bool
	wake   chan struct{}
	done   chan struct{} // closed when run has returned
}

// add queues a write to be committed, and wakes the committer.
func (c *committer) add(w *write) {
	c.mu.Lock()
	c.queue = append(c.queue, w)
	c.mu.Unlock()
	retry.Wake(c.wake)
}

// batchBytes bounds what is committed together, if it is more than one write.
const batchBytes = 4 * MaxWriteBytes

// nextWrites waits for writes and returns as many, in their order, as one batch has room for. It returns none when the committer is closed and its
// queue empty.
func (c *committer) nextWrites() []*write {
	for {
		c.mu.Lock()
		n, bytes := 0, 0
		for n < len(c.queue) && (n == 0 || bytes+c.queue[n].bytes <= batchBytes) {
			bytes += c.queue[n].bytes
			n++
		}
		writes := c.queue[:n:n]
		if c.queue = c.queue[n:]; len(c.queue) == 0 {
			c.queue = nil
		}
		closed := c.closed
		c.mu.Unlock()
		if n > 0 || closed {
			return writes
		}
		<-c.wake
	}
}

// run commits queued writes, by calling commit with batches of the store, until close is called and the queue is empty. It is a goroutine of its own.
func (c *committer) run(store *kvstore.Store, commit func(*kvstore.Batch) error) {
	defer close(c.done)
	for {
		writes := c.nextWrites()
		if len(writes) == 0 {
			return
		}
		c.commitWrites(store, writes, commit)
	}
}

// commitWrites commits the writes in one batch, and finishes each with the result; an error of the store becomes [ErrReset], which wraps it. Writes
// that follow a failed write of the same object fail, too, and are left out.
func (c *committer) commitWrites(store *kvstore.Store, writes []*write, commit func(*kvstore.Batch) error) {
	batch := store.NewBatch()
	defer batch.Close()
	var good []*write
	for _, w := range writes {
		// A write that follows a failed write of the same object must fail too.
		o := w.object
		o.mu.Lock()
		lost := o.lost
		o.mu.Unlock()
		if lost != nil {
			w.finish(lost)
			continue
		}
		good = append(good, w)
		w.addTo(batch)
	}
	err := commit(batch)
	if err != nil {
		err = fmt.Errorf("%w: couldn't write: %w", ErrReset, err)
	}
	for _, w := range good {
		w.finish(err)
	}
}

// close waits until all queued writes are done and the committer has ended. The caller adds none any more.
func (c *committer) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	retry.Wake(c.wake)
	<-c.done
}

// addTo adds the write's changes of values and of the alarm to a batch.
func (w *write) addTo(b *kvstore.Batch) {
	class, name := w.object.class.name, w.object.name
	prefix := valuePrefix(class, name)
	for _, c := range w.changes {
		key := append(prefix[:len(prefix):len(prefix)], c.key...)
		if c.deleted {
			b.Delete(kvstore.Durable, key)
		} else {
			b.Set(kvstore.Durable, key, c.value)
		}
	}
	if !w.alarmed {
		return
	}
	if w.from != nil {
		b.Delete(kvstore.Durable, dueKey(class, name, w.from.next))
	}
	if w.to == nil {
		b.Delete(kvstore.Durable, alarmKey(class, name))
		return
	}
	b.Set(kvstore.Durable, alarmKey(class, name), w.to.encode())
	b.Set(kvstore.Durable, dueKey(class, name, w.to.next), nil)
}

// A cache keeps values of one object that are as the store has them, and which keys
// have none, recently used last. It is guarded by object.mu; all caches of a class
// share a bound.
type cache struct {
	entries map[string]*list.Element
	order   list.List     // of the entries, which are *cached
	total   *atomic.Int64 // bytes in all caches
	limit   int64
}

// cached is an entry of a cache: the value of a key, or that the key has none.
type cached struct {
	key   string
	value []byte
	ok    bool // whether there is a value
}

// size returns about how many bytes of memory an entry takes.
func (e *cached) size() int64 { return int64(len(e.key) + len(e.value) + 192) }

// get returns the cached value of a key, which the caller must not change, and counts that as a use, so that other entries are evicted before. known
// reports whether the cache has an entry about the key, ok whether that is a value, rather than that the key has none. Changes that are not yet
// durable are not in the cache: the caller looks in o.dirty first.
func (c *cache) get(key string) (value []byte, ok, known bool) {
	at := c.entries[key]
	if at == nil {
		return nil, false, false
	}
	c.order.MoveToBack(at)
	e := at.Value.(*cached)
	return e.value, e.ok, true
}

// put stores a value of a key, or with ok false that the key has none. It keeps value itself. It first removes the object's oldest entries while the
// class has too many bytes, and stores nothing if that is not enough.
func (c *cache) put(key string, value []byte, ok bool) {
	c.remove(key)
	e := &cached{key: key, value: value, ok: ok}
	for c.total.Add(e.size()) > c.limit {
		c.total.Add(-e.size())
		oldest := c.order.Front()
		if oldest == nil {
			return
		}
		c.remove(oldest.Value.(*cached).key)
	}
	if c.entries == nil {
		c.entries = make(map[string]*list.Element)
	}
	c.entries[key] = c.order.PushBack(e)
}

// remove removes the entry about a key, if there is one.
func (c *cache) remove(key string) {
	if e := c.entries[key]; e != nil {
		delete(c.entries, key)
		c.total.Add(-c.order.Remove(e).(*cached).size())
	}
}

// clear removes all entries of the object.
func (c *cache) clear() {
	for e := c.order.Front(); e != nil; e = e.Next() {
		c.total.Add(-e.Value.(*cached).size())
	}
	c.entries = nil
	c.order.Init()
}
