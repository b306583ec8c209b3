package durable

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// An object is an instance in memory: its turn, its queue, and what it has of its
// storage.
//
// The turn is had by strands: the goroutine of an event, and those that it began. A
// turn is over when none of its strands has it; then the next in line gets one.
//
// Locks are taken in the order object.mu, class.mu, and object.mu, committer.mu.
type object struct {
	class *class
	name  string

	// Guarded by class.mu.
	users int           // events and writes under way
	idle  *list.Element // in the class's list of idle objects, nil if it is not
	since time.Time

	previous <-chan struct{} // closed when the instance before has no writes under way; nil where there was none

	mu       sync.Mutex
	instance any           // the Handler, once it was made
	loaded   bool          // whether alarm is known
	active   int           // strands that have the turn
	line     *list.List    // of *waiter, in order of arrival
	turn     uint64        // counts turns
	limit    *time.Timer   // of the turn; nil before the first
	stopped  chan struct{} // closed when failed is set
	events   int           // from arrival to response
	failed   error         // why the instance has stopped, if it has
	tx       *transaction

	// Storage; see commit.go.
	dirty    map[string]*change // what is not yet durable, newest
	cache    cache
	pending  *write        // what the next atomic write has so far, or nil
	gate     *write        // the last that has to be waited for
	writing  int           // writes handed over and not done
	bytes    int           // of those
	last     *write        // the last that was handed over
	lost     error         // why a write failed; later ones must not happen
	settled  chan struct{} // closed when failed is set and writing is 0
	next     *object       // what took its place, and waits for settled
	changes  uint64        // counts writes, to detect reads that were overtaken
	alarm    *alarm        // as this object's events see it; nil: none
	sealed   *alarm        // as the store will have it
	replaced bool          // whether the alarm was set or deleted since a handler was called for it
}

// newObject returns an object in memory whose instance and alarm are not loaded yet.
func newObject(c *class, name string) *object {
	o := &object{class: c, name: name, line: list.New(), settled: make(chan struct{}), stopped: make(chan struct{})}
	o.cache.total, o.cache.limit = &c.cached, c.limits.CacheBytes
	return o
}

// A waiter is in line for the turn.
type waiter struct {
	strand *strand
	fresh  bool // of an event that has not begun, and can begin with another instance
	ready  chan struct{}
	err    error // set before ready is closed
}

// enter waits until a strand (the work of one event, or a task of it) has the object's turn, so that no other event runs. A fresh strand, that of an
// event that has not begun, gives up with the cause if ctx ends, and with errStale if the instance has stopped or stops. Any other strand waits
// however long it takes, even if ctx ends or the instance stops. A strand whose event has ended does not get the turn: the error is [ErrOutside], or
// nil if the event ended while it waited. So the caller looks at st.place too.
func (o *object) enter(ctx context.Context, st *strand, fresh bool) error {
	o.mu.Lock()
	if fresh && o.failed != nil {
		o.mu.Unlock()
		return errStale
	}
	if st.place == ended {
		o.mu.Unlock()
		return ErrOutside
	}
	if o.active == 0 && o.line.Len() == 0 {
		o.giveTurn(st)
		o.mu.Unlock()
		return nil
	}
	p := &waiter{strand: st, fresh: fresh, ready: make(chan struct{})}
	e := o.line.PushBack(p)
	o.mu.Unlock()
	var end <-chan struct{}
	if fresh {
		end = ctx.Done()
	}
	select {
	case <-p.ready:
		return p.err
	case <-end:
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-p.ready: // just now
		if p.err == nil {
			o.leave(st)
		}
	default:
		o.line.Remove(e)
	}
	return context.Cause(ctx)
}

// giveTurn gives the object's turn, the right to run, to a strand (the work of an event), and starts the timer that stops an instance whose turn is
// too long. No strand has the turn before. The caller holds o.mu.
func (o *object) giveTurn(st *strand) {
	o.active, st.place = 1, inside
	o.turn++
	if o.failed != nil { // it only finishes
		return
	}
	turn := o.turn
	if o.limit != nil {
		o.limit.Stop()
	}
	o.limit = time.AfterFunc(o.class.limits.Turn, func() { o.stopIfTurn(turn) })
}

// stopIfTurn stops the instance if the turn with this number is not over: a handler has kept it for too long.
func (o *object) stopIfTurn(turn uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.turn == turn && o.failed == nil {
		o.class.runtime.logger.Error("a durable object was stopped, because a handler kept its turn for too long", "class", o.class.name, "object", o.name, "limit", o.class.limits.Turn)
		o.fail(fmt.Errorf("%w: a handler kept its turn for more than %v", ErrReset, o.class.limits.Turn))
	}
}

// leave takes the object's turn, the right to run, from a strand (the work of an event or task). If no other strand has it, the pending write is
// passed to the committer, and the next strand in line whose event has not ended gets the turn. The caller holds o.mu.
func (o *object) leave(st *strand) {
	st.place = outside
	if o.active--; o.active > 0 {
		return
	}
	o.turn++
	o.limit.Stop()
	o.commitPending()
	for e := o.line.Front(); e != nil && o.active == 0; e = o.line.Front() {
		p := o.line.Remove(e).(*waiter)
		if p.strand.place != ended {
			o.giveTurn(p.strand)
		}
		close(p.ready)
	}
}

// fail stops the instance of the object because of err, which has to wrap [ErrReset] and which the State's methods return from then on. It discards
// writes that were not yet passed to the committer. Events that have not begun go to a new instance, which starts from the storage; strands that come
// back from a call still wait for the turn of this one. It does nothing if the instance is stopped. The caller holds o.mu.
func (o *object) fail(err error) {
	if o.failed != nil {
		return
	}
	o.failed = err
	close(o.stopped)
	o.class.counts.resets.Add(1)
	o.pending = nil
	o.class.replaceInstance(o)
	if o.writing == 0 {
		o.allowNextInstance()
	}
	for e := o.line.Front(); e != nil; {
		next := e.Next()
		if p := e.Value.(*waiter); p.fresh {
			o.line.Remove(e)
			p.err = errStale
			close(p.ready)
		}
		e = next
	}
}

// allowNextInstance lets the next instance read the storage, because this one is stopped and all its writes are done, and clears the cache of this
// one. It is called once. The caller holds o.mu.
func (o *object) allowNextInstance() {
	close(o.settled)
	o.cache.clear()
	if o.next != nil {
		o.class.release(o.next)
	}
}

// A handle is the function by which an event uses an instance.
type handle func(ctx context.Context, s *State, instance any) error

// deliverEvent delivers an event, which is f, to the object with this name, and returns its error when its response may leave. limited says that the
// limit of events applies, which it does not for alarms.
func (c *class) deliverEvent(ctx context.Context, name string, f handle, limited bool) error {
	return c.withInstance(name, func(o *object) error { return o.handleEvent(ctx, f, limited) })
}

// withInstance calls f with the object with this name, and returns its error. If that is errStale, because the instance was stopped before f could
// use it, withInstance calls f with the next instance. It also returns the errors of class.acquire.
func (c *class) withInstance(name string, f func(*object) error) error {
	for {
		o, err := c.acquire(name)
		if err != nil {
			return err
		}
		err = func() error {
			defer c.release(o)
			return f(o)
		}()
		if !errors.Is(err, errStale) {
			return err
		}
	}
}

// handleEvent runs an event, which is f, in a goroutine when it has the turn, and returns its error once everything that the object wrote before is
// durable. If the instance is stopped before f begins, the error is errStale. If it is stopped later, handleEvent waits for f only a second longer,
// and then returns why. limited says that the limit of events applies, beyond which the error is [ErrOverloaded].
func (o *object) handleEvent(ctx context.Context, f handle, limited bool) error {
	o.mu.Lock()
	if limited && o.events >= o.class.limits.Events {
		o.mu.Unlock()
		o.class.counts.overloads.Add(1)
		return ErrOverloaded
	}
	o.events++
	o.mu.Unlock()
	if limited { // else it is an alarm
		o.class.counts.events.Add(1)
	}
	defer func() {
		o.mu.Lock()
		o.events--
		o.mu.Unlock()
	}()
	st := &strand{object: o}
	if err := o.enter(ctx, st, true); err != nil {
		return err
	}
	// In a goroutine of its own, so that a handler that hangs does not keep its caller.
	result := make(chan error, 1)
	go func() {
		finished := false
		defer func() {
			if !finished { // the handler has ended its goroutine
				err := fmt.Errorf("%w: its goroutine ended", ErrReset)
				o.mu.Lock()
				o.fail(err)
				o.endStrand(st)
				o.mu.Unlock()
				result <- err
			}
		}()
		err := o.finishEvent(ctx, st, o.runStrand(ctx, st, f))
		finished = true
		result <- err
	}()
	select {
	case err := <-result:
		return err
	case <-o.stopped:
	}
	// It was stopped by this event, which says why, or while this event hangs.
	select {
	case err := <-result:
		return err
	case <-time.After(grace):
		return o.failed
	}
}

// grace is how long an event whose instance was stopped may take to say what came of it.
const grace = time.Second

// runStrand calls f, an event, with the object's instance for a strand that has the turn, waits for the tasks that f began, and returns the errors of
// all, joined. It creates the instance if none exists; if that fails, it does not call f. A panic stops the instance.
func (o *object) runStrand(ctx context.Context, st *strand, f handle) (err error) {
	s := &State{strand: st}
	defer o.recover(&err)
	if err := o.load(ctx, s); err != nil {
		return err
	}
	err = f(s.context(ctx), s, o.instance)
	if failed := s.Wait(ctx); failed != nil {
		err = errors.Join(err, failed)
	}
	return err
}

// finishEvent ends the strand of an event whose handler has returned err, and waits until its response may leave: until the writes that it depends on
// are durable. It passes the pending write to the committer. While over [MaxWriteBytes] are not durable, it keeps the turn until the last write is
// done, and does not regard ctx. It returns err, or else why the instance was stopped, why a write failed, or the cause of ctx.
func (o *object) finishEvent(ctx context.Context, st *strand, err error) error {
	o.mu.Lock()
	o.commitPending()
	if last := o.last; last != nil && o.bytes > MaxWriteBytes {
		// Unconfirmed writes must not pile up: the disk sets the pace.
		o.mu.Unlock()
		<-last.done
		o.mu.Lock()
	}
	gate, failed := o.gate, o.failed
	o.endStrand(st)
	o.mu.Unlock()
	if failed != nil {
		return errorOfStopped(failed, err)
	}
	if e := gate.wait(ctx); e != nil {
		return e
	}
	return err
}

// endStrand marks a strand, the work of an event or a task, as ended, so that its State can no longer be used. If it has the object's turn, it gives
// that up, also in a stopped instance, and the next strand in line gets it once no task has it. The caller holds o.mu.
func (o *object) endStrand(st *strand) {
	if st.place == inside {
		o.leave(st)
	}
	st.place = ended
}

// errorOfStopped returns the error of an event whose instance was stopped because of failed: err, which the event returned, if it wraps that, or else
// failed.
func errorOfStopped(failed, err error) error {
	if errors.Is(err, failed) {
		return err
	}
	return failed
}

// recover is deferred by functions that call a handler. If its code has panicked, it logs that, stops the instance, because its state in memory
// cannot be trusted, and sets *err to an error that wraps [ErrReset].
func (o *object) recover(err *error) {
	p := recover()
	if p == nil {
		return
	}
	o.class.runtime.logger.Error("a durable object panicked", "class", o.class.name, "object", o.name, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
	*err = fmt.Errorf("%w: it panicked: %v", ErrReset, p)
	o.mu.Lock()
	o.fail(*err)
	o.mu.Unlock()
}

// load reads the object's alarm and creates its instance, if it has none, and lets no other event run meanwhile. If the creation fails, the object is
// stopped; if the alarm cannot be read, it is not. The caller's strand has the turn.
func (o *object) load(ctx context.Context, s *State) error {
	if o.instance != nil {
		return nil
	}
	if err := o.loadAlarm(); err != nil {
		return err
	}
	return s.BlockConcurrencyWhile(s.context(ctx), func(ctx context.Context, s *State) error {
		instance, err := o.class.make(ctx, s)
		if err != nil {
			return fmt.Errorf("couldn't begin: %w", err)
		}
		o.instance = instance
		return nil
	})
}

// loadAlarm reads the object's alarm from the store, unless an earlier call has succeeded. It first waits until the writes of the instance before are
// done. The caller's strand has the turn, and does not hold o.mu.
func (o *object) loadAlarm() error {
	if o.loaded {
		return nil
	}
	if o.previous != nil {
		<-o.previous
	}
	row, err := o.class.runtime.store.Get(kvstore.Durable, alarmKey(o.class.name, o.name))
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	if err == nil {
		a, err := decodeAlarm(row)
		if err != nil {
			return err
		}
		o.mu.Lock()
		o.alarm, o.sealed = &a, &a
		o.mu.Unlock()
	}
	o.loaded = true
	return nil
}
