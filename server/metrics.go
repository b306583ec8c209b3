package server

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A label is the value of the coding label. There are as many as codings, and one
// for answers that are no asset.
type label int

const (
	labelNone = label(codings)
	labels    = codings + 1
)

// codingLabel returns the value of the metrics' label "coding" for a representation.
func codingLabel(r *representation) label { return label(r.coding) }

// String returns the label's text: the token of the coding, or "none" for a response that is no asset.
func (l label) String() string {
	if l == labelNone {
		return "none"
	}
	return coding.Coding(l).String()
}

// statuses are all that an asset request can be answered with.
var statuses = []int{200, 204, 206, 303, 304, 400, 404, 405, 406, 410, 412, 414, 416, 502, 503}

// A tally counts answers of one status and coding. It is a plain sum, because a
// prometheus.Counter can be more than that and takes longer.
type tally struct {
	answers atomic.Uint64
	sent    atomic.Uint64 // bytes of their bodies
}

// metrics are the metrics of assets.
type metrics struct {
	inFlight atomic.Int64
	saved    atomic.Int64        // bytes, by deltas
	byStatus [600]*[labels]tally // nil where no response has it

	errors                    *prometheus.CounterVec
	busy, corrupt, unreadable prometheus.Counter

	misses, evictions *prometheus.CounterVec
	loads             *prometheus.HistogramVec
	rows, bodies      *cacheMetrics
}

// newMetrics returns the metrics of assets, not registered yet.
func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "larder", Subsystem: "assets", Name: name, Help: help}, labels)
	}
	m := &metrics{
		errors: counter("errors_total", "503 responses: store (unreadable), corrupt (a checksum failed), busy (too many bytes being sent).", "kind"),
		misses: counter("cache_misses_total", "Misses.", "cache"),
		evictions: counter("cache_evictions_total",
			"Evicted entries.", "cache"),
		loads: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "larder", Subsystem: "assets", Name: "cache_load_seconds",
			Help:    "Time to load missing entries.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 4, 9), // 25 µs to 1.6 s
		}, []string{"cache"}),
	}
	for _, status := range statuses {
		m.byStatus[status] = new([labels]tally)
	}
	m.busy, m.corrupt, m.unreadable = m.errors.WithLabelValues("busy"), m.errors.WithLabelValues("corrupt"), m.errors.WithLabelValues("store")
	m.rows, m.bodies = m.newCacheMetrics("rows"), m.newCacheMetrics("bodies")
	return m
}

// countResponse counts a response and the bytes of its body by status and coding. It panics if the status is not one of statuses.
func (m *metrics) countResponse(o outcome) {
	t := &m.byStatus[o.status][o.coding]
	t.answers.Add(1)
	if o.sent > 0 {
		t.sent.Add(uint64(o.sent))
	}
}

// countSaved adds to the bytes saved by deltas if r is one: how much smaller it is than the smallest encoding that is no delta.
func (m *metrics) countSaved(r *representation) {
	if r.coding == coding.DCZ {
		m.saved.Add(r.representations[0].length - r.length)
	}
}

// countSent adds to the sent bytes of 200 responses with the label l, for a body that was sent after its response was counted. Negative values are
// ignored.
func (m *metrics) countSent(l label, sent int64) {
	if sent > 0 {
		m.byStatus[http.StatusOK][l].sent.Add(uint64(sent))
	}
}

// sentBytes returns how many bytes of bodies were sent with the label l, over all statuses.
func (m *metrics) sentBytes(l label) float64 {
	var sum uint64
	for _, status := range statuses {
		sum += m.byStatus[status][l].sent.Load()
	}
	return float64(sum)
}

// register registers the metrics with to, including gauges that read the caches of a. It returns the first error; what it has registered before
// that stays registered.
func (m *metrics) register(to prometheus.Registerer, a *Assets) error {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "assets", Name: name, Help: help, ConstLabels: labels}, value)
	}
	counter := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "larder", Subsystem: "assets", Name: name, Help: help, ConstLabels: labels}, value)
	}
	const (
		weight = "Bytes of memory used by a cache."
		hits   = "Hits: rows (where a file is), bodies (its bytes)."
	)
	collectors := []prometheus.Collector{
		m.errors, m.misses, m.evictions, m.loads,
		gauge("in_flight_requests", "Requests for assets in flight.", nil, func() float64 { return float64(m.inFlight.Load()) }),
		counter("cache_hits_total", hits, prometheus.Labels{"cache": "rows"}, func() float64 { return float64(m.rows.hits.Load()) }),
		counter("cache_hits_total", hits, prometheus.Labels{"cache": "bodies"}, func() float64 { return float64(m.bodies.hits.Load()) }),
		gauge("cache_bytes", weight, prometheus.Labels{"cache": "rows"}, func() float64 { return float64(assetCache(a.rows).WeightedSize()) }),
		gauge("cache_bytes", weight, prometheus.Labels{"cache": "bodies"}, func() float64 { return float64(bodyCache(a.bodies).WeightedSize()) }),
		counter("dictionary_saved_bytes_total", "Bytes by which sent deltas were smaller than the smallest other encoding.", nil, func() float64 { return float64(m.saved.Load()) }),
		gauge("sending_bytes", "Bytes of bodies being sent or read outside of the cache.", nil, func() float64 { return float64(a.bodies.sendingBytes()) }),
	}
	for l := range label(labels) {
		collectors = append(collectors, counter("sent_bytes_total", "Bytes of bodies sent.",
			prometheus.Labels{"coding": l.String()}, func() float64 { return m.sentBytes(l) }))
		for _, status := range statuses {
			collectors = append(collectors, counter("requests_total", "Requests for assets.",
				prometheus.Labels{"status": strconv.Itoa(status), "coding": l.String()}, func() float64 { return float64(m.byStatus[status][l].answers.Load()) }))
		}
	}
	for _, c := range collectors {
		if err := to.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// cacheMetrics implements stats.Recorder.
type cacheMetrics struct {
	hits              atomic.Uint64
	misses, evictions prometheus.Counter
	loads             prometheus.Observer
}

// newCacheMetrics returns the metrics of one cache, with name as their label "cache".
func (m *metrics) newCacheMetrics(name string) *cacheMetrics {
	return &cacheMetrics{
		misses:    m.misses.WithLabelValues(name),
		evictions: m.evictions.WithLabelValues(name),
		loads:     m.loads.WithLabelValues(name),
	}
}

// RecordHits and the other methods implement stats.Recorder of the cache library, which calls them.
func (c *cacheMetrics) RecordHits(n int)                  { c.hits.Add(uint64(n)) }
func (c *cacheMetrics) RecordEviction(uint32)             { c.evictions.Inc() }
func (c *cacheMetrics) RecordLoadSuccess(d time.Duration) { c.loads.Observe(d.Seconds()) }
func (c *cacheMetrics) RecordLoadFailure(time.Duration)   {}

// RecordMisses does nothing. The cache calls it at each lookup, and a request looks twice before it loads: the load counts as one
// miss.
func (c *cacheMetrics) RecordMisses(int) {}
