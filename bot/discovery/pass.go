package discovery

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/packages"
)

// PollsAtOnce bounds the scheduled polls and the comparisons of audits at once, and namedAtOnce the polls of packages that events
// name.
const (
	PollsAtOnce = 8
	namedAtOnce = 4
)

// RequestsAtOnce bounds the requests of a scheduler: polls and the change feed.
const RequestsAtOnce = PollsAtOnce + namedAtOnce + 1

// PollAll takes over the catalogue in use, polls the upstreams of all its packages once, due or not, and publishes what is due.
// It polls packages again whose releases were refused, until new packages have the releases that they start with. It waits for
// the end. The error is for what stops the bot, or that of ctx.
func (sc *Scheduler) PollAll(ctx context.Context) error {
	if err := sc.applyCatalogue(ctx); err != nil {
		return err
	}
	sc.options.Publisher.ClearRefills()
	for all := sc.options.Publisher.Catalogue().Packages(); len(all) > 0; {
		if err := sc.pollOnce(ctx, all); err != nil {
			return err
		}
		all = slices.DeleteFunc(slices.Clone(sc.options.Publisher.Catalogue().Packages()), func(p *packages.Package) bool {
			return !sc.options.Publisher.TakeRefill(p.Name)
		})
	}
	return nil
}

// pollOnce polls the upstream of each given package once, and publishes the releases that are due. It returns when both are done.
// The error is for what stops the bot, or that of ctx.
func (sc *Scheduler) pollOnce(ctx context.Context, all []*packages.Package) error {
	queue := newQueue()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return sc.publishTasks(groupCtx, queue, false) })
	g.Go(func() error {
		defer queue.close()
		polls, ctx := errgroup.WithContext(groupCtx)
		for _, p := range all {
			polls.Go(func() error { return sc.poll(ctx, p, queue, nil) })
		}
		return polls.Wait()
	})
	return g.Wait()
}

// Run polls each package's upstream at its time and publishes what is new. It also follows the change feed, audits published
// releases, and requests download counts and stars. It returns when ctx ends or an error stops the bot, with that error or the
// error of ctx, and closes the circuit breakers then.
func (sc *Scheduler) Run(ctx context.Context) error {
	if err := sc.applyCatalogue(ctx); err != nil {
		return err
	}
	queue := newQueue()
	defer sc.options.Breakers.Close()
	g, groupCtx := errgroup.WithContext(ctx)
	g.Go(func() error { return sc.publishTasks(groupCtx, queue, true) })
	g.Go(func() error { return sc.pollAnnounced(groupCtx, queue) })
	g.Go(func() error { return sc.runAudits(groupCtx) })
	if sc.feed != nil {
		g.Go(func() error { return sc.followFeed(groupCtx) })
	}
	if sc.options.CountDownloads != nil {
		g.Go(func() error { return sc.repeatCounting(groupCtx, countEvery, sc.CountDownloads) })
	}
	if sc.options.Git != nil {
		every := countEveryAnonymous
		if sc.options.Git.Authorized() {
			every = countEvery
		}
		g.Go(func() error { return sc.repeatCounting(groupCtx, every, sc.CountStars) })
	}
	g.Go(func() error {
		defer queue.close()
		return sc.runPolls(groupCtx, queue)
	})
	return g.Wait()
}

// Polls returns a function that polls the package name, which the catalogue must have, as Run does, stores when it is due next,
// and returns that time. It fetches no release: all calls put those that are due into one queue, which nothing reads.
func (sc *Scheduler) Polls() func(ctx context.Context, name string) (next time.Time, err error) {
	q := newQueue()
	return func(ctx context.Context, name string) (next time.Time, err error) {
		p, _ := sc.options.Publisher.Catalogue().Get(name)
		if next, err = sc.pollScheduled(ctx, p, q); err != nil {
			return time.Time{}, err
		}
		return next, sc.schedule.set(ctx, name, next)
	}
}
