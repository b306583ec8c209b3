package app

import (
	"context"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/acme"
)

// openCertificates has the public address use certificates of an ACME server, at first those that are in the data folder.
func (s *serving) openCertificates() part {
	return part{
		name: "certificates",
		start: func(context.Context) (err error) {
			c := s.settings
			o := acme.Options{
				Domains: c.ACMEDomains, Email: c.ACMEEmail, Directory: c.ACMEDirectory, Folder: acme.Folder(c.Data),
				Logger: s.logger.With("part", "certificates"),
			}
			o.TLS = s.lasting.tcp()
			if plain := s.lasting.sockets.only(forPlain); plain != nil {
				o.HTTP, _ = plain.at.Addr().(*net.TCPAddr)
			}
			if s.certificates, err = acme.New(o); err != nil {
				return err
			}
			s.metrics.MustRegister(certificateMetrics{s.certificates})
			s.tell = append(s.tell, func(status *Status) { status.Certificates = s.certificates.States() })
			return nil
		},
		stop: func() error { return s.certificates.Close() },
	}
}

// keepCertificates answers on the plain address, and gets and renews certificates, once the site answers.
func (s *serving) keepCertificates() (parts list) {
	plain := s.lasting.sockets.only(forPlain)
	parts.add(plain != nil, s.answering("plain server", func(context.Context) (*server.Server, []net.Listener, error) {
		l, err := plain.listener()
		if err != nil {
			return nil, nil, err
		}
		handler := toHTTPS(s.lasting.tcp())
		if s.certificates != nil {
			handler = s.certificates.Challenges(handler)
		}
		o := server.HTTPOptions{
			MaxConnections: s.settings.MaxConnections, Proxies: s.settings.Proxies, ProxyProtocol: s.settings.ProxyProtocol, Logger: s.logger.With("part", "plain server"),
		}
		return server.NewHTTPServer(handler, o), server.Limit(s.settings.MaxConnections, l), nil
	}))
	parts.add(len(s.settings.ACMEDomains) > 0, part{
		name: "renewal of certificates",
		run:  func(ctx context.Context) error { return until(s.certificates.Run)(ctx) },
	})
	return parts
}

// toHTTPS leads requests to the same address by HTTPS. One that names a port came past what forwards the usual ones, so it
// is led to the port of the public address.
func toHTTPS(public *net.TCPAddr) http.Handler {
	port := ""
	if public != nil && public.Port != 443 {
		port = strconv.Itoa(public.Port)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin, ok := requests.Origin(r)
		switch {
		case !ok:
			(&answers.Failure{Status: http.StatusBadRequest, Message: "the Host field is missing or malformed"}).SendJSON(w, r)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			(&answers.Failure{Status: http.StatusForbidden, Message: "this needs https"}).SendJSON(w, r)
			return
		}
		_, host, _ := strings.Cut(origin, "://")
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
			if strings.Contains(name, ":") {
				host = "[" + name + "]"
			}
			if port != "" {
				host = net.JoinHostPort(name, port)
			}
		}
		answers.NoStore.Set(w.Header())
		w.Header().Set("Location", "https://"+host+r.URL.RequestURI())
		w.WriteHeader(http.StatusPermanentRedirect)
	})
}

// certificateMetrics shows how certificates of an ACME server stand.
type certificateMetrics struct{ of *acme.Manager }

var (
	certificateEnds = prometheus.NewDesc("larder_certificate_expiry_timestamp_seconds",
		"When the certificate of a domain ends, in Unix time; 0 where there is none yet.", []string{"domain"}, nil)
	certificateFailing = prometheus.NewDesc("larder_certificate_failing",
		"1 while the last attempt to get or renew the certificate of a domain has failed.", []string{"domain"}, nil)
)

func (certificateMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- certificateEnds
	ch <- certificateFailing
}

func (m certificateMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, s := range m.of.States() {
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
