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
		Help: "Checkpoints of the log that were signed.",
	})
	m.failures = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "larder_log_signing_failures_total",
		Help: "Signed checkpoints that could not be written, and so were not shown.",
	})
	m.witnesses = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "larder_log_witness_requests_total",
		Help: "Checkpoints that witnesses were asked to sign, by outcome: cosigned, failed, claimed where it says without proof that it knows this log otherwise, or disputed where it proves it.",
	}, []string{"witness", "outcome"})
	m.disputes = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "larder_log_disputes",
		Help: "Witnesses that have proved that a checkpoint is signed with the log's key which the log does not contain.",
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
			Help: "Entries in the signed checkpoint that is shown.",
		}, func() float64 {
			signed, _ := s.Checkpoint()
			return float64(signed.Size)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "larder_log_refused",
			Help: "1 while signing the log is refused, because the store contradicts what was signed before.",
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
