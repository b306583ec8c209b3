package lane

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane/h2"
)

// A Head is the head of a response as it is sent, but for the date.
type Head []byte

// NewHead returns the head of a response over HTTP/1.1 with a status line and the fields, in their order. It replaces line ends
// in values with spaces. The head ends with "Date: "; the lane adds the value and Connection when it sends the head.
func NewHead(status int, fields ...answers.Field) Head {
	b := fmt.Appendf(nil, "HTTP/1.1 %d %s", status, http.StatusText(status))
	for _, f := range fields {
		b = fmt.Appendf(b, "\r\n%s: %s", f.Name, oneLine.Replace(f.Value))
	}
	return slices.Clone(append(b, "\r\nDate: "...)) // heads are kept for long, and b has room
}

// oneLine is what net/http does to the values of fields, too.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// An Exchange is a request and its response.
type Exchange struct {
	Request

	c    *conn
	err  error // of the client; nothing is sent after it
	slow *writer
	held h2.Held // of the body that is being sent, or nil

	// The state of the body over HTTP/1.1.
	size, missing int       // its bytes, and those that are not sent because sending has failed
	begun         time.Time // when sending began
	chunkEnd      int       // up to where it must have been sent at chunkBy, if the connection waits to send
	chunkBy       time.Time

	// Over HTTP/2.
	stream *h2.Stream
	brief  *bufferedResponse
	later  bool // it cannot be answered now
}

// MayBlock announces that the handler is about to do something that may block, such as reading from a disk. Over HTTP/1.1 it lets
// another goroutine take over the event loop if that takes long, until the handler calls Send or Writer or returns, and returns
// true. Over HTTP/2 it returns false: the handler must return without a response, and is called again later, or an http.Handler
// is called instead.
func (x *Exchange) MayBlock() bool {
	if x.stream != nil {
		x.later = true
		return false
	}
	x.c.allowBlocking()
	return true
}

// Multiplexed reports whether the response goes over HTTP/2, so that its head is a header block.
func (x *Exchange) Multiplexed() bool { return x.stream != nil }

// Ready reports whether the client can take a body now. The handler must call it before it takes a body from memory. If it
// returns false, which only happens over HTTP/2, the handler must return without a response, and is called again when the client
// can take one.
func (x *Exchange) Ready() bool {
	if x.stream == nil || x.stream.CanSend() {
		return true
	}
	x.later = true
	return false
}

// Held returns the holder of the body that was passed to Send, as long as the body has not been released. It is nil if Send was
// not called, or was called without a holder.
func (x *Exchange) Held() h2.Held { return x.held }

// Send sends a response: head, which is a header block over HTTP/2 and else from NewHead, and body. The caller may reuse head
// afterwards. The lane calls held.Release when the body has been sent or sending has failed, which may be after the handler has
// returned. Without held, body must never change. Over HTTP/1.1 Send waits for the client, except on an event loop without TLS, where
// the loop sends later what the system does not take at once. Over HTTP/1.1 each 64 KiB of a body have their own deadline, which is
// earlier if held reports memory pressure.
func (x *Exchange) Send(head Head, body []byte, held h2.Held) {
	x.held = held
	if x.stream != nil {
		x.stream.Send(head, x.c.listener.clock.dateField(x.c.now), body, held)
		return
	}
	c := x.c
	c.endBlocking()
	c.parts = [3][]byte{head, c.listener.clock.headEnd(c.now, x.closes), body}
	x.size, x.missing, x.begun, x.chunkEnd = len(body), 0, c.now, 0
	if c.loop != nil && c.secure == nil {
		x.err = c.sendNow() // the loop sends the rest when the client takes more
		c.parts[0] = bytes.Clone(c.parts[0])
		return
	}
	rest := body
	for now := c.now; ; now = time.Now() {
		c.parts[2] = rest[:min(len(rest), answers.Chunk)]
		if rest = rest[len(c.parts[2]):]; len(body) <= answers.Chunk {
			c.extendWriteDeadline(now, c.listener.o.WriteTimeout)
		} else if allowed := x.timeForChunk(now, len(body)-len(rest)); allowed < c.listener.o.StallTimeout {
			c.setWriteDeadline(now.Add(allowed))
		} else {
			c.extendWriteDeadline(now, allowed)
		}
		if left := x.write(); x.err != nil || len(rest) == 0 {
			x.missing = left + len(rest)
			return
		}
	}
}

// timeForChunk returns how long the client may take for the next 64 KiB of a body over HTTP/1.1. sent is how many bytes of the
// body will have been sent after them. The time is shorter if memory or connections are scarce.
func (x *Exchange) timeForChunk(now time.Time, sent int) time.Duration {
	p := answers.Pace{Stall: x.c.listener.o.StallTimeout, Least: answers.AssetRate}
	return p.TimeFor(p.Stall, now.Sub(x.begun), int64(sent), x.held != nil && x.held.Scarce() || x.MustHurry())
}

// sendTimeout returns how much longer than now the client of a connection on an event loop may take until the lane can send the rest of
// the current chunk: 64 KiB of a large body, or all of a small one, whose time begins with the response. It sets the deadline of a
// chunk when that begins, and returns the rest of its time later. The result is at least a millisecond, also if the deadline has
// passed.
func (x *Exchange) sendTimeout(now time.Time) time.Duration {
	c, sent := x.c, x.size-len(x.c.parts[2])
	switch {
	case sent < x.chunkEnd:
	case x.size <= answers.Chunk:
		x.chunkEnd, x.chunkBy = x.size, x.begun.Add(c.listener.o.WriteTimeout)
	default:
		x.chunkEnd = min(x.size, sent+answers.Chunk)
		x.chunkBy = now.Add(x.timeForChunk(now, x.chunkEnd))
	}
	return max(time.Millisecond, x.chunkBy.Sub(now))
}

// releaseBody forgets the unsent rest of a response and releases the body to its holder, if it has one, with how many bytes were
// sent. The lane calls it after a response over HTTP/1.1 was sent, or has failed.
func (x *Exchange) releaseBody() {
	x.missing += x.c.clearParts()
	if held := x.held; held != nil {
		x.held = nil
		held.Release(int64(x.size - x.missing))
	}
}

// MustHurry reports whether the listener is near its limit of connections, so that clients get less time for a response.
func (x *Exchange) MustHurry() bool { return x.c.listener.Scarce() }

// write sends the parts of a response over HTTP/1.1, with or without TLS, and waits for the client if necessary. It stores an
// error in x.err. It returns how many bytes of the last part, the body, were not sent.
func (x *Exchange) write() int {
	if x.c.secure != nil {
		x.err = x.c.sendTLS()
	} else {
		x.err = x.c.send()
	}
	return x.c.clearParts()
}

// Writer returns an http.ResponseWriter for a response that is generated, not prepared. The handler must set Content-Length
// unless there is no body, and must call WriteHeader. Over HTTP/1.1 the writer sends as it is written to and supports the write
// deadlines of http.ResponseController; the goroutine leaves its event loop, because it may wait. Over HTTP/2 the writer buffers
// the response until the handler returns.
func (x *Exchange) Writer() http.ResponseWriter {
	if x.stream != nil {
		if x.brief == nil {
			x.brief = &bufferedResponse{header: make(http.Header)}
		}
		return x.brief
	}
	x.c.leaveLoop()
	if x.slow == nil {
		x.slow = &writer{x: x, header: make(http.Header)}
	}
	return x.slow
}

// A writer is an http.ResponseWriter.
type writer struct {
	x       *Exchange
	header  http.Header
	head    Head  // until it is sent
	missing int64 // of the body
}

// Header implements http.ResponseWriter. Changes after WriteHeader have no effect.
func (w *writer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. It prepares the head, which is sent with the first bytes of the body or at the end of
// the response, and sets the deadline for writes. The handler must call it exactly once, before Write, with the final status: unlike
// net/http it checks neither a second call nor an informational status (1xx).
func (w *writer) WriteHeader(status int) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = w.header.Write(&b)
	b.WriteString("Date: ")
	w.head = b.Bytes()
	w.missing, _ = strconv.ParseInt(w.header.Get("Content-Length"), 10, 64)
	w.x.c.extendWriteDeadline(w.x.c.now, w.x.c.listener.o.WriteTimeout)
}

// SetWriteDeadline implements the method for http.ResponseController. It never fails.
func (w *writer) SetWriteDeadline(t time.Time) error {
	w.x.c.setWriteDeadline(t)
	return nil
}

// Write implements io.Writer. It sends a part of the body at once, with the head before the first part, and waits for the client
// if necessary.
func (w *writer) Write(p []byte) (int, error) {
	x := w.x
	if x.err != nil {
		return 0, x.err
	}
	x.c.parts[2] = p
	if w.head != nil {
		x.c.parts[0], x.c.parts[1] = w.head, x.c.listener.clock.headEnd(time.Now(), x.closes)
		w.head = nil
	}
	n := len(p) - x.write()
	w.missing -= int64(n)
	return n, x.err
}

// finish ends the response after the handler has returned. It sends the head if the handler has written no body. If the handler
// has written less than Content-Length says, it stores an error, so that the connection is closed.
func (w *writer) finish() {
	x := w.x
	if w.head != nil {
		_, _ = w.Write(nil)
	}
	if w.missing != 0 && !x.Head && x.err == nil {
		x.err = io.ErrShortWrite // the client must not take what comes next for the rest
	}
}

// A bufferedResponse is a response over HTTP/2 that is not prepared. It is complete before it is sent.
type bufferedResponse struct {
	header http.Header
	status int
	body   []byte
}

// Header implements http.ResponseWriter.
func (b *bufferedResponse) Header() http.Header { return b.header }

// WriteHeader implements http.ResponseWriter. It only stores the status; later calls replace it.
func (b *bufferedResponse) WriteHeader(status int) { b.status = status }

// Write implements io.Writer. It appends p to the body in memory, of any size, and never fails. Unlike net/http it sets no status: the
// handler must call WriteHeader.
func (b *bufferedResponse) Write(p []byte) (int, error) {
	b.body = append(b.body, p...)
	return len(p), nil
}

// send sends the buffered response with the exchange's Send, which needs HTTP/2.
func (b *bufferedResponse) send(x *Exchange) {
	x.Send(appendFields(h2.AppendStatus(nil, b.status), b.header), b.body, nil)
}

// A clock has the end of a head ready: the value of Date, and what comes after it.
type clock struct{ now atomic.Pointer[stamp] }

// A stamp has the text of a second in the forms that heads need.
type stamp struct {
	second        int64
	open, closing []byte // where the connection stays open, and where not
	block         []byte // of HTTP/2: all of the field
}

// headEnd returns the end of a head of HTTP/1.1 that is sent at the time now: the value of Date, Connection: close if closes is set,
// and the empty line. The result is shared; the caller must not modify it.
func (c *clock) headEnd(now time.Time, closes bool) []byte {
	if s := c.formatSecond(now); closes {
		return s.closing
	} else {
		return s.open
	}
}

// dateField returns the encoded Date field for a header block of HTTP/2 that is sent at the time now. The result is shared; the caller
// must not modify it.
func (c *clock) dateField(now time.Time) []byte { return c.formatSecond(now).block }

// formatSecond returns the Date of the second of now, in each of the forms in which heads need it. It caches the result for the
// last second.
func (c *clock) formatSecond(now time.Time) *stamp {
	s := c.now.Load()
	if second := now.Unix(); s == nil || s.second != second {
		date := now.UTC().Format(http.TimeFormat)
		s = &stamp{second, []byte(date + "\r\n\r\n"), []byte(date + "\r\nConnection: close\r\n\r\n"), h2.AppendField(nil, "date", date)}
		c.now.Store(s)
	}
	return s
}

const (
	// leastParts is up to how many bytes are copied rather than given to Go in parts.
	leastParts = 4 << 10
	// gathered bounds what a client that takes nothing holds: two records and a little.
	gathered = 34 << 10
	// record is what a record of TLS holds (RFC 8446 §5.1).
	record = 16 << 10
)

// copies hold a record and its overhead, or what is copied.
var copies, gatherings = newBufferPool(record + 1<<10), newBufferPool(gathered)

// newBufferPool returns a pool of *[]byte, each empty and with a capacity of size bytes.
func newBufferPool(size int) *sync.Pool {
	return &sync.Pool{New: func() any {
		b := make([]byte, 0, size)
		return &b
	}}
}

// unsent returns how many bytes of the response's parts (head, end of the head, body) are not sent yet.
func (c *conn) unsent() int { return len(c.parts[0]) + len(c.parts[1]) + len(c.parts[2]) }

// removeSent removes the first n bytes, which were sent, from the response's parts.
func (c *conn) removeSent(n int) {
	for i := range c.parts {
		m := min(n, len(c.parts[i]))
		c.parts[i] = c.parts[i][m:]
		n -= m
	}
}

// clearParts forgets all parts of the response, and returns how many bytes of the last part, the body, were not sent.
func (c *conn) clearParts() int {
	left := len(c.parts[2])
	c.parts = [3][]byte{}
	return left
}

// joinParts returns a copy of all parts in one buffer, which the caller puts back into the pool copies.
func (c *conn) joinParts() *[]byte {
	b := copies.Get().(*[]byte)
	*b = append(append(append((*b)[:0], c.parts[0]...), c.parts[1]...), c.parts[2]...)
	return b
}

// send sends the response's parts without TLS, and waits for the client if necessary. On an event loop it first sends what the system
// takes at once; only if something is left, it leaves the loop to another goroutine and waits. In the state closing it does not wait,
// and returns io.ErrShortWrite. The parts that were not sent stay in c.parts.
func (c *conn) send() error {
	if c.loop != nil && (c.socket == nil || c.state() != alone) {
		if err := c.sendNow(); err != nil || c.unsent() == 0 {
			return err
		}
		if c.state() == closing {
			return io.ErrShortWrite // TLS says goodbye, which is not worth waiting
		}
		if err := c.prepareToWait(); err != nil {
			return err
		}
	}
	if c.unsent() > leastParts {
		c.left = c.parts[:]
		_, err := c.left.WriteTo(c.socket)
		c.left = nil
		return err
	}
	b := c.joinParts()
	n, err := c.socket.Write(*b)
	copies.Put(b)
	c.removeSent(n)
	return err
}

// sendTLS sends the response's parts over TLS, in as few system calls as possible, and waits for the client if necessary. The
// first record has the head and as much of the body as fits. After an error all of the body counts as unsent, because it is
// unknown how much of a record the client has received.
func (c *conn) sendTLS() (err error) {
	body := c.parts[2]
	rest := body
	kept := gatherings.Get().(*[]byte)
	*kept = (*kept)[:0]
	c.records.kept = kept
	if n := c.unsent() - len(body); n > 0 {
		c.parts[2] = body[:min(len(body), max(0, record-n))]
		rest = body[len(c.parts[2]):]
		b := c.joinParts()
		_, err = c.secure.Write(*b)
		copies.Put(b)
	}
	if err == nil && len(rest) > 0 {
		_, err = c.secure.Write(rest)
	}
	c.records.kept = nil
	_, e := c.records.Write(*kept)
	gatherings.Put(kept)
	err = cmp.Or(err, e)
	if c.clearParts(); err != nil {
		c.parts[2] = body
	}
	return err
}

// A gatherer is what TLS reads and writes its records from and to. While it gathers it keeps
// what is written, so that the records of a response go to the system together.
type gatherer struct {
	net.Conn              // the socket; nil while only a loop has the descriptor
	of       *conn        // whose loop must not wait, so that reading fails with errAgain; or nil
	kept     *[]byte      // nil while it does not gather
	m        *multiplexer // which gathers all that is written, and sends it; or nil
}

// Read implements io.Reader for crypto/tls. For a connection on an event loop it does not wait: it returns errAgain if there is
// nothing to read.
func (g *gatherer) Read(p []byte) (int, error) {
	if g.of == nil {
		return g.Conn.Read(p)
	}
	return g.of.receiveNow(p)
}

// writeThrough sends encrypted bytes to the client now, without gathering them, and returns how many were sent. It waits for the client
// if necessary, unless the connection is being closed; then it returns io.ErrShortWrite.
func (g *gatherer) writeThrough(p []byte) (int, error) {
	c := g.of
	if c == nil {
		return g.Conn.Write(p)
	}
	c.parts = [3][]byte{2: p}
	err := c.send()
	return len(p) - c.clearParts(), err
}

// Write implements io.Writer for crypto/tls. It adds a TLS record to what the multiplexer (HTTP/2) or sendTLS gathers, so that
// several are sent with one system call. If none gathers, it sends the record at once.
func (g *gatherer) Write(p []byte) (int, error) {
	if g.m != nil {
		g.m.addRecord(p)
		return len(p), nil
	}
	if g.kept == nil {
		return g.writeThrough(p)
	}
	if len(*g.kept)+len(p) > cap(*g.kept) {
		if _, err := g.writeThrough(*g.kept); err != nil {
			return 0, err
		}
		*g.kept = (*g.kept)[:0]
	}
	*g.kept = append(*g.kept, p...) // a record is always smaller
	return len(p), nil
}

// Close implements net.Conn for crypto/tls. It closes the socket, or the descriptor of a connection that only an event loop has.
func (g *gatherer) Close() error {
	if g.Conn == nil {
		return g.of.closeDescriptor()
	}
	return g.Conn.Close()
}

// SetWriteDeadline implements net.Conn for crypto/tls. It does nothing for a connection that only an event loop has.
func (g *gatherer) SetWriteDeadline(t time.Time) error {
	if g.Conn == nil {
		return nil
	}
	return g.Conn.SetWriteDeadline(t)
}
