package server

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"
	"golang.org/x/sync/singleflight"

	"github.com/larder-cdn/larder/kvstore"
)

// errBusy is returned where the bytes being sent leave no room for more.
var errBusy = errors.New("too many bytes are being sent")

// bodyOverhead is what a body takes in memory beside its bytes, roughly.
const bodyOverhead = 256

// A body is a representation's bytes in memory. A goroutine that got one from
// bodies.acquire holds it until it calls bodies.release.
type body struct {
	sum   kvstore.Hash
	bytes []byte
	all   *bodies
	owner netip.Prefix // the client whose request read it
	// state counts the holders, plus isCached while the cache has it.
	state atomic.Int64
}

const isCached = 1 << 40

// isLoose reports whether a value of body.state says that senders hold the body, and that the cache does not contain it.
func isLoose(state int64) bool { return 0 < state && state < isCached }

// Scarce reports whether memory for bodies is scarce and this body adds to that, because it is being sent and is not in the cache. It takes a lock
// only in that case.
func (b *body) Scarce() bool { return isLoose(b.state.Load()) && b.all.Scarce() }

// memorySize returns about how many bytes of memory the body takes, overhead included.
func (b *body) memorySize() int64 { return int64(len(b.bytes)) + bodyOverhead }

// bodies keeps the bodies in memory: those in a cache, bounded by its weight, and
// the loose ones, which are being sent and are not in the cache because they
// are too large, were not admitted, or were evicted since. Both bounds together
// bound the memory. A body is known by the SHA-256 of its bytes, so what it is a
// body of never matters, and there is one at most.
//
// Loose bytes are counted for the client that they were read for. A client may have as much as is free beside it: alone
// half of the limit, as the dynamic thresholds of shared-memory switches do it (Choudhury and Hahne, 1998). So a client
// that has nothing finds room, whatever one other holds. What evictions add beyond a half is not held against others.
type bodies struct {
	memory  any           // see bodyCache
	largest atomic.Int64  // weight of the heaviest body that goes into the cache
	wait    time.Duration // how long a load waits for room
	metrics *cacheMetrics
	loads   singleflight.Group // by the SHA-256 of the bytes

	mu    sync.Mutex
	limit int64 // of used
	loose map[kvstore.Hash]*body
	used  int64 // weight of loose bodies and reservations
	over  int64 // the part of used that clients have beyond half of the limit each
	of    map[netip.Prefix]int64
	freed chan struct{} // closed when used falls
}

// cacheShare is the part of the cache that one body may take.
const cacheShare = 8

// newBodies returns an empty cache of up to cacheBytes of memory, which allows sendBytes more for bodies that are being sent and are not in the
// cache. A client waits for such memory up to wait. m counts the cache's work.
func newBodies(cacheBytes, sendBytes int64, wait time.Duration, m *cacheMetrics) (*bodies, error) {
	b := &bodies{
		limit:   sendBytes,
		wait:    wait,
		metrics: m,
		loose:   make(map[kvstore.Hash]*body),
		of:      make(map[netip.Prefix]int64),
		freed:   make(chan struct{}),
	}
	cache, err := otter.New(&otter.Options[kvstore.Hash, *body]{
		MaximumWeight:    uint64(cacheBytes),
		Weigher:          func(_ kvstore.Hash, x *body) uint32 { return uint32(x.memorySize()) },
		OnAtomicDeletion: func(e otter.DeletionEvent[kvstore.Hash, *body]) { b.onEviction(e.Value) },
		StatsRecorder:    m,
	})
	b.memory = cache
	b.largest.Store(cacheBytes / cacheShare)
	return b, err
}

// setLimits changes the limits that newBodies was given, while the cache is used. The cache evicts bodies beyond a lower limit. Bodies that are being
// sent stay in memory. Requests that wait for memory check again.
func (b *bodies) setLimits(cacheBytes, sendBytes int64) {
	b.largest.Store(cacheBytes / cacheShare)
	bodyCache(b).SetMaximum(uint64(cacheBytes))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit, b.over = sendBytes, 0
	for _, n := range b.of {
		b.over += max(0, n-sendBytes/2)
	}
	b.wakeWaiting()
}

// bodyCache returns the in-memory cache of b with its type, as assetCache does for rows.
func bodyCache(b *bodies) *otter.Cache[kvstore.Hash, *body] {
	return b.memory.(*otter.Cache[kvstore.Hash, *body])
}

// isCacheable reports whether the cache may contain a body of length bytes.
func (b *bodies) isCacheable(length int64) bool { return length+bodyOverhead <= b.largest.Load() }

// getCached returns the body whose bytes have the SHA-256 sum if it is in the cache; otherwise the results are nil and false. It does not look at
// loose bodies. If the result is true, the caller must release the body.
func (b *bodies) getCached(sum kvstore.Hash) (*body, bool) {
	x, ok := bodyCache(b).GetIfPresent(sum)
	if ok {
		b.addHolder(x)
	}
	return x, ok
}

// getLoose returns the body whose bytes have the SHA-256 sum if it is being sent and is not in the cache, else nil.
func (b *bodies) getLoose(sum kvstore.Hash) *body {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.loose[sum]
}

// acquire returns the body whose bytes have the SHA-256 sum, for a client. If it is not in memory, it waits for memory, charged to the client, and
// calls read for its length bytes. Calls for the same body that wait at the same time share one read, charged to the first one's client, and its
// error. It returns [errBusy] if no memory was free in time, kvstore.ErrCorrupt for another length, and errors of read. The caller must release the
// body.
func (b *bodies) acquire(sum kvstore.Hash, length int64, client netip.Prefix, read func() ([]byte, error)) (*body, error) {
	if x, ok := b.getCached(sum); ok {
		return x, nil
	}
	b.metrics.misses.Inc()
	if x := b.getLoose(sum); x != nil {
		b.addHolder(x)
		return x, nil
	}
	mine := false
	loaded, err, _ := b.loads.Do(string(sum[:]), func() (any, error) {
		mine = true
		x := b.getLoose(sum)
		if e, ok := bodyCache(b).GetEntryQuietly(sum); ok { // a load may have ended since the cache was queried
			x = e.Value
		}
		if x == nil {
			return b.load(sum, length, client, read)
		}
		b.addHolder(x)
		return x, nil
	})
	if err != nil {
		return nil, err
	}
	x := loaded.(*body)
	if !mine {
		b.addHolder(x)
	}
	return x, nil
}

// load reserves memory for a client, calls read for the length bytes of the body with the SHA-256 sum, and adds the body to the cache, or if it is
// too large, to the loose ones. It returns [errBusy] if no memory was free in time, kvstore.ErrCorrupt for another length, and errors of read; then
// nothing stays reserved. The caller must release the body.
func (b *bodies) load(sum kvstore.Hash, length int64, client netip.Prefix, read func() ([]byte, error)) (*body, error) {
	weight := length + bodyOverhead
	if err := b.reserveMemory(client, weight); err != nil {
		return nil, err
	}
	reserved := true
	defer func() {
		if reserved { // reading failed, or panicked, or the cache took over
			b.releaseMemory(client, weight)
		}
	}()
	start := time.Now()
	bytes, err := read()
	if err != nil {
		return nil, err
	}
	b.metrics.loads.Observe(time.Since(start).Seconds())
	if int64(len(bytes)) != length {
		return nil, fmt.Errorf("%w: content of %d bytes where there should be %d", kvstore.ErrCorrupt, len(bytes), length)
	}
	x := &body{sum: sum, bytes: bytes, all: b, owner: client}
	if weight > b.largest.Load() {
		x.state.Store(1)
		b.mu.Lock()
		b.loose[sum] = x
		b.mu.Unlock()
		reserved = false // it is the body's own now
		return x, nil
	}
	x.state.Store(1 + isCached)
	bodyCache(b).Set(sum, x)
	return x, nil
}

// addHolder counts one more sender that uses a body, whose bytes stay in memory until all of them have released it.
func (b *bodies) addHolder(x *body) {
	if x.state.Add(1) == 1 {
		b.chargeLoose(x)
	}
}

// release counts one sender fewer that uses a body. The caller must not use the body afterwards.
func (b *bodies) release(x *body) {
	if x.state.Add(-1) == 0 {
		b.removeUnused(x)
	}
}

// onEviction records that a body has left the cache; its memory is charged to its client if it is still being sent. The cache calls it under one of
// its locks.
func (b *bodies) onEviction(x *body) {
	if isLoose(x.state.Add(-isCached)) {
		b.chargeLoose(x)
	}
}

// chargeLoose charges the memory of a body that is being sent and is not in the cache to the client for which it was read. Sending continues even if
// that exceeds the limit; later clients wait. Calls may come in another order than the changes of the body's state, so the map follows the present
// state.
func (b *bodies) chargeLoose(x *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addUsage(x.owner, x.memorySize())
	if isLoose(x.state.Load()) {
		b.loose[x.sum] = x
	}
}

// removeUnused ends the charge for a body outside of the cache that no sender uses any longer, and forgets it.
func (b *bodies) removeUnused(x *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loose[x.sum] == x && !isLoose(x.state.Load()) {
		delete(b.loose, x.sum)
	}
	b.subtractUsage(x.owner, x.memorySize())
}

// reserveMemory waits until a client may use n more bytes of memory for bodies and charges them to it, or returns errBusy after b.wait. More than the
// whole limit is granted when nothing else is being sent.
func (b *bodies) reserveMemory(client netip.Prefix, n int64) error {
	var timeout <-chan time.Time
	b.mu.Lock()
	for b.used > 0 && b.of[client]+n > b.limit-(b.used-b.over) {
		freed := b.freed
		b.mu.Unlock()
		if timeout == nil {
			timeout = time.After(b.wait)
		}
		select {
		case <-freed:
		case <-timeout:
			return errBusy
		}
		b.mu.Lock()
	}
	b.addUsage(client, n)
	b.mu.Unlock()
	return nil
}

// releaseMemory returns n bytes of memory that a client has reserved, and wakes those that wait.
func (b *bodies) releaseMemory(client netip.Prefix, n int64) {
	b.mu.Lock()
	b.subtractUsage(client, n)
	b.mu.Unlock()
}

// addUsage adds n bytes, which may be negative, to the memory that a client uses, and updates the sums. The caller holds mu.
func (b *bodies) addUsage(client netip.Prefix, n int64) {
	half, had := b.limit/2, b.of[client]
	b.used += n
	b.over += max(0, had+n-half) - max(0, had-half)
	if had+n == 0 {
		delete(b.of, client)
	} else {
		b.of[client] = had + n
	}
}

// subtractUsage subtracts n bytes from the memory that a client uses, and wakes those that wait for memory. The caller holds mu.
func (b *bodies) subtractUsage(client netip.Prefix, n int64) {
	b.addUsage(client, -n)
	b.wakeWaiting()
}

// wakeWaiting wakes all goroutines that wait for memory in reserveMemory, which check again. The caller holds mu.
func (b *bodies) wakeWaiting() {
	close(b.freed)
	b.freed = make(chan struct{})
}

// sendingBytes returns how many bytes of memory bodies take that are being sent and are not in the cache, with reservations for those that are being
// read.
func (b *bodies) sendingBytes() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Scarce reports memory pressure: bodies that are being sent outside of the cache take more than half of their limit.
func (b *bodies) Scarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used > b.limit/2
}
