package fallback

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/text"
)

// What is remembered of releases that were not to be had.
const (
	mostMemory  = 4096
	briefPause  = 10 * time.Second
	longPause   = 5 * time.Minute
	clientRate  = 1.0 // releases a second that a client may have looked for
	clientBurst = 40
	mostClients = 4096
	originRate  = 10.0 // releases a second that an origin is asked for
	originBurst = 40
)

// A memory of releases that an origin did not have, or did not send as it promised.
type memory struct {
	now func() time.Time

	mu  sync.Mutex
	all map[release]remembered
}

type remembered struct {
	err   error
	until time.Time
	pause time.Duration
}

func newMemory(now func() time.Time) *memory { return &memory{now: now, all: map[release]remembered{}} }

// recall returns why a release is not to be had, as far as that is remembered.
func (m *memory) recall(id release) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.all[id]; m.now().Before(r.until) {
		return r.err
	}
	return nil
}

// remember keeps that for a while, which doubles each time.
func (m *memory) remember(id release, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	pause := min(max(2*m.all[id].pause, briefPause), longPause)
	if _, there := m.all[id]; !there && len(m.all) >= mostMemory {
		evict(m.all, func(r remembered) bool { return !now.Before(r.until) })
	}
	m.all[id] = remembered{err, now.Add(pause), pause}
}

// evict deletes one of a few that chance chooses, one that is done with if there is such a one.
func evict[K comparable, V any](all map[K]V, done func(V) bool) {
	const few = 8
	n := 0
	for key, value := range all { // in an order of chance
		if n++; n == few || n == len(all) || done(value) {
			delete(all, key)
			return
		}
	}
}

// A bucket has tokens, and gets more of them at a rate.
type bucket struct {
	rate, most, tokens float64
	filled             time.Time
}

func newBucket(rate, most float64, now time.Time) bucket { return bucket{rate, most, most, now} }

func (b *bucket) fill(now time.Time) {
	if since := now.Sub(b.filled).Seconds(); since > 0 {
		b.tokens, b.filled = min(b.most, b.tokens+since*b.rate), now
	}
}

func (b *bucket) take(now time.Time) bool {
	if b.fill(now); b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// budgets are those of clients.
type budgets struct {
	now func() time.Time

	mu  sync.Mutex
	all map[netip.Prefix]*bucket
}

func newBudgets(now func() time.Time) *budgets {
	return &budgets{now: now, all: map[netip.Prefix]*bucket{}}
}

// take reports whether the client at a remote address may have one more release looked for.
func (b *budgets) take(remote string) bool {
	who, _ := client.Of(remote)
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	own := b.all[who]
	if own == nil {
		if len(b.all) >= mostClients { // the origin's budget still counts
			evict(b.all, func(x *bucket) bool { x.fill(now); return x.tokens >= x.most })
		}
		made := newBucket(clientRate, clientBurst, now)
		own = &made
		b.all[who] = own
	}
	return own.take(now)
}

// asked is an origin within its budget, which is left alone for a while after it failed.
type asked struct {
	origin
	now func() time.Time

	mu     sync.Mutex
	budget bucket
	until  time.Time // it is left alone
	pause  time.Duration
	// problem is why.
	problem string
}

// ask looks for a release, if the origin may be asked now.
func (o *asked) ask(ctx context.Context, id release, path string) (*offer, error) {
	o.mu.Lock()
	now := o.now()
	until := o.until
	rests, may := now.Before(until), true
	if !rests {
		may = o.budget.take(now)
	}
	o.mu.Unlock()
	switch {
	case rests:
		return nil, fmt.Errorf("it failed a moment ago and is left alone until %s", until.UTC().Format(time.TimeOnly))
	case !may:
		return nil, errBusy
	}
	got, err := o.find(ctx, id.pkg, id.version, path)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil || errors.Is(err, fetch.ErrNotFound) || errors.Is(err, errMismatch) || ctx.Err() != nil {
		o.pause = 0
		return got, err
	}
	o.problem = text.Short(err.Error(), 300)
	o.pause = min(max(2*o.pause, time.Second), time.Minute)
	o.until = o.now().Add(o.pause)
	if at, ok := fetch.RetryAt(err); ok {
		o.until = minTime(maxTime(o.until, at), o.now().Add(longPause))
	}
	return nil, err
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
