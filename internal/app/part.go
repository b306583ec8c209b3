package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// A part is something that a process starts and stops. Each of its functions may be nil.
type part struct {
	name string // for the log
	// start begins the part, when those before it in the list have begun. Where it fails, those are stopped and the
	// process ends; this one is not stopped.
	start func(ctx context.Context) error
	// run works until ctx ends, beside all other parts. A part that returns an error ends the process; errDone ends it
	// without one.
	run func(ctx context.Context) error
	// stop ends the part, when no part runs any longer and those behind it in the list have stopped.
	stop func() error
}

// errAgain is what a part returns with after which the process begins anew.
var errAgain = errors.New("again")

// errDone is what a part returns with whose work is all that the process is for.
var errDone = errors.New("done")

// run starts parts in their order, waits until ctx or one of them ends, and stops them in reverse order.
func run(ctx context.Context, logger *slog.Logger, parts []part) (err error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	group, ctx := errgroup.WithContext(ctx)
	started := 0
	var again atomic.Bool
	for _, p := range parts {
		if p.start != nil {
			if err = p.start(ctx); err != nil {
				end()
				logger.Debug("couldn't start", "what", p.name)
				break
			}
		}
		started++
		logger.Debug("started", "what", p.name)
		if p.run != nil {
			group.Go(func() error {
				err := p.run(ctx)
				if err == errDone || err == errAgain {
					again.Store(err == errAgain)
					end() // rather than have err be the cause of ctx's end, which clients are told
					return nil
				}
				return err
			})
		}
	}
	err = errors.Join(err, group.Wait())
	for _, p := range slices.Backward(parts[:started]) {
		if p.stop != nil {
			err = errors.Join(err, p.stop())
		}
		logger.Debug("stopped", "what", p.name)
	}
	if err == nil && again.Load() {
		return errAgain
	}
	return err
}

// until makes a part's run out of work that only ends with its context.
func until(work func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		work(ctx)
		return nil
	}
}
