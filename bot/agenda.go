package bot

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/packages"
)

// An agenda holds when each package's upstream is to be asked. Each package is a
// durable object whose alarm is that time, so what sleeps takes no memory, and a
// restart forgets nothing.
type agenda struct {
	packages *durable.Namespace[appointment, struct{}]
	due      chan visit
	clock    time.Duration // between two looks at the clock
}

// An appointment changes when a package is due.
type appointment struct {
	at     time.Time
	sooner bool // only to an earlier time
}

// A visit is a package that is due. The goroutine that takes it says, once, when it is due next.
type visit struct {
	pkg  string
	next chan<- time.Time
}

func openAgenda(r *durable.Runtime) (*agenda, error) {
	a := &agenda{due: make(chan visit), clock: time.Minute}
	var err error
	a.packages, err = durable.Open(r, durable.Class[appointment, struct{}]{
		Name: "poll",
		New: func(context.Context, *durable.State) (durable.Handler[appointment, struct{}], error) {
			return diary{a.due}, nil
		},
	})
	return a, err
}

// set makes a package due at a time, in place of any other.
func (a *agenda) set(ctx context.Context, pkg string, at time.Time) error {
	_, err := a.packages.Object(pkg).Send(ctx, appointment{at: at})
	return err
}

// sooner moves a package that is on the agenda to an earlier time.
func (a *agenda) sooner(ctx context.Context, pkg string, at time.Time) error {
	_, err := a.packages.Object(pkg).Send(ctx, appointment{at: at, sooner: true})
	return err
}

// next waits until a package is due and takes it off the agenda.
func (a *agenda) next(ctx context.Context) (visit, error) {
	select {
	case v := <-a.due:
		return v, nil
	case <-ctx.Done():
		return visit{}, ctx.Err()
	}
}

// diary is a package on the agenda.
type diary struct{ due chan<- visit }

// Handle implements [durable.Handler].
func (diary) Handle(ctx context.Context, s *durable.State, a appointment) (struct{}, error) {
	current, on, err := s.GetAlarm(ctx)
	if err != nil || on && (current.Equal(a.at) || a.sooner && !a.at.Before(current)) {
		return struct{}{}, err
	}
	return struct{}{}, s.SetAlarm(ctx, a.at)
}

// Alarm implements [durable.Handler]. It lasts until the package has been asked for: if
// the process ends before, the next one asks.
func (d diary) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	var at time.Time
	err := s.Call(ctx, func(ctx context.Context) error {
		next := make(chan time.Time, 1)
		select {
		case d.due <- visit{s.Name(), next}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case at = <-next:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	if err != nil || at.IsZero() {
		return err
	}
	if current, on, err := s.GetAlarm(ctx); err != nil || on && current.Before(at) {
		return err // it was moved meanwhile
	}
	return s.SetAlarm(ctx, at)
}

// setsAtOnce is how many packages are put on the agenda together, so that their writes
// share a sync.
const setsAtOnce = 256

// schedule asks each package's upstream when it is due, until ctx ends.
func (b *Bot) schedule(ctx context.Context, q *queue) error {
	if err := b.scheduleAll(ctx, q); err != nil {
		return err
	}
	polls, ctx := errgroup.WithContext(ctx)
	polls.Go(func() error { return b.followClock(ctx, q) })
	polls.Go(func() error {
		for {
			v, err := b.agenda.next(ctx)
			if err != nil {
				return err
			}
			p, ok := b.catalogue().Get(v.pkg)
			if !ok {
				v.next <- time.Time{}
				continue
			}
			if b.news.has(v.pkg) { // what looks at it says when it is due next
				v.next <- b.options.Now().Add(minWait)
				continue
			}
			polls.Go(func() error {
				next := b.options.Now().Add(minWait)
				defer func() { v.next <- next }()
				err := b.poll(ctx, p, q, func() { b.sooner(ctx, p.Name, b.options.Now()) })
				if err == errParked {
					next = b.options.Now().Add(jittered(b.options.Interval)) // or sooner
					return nil
				}
				if err != nil {
					return err
				}
				next = b.nextVisit(p, q, b.options.Now().Add(minWait))
				return nil
			})
		}
	})
	return polls.Wait()
}

// scheduleAll stores when each package of the catalogue is due.
func (b *Bot) scheduleAll(ctx context.Context, q *queue) error {
	sets, ctx := errgroup.WithContext(ctx)
	sets.SetLimit(setsAtOnce)
	for _, p := range b.catalogue().Packages() {
		sets.Go(func() error { return b.agenda.set(ctx, p.Name, b.nextVisit(p, q, time.Time{})) })
	}
	if err := sets.Wait(); err != nil {
		return fmt.Errorf("bot: couldn't store when packages are due: %w", err)
	}
	return nil
}

// followClock schedules all packages again when the clock has been set back, until ctx ends: what was due in an hour would be due in
// a year where the clock had been a year ahead.
func (b *Bot) followClock(ctx context.Context, q *queue) error {
	for before := b.wallClock(); ; {
		if err := retry.Sleep(ctx, b.agenda.clock); err != nil {
			return err
		}
		now := b.wallClock()
		if now.Before(before) {
			b.logger.Warn("the clock was set back; packages are scheduled again", "by", before.Sub(now))
			if err := b.scheduleAll(ctx, q); err != nil {
				return err
			}
		}
		before = now
	}
}

// wallClock returns the time without the monotonic clock reading, which would hide that the clock was set back.
func (b *Bot) wallClock() time.Time { return b.options.Now().Round(0) }

// nextVisit returns when a package is due: at the time of its upstream, or before
// where a release waits for another attempt that no goroutine has in hand, but not
// before earliest.
func (b *Bot) nextVisit(p *packages.Package, q *queue, earliest time.Time) time.Time {
	upstream := b.knownUpstream(p.Name)
	at := upstream.due(b.options.Interval)
	states, err := b.states(p.Name)
	if err != nil {
		// One package's damaged rows do not stop the others.
		b.logger.Error("states not read", "package", p.Name, "err", err)
		return later(at, b.options.Now().Add(minWait))
	}
	if upstream.Attempts == 0 && b.source(p) != nil { // else upstream itself is what has to be waited for
		for _, s := range states {
			if !s.Kind.Final() && s.Next.Before(at) && !q.has(releaseID(p.Name, s.Version)) {
				at = s.Next
			}
		}
	}
	return later(at, earliest)
}

// sooner has a package be asked for earlier, where that is written down; else it is asked
// for at its time.
func (b *Bot) sooner(ctx context.Context, pkg string, at time.Time) {
	if err := b.agenda.sooner(context.WithoutCancel(ctx), pkg, at); err != nil {
		b.logger.Warn("not moved on the agenda", "package", pkg, "err", err)
	}
}
