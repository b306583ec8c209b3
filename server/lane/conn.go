package lane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// bufferBytes bounds the head of a request that is answered here.
	bufferBytes = 4 << 10
	// pieces bounds how many reads the head of a request may come in.
	pieces = 4
	// leastLater is for how many bytes of a later request net/http waits before it judges
	// them. Where fewer come it closes without a word, which it could not know to do when
	// it is handed them as those of a first request.
	leastLater = 4
)

// The states of a connection; one that is positive is the time since when it waits for its
// next request, in nanoseconds. Who sets it to ending closes it.
const (
	busy   int64 = 0
	ending int64 = -1
	fresh  int64 = -2 // it waits for its first request
)

// A conn is a connection while it is the lane's.
type conn struct {
	// Conn waits, where a loop does not. After the handshake it is the one with TLS;
	// without TLS it is nil as long as only a loop has the descriptor.
	net.Conn
	records  *gatherer // below TLS; nil without
	listener *Listener
	state    atomic.Int64

	buffer     *[bufferBytes]byte
	start, end int       // of what was read and is not answered yet
	opened     time.Time // with TLS when the handshake ended
	now        time.Time // when the last request came, 0 before the first
	due        time.Time // for the head of a request that is there in part
	readBy     time.Time // the deadlines as they are
	writeBy    time.Time
	exchange   Exchange
	served     bool // whether a request was answered

	// Of a connection that waits for requests on a loop.
	loop    *loop
	on      *loop // while the loop's goroutine serves it
	lends   bool  // whether that goroutine has lent the loop
	fd      int
	bare    bool // whether only the loop has the descriptor, and Go does not
	ended   bool // whether the set says that the client has closed, or the like
	drained bool // whether all was read, as far as the set has told
	waiting bool // for the rest of a request, which is not the loop's to do
	vectors vectors
}

// errAgain says that there is nothing to read yet. crypto/tls goes on after an error that
// is temporary, with what it has read.
var errAgain net.Error = againError{}

type againError struct{}

func (againError) Error() string   { return "there is nothing to read yet" }
func (againError) Timeout() bool   { return false }
func (againError) Temporary() bool { return true }

var buffers = sync.Pool{New: func() any { return new([bufferBytes]byte) }}

func (c *conn) serve() {
	if c.handshake() && c.moveToLoop() {
		return
	}
	defer c.listener.end(c)
	// It was aborted, or closed, or is somebody else's already.
	if state := c.state.Load(); state == ending || state == busy && !c.state.CompareAndSwap(busy, fresh) {
		return
	}
	if c.listener.o.Handler == nil {
		c.handOver(nil)
		return
	}
	c.buffer = buffers.Get().(*[bufferBytes]byte)
	for c.next() {
	}
	// Nobody else knows of the buffer: what is handed over has its own.
	buffers.Put(c.buffer)
}

// handshake returns false where the connection is closed or handed over.
func (c *conn) handshake() bool {
	o := &c.listener.o
	if o.TLS == nil {
		return true
	}
	// It has begun something: closing it now would not make room that nobody uses.
	if !c.state.CompareAndSwap(fresh, busy) {
		return false
	}
	below := &gatherer{Conn: c.Conn}
	t := tls.Server(below, o.TLS)
	_ = t.SetDeadline(time.Now().Add(o.HeaderTimeout))
	err := t.HandshakeContext(context.Background())
	_ = t.SetDeadline(time.Time{})
	if protocol := t.ConnectionState().NegotiatedProtocol; err != nil || protocol != "" && protocol != "http/1.1" {
		// net/http is told the error again, answers where it can, and logs it.
		c.handOver(t)
		return false
	}
	c.listener.mu.Lock() // for who closes it meanwhile
	c.Conn = t
	c.listener.mu.Unlock()
	c.records, c.opened = below, time.Now()
	return true
}

// next answers the next request, or hands it over. It returns false where the connection
// is not the lane's any more.
func (c *conn) next() bool {
	if c.start < c.end {
		c.begin(time.Now())
	} else if c.start, c.end = 0, 0; !c.wait() {
		return false
	}
	return c.step()
}

// begin notes that there is something of a request.
func (c *conn) begin(now time.Time) {
	since := now
	if c.now.IsZero() {
		since = c.opened
	}
	c.now, c.due = now, since.Add(c.listener.o.HeaderTimeout)
}

// step answers a request of which there is something, as next does.
func (c *conn) step() bool {
	n, v, err := c.read()
	if err != nil {
		return c.close()
	}
	if v != complete {
		return c.handOver(nil)
	}
	x := &c.exchange
	answered := c.answer()
	switch {
	case x.err != nil:
		return c.close()
	case !answered:
		return c.handOver(nil)
	case x.closes:
		return c.close()
	}
	c.start += n
	c.served = true
	if c.on == nil {
		c.now = time.Now() // the answer may have taken long, and the wait begins after it
	}
	return true
}

// read reads the head of a request of which there is something, and returns its length.
func (c *conn) read() (int, verdict, error) {
	for piece := 1; ; piece++ {
		n, v := c.exchange.parse(c.buffer[c.start:c.end])
		few := v != complete && c.served && c.end-c.start < leastLater
		if v != partial && !few {
			return n, v, nil
		}
		if !few && (piece == pieces || c.end-c.start == bufferBytes) {
			return 0, odd, nil
		}
		switch err := c.more(); {
		case errors.Is(err, io.EOF) && !few:
			return 0, odd, nil
		case err != nil:
			return 0, odd, err
		}
	}
}

// wait reads the beginning of the next request.
func (c *conn) wait() bool {
	o := &c.listener.o
	state := fresh
	if c.now.IsZero() {
		c.readBy = c.opened.Add(o.HeaderTimeout)
		_ = c.SetReadDeadline(c.readBy)
	} else {
		state = c.now.UnixNano()
		if !c.state.CompareAndSwap(busy, state) {
			return c.close()
		}
		c.readBefore(c.now, o.IdleTimeout)
	}
	if c.listener.stopping.Load() {
		return c.close()
	}
	n, _ := c.Read(c.buffer[:]) // why there is nothing more to read does not matter
	if !c.state.CompareAndSwap(state, busy) || n == 0 {
		return c.close()
	}
	c.end = n
	c.begin(time.Now())
	return true
}

// more reads what is missing of a request.
func (c *conn) more() error {
	c.leave()
	if err := c.adopt(); err != nil {
		return err
	}
	c.waiting = true
	defer func() { c.waiting = false }()
	if c.end == bufferBytes {
		c.end = copy(c.buffer[:], c.buffer[c.start:c.end])
		c.start = 0
	}
	if c.readBy != c.due {
		c.readBy = c.due
		_ = c.SetReadDeadline(c.due)
	}
	n, err := c.Read(c.buffer[c.end:])
	c.end += n
	if n > 0 {
		return nil
	}
	return err
}

// slack is which part of a time limit need not be given, so that a deadline is not set
// anew for each of a thousand requests a second.
const slack = 32

func (c *conn) readBefore(now time.Time, limit time.Duration) {
	if left := c.readBy.Sub(now); left > limit || left < limit-limit/slack {
		c.readBy = now.Add(limit)
		_ = c.SetReadDeadline(c.readBy) // it fails where the connection is closed, as the read will
	}
}

func (c *conn) writeBefore(now time.Time, limit time.Duration) {
	if left := c.writeBy.Sub(now); left > limit || left < limit-limit/slack {
		c.setWriteBy(now.Add(limit))
	}
}

// setWriteBy sets the deadline for writes that wait: of a bare connection when it waits.
func (c *conn) setWriteBy(t time.Time) {
	c.writeBy = t
	if !c.bare {
		_ = c.SetWriteDeadline(t)
	}
}

// answer has the handler answer the request that was read.
func (c *conn) answer() (answered bool) {
	x := &c.exchange
	x.begin(c)
	defer func() {
		c.isBack()
		if reason := recover(); reason != nil {
			x.err = errAborted
			answered = false
			if reason != http.ErrAbortHandler {
				c.listener.o.Logger.Error("server: a request made a handler panic", "client", c.client(), "panic", reason, "stack", string(debug.Stack()))
			}
		}
	}()
	answered = c.listener.o.Handler.Answer(x)
	if answered {
		x.finish()
	}
	return answered
}

// client is for logs.
func (c *conn) client() net.Addr {
	if c.adopt() != nil {
		return nil
	}
	return c.RemoteAddr()
}

// close closes a connection and forgets it. It returns false, for who returns that there
// is no connection any more.
func (c *conn) close() bool {
	c.state.Store(ending)
	c.listener.end(c) // first: nobody may know of a descriptor that is another's
	_ = c.Close()
	return false
}

// Close implements net.Conn.
func (c *conn) Close() error {
	if c.Conn == nil {
		return c.closeDescriptor()
	}
	return c.Conn.Close()
}

// handOver gives the connection away, as what net/http is to see: itself, if as is nil,
// with what was read of it and not answered. It returns false.
func (c *conn) handOver(as net.Conn) bool {
	if !c.state.CompareAndSwap(busy, ending) && !c.state.CompareAndSwap(fresh, ending) {
		if c.loop != nil {
			return c.close() // it was only shut down
		}
		return false // somebody is closing it
	}
	c.listener.end(c) // it must not count twice
	if c.loop != nil {
		c.leave()
		if c.detach() != nil {
			_ = c.Close()
			return false
		}
	}
	if c.records != nil {
		c.records.of = nil
	}
	if !c.readBy.IsZero() || !c.writeBy.IsZero() {
		_ = c.SetDeadline(time.Time{})
	}
	if as == nil {
		as = c.handed()
	}
	select {
	case c.listener.handed <- as:
	case <-c.listener.closed:
		_ = c.Close()
	}
	return false
}

// handed returns the connection with what was read of it and not answered.
func (c *conn) handed() net.Conn {
	h := &handedConn{Conn: c.Conn}
	if c.end > c.start {
		h.rest = slices.Clone(c.buffer[c.start:c.end])
	}
	if t, ok := c.Conn.(*tls.Conn); ok {
		return &handedTLSConn{h, t.ConnectionState()}
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
func (c *handedConn) CloseWrite() error { return closeWrite(c.Conn) }

func closeWrite(c net.Conn) error {
	if half, ok := c.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return fmt.Errorf("lane: %T: %w", c, os.ErrInvalid)
}

// A handedTLSConn tells net/http that it is one.
type handedTLSConn struct {
	*handedConn
	state tls.ConnectionState
}

func (c *handedTLSConn) ConnectionState() tls.ConnectionState { return c.state }
