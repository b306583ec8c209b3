package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
)

func openStore(t testing.TB, fs vfs.FS) *kvstore.Store {
	t.Helper()
	store, err := kvstore.Open("store", kvstore.Options{FS: fs, CacheBytes: 1 << 20, MemTableBytes: 1 << 20, MinFreeBytes: -1, VirtualTime: true})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// start returns a runtime over a store in memory, which are closed with the test.
func start(t testing.TB) *Runtime {
	t.Helper()
	store := openStore(t, vfs.NewMem())
	r := New(store, Options{})
	r.jitter = func(time.Duration) time.Duration { return 0 }
	t.Cleanup(func() {
		if err := errors.Join(r.Close(context.Background()), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// A script is a handler whose events are functions.
type script struct {
	alarm func(context.Context, *State, Alarm) error
	seen  int // events that this instance had
}

type step = func(context.Context, *State) error

func (h *script) Handle(ctx context.Context, s *State, f step) (int, error) {
	h.seen++
	return h.seen, f(ctx, s)
}

func (h *script) Alarm(ctx context.Context, s *State, a Alarm) error {
	if h.alarm == nil {
		return errors.New("no alarm was expected")
	}
	return h.alarm(ctx, s, a)
}

func scripts(t testing.TB, r *Runtime, limits Limits) *Namespace[step, int] {
	t.Helper()
	return alarmed(t, r, limits, nil)
}

func alarmed(t testing.TB, r *Runtime, limits Limits, alarm func(context.Context, *State, Alarm) error) *Namespace[step, int] {
	t.Helper()
	ns, err := Open(r, Class[step, int]{
		Name:   "script",
		Limits: limits,
		New: func(context.Context, *State) (Handler[step, int], error) {
			return &script{alarm: alarm}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// do has an object run f, which must succeed.
func do(t testing.TB, o Object[step, int], f step) int {
	t.Helper()
	n, err := o.Send(context.Background(), f)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// unique is getUniqueNumber in its naive form.
func unique(ctx context.Context, s *State) (int, error) {
	n, _, err := GetJSON[int](ctx, s, "counter")
	if err != nil {
		return 0, err
	}
	return n, PutJSON(ctx, s, "counter", n+1)
}

type counter struct{ NoAlarm }

func (counter) Handle(ctx context.Context, s *State, _ struct{}) (int, error) { return unique(ctx, s) }

func counters(t testing.TB, r *Runtime, limits Limits) *Namespace[struct{}, int] {
	t.Helper()
	ns, err := Open(r, Class[struct{}, int]{
		Name:   "counter",
		Limits: limits,
		New:    func(context.Context, *State) (Handler[struct{}, int], error) { return counter{}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// A ledger holds which numbers were given out.
type ledger struct {
	*testing.T
	mu    sync.Mutex
	given map[string]bool
}

func (l *ledger) add(object string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := fmt.Sprint(object, " ", n)
	if l.given[id] {
		l.Errorf("%s was given twice", id)
	}
	l.given[id] = true
}

// storm has many callers ask some objects for numbers.
func (l *ledger) storm(ns *Namespace[struct{}, int], callers, each, objects int) (failed int) {
	var wg sync.WaitGroup
	var failures atomic.Int64
	for i := range callers {
		wg.Go(func() {
			o := ns.Object(fmt.Sprint("object-", i%objects))
			for range each {
				n, err := o.Send(context.Background(), struct{}{})
				if err != nil {
					failures.Add(1)
					continue
				}
				l.add(o.Name(), n)
			}
		})
	}
	wg.Wait()
	return int(failures.Load())
}

func TestNoNumberTwice(t *testing.T) {
	l := &ledger{T: t, given: make(map[string]bool)}
	if failed := l.storm(counters(t, start(t), Limits{Events: 5000}), 4000, 5, 1); failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
	for n := range 20_000 {
		if !l.given[fmt.Sprint("object-0 ", n)] {
			t.Fatalf("%d was never given", n)
		}
	}
}

var errInjected = errors.New("injected")

func TestNoNumberTwiceThoughWritesFail(t *testing.T) {
	r := start(t)
	var commits atomic.Int64
	r.commit = func(b *kvstore.Batch) error {
		switch n := commits.Add(1); {
		case n%3 == 0: // nothing is written
			return errInjected
		case n%7 == 0: // everything is, but no caller was told
			return errors.Join(b.Commit(), errInjected)
		}
		return b.Commit()
	}
	l := &ledger{T: t, given: make(map[string]bool)}
	// Objects leave memory all the time, too.
	failed := l.storm(counters(t, r, Limits{Events: 5000, Live: 1}), 2000, 5, 3)
	if failed == 0 || failed == 10_000 {
		t.Errorf("%d calls failed of 10,000", failed)
	}
	t.Logf("%d numbers, %d failed calls, %d commits", len(l.given), failed, commits.Load())
}

// The disk itself fails, or loses what was not synced.
func TestNoNumberTwiceOnBadDisk(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			l := &ledger{T: t, given: make(map[string]bool)}
			mem := vfs.NewCrashableMem()
			for range 3 {
				var left atomic.Int64
				left.Store(1 << 60)
				store := openStore(t, errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
					if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && left.Add(-1) < 0 {
						return syscall.EIO
					}
					return nil
				})))
				r := New(store, Options{})
				left.Store(rng.Int64N(400))
				l.storm(counters(t, r, Limits{}), 200, 10, 3)
				after := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
				left.Store(-1)
				_ = r.Close(t.Context())
				_ = store.Close()
				mem = after
			}
			if len(l.given) == 0 {
				t.Error("no number was given")
			}
		})
	}
}

func TestFailedWriteDropsTheAnswer(t *testing.T) {
	r := start(t)
	var failing atomic.Bool
	r.commit = func(b *kvstore.Batch) error {
		if failing.Load() {
			return errInjected
		}
		return b.Commit()
	}
	o := scripts(t, r, Limits{}).Object("a")
	put := func(value string) step {
		return func(ctx context.Context, s *State) error { return s.Put(ctx, "key", []byte(value)) }
	}
	do(t, o, put("old"))
	failing.Store(true)
	if n, err := o.Send(t.Context(), put("new")); !errors.Is(err, ErrReset) || !errors.Is(err, errInjected) || n != 0 {
		t.Errorf("got %d, %v", n, err)
	}
	// The handler's own error may not leave either.
	_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
		return errors.Join(errors.New("I wrote it"), s.Put(ctx, "key", []byte("new")))
	})
	if !errors.Is(err, ErrReset) || err.Error() != `durable: script "a": stopped, and starts again from its storage: couldn't write: injected` {
		t.Errorf("got %v", err)
	}
	called := false
	_, err = o.Send(t.Context(), func(ctx context.Context, s *State) error {
		return errors.Join(s.Put(ctx, "key", []byte("new")), s.Call(ctx, func(context.Context) error {
			called = true
			return nil
		}))
	})
	if !errors.Is(err, ErrReset) || called {
		t.Errorf("called: %v, %v", called, err)
	}
	// A caller that does not wait for the disk is not told.
	n, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
		return s.Put(ctx, "key", []byte("new"), AllowUnconfirmed)
	})
	if n != 1 || err != nil {
		t.Errorf("unconfirmed: %d, %v", n, err)
	}
	_, _ = o.Send(t.Context(), func(ctx context.Context, s *State) error { return s.Sync(ctx) }) // until it has failed
	failing.Store(false)
	n = do(t, o, func(ctx context.Context, s *State) error {
		if value, ok, err := s.Get(ctx, "key"); string(value) != "old" || !ok || err != nil {
			t.Errorf("got %q, %v, %v", value, ok, err)
		}
		return nil
	})
	if n > 2 {
		t.Errorf("the instance had %d events, but it was to start again", n)
	}
}

// An event that saw what another one wrote may not tell either, when that fails.
func TestFailedWriteDropsLaterAnswers(t *testing.T) {
	r := start(t)
	committing, proceed := make(chan struct{}), make(chan struct{})
	r.commit = func(b *kvstore.Batch) error {
		committing <- struct{}{}
		<-proceed
		return errInjected
	}
	o := scripts(t, r, Limits{}).Object("a")
	results := make(chan error, 2)
	go func() {
		_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error { return s.Put(ctx, "key", []byte("1")) })
		results <- err
	}()
	<-committing
	seen := make(chan string, 1)
	go func() {
		_, err := o.Send(t.Context(), func(ctx context.Context, s *State) error {
			value, _, err := s.Get(ctx, "key")
			seen <- string(value)
			return err
		})
		results <- err
	}()
	if got := <-seen; got != "1" {
		t.Errorf("an event does not see what is under way: %q", got)
	}
	close(proceed)
	for range 2 {
		if err := <-results; !errors.Is(err, ErrReset) {
			t.Errorf("got %v", err)
		}
	}
	r.commit = (*kvstore.Batch).Commit
}

func TestCoalescedWritesAreAtomic(t *testing.T) {
	for seed := range uint64(10) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			after, atLeast := crashWhileWriting(t, rand.New(rand.NewPCG(seed, 3)))
			store := openStore(t, after)
			r := New(store, Options{})
			do(t, scripts(t, r, Limits{}).Object("a"), func(ctx context.Context, s *State) error {
				first, _, err := GetJSON[int64](ctx, s, "key0")
				if err != nil || first < atLeast {
					t.Errorf("%d after a crash, %v; %d was told", first, err, atLeast)
				}
				for key := range 20 {
					if n, _, err := GetJSON[int64](ctx, s, fmt.Sprint("key", key)); n != first || err != nil {
						t.Errorf("key%d is %d, %v; key0 is %d", key, n, err, first)
					}
				}
				return nil
			})
			if err := errors.Join(r.Close(t.Context()), store.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// crashWhileWriting has an object write one number into 20 keys, again and again, and returns the disk as a crash leaves
// it, with the last number that the caller had been told of before.
func crashWhileWriting(t *testing.T, rng *rand.Rand) (after vfs.FS, told int64) {
	mem := vfs.NewCrashableMem()
	store := openStore(t, mem)
	r := New(store, Options{})
	o := scripts(t, r, Limits{}).Object("a")
	var newest atomic.Int64
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			_, err := o.Send(context.Background(), func(ctx context.Context, s *State) error {
				for key := range 20 {
					if err := PutJSON(ctx, s, fmt.Sprint("key", key), i); err != nil {
						return err
					}
				}
				return s.Delete(ctx, fmt.Sprint("round", i-1))
			})
			if err == nil {
				newest.Store(int64(i))
			}
		}
	})
	for newest.Load() < 1+rng.Int64N(50) {
		time.Sleep(time.Microsecond)
	}
	told = newest.Load()
	after = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
	close(stop)
	writer.Wait()
	if err := errors.Join(r.Close(t.Context()), store.Close()); err != nil {
		t.Fatal(err)
	}
	return after, told
}

// Many objects' writes are one commit while the disk is busy.
func TestWritesOfManyObjectsAreCommittedTogether(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := start(t)
		var commits atomic.Int64
		hold := make(chan struct{})
		var first sync.Once
		r.commit = func(b *kvstore.Batch) error {
			commits.Add(1)
			first.Do(func() { <-hold })
			return b.Commit()
		}
		ns := counters(t, r, Limits{})
		var wg sync.WaitGroup
		for i := range 1000 {
			wg.Go(func() {
				if _, err := ns.Object(fmt.Sprint(i)).Send(t.Context(), struct{}{}); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all wait for the disk
		close(hold)
		wg.Wait()
		if n := commits.Load(); n != 2 {
			t.Errorf("%d commits for 1,000 writes", n)
		}
	})
}

func TestOverload(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ns := scripts(t, start(t), Limits{Events: 3})
		o := ns.Object("a")
		var wg sync.WaitGroup
		proceed := make(chan struct{})
		wg.Go(func() {
			do(t, o, func(context.Context, *State) error { <-proceed; return nil })
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		wg.Go(func() {
			if _, err := o.Send(ctx, nil); !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled event: %v", err)
			}
		})
		wg.Go(func() { do(t, o, func(context.Context, *State) error { return nil }) })
		synctest.Wait()
		if _, err := o.Send(t.Context(), nil); !errors.Is(err, ErrOverloaded) {
			t.Errorf("got %v", err)
		}
		do(t, ns.Object("b"), func(context.Context, *State) error { return nil })
		cancel() // and there is room again
		synctest.Wait()
		wg.Go(func() { do(t, o, func(context.Context, *State) error { return nil }) })
		synctest.Wait()
		if _, err := o.Send(t.Context(), nil); !errors.Is(err, ErrOverloaded) {
			t.Errorf("got %v", err)
		}
		close(proceed)
		wg.Wait()
	})
}

func TestIdleObjectsLeaveMemoryAndComeBack(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ns := scripts(t, start(t), Limits{Live: 2})
		inMemory := func() int {
			synctest.Wait() // an object is idle a moment after its answer
			ns.class.mu.Lock()
			defer ns.class.mu.Unlock()
			return len(ns.class.objects)
		}
		put := func(ctx context.Context, s *State) error { return s.Put(ctx, "key", []byte(s.Name())) }
		for _, name := range []string{"a", "b", "c"} {
			if n := do(t, ns.Object(name), put); n != 1 {
				t.Errorf("%s had %d events", name, n)
			}
			synctest.Wait()
		}
		if n := inMemory(); n != 2 {
			t.Errorf("%d objects in memory", n)
		}
		for _, test := range []struct {
			name string
			want int // events of the instance
		}{{"b", 2}, {"c", 2}, {"a", 1}, {"c", 3}, {"b", 1}} {
			n := do(t, ns.Object(test.name), func(ctx context.Context, s *State) error {
				if value, ok, err := s.Get(ctx, "key"); string(value) != test.name || !ok || err != nil {
					t.Errorf("%s: got %q, %v, %v", test.name, value, ok, err)
				}
				return nil
			})
			if n != test.want {
				t.Errorf("%s had %d events, want %d", test.name, n, test.want)
			}
			synctest.Wait()
		}
		time.Sleep(10*time.Second - 1)
		if n := inMemory(); n != 2 {
			t.Errorf("%d objects in memory before they were idle for long", n)
		}
		time.Sleep(time.Nanosecond)
		if n := inMemory(); n != 0 {
			t.Errorf("%d objects in memory after they were idle for long", n)
		}
	})
}

func TestClassesAndNames(t *testing.T) {
	r := start(t)
	ns := scripts(t, r, Limits{})
	other := counters(t, r, Limits{})
	if _, err := Open(r, Class[step, int]{Name: "script"}); err == nil {
		t.Error("a class was opened twice")
	}
	if _, err := Open(r, Class[step, int]{Name: "No Class"}); err == nil {
		t.Error("a class of that name was opened")
	}
	if a, b := ns.NewUniqueID(), ns.NewUniqueID(); a == b || checkName(a) != nil {
		t.Errorf("ids %q and %q", a, b)
	}
	do(t, ns.Object("a"), func(ctx context.Context, s *State) error { return PutJSON(ctx, s, "counter", 7) })
	for _, name := range []string{"a", "a\x01", "ä", string(make([]byte, 0)), "a\x00b"} {
		n, err := other.Object(name).Send(t.Context(), struct{}{})
		if bad := checkName(name) != nil; bad != (err != nil) || n != 0 {
			t.Errorf("%q: %d, %v", name, n, err)
		}
	}
	do(t, ns.Object("a\x01"), func(ctx context.Context, s *State) error {
		if _, ok, err := s.Get(ctx, "counter"); ok || err != nil {
			t.Errorf("objects share storage: %v", err)
		}
		return nil
	})
}

func TestNames(t *testing.T) {
	r := start(t)
	ns, other := scripts(t, r, Limits{}), counters(t, r, Limits{})
	want := []string{"\x01", "a", "a\x01", "a\x01b", "aa", "b", "\xff"}
	for _, name := range want {
		do(t, ns.Object(name), func(ctx context.Context, s *State) error {
			return errors.Join(s.Put(ctx, "\x00", nil), s.Put(ctx, "key", nil), s.Put(ctx, "\xff", nil))
		})
	}
	do(t, ns.Object("nothing"), func(context.Context, *State) error { return nil })
	if _, err := other.Object("c").Send(t.Context(), struct{}{}); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got, err := ns.Names("", i); !slices.Equal(got, want[:i]) || err != nil {
			t.Errorf("the first %d: %q, %v", i, got, err)
		}
		if got, err := ns.Names(want[i], 100); !slices.Equal(got, want[i+1:]) || err != nil {
			t.Errorf("after %q: %q, %v", want[i], got, err)
		}
	}
	if got, err := ns.Names("a0", 2); !slices.Equal(got, []string{"aa", "b"}) || err != nil {
		t.Errorf("after one that is not there: %q, %v", got, err)
	}
}

func TestClose(t *testing.T) {
	store := openStore(t, vfs.NewMem())
	defer store.Close()
	r := New(store, Options{})
	ns := scripts(t, r, Limits{})
	begun, proceed, over := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		_, err := ns.Object("a").Send(t.Context(), func(ctx context.Context, s *State) error {
			close(begun)
			<-proceed
			return s.Put(ctx, "key", []byte("value"))
		})
		over <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Close(ctx); !errors.Is(err, context.Canceled) || err.Error() != "durable: 1 objects are still at work: context canceled" {
		t.Errorf("got %v", err)
	}
	if _, err := ns.Object("b").Send(t.Context(), nil); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	close(proceed)
	if err := <-over; err != nil {
		t.Errorf("an event under way: %v", err)
	}
	<-r.commits.done
	if value, err := store.Get(kvstore.Durable, append(valuePrefix("script", "a"), "key"...)); string(value) != "value" || err != nil {
		t.Errorf("got %q, %v", value, err)
	}
}
