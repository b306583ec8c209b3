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
	"github.com/larder-cdn/larder/internal/retry"
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
	err error
	backoff
}

// A backoff is how long something is not tried after it failed: for twice as long after each failure.
type backoff struct {
	failures int
	until    time.Time
}

// extend adds a failure.
func (b *backoff) extend(now time.Time, first, longest time.Duration) {
	b.failures++
	b.until = now.Add(retry.Doubled(b.failures, first, longest))
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

// remember keeps the error of a release until its backoff ends.
func (m *memory) remember(id release, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, there := m.all[id]
	if !there && len(m.all) >= mostMemory {
		evict(m.all, func(r remembered) bool { return !m.now().Before(r.until) })
	}
	r.err = err
	r.extend(m.now(), briefPause, longPause)
	m.all[id] = r
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

	mu      sync.Mutex
	budget  bucket
	backoff backoff
	problem string // of the last failure
}

// ask looks for a release, if the origin may be asked now.
func (o *asked) ask(ctx context.Context, id release, path string) (*offer, error) {
	o.mu.Lock()
	now := o.now()
	until := o.backoff.until
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
		o.backoff.failures = 0
		return got, err
	}
	o.problem = text.Short(err.Error(), 300)
	now = o.now()
	o.backoff.extend(now, time.Second, time.Minute)
	if at, ok := fetch.RetryAt(err); ok && at.After(o.backoff.until) {
		o.backoff.until = now.Add(min(at.Sub(now), longPause))
	}
	return nil, err
}
