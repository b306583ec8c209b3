package lane

import (
	"errors"
	"iter"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/pace"
)

// errAborted is the error of an exchange whose handler did not end well.
var errAborted = errors.New("the handler was aborted")

// A Head is the head of an answer as it is sent, but for the date.
type Head []byte

// NewHead returns a head with those fields, in that order. Date and Connection are added
// when it is sent.
func NewHead(status int, fields iter.Seq2[string, string]) Head {
	b := make([]byte, 0, 1<<10)
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(status)...)
	for name, value := range fields {
		b = append(b, "\r\n"...)
		b = append(b, name...)
		b = append(b, ": "...)
		b = append(b, oneLine.Replace(value)...)
	}
	return slices.Clone(append(b, "\r\nDate: "...)) // heads are kept for long, and b has room
}

// oneLine is what net/http does to the values of fields, too.
var oneLine = strings.NewReplacer("\r", " ", "\n", " ")

// Scarcity says whether what an answer holds is wanted by others, who have to wait.
type Scarcity interface{ Scarce() bool }

// gatherBytes is up to how much is copied together rather than given to the system in
// parts.
const gatherBytes = 4 << 10

// gatherers are for a record of TLS, which is more than gatherBytes.
var gatherers = sync.Pool{New: func() any {
	b := make([]byte, 0, 17<<10)
	return &b
}}

// An Exchange is a request and its answer.
type Exchange struct {
	Request

	c     *conn
	err   error // of the client; nothing is sent after it
	slow  *writer
	parts [3][]byte
	left  net.Buffers // of parts
}

func (x *Exchange) begin(c *conn) {
	x.c, x.err, x.slow = c, nil, nil
	if c.listener.stopping.Load() {
		x.closes = true
	}
}

// Leave is called before something that may take long, such as reading from a disk: other
// connections wait for it only for a moment.
func (x *Exchange) Leave() { x.c.lend() }

// Send sends an answer, and returns how many bytes of the body were taken; if not all, the
// connection ends. A body of more than 64 KiB has a deadline for each of them, which is
// earlier while held is scarce; it may be nil.
func (x *Exchange) Send(head Head, body []byte, held Scarcity) int64 {
	c := x.c
	c.isBack()
	x.parts = [3][]byte{head, c.listener.clock.at(c.now, x.closes), body}
	defer func() { x.parts = [3][]byte{} }()
	if c.loop != nil && c.records == nil && x.sendNow() {
		return int64(len(body) - len(x.parts[2]))
	}
	head, end, rest := x.parts[0], x.parts[1], x.parts[2]
	taken := int64(len(body) - len(rest))
	if len(rest) <= pace.Chunk {
		c.writeBefore(c.now, c.listener.o.WriteTimeout)
		return taken + x.write(head, end, rest)
	}
	begun := time.Now()
	for now := begun; len(rest) > 0 && x.err == nil; now = time.Now() {
		n := min(len(rest), pace.Chunk)
		x.allow(now, begun, taken+int64(n), held)
		if len(head)+len(end) > 0 {
			taken += x.write(head, end, rest[:n])
			head, end = nil, nil
		} else {
			var m int
			m, x.err = c.Write(rest[:n])
			taken += int64(m)
		}
		rest = rest[n:]
	}
	return taken
}

// sendNow writes what the client takes of the parts at once, and returns whether that was
// all there will be. Else the goroutine is the connection's, to wait.
func (x *Exchange) sendNow() bool {
	if x.err = x.c.sendNow(&x.parts); x.err != nil || len(x.parts[0])+len(x.parts[1])+len(x.parts[2]) == 0 {
		return true
	}
	x.c.leave()
	x.err = x.c.adopt()
	return x.err != nil
}

// allow sets the deadline for the next chunk, after which sent bytes will have been.
func (x *Exchange) allow(now, begun time.Time, sent int64, held Scarcity) {
	p := pace.Pace{Stall: x.c.listener.o.StallTimeout, Least: pace.AssetRate}
	switch allowed := p.Allow(p.Stall, now.Sub(begun), sent, held != nil && held.Scarce()); {
	case allowed < p.Stall:
		x.c.setWriteBy(now.Add(allowed))
	default:
		x.c.writeBefore(now, p.Stall)
	}
}

// write writes the parts of an answer at once and returns how much of the body was taken.
func (x *Exchange) write(head, end, body []byte) int64 {
	before := len(head) + len(end)
	if x.c.records != nil {
		return x.encrypt(head, end, body)
	}
	if x.c.bare {
		x.parts = [3][]byte{head, end, body}
		done := x.sendNow()
		head, end, rest := x.parts[0], x.parts[1], x.parts[2]
		x.parts = [3][]byte{}
		taken := int64(len(body) - len(rest))
		if done {
			return taken
		}
		return taken + x.write(head, end, rest)
	}
	if before+len(body) <= gatherBytes {
		b := gatherers.Get().(*[]byte)
		*b = append(append(append((*b)[:0], head...), end...), body...)
		var n int
		n, x.err = x.c.Write(*b)
		gatherers.Put(b)
		return int64(max(0, n-before))
	}
	x.parts = [3][]byte{head, end, body}
	x.left = x.parts[:]
	n, err := x.left.WriteTo(x.c.Conn)
	x.parts, x.left, x.err = [3][]byte{}, nil, err
	return max(0, n-int64(before))
}

// encrypt is write for TLS, where each Write makes records of its own. The first has the
// head and as much of the body as fits.
func (x *Exchange) encrypt(head, end, body []byte) int64 {
	const record = 16 << 10 // RFC 8446 §5.1
	first := body[:min(len(body), max(0, record-len(head)-len(end)))]
	b := gatherers.Get().(*[]byte)
	*b = append(append(append((*b)[:0], head...), end...), first...)
	x.c.records.gather()
	_, x.err = x.c.Write(*b)
	gatherers.Put(b)
	if x.err == nil && len(first) < len(body) {
		_, x.err = x.c.Write(body[len(first):])
	}
	if err := x.c.records.flush(); x.err == nil {
		x.err = err
	}
	if x.err != nil {
		return 0 // nobody knows how much of a record was taken
	}
	return int64(len(body))
}

// Writer returns a way to send an answer that is not prepared. It knows deadlines as
// http.ResponseController wants them. The answer must have a Content-Length or no body.
func (x *Exchange) Writer() http.ResponseWriter {
	x.c.leave()
	if x.slow == nil {
		x.slow = &writer{x: x, header: make(http.Header)}
	}
	return x.slow
}

// finish sends what the handler has left.
func (x *Exchange) finish() {
	if x.slow == nil {
		return
	}
	x.slow.finish()
}

// A writer is an http.ResponseWriter.
type writer struct {
	x       *Exchange
	header  http.Header
	head    Head  // until it is sent
	missing int64 // of the body
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.head = NewHead(status, func(yield func(string, string) bool) {
		for _, name := range slices.Sorted(maps.Keys(w.header)) {
			for _, value := range w.header[name] {
				if !yield(name, value) {
					return
				}
			}
		}
	})
	w.missing, _ = strconv.ParseInt(w.header.Get("Content-Length"), 10, 64)
	w.x.c.writeBefore(w.x.c.now, w.x.c.listener.o.WriteTimeout)
}

func (w *writer) SetWriteDeadline(t time.Time) error {
	w.x.c.setWriteBy(t)
	return nil
}

// Write implements io.Writer. The head goes with the first bytes.
func (w *writer) Write(p []byte) (int, error) {
	x := w.x
	if x.err != nil {
		return 0, x.err
	}
	var n int
	if w.head != nil {
		n = int(x.write(w.head, x.c.listener.clock.at(time.Now(), x.closes), p))
		w.head = nil
	} else {
		n = int(x.write(nil, nil, p))
	}
	w.missing -= int64(n)
	return n, x.err
}

// finish sends the head where there is no body.
func (w *writer) finish() {
	x := w.x
	if w.head != nil && x.err == nil {
		x.write(w.head, x.c.listener.clock.at(time.Now(), x.closes), nil)
	}
	if w.missing != 0 && !x.Head && x.err == nil {
		x.err = errAborted // the client must not take what comes next for the rest
	}
}
