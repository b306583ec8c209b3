package lane

import (
	"crypto/tls"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
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
// something or takes more, a handler's, a timer's. They do not wait with mu held. If there is no
// loop, one goroutine reads and one writes.
type multiplexer struct {
	c    *conn
	mu   sync.Mutex
	h    *h2.Conn
	o    h2.Options
	more sync.Cond // wakes readLoop and writeLoop, for connections without a loop

	out      *h2.Out // gathered and not sent yet; nil if there is nothing
	sealed   *[]byte // with TLS on a loop, the records that are not sent yet from sealedAt on; or nil
	sealedAt int
	begun    time.Time // when out was gathered
	allowed  time.Duration
	sent     int64         // since the connection was idle
	waited   time.Duration // for the client to take it

	last  uint32    // the stream that was opened last
	asked time.Time // when there last was one, or before the first one, when the client greeted

	timer     *time.Timer
	armed     time.Time // when the timer is due, zero if it is not running
	ending    bool      // the connection ends after the requests that have come
	announced time.Time // when GOAWAY was queued, zero before
	lingers   time.Time // until when one is read from to which nothing more is sent
	running   int       // handlers
	loads     int       // of them, those that wait for what is not in memory
	halted    bool      // not all that came was read
	ended     bool      // it is closed, or is being closed
}

// startHTTP2 makes the connection use HTTP/2 from now on. b is what was read of it already. It queues an error that ends the
// connection if the TLS connection is too weak for HTTP/2. Without an event loop it starts the goroutine that writes. Only the
// connection's owner may call it.
func (c *conn) startHTTP2(b []byte, now time.Time) *multiplexer {
	o := &c.listener.o
	m := &multiplexer{c: c, halted: true} // some may have come with the handshake
	m.o = h2.Options{Server: m, HeaderTimeout: o.HeaderTimeout, Stall: o.StallTimeout, HeaderBytes: o.HeaderBytes, Streams: answers.Streams}
	m.h = h2.New(&m.o, now)
	if c.secure != nil {
		if s := c.secure.ConnectionState(); !isSafeForHTTP2(&s) {
			m.h.Fail(h2.InadequateSecurity)
		}
	}
	m.more.L = &m.mu
	c.exchange.c = c
	if c.socket != nil {
		c.setReadDeadline(time.Time{})
		c.setWriteDeadline(time.Time{})
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
		go m.writeLoop()
	}
	m.receive(b, now)
	m.flushAndWait(now)
	return m
}

// isSafeForHTTP2 reports whether version and cipher suite of a TLS connection are allowed for HTTP/2 (RFC 9113 §9.2).
func isSafeForHTTP2(s *tls.ConnectionState) bool {
	switch s.CipherSuite {
	case tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256, tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256:
		return s.Version == tls.VersionTLS12
	}
	return s.Version >= tls.VersionTLS13
}

// makeBusy moves a connection that waits for a request to the state busy, in which the goroutine with mu owns it. It returns
// false if the connection has ended or another goroutine closes it. The caller holds mu.
func (m *multiplexer) makeBusy() bool {
	for {
		switch s := m.c.state(); {
		case m.ended:
			return false
		case s.name() == busy:
			return true
		case !s.isWaiting():
			return false
		case m.c.move(s, busy):
			return true
		}
	}
}

// receive processes bytes that the client has sent, unless the connection only waits for the client to close it. Like the methods
// below that do not lock mu themselves, it is called with mu held and the connection busy.
func (m *multiplexer) receive(b []byte, now time.Time) {
	if m.c.now = now; m.lingers.IsZero() && len(b) > 0 {
		m.h.Receive(b, now)
		if m.h.Greeted() && !m.c.opened.IsZero() {
			m.c.opened, m.asked = time.Time{}, now
		}
	}
}

// flushAndWait gathers and sends what can be sent without waiting. Then it closes the connection if that has ended, else lets it
// wait for requests, or for the client, and sets the timer for that.
func (m *multiplexer) flushAndWait(now time.Time) {
	m.c.now = now
	if id, open := m.h.Last(); open || id != m.last || m.asked.IsZero() {
		m.last, m.asked = id, now
	}
	if m.last != 0 {
		m.c.place.markAsked()
	}
	m.announceEnd(now)
	err := m.send(now)
	_, failed := m.h.Failure()
	done := m.isSent() && m.h.Done()
	if done && err == nil && m.lingers.IsZero() {
		// The connection reads what the client has sent meanwhile: otherwise the system would send a reset, and
		// the client might lose the last responses.
		if m.h.Abandon(); m.c.closeWrite() || failed {
			m.lingers = now.Add(m.c.listener.o.IdleAtEnd)
		}
	}
	if err != nil || done && m.lingers.IsZero() {
		m.close()
		return
	}
	if !m.isSent() || !m.h.Idle() || !m.lingers.IsZero() {
		m.startTimer(now)
		return
	}
	m.sent, m.waited = 0, 0
	m.c.now = m.asked // a client that only sends PING waits all the same
	s := m.c.waitingState()
	m.startTimer(now)
	m.c.moveTo(s)
}

// onChange calls flushAndWait, for a goroutine such as a handler's that has changed a stream. It does nothing if the connection
// has ended. The caller holds mu.
func (m *multiplexer) onChange() {
	if m.makeBusy() {
		m.flushAndWait(time.Now())
	}
}

// isSent reports whether all frames that were gathered have been sent to the system.
func (m *multiplexer) isSent() bool { return m.out == nil && m.sealed == nil }

// nextData gathers the frames to send next, and how long the client may take for them. It returns nil if there are none.
// Gathering has the handlers respond to requests whose turn it is.
func (m *multiplexer) nextData(now time.Time) *h2.Out {
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

// Serve implements h2.Server. The lane's handler responds at once if it can. Otherwise the response is postponed, or an
// http.Handler responds in a goroutine.
func (m *multiplexer) Serve(s *h2.Stream) {
	x, loads := &m.c.exchange, false
	if h := m.c.listener.o.Handler; h != nil && !m.c.listener.bypassed.Load() && s.Peer == nil && x.readRequest(&s.Request) {
		x.stream, x.brief, x.held, x.later = s, nil, nil, false
		answered := m.tryHandler(h, x)
		if x.stream = nil; answered {
			return
		}
		if loads = x.later; loads {
			switch {
			case !s.CanSend():
				s.Postpone()
				return
			case m.loads >= mostLoads:
				s.Wait()
				return
			}
		}
	}
	m.startHandler(s, loads)
}

// tryHandler has the lane's handler h respond to x, whose stream is set. It reports whether the stream got a response, or was
// reset because the handler panicked. It logs any reason of a panic but http.ErrAbortHandler.
func (m *multiplexer) tryHandler(h Handler, x *Exchange) (answered bool) {
	s := x.stream
	defer func() {
		if reason := recover(); reason != nil {
			answered = true
			s.Reset(h2.InternalError)
			m.c.listener.logPanic(reason, x.Remote())
		}
	}()
	if !h.Answer(x) || x.later {
		return false
	}
	if x.brief != nil {
		x.brief.send(x)
	}
	return true
}

// ReceiveBody implements h2.Server. It returns a new [handled], which buffers the request's body for an http.Handler that will
// respond.
func (m *multiplexer) ReceiveBody(*h2.Stream) h2.Peer { return newHandled(m) }

// startHandler has Options.Requests respond to the stream in a new goroutine. It refuses the stream (REFUSED_STREAM) if too many
// handlers run, or if the connection was reset and has no address. loads says that the response needs what is not in memory; the
// caller allows only mostLoads of these.
func (m *multiplexer) startHandler(s *h2.Stream, loads bool) {
	if m.running >= answers.Streams || !m.c.findRemote() { // those that run are of streams that were reset
		s.Reset(h2.RefusedStream)
		return
	}
	w, ok := s.Peer.(*handled)
	if !ok {
		w = newHandled(m)
	}
	w.prepareRequest(s)
	m.running++
	if w.loads = loads; loads {
		m.loads++
	}
	s.Delegate(w)
	go w.run()
}

// onHandlerDone stops counting a handler that has returned. If its response needed what was not in memory, streams that wait for one
// of the mostLoads places continue. The caller holds mu, and calls onChange then.
func (m *multiplexer) onHandlerDone(w *handled) {
	m.running--
	if w.loads {
		m.loads--
		m.h.Resume()
	}
}

// startEnd ends the connection gracefully: it sends GOAWAY as soon as that is allowed, and closes the connection once its streams
// have ended. It locks mu.
func (m *multiplexer) startEnd() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.makeBusy() {
		m.ending = true
		m.flushAndWait(time.Now())
	}
}

// announceEnd queues the first GOAWAY if the connection is to end. GOAWAY forbids new requests (RFC 9113 §6.8), so a client that
// has made none gets it with its first request, or when the deadline for that has passed.
func (m *multiplexer) announceEnd(now time.Time) {
	if m.ending && m.announced.IsZero() && (m.last > 0 || !now.Before(m.endDeadline())) {
		m.h.Announce()
		m.announced = now
	}
}

// endDeadline returns when the next step of a connection's graceful end is due: first to announce the end, then to send the
// GOAWAY with the number of the last stream. It is zero if no step is due. The second step comes earlier if the client responds
// to the PING that comes with the announcement.
func (m *multiplexer) endDeadline() time.Time {
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

// abort closes the connection at once, with all its streams. It locks mu.
func (m *multiplexer) abort() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.makeBusy() {
		m.close()
	}
}

// nextExpiry returns the earliest deadline of the connection or one of its streams, when closeExpired has to be called; zero for
// none. Listener.sweep closes connections that wait on a loop for their next request.
func (m *multiplexer) nextExpiry() time.Time {
	due := h2.Earlier(h2.Earlier(m.h.NextExpiry(), m.endDeadline()), m.lingers)
	switch d := m.c.listener.deadlines; {
	case m.c.loop != nil && !m.isSent():
		return h2.Earlier(due, m.begun.Add(m.allowed))
	case m.c.loop == nil && !m.c.opened.IsZero():
		return h2.Earlier(due, d.At(Unanswered, m.c.opened, time.Time{}))
	case m.c.loop == nil && m.isSent() && m.h.Idle():
		return h2.Earlier(due, d.At(Idle, m.c.now, time.Time{}))
	}
	return due
}

// startTimer sets the timer that calls closeExpired to the earliest deadline, unless it fires earlier anyway.
func (m *multiplexer) startTimer(now time.Time) {
	due := m.nextExpiry()
	if due.IsZero() || !m.armed.IsZero() && !due.Before(m.armed) {
		return
	}
	m.armed = due
	if after := due.Sub(now); m.timer == nil {
		m.timer = time.AfterFunc(after, m.closeExpired)
	} else {
		m.timer.Reset(after)
	}
}

// closeExpired ends what is past its deadline: streams, the connection, or the current step of its graceful end. If nothing is,
// it sets the timer again. The timer calls it; it locks mu.
func (m *multiplexer) closeExpired() {
	m.mu.Lock()
	now := time.Now()
	m.armed = time.Time{}
	due := m.nextExpiry()
	if m.ended || due.IsZero() || now.Before(due) {
		if !m.ended {
			m.startTimer(now)
		}
		m.mu.Unlock()
		return
	}
	s := m.c.state()
	over := func(by time.Time) bool { return h2.Passed(by, now) }
	if s.isWaiting() && !over(m.h.NextExpiry()) && !over(m.endDeadline()) {
		m.mu.Unlock()
		m.c.listener.closeWaiting(m.c, s)
		return
	}
	defer m.mu.Unlock()
	switch {
	case !m.makeBusy():
		return
	case over(m.lingers), !m.isSent() && over(m.begun.Add(m.allowed)), !m.h.Greeted() && over(m.c.listener.deadlines.At(Unanswered, m.c.opened, time.Time{})):
		m.close()
		return
	case !m.announced.IsZero() && over(m.endDeadline()):
		m.h.Drain()
	}
	m.h.Expire(now)
	m.flushAndWait(now)
}

// close ends the connection at once, with all its streams, and removes it from the listener.
func (m *multiplexer) close() {
	m.c.moveTo(closing)
	m.c.listener.forget(m.c) // first: the descriptor's number may be another connection's soon
	m.dropStreams()
	m.closeTransport()
}

// dropStreams ends all streams of a connection that is closing, stops its timer, and wakes readLoop and writeLoop, which end. It
// releases what was gathered, unless writeLoop has that.
func (m *multiplexer) dropStreams() {
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

// send sends what can be sent without waiting. Without an event loop it wakes the goroutine that writes.
func (m *multiplexer) send(now time.Time) error {
	if m.c.loop == nil {
		m.more.Broadcast()
		return nil
	}
	return m.sendNow(now)
}

// closeWaiting closes a connection that has waited for a request, after it has sent GOAWAY. The state is closing already. It
// locks mu.
func (m *multiplexer) closeWaiting() {
	m.mu.Lock()
	now := time.Now()
	m.h.Drain()
	if m.c.loop != nil {
		_ = m.send(now)
	} else if out := m.nextData(now); out != nil {
		m.ended = true
		m.mu.Unlock()
		_ = m.c.socket.SetWriteDeadline(now.Add(m.c.listener.o.IdleAtEnd))
		_, _ = m.c.stream().Write(out.Bytes)
		m.mu.Lock()
		m.h.Free(out)
	}
	m.dropStreams()
	m.mu.Unlock()
	m.closeTransport()
}

// writeLoop gathers and sends data in a goroutine of its own, until the connection has ended. It is only for connections without
// an event loop.
func (m *multiplexer) writeLoop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !m.ended {
		now := time.Now()
		if m.out = m.nextData(now); m.out == nil {
			if m.makeBusy() {
				m.flushAndWait(now)
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
		if err != nil && m.makeBusy() {
			m.close()
		}
	}
}

// readLoop reads and processes what the client sends, in the connection's goroutine, until the connection has ended. It is only
// for connections without an event loop. It pauses while too many control frames wait to be sent.
func (m *multiplexer) readLoop() {
	b := wides.Get().(*[wideBytes]byte)
	defer wides.Put(b)
	for {
		n, err := m.c.stream().Read(b[:])
		m.mu.Lock()
		if m.makeBusy() {
			now := time.Now()
			if m.receive(b[:n], now); err != nil {
				m.close()
			} else {
				m.flushAndWait(now)
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

// closeWrite closes a connection with HTTP/2 for writing, while it is read from for a little longer. It returns false if the
// socket cannot do that.
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

// closeTransport closes the socket of the connection, and TLS before it, without waiting.
func (m *multiplexer) closeTransport() {
	if m.c.loop != nil {
		m.closeNow()
		return
	}
	go m.c.stream().Close() // TLS says goodbye first, and may wait for that
}

// findRemote stores the address of the client in c.remote, if it is not there. It returns false for a reset connection, which has
// no address, so that limits for an address cannot apply.
func (c *conn) findRemote() bool {
	switch {
	case c.remote != "":
	case c.socket != nil:
		if at := c.socket.RemoteAddr(); at != nil {
			c.remote = at.String()
		}
	default:
		c.remote = c.peerAddress()
	}
	return c.remote != ""
}

// Remote returns the address and port of the peer, or of the client that the PROXY protocol names; "" for a reset connection.
func (x *Exchange) Remote() string {
	x.c.findRemote()
	return x.c.remote
}
