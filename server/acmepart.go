package server

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/parts"
)

// Part returns the part of a role that closes the manager when the role stops. It does not run anything.
func (m *CertificateManager) Part() parts.Part {
	return parts.Part{Name: "certificates", Stop: m.Close}
}

// RenewalPart returns the part of a role that gets and renews certificates while the role runs. The public address must accept
// connections before, because the ACME server sends its challenges there.
func (m *CertificateManager) RenewalPart() parts.Part {
	return parts.Part{Name: "renewal of certificates", Run: parts.RunUntilDone(m.Run)}
}

// NewCertificateCollector returns a collector of the metrics of certificates. states returns the present states, of certificates from an ACME
// server or from files.
func NewCertificateCollector(states func() []CertificateState) prometheus.Collector {
	return certificateMetrics{states}
}

// certificateMetrics collects the metrics of certificates, whose states the function returns.
type certificateMetrics struct{ states func() []CertificateState }

var (
	certificateEnds = prometheus.NewDesc("larder_certificate_expiry_timestamp_seconds",
		"Expiry of a domain's certificate, Unix time; 0 if none.", []string{"domain"}, nil)
	certificateFailing = prometheus.NewDesc("larder_certificate_failing",
		"1 after a failed attempt to get or renew a certificate.", []string{"domain"}, nil)
)

// Describe implements prometheus.Collector.
func (certificateMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- certificateEnds
	ch <- certificateFailing
}

// Collect implements prometheus.Collector. It sends expiry and failure of each domain's certificate.
func (m certificateMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.states() {
		ends, failing := 0.0, 0.0
		if !s.Until.IsZero() {
			ends = float64(s.Until.UnixNano()) / float64(time.Second)
		}
		if s.Problem != "" {
			failing = 1
		}
		ch <- prometheus.MustNewConstMetric(certificateEnds, prometheus.GaugeValue, ends, s.Domain)
		ch <- prometheus.MustNewConstMetric(certificateFailing, prometheus.GaugeValue, failing, s.Domain)
	}
}
