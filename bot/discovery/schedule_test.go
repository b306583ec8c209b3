package discovery

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/durable"
)

// A notebook is an agenda over a store in memory.
type notebook struct {
	*testing.T
	*pollSchedule
	store   *kvstore.Store
	runtime *durable.Runtime
}

func newNotebook(t *testing.T) *notebook {
	t.Helper()
	store, err := kvstore.Open("store", kvstore.Options{FS: vfs.NewMem(), MinFreeBytes: -1, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, VirtualTime: true})
	if err != nil {
		t.Fatal(err)
	}
	n := &notebook{T: t, store: store}
	n.begin()
	return n
}

func (n *notebook) begin() {
	n.Helper()
	n.runtime = durable.New(n.store, durable.Options{})
	var err error
	if n.pollSchedule, err = openPollSchedule(n.runtime); err != nil {
		n.Fatal(err)
	}
}

func (n *notebook) end() {
	n.Helper()
	if err := n.runtime.Close(n.Context()); err != nil {
		n.Error(err)
	}
}

func (n *notebook) close() {
	n.Helper()
	n.end()
	if err := n.store.Close(); err != nil {
		n.Error(err)
	}
}

func (n *notebook) put(pkg string, at time.Time) {
	n.Helper()
	if err := n.set(n.Context(), pkg, at); err != nil {
		n.Error(err)
	}
}

// wantNext takes what is due next, and puts it back for a time.
func (n *notebook) wantNext(want string, start time.Time, after time.Duration, again time.Time) {
	n.Helper()
	got, err := n.next(n.Context())
	if err != nil {
		n.Fatal(err)
	}
	if got.pkg != want || time.Since(start) != after {
		n.Errorf("got %s after %v, want %s after %v", got.pkg, time.Since(start), want, after)
	}
	got.next <- again
	synctest.Wait()
}

func TestAgendaYieldsInOrderOfTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		a := newNotebook(t)
		defer a.close()
		a.put("later", start.Add(time.Hour))
		a.put("moved", start.Add(time.Minute))
		a.put("first", start.Add(time.Second))
		a.put("moved", start.Add(2*time.Hour))
		a.put("past", start.Add(-time.Hour))
		for _, want := range []struct {
			pkg   string
			after time.Duration
		}{{"past", 0}, {"first", time.Second}, {"later", time.Hour}, {"moved", 2 * time.Hour}} {
			a.wantNext(want.pkg, start, want.after, time.Time{})
		}
	})
}

func TestAgendaWakesForWhatIsSetMeanwhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newNotebook(t)
		defer a.close()
		a.put("tomorrow", time.Now().Add(24*time.Hour))
		go func() {
			time.Sleep(time.Minute)
			a.put("now", time.Now())
		}()
		a.wantNext("now", time.Now(), time.Minute, time.Time{})
	})
}

func TestAgendaEndsWithItsContext(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		a := newNotebook(t)
		defer a.close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// Sooner never moves to a later time, and counts for a package that is being asked for, too.
func TestAgendaSooner(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		a := newNotebook(t)
		defer a.close()
		a.put("a", start.Add(time.Hour))
		sooner := func(at time.Duration) {
			if err := a.movePollEarlier(t.Context(), "a", start.Add(at)); err != nil {
				t.Error(err)
			}
		}
		sooner(time.Minute)
		sooner(2 * time.Minute)
		v, err := a.next(t.Context())
		if err != nil || time.Since(start) != time.Minute {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		sooner(3 * time.Minute)
		v.next <- start.Add(time.Hour)
		a.wantNext("a", start, 3*time.Minute, start.Add(time.Hour))
		a.wantNext("a", start, time.Hour, time.Time{})
	})
}

// A restart forgets nothing, not even what was being asked for.
func TestAgendaOutlastsRestarts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		start := time.Now()
		a := newNotebook(t)
		defer a.close()
		a.put("interrupted", start)
		a.put("later", start.Add(time.Hour))
		if got, err := a.next(t.Context()); got.pkg != "interrupted" || err != nil {
			t.Errorf("got %s, %v", got.pkg, err)
		}
		a.end()
		time.Sleep(time.Minute)
		a.begin()
		a.wantNext("interrupted", start, time.Minute, start.Add(2*time.Hour))
		a.wantNext("later", start, time.Hour, time.Time{})
		a.wantNext("interrupted", start, 2*time.Hour, time.Time{})
	})
}

// A shorter interval does not wait for the end of the longer one that was, but what is due and what
// failed stays when it was.
func TestUpstreamIsDue(t *testing.T) {
	checked := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		next     time.Duration // since it was checked
		attempts int
		want     time.Duration
	}{
		{24 * time.Hour, 0, 66 * time.Minute},
		{66 * time.Minute, 0, 66 * time.Minute},
		{time.Hour, 0, time.Hour},
		{time.Minute, 0, time.Minute},
		{24 * time.Hour, 1, 24 * time.Hour},
	} {
		u := sources.Upstream{Checked: checked, Next: checked.Add(tt.next), Attempts: tt.attempts}
		if got := u.Due(time.Hour).Sub(checked); got != tt.want {
			t.Errorf("next after %v, %d attempts failed: due after %v, want %v", tt.next, tt.attempts, got, tt.want)
		}
	}
	if got := (sources.Upstream{}).Due(time.Hour); !got.IsZero() {
		t.Errorf("never asked: due at %v", got)
	}
}

func TestBackoffDoublesUpToItsCap(t *testing.T) {
	for attempts, want := range map[int]time.Duration{
		0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 5: 16 * time.Minute, 9: 256 * time.Minute, 10: sources.LongestWait, 1000: sources.LongestWait,
	} {
		if got := sources.Backoff(attempts); got < want || got >= want+want/4 {
			t.Errorf("after %d attempts: %v, want %v and up to a quarter more", attempts, got, want)
		}
	}
}
