package server

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
)

// HTTPOptions says how connections are treated. The zero value is right for a
// public listener.
type HTTPOptions struct {
	// ReadHeaderTimeout is how long a client may take for the headers of a
	// request. Default 10 s.
	ReadHeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request.
	// Default 2 min.
	IdleTimeout time.Duration
	// ReadTimeout is how long a client may take for a request with its body, unless
	// the handler moves the deadline. Default 30 s. It matters for requests that are
	// refused too: net/http reads what a handler leaves of a body before it answers.
	ReadTimeout time.Duration
	// WriteTimeout is how long an answer may take that does not move its own
	// deadline, as Assets does for large bodies. Default 30 s.
	WriteTimeout time.Duration
	// StallTimeout is how long an HTTP/2 connection may take nothing of what is to
	// be written to it. Default 30 s. The deadlines of its answers cannot end it: they
	// only queue more to be written. There are no pings, because a slow client
	// reads one only after all that was sent before it.
	StallTimeout time.Duration
	// MaxConnections is what the listener has been given. Above nine tenths of it
	// whoever waits longest for a next request is closed, so that idle connections
	// do not keep others out. Default: that never happens.
	MaxConnections int
	// MaxHeaderBytes bounds request line and headers together, beyond which the
	// answer is 431 and the connection ends. Default 32 KiB; net/http allows 4 KiB
	// more.
	MaxHeaderBytes int
	// H2C accepts HTTP/2 without TLS, from clients that know beforehand (RFC 9113
	// §3.3). Default: without TLS there is HTTP/1.1 only.
	H2C bool
	// TLS is the configuration for ServeTLS, see [Certificate]. Default: none.
	TLS *tls.Config
	// Logger gets what net/http complains about, a line a second at most.
	// Default: nothing is logged.
	Logger *slog.Logger
}

// A Server is an http.Server that protects itself against slow and greedy
// clients, and can tell how its end went.
type Server struct {
	*http.Server
	connections *connections
	handlers    *handlers
}

// NewHTTPServer returns a server whose Serve or ServeTLS takes a listener from
// [Listen].
func NewHTTPServer(h http.Handler, o HTTPOptions) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(o.H2C)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	connections := &connections{most: o.MaxConnections * 9 / 10, open: make(map[net.Conn]*list.Element)}
	handlers := &handlers{next: h, none: make(chan struct{}, 1)}
	return &Server{connections: connections, handlers: handlers, Server: &http.Server{
		Handler:           handlers,
		ReadHeaderTimeout: cmp.Or(o.ReadHeaderTimeout, 10*time.Second),
		ReadTimeout:       cmp.Or(o.ReadTimeout, 30*time.Second),
		IdleTimeout:       cmp.Or(o.IdleTimeout, 2*time.Minute),
		WriteTimeout:      cmp.Or(o.WriteTimeout, 30*time.Second),
		MaxHeaderBytes:    cmp.Or(o.MaxHeaderBytes, 32<<10),
		TLSConfig:         o.TLS,
		Protocols:         protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			WriteByteTimeout:     cmp.Or(o.StallTimeout, 30*time.Second),
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if refusing, ok := c.(*refusingConn); ok && state == http.StateIdle {
				refusing.idle()
			}
			connections.observe(c, state)
		},
		ErrorLog: log.New(&errorLog{logger: o.Logger}, "", 0),
	}}
}

// Serve is http.Server's, but a request that cannot be read is answered in the shape
// of the API's errors. ServeTLS leaves net/http's own answer to it as it is.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(refusingListener{l}) }

// lingering is how long Stop waits for handlers whose clients are gone.
const lingering = 10 * time.Second

// Stop ends the server. It takes no more requests, and gives clients that long
// for what is being sent to them; the others are cut off, and it returns how many
// that were. Then it waits until no handler runs; the error says that some still
// do after 10 s, so that what they use must stay.
func (s *Server) Stop(patience time.Duration) (cutOff int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		cutOff = s.connections.busy()
		s.Close()
	}
	return cutOff, s.handlers.wait(lingering)
}

// handlers runs a handler and knows how often it is running.
type handlers struct {
	next    http.Handler
	running atomic.Int64
	none    chan struct{} // has one where the last ended
}

func (h *handlers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.running.Add(1)
	defer func() {
		if h.running.Add(-1) == 0 {
			select {
			case h.none <- struct{}{}:
			default:
			}
		}
	}()
	if r.ProtoMajor == 1 && r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead) {
		// Nothing wants that body. Without this net/http would wait for it before it
		// answers, with all that the answer holds in memory.
		w.Header().Set("Connection", "close")
	}
	h.next.ServeHTTP(w, r)
}

// wait returns when none is running, of a server that takes no more requests.
func (h *handlers) wait(patience time.Duration) error {
	timeout := time.After(patience)
	for h.running.Load() > 0 {
		select {
		case <-h.none:
		case <-timeout:
			return fmt.Errorf("server: %d requests are still being handled %v after their clients were cut off", h.running.Load(), patience)
		}
	}
	return nil
}

// Listen opens a TCP listener for [NewHTTPServer]. It has no more than
// maxConnections open at a time, where that is not 0; the others wait in the
// kernel's queue.
//
// What the kernel queues before it sends is kept short, so that deadlines
// measure the client and not a buffer of megabytes, and memory is not spent on it.
func Listen(ctx context.Context, address string, maxConnections int) (net.Listener, error) {
	config := net.ListenConfig{Control: shortSendQueue}
	l, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if maxConnections > 0 {
		l = netutil.LimitListener(l, maxConnections)
	}
	return l, nil
}

// errorLog passes what net/http logs on, bounded: a scanner that fails one TLS
// handshake after the other must not fill the disk.
type errorLog struct {
	logger *slog.Logger
	logged throttle
}

func (e *errorLog) Write(line []byte) (int, error) {
	if n, ok := e.logged.next(); ok {
		e.logger.Warn("server: "+string(bytes.TrimSpace(line)), "alike", n)
	}
	return len(line), nil
}
