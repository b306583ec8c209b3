// Package parts runs what a role of a process consists of: parts that work beside one another, and stop in reverse order.
//
// A role is a function that opens its parts one after the other, each from those before it, and adds each to a [Group].
//
// What it guarantees: a part that was added stops exactly once, when no part runs any longer and all parts that were added after it
// have stopped, also where a later part could not be opened.
//
// It must not know what the parts do.
package parts

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
)

// A Part is something that works until its role ends. Each of its functions may be nil.
type Part struct {
	Name string // for the log
	// Run works until ctx ends, beside all other parts. A part that returns an error ends the group; [ErrDone] ends it
	// without one.
	Run func(ctx context.Context) error
	// Stop closes the part, when no part runs any longer and those that were added later have stopped.
	Stop func() error
}

// ErrDone is what a part returns whose work is all that the group is for.
var ErrDone = errors.New("done")

// A Group is the parts of one run of a role.
type Group struct {
	ctx    context.Context
	end    context.CancelFunc
	group  *errgroup.Group
	logger *slog.Logger
	added  []Part

	early     context.Context // ends before ctx, for parts of AddEarly
	endEarly  context.CancelFunc
	earlyRuns sync.WaitGroup
}

// NewGroup returns a group without parts, which ends when ctx does.
func NewGroup(ctx context.Context, logger *slog.Logger) *Group {
	g := &Group{logger: logger}
	ctx, g.end = context.WithCancel(ctx)
	g.group, g.ctx = errgroup.WithContext(ctx)
	g.early, g.endEarly = context.WithCancel(context.Background())
	return g
}

// Context returns the context of the parts, which ends when the group does.
func (g *Group) Context() context.Context { return g.ctx }

// Add adds a part that was opened, and starts its Run in a goroutine. If Run returns an error, the group ends; [ErrDone] itself, not
// wrapped, ends it without an error. If Run returns nil, the group continues.
func (g *Group) Add(p Part) {
	g.added = append(g.added, p)
	g.logger.Debug("started", "what", p.Name)
	if p.Run == nil {
		return
	}
	g.group.Go(func() error {
		err := p.Run(g.ctx)
		if err == ErrDone {
			g.end() // without err as the cause of ctx's end, which clients get
			return nil
		}
		return err
	})
}

// AddEarly adds a part, whose Run must not be nil and also ends when [Group.EndEarly] is called. What Run returns then is ignored.
func (g *Group) AddEarly(p Part) {
	work := p.Run
	g.earlyRuns.Add(1)
	p.Run = func(ctx context.Context) error {
		done := sync.OnceFunc(g.earlyRuns.Done)
		defer done()
		its, end := context.WithCancel(ctx)
		defer end()
		defer context.AfterFunc(g.early, end)()
		if err := work(its); ctx.Err() != nil || g.early.Err() == nil {
			return err
		}
		done()
		<-ctx.Done()
		return nil
	}
	g.Add(p)
}

// EndEarly ends the parts that were added by [Group.AddEarly], and waits until they have ended. The other parts continue.
func (g *Group) EndEarly() {
	g.endEarly()
	g.earlyRuns.Wait()
}

// Wait waits until Run of every part has returned, and then stops the parts in reverse order. err, nil for none, is why the role
// could not open all parts; it ends the group at once. Without it, Wait does not end the group itself before no part runs. Wait
// returns err, the first error of a part that ran, and all errors of stopping, joined; nil for none.
func (g *Group) Wait(err error) error {
	defer g.endEarly()
	defer g.end()
	if err != nil {
		g.end()
		g.logger.Debug("couldn't start all parts", "err", err)
	}
	err = errors.Join(err, g.group.Wait())
	for _, p := range slices.Backward(g.added) {
		if p.Stop != nil {
			err = errors.Join(err, p.Stop())
		}
		g.logger.Debug("stopped", "what", p.Name)
	}
	return err
}

// RunUntilDone returns a Run that does work, which ends only with its context and cannot fail. It always returns nil.
func RunUntilDone(work func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		work(ctx)
		return nil
	}
}

// StopBy returns a Stop that calls closeIt, which cannot fail. It always returns nil.
func StopBy(closeIt func()) func() error {
	return func() error {
		closeIt()
		return nil
	}
}
