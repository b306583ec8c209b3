package fallback

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
)

// Part returns the part of a role that keeps mirrored releases up to date (see Run) and closes the fallback when it is stopped.
// Releases that clients request are fetched with or without it.
func (f *Fallback) Part() parts.Part {
	return parts.Part{Name: "fallback", Run: parts.RunUntilDone(f.Run), Stop: parts.StopBy(f.Close)}
}

// Collector returns the Prometheus metrics of the requests to other origins.
func (f *Fallback) Collector() prometheus.Collector { return fallbackMetrics{f} }

// fallbackMetrics are the metrics of requests to other origins.
type fallbackMetrics struct{ of *Fallback }

var (
	fallbackRequests = prometheus.NewDesc("larder_fallback_requests_total", "Requests for files that may be at another origin.", []string{"outcome"}, nil)
	fallbackReleases = prometheus.NewDesc("larder_fallback_releases_total", "Releases requested from other origins.", []string{"outcome"}, nil)
	fallbackUnderWay = prometheus.NewDesc("larder_fallback_under_way", "Releases being fetched from other origins.", nil, nil)
	fallbackWaiting  = prometheus.NewDesc("larder_fallback_waiting", "Requests waiting for another origin.", nil, nil)
	fallbackBytes    = prometheus.NewDesc("larder_fallback_bytes", "Bytes of releases from other origins.", nil, nil)
	fallbackQuota    = prometheus.NewDesc("larder_fallback_quota_bytes", "Bytes that may be taken from other origins.", nil, nil)
	fallbackAge      = prometheus.NewDesc("larder_fallback_origin_cosigned_age_seconds", "Time since the checkpoint of an origin's log was vouched to be the newest, as it was read last; NaN where nothing says so.", []string{"origin"}, nil)
	fallbackStale    = prometheus.NewDesc("larder_fallback_origin_stale", "1 while the checkpoint of an origin's log may not be the newest, because no cosignature is younger than 24 hours.", []string{"origin"}, nil)
	fallbackBudget   = prometheus.NewDesc("larder_fallback_origin_budget", "Releases that may be requested from an origin now.", []string{"origin"}, nil)
	fallbackResting  = prometheus.NewDesc("larder_fallback_origin_resting", "1 while an origin is paused after a failure.", []string{"origin"}, nil)
)

// Describe implements prometheus.Collector. It sends the descriptions of the metrics that Collect sends now.
func (m fallbackMetrics) Describe(all chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, all) }

// Collect implements prometheus.Collector. It sends the values of the fallback's State: requests and releases by outcome, the
// bytes of mirrored releases, and the state of each origin.
func (m fallbackMetrics) Collect(all chan<- prometheus.Metric) {
	s := m.of.State()
	for _, o := range Outcomes {
		all <- prometheus.MustNewConstMetric(fallbackRequests, prometheus.CounterValue, float64(s.Requests[o]), string(o))
		all <- prometheus.MustNewConstMetric(fallbackReleases, prometheus.CounterValue, float64(s.Releases[o]), string(o))
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		all <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(fallbackUnderWay, float64(s.UnderWay))
	gauge(fallbackWaiting, float64(s.Waiting))
	gauge(fallbackBytes, float64(s.Bytes))
	gauge(fallbackQuota, float64(s.Quota))
	for _, o := range s.Origins {
		gauge(fallbackBudget, float64(o.Budget), o.Origin)
		gauge(fallbackResting, flag(!o.Rests.IsZero()), o.Origin)
		gauge(fallbackStale, flag(o.Stale != ""), o.Origin)
		age := math.NaN()
		if !o.Cosigned.IsZero() {
			age = m.of.o.Now().Sub(o.Cosigned).Seconds()
		}
		gauge(fallbackAge, age, o.Origin)
	}
}

// flag returns the value of a gauge that is 1 while something is so, and else 0.
func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
