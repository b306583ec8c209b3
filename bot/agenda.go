package bot

import (
	"cmp"
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// An agenda holds when each package's upstream is to be asked.
type agenda struct {
	mu   sync.Mutex
	due  map[string]time.Time
	heap dueHeap // may hold times that due no longer does
	wake chan struct{}
}

// set makes a package due at a time, in place of any other.
func (a *agenda) set(pkg string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(pkg, at)
}

func (a *agenda) put(pkg string, at time.Time) {
	a.init()
	a.due[pkg] = at
	heap.Push(&a.heap, due{pkg, at})
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// sooner moves a package that is on the agenda to an earlier time.
func (a *agenda) sooner(pkg string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if current, ok := a.due[pkg]; ok && at.Before(current) {
		a.put(pkg, at)
	}
}

func (a *agenda) init() {
	if a.due == nil {
		a.due = make(map[string]time.Time)
		a.wake = make(chan struct{}, 1)
	}
}

// next waits until a package is due and takes it off the agenda.
func (a *agenda) next(ctx context.Context, now func() time.Time) (string, error) {
	for {
		a.mu.Lock()
		a.init()
		for len(a.heap) > 0 && a.stale(a.heap[0]) {
			heap.Pop(&a.heap)
		}
		wait := time.Hour
		if len(a.heap) > 0 {
			first := a.heap[0]
			if wait = first.at.Sub(now()); wait <= 0 {
				heap.Pop(&a.heap)
				delete(a.due, first.pkg)
				a.mu.Unlock()
				return first.pkg, nil
			}
		}
		a.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-a.wake:
		case <-ctx.Done():
			timer.Stop()
			return "", ctx.Err()
		}
		timer.Stop()
	}
}

// stale reports whether d was replaced by another time, or is done.
func (a *agenda) stale(d due) bool {
	at, ok := a.due[d.pkg]
	return !ok || !at.Equal(d.at)
}

type due struct {
	pkg string
	at  time.Time
}

type dueHeap []due

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	return cmp.Or(h[i].at.Compare(h[j].at), cmp.Compare(h[i].pkg, h[j].pkg)) < 0
}
func (h dueHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)   { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	d := (*h)[last]
	*h = (*h)[:last]
	return d
}

// schedule asks each package's upstream when it is due, until ctx ends.
func (b *Bot) schedule(ctx context.Context, q *queue) error {
	for _, p := range b.options.Catalogue.Packages() {
		b.reschedule(p, q, time.Time{})
	}
	polls, ctx := errgroup.WithContext(ctx)
	polls.Go(func() error {
		for {
			name, err := b.agenda.next(ctx, b.options.Now)
			if err != nil {
				return err
			}
			p, ok := b.options.Catalogue.Get(name)
			if !ok {
				continue
			}
			polls.Go(func() error {
				if err := b.poll(ctx, p, q); err != nil {
					return err
				}
				b.reschedule(p, q, b.options.Now().Add(minWait))
				return nil
			})
		}
	})
	return polls.Wait()
}

// reschedule puts a package on the agenda: at the time of its upstream, or before
// where a release waits for another attempt that nobody has in hand, but not
// before earliest.
func (b *Bot) reschedule(p *packages.Package, q *queue, earliest time.Time) {
	upstream := b.knownUpstream(p.Name)
	at := upstream.Next
	states, err := views.States(b.store, p.Name)
	if err != nil {
		// One package's damaged rows do not stop the others.
		b.logger.Error("states not read", "package", p.Name, "err", err)
		b.agenda.set(p.Name, later(at, b.options.Now().Add(minWait)))
		return
	}
	if upstream.Attempts == 0 && fromNpm(p) { // else upstream itself is what has to be waited for
		for _, s := range states {
			if !s.Kind.Final() && s.Next.Before(at) && !q.has(releaseID(p.Name, s.Version)) {
				at = s.Next
			}
		}
	}
	b.agenda.set(p.Name, later(at, earliest))
}

// minWait is the least time between two polls of a package in one process.
const minWait = time.Minute

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// The waits between attempts: doubling from the first to the longest, and up to
// a quarter more so that what failed together is not tried again together.
const (
	firstWait   = time.Minute
	longestWait = 6 * time.Hour
)

// backoff returns how long to wait after the given number of attempts failed.
func backoff(attempts int) time.Duration {
	wait := longestWait
	if attempts < 10 {
		wait = min(longestWait, firstWait<<max(0, attempts-1))
	}
	return wait + rand.N(wait/4)
}

// jittered returns d and up to a tenth more.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/10+1) }
