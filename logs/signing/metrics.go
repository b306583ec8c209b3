package signing

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	registerer prometheus.Registerer
	all        []prometheus.Collector
	signatures prometheus.Counter
	failures   prometheus.Counter
	witnesses  *prometheus.CounterVec
	disputes   prometheus.Gauge
}

// newMetrics returns the metrics of a signer, registered unless registerer is nil.
func newMetrics(s *Signer, registerer prometheus.Registerer) *metrics {
	m := &metrics{registerer: registerer}
	m.signatures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_log_signatures_total",
		Help: "Signed checkpoints.",
	})
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_log_signing_failures_total",
		Help: "Checkpoints that could not be written, and were not published.",
	})
	m.witnesses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_log_witness_requests_total",
		Help: "Requests to witnesses: cosigned, failed, claimed (another log, without proof), disputed (with proof).",
	}, []string{"witness", "outcome"})
	m.disputes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "larder_log_disputes",
		Help: "Witnesses that proved a signed checkpoint outside of this log.",
	})
	m.disputes.Set(float64(len(s.disputes)))
	m.all = []prometheus.Collector{
		m.signatures, m.failures, m.witnesses, m.disputes,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_log_entries",
			Help: "Entries in the log.",
		}, func() float64 { return float64(s.options.Log.Checkpoint().Size) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_log_signed_entries",
			Help: "Entries in the published checkpoint.",
		}, func() float64 {
			signed, _ := s.Checkpoint()
			return float64(signed.Size)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_log_refused",
			Help: "1 while signing is refused because the store contradicts what was signed.",
		}, func() float64 {
			if s.refusal() != nil {
				return 1
			}
			return 0
		}),
	}
	if registerer != nil {
		registerer.MustRegister(m.all...)
	}
	return m
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

// countRequest counts a request to a witness, given by its name, by its outcome: cosigned, failed, claimed or disputed.
func (m *metrics) countRequest(witness, outcome string) {
	m.witnesses.WithLabelValues(witness, outcome).Inc()
}

// setDisputes sets the number of disputes. It does nothing before there are metrics.
func (m *metrics) setDisputes(n int) {
	if m != nil {
		m.disputes.Set(float64(n))
	}
}

// countSignature counts a signed checkpoint. It does nothing before there are metrics.
func (m *metrics) countSignature() {
	if m != nil {
		m.signatures.Inc()
	}
}

// countFailure counts a checkpoint that could not be written. It does nothing before there are metrics.
func (m *metrics) countFailure() {
	if m != nil {
		m.failures.Inc()
	}
}
