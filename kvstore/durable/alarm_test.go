package durable

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
)

// A bell notes when alarms rang, and fails as often as it is told to.
type bell struct {
	mu    sync.Mutex
	begun time.Time
	fail  int
	rung  []string
}

func newBell(fail int) *bell { return &bell{begun: time.Now(), fail: fail} }

func (b *bell) ring(_ context.Context, s *State, a Alarm) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rung = append(b.rung, fmt.Sprintf("%s at %v for %v, retry %d", s.Name(), time.Since(b.begun), a.Scheduled.Sub(b.begun), a.Retry))
	if b.fail--; b.fail >= 0 {
		return errors.New("failed")
	}
	return nil
}

func (b *bell) want(t *testing.T, want ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.Sort(b.rung) // those of one moment ring in any order
	slices.Sort(want)
	if !slices.Equal(b.rung, want) {
		t.Errorf("rang:\n%s\nwant:\n%s", strings.Join(b.rung, "\n"), strings.Join(want, "\n"))
	}
}

func setAlarm(after time.Duration) step {
	at := time.Now().Add(after)
	return func(ctx context.Context, s *State) error { return s.SetAlarm(ctx, at) }
}

func TestAlarmsFireInTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBell(0)
		ns := alarmed(t, start(t), Limits{}, b.ring)
		do(t, ns.Object("late"), setAlarm(3*time.Hour))
		do(t, ns.Object("early"), setAlarm(time.Second))
		do(t, ns.Object("past"), setAlarm(-time.Hour))
		do(t, ns.Object("moved"), setAlarm(time.Second))
		do(t, ns.Object("moved"), setAlarm(2*time.Hour))
		do(t, ns.Object("deleted"), setAlarm(time.Second))
		do(t, ns.Object("deleted"), func(ctx context.Context, s *State) error { return s.DeleteAlarm(ctx) })
		do(t, ns.Object("emptied"), setAlarm(time.Second))
		do(t, ns.Object("emptied"), func(ctx context.Context, s *State) error { return s.DeleteAll(ctx) })
		do(t, ns.Object("late"), func(ctx context.Context, s *State) error {
			at, ok, err := s.GetAlarm(ctx)
			if !ok || time.Until(at) != 3*time.Hour || err != nil {
				t.Errorf("got %v, %v, %v", at, ok, err)
			}
			if err := s.SetAlarm(ctx, time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC)); err == nil {
				t.Error("an alarm was set that no row can hold")
			}
			return nil
		})
		time.Sleep(10 * time.Hour)
		b.want(t,
			"past at 0s for -1h0m0s, retry 0",
			"early at 1s for 1s, retry 0",
			"moved at 2h0m0s for 2h0m0s, retry 0",
			"late at 3h0m0s for 3h0m0s, retry 0")
		for item, err := range ns.class.runtime.store.Scan(kvstore.Durable, kvstore.Range{}) {
			t.Errorf("left over: %q, %v", item.Key, err)
		}
	})
}

func TestAlarmIsSetAgainByItsHandler(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBell(2)
		ns := alarmed(t, start(t), Limits{}, func(ctx context.Context, s *State, a Alarm) error {
			if at, ok, err := s.GetAlarm(ctx); ok || err != nil {
				t.Errorf("while it is handled the alarm is set, to %v, %v", at, err)
			}
			if len(b.rung) < 4 {
				// It replaces the retries, although the handler fails.
				if err := s.SetAlarm(ctx, s.Now().Add(time.Hour)); err != nil {
					return err
				}
				if at, ok, err := s.GetAlarm(ctx); !ok || time.Until(at) != time.Hour || err != nil {
					t.Errorf("got %v, %v, %v", at, ok, err)
				}
			}
			return b.ring(ctx, s, a)
		})
		do(t, ns.Object("a"), setAlarm(time.Hour))
		time.Sleep(24 * time.Hour)
		b.want(t,
			"a at 1h0m0s for 1h0m0s, retry 0",
			"a at 2h0m0s for 2h0m0s, retry 0",
			"a at 3h0m0s for 3h0m0s, retry 0",
			"a at 4h0m0s for 4h0m0s, retry 0",
			"a at 5h0m0s for 5h0m0s, retry 0")
	})
}

func TestFailedAlarmIsTriedAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBell(6)
		r := start(t)
		ns := alarmed(t, r, Limits{LongestRetry: 15 * time.Second}, b.ring)
		do(t, ns.Object("a"), setAlarm(time.Second))
		time.Sleep(4 * time.Second)
		do(t, ns.Object("a"), func(ctx context.Context, s *State) error {
			if at, ok, err := s.GetAlarm(ctx); !ok || time.Until(at) != 3*time.Second || err != nil {
				t.Errorf("the next attempt is at %v, %v, %v", at, ok, err)
			}
			return nil
		})
		time.Sleep(time.Hour)
		b.want(t,
			"a at 1s for 1s, retry 0",
			"a at 3s for 1s, retry 1",
			"a at 7s for 1s, retry 2",
			"a at 15s for 1s, retry 3",
			"a at 30s for 1s, retry 4",
			"a at 45s for 1s, retry 5",
			"a at 1m0s for 1s, retry 6")

		// Another alarm ends the retries, wherever it comes from.
		b.begun, b.fail, b.rung = time.Now(), math.MaxInt, nil
		do(t, ns.Object("a"), setAlarm(0))
		time.Sleep(time.Second)
		do(t, ns.Object("a"), setAlarm(time.Minute))
		time.Sleep(62*time.Second - 1)
		do(t, ns.Object("a"), func(ctx context.Context, s *State) error { return s.DeleteAlarm(ctx) })
		time.Sleep(time.Hour)
		b.want(t, "a at 0s for 0s, retry 0", "a at 1m1s for 1m1s, retry 0")
	})
}

func TestJitter(t *testing.T) {
	store := openStore(t, vfs.NewMem())
	defer store.Close()
	r := New(store, Options{})
	defer r.Close(t.Context())
	c := scripts(t, r, Limits{}).class
	var shortest, longest time.Duration = math.MaxInt64, 0
	for range 1000 {
		before := time.Now().UnixNano()
		wait := time.Duration(c.retryAt(3) - before)
		shortest, longest = min(shortest, wait), max(longest, wait-time.Duration(time.Now().UnixNano()-before))
	}
	if shortest < 16*time.Second || longest > 20*time.Second || longest-shortest < time.Second {
		t.Errorf("16 s became %v to %v", shortest, longest)
	}
	if wait := time.Duration(c.retryAt(math.MaxUint32) - time.Now().UnixNano()); wait > time.Hour+15*time.Minute {
		t.Errorf("waits %v", wait)
	}
}

// An alarm that ends its object in the middle is tried again like another, and so is
// one whose failure cannot be written down.
func TestAlarmOfStoppedObjectIsTriedAgain(t *testing.T) {
	for _, test := range []string{"panics", "cannot be written"} {
		t.Run(test, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				b := newBell(0)
				r := start(t)
				var failing atomic.Bool
				r.commit = func(batch *kvstore.Batch) error {
					if failing.Load() {
						return errInjected
					}
					return batch.Commit()
				}
				ns := alarmed(t, r, Limits{}, func(ctx context.Context, s *State, a Alarm) error {
					err := b.ring(ctx, s, a)
					if len(b.rung) < 4 {
						if test == "panics" {
							panic("oh")
						}
						failing.Store(true)
						return s.Put(ctx, "key", nil)
					}
					failing.Store(false)
					return err
				})
				do(t, ns.Object("a"), setAlarm(time.Second))
				time.Sleep(time.Hour)
				b.want(t,
					"a at 1s for 1s, retry 0",
					"a at 3s for 1s, retry 1",
					"a at 7s for 1s, retry 2",
					"a at 15s for 1s, retry 3")
			})
		})
	}
}

// Alarms and their retries outlast a restart, and one that was due meanwhile fires
// at once. One that is under way is given the time to end, and is not counted as tried.
func TestAlarmsOutlastRestarts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store := openStore(t, vfs.NewMem())
		defer store.Close()
		b := newBell(2)
		begin := func(alarm func(context.Context, *State, Alarm) error) (*Runtime, *Namespace[step, int]) {
			r := New(store, Options{})
			r.jitter = func(time.Duration) time.Duration { return 0 }
			return r, alarmed(t, r, Limits{}, alarm)
		}
		end := func(r *Runtime) {
			t.Helper()
			if err := r.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
		r, ns := begin(b.ring)
		do(t, ns.Object("fails"), setAlarm(time.Second))
		time.Sleep(4 * time.Second) // it failed at 1 and 3 s
		do(t, ns.Object("future"), setAlarm(time.Hour))
		do(t, ns.Object("due"), setAlarm(time.Second))
		end(r)
		looks := New(store, Options{Quiet: true})
		alarmed(t, looks, Limits{}, b.ring)
		time.Sleep(time.Minute - 4*time.Second)
		end(looks)
		r, ns = begin(b.ring)
		synctest.Wait()
		do(t, ns.Object("slow"), setAlarm(time.Second))
		end(r)
		r, _ = begin(func(ctx context.Context, s *State, a Alarm) error {
			<-ctx.Done()
			return ctx.Err()
		})
		time.Sleep(time.Minute)
		end(r)
		r, _ = begin(b.ring)
		time.Sleep(2 * time.Hour)
		end(r)
		b.want(t,
			"fails at 1s for 1s, retry 0",
			"fails at 3s for 1s, retry 1",
			"due at 1m0s for 5s, retry 0",
			"fails at 1m0s for 1s, retry 2",
			"slow at 2m0s for 1m1s, retry 0",
			"future at 1h0m4s for 1h0m4s, retry 0")
	})
}

// Many sleeping objects cost neither memory nor goroutines, and only so many alarms
// are handled at once.
func TestManyAlarms(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const objects = 2000
		var running, most, rung atomic.Int64
		r := start(t)
		ns := alarmed(t, r, Limits{Alarms: 10}, func(ctx context.Context, s *State, _ Alarm) error {
			n := running.Add(1)
			for {
				m := most.Load()
				if n <= m || most.CompareAndSwap(m, n) {
					break
				}
			}
			err := s.Call(ctx, func(context.Context) error { time.Sleep(time.Second); return nil })
			running.Add(-1)
			rung.Add(1)
			return err
		})
		begun := time.Now()
		var wg sync.WaitGroup
		for i := range objects {
			wg.Go(func() { do(t, ns.Object(fmt.Sprint(i)), setAlarm(time.Hour)) })
		}
		wg.Wait()
		time.Sleep(time.Minute)
		ns.class.mu.Lock()
		if n := len(ns.class.objects); n != 0 {
			t.Errorf("%d sleeping objects are in memory", n)
		}
		ns.class.mu.Unlock()
		for rung.Load() < objects {
			time.Sleep(time.Second)
		}
		if took := time.Since(begun) - time.Hour; most.Load() != 10 || took > objects/10*time.Second+2*time.Second {
			t.Errorf("%d at once, took %v", most.Load(), took)
		}
	})
}

// A damaged row among the alarms does not stop the others.
func TestDamagedAlarmRows(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := newBell(0)
		r := start(t)
		batch := r.store.NewBatch()
		batch.Set(kvstore.Durable, append(duePrefix("script"), 0, 0), nil)
		batch.Set(kvstore.Durable, alarmKey("script", "damaged"), []byte("?"))
		batch.Set(kvstore.Durable, dueKey("script", "damaged", 0), nil)
		if err := batch.Commit(); err != nil {
			t.Fatal(err)
		}
		ns := alarmed(t, r, Limits{}, b.ring)
		do(t, ns.Object("a"), setAlarm(time.Minute))
		if _, err := ns.Object("damaged").Send(t.Context(), nil); !errors.Is(err, kvstore.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
		time.Sleep(time.Hour)
		b.want(t, "a at 1m0s for 1m0s, retry 0")
	})
}
