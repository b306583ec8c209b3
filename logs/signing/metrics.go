package signing

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	registerer prometheus.Registerer // nil before register
	all        []prometheus.Collector
	signatures prometheus.Counter
	failures   prometheus.Counter
	witnesses  *prometheus.CounterVec // by witness and outcome: cosigned, failed, claimed or disputed
	disputes   prometheus.Gauge
}

// newMetrics returns the metrics of a signer, which are not registered yet.
func newMetrics(s *Signer) *metrics {
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m := &metrics{
		signatures: prometheus.NewCounter(prometheus.CounterOpts{Name: "larder_log_signatures_total", Help: "Signed checkpoints."}),
		failures:   prometheus.NewCounter(prometheus.CounterOpts{Name: "larder_log_signing_failures_total", Help: "Checkpoints that could not be written, and were not published."}),
		witnesses:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: "larder_log_witness_requests_total", Help: "Requests to witnesses: cosigned, failed, claimed (another log, without proof), disputed (with proof)."}, []string{"witness", "outcome"}),
		disputes:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "larder_log_disputes", Help: "Witnesses that proved a signed checkpoint outside of this log."}),
	}
	m.all = []prometheus.Collector{
		m.signatures, m.failures, m.witnesses, m.disputes,
		gauge("larder_log_entries", "Entries in the log.", func() float64 { return float64(s.options.Log.Checkpoint().Size) }),
		gauge("larder_log_signed_entries", "Entries in the published checkpoint.", func() float64 {
			signed, _ := s.Checkpoint()
			return float64(signed.Size)
		}),
		gauge("larder_log_refused", "1 while signing is refused because the store contradicts what was signed.", func() float64 {
			if s.refusal() != nil {
				return 1
			}
			return 0
		}),
	}
	return m
}

// register registers the metrics, unless registerer is nil. It panics if they are registered there already.
func (m *metrics) register(registerer prometheus.Registerer) {
	if m.registerer = registerer; registerer != nil {
		registerer.MustRegister(m.all...)
	}
}

// unregister removes the metrics from the registry, because they read the log.
func (m *metrics) unregister() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}
