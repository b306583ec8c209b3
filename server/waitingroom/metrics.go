package waitingroom

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// An outcome is the result of a request.
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
	challenged
	outcomes
)

var outcomeNames = [outcomes]string{"passed", "admitted", "waiting", "refused", "bypassed", "subresource_passed", "subresource_held", "undecided", "challenged"}

// roomMetrics are the metrics that requests write.
type roomMetrics struct {
	requests [outcomes]prometheus.Counter
	waited   prometheus.Observer
}

// vectors are the metrics of all rooms.
type vectors struct {
	requests *prometheus.CounterVec
	waited   *prometheus.HistogramVec
}

// newVectors returns the metrics that requests write, for all rooms. They are not registered yet.
func newVectors() vectors {
	return vectors{
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "larder_room_requests_total",
			Help: "Requests under a waiting room.",
		}, []string{"room", "outcome"}),
		prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "larder_room_waited_seconds",
			Help:    "Waiting time of admitted users.",
			Buckets: []float64{0.1, 1, 15, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200},
		}, []string{"room"}),
	}
}

// forRoom returns the metrics that requests to one room write.
func (v vectors) forRoom(room string) (m roomMetrics) {
	for i, name := range outcomeNames {
		m.requests[i] = v.requests.WithLabelValues(room, name)
	}
	m.waited = v.waited.WithLabelValues(room)
	return m
}

// register registers the metrics of the rooms. It does nothing if registerer is nil. After an error some may be registered.
func (r *Rooms) register(registerer prometheus.Registerer) error {
	if registerer == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{r.vectors.requests, r.vectors.waited, gauges{r}} {
		if err := registerer.Register(c); err != nil {
			return fmt.Errorf("waitingroom: metrics: %w", err)
		}
	}
	return nil
}

// countOutcome adds a request to the metric of its outcome.
func (r *room) countOutcome(o outcome) { r.metrics.requests[o].Inc() }

// countAdmitted counts a request by which a user was admitted, and the duration after which that was since the first request.
func (r *room) countAdmitted(after time.Duration) {
	r.countOutcome(letIn)
	r.metrics.waited.Observe(max(0, after.Seconds()))
}

// gauges are read when the metrics are collected.
type gauges struct{ rooms *Rooms }

var (
	activeDesc = prometheus.NewDesc("larder_room_active_users", "Users in.", []string{"room"}, nil)
	queuedDesc = prometheus.NewDesc("larder_room_queued_users", "Users waiting.", []string{"room"}, nil)
	cutOffDesc = prometheus.NewDesc("larder_room_cut_off", "1 while the leader does not respond, so that no new user enters here.", []string{"room"}, nil)
	downDesc   = prometheus.NewDesc("larder_room_origin_down", "1 while the site behind the room cannot be reached, so that no new user is admitted.", []string{"room"}, nil)
	limitDesc  = prometheus.NewDesc("larder_room_limit_users", "Users allowed at once.", []string{"room"}, nil)
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(c chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{activeDesc, queuedDesc, limitDesc, cutOffDesc, downDesc} {
		c <- d
	}
}

// Collect implements prometheus.Collector. It reports the current users and limits of all rooms.
func (g gauges) Collect(c chan<- prometheus.Metric) {
	for _, s := range g.rooms.Statuses() {
		flag := map[bool]int{true: 1}
		for d, n := range map[*prometheus.Desc]int{activeDesc: s.Active, queuedDesc: s.Queued, limitDesc: s.TotalActiveUsers, cutOffDesc: flag[s.CutOff], downDesc: flag[s.OriginDown]} {
			c <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), s.Name)
		}
	}
}
