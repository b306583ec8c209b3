package server

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
	x, err := b.acquire(sum, n, read)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func wantSending(t *testing.T, b *bodies, want int64) {
	t.Helper()
	if got := b.sending(); got != want {
		t.Errorf("%d bytes are being sent, want %d", got, want)
	}
}

func TestStampedeReadsOnce(t *testing.T) {
	for name, cacheBytes := range map[string]int64{"kept": 1 << 20, "too large to keep": 1 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newTestBodies(t, cacheBytes, 1<<20)
				sum, n, read := sized(1000, 'a')
				reads, gate := 0, make(chan struct{})
				slow := func() ([]byte, error) { reads++; <-gate; return read() }
				var wg sync.WaitGroup
				for range 50 {
					wg.Go(func() {
						x, err := b.acquire(sum, n, slow)
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
				if len(b.loose) != 0 || len(b.loading) != 0 {
					t.Errorf("%d loose, %d loading after all were released", len(b.loose), len(b.loading))
				}
			})
		})
	}
}

func TestBodyTooLargeToKeepIsShared(t *testing.T) {
	b := newTestBodies(t, 1<<10, 1<<20)
	sum, n, read := sized(1000, 'a')
	x := b.mustAcquire(t, sum, n, read)
	wantSending(t, b, x.weigh())
	y := b.mustAcquire(t, sum, n, func() ([]byte, error) { return nil, errors.New("read again") })
	if x != y {
		t.Error("two bodies of the same bytes")
	}
	wantSending(t, b, x.weigh())
	b.release(x)
	wantSending(t, b, x.weigh())
	b.release(y)
	wantSending(t, b, 0)
	if _, ok := b.cached(sum); ok {
		t.Error("it is in the cache")
	}
}

func TestEvictedBodyCountsWhileItIsSent(t *testing.T) {
	b := newTestBodies(t, 1<<20, 1<<20)
	sum, n, read := sized(1000, 'a')
	x := b.mustAcquire(t, sum, n, read)
	wantSending(t, b, 0) // the cache accounts for it
	b.cache.Invalidate(sum)
	wantSending(t, b, x.weigh())
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
	synctest.Test(t, func(t *testing.T) {
		b := newTestBodies(t, 1<<10, 3000)
		sumA, n, readA := sized(2000, 'a')
		sumB, _, readB := sized(2000, 'b')
		x := b.mustAcquire(t, sumA, n, readA)

		start := time.Now()
		if _, err := b.acquire(sumB, n, readB); !errors.Is(err, errBusy) {
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

		// What is over the limit on its own gets through alone.
		sumC, n, readC := sized(5000, 'c')
		z := b.mustAcquire(t, sumC, n, readC)
		b.release(z)
		wantSending(t, b, 0)
	})
}

func TestFailedReadLeavesNothing(t *testing.T) {
	b := newTestBodies(t, 1<<20, 1<<20)
	sum, n, read := sized(1000, 'a')
	broken := errors.New("broken")
	if _, err := b.acquire(sum, n, func() ([]byte, error) { return nil, broken }); err != broken {
		t.Errorf("the error is %v, want %v", err, broken)
	}
	if _, err := b.acquire(sum, n, func() ([]byte, error) { return []byte("short"), nil }); err == nil {
		t.Error("a short read is no error")
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = b.acquire(sum, n, func() ([]byte, error) { panic("read") })
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
				x, err := b.acquire(sum, n, read)
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
	b.cache.CleanUp()
	b.cache.InvalidateAll()
	wantSending(t, b, 0)
	if len(b.loose) != 0 {
		t.Errorf("%d loose bodies are left", len(b.loose))
	}
}
