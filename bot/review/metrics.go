package review

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	reviews  *prometheus.CounterVec
	failures prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer, waiting func() int) metrics {
	m := metrics{
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "larder_reviews_total",
			Help: "Commits of pull requests that were looked at, by the conclusion.",
		}, []string{"conclusion"}),
		prometheus.NewCounter(prometheus.CounterOpts{
			Name: "larder_review_failures_total",
			Help: "Attempts to look at a pull request that failed, most of them because GitHub could not be asked.",
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.reviews, m.failures, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_reviews_waiting",
			Help: "Pull requests that are being looked at or are going to be.",
		}, func() float64 { return float64(waiting()) }))
	}
	return m
}
