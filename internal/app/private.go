package app

import (
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/server"
)

// A privateListener serves probes, metrics and profiles on the private address, as long as the process runs.
type privateListener struct {
	socket  *socket // nil for none
	logger  *slog.Logger
	ready   func() api.Readiness
	hosts   func() []string                     // returns the host names by which the operator reaches it
	metrics atomic.Pointer[prometheus.Registry] // of the run of the role
	site    atomic.Pointer[http.Handler]        // as the operator sees it; nil if no site is served
	server  *server.Server                      // nil while the listener is closed
}

// noTimeout is the timeout of responses that may take any time, such as an operation's events or a CPU profile. As IdleAtEnd it
// has idle connections end at once when the server stops: programs on this machine retry.
const noTimeout = -1

// open opens a listener on a duplicate of the socket of the private address, and starts a goroutine that serves probes,
// metrics, profiles and the operator's view of the site there. Without such an address it does nothing and returns nil.
func (p *privateListener) open() error {
	if p.socket == nil {
		return nil
	}
	at, err := p.socket.newListener()
	if err != nil {
		return err
	}
	logger := p.logger.With("part", "private")
	handler := api.Private(api.PrivateOptions{Metrics: prometheus.GathererFunc(p.gatherMetrics), Ready: p.ready, Hosts: p.hosts, Site: p.currentSite, Logger: logger})
	p.server = server.NewHTTPServer(handler, server.HTTPOptions{WriteTimeout: noTimeout, IdleAtEnd: noTimeout, Logger: logger})
	go p.server.Serve(at) //nolint:errcheck // it ends with Close
	return nil
}

// close stops serving the private address, and gives requests a second to end. It leaves the socket open, so that open can
// serve it again. If p is not open, close does nothing.
func (p *privateListener) close() {
	if p.server != nil {
		stopServer(p.server, time.Second, p.logger) // a scrape ends by then; a profile need not
		p.server = nil
	}
}

// gatherMetrics returns the metrics of the present run of a role, for /metrics; nil without an error before the first run.
func (p *privateListener) gatherMetrics() ([]*dto.MetricFamily, error) {
	if r := p.metrics.Load(); r != nil {
		return r.Gather()
	}
	return nil, nil
}

// currentSite returns the handler of the site for the operator, nil if no site is served.
func (p *privateListener) currentSite() http.Handler {
	if h := p.site.Load(); h != nil {
		return *h
	}
	return nil
}

// address returns HOST:PORT of the private address, or the path of its Unix socket; "" for none.
func (p *privateListener) address() string {
	if p.socket == nil {
		return ""
	}
	return p.socket.at.Addr().String()
}
