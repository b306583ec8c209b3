package lane

import (
	"crypto/tls"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane/h2"
)

const (
	// wideBytes is how much is read at once of a connection with HTTP/2, which has many requests.
	wideBytes = 16 << 10
	// mostLoads is how many requests of a connection are answered at a time with what was not in
	// memory, or is inflated. Each may hold a body, or what inflates one.
	mostLoads = 16
)

var wides = sync.Pool{New: func() any { return new([wideBytes]byte) }}

// A multiplexer is the HTTP/2 of a connection. All that package h2 does happens with mu held, by
// the goroutine that has something to do: the loop's or the connection's, where the client has sent
// something or takes more, a handler's, a timer's. They do not wait with mu held. Where there is no
// loop, one goroutine reads and one writes.
type multiplexer struct {
	c    *conn
	mu   sync.Mutex
	h    *h2.Conn
	o    h2.Options
	more sync.Cond // tells the goroutines without a loop

	out      *h2.Out // gathered and not sent yet; nil where there is nothing
	sealed   *[]byte // with TLS on a loop, the records that are not sent yet from sealedAt on; or nil
	sealedAt int
	begun    time.Time // when out was gathered
	allowed  time.Duration
	sent     int64         // since the connection was idle
	waited   time.Duration // for the client to take it

	last  uint32    // the stream that was opened last
	asked time.Time // when there last was one, or before the first one, when the client greeted

	timer     *time.Timer
	armed     time.Time // when the timer is due, zero where it is not running
	ending    bool      // the connection ends after the requests that have come
	announced time.Time // when GOAWAY was queued, zero before
	lingers   time.Time // until when one is read from to which nothing more is sent
	running   int       // handlers
	loads     int       // of them, those that wait for what is not in memory
	halted    bool      // not all that came was read
	ended     bool      // it is closed, or is being closed
}

// multiplex has c speak HTTP/2 from now on, with b read already. It is for the owner.
func (c *conn) multiplex(b []byte, now time.Time) *multiplexer {
	o := &c.listener.o
	m := &multiplexer{c: c, halted: true} // some may have come with the handshake
	m.o = h2.Options{Server: m, HeaderTimeout: o.HeaderTimeout, Stall: o.StallTimeout, HeaderBytes: o.HeaderBytes, Streams: answers.Streams}
	m.h = h2.New(&m.o, now)
	if c.secure != nil {
		if s := c.secure.ConnectionState(); !isSafe(&s) {
			m.h.Fail(h2.InadequateSecurity)
		}
	}
	m.more.L = &m.mu
	c.exchange.c = c
	if c.socket != nil {
		c.setReadBy(time.Time{})
		c.setWriteBy(time.Time{})
	}
	if c.records != nil && c.loop != nil {
		c.records.m = m
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	c.multiplexed.Store(m)
	c.moveTo(busy)
	m.ending = c.listener.isStopped()
	if c.loop == nil {
		go m.write()
	}
	m.receive(b, now)
	m.settle(now)
	return m
}

// isSafe reports whether HTTP/2 may be spoken over such a connection (RFC 9113 §9.2).
func isSafe(s *tls.ConnectionState) bool {
	switch s.CipherSuite {
	case tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return s.Version == tls.VersionTLS12
	}
	return s.Version >= tls.VersionTLS13
}

// own makes c busy, and returns false where another goroutine closes it.
func (m *multiplexer) own() bool {
	for {
		switch s := m.c.state(); {
		case m.ended:
			return false
		case s.name() == busy:
			return true
		case !s.waits():
			return false
		case m.c.move(s, busy):
			return true
		}
	}
}

// receive takes what the client has sent. As are all methods below, it is called with mu held
// while c is busy.
func (m *multiplexer) receive(b []byte, now time.Time) {
	if m.c.now = now; m.lingers.IsZero() && len(b) > 0 {
		m.h.Receive(b, now)
		if m.h.Greeted() && !m.c.opened.IsZero() {
			m.c.opened, m.asked = time.Time{}, now
		}
	}
}

// settle sends what there is to send now, and lets c wait or closes it.
func (m *multiplexer) settle(now time.Time) {
	m.c.now = now
	if id, open := m.h.Last(); open || id != m.last || m.asked.IsZero() {
		m.last, m.asked = id, now
	}
	m.announceEnd(now)
	err := m.send(now)
	_, failed := m.h.Failure()
	done := m.isSent() && m.h.Done()
	if done && err == nil && m.lingers.IsZero() {
		// What the client has sent meanwhile is read: the system would answer it with a reset, and
		// the client might miss what was sent last.
		if m.h.Abandon(); m.c.closeWrite() || failed {
			m.lingers = now.Add(m.c.listener.o.IdleAtEnd)
		}
	}
	if err != nil || done && m.lingers.IsZero() {
		m.close()
		return
	}
	if !m.isSent() || !m.h.Idle() || !m.lingers.IsZero() {
		m.arm(now)
		return
	}
	m.sent, m.waited = 0, 0
	m.c.now = m.asked // a client that only sends PING waits all the same
	s := m.c.waitingState()
	m.arm(now)
	m.c.moveTo(s)
}

// changed is settle for a goroutine that has changed something and may not own c.
func (m *multiplexer) changed() {
	if m.own() {
		m.settle(time.Now())
	}
}

func (m *multiplexer) isSent() bool { return m.out == nil && m.sealed == nil }

// gather returns what is to be sent next, nil for nothing.
func (m *multiplexer) gather(now time.Time) *h2.Out {
	out := h2.NewOut(m.c.loop == nil || m.c.secure != nil)
	m.h.Gather(out, now)
	if out.Size() == 0 {
		m.h.Free(out)
		return nil
	}
	pace := answers.Pace{Stall: m.c.listener.o.StallTimeout, Least: answers.AssetRate}
	m.sent += int64(out.Size())
	m.begun, m.allowed = now, max(time.Millisecond, pace.TimeFor(pace.Stall, m.waited, m.sent, out.Scarce() || m.c.listener.Scarce()))
	return out
}

// Serve implements h2.Server. What is prepared is answered at once, and all else by an
// http.Handler, in a goroutine.
func (m *multiplexer) Serve(s *h2.Stream) {
	x, loads := &m.c.exchange, false
	if h := m.c.listener.o.Handler; h != nil && !m.c.listener.bypassed.Load() && s.Peer == nil && x.fill(&s.Request) {
		x.stream, x.brief, x.held, x.later = s, nil, nil, false
		answered := m.answer(h, x)
		if x.stream = nil; answered {
			return
		}
		if loads = x.later; loads {
			switch {
			case !s.CanSend():
				s.Park()
				return
			case m.loads >= mostLoads:
				s.Wait()
				return
			}
		}
	}
	m.handle(s, loads)
}

// answer has the handler answer, and reports whether the stream is answered or has ended.
func (m *multiplexer) answer(h Handler, x *Exchange) (answered bool) {
	s := x.stream
	defer func() {
		if reason := recover(); reason != nil {
			answered = true
			s.Reset(h2.InternalError)
			if reason != http.ErrAbortHandler {
				m.c.listener.o.Logger.Error("server: a request made a handler panic", "panic", reason, "stack", string(debug.Stack()))
			}
		}
	}()
	if !h.Answer(x) || x.later {
		return false
	}
	if x.brief != nil {
		x.brief.finish(x)
	}
	return true
}

// Await implements h2.Server.
func (m *multiplexer) Await(*h2.Stream) h2.Peer { return newHandled(m) }

// handle has an http.Handler answer.
func (m *multiplexer) handle(s *h2.Stream, loads bool) {
	if m.running >= answers.Streams || !m.c.findRemote() { // those that run are of streams that were reset
		s.Reset(h2.RefusedStream)
		return
	}
	w, ok := s.Peer.(*handled)
	if !ok {
		w = newHandled(m)
	}
	w.begin(s)
	m.running++
	if w.loads = loads; loads {
		m.loads++
	}
	s.Delegate(w)
	go w.run()
}

// isDone is called when a handler is.
func (m *multiplexer) isDone(w *handled) {
	m.running--
	if w.loads {
		m.loads--
		m.h.Resume()
	}
}

// fill takes what the handler looks at from a request, and returns false where that is for
// net/http's kind of handler.
func (x *Exchange) fill(r *h2.Request) bool {
	if x.Head = r.Method == http.MethodHead; !x.Head && r.Method != http.MethodGet {
		return false
	}
	if !r.Bodiless || r.TooLarge || len(r.Path) > bufferBytes || !x.target(r.Path) {
		return false
	}
	x.Host, x.Fields, x.Forwarded, x.closes = r.Authority, requests.Fields{}, false, false
	x.Referer, x.UserAgent, x.Relayed = "", "", nil
	for i := range r.Fields {
		f := &r.Fields[i]
		ok := true
		if x.relay != "" && f.Name == x.relay {
			ok = x.relayed.put(&x.Relayed, f.Value)
		}
		switch f.Kind {
		case h2.Other:
		case h2.Referer:
			x.Referer = f.Value
		case h2.UserAgent:
			x.UserAgent = f.Value
		case h2.Host:
			x.Host = f.Value
		case h2.Forwarded:
			x.Forwarded = true
		case h2.Accept:
			ok = x.accept.put(&x.Fields.Accept, f.Value)
		case h2.AcceptEncoding:
			ok = x.acceptEncoding.put(&x.Fields.AcceptEncoding, f.Value)
		case h2.IfMatch:
			ok = x.ifMatch.put(&x.Fields.IfMatch, f.Value)
		case h2.IfNoneMatch:
			ok = x.ifNoneMatch.put(&x.Fields.IfNoneMatch, f.Value)
		case h2.IfModifiedSince:
			ok = x.ifModifiedSince.put(&x.Fields.IfModifiedSince, f.Value)
		case h2.IfUnmodifiedSince:
			ok = x.ifUnmodifiedSince.put(&x.Fields.IfUnmodifiedSince, f.Value)
		case h2.Range, h2.IfRange, h2.Expect, h2.Trailer, h2.ContentLength, h2.LogSize:
			ok = false
		}
		if !ok {
			return false
		}
	}
	return isHost(x.Host)
}

// target reads a path and query, and returns false where they are odd.
func (x *Exchange) target(s string) bool {
	end, query, ok := scanTarget(unsafe.Slice(unsafe.StringData(s), len(s)), 0)
	if !ok || end != len(s) || !strings.HasPrefix(s, "/") {
		return false
	}
	x.Target, x.Path = s, s
	if query > 0 {
		x.Path = s[:query]
	}
	return true
}

// beginEnd has the connection end when its streams have.
func (m *multiplexer) beginEnd() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own() {
		m.ending = true
		m.settle(time.Now())
	}
}

// announceEnd queues GOAWAY. That forbids new requests (RFC 9113 §6.8), so a client that has made
// none gets it with its first request, or when the deadline for that passes.
func (m *multiplexer) announceEnd(now time.Time) {
	if m.ending && m.announced.IsZero() && (m.last > 0 || !now.Before(m.endBy())) {
		m.h.Announce()
		m.announced = now
	}
}

// endBy returns when the next step of a connection's end is due, zero for never: to announce the end, or after that to tell the
// client which stream is the last. An answer to the PING that goes with the announcement may come before.
func (m *multiplexer) endBy() time.Time {
	_, open := m.h.Last()
	switch d, ending := m.c.listener.deadlines, m.c.listener.endingSince(); {
	case !m.ending || m.h.Draining():
		return time.Time{}
	case m.announced.IsZero():
		return d.At(Unanswered, m.asked, ending)
	case open || !m.isSent() || m.h.Halfway(): // a request may be on its way, but a client does not make one after the other
		return d.At(Unanswered, m.announced, ending)
	default:
		return d.At(Idle, m.asked, m.announced)
	}
}

// abort closes the connection at once.
func (m *multiplexer) abort() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own() {
		m.close()
	}
}

// due returns when expire is to be called, zero for not at all. A connection that waits on a loop
// for its next request is swept.
func (m *multiplexer) due() time.Time {
	due := m.h.Due()
	earlier := func(t time.Time) {
		if !t.IsZero() && (due.IsZero() || t.Before(due)) {
			due = t
		}
	}
	earlier(m.endBy())
	earlier(m.lingers)
	switch d := m.c.listener.deadlines; {
	case m.c.loop != nil && !m.isSent():
		earlier(m.begun.Add(m.allowed))
	case m.c.loop == nil && !m.c.opened.IsZero():
		earlier(d.At(Unanswered, m.c.opened, time.Time{}))
	case m.c.loop == nil && m.isSent() && m.h.Idle():
		earlier(d.At(Idle, m.c.now, time.Time{}))
	}
	return due
}

// arm starts the timer, where it would be late.
func (m *multiplexer) arm(now time.Time) {
	due := m.due()
	if due.IsZero() || !m.armed.IsZero() && !due.Before(m.armed) {
		return
	}
	m.armed = due
	if after := due.Sub(now); m.timer == nil {
		m.timer = time.AfterFunc(after, m.expire)
	} else {
		m.timer.Reset(after)
	}
}

// expire ends what has taken too long. It may come too early.
func (m *multiplexer) expire() {
	m.mu.Lock()
	now := time.Now()
	m.armed = time.Time{}
	due := m.due()
	if m.ended || due.IsZero() || now.Before(due) {
		if !m.ended {
			m.arm(now)
		}
		m.mu.Unlock()
		return
	}
	s := m.c.state()
	over := func(t time.Time) bool { return !t.IsZero() && !now.Before(t) }
	if s.waits() && !over(m.h.Due()) && !over(m.endBy()) {
		m.mu.Unlock()
		m.c.listener.closeWaiting(m.c, s)
		return
	}
	defer m.mu.Unlock()
	switch {
	case !m.own():
		return
	case over(m.lingers), !m.isSent() && over(m.begun.Add(m.allowed)), !m.h.Greeted() && over(m.c.listener.deadlines.At(Unanswered, m.c.opened, time.Time{})):
		m.close()
		return
	case !m.announced.IsZero() && over(m.endBy()):
		m.h.Drain()
	}
	m.h.Expire(now)
	m.settle(now)
}

// close ends the connection.
func (m *multiplexer) close() {
	m.c.moveTo(closing)
	m.c.listener.end(m.c) // first: the descriptor's number may be another connection's soon
	m.end()
	m.closeBelow()
}

// end drops all streams, of a connection that is closing.
func (m *multiplexer) end() {
	m.ended = true
	m.h.Abandon()
	if m.timer != nil {
		m.timer.Stop()
	}
	m.more.Broadcast()
	if m.c.loop == nil {
		return // the goroutine that writes has out
	}
	if m.out != nil {
		m.h.Free(m.out)
		m.out = nil
	}
}

// send sends what there is to send without waiting; where there is no loop, another goroutine does.
func (m *multiplexer) send(now time.Time) error {
	if m.c.loop == nil {
		m.more.Broadcast()
		return nil
	}
	return m.sendNow(now)
}

// goodbye ends a connection that has waited, and is another goroutine's to close.
func (m *multiplexer) goodbye() {
	m.mu.Lock()
	now := time.Now()
	m.h.Drain()
	if m.c.loop != nil {
		_ = m.send(now)
	} else if out := m.gather(now); out != nil {
		m.ended = true
		m.mu.Unlock()
		_ = m.c.socket.SetWriteDeadline(now.Add(m.c.listener.o.IdleAtEnd))
		_, _ = m.c.stream().Write(out.Bytes)
		m.mu.Lock()
		m.h.Free(out)
	}
	m.end()
	m.mu.Unlock()
	m.closeBelow()
}

// write sends what there is, in a goroutine, where there is no loop.
func (m *multiplexer) write() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.ended {
		now := time.Now()
		if m.out = m.gather(now); m.out == nil {
			if m.own() {
				m.settle(now)
			}
			if !m.ended {
				m.more.Wait()
			}
			continue
		}
		m.more.Broadcast() // it may be read again
		by := now.Add(m.allowed)
		m.mu.Unlock()
		_ = m.c.socket.SetWriteDeadline(by)
		_, err := m.c.stream().Write(m.out.Bytes)
		m.mu.Lock()
		m.h.Free(m.out)
		m.out = nil
		m.waited += time.Since(m.begun)
		if err != nil && m.own() {
			m.close()
		}
	}
}

// read takes what the client sends, in a goroutine, where there is no loop.
func (m *multiplexer) read() {
	b := wides.Get().(*[wideBytes]byte)
	defer wides.Put(b)
	for {
		n, err := m.c.stream().Read(b[:])
		m.mu.Lock()
		if m.own() {
			now := time.Now()
			if m.receive(b[:n], now); err != nil {
				m.close()
			} else {
				m.settle(now)
			}
		}
		for !m.ended && m.h.Full() {
			m.more.Wait()
		}
		over := m.ended || err != nil
		m.mu.Unlock()
		if over {
			return
		}
	}
}

// closeWrite ends what is sent, of a connection that is read from a little longer. It returns
// false where that is not possible.
func (c *conn) closeWrite() bool {
	if c.loop != nil {
		c.multiplexed.Load().shutWrite()
		return true
	}
	half, ok := c.stream().(interface{ CloseWrite() error })
	if _, below := c.socket.(interface{ CloseWrite() error }); !ok || !below {
		return false
	}
	go half.CloseWrite() // TLS says goodbye, and may wait for that
	return true
}

// closeBelow closes what the connection is on.
func (m *multiplexer) closeBelow() {
	if m.c.loop != nil {
		m.closeNow()
		return
	}
	go m.c.stream().Close() // TLS says goodbye first, and may wait for that
}

// findRemote looks for the client's address. A reset connection has none, so limits for an address
// cannot apply to it, and it returns false.
func (c *conn) findRemote() bool {
	switch {
	case c.remote != "":
	case c.loop == nil:
		c.remote = c.socket.RemoteAddr().String()
	default:
		c.remote = c.peer()
	}
	return c.remote != ""
}

// Remote is the address of the connection's peer, or what it told of that with the PROXY protocol; "" where a reset
// connection has none. It is made once for a connection.
func (x *Exchange) Remote() string {
	c := x.c
	if c.remote == "" && c.socket != nil { // also where a loop has lost it
		c.remote = c.socket.RemoteAddr().String()
	}
	c.findRemote()
	return c.remote
}
