package push

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	failures prometheus.Counter
}

func newMetrics(p *Pusher) metrics {
	m := metrics{prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_log_push_failures_total",
		Help: "Attempts to push the log to GitHub that failed.",
	})}
	if p.Registerer != nil {
		p.Registerer.MustRegister(m.failures,
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "larder_log_pushed_entries",
				Help: "Entries of the log that the repository on GitHub has; -1 until it was asked.",
			}, func() float64 { return float64(p.State().Entries) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "larder_log_push_failing",
				Help: "Whether the last attempt to push the log failed.",
			}, func() float64 {
				if p.State().Problem != "" {
					return 1
				}
				return 0
			}))
	}
	return m
}
