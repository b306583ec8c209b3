package waitingroom

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// An outcome is what came of a request.
type outcome int

const (
	passed outcome = iota
	letIn
	waiting
	refused
	bypassed
	partPassed
	partHeld
	undecided
	outcomes
)

var outcomeNames = [outcomes]string{"passed", "admitted", "waiting", "refused", "bypassed", "subresource_passed", "subresource_held", "undecided"}

// metrics are what Prometheus is told.
type metrics struct {
	requests map[*room]*[outcomes]prometheus.Counter // never changed
	waited   *prometheus.HistogramVec
}

func newMetrics(r *Rooms, registerer prometheus.Registerer) (*metrics, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_room_requests_total",
		Help: "Requests under a waiting room, by what came of them.",
	}, []string{"room", "outcome"})
	m := &metrics{requests: map[*room]*[outcomes]prometheus.Counter{}}
	m.waited = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "larder_room_waited_seconds",
		Help:    "How long users waited who were let in.",
		Buckets: []float64{0.1, 1, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
	}, []string{"room"})
	for _, room := range r.rooms {
		counters := new([outcomes]prometheus.Counter)
		for i, name := range outcomeNames {
			counters[i] = requests.WithLabelValues(room.config.Name, name)
		}
		m.requests[room] = counters
		m.waited.WithLabelValues(room.config.Name)
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{requests, m.waited, &gauges{r}} {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("waitingroom: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) count(r *room, o outcome) { m.requests[r][o].Inc() }

func (m *metrics) admitted(r *room, after time.Duration) {
	m.count(r, letIn)
	m.waited.WithLabelValues(r.config.Name).Observe(max(0, after.Seconds()))
}

// gauges tell how the rooms are when somebody asks.
type gauges struct{ rooms *Rooms }

var (
	activeDesc = prometheus.NewDesc("larder_room_active_users", "Users who are in.", []string{"room"}, nil)
	queuedDesc = prometheus.NewDesc("larder_room_queued_users", "Users who wait.", []string{"room"}, nil)
	limitDesc  = prometheus.NewDesc("larder_room_limit_users", "Users who may be in at once.", []string{"room"}, nil)
)

// Describe implements prometheus.Collector.
func (g *gauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{activeDesc, queuedDesc, limitDesc} {
		c <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(c chan<- prometheus.Metric) {
	for _, s := range g.rooms.Statuses() {
		for d, n := range map[*prometheus.Desc]int{activeDesc: s.Active, queuedDesc: s.Queued, limitDesc: s.TotalActiveUsers} {
			c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), s.Name)
		}
	}
}
