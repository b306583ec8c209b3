package download

import "github.com/prometheus/client_golang/prometheus"

// An outcome is what a request came to, for the metrics.
type outcome int

const (
	outSent        outcome = iota // the whole archive
	outHead                       // 200 to HEAD
	outNotModified                // 304
	outPreflight                  // 204 to OPTIONS
	outNotFound                   // 404
	outWithdrawn                  // 410
	outRefused                    // 400, 405, 412, 414
	outBusy                       // 429, 503: it was not its turn
	outFailed                     // 503: the store failed
	outBroken                     // the store failed in the middle of the archive
	outLeft                       // the client left, or stalled
	outcomes
)

func (o outcome) String() string {
	return [outcomes]string{"sent", "head", "not_modified", "preflight", "not_found", "withdrawn", "refused", "busy", "failed", "broken", "left"}[o]
}

type metrics struct {
	requests, sentBytes, errors *prometheus.CounterVec
	making                      prometheus.Gauge

	byOutcome           [len(formats) + 1][outcomes]prometheus.Counter
	sent                [len(formats) + 1]prometheus.Counter
	corrupt, unreadable prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "larder", Subsystem: "downloads", Name: name, Help: help}, labels)
	}
	m := &metrics{
		requests:  counter("requests_total", `Requests for whole releases, by archive format ("none" where the request names none) and outcome.`, "format", "outcome"),
		sentBytes: counter("sent_bytes_total", "Bytes of archives sent, by archive format.", "format"),
		errors:    counter("errors_total", "Archives that could not be made, by kind: store (unreadable), corrupt (a checksum failed).", "kind"),
		making:    prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "larder", Subsystem: "downloads", Name: "in_progress", Help: "Archives being made."}),
	}
	for f := range m.byOutcome {
		name := format(f).String()
		for o := range outcomes {
			m.byOutcome[f][o] = m.requests.WithLabelValues(name, o.String())
		}
		m.sent[f] = m.sentBytes.WithLabelValues(name)
	}
	m.corrupt, m.unreadable = m.errors.WithLabelValues("corrupt"), m.errors.WithLabelValues("store")
	return m
}

func (m *metrics) answered(f format, o outcome) { m.byOutcome[f][o].Inc() }

func (m *metrics) register(to prometheus.Registerer) error {
	for _, c := range []prometheus.Collector{m.requests, m.sentBytes, m.errors, m.making} {
		if err := to.Register(c); err != nil {
			return err
		}
	}
	return nil
}
