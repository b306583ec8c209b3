package server

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/maypok86/otter/v2"

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

// loose reports whether a body in that state is held by senders only.
func loose(state int64) bool { return 0 < state && state < isCached }

// Scarce reports memory pressure, if the body is not in the cache: only then does it take
// a lock.
func (b *body) Scarce() bool { return loose(b.state.Load()) && b.all.Scarce() }

func (b *body) weigh() int64 { return int64(len(b.bytes)) + bodyOverhead }

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

	mu      sync.Mutex
	limit   int64 // of used
	loading map[kvstore.Hash]*flight
	loose   map[kvstore.Hash]*body
	used    int64 // weight of loose bodies and reservations
	over    int64 // the part of used that clients have beyond half of the limit each
	of      map[netip.Prefix]int64
	freed   chan struct{} // closed when used falls
}

// A flight is one load, for however many wait for it.
type flight struct {
	done chan struct{}
	body *body
	err  error
}

// cacheShare is the part of the cache that one body may take.
const cacheShare = 8

func newBodies(cacheBytes, sendBytes int64, wait time.Duration, m *cacheMetrics) (*bodies, error) {
	b := &bodies{
		limit:   sendBytes,
		wait:    wait,
		metrics: m,
		loading: make(map[kvstore.Hash]*flight),
		loose:   make(map[kvstore.Hash]*body),
		of:      make(map[netip.Prefix]int64),
		freed:   make(chan struct{}),
	}
	cache, err := otter.New(&otter.Options[kvstore.Hash, *body]{
		MaximumWeight:    uint64(cacheBytes),
		Weigher:          func(_ kvstore.Hash, x *body) uint32 { return uint32(x.weigh()) },
		OnAtomicDeletion: func(e otter.DeletionEvent[kvstore.Hash, *body]) { b.evicted(e.Value) },
		StatsRecorder:    m,
	})
	b.memory = cache
	b.largest.Store(cacheBytes / cacheShare)
	return b, err
}

// setLimits changes the bounds. Bodies beyond a lower one are evicted from the cache; those that are being sent stay.
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

// bodyCache returns the cache in memory, as assetCache does.
func bodyCache(b *bodies) *otter.Cache[kvstore.Hash, *body] {
	return b.memory.(*otter.Cache[kvstore.Hash, *body])
}

// cacheable reports whether a body of that many bytes goes into the cache.
func (b *bodies) cacheable(length int64) bool { return length+bodyOverhead <= b.largest.Load() }

// cached returns the body with that sum if it is in the cache.
func (b *bodies) cached(sum kvstore.Hash) (*body, bool) {
	x, ok := bodyCache(b).GetIfPresent(sum)
	if ok {
		b.hold(x)
	}
	return x, ok
}

// acquire returns the body with that sum for a client. Where it is not in memory, read is
// called for its length bytes, once however many ask, and after there is room.
func (b *bodies) acquire(sum kvstore.Hash, length int64, client netip.Prefix, read func() ([]byte, error)) (*body, error) {
	if x, ok := b.cached(sum); ok {
		return x, nil
	}
	b.metrics.misses.Inc()
	b.mu.Lock()
	if x := b.loose[sum]; x != nil {
		b.mu.Unlock()
		b.hold(x)
		return x, nil
	}
	if f := b.loading[sum]; f != nil {
		b.mu.Unlock()
		<-f.done
		if f.err == nil {
			b.hold(f.body)
		}
		return f.body, f.err
	}
	f := &flight{done: make(chan struct{}), err: errors.New("the load ended early")}
	b.loading[sum] = f
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.loading, sum)
		b.mu.Unlock()
		close(f.done)
	}()
	// A load may have ended since the cache was asked.
	if e, ok := bodyCache(b).GetEntryQuietly(sum); ok {
		b.hold(e.Value)
		f.body, f.err = e.Value, nil
		return f.body, nil
	}
	f.body, f.err = b.load(sum, length, client, read)
	return f.body, f.err
}

// load returns a body that the caller holds.
func (b *bodies) load(sum kvstore.Hash, length int64, client netip.Prefix, read func() ([]byte, error)) (*body, error) {
	weight := length + bodyOverhead
	if err := b.reserve(client, weight); err != nil {
		return nil, err
	}
	reserved := true
	defer func() {
		if reserved { // reading failed, or panicked, or the cache took over
			b.unreserve(client, weight)
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

func (b *bodies) hold(x *body) {
	if x.state.Add(1) == 1 {
		b.becomeLoose(x)
	}
}

// release ends a holding.
func (b *bodies) release(x *body) {
	if x.state.Add(-1) == 0 {
		b.becomeUnused(x)
	}
}

// evicted is called by the cache, under one of its locks.
func (b *bodies) evicted(x *body) {
	if loose(x.state.Add(-isCached)) {
		b.becomeLoose(x)
	}
}

// becomeLoose accounts for a body that senders alone keep in memory from now on.
// It cannot be refused, only those who come later can.
//
// The changes of a body's state are ordered, the calls that follow from them are
// not. The sums do not mind; the map is therefore set by what the state is now.
func (b *bodies) becomeLoose(x *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(x.owner, x.weigh())
	if loose(x.state.Load()) {
		b.loose[x.sum] = x
	}
}

func (b *bodies) becomeUnused(x *body) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.loose[x.sum] == x && !loose(x.state.Load()) {
		delete(b.loose, x.sum)
	}
	b.free(x.owner, x.weigh())
}

// reserve waits until the client may use n bytes more. What is over the limit on its own
// gets through when nothing else is being sent.
func (b *bodies) reserve(client netip.Prefix, n int64) error {
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
	b.charge(client, n)
	b.mu.Unlock()
	return nil
}

func (b *bodies) unreserve(client netip.Prefix, n int64) {
	b.mu.Lock()
	b.free(client, n)
	b.mu.Unlock()
}

// charge counts n bytes more for a client. It is called with mu held, as is free.
func (b *bodies) charge(client netip.Prefix, n int64) {
	half, had := b.limit/2, b.of[client]
	b.used += n
	b.over += max(0, had+n-half) - max(0, had-half)
	if had+n == 0 {
		delete(b.of, client)
	} else {
		b.of[client] = had + n
	}
}

func (b *bodies) free(client netip.Prefix, n int64) {
	b.charge(client, -n)
	b.wakeWaiting()
}

// wakeWaiting has loads that wait for room look again. It is called with mu held.
func (b *bodies) wakeWaiting() {
	close(b.freed)
	b.freed = make(chan struct{})
}

// sending returns the weight of what is being sent and not in the cache.
func (b *bodies) sending() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Scarce reports memory pressure: more than half of the limit is being sent.
func (b *bodies) Scarce() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used > b.limit/2
}
