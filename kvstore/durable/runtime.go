// Package durable runs objects that have a name, one thread and storage of their
// own, on a kvstore. It is the model of Cloudflare's Durable Objects: code that
// reads, changes and writes needs no lock, and what it tells others is on the disk
// before they get it.
//
//	// A counter that gives each number to one caller only.
//	type counter struct{ durable.NoAlarm }
//
//	func (counter) Handle(ctx context.Context, s *durable.State, _ struct{}) (int, error) {
//		n, _, err := durable.GetJSON[int](ctx, s, "counter")
//		if err != nil {
//			return 0, err
//		}
//		return n, durable.PutJSON(ctx, s, "counter", n+1)
//	}
//
//	runtime := durable.New(store, durable.Options{})
//	counters, err := durable.Open(runtime, durable.Class[struct{}, int]{Name: "counter", New: …})
//	n, err := counters.Object("tickets").Send(ctx, struct{}{})
//
// A [Runtime] runs them over one store. A [Class] says how objects of a
// kind behave. A [Namespace] is all objects of a class; an [Object] is one of them,
// by name, whether it was ever used or not. Sending to it delivers an event: the
// runtime has a [Handler] made, if none is in memory, and calls it with a [State],
// which is the storage and every way out.
//
// # What is guaranteed
//
//   - One instance of an object, and one event at a time. An event has the object's
//     turn from its delivery to its return. Its reads and writes do not give the turn
//     away, so no other event comes between them: the input gate. It is given
//     away where the event waits for something outside: in [State.Call] and
//     what goes through it, in [State.Wait], and in a read with [AllowConcurrency].
//   - What an event lets out, be it the response, an error or a call, leaves once every
//     write that the object made before is durable: the output gate. If such a write
//     fails, the response is dropped, the caller gets [ErrReset], and the object starts
//     again from its storage. Only a write with [AllowUnconfirmed] is not waited for.
//   - Writes are one atomic write with those before them, until the event reads what
//     is not in memory or a list, lets a call out, waits for tasks, calls [State.Sync]
//     or returns. Later writes are never there without earlier ones.
//   - A read sees all writes of the object that were made before it, durable or not,
//     and none that were made after.
//   - An alarm fires at its time or later, at least once, whatever is killed
//     meanwhile. See [State.SetAlarm].
//   - Memory is bounded by [Limits]. An object that sleeps costs none, nor a goroutine,
//     whether it has an alarm or not.
//
// An event that begins several tasks with [State.Go] is not protected from
// itself: they run at the same time, until one of them comes back from a call, which is
// like an event of its own.
//
// # How it is enforced
//
// A State works only in its own event, while that has the turn; before, in
// a call and afterwards it refuses everything. [State.Client] is an HTTP client whose
// every request passes the output gate, and an Object that is sent to with
// the context of an event does, too. So a Handler should be made of values, and of
// nothing that talks by itself: that belongs in a [State.Call].
//
// An error that a handler returns does not undo its writes; [State.Transaction] is for
// that. A handler that panics, or has the turn for longer than [Limits].Turn, loses what it
// wrote since the last point named above, its caller gets [ErrReset], and the object starts
// again. What hangs is left behind: its State refuses everything.
//
// The package knows nothing of packages, releases or rooms. The rows are described in
// docs/store.md.
package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore"
)

// Options configures a Runtime.
type Options struct {
	// Now is the clock that alarms go by; default [time.Now].
	Now func() time.Time
	// Logger gets what no caller receives: alarms that fail, panics, and turns that take too long. Default: none.
	Logger *slog.Logger
	// Quiet fires no alarms: for a process that reads a few objects and then ends.
	Quiet bool
}

// A Runtime runs objects over one store, which it must be the only one to do. It
// commits the writes of all of them together.
type Runtime struct {
	store   *kvstore.Store
	now     func() time.Time
	logger  *slog.Logger
	quiet   bool
	commits committer

	ctx    context.Context // of alarms; ends with Close
	cancel context.CancelFunc
	users  sync.WaitGroup // events and alarm loops
	ending atomic.Bool

	mu      sync.Mutex
	classes map[string]*class

	// For tests.
	reading func(name string)                  // called in each read of the store
	jitter  func(time.Duration) time.Duration  // of a wait
	commit  func(b *kvstore.Batch) (err error) // commits a batch
}

// New returns a runtime of objects over a store, with the goroutine that commits their writes. The caller closes it before the store.
func New(store *kvstore.Store, o Options) *Runtime {
	r := &Runtime{
		store:   store,
		now:     o.Now,
		logger:  o.Logger,
		quiet:   o.Quiet,
		classes: make(map[string]*class),
		jitter:  func(d time.Duration) time.Duration { return rand.N(d/4 + 1) },
		commit:  (*kvstore.Batch).Commit,
	}
	if r.now == nil {
		r.now = time.Now
	}
	r.logger = cmp.Or(r.logger, slog.New(slog.DiscardHandler))
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.commits.wake = make(chan struct{}, 1)
	r.commits.done = make(chan struct{})
	go r.commits.run(store, func(b *kvstore.Batch) error { return r.commit(b) })
	return r
}

// addClass registers a class, and starts to fire its alarms unless the runtime is quiet. It returns an error if the class is open or the runtime
// closed.
func (r *Runtime) addClass(c *class) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isClosed() {
		return ErrClosed
	}
	if r.classes[c.name] != nil {
		return errors.New("it is open already")
	}
	r.classes[c.name] = c
	if !r.quiet {
		r.users.Go(c.fireAlarms)
	}
	return nil
}

// Now returns the time by the clock of the options.
func (r *Runtime) Now() time.Time { return r.now() }

// isClosed reports whether Close was called.
func (r *Runtime) isClosed() bool { return r.ending.Load() }

// Close delivers no more events, cancels the contexts of alarms that are being handled, and waits until all events have ended and their writes are
// durable. From the call on, every Send fails with [ErrClosed], also a call of an event that still runs. An alarm that fails because of it counts as
// not tried. If ctx ends first, the error says how many objects are still at work; what these write later may be lost. A second call returns nil at
// once, without waiting.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	first := !r.ending.Swap(true)
	r.mu.Unlock()
	if !first {
		return nil
	}
	r.cancel()
	for _, c := range r.classes {
		c.mu.Lock() // events that saw the runtime open have been counted
		if c.sweeper != nil {
			c.sweeper.Stop()
		}
		c.mu.Unlock()
	}
	over := make(chan struct{})
	go func() {
		r.users.Wait()
		r.commits.close()
		close(over)
	}()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
	}
	busy := 0
	for _, c := range r.classes {
		c.mu.Lock()
		for _, o := range c.objects {
			if o.users > 0 {
				busy++
			}
		}
		c.mu.Unlock()
	}
	return fmt.Errorf("durable: %d objects are still at work: %w", busy, context.Cause(ctx))
}

// The errors that callers decide on. They come wrapped with the object that they
// concern.
var (
	// ErrOverloaded says that an object has as many events as it may have. The
	// event was not delivered.
	ErrOverloaded = errors.New("overloaded: it has too many requests waiting, try again later")
	// ErrReset says that an object was stopped in the middle of an event and starts
	// again from its storage. What the event wrote may be there or not.
	ErrReset = errors.New("stopped, and starts again from its storage")
	// ErrClosed says that the runtime is closed or about to be.
	ErrClosed = errors.New("the runtime of durable objects is closed")
	// ErrOutside says that a State was used while it had no turn: after its event, or
	// while another call made with it is under way.
	ErrOutside = errors.New("the state was used outside of its turn: use it before the handler returns and not within Call, and begin what is to run beside with Go")
	// ErrTooLarge says that a key, a value or an atomic write exceeds its bound.
	ErrTooLarge = errors.New("too large")
)

// errStale says that the instance stopped before the event was delivered to it.
var errStale = errors.New("the instance is no longer the object's")

// counts are the counters of the objects of a class.
type counts struct {
	events, overloads, resets, alarms, failures atomic.Int64
}

// Collector returns the metrics of all classes for Prometheus. Collecting them reads the
// store, so it fails after the store is closed.
func (r *Runtime) Collector() prometheus.Collector { return collector{r} }

// collector collects the metrics of a runtime, see [Runtime.Collector].
type collector struct{ runtime *Runtime }

var (
	eventsDesc    = newDescription("events_total", "Events delivered to durable objects, without alarms.")
	overloadsDesc = newDescription("overloads_total", "Events refused because an object's queue was full.")
	resetsDesc    = newDescription("resets_total", "Restarts of objects from storage after a failed write or a panic.")
	alarmsDesc    = newDescription("alarms_total", "Fired alarms.")
	failuresDesc  = newDescription("alarm_failures_total", "Failed alarms, which are fired again.")
	liveDesc      = newDescription("live", "Durable objects in memory.")
	lateDesc      = newDescription("alarm_late_seconds", "Delay of the oldest due alarm; 0 if none is late.")
)

// newDescription returns the description of a metric of durable objects that has a value for each class.
func newDescription(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("larder_objects_"+name, help, []string{"class"}, nil)
}

// Describe implements prometheus.Collector: it sends the descriptions of the metrics.
func (collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{eventsDesc, overloadsDesc, resetsDesc, alarmsDesc, failuresDesc, liveDesc, lateDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector: it sends each metric once for each class. It reads from the store for how long the oldest due alarm is
// late; if that fails, it sends an invalid metric with the error in its place.
func (c collector) Collect(to chan<- prometheus.Metric) {
	c.runtime.mu.Lock()
	classes := slices.Collect(maps.Values(c.runtime.classes))
	c.runtime.mu.Unlock()
	for _, class := range classes {
		send := func(d *prometheus.Desc, kind prometheus.ValueType, value float64) {
			to <- prometheus.MustNewConstMetric(d, kind, value, class.name)
		}
		for d, n := range map[*prometheus.Desc]*atomic.Int64{
			eventsDesc: &class.counts.events, overloadsDesc: &class.counts.overloads, resetsDesc: &class.counts.resets,
			alarmsDesc: &class.counts.alarms, failuresDesc: &class.counts.failures,
		} {
			send(d, prometheus.CounterValue, float64(n.Load()))
		}
		class.mu.Lock()
		live := len(class.objects)
		class.mu.Unlock()
		send(liveDesc, prometheus.GaugeValue, float64(live))
		if late, err := class.oldestDelay(); err != nil {
			to <- prometheus.NewInvalidMetric(lateDesc, err)
		} else {
			send(lateDesc, prometheus.GaugeValue, late.Seconds())
		}
	}
}

// oldestDelay returns for how long the oldest of those stored alarms has been due that are neither being handled nor held back after a failure; 0 if
// none is late. It ignores malformed rows.
func (c *class) oldestDelay() (time.Duration, error) {
	a := &c.alarms
	a.mu.Lock()
	low := slices.Clone(a.low)
	a.mu.Unlock()
	now := c.runtime.now().UnixNano()
	prefix := duePrefix(c.name)
	for item, err := range c.runtime.store.Scan(kvstore.Durable, kvstore.Range{Prefix: prefix, From: append(duePrefix(c.name), low...)}) {
		if err != nil {
			return 0, err
		}
		name, at, err := parseDue(item.Key[len(prefix):])
		if err != nil {
			continue // firing it logs the error
		}
		if at >= now {
			break
		}
		a.mu.Lock()
		_, running := a.running[name]
		_, held := a.held[name]
		a.mu.Unlock()
		if !running && !held {
			return time.Duration(now - at), nil
		}
	}
	return 0, nil
}
