package sources

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Breakers knows which upstreams do not answer. While one is down, a single request a minute finds out whether it is back,
// and everything else that wants it is parked; then all of that goes on, however long it took. So no package's pauses
// grow by what is not its fault.
//
// An upstream is a registry or a repository's host, and apart from that the place of its archives, which may be down
// alone. A package that fails while others are served is its own fault, such as one that the registry keeps private,
// and says nothing about the upstream until it is served itself.
type Breakers struct {
	now    func() time.Time
	logger *slog.Logger

	mu  sync.Mutex
	all map[string]*health
}

// A health is how an upstream does.
type health struct {
	failures int               // in a row
	failed   map[string]bool   // packages that failed since the upstream served one
	own      map[string]bool   // packages that fail although others are served
	since    time.Time         // when it went down; zero while it is up
	next     time.Time         // of the next probe
	parked   map[string]func() // each has something go on
	timer    *time.Timer       // for the next probe; nil while nothing is parked
}

const (
	FailuresDown = 3 // failures in a row after which an upstream is down
	probeEvery   = time.Minute
)

func NewBreakers(now func() time.Time, logger *slog.Logger) *Breakers {
	return &Breakers{now: now, logger: logger, all: make(map[string]*health)}
}

// of returns an upstream's health. It is called with mu held.
func (o *Breakers) of(upstream string) *health {
	h := o.all[upstream]
	if h == nil {
		h = &health{failed: make(map[string]bool), own: make(map[string]bool), parked: make(map[string]func())}
		o.all[upstream] = h
	}
	return h
}

// Down reports whether an upstream does not answer.
func (o *Breakers) Down(upstream string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.of(upstream).since.IsZero()
}

// Admit reports whether the caller may ask an upstream: where that is up, or where the caller is to find out. Otherwise
// resume is called when it may ask again; of those with the same id, which begins with the package's name, one is.
func (o *Breakers) Admit(upstream, id string, resume func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.of(upstream)
	now := o.now()
	if h.since.IsZero() {
		return true
	}
	if !now.Before(h.next) {
		h.next = now.Add(probeEvery)
		return true
	}
	h.parked[id] = resume
	if h.timer == nil {
		h.timer = time.AfterFunc(h.next.Sub(now), func() { o.tryOne(h) })
	}
	return false
}

// tryOne has one of what is parked find out whether an upstream is back: one of a package that has not failed yet, if
// there is any.
func (o *Breakers) tryOne(h *health) {
	o.mu.Lock()
	if h.timer == nil || len(h.parked) == 0 {
		h.timer = nil
		o.mu.Unlock()
		return
	}
	if wait := h.next.Sub(o.now()); wait > 0 {
		h.timer.Reset(wait)
		o.mu.Unlock()
		return
	}
	var chosen string
	for id := range h.parked { // any
		chosen = id
		if pkg := packageOf(id); !h.failed[pkg] && !h.own[pkg] {
			break
		}
	}
	next := h.parked[chosen]
	delete(h.parked, chosen)
	h.timer.Reset(probeEvery)
	o.mu.Unlock()
	next()
}

// Probe lets the next request find out whether an upstream is back, instead of in a minute.
func (o *Breakers) Probe(upstream string) {
	o.mu.Lock()
	h := o.of(upstream)
	h.next = o.now()
	o.mu.Unlock()
	o.tryOne(h)
}

// packageOf returns the name that an id begins with; see releaseID.
func packageOf(id string) string {
	name, _, _ := strings.Cut(id, " ")
	return name
}

// Record counts how a request for a package ended.
func (o *Breakers) Record(upstream, pkg string, err error) {
	if isNeither(err) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.of(upstream)
	now := o.now()
	if !IsOutage(err) {
		if !h.since.IsZero() {
			o.logger.Info("upstream answers again; what waited for it goes on", "upstream", upstream, "down", now.Sub(h.since).Round(time.Second), "waited", len(h.parked))
			for _, resume := range h.parked {
				go resume()
			}
			h.forget()
		}
		h.served(pkg)
		return
	}
	at, asked := fetch.RetryAt(err)
	if !h.own[pkg] && !(h.failed[pkg] && isOfArchive(err)) { // else it may be that package's archives alone
		h.failures++
	}
	h.failed[pkg] = true
	if h.failures < FailuresDown {
		return
	}
	h.next = now.Add(probeEvery)
	if asked {
		h.next = Later(h.next, at)
	}
	if h.since.IsZero() {
		h.since = now
		o.logger.Warn("upstream does not answer; it is asked once a minute until it does", "upstream", upstream, "err", err)
	}
}

// served takes note that the upstream served a package, while those that failed just before were not.
func (h *health) served(pkg string) {
	for other := range h.failed {
		h.own[other] = true
	}
	delete(h.own, pkg)
	h.failed = make(map[string]bool)
	h.failures, h.since = 0, time.Time{}
}

// Close forgets what is parked.
func (o *Breakers) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.all {
		h.forget()
	}
}

func (h *health) forget() {
	if h.parked = make(map[string]func()); h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
}
