package durable

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore"
)

// Options configures a Runtime.
type Options struct {
	// Now is the clock that alarms go by; default [time.Now].
	Now func() time.Time
	// Logger gets what nobody else is told: alarms that fail, and panics. Default: none.
	Logger *slog.Logger
	// Quiet fires no alarms: for a process that has a look, and is gone.
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

// New begins to run objects over a store. Close the runtime before the store.
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
	if r.logger == nil {
		r.logger = slog.New(slog.DiscardHandler)
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.commits.wake = make(chan struct{}, 1)
	r.commits.done = make(chan struct{})
	go r.commits.run(store, func(b *kvstore.Batch) error { return r.commit(b) })
	return r
}

// add begins with a class.
func (r *Runtime) add(c *class) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed() {
		return ErrClosed
	}
	if r.classes[c.name] != nil {
		return errors.New("it is open already")
	}
	r.classes[c.name] = c
	if !r.quiet {
		r.users.Go(c.watch)
	}
	return nil
}

func (r *Runtime) closed() bool { return r.ending.Load() }

// Close delivers no more events, ends the contexts of alarms that are being handled,
// and waits until all events are over and their writes durable. An alarm that fails
// because of it counts as not tried. Where ctx ends first, Close returns an error
// that says how many objects are still at work; what these write later may be lost.
func (r *Runtime) Close(ctx context.Context) error {
	r.mu.Lock()
	first := !r.ending.Swap(true)
	r.mu.Unlock()
	if !first {
		return nil
	}
	r.cancel()
	for _, c := range r.classes {
		c.mu.Lock() // whoever saw the runtime open has been counted
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
