package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// bufferBytes bounds the head of a request that is answered here.
	bufferBytes = 4 << 10
	// pieces bounds how many reads the head of a request may come in.
	pieces = 4
	// leastLater is how many bytes of a later request net/http waits for before it judges
	// them. It closes without an answer where fewer come, but not if they are handed over,
	// as those of a first request.
	leastLater = 4
	// slack is which part of a time limit need not be given, so that a deadline is not moved
	// for each of a thousand requests a second.
	slack = 32
)

// A conn is a connection while it is the lane's. Only its owner uses it, but for its state.
type conn struct {
	lifecycle
	listener *Listener
	listed   bool // among the listener's open ones, by link
	link[*conn]
	socket  net.Conn  // Go's; nil while only the loop has the descriptor
	secure  *tls.Conn // nil without TLS, and during the handshake
	records *gatherer // between secure and socket

	buffer     *[bufferBytes]byte
	start, end int       // of what was read and is not answered yet
	opened     time.Time // when it was accepted, or shook hands; 0 after the first answer
	now        time.Time // when the last request came, or where it took long was answered
	readBy     time.Time // the deadlines as they are
	writeBy    time.Time
	exchange   Exchange
	parts      [3][]byte   // what is left to send
	left       net.Buffers // of parts

	multiplexed atomic.Pointer[multiplexer] // nil where it is HTTP/1.1
	remote      string                      // its address, where that was looked for

	place *place // in the listener's room, or nil

	// Of a connection that waits on a loop.
	loop   *loop // nil where a goroutine waits
	fd     int
	added  bool // to the loop's set, or tried to be
	unread unread
}

// unread is what is known of the bytes that can be read without waiting.
type unread uint8

const (
	unknown unread = iota // a read tells
	some                  // there are some, and a read that is short takes the last
	none
)

// errAgain says that there is nothing to read yet. It is temporary, so that crypto/tls goes
// on after it, with what it has read.
var errAgain = os.ErrDeadlineExceeded

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// serve shakes hands, and goes on with a connection that does not wait on a loop.
func (c *conn) serve() {
	o := &c.listener.o
	as, next := c.handshake()
	if next == handed || next == idle && o.Handler == nil && (o.TLS != nil || !o.speaksClear()) {
		c.handOver(as)
		return
	}
	if c.moveToLoop(next) {
		return
	}
	if next == idle {
		c.buffer = buffers.Get().(*[bufferBytes]byte)
		for c.wait() && c.settle(c.answerRead(time.Now())) {
		}
		buffers.Put(c.buffer)
	} else {
		c.multiplex(nil, time.Now())
	}
	if m := c.multiplexed.Load(); m != nil {
		m.read()
	}
}

// handshake returns idle, or busy where the client wants HTTP/2, or what to hand over.
func (c *conn) handshake() (as net.Conn, next state) {
	o := &c.listener.o
	if o.TLS == nil {
		return nil, idle
	}
	c.records = &gatherer{Conn: c.socket}
	t := tls.Server(c.records, o.TLS)
	_ = t.SetDeadline(c.listener.deadlines.At(Handshake, c.opened, time.Time{}))
	err := t.HandshakeContext(context.Background())
	_ = t.SetDeadline(time.Time{})
	switch protocol := t.ConnectionState().NegotiatedProtocol; {
	case err == nil && protocol == "h2" && o.Requests != nil:
		next = busy
	case err != nil || protocol != "" && protocol != "http/1.1":
		return t, handed // net/http is told the error again, answers where it can, and logs it
	default:
		next = idle
	}
	c.secure, c.opened = t, time.Now()
	return nil, next
}

// moveToLoop has a connection with TLS wait for its requests on a loop. It returns false
// where it stays with its goroutine.
func (c *conn) moveToLoop(next state) bool {
	l := c.listener
	below, ok := c.socket.(*limitedConn)
	if !ok || c.secure == nil || len(l.loops) == 0 {
		return false
	}
	l.mu.Lock() // for cut
	fd, err := below.descriptor()
	if err == nil {
		c.moveTo(alone)
		c.socket, c.records.Conn, c.records.of = nil, nil, c
		c.fd, c.loop = fd, l.nextLoop()
		err = c.loop.add(c)
	}
	l.mu.Unlock()
	switch {
	case c.loop == nil:
		return false
	case err != nil:
		c.close()
	case next == busy:
		c.multiplex(nil, time.Now())
	default:
		c.buffer = buffers.Get().(*[bufferBytes]byte)
		c.serveReady(time.Now()) // the first request may have come with the handshake
	}
	return true
}

// settle moves c to the state that answering has come to, unless that is to wait, and reports
// whether the lane still has c.
func (c *conn) settle(next state) bool {
	switch next {
	case busy:
		c.multiplex(c.buffer[c.start:c.end], c.now)
	case handed:
		c.handOver(nil)
	case closing:
		c.close()
	}
	return next == idle
}

// waitingState is the state that c has when it begins to wait for a request.
func (c *conn) waitingState() state {
	if c.opened.IsZero() {
		return idle.since(c.now)
	}
	return fresh.since(c.opened)
}

// wait reads the beginning of the next request. It returns false where c is closed.
func (c *conn) wait() bool {
	s, ending := c.waitingState(), c.listener.endingSince()
	if s.name() == fresh {
		c.setReadBy(c.headBy())
	} else if !ending.IsZero() || isDue(c.readBy, c.now, c.listener.o.IdleTimeout) {
		c.setReadBy(c.listener.deadlines.At(Idle, c.now, ending))
	}
	c.moveTo(s)
	if !c.listener.aborted.Load() {
		n, _ := c.stream().Read(c.buffer[:]) // why there is nothing more to read does not matter
		if c.start, c.end = 0, n; n > 0 {
			return c.move(s, alone)
		}
	}
	c.listener.closeWaiting(c, s)
	return false
}

// answerRead answers the requests that were read at that time, and returns the state that
// c goes to: idle (or fresh), handed or closing.
func (c *conn) answerRead(now time.Time) state {
	for c.now = now; ; c.now = time.Now() {
		n, next := c.read()
		if next == idle {
			next = c.answer()
		}
		if next != idle {
			return next
		}
		c.opened = time.Time{}
		if c.start += n; c.start == c.end {
			break
		}
	}
	if c.state() != onLoop {
		c.now = time.Now() // the time to wait begins after an answer that took long
	}
	return idle
}

// clearPreface is as much of the beginning of HTTP/2 as tells it from HTTP/1.1.
const clearPreface = "PRI "

// read reads the head of a request that has begun. It returns its length and idle, or the
// state that c goes to.
func (c *conn) read() (int, state) {
	o := &c.listener.o
	clear := c.secure == nil && !c.opened.IsZero() && o.speaksClear()
	for piece := 1; ; piece++ {
		n, v := 0, odd
		if begun := text(c.buffer[c.start:c.end]); clear && strings.HasPrefix(begun, clearPreface) {
			return 0, busy
		} else if clear && strings.HasPrefix(clearPreface, begun) {
			v = partial
		} else if o.Handler != nil {
			n, v = c.exchange.parse(c.buffer[c.start:c.end])
		}
		few := v != complete && c.opened.IsZero() && c.end-c.start < leastLater
		switch {
		case v == complete:
			return n, idle
		case !few && (v == odd || piece == pieces || c.end-c.start == bufferBytes):
			return 0, handed
		}
		switch err := c.more(); {
		case err == nil:
		case errors.Is(err, io.EOF) && !few:
			return 0, handed
		default:
			return 0, closing
		}
	}
}

// more waits for what is missing of a request.
func (c *conn) more() error {
	if err := c.prepareToWait(); err != nil {
		return err
	}
	if c.end == bufferBytes {
		c.end = copy(c.buffer[:], c.buffer[c.start:c.end])
		c.start = 0
	}
	c.setReadBy(c.headBy())
	if c.loop != nil && c.records != nil {
		c.records.of = nil // this waits
		defer func() { c.records.of = c }()
	}
	n, err := c.stream().Read(c.buffer[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	return err
}

// headBy is when the head of the request that comes must be there.
func (c *conn) headBy() time.Time {
	since := c.now
	if !c.opened.IsZero() {
		since = c.opened
	}
	return since.Add(c.listener.o.HeaderTimeout)
}

// isDue reports whether a deadline is to be moved, to limit after now.
func isDue(deadline, now time.Time, limit time.Duration) bool {
	left := deadline.Sub(now)
	return left > limit || left < limit-limit/slack
}

// setReadBy sets the deadline for reads. That fails where c is closed, as the read will.
func (c *conn) setReadBy(t time.Time) {
	if c.readBy != t {
		c.readBy = t
		_ = c.socket.SetReadDeadline(t)
	}
}

func (c *conn) writeBefore(now time.Time, limit time.Duration) {
	if isDue(c.writeBy, now, limit) {
		c.setWriteBy(now.Add(limit))
	}
}

// setWriteBy sets the deadline for writes that wait; leaveSet does where none can yet.
func (c *conn) setWriteBy(t time.Time) {
	c.writeBy = t
	if c.socket != nil {
		_ = c.socket.SetWriteDeadline(t)
	}
}

// answer has the handler answer the request that was read, and returns as answerRead does.
func (c *conn) answer() (next state) {
	x := &c.exchange
	x.c, x.err, x.slow = c, nil, nil
	x.closes = x.closes || c.listener.leaving.Load()
	defer func() {
		c.isBack()
		if reason := recover(); reason != nil {
			next = closing
			if reason != http.ErrAbortHandler {
				c.listener.o.Logger.Error("server: a request made a handler panic", "client", c.client(), "panic", reason, "stack", string(debug.Stack()))
			}
		}
	}()
	if !c.listener.hasRoomFor(c) {
		return closing
	}
	if c.listener.bypassed.Load() {
		return handed
	}
	answered := c.listener.o.Handler.Answer(x)
	if answered && x.slow != nil {
		x.slow.finish()
	}
	switch {
	case x.err != nil || answered && x.closes:
		return closing
	case !answered:
		return handed
	}
	return idle
}

// client is for logs.
func (c *conn) client() net.Addr {
	if c.prepareToWait() != nil {
		return nil
	}
	return c.socket.RemoteAddr()
}

// close is for the owner.
func (c *conn) close() {
	c.moveTo(closing)
	c.listener.end(c) // first: the descriptor's number may be another connection's soon
	_ = c.shut()
}

// shut is for the goroutine that has moved c to closing. TLS says goodbye first, which may
// take time.
func (c *conn) shut() error {
	if m := c.multiplexed.Load(); m != nil {
		m.goodbye()
		return nil
	}
	if c.secure == nil && c.socket == nil {
		return c.closeDescriptor()
	}
	return c.stream().Close()
}

// stream is what the client sends and reads.
func (c *conn) stream() net.Conn {
	if c.secure != nil {
		return c.secure
	}
	return c.socket
}

// handOver is for the owner. It gives net/http as, or if that is nil c itself, with what was
// read of it and not answered.
func (c *conn) handOver(as net.Conn) {
	c.listener.handing(1)
	defer c.listener.handing(-1)
	c.listener.end(c) // it must not count twice
	if c.loop != nil && c.leaveSet() != nil {
		c.close()
		return
	}
	if c.records != nil {
		c.records.of = nil
	}
	if !c.readBy.IsZero() || !c.writeBy.IsZero() {
		_ = c.socket.SetDeadline(time.Time{})
	}
	if as == nil {
		as = c.rest()
	}
	c.listener.handsOver(1)
	select {
	case c.listener.handed <- as:
		c.place.become(nil)
		c.moveTo(handed)
	case <-c.listener.closed:
		c.listener.handsOver(-1)
		c.close()
	}
}

// rest returns what net/http reads from the first byte that is not answered.
func (c *conn) rest() net.Conn {
	h := &handedConn{Conn: c.stream()}
	if c.end > c.start {
		h.rest = slices.Clone(c.buffer[c.start:c.end])
	}
	if c.secure != nil {
		return &handedTLSConn{h, c.secure.ConnectionState()}
	}
	return h
}

// A handedConn is read from the beginning of what the lane has not answered.
type handedConn struct {
	net.Conn
	rest []byte
}

func (c *handedConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// CloseWrite is what net/http calls before it closes a connection that it has not read
// to the end.
func (c *handedConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// A handedTLSConn tells net/http that it is one.
type handedTLSConn struct {
	*handedConn
	state tls.ConnectionState
}

func (c *handedTLSConn) ConnectionState() tls.ConnectionState { return c.state }
