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

// News are the packages that events have named. They are looked at ahead of the agenda, in the order in which they were
// named, each once however often it was named meanwhile.
type news struct {
	mu      sync.Mutex
	all     map[string]*named
	waiting []string
	changed chan struct{} // closed, and replaced, when more wait
}

// A named package is in one of these stages.
type named struct {
	stage stage
	again bool // it was named since the look began
}

type stage int

const (
	noted   stage = iota // the agenda is about to have it
	waits                // for a look
	looked               // at, right now
	resting              // until it may be looked at again
)

// restAfterLook is between two looks at a package that is named again and again.
const restAfterLook = 2 * time.Second

func newNews() *news {
	return &news{all: make(map[string]*named), changed: make(chan struct{})}
}

// note has packages be named; nothing looks at them before release. It returns those that were not named yet.
func (n *news) note(names []string) (fresh []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		switch p := n.all[name]; {
		case p == nil:
			n.all[name] = &named{}
			fresh = append(fresh, name)
		case p.stage == looked || p.stage == resting:
			p.again = true
		}
	}
	return fresh
}

// release lets goroutines look at packages that note has returned.
func (n *news) release(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		n.wait(name)
	}
}

// wait is called with mu held.
func (n *news) wait(name string) {
	*n.all[name] = named{stage: waits}
	n.waiting = append(n.waiting, name)
	close(n.changed)
	n.changed = make(chan struct{})
}

// has reports whether a package is about to be looked at, or is being looked at.
func (n *news) has(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.all[name]
	return p != nil && (p.stage != resting || p.again)
}

// next waits for a package to look at.
func (n *news) next(ctx context.Context) (string, error) {
	for {
		n.mu.Lock()
		if len(n.waiting) > 0 {
			name := n.waiting[0]
			n.waiting = n.waiting[1:]
			n.all[name].stage = looked
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

// done ends a look.
func (n *news) done(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all[name].stage = resting
	time.AfterFunc(restAfterLook, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.all[name].again {
			n.wait(name)
			return
		}
		delete(n.all, name)
	})
}

// Announce has packages of the catalogue looked at now, ahead of every other look and download, because an event says that
// they have a release. The agenda has them when it returns, so a restart forgets none; an error is about that.
func (sc *Scheduler) Announce(ctx context.Context, names ...string) error {
	fresh := sc.news.note(names)
	defer sc.news.release(fresh)
	sets, ctx := errgroup.WithContext(ctx)
	sets.SetLimit(setsAtOnce)
	now := sc.options.Now()
	for _, name := range names {
		sets.Go(func() error { return sc.agenda.sooner(ctx, name, now) })
	}
	if err := sets.Wait(); err != nil {
		return fmt.Errorf("bot: couldn't write down that packages are to be looked at: %w", err)
	}
	return nil
}

// pollNamed polls the packages that events name, until ctx ends.
func (sc *Scheduler) pollNamed(ctx context.Context, q *queue) error {
	g, ctx := errgroup.WithContext(ctx)
	for range namedAtOnce {
		g.Go(func() error {
			for {
				name, err := sc.news.next(ctx)
				if err != nil {
					return err
				}
				err = sc.lookAtNamed(ctx, name, q)
				sc.news.done(name)
				if err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func (sc *Scheduler) lookAtNamed(ctx context.Context, name string, q *queue) error {
	p, ok := sc.options.Publisher.Catalogue().Get(name)
	if !ok || sc.options.Sources.Of(p) == nil {
		return nil
	}
	resume := func() {
		if err := sc.Announce(ctx, name); err != nil && ctx.Err() == nil {
			sc.logger.Warn("not moved on the agenda", "package", name, "err", err)
		}
	}
	if !sc.options.Breakers.Admit(sources.UpstreamOf(p), name+" named", resume) {
		return nil
	}
	if err := sc.looks.Hold(ctx, name); err != nil { // a look that began before the event may have missed the release
		return err
	}
	defer sc.looks.Drop(name)
	tasks, err := sc.ask(ctx, p, inquiry{has: q.has, actor: ingest.ActorBot, named: true})
	if err != nil {
		return err
	}
	q.push(tasks...)
	q.hasten(name) // the first look at the package may have found what the event is about, before the event came
	sc.Reschedule(ctx, name, sc.nextVisit(p, q, sc.options.Now().Add(sources.FirstLag)))
	return nil
}

// Followers find the packages of a catalogue by what is upstream.
type followers struct {
	of           *packages.Catalogue
	npm          map[string][]string // names of packages by name upstream
	repositories map[string][]string // and by the address of the repository, of which packages from npm have one too
}

// Followers returns the names of the packages whose releases come from npm under that name.
func (sc *Scheduler) Followers(npmName string) []string { return sc.followers().npm[npmName] }

// DevelopedAt returns the names of the packages whose releases are tagged in the repository with that address, or that are
// developed there.
func (sc *Scheduler) DevelopedAt(repository string) []string {
	return sc.followers().repositories[git.Place(repository)]
}

func (sc *Scheduler) followers() *followers {
	c := sc.options.Publisher.Catalogue()
	if f := sc.following.Load(); f != nil && f.of == c {
		return f
	}
	f := &followers{of: c, npm: make(map[string][]string), repositories: make(map[string][]string)}
	for _, p := range c.Packages() {
		if p.Autoupdate == nil {
			continue
		}
		places := []string{git.Place(p.Repository.URL)}
		if p.Autoupdate.Source == sources.KindNpm {
			f.npm[p.Autoupdate.Target] = append(f.npm[p.Autoupdate.Target], p.Name)
		} else if at := git.Place(p.Autoupdate.Target); at != places[0] {
			places = append(places, at)
		}
		for _, at := range places {
			if at = strings.TrimSpace(at); at != "" {
				f.repositories[at] = append(f.repositories[at], p.Name)
			}
		}
	}
	sc.following.Store(f)
	return f
}

// Named returns the packages of a name: the one that is called so here, or those that come from npm under it.
func (sc *Scheduler) Named(name string) []string {
	if p, ok := sc.options.Publisher.Catalogue().Get(name); ok {
		return []string{p.Name}
	}
	return sc.Followers(name)
}
