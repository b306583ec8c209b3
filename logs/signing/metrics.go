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
			if s.refused() != nil {
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

// unregister takes the metrics away, because they read the log.
func (m *metrics) unregister() {
	if m.registerer == nil {
		return
	}
	for _, c := range m.all {
		m.registerer.Unregister(c)
	}
}

func (m *metrics) asked(witness, outcome string) {
	m.witnesses.WithLabelValues(witness, outcome).Inc()
}

// These are called before there are metrics, too: by Open.

func (m *metrics) disputed(n int) {
	if m != nil {
		m.disputes.Set(float64(n))
	}
}

func (m *metrics) signed() {
	if m != nil {
		m.signatures.Inc()
	}
}

func (m *metrics) failed() {
	if m != nil {
		m.failures.Inc()
	}
}
