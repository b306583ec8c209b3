package bot

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// Probe has the next request find out now whether the npm registry is back, rather than in a minute. It wakes what waits for
// the clock, which looks at an injected one only once a minute.
func (b *Bot) Probe() {
	b.agenda.sooner(context.Background(), "none of the catalogue", time.Unix(1, 0)) //nolint:errcheck // the bot has ended
	for _, upstream := range []string{"npm", "archives of npm"} {
		b.outages.mu.Lock()
		h := b.outages.of(upstream)
		h.next = b.options.Now()
		b.outages.mu.Unlock()
		b.outages.tryOne(h)
	}
}

// Down reports whether the npm registry, or the place of its archives, does not answer.
func (b *Bot) Down() bool { return b.outages.down("npm") || b.outages.down("archives of npm") }

// Looks returns what looks at a package as the schedule does, and tells when it is due next. What is to be fetched stays in a
// queue.
func (b *Bot) Looks() func(ctx context.Context, name string) (next time.Time, err error) {
	q := newQueue()
	return func(ctx context.Context, name string) (time.Time, error) {
		p, _ := b.catalogue().Get(name)
		if err := b.poll(ctx, p, q, func() {}); err != nil {
			return time.Time{}, err
		}
		next := b.nextVisit(p, q, b.options.Now().Add(minWait))
		return next, b.agenda.set(ctx, name, next)
	}
}

// LooksAtOnce looks at a package for the schedule and for an event at the same time, and Look for the schedule alone. They
// return the release that a download of fresh ones would take then; "" where there is none.
func (b *Bot) LooksAtOnce(ctx context.Context, name string) (version string, err error) {
	return b.look(ctx, name, true)
}

// Look is like LooksAtOnce.
func (b *Bot) Look(ctx context.Context, name string) (version string, err error) {
	return b.look(ctx, name, false)
}

func (b *Bot) look(ctx context.Context, name string, event bool) (version string, err error) {
	p, _ := b.catalogue().Get(name)
	q := newQueue()
	var looks errgroup.Group
	looks.Go(func() error { return b.poll(ctx, p, q, func() {}) })
	if event {
		looks.Go(func() error { return b.lookAtNamed(ctx, name, q) })
	}
	if err := looks.Wait(); err != nil {
		return "", err
	}
	q.close()
	t, _, err := q.pop(ctx, true)
	return t.version.name, err
}

// CountOne asks for the demand of the package that is due; it returns its name.
func (b *Bot) CountOne(ctx context.Context, demand func(context.Context, string) (int64, error)) (string, error) {
	b.options.Demand = demand
	return b.countDownloads(ctx)
}

// StarOne asks for the stars of the package that is due; it returns its name.
func (b *Bot) StarOne(ctx context.Context) (string, error) { return b.countStars(ctx) }

// CheckClockEvery has the schedule look that often whether the clock was set back. Call it before Run.
func (b *Bot) CheckClockEvery(d time.Duration) { b.agenda.clock = d }
