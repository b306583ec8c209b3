package waitingroom

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

const (
	// upstreamDial is how long a connection to a server may take to be made.
	upstreamDial = 5 * time.Second
	// rest is how long a server to which no connection could be made gets no request, while
	// there are others.
	rest = 10 * time.Second
	// healthEvery and healthTimeout are those of the health checks.
	healthEvery   = 5 * time.Second
	healthTimeout = 3 * time.Second
)

// A server is one server of a site. The servers get the site's requests in turn, except those that fail.
type server struct {
	url   *url.URL
	ill   atomic.Bool  // by its last health check
	until atomic.Int64 // it rests until then, in nanoseconds since 1970
}

// newTransport returns a transport to the upstreams of a room, with the protocols of their scheme and the room's timeout and
// certificates. The room has upstreams.
func newTransport(room *config.Room) *http.Transport {
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: upstreamDial}).DialContext,
		TLSHandshakeTimeout:   upstreamDial,
		TLSClientConfig:       &tls.Config{RootCAs: room.UpstreamCA, MinVersion: tls.VersionTLS12},
		ResponseHeaderTimeout: room.UpstreamTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   128,
		Protocols:             new(http.Protocols),
		DisableCompression:    true, // the client and the upstream agree on a coding
	}
	switch room.Upstreams[0].Scheme { // all have the same
	case "h2c":
		t.Protocols.SetUnencryptedHTTP2(true)
	case "https":
		t.Protocols.SetHTTP2(true)
		t.Protocols.SetHTTP1(true)
	default:
		t.Protocols.SetHTTP1(true)
	}
	return t
}

// nextOrder returns the servers in the order in which the next request tries them: healthy ones first, then the others. Both
// groups begin with the server whose turn it is. Each call advances the turn, if there are several servers.
func (u *upstream) nextOrder() []*server {
	if len(u.servers) == 1 {
		return u.servers
	}
	now := u.now()
	working := make([]*server, 0, len(u.servers))
	var failing []*server
	for _, s := range u.servers {
		if s.isHealthy(now) {
			working = append(working, s)
		} else {
			failing = append(failing, s)
		}
	}
	turn := u.turn.Add(1)
	for _, list := range [...][]*server{working, failing} {
		if n := uint64(len(list)); n > 0 {
			first := int(turn % n)
			slices.Reverse(list[:first])
			slices.Reverse(list[first:])
			slices.Reverse(list)
		}
	}
	return append(working, failing...)
}

// isHealthy reports whether the server has not failed its last health check, and its rest after a failed connection is over.
func (s *server) isHealthy(now time.Time) bool {
	return !s.ill.Load() && now.UnixNano() >= s.until.Load()
}

// RoundTrip implements http.RoundTripper. It sends a request to the server whose turn it is. If it cannot connect to that, the
// server gets no requests for 10 seconds while there are others, and RoundTrip tries the next one. Once connected, it tries no
// other. It counts the response for the site's health and the room's limit, or for the health that no server accepted a
// connection. The error is that of the last server that it tried.
func (u *upstream) RoundTrip(req *http.Request) (res *http.Response, err error) {
	began := time.Now()
	for _, s := range u.nextOrder() {
		var connected atomic.Bool
		ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
		out := req.WithContext(ctx)
		at := *req.URL
		at.Scheme, at.Host = s.url.Scheme, s.url.Host
		out.URL = &at
		if req.Body != nil { // the caller closes it; a failed attempt must not
			out.Body = struct {
				io.Reader
				io.Closer
			}{req.Body, io.NopCloser(nil)}
		}
		if res, err = u.transport.RoundTrip(out); err == nil {
			s.until.Store(0)
			took := time.Since(began)
			u.health.countResponse(u.now(), took, res.StatusCode, req.RemoteAddr)
			u.limit.countResponse(took, res.StatusCode, req.RemoteAddr)
			return res, nil
		}
		if connected.Load() || req.Context().Err() != nil {
			return nil, err
		}
		if s.until.Swap(u.now().Add(rest).UnixNano()) == 0 {
			u.logger.Warn("waitingroom: no connection to an upstream; the others get its requests", "room", u.room.Load().Name, "upstream", s.url.Host, "err", err)
		}
	}
	u.health.countUnreachable(u.now())
	return nil, err
}

// checkRegularly checks the health of the servers every 5 seconds until ctx ends.
func (u *upstream) checkRegularly(ctx context.Context) {
	again := time.NewTicker(healthEvery)
	defer again.Stop()
	for {
		u.checkAll(ctx)
		select {
		case <-again.C:
		case <-ctx.Done():
			return
		}
	}
}

// checkAll checks the health of every server once, all at the same time, waits for the results, and logs changes. Requests avoid
// a server that fails the check.
func (u *upstream) checkAll(ctx context.Context) {
	var all sync.WaitGroup
	for _, s := range u.servers {
		all.Go(func() {
			err := u.requestHealth(ctx, s)
			if ctx.Err() != nil {
				return
			}
			switch was := s.ill.Swap(err != nil); {
			case err == nil && was:
				u.logger.Info("waitingroom: an upstream is well again", "room", u.room.Load().Name, "upstream", s.url.Host)
			case err != nil && !was:
				u.logger.Warn("waitingroom: an upstream is not well; the others get its requests", "room", u.room.Load().Name, "upstream", s.url.Host, "err", err)
			}
			if err == nil {
				s.until.Store(0)
			}
		})
	}
	all.Wait()
}

// requestHealth sends a health check to a server. It returns an error if the server does not respond with a status from 200 to
// 399.
func (u *upstream) requestHealth(ctx context.Context, s *server) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url.String()+u.room.Load().UpstreamHealth, nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "larder-health-check")
	if host := u.room.Load().Routes[0].Host; host != "" {
		req.Host = host
	}
	res, err := u.transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("it answers %s", res.Status)
	}
	return nil
}
