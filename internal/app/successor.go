package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/internal/answers"
)

// A successor handles requests that come late on connections which an earlier run of the role has accepted: that run has closed the
// store. The run that serves now responds to them, or the process that has taken over. While none does, requests wait, until their
// clients give up or Server.Stop cuts them off.
type successor struct {
	mu      sync.Mutex
	current http.Handler  // nil while no run serves
	ended   bool          // no other handler will follow
	changed chan struct{} // closed, and replaced, when one of these changes
}

// newSuccessor returns a successor without a handler: requests wait for one.
func newSuccessor() *successor { return &successor{changed: make(chan struct{})} }

// set makes h the handler to which late requests are passed, also those that wait. h must be comparable, such as a pointer.
func (s *successor) set(h http.Handler) {
	s.update(func() { s.current = h })
}

// remove has late requests wait for the next handler if h is the present one; otherwise it does nothing. Requests that h
// handles already continue.
func (s *successor) remove(h http.Handler) {
	s.update(func() {
		if s.current == h {
			s.current = nil
		}
	})
}

// end has late requests get a 503 when there is no handler, instead of waiting for one. A present handler stays.
func (s *successor) end() {
	s.update(func() { s.ended = true })
}

// update calls change under the lock, and wakes the waiting requests.
func (s *successor) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.changed)
	s.changed = make(chan struct{})
}

// unservedResponse is the response to requests for which there is no successor.
var unservedResponse = answers.Failure{Status: http.StatusServiceUnavailable, Message: "This server is stopping. Try again in a moment.", Retry: 1}

// ServeHTTP passes a late request to the present handler, or waits for one. It responds 503 if there will be none, and does not
// respond if the client gives up.
func (s *successor) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for {
		s.mu.Lock()
		current, ended, changed := s.current, s.ended, s.changed
		s.mu.Unlock()
		switch {
		case current != nil:
			current.ServeHTTP(w, r)
			return
		case ended:
			unservedResponse.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// A process that has given its sockets to another one forwards late requests to the admin socket of the data folder, which is
// the other's then. Only this user can connect to that, so what these fields say of the client is trusted there.
const (
	forwardPath   = "/forwarded"
	forwardTarget = "Larder-Forwarded-Target"
	forwardHost   = "Larder-Forwarded-Host"
	forwardClient = "Larder-Forwarded-Client"
	forwardTLS    = "Larder-Forwarded-Tls"
)

// newForwarder returns a handler that forwards requests over the admin socket to the process that has the data folder data open
// now. It adds header fields with the request's target, host, client and TLS, which [acceptForwarded] reads. If that process
// does not respond, it responds 503.
func newForwarder(data string, logger *slog.Logger) http.Handler {
	transport := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return api.ConnectAdmin(ctx, data)
	}}
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // a stream of events is not to be buffered
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = &url.URL{Scheme: "http", Host: "larder", Path: forwardPath}
			h := r.Out.Header
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} { // for those who know the client's proxy
				if lines := r.In.Header[name]; lines != nil {
					h[name] = lines
				}
			}
			h.Set(forwardTarget, r.In.RequestURI)
			h.Set(forwardHost, r.In.Host)
			h.Set(forwardClient, r.In.RemoteAddr)
			if h.Del(forwardTLS); r.In.TLS != nil {
				h.Set(forwardTLS, "1")
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if !errors.Is(err, context.Canceled) {
				logger.Warn("the process that has taken over does not respond to a forwarded request", "err", err)
			}
			unservedResponse.Send(w, r.Method == http.MethodHead, r.Header["Accept"])
		},
	}
}

// acceptForwarded returns a handler for the requests of [newForwarder]: it restores a request from the header fields, and
// passes it to next. It responds 400 to a request without a valid target. It trusts the fields, so only other processes of this
// user may reach it.
func acceptForwarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		target, err := url.ParseRequestURI(r.Header.Get(forwardTarget))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		r.URL, r.RequestURI, r.Host, r.RemoteAddr = target, r.Header.Get(forwardTarget), r.Header.Get(forwardHost), r.Header.Get(forwardClient)
		if r.Header.Get(forwardTLS) != "" {
			r.TLS = new(tls.ConnectionState)
		}
		for _, name := range []string{forwardTarget, forwardHost, forwardClient, forwardTLS} {
			r.Header.Del(name)
		}
		next.ServeHTTP(w, r)
	})
}
