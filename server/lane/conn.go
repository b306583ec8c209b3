package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
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
	// them. It closes without a response where fewer come, but not if they are handed over,
	// as those of a first request.
	leastLater = 4
	// slack is which part of a time limit need not be given, so that a deadline is not moved
	// for each of a thousand requests a second.
	slack = 32
)

// A conn is a connection while it is the lane's. Only its owner uses it, but for its state.
type conn struct {
	lifecycle
	listener  *Listener
	openPlace int       // in listener.open, 0 if it is not there
	socket    net.Conn  // Go's; nil while only the loop has the descriptor
	secure    *tls.Conn // nil without TLS, and during the handshake
	records   *gatherer // between secure and socket

	buffer     *[bufferBytes]byte
	start, end int       // of what was read and is not answered yet
	opened     time.Time // when it was accepted, or shook hands; 0 after the first response
	now        time.Time // when the last request came, or where it took long was answered
	readBy     time.Time // the deadlines as they are
	writeBy    time.Time
	exchange   Exchange
	parts      [3][]byte   // not sent yet
	left       net.Buffers // of parts

	multiplexed atomic.Pointer[multiplexer] // nil where it is HTTP/1.1
	remote      string                      // its address, where that was looked for

	place *connEntry // in the listener's limit, or nil

	// The fields of a connection that waits on a loop.
	loop       *loop // nil where a goroutine waits
	fd         int
	added      bool // to the loop's set, or tried to be
	unread     unread
	watchesOut bool               // the loop notices when the client takes more
	unparsed   *[bufferBytes]byte // what was read behind a request whose response is being sent, from start to end; nil for nothing
	sendTimer  *time.Timer        // closes it if it waits to send for too long; nil if it never did
}

// unread is what is known of the bytes that can be read without waiting.
type unread uint8

const (
	unknown unread = iota // only a read shows it
	some                  // there are some, and a read that is short takes the last
	none
)

// errAgain says that there is nothing to read yet. It is temporary, so that crypto/tls goes
// on after it, with what it has read.
var errAgain = os.ErrDeadlineExceeded

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

// serve performs the TLS handshake of a new connection that package net has accepted, and then serves its requests in this
// goroutine until the connection is closed. It returns early if an event loop takes the connection over, or if it hands the
// connection over to net/http. Without Options.Handler it hands over each connection that has not negotiated HTTP/2, unless HTTP/2
// can begin on it without TLS.
func (c *conn) serve() {
	o := &c.listener.o
	as, next := c.handshake()
	if next == handed || next == idle && o.Handler == nil && (o.TLS != nil || !o.allowsH2C()) {
		c.handOver(as)
		return
	}
	if c.moveToLoop(next) {
		return
	}
	if next == idle {
		c.buffer = buffers.Get().(*[bufferBytes]byte)
		for c.waitForRequest() && c.enterState(c.respondToRead(time.Now())) {
		}
		buffers.Put(c.buffer)
	} else {
		c.startHTTP2(nil, time.Now())
	}
	if m := c.multiplexed.Load(); m != nil {
		m.readLoop()
	}
}

// handshake performs the TLS handshake, within its deadline. It returns the next state: idle for HTTP/1.1 (also without TLS),
// busy for HTTP/2, or handed. Only with handed, after an error or for HTTP/2 that the lane does not serve, as is not nil: the TLS
// connection that net/http gets.
func (c *conn) handshake() (as net.Conn, next state) {
	o := &c.listener.o
	if o.TLS == nil {
		return nil, idle
	}
	c.records = &gatherer{Conn: c.socket}
	t := tls.Server(c.records, o.TLS)
	_ = t.SetDeadline(c.listener.deadlines.At(Handshake, c.opened, time.Time{}))
	c.place.setHandshake(true)
	err := t.HandshakeContext(context.Background())
	c.place.setHandshake(false)
	_ = t.SetDeadline(time.Time{})
	switch protocol := t.ConnectionState().NegotiatedProtocol; {
	case err == nil && protocol == "h2" && o.Requests != nil:
		next = busy
	case err != nil || protocol != "" && protocol != "http/1.1":
		return t, handed // net/http gets the error again, responds if it can, and logs it
	default:
		next = idle
	}
	c.secure, c.opened = t, time.Now()
	return nil, next
}

// moveToLoop takes the descriptor of a TLS connection from Go's poller, lets it wait for requests on an event loop, and serves
// what came with the handshake. next is the state after the handshake: busy for HTTP/2, else idle. It returns false if the
// connection stays with its goroutine, and true if it has moved or was closed because that failed.
func (c *conn) moveToLoop(next state) bool {
	l := c.listener
	below, ok := c.socket.(*limitedConn)
	if !ok || c.secure == nil || len(l.loops) == 0 {
		return false
	}
	l.mu.Lock() // for closeHTTP1
	fd, err := below.takeDescriptor()
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
		c.startHTTP2(nil, time.Now())
	default:
		c.buffer = buffers.Get().(*[bufferBytes]byte)
		c.serveReady(time.Now()) // the first request may have come with the handshake
	}
	return true
}

// enterState acts on the next state that followed a read or a response: it starts HTTP/2 for busy, hands the connection over to
// net/http for handed, and closes it for closing. It reports whether the state is idle, so that the connection has to wait for
// the next request. For idle and sending it does nothing.
func (c *conn) enterState(next state) bool {
	switch next {
	case busy:
		c.startHTTP2(c.buffer[c.start:c.end], c.now)
	case handed:
		c.handOver(nil)
	case closing:
		c.close()
	}
	return next == idle
}

// waitingState returns the state in which the connection waits for a request: fresh, with the time when it was opened, before its
// first response, and idle, with the time of the last request, after one.
func (c *conn) waitingState() state {
	if c.opened.IsZero() {
		return idle.withStart(c.now)
	}
	return fresh.withStart(c.opened)
}

// waitForRequest waits in this goroutine until the client sends a part of its next request, or until the deadline of the phase. It
// reads that part into the buffer. It returns false if the connection is closed: by this function at the deadline or after the
// client has gone, or by another goroutine.
func (c *conn) waitForRequest() bool {
	s, ending := c.waitingState(), c.listener.endingSince()
	if s.name() == fresh {
		c.setReadDeadline(c.headDeadline())
	} else if !ending.IsZero() || needsNewDeadline(c.readBy, c.now, c.listener.o.IdleTimeout) {
		c.setReadDeadline(c.listener.deadlines.At(Idle, c.now, ending))
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

// respondToRead responds to all requests in the buffer, which were read at the time now, and reads the rest of an incomplete one.
// It returns the next state: idle when it has responded to all, sending if the client takes no more of a response, busy for
// HTTP/2, handed for a request that net/http has to serve, or closing.
func (c *conn) respondToRead(now time.Time) state {
	for c.now = now; ; c.now = time.Now() {
		n, next := c.readHead()
		if next == idle {
			next = c.respond()
		}
		if next != idle && next != sending {
			return next
		}
		c.opened = time.Time{}
		if c.start += n; next == sending {
			return sending
		}
		if c.start == c.end {
			break
		}
	}
	if c.state() != onLoop {
		c.now = time.Now() // the time to wait begins after a response that took long
	}
	return idle
}

// clearPreface is the part of the preface of HTTP/2 that distinguishes it from HTTP/1.1.
const clearPreface = "PRI "

// readHead reads and parses the head of a request whose first bytes are in the buffer. It waits for missing bytes. It returns the
// length of the head in bytes and idle. If it cannot parse the request, it returns 0 and the next state: busy if the client
// begins HTTP/2 without TLS, handed if net/http has to judge the request, or closing if the client has gone or takes too long.
func (c *conn) readHead() (int, state) {
	o := &c.listener.o
	clear := c.secure == nil && !c.opened.IsZero() && o.allowsH2C()
	for piece := 1; ; piece++ {
		n, v := 0, odd
		if begun := asString(c.buffer[c.start:c.end]); clear && strings.HasPrefix(begun, clearPreface) {
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
		switch err := c.readMore(); {
		case err == nil:
		case errors.Is(err, io.EOF) && !few:
			return 0, handed
		default:
			return 0, closing
		}
	}
}

// readMore waits until the client sends more bytes of a request, within headDeadline, and appends them to the buffer. If the
// buffer's end is reached, it first moves the unread bytes to its beginning. The goroutine leaves its event loop to another one
// first. It returns an error only if no byte has come.
func (c *conn) readMore() error {
	if err := c.prepareToWait(); err != nil {
		return err
	}
	if c.end == bufferBytes {
		c.end = copy(c.buffer[:], c.buffer[c.start:c.end])
		c.start = 0
	}
	c.setReadDeadline(c.headDeadline())
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

// headDeadline returns the time by which the head of the request must be complete: HeaderTimeout after the connection was opened,
// for its first request, or after the request came, for a later one.
func (c *conn) headDeadline() time.Time {
	since := c.now
	if !c.opened.IsZero() {
		since = c.opened
	}
	return since.Add(c.listener.o.HeaderTimeout)
}

// needsNewDeadline reports whether the caller has to set a deadline anew so that it is limit after now. It tolerates a deadline
// that is too early by up to limit/slack, because setting one costs time.
func needsNewDeadline(deadline, now time.Time, limit time.Duration) bool {
	left := deadline.Sub(now)
	return left > limit || left < limit-limit/slack
}

// setReadDeadline sets the deadline for reads, if it is another than before. It ignores an error: that means that the connection
// is closed already, and the next read fails, too.
func (c *conn) setReadDeadline(t time.Time) {
	if c.readBy != t {
		c.readBy = t
		_ = c.socket.SetReadDeadline(t)
	}
}

// extendWriteDeadline sets the deadline for writes to limit after now. It leaves a deadline that is less than limit/slack
// earlier.
func (c *conn) extendWriteDeadline(now time.Time, limit time.Duration) {
	if needsNewDeadline(c.writeBy, now, limit) {
		c.setWriteDeadline(now.Add(limit))
	}
}

// setWriteDeadline sets the deadline for writes that wait. Without a socket it only stores the deadline, which moveToPoller sets.
func (c *conn) setWriteDeadline(t time.Time) {
	c.writeBy = t
	if c.socket != nil {
		_ = c.socket.SetWriteDeadline(t)
	}
}

// respond has [Options.Handler] respond to the request that was parsed, and returns the next state: idle after a complete response,
// sending if the client has not taken all of it yet, handed if the handler does not serve the request or after Bypass, or closing
// after an error or if one side wants the connection to end. After a panic of the handler it returns closing, and logs any reason
// but http.ErrAbortHandler.
func (c *conn) respond() (next state) {
	x := &c.exchange
	x.c, x.err, x.slow, x.held = c, nil, nil, nil
	c.place.markAsked()
	x.closes = x.closes || c.listener.leaving.Load()
	defer func() {
		c.endBlocking()
		if reason := recover(); reason != nil {
			next = closing
			c.listener.logPanic(reason, x.Remote())
		}
		if next != sending {
			x.releaseBody()
		}
	}()
	if !c.listener.countForClient(c) {
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
	case x.err == nil && c.unsent() > 0:
		return sending
	case x.err != nil || answered && x.closes:
		return closing
	case !answered:
		return handed
	}
	return idle
}

// close moves the connection to the state closing, removes it from its loop and from the listener, and closes the socket. Only
// the connection's owner may call it.
func (c *conn) close() {
	c.moveTo(closing)
	c.listener.forget(c) // first: the descriptor's number may be another connection's soon
	_ = c.closeSocket()
}

// closeSocket closes the socket of a connection in the state closing, and releases a body that was not sent completely. Over
// HTTP/2 it sends GOAWAY first, and over TLS close_notify, which may take time.
func (c *conn) closeSocket() error {
	if m := c.multiplexed.Load(); m != nil {
		m.closeWaiting()
		return nil
	}
	if c.sendTimer != nil {
		c.sendTimer.Stop()
	}
	if c.exchange.held != nil {
		c.exchange.releaseBody()
	}
	if c.secure == nil && c.socket == nil {
		return c.closeDescriptor()
	}
	return c.stream().Close()
}

// stream returns the connection that the client's bytes are read from and written to: the TLS connection, or the socket without
// TLS.
func (c *conn) stream() net.Conn {
	if c.secure != nil {
		return c.secure
	}
	return c.socket
}

// handOver passes the connection to net/http, which reads first the bytes that the lane has read and not responded to. If as is not
// nil, net/http gets as instead, without these bytes. If net/http accepts no more connections, handOver closes the connection. Only
// the owner may call it.
func (c *conn) handOver(as net.Conn) {
	c.listener.countHandOver(1)
	defer c.listener.countHandOver(-1)
	c.listener.forget(c) // it must not count twice
	if c.loop != nil && c.moveToPoller() != nil {
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
		as = c.unansweredConn()
	}
	c.listener.notifyHandOver(1)
	select {
	case c.listener.handed <- as:
		c.place.setConn(nil)
		c.moveTo(handed)
	case <-c.listener.closed:
		c.listener.notifyHandOver(-1)
		c.close()
	}
}

// unansweredConn returns the connection for net/http. Its reads begin with the bytes that the lane has read and not responded to.
func (c *conn) unansweredConn() net.Conn {
	h := &handedOffConn{Conn: c.stream(), place: c.place}
	if c.end > c.start {
		h.rest = slices.Clone(c.buffer[c.start:c.end])
	}
	if c.secure != nil {
		return &handedOffTLSConn{h, c.secure.ConnectionState()}
	}
	return h
}

// A handedOffConn is read from the beginning of what the lane has not answered.
type handedOffConn struct {
	net.Conn
	rest  []byte
	place *connEntry // in the listener's limit, or nil
}

// MarkAsked records that a complete request has come, so that the connection is evicted after those that made none.
func (c *handedOffConn) MarkAsked() { c.place.markAsked() }

// Read implements io.Reader. It returns first the bytes that the lane has read and not responded to.
func (c *handedOffConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// CloseWrite closes the connection for writing. net/http calls it before it closes a connection that it has not read to the end. It
// returns nil, and does nothing, if the connection cannot be closed for writing alone.
func (c *handedOffConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// A handedOffTLSConn is a handedOffConn over TLS. It gives net/http the state of TLS.
type handedOffTLSConn struct {
	*handedOffConn
	state tls.ConnectionState
}

// ConnectionState returns the state of TLS as it was when the lane handed the connection over. net/http takes it for Request.TLS.
func (c *handedOffTLSConn) ConnectionState() tls.ConnectionState { return c.state }
