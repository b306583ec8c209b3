package waitingroom

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// stall is how long a client or an upstream may take or send nothing of a body.
const stall = 30 * time.Second

// An upstream is the site behind a room, on one server or several. What it gets of a request
// is what it would get without the room, but for the tickets, and for who the client is and
// how it asked, which [requests.SetForwarded] says.
type upstream struct {
	room      atomic.Pointer[config.Room] // the newest configuration; all have the same upstreams
	logger    *slog.Logger
	now       func() time.Time
	limit     *autoLimit
	transport *http.Transport
	servers   []*server
	turn      atomic.Uint64
	health    originHealth
	proxy     httputil.ReverseProxy
}

// newUpstream returns the reverse proxy to a room's upstream servers, of which there is at least one. It counts response times in
// limit. It removes tickets from requests and adds who the client is. Of responses, it carries out the commands to the room only
// in those to an upgrade (101); [admittedResponse] does so in others. It connects to no server yet.
func newUpstream(room *config.Room, logger *slog.Logger, now func() time.Time, limit *autoLimit) *upstream {
	u := &upstream{logger: logger, now: now, limit: limit, transport: newTransport(room)}
	u.room.Store(room)
	for _, to := range room.Upstreams {
		to = &url.URL{Scheme: to.Scheme, Host: to.Host}
		if to.Scheme == "h2c" {
			to.Scheme = "http"
		}
		u.servers = append(u.servers, &server{url: to})
	}
	u.proxy = httputil.ReverseProxy{
		Transport:     u,
		FlushInterval: -1, // what has come goes on at once, as it came
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL = requestTarget(r.In)
			r.Out.Host = r.In.Host       // the site needs the host name that the client requested
			r.Out.Trailer = r.In.Trailer // whose values come with the end of the body
			requests.SetForwarded(r.Out.Header, r.In)
			removeTickets(r.Out.Header)
		},
		ModifyResponse: func(res *http.Response) error {
			// The proxy itself writes the response to an upgrade.
			if p, ok := res.Request.Context().Value(passingKey{}).(*admittedResponse); ok && res.StatusCode == http.StatusSwitchingProtocols {
				p.applyOriginCommands(res.Header)
			}
			return nil
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
			logger.Warn("waitingroom: an upstream fails", "room", room.Name, "err", err)
			u.sendUnreachable(w, req, status, text)
		},
	}
	return u
}

// passingKey is the key of the *admittedResponse in the context of a request to an upstream.
type passingKey struct{}

// ServeHTTP implements http.Handler. It forwards a request to an upstream server, and the response to the client, or responds 502
// or 504 with a page or text if that fails. The server's deadlines do not apply: the client may pause for 30 seconds at most, an
// upstream may pause between two parts of a response.
func (u *upstream) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if p, ok := w.(*admittedResponse); ok {
		req = req.WithContext(context.WithValue(req.Context(), passingKey{}, p))
	}
	// The server's own deadlines are for answers that are made here. An upstream may pause
	// between two parts of a response; a client may not. A writer without deadlines ignores this.
	c := http.NewResponseController(w)
	if req.ProtoMajor == 1 && req.ContentLength < 0 && c.EnableFullDuplex() == nil { // HTTP/2 always is
		// net/http cannot tell where the next request begins after a body that is not read to its end.
		w.Header().Set("Connection", "close")
		defer discardBody(c, req.Body)
	}
	_ = c.SetWriteDeadline(time.Time{})
	defer func() { _ = c.SetWriteDeadline(time.Now().Add(stall)) }() // for buffered bytes
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = &deadlineReader{req.Body, c}
	}
	u.proxy.ServeHTTP(&deadlineWriter{w, c}, req)
}

// discardBody reads a little more of a request body that the upstream did not read, up to 256 KiB for half a second, so that the
// client receives the response. Then reading from the connection ends.
func discardBody(c *http.ResponseController, body io.Reader) {
	const most, linger = 256 << 10, 500 * time.Millisecond
	_ = c.SetReadDeadline(time.Now().Add(linger))
	_, _ = io.CopyN(io.Discard, body, most)
	_ = c.SetReadDeadline(time.Now())
}

// requestTarget returns the path and query of a client's request as a URL without scheme and host, byte for byte as the client
// sent them. A path that begins with two slashes is that of in.URL.
func requestTarget(in *http.Request) *url.URL {
	raw := in.RequestURI
	if i := strings.Index(raw, "://"); i > 0 && !strings.HasPrefix(raw, "/") { // "GET http://host/path HTTP/1.1" (RFC 9112 §3.2.2)
		raw = raw[i+len("://"):]
		if i = strings.IndexAny(raw, "/?"); i < 0 {
			i = len(raw)
		}
		raw = raw[i:]
	}
	path, query, asked := strings.Cut(raw, "?")
	out := &url.URL{Opaque: path, RawQuery: query, ForceQuery: asked}
	switch {
	case path == "":
		out.Opaque = "/"
	case strings.HasPrefix(path, "//"): // as Opaque it would begin with a host
		out.Opaque, out.Path, out.RawPath = "", in.URL.Path, in.URL.RawPath
	}
	return out
}

// A deadlineReader sets a new deadline for each read of a request body. At its end net/http removes the deadline.
type deadlineReader struct {
	io.ReadCloser
	c *http.ResponseController
}

// Read implements io.Reader. Before it reads, it sets the read deadline of the client's connection to 30 s from now.
func (m *deadlineReader) Read(p []byte) (int, error) {
	_ = m.c.SetReadDeadline(time.Now().Add(stall))
	return m.ReadCloser.Read(p)
}

// A deadlineWriter sets a deadline for each write of a response.
type deadlineWriter struct {
	http.ResponseWriter
	c *http.ResponseController
}

// WriteHeader implements http.ResponseWriter. If the upstream sent no Content-Type, it prevents net/http from guessing one.
func (m *deadlineWriter) WriteHeader(status int) {
	if h := m.Header(); h["Content-Type"] == nil && status >= http.StatusOK {
		h["Content-Type"] = nil
	}
	m.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. The client must take the bytes within 30 seconds, or Write fails.
func (m *deadlineWriter) Write(p []byte) (int, error) {
	defer m.setDeadline()()
	return m.ResponseWriter.Write(p)
}

// Flush implements http.Flusher. The client must take the bytes within 30 seconds. It ignores errors.
func (m *deadlineWriter) Flush() {
	defer m.setDeadline()()
	_ = m.c.Flush() // a writer that cannot flush has nothing to flush
}

// setDeadline sets a write deadline 30 seconds from now, and returns a function that removes it.
func (m *deadlineWriter) setDeadline() func() {
	_ = m.c.SetWriteDeadline(time.Now().Add(stall))
	return func() { _ = m.c.SetWriteDeadline(time.Time{}) }
}

// Unwrap returns the wrapped writer, for [http.ResponseController].
func (m *deadlineWriter) Unwrap() http.ResponseWriter { return m.ResponseWriter }

// removeTickets removes the cookies with tickets of all rooms from a request header, which it changes, and leaves all other
// cookies as they are. Without other cookies it removes the field.
func removeTickets(h http.Header) {
	var kept []string
	hidden := false
	for _, line := range h["Cookie"] {
		if !strings.Contains(line, cookiePrefix) {
			kept = append(kept, line)
			continue
		}
		var others []string
		for pair := range strings.SplitSeq(line, ";") {
			if name, _, _ := strings.Cut(pair, "="); isTicketCookie(strings.TrimSpace(name)) {
				hidden = true
				continue
			}
			others = append(others, pair)
		}
		if line = strings.TrimLeft(strings.Join(others, ";"), " "); line != "" {
			kept = append(kept, line)
		}
	}
	switch {
	case !hidden:
	case kept == nil:
		delete(h, "Cookie")
	default:
		h["Cookie"] = kept
	}
}
