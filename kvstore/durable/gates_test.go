package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
)

// A read that waits for the disk keeps the next event out, unless it says otherwise.
func TestInputGate(t *testing.T) {
	for _, test := range []struct {
		name   string
		option Option
		want   []string
	}{
		{"closed", 0, []string{"first reads", "first has read", "second"}},
		{"open", AllowConcurrency, []string{"first reads", "second", "first has read"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := start(t)
				o := scripts(t, r, Limits{}).Object("a")
				var mu sync.Mutex
				var got []string
				note := func(what string) {
					mu.Lock()
					got = append(got, what)
					mu.Unlock()
				}
				proceed := make(chan struct{})
				r.reading = func(string) { <-proceed }
				var events sync.WaitGroup
				events.Go(func() {
					do(t, o, func(ctx context.Context, s *State) error {
						note("first reads")
						_, _, err := s.Get(ctx, "key", test.option)
						note("first has read")
						return err
					})
				})
				synctest.Wait()
				events.Go(func() {
					do(t, o, func(context.Context, *State) error { note("second"); return nil })
				})
				synctest.Wait() // the second has done what it can
				close(proceed)
				events.Wait()
				if !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
}

// The two cases of the article: tasks that come back from calls are protected from
// each other, what one event begins twice at once is not.
func TestTasksOfOneEvent(t *testing.T) {
	o := scripts(t, start(t), Limits{}).Object("a")
	do(t, o, func(ctx context.Context, s *State) error {
		var numbers [2]int
		var read sync.WaitGroup
		read.Add(2)
		for i := range numbers {
			s.Go(ctx, func(ctx context.Context, s *State) (err error) {
				numbers[i], _, err = GetJSON[int](ctx, s, "counter")
				read.Done()
				read.Wait()
				return errors.Join(err, PutJSON(ctx, s, "counter", numbers[i]+1))
			})
		}
		err := s.Wait(ctx)
		if numbers[0] != numbers[1] {
			t.Errorf("two calls that one event began were protected from each other: %v", numbers)
		}
		return err
	})
	do(t, o, func(ctx context.Context, s *State) error {
		const tasks = 100
		given := make(map[int]bool)
		var called sync.WaitGroup
		called.Add(tasks)
		for range tasks {
			s.Go(ctx, func(ctx context.Context, s *State) error {
				err := s.Call(ctx, func(context.Context) error {
					called.Done()
					called.Wait() // all come back at once
					return nil
				})
				if err != nil {
					return err
				}
				n, err := unique(ctx, s)
				given[n] = true // and this needs no lock
				return err
			})
		}
		err := s.Wait(ctx)
		if len(given) != tasks {
			t.Errorf("%d numbers for %d tasks", len(given), tasks)
		}
		return err
	})
	// An event's answer waits for the tasks it forgot, and has their errors.
	failed := errors.New("failed")
	if _, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
		s.Go(ctx, func(context.Context, *State) error { return failed })
		return nil
	}); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
}

// A call leaves when what was written before is durable, and others have their turn
// meanwhile.
func TestCallsPassTheOutputGate(t *testing.T) {
	r := start(t)
	var durable atomic.Bool
	r.commit = func(b *kvstore.Batch) error {
		time.Sleep(time.Millisecond) // a slow disk: a caller that does not wait for it is first
		err := b.Commit()
		durable.Store(true)
		return err
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !durable.Load() {
			t.Error("a request was sent before the write was durable")
		}
		io.WriteString(w, "hello")
	}))
	defer server.Close()
	ns, err := Open(r, Class[step, int]{
		Name:   "caller",
		Client: server.Client(),
		New:    func(context.Context, *State) (Handler[step, int], error) { return &script{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	o, other := ns.Object("a"), ns.Object("b")
	do(t, o, func(ctx context.Context, s *State) error {
		if err := s.Put(ctx, "key", []byte("1")); err != nil {
			return err
		}
		request, err := http.NewRequestWithContext(ctx, "GET", server.URL, nil)
		if err != nil {
			return err
		}
		response, err := s.Client().Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); string(body) != "hello" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		durable.Store(false)
		if err := s.Put(ctx, "key", []byte("2")); err != nil {
			return err
		}
		_, err = other.Send(ctx, func(ctx context.Context, _ *State) error {
			if !durable.Load() {
				t.Error("another object heard of it before the write was durable")
			}
			// And the first one can be asked back.
			_, err := o.Send(ctx, func(ctx context.Context, s *State) error {
				value, _, err := s.Get(ctx, "key")
				if string(value) != "2" {
					t.Errorf("got %q", value)
				}
				return err
			})
			return err
		})
		return err
	})
	if _, err := scripts(t, r, Limits{}).Object("a").Send(t.Context(), func(ctx context.Context, s *State) error {
		_, err := s.Client().Get(server.URL)
		return err
	}); err == nil || !strings.Contains(err.Error(), "objects of class script have no HTTP client") {
		t.Errorf("without a client: %v", err)
	}
}

// What a handler keeps of its event is worth nothing elsewhere.
func TestStateIsRefusedOutsideOfItsTurn(t *testing.T) {
	o := scripts(t, start(t), Limits{}).Object("a")
	refused := func(when string, ctx context.Context, s *State) {
		t.Helper()
		_, _, get := s.Get(ctx, "key")
		_, list := s.List(ctx, ListOptions{})
		_, _, alarm := s.GetAlarm(ctx)
		s.Go(ctx, nil)
		for i, err := range []error{
			get, list, alarm, s.Put(ctx, "key", nil), s.Delete(ctx, "key"), s.DeleteAll(ctx), s.SetAlarm(ctx, time.Now()),
			s.DeleteAlarm(ctx), s.Sync(ctx), s.Call(ctx, nil), s.Transaction(ctx, nil), s.BlockConcurrencyWhile(ctx, nil), s.Wait(ctx),
		} {
			if !errors.Is(err, ErrOutside) {
				t.Errorf("%s, operation %d: %v", when, i, err)
			}
		}
	}
	var kept *State
	var keptContext context.Context
	do(t, o, func(ctx context.Context, s *State) error {
		kept, keptContext = s, ctx
		return s.Call(ctx, func(ctx context.Context) error {
			refused("within a call", ctx, s)
			return nil
		})
	})
	refused("after the event", keptContext, kept)
	if _, err := o.Send(keptContext, nil); !errors.Is(err, ErrOutside) {
		t.Errorf("sending with the context of an event that is over: %v", err)
	}
	// A call that outlives its event does not come back into the object.
	proceed, back := make(chan struct{}), make(chan error)
	do(t, o, func(ctx context.Context, s *State) error {
		calling := make(chan struct{})
		go func() {
			back <- s.Call(ctx, func(context.Context) error { close(calling); <-proceed; return nil })
		}()
		<-calling
		return nil
	})
	close(proceed)
	<-back
	do(t, o, func(context.Context, *State) error { return nil })
}

func TestTransaction(t *testing.T) {
	r := start(t)
	o := scripts(t, r, Limits{}).Object("a")
	get := func(ctx context.Context, s *State, key string) string {
		t.Helper()
		value, ok, err := s.Get(ctx, key)
		if err != nil {
			t.Error(err)
		}
		if !ok {
			return "none"
		}
		return string(value)
	}
	failed := errors.New("failed")
	noon := time.Now().Add(time.Hour)
	do(t, o, func(ctx context.Context, s *State) error {
		if err := errors.Join(s.Put(ctx, "a", []byte("1")), s.Put(ctx, "b", []byte("1"))); err != nil {
			return err
		}
		err := s.Transaction(ctx, func(ctx context.Context, tx *State) error {
			err := errors.Join(tx.Put(ctx, "a", []byte("2")), tx.Delete(ctx, "b"), tx.SetAlarm(ctx, noon))
			if a, b := get(ctx, tx, "a"), get(ctx, tx, "b"); a != "2" || b != "none" {
				t.Errorf("within the transaction: %s, %s", a, b)
			}
			if _, ok, _ := tx.GetAlarm(ctx); !ok {
				t.Error("the transaction does not see its alarm")
			}
			entries, err2 := tx.List(ctx, ListOptions{})
			if len(entries) != 1 || string(entries[0].Value) != "2" {
				t.Errorf("the transaction lists %v", entries)
			}
			if err := s.Put(ctx, "a", nil); err == nil || !strings.Contains(err.Error(), "use the State that its function receives") {
				t.Errorf("around the transaction: %v", err)
			}
			if err := tx.Call(ctx, nil); err == nil {
				t.Error("a transaction called out")
			}
			if err := tx.Transaction(ctx, nil); err == nil {
				t.Error("a transaction within another")
			}
			return errors.Join(err, err2, failed)
		})
		if !errors.Is(err, failed) {
			t.Errorf("got %v", err)
		}
		if a, b := get(ctx, s, "a"), get(ctx, s, "b"); a != "1" || b != "1" {
			t.Errorf("rolled back: %s, %s", a, b)
		}
		if _, ok, err := s.GetAlarm(ctx); ok || err != nil {
			t.Errorf("rolled back, but there is an alarm, or %v", err)
		}
		var leaked *State
		err = s.Transaction(ctx, func(ctx context.Context, tx *State) error {
			leaked = tx
			return errors.Join(tx.Put(ctx, "a", []byte("3")), tx.DeleteAll(ctx), tx.Put(ctx, "b", []byte("3")), tx.SetAlarm(ctx, noon))
		})
		if a, b := get(ctx, s, "a"), get(ctx, s, "b"); a != "none" || b != "3" || err != nil {
			t.Errorf("committed: %s, %s, %v", a, b, err)
		}
		if at, ok, err := s.GetAlarm(ctx); !ok || !at.Equal(noon) || err != nil {
			t.Errorf("committed: alarm %v, %v, %v", at, ok, err)
		}
		if err := leaked.Put(ctx, "a", nil); !errors.Is(err, ErrOutside) {
			t.Errorf("after the transaction: %v", err)
		}
		return nil
	})
	if _, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
		return s.Transaction(ctx, func(context.Context, *State) error { panic("oh") })
	}); !errors.Is(err, ErrReset) {
		t.Errorf("got %v", err)
	}
	do(t, o, func(ctx context.Context, s *State) error { return s.Put(ctx, "a", nil) })
}

// TestLargeTransactionIsApplied has a transaction put as much as may be written at once and delete beyond it: all of it is applied.
func TestLargeTransactionIsApplied(t *testing.T) {
	r := start(t)
	o := scripts(t, r, Limits{}).Object("a")
	const puts, deletions = MaxWriteBytes/MaxValueBytes - 1, 200
	do(t, o, func(ctx context.Context, s *State) error {
		return s.Transaction(ctx, func(ctx context.Context, tx *State) error {
			var err error
			for i := range puts {
				err = errors.Join(err, tx.Put(ctx, fmt.Sprint("put ", i), make([]byte, MaxValueBytes)))
			}
			for i := range deletions {
				err = errors.Join(err, tx.Delete(ctx, fmt.Sprint("deleted ", i, strings.Repeat("x", MaxKeyBytes-20))))
			}
			return err
		})
	})
}

func TestTasksBesideWaitForTheEndOfATransaction(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		do(t, scripts(t, start(t), Limits{}).Object("a"), func(ctx context.Context, s *State) error {
			open, proceed := make(chan struct{}), make(chan struct{})
			s.Go(ctx, func(ctx context.Context, s *State) error {
				<-open
				go func() {
					synctest.Wait() // the other task waits
					close(proceed)
				}()
				if n, _, err := GetJSON[int](ctx, s, "counter"); n != 41 || err != nil {
					t.Errorf("a task saw %d, %v", n, err)
				}
				return nil
			})
			// The last one to begin: while its transaction is open, Go waits as well.
			s.Go(ctx, func(ctx context.Context, s *State) error {
				return s.Transaction(ctx, func(ctx context.Context, tx *State) error {
					close(open)
					<-proceed
					return PutJSON(ctx, tx, "counter", 41)
				})
			})
			return s.Wait(ctx)
		})
	})
}

func TestBlockConcurrencyWhile(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := start(t)
		o := scripts(t, r, Limits{}).Object("a")
		var order []string
		var events sync.WaitGroup
		events.Go(func() {
			do(t, o, func(ctx context.Context, s *State) error {
				return s.BlockConcurrencyWhile(ctx, func(ctx context.Context, s *State) error {
					err := s.Call(ctx, func(context.Context) error { time.Sleep(29 * time.Second); return nil })
					order = append(order, "blocked")
					return errors.Join(err, s.Put(ctx, "key", []byte("1")))
				})
			})
		})
		synctest.Wait()
		events.Go(func() { do(t, o, func(context.Context, *State) error { order = append(order, "next"); return nil }) })
		events.Wait()
		if !slices.Equal(order, []string{"blocked", "next"}) {
			t.Errorf("got %q", order)
		}
		begun := time.Now()
		release := make(chan struct{})
		var late error
		_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
			return s.BlockConcurrencyWhile(ctx, func(ctx context.Context, s *State) error {
				<-release // whatever ctx says
				late = s.Put(ctx, "key", []byte("2"))
				return nil
			})
		})
		if !errors.Is(err, ErrReset) || time.Since(begun) != 30*time.Second {
			t.Errorf("after %v: %v", time.Since(begun), err)
		}
		n := do(t, o, func(ctx context.Context, s *State) error {
			if value, _, err := s.Get(ctx, "key"); string(value) != "1" || err != nil {
				t.Errorf("got %q, %v", value, err)
			}
			return nil
		})
		if n != 1 {
			t.Errorf("the instance had %d events, but it was to start again", n)
		}
		close(release)
		synctest.Wait()
		if !errors.Is(late, ErrReset) {
			t.Errorf("what came late: %v", late)
		}
	})
}

func TestFailedBeginningIsTriedAgain(t *testing.T) {
	r := start(t)
	begun := 0
	ns, err := Open(r, Class[step, int]{Name: "late", New: func(ctx context.Context, s *State) (Handler[step, int], error) {
		if begun++; begun == 1 {
			return nil, errors.Join(errors.New("not yet"), s.Put(ctx, "key", nil))
		}
		_, ok, err := s.Get(ctx, "key")
		if ok {
			t.Error("what a failed beginning wrote is there")
		}
		return &script{}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ns.Object("a").Send(t.Context(), nil); !errors.Is(err, ErrReset) || !strings.Contains(err.Error(), "couldn't begin: not yet") {
		t.Errorf("got %v", err)
	}
	do(t, ns.Object("a"), func(context.Context, *State) error { return nil })
}

func TestPanicsStopTheObjectOnly(t *testing.T) {
	o := scripts(t, start(t), Limits{}).Object("a")
	do(t, o, func(ctx context.Context, s *State) error { return s.Put(ctx, "key", []byte("1")) })
	for name, f := range map[string]step{
		"handler": func(ctx context.Context, s *State) error { _ = s.Put(ctx, "key", []byte("2")); panic("oh") },
		"task": func(ctx context.Context, s *State) error {
			s.Go(ctx, func(ctx context.Context, s *State) error { _ = s.Put(ctx, "key", []byte("2")); panic("oh") })
			return nil
		},
		"call": func(ctx context.Context, s *State) error {
			return s.Call(ctx, func(context.Context) error { panic("oh") })
		},
		"block": func(ctx context.Context, s *State) error {
			return s.BlockConcurrencyWhile(ctx, func(context.Context, *State) error { panic("oh") })
		},
	} {
		if _, err := o.Send(t.Context(), f); !errors.Is(err, ErrReset) || !strings.Contains(err.Error(), "it panicked: oh") {
			t.Errorf("%s: %v", name, err)
		}
		n := do(t, o, func(ctx context.Context, s *State) error {
			if value, _, err := s.Get(ctx, "key"); string(value) != "1" || err != nil {
				t.Errorf("%s: got %q, %v", name, value, err)
			}
			return nil
		})
		if n != 1 {
			t.Errorf("%s: the instance had %d events, but it was to start again", name, n)
		}
	}
}
