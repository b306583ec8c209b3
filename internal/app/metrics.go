package app

import "github.com/prometheus/client_golang/prometheus"

// showDegraded shows whether the process is in read-only mode.
func showDegraded(r prometheus.Registerer, is bool) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "larder_degraded",
		Help: "1 while the store is damaged or misses signed entries: nothing is written, and missing files are 503.",
	})
	if is {
		gauge.Set(1)
	}
	r.MustRegister(gauge)
}
