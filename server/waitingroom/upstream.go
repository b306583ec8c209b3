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

	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

const (
	// upstreamDial is how long a connection to an upstream may take to be made.
	upstreamDial = 5 * time.Second
	// stall is how long a client or an upstream may take nothing, or send nothing, of a
	// body.
	stall = 30 * time.Second
)

// newUpstream returns the proxy to a room's upstream. No room's ticket is told to it.
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
		DisableCompression:    true, // a coding is between the client and the upstream
	}
	proxy := &httputil.ReverseProxy{
		Transport: transport,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(room.Upstream)
			r.Out.Host = r.In.Host // the site is to know by which name it was asked
			r.SetXForwarded()
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
		// The server's own deadlines are for answers that are made here. An upstream may take its
		// time between two parts of one; a client may not. Where there are no deadlines, there is nothing to move.
		c := http.NewResponseController(w)
		_ = c.SetWriteDeadline(time.Time{})
		defer func() { _ = c.SetWriteDeadline(time.Now().Add(stall)) }() // for what is buffered
		if req.Body != nil && req.Body != http.NoBody {
			req.Body = &movingReader{req.Body, c}
		}
		proxy.ServeHTTP(&movingWriter{w, c}, req)
	})
}

// movingReader gives a client more time for each part of its body. With the end of that,
// net/http takes the deadline away.
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
	_ = m.c.Flush() // where it cannot there is nothing to flush
}

// within begins a deadline; what it returns ends it.
func (m *movingWriter) within() func() {
	_ = m.c.SetWriteDeadline(time.Now().Add(stall))
	return func() { _ = m.c.SetWriteDeadline(time.Time{}) }
}

func (m *movingWriter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// hideTickets takes the tickets of all rooms out of a request's header.
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
			if n, _, _ := strings.Cut(pair, "="); pair != "" && !ticket.IsCookie(n) {
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
