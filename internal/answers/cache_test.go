package answers

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
)

func made[V any](v V, bytes int) func() (V, int, error) {
	return func() (V, int, error) { return v, bytes, nil }
}

func TestCacheKeepsTheMostRecent(t *testing.T) {
	p := Cache[int, string]{Most: 3, MostBytes: 100}
	ask := func(key int, want string) {
		t.Helper()
		got, err := p.Get(key, made("new", 10))
		if err != nil || got != want {
			t.Errorf("%d is %s, want %s: %v", key, got, want, err)
		}
	}
	for key := range 3 {
		if _, err := p.Get(key, made("old", 10)); err != nil {
			t.Fatal(err)
		}
	}
	ask(0, "old")
	ask(3, "new")
	ask(1, "new")
	ask(0, "old")
	p.Remove(func(key int) bool { return key == 0 })
	if v, ok := p.Cached(1); !ok || v != "new" {
		t.Errorf("kept: %q, %v", v, ok)
	}
	if _, ok := p.Cached(0); ok {
		t.Error("what was let go of is kept")
	}
	ask(0, "new")
	if v, ok := p.CachedIf(1, func(v string) bool { return v == "new" }); !ok || v != "new" {
		t.Errorf("fresh: %q, %v", v, ok)
	}
	if v, ok := p.CachedIf(1, func(string) bool { return false }); ok || v != "" {
		t.Errorf("stale: %q, %v", v, ok)
	}
	if _, ok := p.Cached(1); ok {
		t.Error("a stale value is kept")
	}
}

func TestCacheIsBounded(t *testing.T) {
	p := Cache[int, int]{Most: 10, MostBytes: 100}
	for key := range 10 {
		if _, err := p.Get(key, made(key, 30)); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(p.entries); got != 3 {
		t.Errorf("entries kept: %v, want %v", got, 3)
	}
	if v, err := p.Get(11, made(11, 101)); v != 11 || err != nil {
		t.Error("what is too large is not answered")
	}
	if got := len(p.entries); got != 0 {
		t.Errorf("entries kept beside one that is too large: %v, want %v", got, 0)
	}
}

func TestCacheFails(t *testing.T) {
	p := Cache[int, int]{Most: 2, MostBytes: 10}
	broken := errors.New("broken")
	if _, err := p.Get(1, func() (int, int, error) { return 0, 0, broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = p.Get(1, func() (int, int, error) { panic("boom") })
		t.Error("the panic is lost")
	}()
	if v, err := p.Get(1, made(7, 1)); v != 7 || err != nil {
		t.Errorf("after failures: %d %v", v, err)
	}
}

func TestCacheIsMadeOnce(t *testing.T) {
	p := Cache[int, int]{Most: 2, MostBytes: 10}
	var times atomic.Int32
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	var group sync.WaitGroup
	ask := func() {
		v, err := p.Get(1, func() (int, int, error) {
			times.Add(1)
			begun <- struct{}{}
			<-finish
			return 7, 1, nil
		})
		if v != 7 || err != nil {
			t.Errorf("%d %v", v, err)
		}
	}
	group.Go(ask)
	<-begun
	for range 9 {
		group.Go(ask)
	}
	close(finish)
	group.Wait()
	if got := times.Load(); got != int32(1) {
		t.Errorf("times: %v, want %v", got, int32(1))
	}
}

// TestCacheEvictsWhileMaking lets the race detector see values that are made and counted at the same time.
func TestCacheEvictsWhileMaking(t *testing.T) {
	c := Cache[int, int]{Most: 100, MostBytes: 10}
	for range 200 {
		var both, done sync.WaitGroup
		both.Add(2)
		for key := range 2 {
			done.Go(func() {
				_, err := c.Get(key, func() (int, int, error) {
					both.Done()
					both.Wait()
					return key, 1, nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
		done.Wait()
		c.Remove(func(int) bool { return true })
	}
}
