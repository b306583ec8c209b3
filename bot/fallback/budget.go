package fallback

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/text"
)

// The limits of requests to origins, and of what is recorded about releases that no origin had.
const (
	mostMemory  = 4096
	briefPause  = 10 * time.Second
	longPause   = 5 * time.Minute
	clientRate  = 1.0 // releases a second that a client may cause requests for
	clientBurst = 40
	mostClients = 4096
	originRate  = 10.0 // releases a second that are requested from an origin
	originBurst = 40
)

// A failedReleases is a record of releases that an origin did not have, or did not send as it promised.
type failedReleases map[release]failedRelease

// A failedRelease is why a release could not be fetched the last time, and how long it is not tried.
type failedRelease struct {
	err error
	backoff
}

// A backoff is how long something is not tried after it failed: for twice as long after each failure.
type backoff struct {
	failures int
	until    time.Time
}

// extend records a failure at the time now: b.until is then the pause after now. The pause is first after the first failure, and
// twice as long after each further one, longest at most.
func (b *backoff) extend(now time.Time, first, longest time.Duration) {
	b.failures++
	b.until = now.Add(retry.Doubled(b.failures, first, longest))
}

// recentError returns why a release could not be fetched, as long as the pause after that failure lasts; nil if it may be tried.
func (m failedReleases) recentError(id release, now time.Time) error {
	if r := m[id]; now.Before(r.until) {
		return r.err
	}
	return nil
}

// record stores why a release could not be fetched, for recentError, which returns that until a pause is over. The pause is
// longer after each failure. If the record is full, it forgets another release.
func (m failedReleases) record(id release, err error, now time.Time) {
	r, there := m[id]
	if !there && len(m) >= mostMemory {
		evict(m, func(r failedRelease) bool { return !now.Before(r.until) })
	}
	r.err = err
	r.extend(now, briefPause, longPause)
	m[id] = r
}

// evict deletes one entry to make room. It looks at up to eight in random order, and deletes the first for which done returns
// true, or else the last of them.
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

// A tokenBucket has tokens, and gets more of them at a rate.
type tokenBucket struct {
	rate, most, tokens float64
	filled             time.Time
}

// newTokenBucket returns a full bucket of most tokens, which gets rate tokens a second from now on.
func newTokenBucket(rate, most float64, now time.Time) tokenBucket {
	return tokenBucket{rate, most, most, now}
}

// refill adds the tokens for the time from the last refill to now, up to b.most. It does nothing if the clock was set back.
func (b *tokenBucket) refill(now time.Time) {
	if since := now.Sub(b.filled).Seconds(); since > 0 {
		b.tokens, b.filled = min(b.most, b.tokens+since*b.rate), now
	}
}

// take adds the tokens for the time until now, takes one, and returns true. It takes none and returns false if there is less than
// one.
func (b *tokenBucket) take(now time.Time) bool {
	if b.refill(now); b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}

// clientBudgets are the budgets of releases that clients may cause requests for. A client that was not seen yet has a full one.
type clientBudgets map[netip.Prefix]*tokenBucket

// take takes one release from the budget of the client at a remote address (host and port), and returns false if it is used up.
// Clients that are not distinguished by address, such as those in one network, share a budget.
func (b clientBudgets) take(remote string, now time.Time) bool {
	who, _ := requests.ClientOf(remote)
	own := b[who]
	if own == nil {
		if len(b) >= mostClients { // the origin's budget still counts
			evict(b, func(x *tokenBucket) bool { x.refill(now); return x.tokens >= x.most })
		}
		made := newTokenBucket(clientRate, clientBurst, now)
		own = &made
		b[who] = own
	}
	return own.take(now)
}

// limitedOrigin is an origin within its budget, which is left alone for a while after it failed.
type limitedOrigin struct {
	origin
	now func() time.Time

	mu      sync.Mutex
	budget  tokenBucket
	backoff backoff
	problem string // of the last failure
}

// findWithinLimits has the origin look for a release, because a client wants its file at path. It returns errBusy if the origin's
// budget is used up, and another error while the origin is paused after a failure; then it sends no request. A failure starts a
// pause, a longer one after each further failure. An answer, also one that the release is missing or wrong, and the end of ctx
// are no such failures, and the next pause is a short one again.
func (o *limitedOrigin) findWithinLimits(ctx context.Context, id release, path string) (*offer, error) {
	o.mu.Lock()
	now, until := o.now(), o.backoff.until
	rests := now.Before(until)
	may := !rests && o.budget.take(now)
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
