package lane

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/requests"
)

// A Handler answers requests. Answer sends a response to x and returns true, or sends
// nothing and returns false; then the connection goes to net/http, with the request, or
// over HTTP/2 the request to Options.Requests. It
// may panic with http.ErrAbortHandler to end the connection. Before it does what may block,
// such as reading from a disk, it calls [Exchange.MayBlock].
type Handler interface {
	Answer(x *Exchange) bool
}

// Options says how connections are treated. Times without a default are required.
type Options struct {
	// Handler answers what is simple. If it is nil, all connections with HTTP/1.1 are handed over,
	// with nothing read of them but the TLS handshake.
	Handler Handler
	// Requests answers what the handler does not over HTTP/2, request by request. If it is nil,
	// connections with HTTP/2 are handed over.
	Requests http.Handler
	// TooLarge answers requests over HTTP/2 with more fields than HeaderBytes allows. Required with Requests.
	TooLarge http.Handler
	// Clear accepts HTTP/2 without TLS, from clients that begin with its preface (RFC 9113 §3.3). It has no effect with TLS.
	Clear bool
	// Context is the parent of the contexts of requests over HTTP/2. Required with Requests.
	Context context.Context
	// HeaderBytes bounds the fields of a request over HTTP/2, as RFC 9113 §6.5.2 counts them. Required with Requests.
	HeaderBytes int
	// ReadTimeout is how long a client may take for the body of a request over HTTP/2, unless the
	// handler moves the deadline. Default: for ever.
	ReadTimeout time.Duration
	// TLS is the configuration of connections with TLS. Default: they have none.
	TLS *tls.Config
	// HeaderTimeout is for the TLS handshake, for the first request of a connection, and
	// for what is missing of the head of a later one.
	HeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request. It may be
	// closed a little earlier, by a thirty-second part of the time. If there are event
	// loops, a connection that is silent may be closed a little later, by an eighth of
	// the shorter one of this and HeaderTimeout.
	IdleTimeout time.Duration
	// UnansweredAtEnd is HeaderTimeout after Stop, for connections that have had no request. Default: it is as long.
	UnansweredAtEnd time.Duration
	// IdleAtEnd is IdleTimeout after Stop. It is also how long a client with HTTP/2 may take to close its connection after the
	// lane has ended it.
	IdleAtEnd time.Duration
	// WriteTimeout is how long a response may take that is not larger than 64 KiB.
	WriteTimeout time.Duration
	// StallTimeout is how long a client may take for 64 KiB of a larger one.
	StallTimeout time.Duration
	// Proxies are those that are trusted: their connections are not counted as one client's. Request.Relayed has the field in
	// which they name the client; over HTTP/1.1 not if the field's name is longer than 24 bytes. Default: none.
	Proxies *requests.Proxies
	// ProxyProtocol requires that Proxies begin each connection with the PROXY protocol, which names the client. The lane
	// closes a connection of a proxy that does not.
	ProxyProtocol bool
	// HandsOver is called with 1 before a connection comes out of Accept, and with -1 if it does not after all. It may be nil.
	HandsOver func(n int)
	// Logger gets the panics of handlers, refused proxies, and why there are no event loops; it has to bound what repeats.
	// Required.
	Logger *slog.Logger

	moved     func(from, to state) // see lifecycle
	deadlines *Deadlines           // replace those of the options, in tests
}

// Deadlines returns how long connections may stay in each phase, by the timeouts in the options.
func (o *Options) Deadlines() Deadlines {
	if o.deadlines != nil {
		return *o.deadlines
	}
	return Deadlines{
		Handshake: o.HeaderTimeout, Unanswered: o.HeaderTimeout, Idle: o.IdleTimeout,
		UnansweredAtEnd: cmp.Or(o.UnansweredAtEnd, o.HeaderTimeout), IdleAtEnd: o.IdleAtEnd,
	}
}

// allowsH2C reports whether the lane serves HTTP/2 without TLS: the option Clear is set, there is no TLS, and there is a handler
// of such requests.
func (o *Options) allowsH2C() bool { return o.Clear && o.TLS == nil && o.Requests != nil }

// A Listener is a net.Listener of the connections that are not for the lane.
type Listener struct {
	net.Listener
	o     Options
	clock clock

	handed chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once
	// closeInner closes the listener that connections come from, once.
	closeInner func() error

	deadlines Deadlines
	leaving   atomic.Bool   // each connection ends after its next response
	bypassed  atomic.Bool   // the handler answers no more requests
	stop      sync.Once     // closes stopped
	stopped   chan struct{} // closed when no more connections are accepted
	stoppedAt time.Time     // set before
	aborted   atomic.Bool   // no connection may wait for a request
	mu        sync.Mutex
	accepting bool               // or may be, of a listener whose Close ends that
	arriving  map[*conn]struct{} // those that startLater starts
	open      list[conn]
	leavers   int           // are being handed over
	none      chan struct{} // closed by ended, when stopped and none is open
	ended     sync.Once

	relay  string   // the field in which proxies name the client, or ""
	source *limited // of descriptors; nil where inner is no TCP listener
	loops  []*loop
	next   int // in loops, for the next connection
}

// New returns a listener that serves the connections of inner by the options, from now on. Its Accept returns those that net/http
// has to serve. It has event loops only on Linux, if inner is a *net.TCPListener or a result of [Limit].
func New(inner net.Listener, o Options) *Listener {
	if tcp, ok := inner.(*net.TCPListener); ok {
		inner = Limit(tcp, 0)
	}
	l := &Listener{
		Listener: inner, o: o, relay: o.Proxies.Field(),
		handed: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
		arriving: make(map[*conn]struct{}), none: make(chan struct{}), stopped: make(chan struct{}), deadlines: o.Deadlines(),
		open: newOpenList(),
	}
	bounded, ok := inner.(*limited)
	if l.accepting = ok; ok && bounded.tcp != nil {
		if l.source = bounded; o.Proxies != nil {
			bounded.trusts = o.Proxies.Trust
		}
	}
	l.closeInner = sync.OnceValue(inner.Close)
	l.startLoops()
	go l.acceptConnections()
	return l
}

// newOpenList returns an empty list of the open connections of a listener.
func newOpenList() list[conn] {
	return list[conn]{placeOf: func(c *conn) *int { return &c.openPlace }}
}

// startLoops starts one event loop for each processor, before there is any connection, and a goroutine that closes idle connections. It
// starts none if the lane itself would serve no request, if the connections do not come from a TCP listener, or if the system has no
// event loops; then each connection has a goroutine. It logs other failures.
func (l *Listener) startLoops() {
	if l.source == nil || l.o.Handler == nil && (l.o.Requests == nil || l.o.TLS == nil && !l.o.Clear) {
		return
	}
	err := l.source.prepareListener()
	for n := 0; n < priority.Processors() && err == nil; n++ {
		var loop *loop
		if loop, err = newLoop(); err == nil {
			l.loops = append(l.loops, loop)
			go loop.run()
		}
	}
	if err == nil {
		go l.sweep()
		return
	}
	for _, loop := range l.loops {
		loop.close()
	}
	l.loops = nil
	if !errors.Is(err, errors.ErrUnsupported) {
		l.o.Logger.Warn("server: there is no event loop, so each connection has a goroutine", "error", err)
	}
}

// nextLoop returns the event loop for the next connection, each in turn. There must be loops, or it panics. The caller holds mu.
func (l *Listener) nextLoop() *loop {
	l.next++
	return l.loops[l.next%len(l.loops)]
}

// acceptConnections accepts and starts connections until the listener stops or is closed. It passes each error of accepting to a caller
// of [Listener.Accept], waits until that has received it, and then goes on, unless the error is net.ErrClosed.
func (l *Listener) acceptConnections() {
	defer l.stopAccepting()
	for {
		c, err := l.accept()
		switch {
		case err == nil:
			proxied, delay := l.o.ProxyProtocol && c.place != nil && c.place.proxy, c.place.serveDelay()
			if !proxied && delay <= 0 {
				l.start(c)
				continue
			}
			l.mu.Lock()
			l.arriving[c] = struct{}{}
			l.mu.Unlock()
			go l.startLater(c, delay)
			continue
		case l.isStopped() && errors.Is(err, net.ErrClosed):
			return // those that are there may yet be handed over
		}
		// The caller of Accept decides whether to go on. After an error that passes it rests
		// a little, and this waits until it comes back.
		select {
		case l.failed <- err:
		case <-l.closed:
			return
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

// stopAccepting records that the listener accepts no more connections, and wakes Wait if it has none.
func (l *Listener) stopAccepting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.accepting = false
	l.checkNone()
}

// accept waits for a connection and accepts it. With event loops and without TLS the connection has only a descriptor, no socket of
// package net. After an error the caller must not use c.
func (l *Listener) accept() (c *conn, err error) {
	c = &conn{lifecycle: lifecycle{moved: l.o.moved}, listener: l}
	c.exchange.relay = l.relay
	if len(l.loops) > 0 && l.o.TLS == nil {
		c.fd, c.place, err = l.source.acceptDescriptor()
	} else {
		c.socket, err = l.Listener.Accept()
		if limited, ok := c.socket.(interface{ entry() *connEntry }); ok {
			c.place = limited.entry()
		}
	}
	c.place.setConn(c)
	c.opened = time.Now()
	return c, err
}

// start starts to serve a new connection, on an event loop or in a goroutine. It closes the connection if the listener has ended
// meanwhile.
func (l *Listener) start(c *conn) {
	l.mu.Lock()
	delete(l.arriving, c)
	if l.aborted.Load() || l.isOver() {
		l.checkNone()
		l.mu.Unlock()
		c.close()
		return
	}
	l.open.add(c)
	bare := c.socket == nil
	if bare {
		c.loop = l.nextLoop()
		c.moveTo(c.waitingState())
		c.loop.addNew(c)
	}
	l.mu.Unlock()
	if !bare {
		go c.serve()
	}
}

// Accept implements net.Listener: it returns the connections that are handed over to net/http. It also returns the errors of accepting
// connections, and net.ErrClosed after Close.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.handed:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It stops accepting connections and handing them over. Open connections stay until Stop or Abort.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.closeInner()
}

// logPanic logs why a handler has panicked in a request of a client, unless reason, which it recovered with, is nil or
// http.ErrAbortHandler. It must be called while the panic's stack is there.
func (l *Listener) logPanic(reason any, client string) {
	if reason != nil && reason != http.ErrAbortHandler {
		l.o.Logger.Error("server: a request made a handler panic", "client", client, "panic", reason, "stack", string(debug.Stack()))
	}
}

// forget removes a connection that is being closed or handed over from its loop and from the list of open ones.
func (l *Listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
}

// countHandOver adds n, 1 or -1, to the number of connections that are being handed over to net/http, for which Wait waits.
func (l *Listener) countHandOver(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leavers += n
	l.checkNone()
}

// notifyHandOver calls [Options.HandsOver], if it is set: with 1 before a connection is handed over to net/http, and with -1 if net/http
// does not accept it after all.
func (l *Listener) notifyHandOver(n int) {
	if l.o.HandsOver != nil {
		l.o.HandsOver(n)
	}
}

// remove removes a connection from its loop and from the list of open ones. The caller holds mu.
func (l *Listener) remove(c *conn) {
	if c.loop != nil {
		c.loop.forget(c)
	}
	l.open.remove(c)
	l.checkNone()
}

// checkNone wakes Wait if the listener was stopped, accepts no more connections, and has none left. The caller holds mu.
func (l *Listener) checkNone() {
	if len(l.open.members)+len(l.arriving)+l.leavers == 0 && !l.accepting && l.isStopped() {
		l.ended.Do(func() { close(l.none) })
	}
}

// isOver reports whether the listener was stopped and has had no connection left since.
func (l *Listener) isOver() bool {
	select {
	case <-l.none:
		return true
	default:
		return false
	}
}

// isStopped reports whether Stop was called.
func (l *Listener) isStopped() bool { return !l.endingSince().IsZero() }

// endingSince returns when Stop was called, zero before.
func (l *Listener) endingSince() time.Time {
	select {
	case <-l.stopped:
		return l.stoppedAt
	default:
		return time.Time{}
	}
}

// Leave makes each connection end after its next response, which says so. New connections are accepted, and get one response each;
// over HTTP/2 they continue until Stop.
func (l *Listener) Leave() {
	l.leaving.Store(true)
	for _, m := range l.listMultiplexers() {
		m.startEnd()
	}
}

// Bypass makes the lane respond to no later request itself: net/http does, or over HTTP/2 [Options.Requests].
func (l *Listener) Bypass() { l.bypassed.Store(true) }

// Stop stops accepting connections, and ends each open one after its next response or at the deadline of its phase. It does not
// wait for that. It hands connections over to net/http until Close.
func (l *Listener) Stop() {
	l.stop.Do(func() {
		l.stoppedAt = time.Now()
		close(l.stopped)
		if len(l.loops) == 0 {
			go l.sweep()
		}
	})
	_ = l.closeInner()
	l.Leave()
	l.mu.Lock()
	l.checkNone()
	l.mu.Unlock()
}

// closeHTTP1 closes the HTTP/1.1 connections that wait for a request and those in the TLS handshake. It makes reading and writing of the
// others fail, so that their owners close them, also those that have yet to send the header of the PROXY protocol or to be started. From
// now on no HTTP/1.1 connection waits: one that starts to closes itself.
func (l *Listener) closeHTTP1() {
	l.aborted.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range slices.Backward(l.open.members) {
		switch s := c.state(); {
		case c.multiplexed.Load() != nil:
		case s.isWaiting() && l.takeWaiting(c, s):
			go c.closeSocket() // TLS says goodbye first, and may wait for that
		case c.loop == nil:
			_ = c.socket.Close()
		default:
			c.shutDown()
		}
	}
	for c := range l.arriving {
		c.place.limit.shutDown(c.place)
	}
}

// listMultiplexers returns the open connections that use HTTP/2.
func (l *Listener) listMultiplexers() (all []*multiplexer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open.members {
		if m := c.multiplexed.Load(); m != nil {
			all = append(all, m)
		}
	}
	return all
}

// Abort calls Stop and Close, and closes or shuts down all connections at once.
func (l *Listener) Abort() {
	l.Stop()
	_ = l.Close()
	l.closeHTTP1()
	for _, m := range l.listMultiplexers() {
		m.abort()
	}
}

// Wait waits until the listener was stopped and has no connection left, or until ctx is done, and returns the error of ctx then.
func (l *Listener) Wait(ctx context.Context) error {
	select {
	case <-l.none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Counts returns how many connections the lane has open, and how many of these do not wait for a request: they are in a
// handshake, in the middle of a request, or getting a response.
func (l *Listener) Counts() (open, working int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open.members {
		if !c.state().isWaiting() {
			working++
		}
	}
	return len(l.open.members), working
}

// Len returns how many connections the lane has open, without those that net/http has.
func (l *Listener) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open.members)
}
