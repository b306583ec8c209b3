package discovery

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/packages"
)

// An eventQueue has the packages that events have named. They are polled ahead of the schedule, in the order of the events, each
// once however often it was named meanwhile.
type eventQueue struct {
	mu      sync.Mutex
	all     map[string]*namedPackage
	waiting []string
	changed chan struct{} // closed, and replaced, when more wait
}

// A namedPackage is a package that an event has named.
type namedPackage struct {
	stage stage
	again bool // it was named since its poll started
}

// A stage says how far a package that an event has named is on its way to its poll.
type stage int

const (
	noted      stage = iota // the caller is about to store it in the schedule
	waits                   // for a poll
	polling                 // it is being polled
	backingOff              // until it may be polled again
)

// repollInterval is the time between two polls of a package that events name repeatedly.
const repollInterval = 2 * time.Second

// newEventQueue returns an empty queue of packages that events name.
func newEventQueue() *eventQueue {
	return &eventQueue{all: make(map[string]*namedPackage), changed: make(chan struct{})}
}

// add marks packages as named by an event. It returns those that were not marked before; the caller stores in the schedule that
// they are due, and then passes them to release. One that is being polled, or was polled within repollInterval, is polled once
// more afterwards. For one that waits already, nothing changes.
func (n *eventQueue) add(names []string) (fresh []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		switch p := n.all[name]; {
		case p == nil:
			n.all[name] = &namedPackage{}
			fresh = append(fresh, name)
		case p.stage == polling || p.stage == backingOff:
			p.again = true
		}
	}
	return fresh
}

// release queues packages that add has returned, so that next returns them. The caller calls it once for each.
func (n *eventQueue) release(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		n.enqueue(name)
	}
}

// enqueue appends a package that add has marked to those that wait for a poll, and wakes the goroutines in next. The caller holds
// mu.
func (n *eventQueue) enqueue(name string) {
	*n.all[name] = namedPackage{stage: waits}
	n.waiting = append(n.waiting, name)
	close(n.changed)
	n.changed = make(chan struct{})
}

// has reports whether a package is on its way to a poll because of an event: it waits for the poll, is being polled, or will be
// polled once more.
func (n *eventQueue) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.all[name]
	return p != nil && (p.stage != backingOff || p.again)
}

// next waits until a package is due for a poll because of an event, and returns its name. The caller calls finishPoll after the
// poll. The error is that of ctx.
func (n *eventQueue) next(ctx context.Context) (string, error) {
	for {
		n.mu.Lock()
		if len(n.waiting) > 0 {
			name := n.waiting[0]
			n.waiting = n.waiting[1:]
			n.all[name].stage = polling
			n.mu.Unlock()
			return name, nil
		}
		changed := n.changed
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// finishPoll ends the poll of a package that next has returned. If events name the package during the poll or within
// repollInterval afterwards, the package is queued again once, when that interval is over.
func (n *eventQueue) finishPoll(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[name].stage = backingOff
	time.AfterFunc(repollInterval, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.all[name].again {
			n.enqueue(name)
			return
		}
		delete(n.all, name)
	})
}

// Announce makes packages of the catalogue, given by name, due now, ahead of every other poll and download, because an event says
// that they have a release. It waits until that is stored, not for the polls. After an error they are polled all the same, but a
// restart would lose some of them.
func (sc *Scheduler) Announce(ctx context.Context, names ...string) error {
	fresh := sc.announced.add(names)
	defer sc.announced.release(fresh)
	sets, ctx := errgroup.WithContext(ctx)
	sets.SetLimit(setsAtOnce)
	now := sc.options.Now()
	for _, name := range names {
		sets.Go(func() error { return sc.schedule.movePollEarlier(ctx, name, now) })
	}
	if err := sets.Wait(); err != nil {
		return fmt.Errorf("bot: couldn't store that packages are due: %w", err)
	}
	return nil
}

// pollAnnounced polls the packages that events name, several at a time, and puts their releases into q. It always returns an
// error: that of ctx, or the one that stops the bot.
func (sc *Scheduler) pollAnnounced(ctx context.Context, q *queue) error {
	g, ctx := errgroup.WithContext(ctx)
	for range namedAtOnce {
		g.Go(func() error {
			for {
				name, err := sc.announced.next(ctx)
				if err != nil {
					return err
				}
				err = sc.pollAnnouncedPackage(ctx, name, q)
				sc.announced.finishPoll(name)
				if err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

// pollAnnouncedPackage polls one package that an event named, and puts releases that are due into q, the newest ahead of others.
// Then it moves the package's next scheduled poll to when its upstream or a release is due, if that is earlier, but at least
// FirstLag ahead. It does nothing for a package that the catalogue does not have or that has no upstream. While the upstream's
// circuit breaker is open it does not poll, and the package is announced again once the upstream may respond.
func (sc *Scheduler) pollAnnouncedPackage(ctx context.Context, name string, q *queue) error {
	p, ok := sc.options.Publisher.Catalogue().Get(name)
	if !ok || sc.options.Sources.ForPackage(p) == nil {
		return nil
	}
	resume := func() {
		if err := sc.Announce(ctx, name); err != nil && ctx.Err() == nil {
			sc.logger.Warn("not rescheduled", "package", name, "err", err)
		}
	}
	if !sc.options.Breakers.Admit(sources.UpstreamName(p), name+" named", resume) {
		return nil
	}
	if err := sc.polled.Acquire(ctx, name); err != nil { // a poll that started before the event may have missed the release
		return err
	}
	defer sc.polled.Release(name)
	tasks, err := sc.pollAndRecord(ctx, p, pollRequest{has: q.has, actor: ingest.ActorBot, named: true})
	if err != nil {
		return err
	}
	q.push(tasks...)
	q.markNewestFresh(name) // the first poll of the package may have found what the event is about, before the event came
	sc.Reschedule(ctx, name, sc.nextPoll(p, q, sc.options.Now().Add(sources.FirstLag)))
	return nil
}

// A packageIndex finds the packages of a catalogue by their upstream.
type packageIndex struct {
	of           *packages.Catalogue
	npm          map[string][]string // names of packages by name upstream
	repositories map[string][]string // and by the address of the repository, of which packages from npm have one too
}

// PackagesFromNpm returns the names of the catalogue's packages whose releases come from the npm package npmName, nil for none.
// The caller does not change the result, which is part of an index.
func (sc *Scheduler) PackagesFromNpm(npmName string) []string { return sc.packageIndex().npm[npmName] }

// PackagesFromRepository returns the names of the catalogue's packages that are updated and whose releases are tags of a git
// repository, given by its address, or whose package JSON names it as their repository. It returns nil for none. The caller does
// not change the result, which is part of an index.
func (sc *Scheduler) PackagesFromRepository(repository string) []string {
	return sc.packageIndex().repositories[git.CanonicalAddress(repository)]
}

// packageIndex returns the index of the catalogue in use, and creates it again if the catalogue has changed.
func (sc *Scheduler) packageIndex() *packageIndex {
	c := sc.options.Publisher.Catalogue()
	if f := sc.index.Load(); f != nil && f.of == c {
		return f
	}
	f := &packageIndex{of: c, npm: make(map[string][]string), repositories: make(map[string][]string)}
	for _, p := range c.Packages() {
		if p.Autoupdate == nil {
			continue
		}
		places := []string{git.CanonicalAddress(p.Repository.URL)}
		if p.Autoupdate.Source == sources.KindNpm {
			f.npm[p.Autoupdate.Target] = append(f.npm[p.Autoupdate.Target], p.Name)
		} else if at := git.CanonicalAddress(p.Autoupdate.Target); at != places[0] {
			places = append(places, at)
		}
		for _, at := range places {
			if at = strings.TrimSpace(at); at != "" {
				f.repositories[at] = append(f.repositories[at], p.Name)
			}
		}
	}
	sc.index.Store(f)
	return f
}

// PackagesNamed returns name itself if the catalogue has a package of that name, else the names of the packages whose releases
// come from the npm package of that name.
func (sc *Scheduler) PackagesNamed(name string) []string {
	if p, ok := sc.options.Publisher.Catalogue().Get(name); ok {
		return []string{p.Name}
	}
	return sc.PackagesFromNpm(name)
}
