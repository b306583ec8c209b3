package server

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
)

func newTestBodies(t *testing.T, cacheBytes, sendBytes int64) *bodies {
	t.Helper()
	b, err := newBodies(cacheBytes, sendBytes, time.Second, newMetrics().bodies)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sized returns a sum and a reader for n bytes that are all c.
func sized(n int, c byte) (kvstore.Hash, int64, func() ([]byte, error)) {
	data := slices.Repeat([]byte{c}, n)
	return kvstore.Sum(data), int64(n), func() ([]byte, error) { return data, nil }
}

func (b *bodies) mustAcquire(t *testing.T, sum kvstore.Hash, n int64, read func() ([]byte, error)) *body {
	t.Helper()
	x, err := b.acquire(sum, n, netip.Prefix{}, read)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func wantSending(t *testing.T, b *bodies, want int64) {
	t.Helper()
	if got := b.sendingBytes(); got != want {
		t.Errorf("%d bytes are being sent, want %d", got, want)
	}
}

func TestStampedeReadsOnce(t *testing.T) {
	for name, cacheBytes := range map[string]int64{"kept": 1 << 20, "too large to keep": 1 << 10} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newTestBodies(t, cacheBytes, 1<<20)
				sum, n, read := sized(1000, 'a')
				reads, gate := 0, make(chan struct{})
				slow := func() ([]byte, error) { reads++; <-gate; return read() }
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						x, err := b.acquire(sum, n, netip.Prefix{}, slow)
						if err != nil {
							t.Error(err)
							return
						}
						defer b.release(x)
						if len(x.bytes) != 1000 {
							t.Errorf("%d bytes", len(x.bytes))
						}
					})
				}
				synctest.Wait() // all of them ask
				close(gate)
				wg.Wait()
				if reads != 1 {
					t.Errorf("%d reads, want 1", reads)
				}
				wantSending(t, b, 0)
				if len(b.loose) != 0 {
					t.Errorf("%d loose after all were released", len(b.loose))
				}
			})
		})
	}
}

func TestBodyTooLargeToKeepIsShared(t *testing.T) {
	b := newTestBodies(t, 1<<10, 1<<20)
	sum, n, read := sized(1000, 'a')
	x := b.mustAcquire(t, sum, n, read)
	wantSending(t, b, x.memorySize())
	y := b.mustAcquire(t, sum, n, func() ([]byte, error) { return nil, errors.New("read again") })
	if x != y {
		t.Error("two bodies of the same bytes")
	}
	wantSending(t, b, x.memorySize())
	b.release(x)
	wantSending(t, b, x.memorySize())
	b.release(y)
	wantSending(t, b, 0)
	if _, ok := b.getCached(sum); ok {
		t.Error("it is in the cache")
	}
}

func TestEvictedBodyCountsWhileItIsSent(t *testing.T) {
	b := newTestBodies(t, 1<<20, 1<<20)
	sum, n, read := sized(1000, 'a')
	x := b.mustAcquire(t, sum, n, read)
	wantSending(t, b, 0) // the cache accounts for it
	bodyCache(b).Invalidate(sum)
	wantSending(t, b, x.memorySize())
	y := b.mustAcquire(t, sum, n, func() ([]byte, error) { return nil, errors.New("read again") })
	if x != y {
		t.Error("two bodies of the same bytes")
	}
	b.release(x)
	b.release(y)
	wantSending(t, b, 0)
	if len(b.loose) != 0 {
		t.Errorf("%d loose bodies are left", len(b.loose))
	}
}

func TestSendBudget(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newTestBodies(t, 1<<10, 3000)
		sumA, n, readA := sized(2000, 'a')
		sumB, _, readB := sized(2000, 'b')
		x := b.mustAcquire(t, sumA, n, readA)

		start := time.Now()
		if _, err := b.acquire(sumB, n, netip.Prefix{}, readB); !errors.Is(err, errBusy) {
			t.Errorf("the error is %v, want %v", err, errBusy)
		}
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("it waited for %v, want 1s", waited)
		}

		// Room that appears in time is used.
		time.AfterFunc(500*time.Millisecond, func() { b.release(x) })
		y := b.mustAcquire(t, sumB, n, readB)
		b.release(y)
		wantSending(t, b, 0)

		// A body that exceeds the limit on its own is read alone.
		sumC, n, readC := sized(5000, 'c')
		z := b.mustAcquire(t, sumC, n, readC)
		b.release(z)
		wantSending(t, b, 0)
	})
}

// A load that waits for room goes on when the limit grows, what a client has counts against a lower one, and a smaller cache keeps less.
func TestLimitsChange(t *testing.T) {
	const each = 1000 + bodyOverhead
	one, other := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	bubble.Test(t, func(t *testing.T) {
		b := newTestBodies(t, 1<<10, 4*each)
		take := func(of netip.Prefix, c byte) (*body, error) {
			sum, n, read := sized(1000, c)
			return b.acquire(sum, n, of, read)
		}
		var held []*body
		for c := range byte(2) {
			x, err := take(one, c)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, x)
		}
		time.AfterFunc(500*time.Millisecond, func() { b.setLimits(1<<10, 6*each) })
		x, err := take(one, 2)
		if err != nil {
			t.Fatalf("under a higher limit: %v", err)
		}
		held = append(held, x)
		b.setLimits(1<<10, 4*each) // the client has one more than half of that
		if b.over != each {
			t.Errorf("%d bytes are over, want %d", b.over, each)
		}
		if !b.Scarce() {
			t.Error("more than half of the lower limit is sent")
		}
		if _, err := take(one, 3); !errors.Is(err, errBusy) {
			t.Errorf("under a lower limit: %v", err)
		}
		x, err = take(other, 4)
		if err != nil {
			t.Errorf("another client, which has nothing: %v", err)
		}
		for _, x := range append(held, x) {
			b.release(x)
		}
		wantSending(t, b, 0)
		if b.over != 0 {
			t.Errorf("%d bytes are over after all were released", b.over)
		}
	})
	b := newTestBodies(t, 1<<20, 4*each)
	for c := range byte(100) {
		sum, n, read := sized(1000, c)
		b.release(b.mustAcquire(t, sum, n, read))
	}
	b.setLimits(32*each, 4*each)
	bodyCache(b).CleanUp()
	if got := bodyCache(b).WeightedSize(); got > 32*each {
		t.Errorf("the cache has %d bytes, more than %d", got, 32*each)
	}
	if b.isCacheable(5 * each) {
		t.Error("a body of more than its share of the smaller cache goes into that")
	}
}

// One client may have half of what is sent, and what it has does not keep others out, evictions included.
func TestSendBudgetIsShared(t *testing.T) {
	one, other := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	const each = 1000 + bodyOverhead
	bubble.Test(t, func(t *testing.T) {
		b := newTestBodies(t, 1<<10, 10*each) // no body is kept
		take := func(of netip.Prefix, c byte) *body {
			sum, n, read := sized(1000, c)
			x, err := b.acquire(sum, n, of, read)
			if err != nil && !errors.Is(err, errBusy) {
				t.Fatal(err)
			}
			return x
		}
		var held []*body
		fill := func(of netip.Prefix, want int) {
			t.Helper()
			n := 0
			for x := take(of, byte(len(held))); x != nil; x = take(of, byte(len(held))) {
				held = append(held, x)
				n++
			}
			if n != want {
				t.Errorf("%v has %d bodies, want %d", of, n, want)
			}
		}
		fill(one, 5)
		fill(other, 3) // of five that are free
		fill(one, 0)
		for _, x := range held {
			b.release(x)
		}
		wantSending(t, b, 0)
		if len(b.of) != 0 || b.over != 0 {
			t.Errorf("after all were released %d clients are kept and %d bytes are over", len(b.of), b.over)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		b := newTestBodies(t, 1<<20, 10*each) // every body is kept
		var held []*body
		for c := range byte(20) {
			sum, n, read := sized(1000, c)
			x, err := b.acquire(sum, n, one, read)
			if err != nil {
				t.Fatal(err)
			}
			held = append(held, x)
		}
		for _, x := range held {
			bodyCache(b).Invalidate(x.sum)
		}
		wantSending(t, b, 20*each)
		sum, n, read := sized(1000, 'x')
		x, err := b.acquire(sum, n, other, read)
		if err != nil {
			t.Fatalf("another client is kept out by what was evicted: %v", err)
		}
		sum, n, read = sized(1000, 'y')
		if _, err := b.acquire(sum, n, one, read); !errors.Is(err, errBusy) {
			t.Errorf("the client that has twice the limit gets more: %v", err)
		}
		b.release(x)
		for _, x := range held {
			b.release(x)
		}
		bodyCache(b).InvalidateAll()
		wantSending(t, b, 0)
		if len(b.of) != 0 || b.over != 0 {
			t.Errorf("after all were released %d clients are kept and %d bytes are over", len(b.of), b.over)
		}
	})
}

func TestFailedReadLeavesNothing(t *testing.T) {
	b := newTestBodies(t, 1<<20, 1<<20)
	sum, n, read := sized(1000, 'a')
	broken := errors.New("broken")
	if _, err := b.acquire(sum, n, netip.Prefix{}, func() ([]byte, error) { return nil, broken }); err != broken {
		t.Errorf("the error is %v, want %v", err, broken)
	}
	if _, err := b.acquire(sum, n, netip.Prefix{}, func() ([]byte, error) { return []byte("short"), nil }); err == nil {
		t.Error("a short read is no error")
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = b.acquire(sum, n, netip.Prefix{}, func() ([]byte, error) { panic("read") })
	}()
	b.release(b.mustAcquire(t, sum, n, read))
	wantSending(t, b, 0)
}

// Many senders of bodies that evict each other: nothing may be left over.
func TestBodiesAccountForAll(t *testing.T) {
	b := newTestBodies(t, 64<<10, 32<<10)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				sum, n, read := sized(1000+(g*7+i*13)%40*200, 'a')
				x, err := b.acquire(sum, n, netip.Prefix{}, read)
				if err != nil {
					t.Error(err)
					return
				}
				if kvstore.Sum(x.bytes) != sum {
					t.Error("the body is another one")
				}
				b.release(x)
			}
		})
	}
	wg.Wait()
	bodyCache(b).CleanUp()
	bodyCache(b).InvalidateAll()
	wantSending(t, b, 0)
	if len(b.loose) != 0 {
		t.Errorf("%d loose bodies are left", len(b.loose))
	}
}
