package waitingroom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

const (
	// upstreamDial is how long a connection to an upstream may take to be made.
	upstreamDial = 5 * time.Second
	// stall is how long a client or an upstream may take or send nothing of a body.
	stall = 30 * time.Second
)

// newUpstream returns the proxy to a room's upstream. It forwards no room's ticket.
func newUpstream(room *config.Room, logger *slog.Logger) http.Handler {
	transport := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: upstreamDial}).DialContext,
		TLSHandshakeTimeout:   upstreamDial,
		ResponseHeaderTimeout: room.UpstreamTimeout,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   128,
		ForceAttemptHTTP2:     true,
		DisableCompression:    true, // the client and the upstream agree on a coding
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(room.Upstream)
			r.Out.Host = r.In.Host // the site needs the name by which it was asked
			r.SetXForwarded()
			r.Out.Header.Set("X-Forwarded-Proto", client.Scheme(r.In))
			hideTickets(r.Out.Header)
		},
		ErrorLog: slog.NewLogLogger(logger.With("part", "waitingroom", "room", room.Name).Handler(), slog.LevelWarn),
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			if req.Context().Err() != nil {
				panic(http.ErrAbortHandler) // the client has gone
			}
			status, text := http.StatusBadGateway, "The site behind this address cannot be reached at the moment. Please try again later.\n"
			if timeout := net.Error(nil); errors.Is(err, context.DeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
				status, text = http.StatusGatewayTimeout, "The site behind this address took too long to answer. Please try again later.\n"
			}
			logger.Warn("waitingroom: an upstream fails", "room", room.Name, "upstream", room.Upstream.Host, "err", err)
			h := w.Header()
			h.Set("Content-Type", "text/plain; charset=utf-8")
			h.Set("X-Content-Type-Options", "nosniff")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		// The server's own deadlines are for answers that are made here. An upstream may pause
		// between two parts of an answer; a client may not. A writer without deadlines ignores this.
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Time{})
		defer func() { _ = c.SetWriteDeadline(time.Now().Add(stall)) }() // for buffered bytes
		if req.Body != nil && req.Body != http.NoBody {
			req.Body = &movingReader{req.Body, c}
		}
		proxy.ServeHTTP(&movingWriter{w, c}, req)
	})
}

// movingReader gives a client more time for each part of its body. At its end net/http
// removes the deadline.
type movingReader struct {
	io.ReadCloser
	c *http.ResponseController
}

func (m *movingReader) Read(p []byte) (int, error) {
	_ = m.c.SetReadDeadline(time.Now().Add(stall))
	return m.ReadCloser.Read(p)
}

// movingWriter gives a client time for each part of the answer.
type movingWriter struct {
	http.ResponseWriter
	c *http.ResponseController
}

func (m *movingWriter) Write(p []byte) (int, error) {
	defer m.within()()
	return m.ResponseWriter.Write(p)
}

// Flush implements http.Flusher.
func (m *movingWriter) Flush() {
	defer m.within()()
	_ = m.c.Flush() // a writer that cannot flush has nothing to flush
}

// within sets a deadline, and returns a function that removes it.
func (m *movingWriter) within() func() {
	_ = m.c.SetWriteDeadline(time.Now().Add(stall))
	return func() { _ = m.c.SetWriteDeadline(time.Time{}) }
}

func (m *movingWriter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// hideTickets removes the tickets of all rooms from a request's header.
func hideTickets(h http.Header) {
	lines := h["Cookie"]
	if lines == nil {
		return
	}
	var kept []string
	for _, line := range lines {
		var others []string
		for pair := range strings.SplitSeq(line, ";") {
			pair = strings.TrimSpace(pair)
			if n, _, _ := strings.Cut(pair, "="); pair != "" && !isCookie(n) {
				others = append(others, pair)
			}
		}
		if others != nil {
			kept = append(kept, strings.Join(others, "; "))
		}
	}
	if kept == nil {
		delete(h, "Cookie")
		return
	}
	h["Cookie"] = kept
}
