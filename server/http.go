package server

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/pace"
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
	// TLS is the configuration of connections with TLS, see [Certificate]. Default:
	// they have none.
	TLS *tls.Config
	// Lane answers simple requests over HTTP/1.1 in front of net/http; Assets does.
	// Default: net/http has all of them.
	Lane lane.Handler
	// Logger gets what net/http complains about, a line a second at most.
	// Default: nothing is logged.
	Logger *slog.Logger
}

// A Server is an http.Server that protects itself against slow and greedy
// clients, and can tell how its end went.
type Server struct {
	*http.Server
	lane        lane.Options
	connections *connections
	handlers    *handlers
	stopping    atomic.Bool
}

// NewHTTPServer returns a server whose Serve takes a listener from [Listen].
func NewHTTPServer(h http.Handler, o HTTPOptions) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(o.H2C)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.TLS != nil {
		o.TLS = o.TLS.Clone()
		o.TLS.NextProtos = []string{"h2", "http/1.1"} // net/http looks here for what to prepare
	}
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.StallTimeout = cmp.Or(o.StallTimeout, 30*time.Second)
	connections := &connections{most: o.MaxConnections * 9 / 10, open: make(map[net.Conn]*list.Element)}
	handlers := &handlers{next: h, none: make(chan struct{}, 1)}
	laneOptions := lane.Options{
		Handler: o.Lane, TLS: o.TLS, Opened: connections.makeRoom, Logger: o.Logger,
		HeaderTimeout: o.ReadHeaderTimeout, IdleTimeout: o.IdleTimeout, WriteTimeout: o.WriteTimeout, StallTimeout: o.StallTimeout,
	}
	return &Server{connections: connections, handlers: handlers, lane: laneOptions, Server: &http.Server{
		Handler:           handlers,
		ReadHeaderTimeout: o.ReadHeaderTimeout,
		ReadTimeout:       cmp.Or(o.ReadTimeout, 30*time.Second),
		IdleTimeout:       o.IdleTimeout,
		WriteTimeout:      o.WriteTimeout,
		MaxHeaderBytes:    cmp.Or(o.MaxHeaderBytes, 32<<10),
		TLSConfig:         o.TLS,
		Protocols:         protocols,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: pace.Streams,
			WriteByteTimeout:     o.StallTimeout,
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			if refusing, ok := c.(interface{ idle() }); ok && state == http.StateIdle {
				refusing.idle()
			}
			connections.observe(c, state)
		},
		ErrorLog: log.New(&errorLog{logger: o.Logger}, "", 0),
	}}
}

// Serve is http.Server's, with TLS where that is configured, and with the fast lane in
// front where there is one. A request that cannot be read is answered in the shape of
// the API's errors. Who calls ServeTLS instead has neither.
func (s *Server) Serve(l net.Listener) error {
	if s.lane.Handler != nil || s.lane.TLS != nil {
		front := lane.New(l, s.lane)
		s.connections.add(front)
		l = front
	}
	err := s.Server.Serve(refusingListener{l})
	if s.stopping.Load() {
		return http.ErrServerClosed // and not that the front is closed, which happens first
	}
	return err
}

// Close ends all connections at once.
func (s *Server) Close() error {
	err := s.Server.Close()
	for _, front := range s.connections.fronts() {
		front.Abort()
	}
	return err
}

// Shutdown takes no more requests and returns when those that are there are answered,
// or ctx ends.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	fronts := s.connections.fronts()
	for _, front := range fronts {
		front.Stop()
	}
	err := s.Server.Shutdown(ctx)
	for _, front := range fronts {
		err = errors.Join(err, front.Wait(ctx))
	}
	return err
}

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
	lingered, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	for _, front := range s.connections.fronts() {
		if front.Wait(lingered) != nil {
			err = fmt.Errorf("server: %d requests are still being answered %v after their clients were cut off", front.Len(), lingering)
		}
	}
	return cutOff, errors.Join(err, s.handlers.wait(lingered))
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
func (h *handlers) wait(ctx context.Context) error {
	for h.running.Load() > 0 {
		select {
		case <-h.none:
		case <-ctx.Done():
			return fmt.Errorf("server: %d requests are still being handled %v after their clients were cut off", h.running.Load(), lingering)
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
	return lane.Limit(l.(*net.TCPListener), maxConnections), nil
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
