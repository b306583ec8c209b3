package discovery

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/packages"
)

// A pollSchedule has the time of each package's next poll. Each package is a durable object whose alarm is that time, so a
// waiting package takes no memory, and a restart loses none.
type pollSchedule struct {
	packages *durable.Namespace[scheduleChange, struct{}]
	due      chan duePackage
}

// A scheduleChange changes when a package is due.
type scheduleChange struct {
	at     time.Time
	sooner bool // only to an earlier time
}

// A duePackage is a package that is due. The goroutine that takes it says, once, when it is due next.
type duePackage struct {
	pkg  string
	next chan<- time.Time
}

// openPollSchedule returns the schedule of polls that r stores. Packages that are due wait until a goroutine calls next.
func openPollSchedule(r *durable.Runtime) (*pollSchedule, error) {
	a := &pollSchedule{due: make(chan duePackage)}
	var err error
	a.packages, err = durable.Open(r, durable.Class[scheduleChange, struct{}]{
		Name: "poll",
		New: func(context.Context, *durable.State) (durable.Handler[scheduleChange, struct{}], error) {
			return scheduledPackage{a.due}, nil
		},
	})
	return a, err
}

// set stores that the package pkg is due for a poll at a time, in place of the time that was stored, earlier or later.
func (a *pollSchedule) set(ctx context.Context, pkg string, at time.Time) error {
	_, err := a.packages.Object(pkg).Send(ctx, scheduleChange{at: at})
	return err
}

// movePollEarlier stores that the package pkg is due for a poll at a time, unless an earlier time is stored already.
func (a *pollSchedule) movePollEarlier(ctx context.Context, pkg string, at time.Time) error {
	_, err := a.packages.Object(pkg).Send(ctx, scheduleChange{at: at, sooner: true})
	return err
}

// next waits until a package is due for a poll, and returns it. The caller sends the time at which it is due next to its channel,
// zero for never. The error is that of ctx.
func (a *pollSchedule) next(ctx context.Context) (duePackage, error) {
	select {
	case v := <-a.due:
		return v, nil
	case <-ctx.Done():
		return duePackage{}, ctx.Err()
	}
}

// A scheduledPackage is the durable object of a package in the schedule.
type scheduledPackage struct{ due chan<- duePackage }

// Handle implements [durable.Handler]. It sets the package's alarm to the time in a, with a.sooner only to an earlier one.
func (scheduledPackage) Handle(ctx context.Context, s *durable.State, a scheduleChange) (struct{}, error) {
	current, on, err := s.GetAlarm(ctx)
	if err != nil || on && (current.Equal(a.at) || a.sooner && !a.at.Before(current)) {
		return struct{}{}, err
	}
	return struct{}{}, s.SetAlarm(ctx, a.at)
}

// Alarm implements [durable.Handler]. It passes the package to a goroutine in pollSchedule.next, waits until the package has been
// polled, and sets the alarm to the next poll, unless that is never or the alarm was set to an earlier time meanwhile. If the
// process ends before, the next process polls the package.
func (d scheduledPackage) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	var at time.Time
	err := s.Call(ctx, func(ctx context.Context) error {
		next := make(chan time.Time, 1)
		select {
		case d.due <- duePackage{s.Name(), next}:
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

// setsAtOnce is how many packages are scheduled together, so that their writes share a sync.
const setsAtOnce = 256

// runPolls schedules all packages of the catalogue, and polls each when it is due. It puts releases that are due into q. It
// always returns an error: that of ctx, or the one that stops the bot.
func (sc *Scheduler) runPolls(ctx context.Context, q *queue) error {
	if err := sc.scheduleAll(ctx, q); err != nil {
		return err
	}
	polls, ctx := errgroup.WithContext(ctx)
	polls.Go(func() error { return sc.followClock(ctx, q) })
	polls.Go(func() error {
		for {
			v, err := sc.schedule.next(ctx)
			if err != nil {
				return err
			}
			p, ok := sc.options.Publisher.Catalogue().Get(v.pkg)
			if !ok {
				v.next <- time.Time{}
				continue
			}
			if sc.announced.has(v.pkg) { // its poll reschedules it
				v.next <- sc.options.Now().Add(sources.MinWait)
				continue
			}
			polls.Go(func() error {
				next, err := sc.pollScheduled(ctx, p, q)
				v.next <- next
				return err
			})
		}
	})
	return polls.Wait()
}

// pollScheduled polls a package that is due, puts releases that are due into q, and returns when the package is due next. An
// error stops the bot, or is that of ctx; next is a short time ahead then. While the upstream's circuit breaker is open, it does
// not poll, and returns a time about an interval ahead; the package is rescheduled as soon as the upstream may respond.
func (sc *Scheduler) pollScheduled(ctx context.Context, p *packages.Package, q *queue) (next time.Time, err error) {
	soon := sc.options.Now().Add(sources.MinWait)
	switch err := sc.poll(ctx, p, q, func() { sc.Reschedule(ctx, p.Name, sc.options.Now()) }); {
	case err == errUpstreamDown:
		return sc.options.Now().Add(sources.Jittered(sc.options.Interval)), nil // or sooner
	case err != nil:
		return soon, err
	}
	return sc.nextPoll(p, q, sc.options.Now().Add(sources.MinWait)), nil
}

// scheduleAll stores when each package of the catalogue is due for its next poll, in place of the stored times. A release that q
// has already makes no package due earlier.
func (sc *Scheduler) scheduleAll(ctx context.Context, q *queue) error {
	sets, ctx := errgroup.WithContext(ctx)
	sets.SetLimit(setsAtOnce)
	for _, p := range sc.options.Publisher.Catalogue().Packages() {
		sets.Go(func() error { return sc.schedule.set(ctx, p.Name, sc.nextPoll(p, q, time.Time{})) })
	}
	if err := sets.Wait(); err != nil {
		return fmt.Errorf("bot: couldn't store when packages are due: %w", err)
	}
	return nil
}

// followClock calls scheduleAll whenever the clock was set back: after a clock that was a year ahead, a package that was due in
// an hour would be due in a year. It always returns an error: that of ctx or of scheduleAll.
func (sc *Scheduler) followClock(ctx context.Context, q *queue) error {
	return retry.FollowClock(ctx, sc.options.ClockCheck, sc.options.Now, func(by time.Duration) error {
		sc.logger.Warn("the clock was set back; packages are scheduled again", "by", by)
		return sc.scheduleAll(ctx, q)
	})
}

// nextPoll returns when the package p is due for its next poll, but not before earliest: when its upstream is due, or when a
// release is due for another attempt, if that is earlier, the release is not in q, and the last poll of upstream did not fail. If
// the states of the releases cannot be read, it logs that and goes by the upstream alone, at least a short time ahead.
func (sc *Scheduler) nextPoll(p *packages.Package, q *queue, earliest time.Time) time.Time {
	upstream := sc.options.Records.Known(p.Name)
	at := upstream.Due(sc.options.Interval)
	states, err := sc.options.Records.States(p.Name)
	if err != nil {
		// One package's damaged rows do not stop the others.
		sc.logger.Error("states not read", "package", p.Name, "err", err)
		return sources.Later(at, sc.options.Now().Add(sources.MinWait))
	}
	if upstream.Attempts == 0 && sc.options.Sources.ForPackage(p) != nil { // else upstream itself is what has to be waited for
		for _, s := range states {
			if !s.Kind.Final() && s.Next.Before(at) && !q.has(ingest.ReleaseID(p.Name, s.Version)) {
				at = s.Next
			}
		}
	}
	return sources.Later(at, earliest)
}

// Reschedule makes the package pkg due for a poll at a time, if that is earlier than scheduled. It logs a failure; then the
// package is polled at the scheduled time. It ignores that ctx ends.
func (sc *Scheduler) Reschedule(ctx context.Context, pkg string, at time.Time) {
	if err := sc.schedule.movePollEarlier(context.WithoutCancel(ctx), pkg, at); err != nil {
		sc.logger.Warn("not rescheduled", "package", pkg, "err", err)
	}
}
