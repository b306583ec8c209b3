package durable

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"
)

// A strand is a line of work that has an object's turn or wants it back: an event,
// or what one began with Go. All of it is guarded by object.mu.
type strand struct {
	object *object
	place  turnState
	tasks  int           // begun with Go and not done
	failed error         // of the tasks
	done   chan struct{} // closed when tasks is 0, where a goroutine waits for that
}

// A turnState is whether a strand has its object's turn.
type turnState int

const (
	outside turnState = iota // it is in a call, or waits for the turn
	inside                   // it has the turn
	ended                    // its event has ended
)

// State gives an event access to its object: the storage, and the ways out. Only the function that receives it may
// use it, until that returns, and only in its own goroutine. Methods that use the storage or call out return
// [ErrOutside] once that has returned or while a call is under way, and [ErrReset] once the object was stopped.
//
// Transactions, blocks and tasks get a State of their own.
type State struct {
	*strand
	tx       *transaction
	blocking bool // whether calls keep the turn
}

// stateKey is the key of the State in a context that belongs to one.
type stateKey struct{}

// A stateContext is a context that belongs to a State.
type stateContext struct {
	context.Context
	state *State
}

// Value implements [context.Context]: it returns the State for stateKey, and for other keys what the context within has.
func (c stateContext) Value(key any) any {
	if key == (stateKey{}) {
		return c.state
	}
	return c.Context.Value(key)
}

// context returns a context derived from ctx that belongs to the state: with it, sending to another object is a call of this one's.
func (s *State) context(ctx context.Context) context.Context { return stateContext{ctx, s} }

// turnState returns whether the event that the state belongs to has the object's turn (inside), is in a call or waits for the turn (outside), or has
// ended.
func (s *State) turnState() turnState {
	s.object.mu.Lock()
	defer s.object.mu.Unlock()
	return s.strand.place
}

// Name returns the object's name.
func (s *State) Name() string { return s.object.name }

// Now returns the time by the runtime's clock.
func (s *State) Now() time.Time { return s.object.class.runtime.now() }

// lock locks the object's mu for an operation of the state; it first waits for a transaction of another task, up to the end of ctx. It returns an
// error, without the lock, if the state may not be used now ([ErrOutside]), the object has stopped, or ctx ends while it waits.
func (s *State) lock(ctx context.Context) error {
	o := s.object
	o.mu.Lock()
	for {
		var err error
		switch {
		case o.failed != nil:
			err = o.failed
		case s.strand.place != inside || s.tx != nil && s.tx != o.tx:
			err = ErrOutside
		case o.tx == s.tx:
			return nil
		case o.tx.strand == s.strand:
			err = errors.New("a transaction of the same event is open: use the State that its function receives")
		}
		if err != nil {
			o.mu.Unlock()
			return err
		}
		// A task beside this one has a transaction open.
		done := o.tx.done
		o.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		o.mu.Lock()
	}
}

// yieldTurn lets other events of the object run while this one waits for something outside, unless the state keeps the turn (in blocks and
// transactions). It unlocks the object's mu, which the caller holds. The caller calls back afterwards, without mu: back waits for the turn, also that
// of a stopped instance. If the event has ended meanwhile, back returns without the turn.
func (s *State) yieldTurn() (back func()) {
	o := s.object
	if s.blocking || s.tx != nil {
		s.strand.place = outside
		o.mu.Unlock()
		return func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			if s.strand.place == outside { // else the event has ended meanwhile
				s.strand.place = inside
			}
		}
	}
	o.leave(s.strand)
	o.mu.Unlock()
	return func() { _ = o.enter(context.Background(), s.strand, false) }
}

// Call calls f, which communicates with something outside, once every write before is durable, except those with [AllowUnconfirmed], and without the
// object's turn, so that other events are delivered meanwhile. In [State.BlockConcurrencyWhile] it keeps the turn. If such a write fails, or ctx ends
// before the writes are durable, f is not called. Call returns when the object has the turn for this event again, with the error of f, or [ErrReset]
// if the object was stopped.
//
// f must not use the state, nor touch what belongs to the object without a lock. In a transaction, whose writes must not be seen outside yet, a call
// is refused.
func (s *State) Call(ctx context.Context, f func(context.Context) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	o := s.object
	if s.tx != nil {
		o.mu.Unlock()
		return errors.New("a transaction cannot call out: call before it or after it")
	}
	o.commitPending()
	gate := o.gate
	err := func() error {
		defer s.yieldTurn()()
		if err := gate.wait(ctx); err != nil {
			return err
		}
		return f(ctx)
	}()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed != nil {
		return errorOfStopped(o.failed, err)
	}
	return err
}

// Client returns an HTTP client, made from that of the class, each of whose requests is a [State.Call]. The body of a response is read in the turn.
// Without a client of the class, requests fail.
func (s *State) Client() *http.Client {
	client := http.Client{}
	if base := s.object.class.client; base != nil {
		client = *base
		if client.Transport == nil {
			client.Transport = http.DefaultTransport
		}
	}
	client.Transport = gatedTransport{s, client.Transport}
	return &client
}

// gatedTransport sends requests through the output gate.
type gatedTransport struct {
	state *State
	base  http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]: it sends the request within a [State.Call], so after all earlier writes are durable. If the class has no
// HTTP client, it returns an error. With an error of the call it returns no response, and closes its body.
func (g gatedTransport) RoundTrip(r *http.Request) (response *http.Response, err error) {
	if g.base == nil {
		return nil, fmt.Errorf("objects of class %s have no HTTP client: give their class one", g.state.object.class.name)
	}
	err = g.state.Call(r.Context(), func(context.Context) (err error) {
		response, err = g.base.RoundTrip(r)
		return err
	})
	if err != nil && response != nil {
		response.Body.Close()
		response = nil
	}
	return response, err
}

// Go starts a task, f, in a goroutine beside the caller, in the same turn, and does not wait for it. It waits, up to the end of
// ctx, only for a transaction of another task. Tasks are not protected from each other until one
// comes back from a call: from then on it has a turn of its own. The event ends when all of them have. [State.Wait] returns their errors, also that a
// task could not start, for example in a transaction; errors that no Wait has returned become part of the event's error.
func (s *State) Go(ctx context.Context, f func(context.Context, *State) error) {
	o, parent := s.object, s.strand
	err := s.lock(ctx)
	if err == nil && s.tx != nil {
		o.mu.Unlock()
		err = errors.New("a transaction cannot begin a task")
	}
	if err != nil {
		o.mu.Lock()
		parent.failed = errors.Join(parent.failed, err)
		o.mu.Unlock()
		return
	}
	task := &State{strand: &strand{object: o, place: inside}, blocking: s.blocking}
	o.active++
	parent.tasks++
	o.mu.Unlock()
	go func() {
		err := task.runTask(ctx, f)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.endStrand(task.strand)
		parent.failed = errors.Join(parent.failed, err)
		if parent.tasks--; parent.tasks == 0 && parent.done != nil {
			close(parent.done)
			parent.done = nil
		}
	}()
}

// runTask calls the task f with its own state, waits for the tasks that it has begun, and returns the errors of all, joined. A panic stops the
// instance, and is an error that wraps [ErrReset].
func (s *State) runTask(ctx context.Context, f func(context.Context, *State) error) (err error) {
	defer s.object.recover(&err)
	ctx = s.context(ctx)
	return errors.Join(f(ctx, s), s.Wait(ctx))
}

// Wait waits for the tasks that this event or task has started with [State.Go], and returns their errors since the last Wait, joined; nil if there
// were none. While tasks run it gives the turn away, except in a block or a transaction. It ignores its context.
func (s *State) Wait(context.Context) error {
	o := s.object
	o.mu.Lock()
	for s.tasks > 0 {
		if s.done == nil {
			s.done = make(chan struct{})
		}
		done := s.done
		if s.strand.place != inside {
			o.mu.Unlock()
			<-done
		} else {
			back := s.yieldTurn()
			<-done
			back()
		}
		o.mu.Lock()
	}
	defer o.mu.Unlock()
	err := s.strand.failed
	s.strand.failed = nil
	return err
}

// longestBlock is how long BlockConcurrencyWhile may take.
const longestBlock = 30 * time.Second

// BlockConcurrencyWhile calls f, in a goroutine, and delivers no other event until it has returned, not even while it calls out. f has to use the
// State and the context that it receives; the context ends after 30 seconds. If f fails or panics, or takes longer than that, the object is stopped
// and starts again from its storage, and the error wraps [ErrReset]; an f that takes too long is not waited for. In a transaction it is refused with
// an error. [Class].New runs like that.
func (s *State) BlockConcurrencyWhile(ctx context.Context, f func(context.Context, *State) error) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	o := s.object
	o.mu.Unlock()
	if s.tx != nil {
		return errors.New("a transaction cannot block: it keeps the turn anyway")
	}
	inner := &State{strand: s.strand, blocking: true}
	bounded, cancel := context.WithTimeout(ctx, longestBlock)
	defer cancel()
	result := make(chan error, 1)
	go func() {
		var err error
		defer func() { result <- err }()
		defer o.recover(&err)
		err = f(inner.context(bounded), inner)
	}()
	var err error
	select {
	case err = <-result:
	case <-time.After(longestBlock):
		err = fmt.Errorf("it blocked other events for more than %v", longestBlock)
	}
	if err == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed == nil {
		o.fail(fmt.Errorf("%w: %w", ErrReset, err))
	}
	return o.failed
}
