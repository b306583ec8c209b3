package sources

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Breakers are the circuit breakers of upstreams. While one is down, a single request a minute finds out whether it is back,
// and everything else that wants it is parked; then all of that goes on, however long it took. So no package's pauses
// grow by what is not its fault.
//
// An upstream is a registry or a repository's host, and apart from that the place of its archives, which may be down
// alone. A package that fails while others are served is its own fault, such as one that the registry keeps private,
// and says nothing about the upstream until it is served itself.
type Breakers struct {
	now        func() time.Time
	clockCheck time.Duration // longest time between two reads of now while a caller waits
	logger     *slog.Logger

	mu       sync.Mutex
	all      map[string]*breaker
	answered time.Time // when a request to any upstream last succeeded
}

// A breaker is how an upstream does.
type breaker struct {
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

// NewBreakers returns circuit breakers that are all closed. They go by the clock now, which they read at least every clockCheck while a caller waits.
func NewBreakers(now func() time.Time, clockCheck time.Duration, logger *slog.Logger) *Breakers {
	return &Breakers{now: now, clockCheck: clockCheck, logger: logger, all: make(map[string]*breaker)}
}

// get returns the breaker of an upstream, and adds it if it is missing. The caller holds mu.
func (o *Breakers) get(upstream string) *breaker {
	h := o.all[upstream]
	if h == nil {
		h = &breaker{failed: make(map[string]bool), own: make(map[string]bool), parked: make(map[string]func())}
		o.all[upstream] = h
	}
	return h
}

// IsDown reports whether an upstream is down: several requests in a row failed, and none has succeeded since.
func (o *Breakers) IsDown(upstream string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.get(upstream).since.IsZero()
}

var (
	upstreamsDown = prometheus.NewDesc("larder_upstreams_unreachable",
		"Registries and git hosts that do not respond; they are requested once a minute until they do.", nil, nil)
	lastPoll = prometheus.NewDesc("larder_upstream_response_timestamp_seconds",
		"Last response of a registry or git host to a poll or download, Unix time; 0 for none since the start.", nil, nil)
)

// Describe implements prometheus.Collector.
func (o *Breakers) Describe(ch chan<- *prometheus.Desc) {
	ch <- upstreamsDown
	ch <- lastPoll
}

// Collect implements prometheus.Collector.
func (o *Breakers) Collect(ch chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	down, at := 0.0, 0.0
	for _, h := range o.all {
		if !h.since.IsZero() {
			down++
		}
	}
	if !o.answered.IsZero() {
		at = float64(o.answered.Unix())
	}
	ch <- prometheus.MustNewConstMetric(upstreamsDown, prometheus.GaugeValue, down)
	ch <- prometheus.MustNewConstMetric(lastPoll, prometheus.GaugeValue, at)
}

// Admit reports whether the caller may send a request to an upstream: it is not down, or the time of the next probe has come, and the caller's
// request is that probe. Otherwise it stores resume, which is called later, when the caller may try again; of several calls with the same id, only
// the last. An id begins with the package's name and a space.
func (o *Breakers) Admit(upstream, id string, resume func()) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.get(upstream)
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
		h.timer = time.AfterFunc(min(h.next.Sub(now), o.clockCheck), func() { o.resumeOne(h) })
	}
	return false
}

// resumeOne runs when the timer of an upstream that is down fires. Once the next probe is due, it calls the resume function of one waiting caller,
// preferably for a package that has not failed yet, and without holding mu. It sets the timer again, or stops if no caller waits. The caller must not
// hold mu.
func (o *Breakers) resumeOne(h *breaker) {
	o.mu.Lock()
	if h.timer == nil || len(h.parked) == 0 {
		h.timer = nil
		o.mu.Unlock()
		return
	}
	if wait := h.next.Sub(o.now()); wait > 0 {
		h.timer.Reset(min(wait, o.clockCheck))
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
	h.timer.Reset(min(probeEvery, o.clockCheck))
	o.mu.Unlock()
	next()
}

// packageOf returns the package's name, with which an id of [Breakers.Admit] begins.
func packageOf(id string) string {
	name, _, _ := strings.Cut(id, " ")
	return name
}

// Record counts how a request to an upstream for a package ended; err is nil if it succeeded. An error that says nothing about the upstream, such as
// a cancellation, is ignored. Any error but an outage counts as a response: the upstream is up, and all waiting callers resume, each in a goroutine.
// After several outages in a row the upstream is down, but those of packages that fail while others are served do not count. Both changes are logged.
func (o *Breakers) Record(upstream, pkg string, err error) {
	if saysNothingOfUpstream(err) {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	h := o.get(upstream)
	now := o.now()
	if !IsOutage(err) {
		o.answered = now
		if !h.since.IsZero() {
			o.logger.Info("upstream responds again; waiting releases continue", "upstream", upstream, "down", now.Sub(h.since).Round(time.Second), "waited", len(h.parked))
			for _, resume := range h.parked {
				go resume()
			}
			h.dropWaiting()
		}
		h.recordResponse(pkg)
		return
	}
	at, asked := fetch.RetryAt(err)
	if !h.own[pkg] && !(h.failed[pkg] && isArchiveOutage(err)) { // else it may be that package's archives alone
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
		o.logger.Warn("upstream does not respond; it is probed once a minute until it does, and `larder doctor` says what helps", "upstream", upstream, "err", err)
	}
}

// recordResponse records that the upstream responded for a package, so that it is up. The packages that failed since the previous response are
// recorded as failing by themselves.
func (h *breaker) recordResponse(pkg string) {
	for other := range h.failed {
		h.own[other] = true
	}
	delete(h.own, pkg)
	h.failed = make(map[string]bool)
	h.failures, h.since = 0, time.Time{}
}

// Close drops all waiting callers without resuming them, and stops the timers.
func (o *Breakers) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.all {
		h.dropWaiting()
	}
}

// dropWaiting drops the waiting callers without resuming them, and stops the timer.
func (h *breaker) dropWaiting() {
	if h.parked = make(map[string]func()); h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
}
