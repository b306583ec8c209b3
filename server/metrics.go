package server

import (
	"strconv"
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

func labelOf(r *representation) label { return label(r.coding) }

func (l label) String() string {
	if l == labelNone {
		return "none"
	}
	return coding.Coding(l).String()
}

// statuses are all that an asset request can be answered with. Their counters are
// made once, so that counting takes no lock.
var statuses = []int{200, 204, 206, 304, 400, 404, 405, 406, 410, 412, 414, 416, 503}

type metrics struct {
	requests *prometheus.CounterVec
	sent     *prometheus.CounterVec
	inFlight prometheus.Gauge

	byStatus [600]*[labels]prometheus.Counter // nil where no answer has it
	byCoding [labels]prometheus.Counter

	errors                    *prometheus.CounterVec
	busy, corrupt, unreadable prometheus.Counter

	hits, misses, evictions *prometheus.CounterVec
	loads                   *prometheus.HistogramVec
	rows, bodies            *cacheMetrics
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "larder", Subsystem: "assets", Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests: counter("requests_total", "Requests for assets, by status and content coding of the answer.", "status", "coding"),
		sent:     counter("sent_bytes_total", "Bytes of bodies sent, by content coding.", "coding"),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "assets", Name: "in_flight_requests", Help: "Requests for assets being answered."}),
		errors:   counter("errors_total", "Requests answered with 503, by kind: store (unreadable), corrupt (a checksum failed), busy (too many bytes being sent).", "kind"),
		hits:     counter("cache_hits_total", "Look-ups answered from memory, by cache: rows (where a file is), bodies (its bytes).", "cache"),
		misses:   counter("cache_misses_total", "Look-ups that memory could not answer, by cache.", "cache"),
		evictions: counter("cache_evictions_total",
			"Entries that made room for others, by cache.", "cache"),
		loads: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "larder", Subsystem: "assets", Name: "cache_load_seconds",
			Help:    "Time to load what was not in memory, by cache.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 4, 9), // 25 µs to 1.6 s
		}, []string{"cache"}),
	}
	for _, status := range statuses {
		m.byStatus[status] = new([labels]prometheus.Counter)
		for l := range label(labels) {
			m.byStatus[status][l] = m.requests.WithLabelValues(strconv.Itoa(status), l.String())
		}
	}
	for l := range label(labels) {
		m.byCoding[l] = m.sent.WithLabelValues(l.String())
	}
	m.busy, m.corrupt, m.unreadable = m.errors.WithLabelValues("busy"), m.errors.WithLabelValues("corrupt"), m.errors.WithLabelValues("store")
	m.rows, m.bodies = m.cache("rows"), m.cache("bodies")
	return m
}

func (m *metrics) answered(o outcome) {
	m.byStatus[o.status][o.coding].Inc()
	m.byCoding[o.coding].Add(float64(o.sent))
}

func (m *metrics) register(to prometheus.Registerer, a *Assets) error {
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "assets", Name: name, Help: help, ConstLabels: labels}, value)
	}
	const weight = "Memory that a cache takes, in bytes."
	for _, c := range []prometheus.Collector{
		m.requests, m.sent, m.inFlight, m.errors, m.hits, m.misses, m.evictions, m.loads,
		gauge("cache_bytes", weight, prometheus.Labels{"cache": "rows"}, func() float64 { return float64(a.rows.cache.WeightedSize()) }),
		gauge("cache_bytes", weight, prometheus.Labels{"cache": "bodies"}, func() float64 { return float64(a.bodies.cache.WeightedSize()) }),
		gauge("sending_bytes", "Memory of bodies that are being sent or read and are not in the cache, in bytes.", nil, func() float64 { return float64(a.bodies.sending()) }),
	} {
		if err := to.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// cacheMetrics implements stats.Recorder.
type cacheMetrics struct {
	hits, misses, evictions prometheus.Counter
	loads                   prometheus.Observer
}

func (m *metrics) cache(name string) *cacheMetrics {
	return &cacheMetrics{
		hits:      m.hits.WithLabelValues(name),
		misses:    m.misses.WithLabelValues(name),
		evictions: m.evictions.WithLabelValues(name),
		loads:     m.loads.WithLabelValues(name),
	}
}

func (c *cacheMetrics) RecordHits(n int)                  { c.hits.Add(float64(n)) }
func (c *cacheMetrics) RecordMisses(n int)                { c.misses.Add(float64(n)) }
func (c *cacheMetrics) RecordEviction(uint32)             { c.evictions.Inc() }
func (c *cacheMetrics) RecordLoadSuccess(d time.Duration) { c.loads.Observe(d.Seconds()) }
func (c *cacheMetrics) RecordLoadFailure(time.Duration)   {}
