package server

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/server/lane"
)

// HTTPOptions says how connections are treated. The zero value is right for a
// public listener.
type HTTPOptions struct {
	// IdleAtEnd is how long connections may wait for a request that was on its way when the server began
	// to end. Default 1 s; a negative one has them end at once.
	IdleAtEnd time.Duration
	// ReadTimeout is how long a client may take for a request with its body, unless
	// the handler moves the deadline. Default 30 s. It matters for requests that are
	// refused too: net/http reads what a handler leaves of a body before it answers.
	ReadTimeout time.Duration
	// WriteTimeout is how long a response may take that does not move its own
	// deadline, as Assets does for large bodies. Default 30 s.
	WriteTimeout time.Duration
	// Proxies are those that are trusted: their connections are not counted as one client's.
	// Default: none.
	Proxies *requests.Proxies
	// ProxyProtocol requires that these begin each connection with the PROXY protocol, which names the client;
	// a connection of theirs that does not is closed. Default: they do not use it.
	ProxyProtocol bool
	// H2C accepts HTTP/2 without TLS, from clients that begin with its preface (RFC 9113
	// §3.3). Default: without TLS there is HTTP/1.1 only.
	H2C bool
	// TLS is the configuration of connections with TLS, see [Certificate]. Default:
	// they have none.
	TLS *tls.Config
	// Lane answers simple requests in front of net/http and the handler; Assets can.
	// Default: net/http and the handler answer all requests.
	Lane lane.Handler
	// Successor answers the requests that come late in [Server.Relinquish], in the place of Lane and the
	// handler. Default: those two go on.
	Successor http.Handler
	// Logger gets what net/http complains about; it has to bound what repeats.
	// Default: nothing is logged.
	Logger *slog.Logger
}

// A Server is an http.Server that protects itself against slow and greedy
// clients. [Server.Stop] reports how many of them it cut off.
type Server struct {
	*http.Server
	lane        lane.Options
	connections *connections // on all fronts
	handlers    *handlers
	stopping    atomic.Bool
	leaving     []func() // are called once
	left        sync.Once
}

// NewHTTPServer returns a server that runs h for requests that o.Lane does not respond to. The caller starts it with [Server.Serve] on a listener
// from [LimitConnections].
func NewHTTPServer(h http.Handler, o HTTPOptions) *Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // HTTP/2 is the lane's
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.TLS != nil {
		o.TLS = o.TLS.Clone()
		o.TLS.NextProtos = []string{"h2", "http/1.1"}
	}
	o.IdleAtEnd = max(0, cmp.Or(o.IdleAtEnd, time.Second))
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 30*time.Second)
	handlers := &handlers{next: h, successor: o.Successor, none: make(chan struct{}, 1), settled: make(chan struct{})}
	connections := newConnections()
	laneOptions := lane.Options{
		Handler: o.Lane, TLS: o.TLS, HandsOver: connections.expectHandedOff, Logger: o.Logger,
		HeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, UnansweredAtEnd: unansweredAtEnd, IdleAtEnd: o.IdleAtEnd, WriteTimeout: o.WriteTimeout, StallTimeout: answers.StallTimeout,
		Requests: handlers, TooLarge: http.HandlerFunc(refuseTooLarge), Clear: o.H2C, ReadTimeout: o.ReadTimeout, Proxies: o.Proxies, ProxyProtocol: o.ProxyProtocol,
		HeaderBytes: maxHeaderBytes + http2Overhead,
	}
	s := &Server{connections: connections, handlers: handlers, Server: &http.Server{
		Handler:           handlers,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       o.ReadTimeout,
		IdleTimeout:       idleTimeout,
		WriteTimeout:      o.WriteTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		ConnState: func(c net.Conn, state http.ConnState) {
			if refusing, ok := c.(interface{ awaitRequest() }); ok && state == http.StateIdle {
				refusing.awaitRequest()
			}
			connections.trackState(c, state)
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(answers.WithScarcity(ctx, connections.isScarce), connKey{}, c)
		},
		ErrorLog: log.New(&errorLog{logger: o.Logger}, "", 0),
	}}
	connections.deadlines = laneOptions.Deadlines()
	laneOptions.Context = context.WithValue(context.Background(), http.ServerContextKey, s.Server)
	s.lane = laneOptions
	return s
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

const (
	// headerTimeout is how long a client may take for the headers of a request.
	headerTimeout = 10 * time.Second
	// unansweredAtEnd is the same in a server that ends. Clients that pause for five seconds are served.
	unansweredAtEnd = 6 * time.Second
	// idleTimeout is how long a connection may wait for its next request.
	idleTimeout = 2 * time.Minute
	// maxHeaderBytes bounds request line and headers together, beyond which the response is 431 and, over HTTP/1.1, the connection
	// ends; net/http allows 4 KiB more.
	maxHeaderBytes = 32 << 10
	// http2Overhead is what the fields of a usual request count over HTTP/2 beside their text.
	http2Overhead = 10 * 32
)

// Serve accepts connections of a listener until the server ends, with TLS if that is configured; then it returns http.ErrServerClosed. It returns any
// other error of accepting. A fast lane in front responds to simple requests. A request that cannot be read gets an error in the form of the API's.
// The method ServeTLS of http.Server does neither.
func (s *Server) Serve(l net.Listener) error {
	front := lane.New(l, s.lane)
	s.connections.addLane(front)
	err := s.Server.Serve(refusingListener{front, s.connections})
	if s.stopping.Load() {
		return http.ErrServerClosed // and not that the front is closed, which happens first
	}
	return err
}

// Close closes all listeners and connections at once, also those with a response under way. It does not wait for handlers.
func (s *Server) Close() error {
	err := s.Server.Close()
	for _, front := range s.connections.listLanes() {
		front.Abort()
	}
	return err
}

// SetMaxConnections changes the limit of connections that the listeners may have open, which must not have been 0 (unlimited). Beyond a lower limit
// idle and slow connections are evicted.
func (s *Server) SetMaxConnections(most int) { s.connections.setLimit(most) }

// OnLeave registers a function that the first call of [Server.Leave] calls. It must not be called at the same time as Leave.
func (s *Server) OnLeave(f func()) { s.leaving = append(s.leaving, f) }

// Leave prepares the end of the server: it calls the functions of [Server.OnLeave], closes upgraded connections, and has each other connection closed
// after its next response, which says so. The server still accepts connections: another process that listens on the same socket may take them over at
// any time.
func (s *Server) Leave() {
	s.left.Do(func() {
		s.handlers.closeAfterResponse()
		s.connections.closeUpgraded()
		for _, f := range s.leaving {
			f()
		}
	})
	for _, front := range s.connections.listLanes() {
		front.Leave()
	}
}

// Settled returns a channel that is closed when all requests that were being handled when [Server.Leave] was called are done, except those that the
// fast lane serves from memory.
func (s *Server) Settled() <-chan struct{} { return s.handlers.settled }

// Shutdown calls Leave, stops accepting connections, and waits until those that are open have ended, or ctx ends, whose error it returns. Each
// connection ends after its next response, or at the deadline of its phase ([lane.Deadlines]).
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	s.Leave()
	fronts := s.connections.listLanes()
	for _, front := range fronts {
		front.Stop()
	}
	s.connections.startDeadlines()
	var err error
	for _, front := range fronts {
		err = errors.Join(err, front.Wait(ctx))
	}
	if err = errors.Join(err, s.connections.awaitNone(ctx)); err != nil {
		return err
	}
	return s.Server.Shutdown(ctx) // which would close connections that wait, if there were any
}

// Relinquish shuts the server down in favour of a successor that can start only when this server has stopped using what both share. For
// [HTTPOptions.IdleAtEnd], while clients with open connections may have requests on their way, this server responds to them; afterwards
// [HTTPOptions.Successor] does. It waits until all connections have ended, or ctx ends; those that are open then stay open until Stop or Close.
func (s *Server) Relinquish(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, s.lane.IdleAtEnd)
	defer cancel()
	if err := s.Shutdown(soon); err == nil {
		return nil
	}
	if s.handlers.successor != nil {
		s.handlers.relinquished.Store(true)
		for _, front := range s.connections.listLanes() {
			front.Bypass()
		}
	}
	return s.Shutdown(ctx)
}

// lingering is how long Stop waits for handlers whose clients are gone.
const lingering = 10 * time.Second

// Stop ends the server. It stops accepting requests, and waits up to timeout until clients have received their responses. Then it closes the other
// connections and returns as cutOff how many of them were not idle. Then it waits up to 10 s until no handler runs; the error reports that handlers
// still run: the caller must not close what they use.
func (s *Server) Stop(timeout time.Duration) (cutOff int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if s.Shutdown(ctx) != nil {
		cutOff = s.connections.countBusy()
		s.Close()
	}
	lingered, cancel := context.WithTimeout(context.Background(), lingering)
	defer cancel()
	for _, front := range s.connections.listLanes() {
		if front.Wait(lingered) != nil {
			err = fmt.Errorf("server: %d requests are still being answered %v after their clients were cut off", front.Len(), lingering)
		}
	}
	return cutOff, errors.Join(err, s.handlers.wait(lingered))
}

// handlers runs a handler and counts how many calls of it run.
type handlers struct {
	next         http.Handler
	successor    http.Handler // answers in its place when relinquished is set; nil for never
	relinquished atomic.Bool
	none         chan struct{} // has one where the last ended
	leaving      atomic.Bool   // each connection ends after its next response

	mu      sync.Mutex
	running int
	before  int           // of those that run, how many have begun before Leave
	settled chan struct{} // closed when there are none of them any more
}

// start counts a handler that starts, and if it does so before Leave, also for Settled. The caller calls done when the handler has ended.
func (h *handlers) start() (done func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	early := !h.leaving.Load()
	h.running++
	if early {
		h.before++
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if early {
			h.before--
			h.checkSettled()
		}
		if h.running--; h.running == 0 {
			retry.Wake(h.none)
		}
	}
}

// countRunning returns how many handlers run.
func (h *handlers) countRunning() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running
}

// closeAfterResponse makes each HTTP/1.1 connection of net/http end after its next response. Handlers that start later do not count for
// [Server.Settled].
func (h *handlers) closeAfterResponse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leaving.Store(true)
	h.checkSettled()
}

// checkSettled closes the channel of [Server.Settled] if [Server.Leave] was called and no handler that started before still runs. The caller holds
// mu.
func (h *handlers) checkSettled() {
	if h.before == 0 && h.leaving.Load() {
		close(h.settled)
	}
}

// ServeHTTP implements http.Handler: it passes a valid request to the server's handler and counts it while that runs, or after [Server.Relinquish]
// passes it to the successor, without counting it. It responds to a request with an unacceptable Host or Expect field with an error, and to OPTIONS *
// with 200. A GET or HEAD with a body, and each request after Leave, ends its HTTP/1.1 connection.
func (h *handlers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(interface{ MarkAsked() }); ok && r.ProtoMajor == 1 {
		c.MarkAsked()
	}
	if f := checkRequest(r); f != nil {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		writeFailure(w, f, false, r.Method == http.MethodHead, r.Header["Accept"])
		return
	}
	if r.Method == http.MethodOptions && r.RequestURI == "*" { // over HTTP/2; net/http handles it over HTTP/1.1
		w.Header().Set("Content-Length", "0")
		return
	}
	// Nothing wants the body of a GET. Without this net/http would wait for it before it
	// answers, with all that the response holds in memory.
	unwanted := r.ContentLength != 0 && (r.Method == http.MethodGet || r.Method == http.MethodHead)
	if r.ProtoMajor == 1 && (unwanted || h.leaving.Load()) {
		w.Header().Set("Connection", "close")
	}
	if h.relinquished.Load() {
		h.successor.ServeHTTP(w, r)
		return
	}
	defer h.start()()
	h.next.ServeHTTP(w, r)
}

// wait waits until no handler runs, in a server that accepts no requests any more. If ctx ends before, the error says how many still run.
func (h *handlers) wait(ctx context.Context) error {
	if awaitNone(ctx, h.countRunning, h.none) != nil {
		return fmt.Errorf("server: %d requests are still being handled %v after their clients were cut off", h.countRunning(), lingering)
	}
	return nil
}

// awaitNone waits until count returns 0, or ctx ends, whose error it returns then. Whatever makes it 0 has to notify changed afterwards.
func awaitNone(ctx context.Context, count func() int, changed <-chan struct{}) error {
	for count() > 0 {
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Unix begins an address that is a Unix socket's; its path follows.
const Unix = "unix:"

// OpenSocket opens a listening socket on the address host:port or unix:path, without a limit of connections; pass it to [LimitConnections]. On Linux
// the kernel's send queues of a TCP socket are short, to save memory, and so that deadlines measure the client instead of a buffer of megabytes;
// elsewhere, and for a Unix socket, the kernel's sizes stay. A Unix socket replaces one on which no process listens any more; if one listens, the
// error is EADDRINUSE. Any user may connect to it: the permissions of its folder restrict who can.
func OpenSocket(ctx context.Context, address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, Unix)
	if !isUnix {
		config := net.ListenConfig{Control: setSocketOptions}
		config.SetMultipathTCP(false) // browsers do not speak it, and all others would pay for it when they connect
		return config.Listen(ctx, "tcp", address)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, &net.OpError{Op: "listen", Net: "unix", Err: syscall.EADDRINUSE}
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			_ = os.Remove(path) // listening says why not
		}
	}
	l, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// ListenOnFile returns a listener, for [LimitConnections], on the listening socket f that another process has opened and passed on. The caller may
// close the file afterwards.
func ListenOnFile(f *os.File) (net.Listener, error) {
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	if tcp, ok := l.(*net.TCPListener); ok {
		if raw, err := tcp.SyscallConn(); err == nil {
			_ = setSocketOptions("tcp", "", raw) // as far as the system allows
		}
	}
	return l, nil
}

// LimitConnections returns a listener for each of the given ones. Together they have at most maxConnections open at a time, unless that is 0:
// near the limit a new connection evicts another, and beyond it connections wait in the kernel's queue.
func LimitConnections(maxConnections int, of ...net.Listener) []net.Listener {
	return lane.LimitAll(maxConnections, of...)
}

// errorLog passes on what net/http logs. All have one message, so that the logger of the process bounds them: a scanner that fails one TLS
// handshake after the other must not fill the disk.
type errorLog struct{ logger *slog.Logger }

// Write implements io.Writer for log.Logger. It logs a message of net/http's server as a warning. It never fails.
func (e *errorLog) Write(line []byte) (int, error) {
	e.logger.Warn("server: net/http reports a problem", "problem", string(bytes.TrimSpace(line)))
	return len(line), nil
}
