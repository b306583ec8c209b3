package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// A Handler answers requests. Answer sends an answer to x and returns true, or sends
// nothing and returns false; then the connection goes to net/http, with the request. It
// may panic with http.ErrAbortHandler to end the connection. Before it does what may take
// long, such as reading from a disk, it calls [Exchange.Leave].
type Handler interface {
	Answer(x *Exchange) bool
}

// Options says how connections are treated. All times are needed.
type Options struct {
	// Handler answers what is simple. Where it is nil, all connections are handed over,
	// with nothing read of them but the TLS handshake.
	Handler Handler
	// TLS is the configuration of connections with TLS. Default: they have none.
	TLS *tls.Config
	// HeaderTimeout is for the TLS handshake, for the first request of a connection, and
	// for what is missing of the head of a later one.
	HeaderTimeout time.Duration
	// IdleTimeout is how long a connection may wait for its next request. It may be
	// closed a little earlier, by a thirty-second part of the time. Where there are event
	// loops, a connection that is silent may be closed a little later, by an eighth of
	// the shorter one of this and HeaderTimeout.
	IdleTimeout time.Duration
	// WriteTimeout is how long an answer may take that is not larger than 64 KiB.
	WriteTimeout time.Duration
	// StallTimeout is how long a client may take for 64 KiB of a larger one.
	StallTimeout time.Duration
	// Opened is called after a connection was accepted. Default: nothing is.
	Opened func()
	// Logger hears of handlers that panic.
	Logger *slog.Logger
}

// A Listener is a net.Listener of the connections that are not for the lane.
type Listener struct {
	net.Listener
	o     Options
	clock clock

	handed chan net.Conn
	failed chan error
	closed chan struct{}
	once   sync.Once

	stopping atomic.Bool
	mu       sync.Mutex
	open     map[*conn]struct{}
	none     chan struct{} // closed when stopping and none is open
	idlers   []idler       // the longest idle ones, as of a while ago, longest first

	source *limited // of descriptors; nil where inner is no TCP listener
	loops  []*loop
	next   int // of them has the next connection
}

// New returns a listener that takes all connections of inner, from now on. There are
// event loops only for a *net.TCPListener and what [Limit] returns.
func New(inner net.Listener, o Options) *Listener {
	if tcp, ok := inner.(*net.TCPListener); ok {
		inner = Limit(tcp, 0)
	}
	l := &Listener{
		Listener: inner, o: o,
		handed: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
		open: make(map[*conn]struct{}), none: make(chan struct{}),
	}
	l.source, _ = inner.(*limited)
	l.startLoops()
	go l.run()
	return l
}

func (l *Listener) run() {
	accept := l.accept
	if len(l.loops) > 0 && l.o.TLS == nil {
		accept = l.acceptBare
	}
	for {
		err := accept()
		if err == nil {
			continue
		}
		// Whoever accepts decides whether to go on. After an error that passes it rests
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

func (l *Listener) accept() error {
	raw, err := l.Listener.Accept()
	if err == nil {
		l.start(raw)
	}
	return err
}

func (l *Listener) acceptBare() error {
	fd, err := l.source.acceptDescriptor()
	if err == nil {
		l.startBare(fd)
	}
	return err
}

// Accept implements net.Listener.
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

// Close ends the accepting of connections, and of those that are handed over. Others stay,
// until Stop or Abort.
func (l *Listener) Close() error {
	var err error // of the first time only: net/http closes what Stop has closed
	l.once.Do(func() {
		close(l.closed)
		err = l.Listener.Close()
	})
	return err
}

func (l *Listener) start(raw net.Conn) {
	c := &conn{listener: l, Conn: raw, opened: time.Now()}
	c.state.Store(fresh)
	l.mu.Lock()
	if l.stopping.Load() {
		l.mu.Unlock()
		_ = c.Close()
		return
	}
	l.open[c] = struct{}{}
	l.mu.Unlock()
	if l.o.Opened != nil {
		l.o.Opened()
	}
	go c.serve()
}

// end forgets c, which is closed or somebody else's.
func (l *Listener) end(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
	l.checkNone()
}

// remove is called with mu held.
func (l *Listener) remove(c *conn) {
	if _, ok := l.open[c]; ok && c.loop != nil {
		c.loop.forget(c)
	}
	delete(l.open, c)
}

// checkNone is called with mu held.
func (l *Listener) checkNone() {
	if len(l.open) > 0 || !l.stopping.Load() {
		return
	}
	select {
	case <-l.none:
	default:
		close(l.none)
	}
}

// Stop closes all connections that wait for a request, and the others after the answer
// that they are at. It does not wait for them.
func (l *Listener) Stop() {
	l.stopping.Store(true)
	l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if state := c.state.Load(); state != busy && c.state.CompareAndSwap(state, ending) {
			if c.loop != nil {
				l.remove(c) // who else would
			}
			go c.Close() // TLS says goodbye first, and may wait for that
		}
	}
	l.checkNone()
}

// Abort stops, and closes all connections at once.
func (l *Listener) Abort() {
	l.Stop()
	l.cut()
}

// cut closes all connections. Those that are not busy have nobody else to forget them if
// they are on a loop, such as one that became idle after Stop had looked at it.
func (l *Listener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		switch state := c.state.Swap(ending); {
		case c.loop == nil:
			conn := c.Conn
			go conn.Close()
		case state == busy:
			c.shutDown()
		case state != ending: // else somebody is closing it
			l.remove(c)
			go c.Close()
		}
	}
	l.checkNone()
}

// Wait returns when a listener that was stopped has no connections any more.
func (l *Listener) Wait(ctx context.Context) error {
	select {
	case <-l.none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Counts returns how many connections the lane has, and how many of them are being
// answered or in the middle of a request or handshake.
func (l *Listener) Counts() (open, working int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.state.Load() == busy {
			working++
		}
	}
	return len(l.open), working
}

// Len returns how many connections the lane has.
func (l *Listener) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}
