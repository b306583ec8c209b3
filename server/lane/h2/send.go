package h2

import (
	"slices"
	"time"
)

// find returns an open stream, nil if it is not open.
func (c *Conn) find(id uint32) *Stream {
	if n := len(c.streams); n > 0 && c.streams[n-1].id == id {
		return c.streams[n-1]
	}
	if i, ok := c.index(id); ok {
		return c.streams[i]
	}
	return nil
}

// index returns where a stream is in the list of open ones, or would be.
func (c *Conn) index(id uint32) (int, bool) {
	return slices.BinarySearchFunc(c.streams, id, func(s *Stream, id uint32) int { return int(s.id) - int(id) })
}

// isUnused reports whether the client cannot have used the stream yet: its number is even, or higher than that of the last stream.
func (c *Conn) isUnused(id uint32) bool { return id%2 == 0 || id > c.lastID }

// An end says how a stream ended.
type end struct {
	id    uint32
	reset bool // by either side
}

// rememberClosed remembers that a stream was closed, and whether by a reset.
func (c *Conn) rememberClosed(id uint32, reset bool) {
	c.closed[c.oldest] = end{id, reset}
	c.oldest = (c.oldest + 1) % remembered
}

// removeStream removes a stream from the connection. reset says that a RST_STREAM ended it.
func (c *Conn) removeStream(s *Stream, reset bool) {
	c.schedule.remove(s)
	if i, ok := c.index(s.id); ok {
		c.streams = slices.Delete(c.streams, i, i+1)
	}
	c.rememberClosed(s.id, reset)
	s.inClosed = true
	if s.unconsumed > 0 { // nothing reads that any more
		c.consumed(s.unconsumed)
	}
}

// dropStream releases what a removed stream has, and notifies its peer of an error code.
func (c *Conn) dropStream(s *Stream, code Code) {
	if s.held != nil {
		c.held -= s.weight
		s.held.Release(s.sent)
		s.held = nil
	}
	if s.Peer != nil {
		s.Peer.Broken(code)
		return
	}
	s.recycle()
}

// consumed lets the client send n more bytes on the connection.
func (c *Conn) consumed(n int) {
	if c.unconsumed += n; c.unconsumed >= connWindow/4 && !c.failed {
		c.control = appendFrame(c.control, windowUpdate, 0, uint32(c.unconsumed))
		c.recvWindow += c.unconsumed
		c.unconsumed = 0
	}
}

// resetStream ends a stream with an error. It counts as one that the client has caused.
func (c *Conn) resetStream(s *Stream, code Code) {
	c.removeStream(s, true)
	if c.spend(resetCost) {
		c.control = appendFrame(c.control, rstStream, s.id, uint32(code))
	}
	c.dropStream(s, code)
}

// resetID sends a reset for a stream that is not open.
func (c *Conn) resetID(id uint32, code Code) {
	c.rememberClosed(id, true)
	c.control = appendFrame(c.control, rstStream, id, uint32(code))
}

// resetEither resets a stream whether it is open or not.
func (c *Conn) resetEither(id uint32, code Code) {
	if s := c.find(id); s != nil {
		c.resetStream(s, code)
	} else if c.spend(resetCost) {
		c.resetID(id, code)
	}
}

// fail ends the connection with an error.
func (c *Conn) fail(code Code) {
	if c.failed {
		return
	}
	if !c.draining {
		c.final = c.lastID
	}
	c.failed, c.draining, c.code = true, true, code
	c.control = appendFrame(c.control, goAway, 0, c.final, uint32(code))
}

// Fail ends the connection with an error, which is sent first of what is gathered next.
func (c *Conn) Fail(code Code) { c.fail(code) }

// Failure returns the error code with which the connection ends; false if it does not.
func (c *Conn) Failure() (Code, bool) { return c.code, c.failed }

// Abandon drops all streams, when nothing more can be sent.
func (c *Conn) Abandon() {
	c.failed, c.draining = true, true
	for len(c.streams) > 0 {
		s := c.streams[len(c.streams)-1]
		c.removeStream(s, true)
		c.dropStream(s, c.code)
	}
}

// Announce queues a GOAWAY that announces the end of the connection, and a PING. When the client responds to the PING, the
// connection drains. The caller calls Drain if the response takes too long.
func (c *Conn) Announce() {
	if c.ending || c.draining {
		return
	}
	c.ending, c.pinged = true, true
	c.control = appendFrame(c.control, goAway, 0, mostID, uint32(NoError))
	c.control = append(appendFrameHead(c.control, len(farewell), ping, 0, 0), farewell...)
}

// Drain accepts no more streams, and queues a GOAWAY with the number of the last one.
func (c *Conn) Drain() {
	if c.draining {
		return
	}
	c.ending, c.draining, c.pinged, c.final = true, true, false, c.lastID
	c.control = appendFrame(c.control, goAway, 0, c.final, uint32(NoError))
}

// Draining reports whether the final GOAWAY, or one for an error, is queued or sent.
func (c *Conn) Draining() bool { return c.draining }

// Idle reports whether the connection has no stream and no control frame to send.
func (c *Conn) Idle() bool { return len(c.streams) == 0 && len(c.control) == 0 }

// Done reports whether the connection can be closed once everything that was gathered is sent.
func (c *Conn) Done() bool {
	return len(c.control) == 0 && (c.failed || c.draining && len(c.streams) == 0)
}

// Greeted reports whether the client has sent its preface and settings.
func (c *Conn) Greeted() bool { return c.settled }

// Last returns the number of the last stream, and whether any stream is open.
func (c *Conn) Last() (id uint32, open bool) { return c.lastID, len(c.streams) > 0 }

// Full reports whether so much waits to be sent that nothing should be read before.
func (c *Conn) Full() bool { return len(c.control) > controlMost }

// mayHold reports whether another body may be held in memory, and could be sent.
func (c *Conn) mayHold() bool { return c.window > 0 && (c.held == 0 || c.held < HeldMost) }

// giveTurn gives a stream a turn if it can continue. A blocked stream gets one when its window opens.
func (c *Conn) giveTurn(s *Stream) {
	if !s.inClosed && s.isReady() {
		c.schedule.put(s)
	}
}

// isReady reports whether the stream can continue once the connection's window is open.
func (s *Stream) isReady() bool {
	switch {
	case s.asked:
		return !s.waits && (!s.parked || s.window > 0)
	case len(s.head) > 0:
		return true
	case len(s.body) > 0:
		return s.window > 0
	}
	return s.last
}

// mayContinue reports whether a stream that has a turn can continue now.
func (c *Conn) mayContinue(s *Stream) bool {
	switch {
	case s.asked:
		return !s.parked || s.CanSend()
	case len(s.head) == 0 && len(s.body) > 0:
		return c.window > 0
	}
	return true
}

// Gather fills o with what can be sent now, in the order of the streams' turns. It requests the responses of streams.
func (c *Conn) Gather(o *Out, now time.Time) {
	c.now = now
	if len(c.control) > 0 {
		o.append(c.control)
		if c.control = c.control[:0]; cap(c.control) > partialKept {
			c.control = nil
		}
	}
	for o.size < Gathered && len(o.parts) < Parts-2 && !c.failed {
		s := c.schedule.next(c.mayGo)
		if s == nil {
			break
		}
		if s.asked {
			c.requestResponse(s)
			continue
		}
		c.gatherStream(s, o)
	}
	if len(c.control) > 0 && len(o.Bytes)+len(c.control) <= cap(o.Bytes) {
		o.append(c.control)
		c.control = c.control[:0]
	}
	c.checkBlocked()
}

// Resume lets the streams for which Wait was called request their responses again, in the next Gather.
func (c *Conn) Resume() {
	for _, s := range c.streams {
		if s.waits {
			s.waits = false
			c.giveTurn(s)
		}
	}
}

// requestResponse requests the response of a stream from the server.
func (c *Conn) requestResponse(s *Stream) {
	s.parked = false
	id := s.id
	c.o.Server.Serve(s)
	if n := len(c.streams); n == 0 || c.find(id) != s {
		return // it is closed
	}
	if s.asked && !s.parked && !s.waits {
		c.resetStream(s, InternalError) // the server has done nothing
		return
	}
	if !s.isReady() {
		c.schedule.remove(s)
		s.startBlocked()
	}
}

// startBlocked records since when the client's window blocks a stream. Peers that respond later have their own timeouts.
func (s *Stream) startBlocked() {
	if s.Peer == nil && s.window <= 0 && (s.parked || len(s.body) > 0) {
		s.blocked = s.conn.now
	}
}

// appendHeaders appends a header block in frames of up to most bytes.
func appendHeaders(b, block []byte, flags byte, id uint32, most int) []byte {
	kind := byte(headers)
	for {
		n := min(len(block), most)
		if n == len(block) {
			flags |= endHeaders
		}
		b = append(appendFrameHead(b, n, kind, flags, id), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = continuation, 0
	}
}

// gatherStream appends what a stream has to send to o: as much as fits if it is not incremental, else one frame.
func (c *Conn) gatherStream(s *Stream, o *Out) {
	from := len(o.Bytes)
	if len(s.head) > 0 {
		var flags byte
		if s.last && len(s.body) == 0 && s.trailers == nil {
			flags = endStream
		}
		o.Bytes = appendHeaders(o.Bytes, s.head, flags, s.id, c.frame)
		o.addCopied(from)
		if s.head = s.head[:0]; flags != 0 {
			c.finishStream(s, o)
			return
		}
	}
	for len(s.body) > 0 && s.window > 0 && c.window > 0 && o.size < Gathered && len(o.parts) < Parts-2 {
		n := min(len(s.body), s.window, c.window, c.frame)
		var flags byte
		if s.last && n == len(s.body) && s.trailers == nil {
			flags = endStream
		}
		from = len(o.Bytes)
		o.Bytes = appendFrameHead(o.Bytes, n, data, flags, s.id)
		o.addCopied(from)
		o.appendBody(s.body[:n], s.stays)
		s.body = s.body[n:]
		s.window -= n
		c.window -= n
		s.sent += int64(n)
		c.sent += int64(n)
		c.countProgress(s, n)
		c.calm.earn(dataCredit)
		if flags != 0 {
			c.finishStream(s, o)
			return
		}
		if s.priority.Incremental {
			break
		}
	}
	if len(s.body) == 0 {
		if s.last { // the end could not go with the body
			from = len(o.Bytes)
			if s.trailers != nil {
				o.Bytes = appendHeaders(o.Bytes, s.trailers, endStream, s.id, c.frame)
			} else {
				o.Bytes = appendFrameHead(o.Bytes, 0, data, endStream, s.id)
			}
			o.addCopied(from)
			c.finishStream(s, o)
			return
		}
		c.schedule.remove(s)
		if s.Peer != nil {
			s.Peer.Sent()
		}
		return
	}
	if c.schedule.remove(s); s.window > 0 {
		c.schedule.put(s) // an incremental one goes behind the others
		return
	}
	s.startBlocked()
}

// finishStream ends a stream whose response was gathered completely.
func (c *Conn) finishStream(s *Stream, o *Out) {
	c.calm.earn(answerCredit)
	if !s.ended { // the client need not send the rest (RFC 9113 §8.1)
		from := len(o.Bytes)
		o.Bytes = appendFrame(o.Bytes, rstStream, s.id, uint32(NoError))
		o.addCopied(from)
	}
	if s.held != nil {
		o.holds = append(o.holds, hold{s.held, s.sent, s.weight})
		s.held = nil
	}
	c.removeStream(s, !s.ended)
	if s.Peer == nil {
		s.recycle()
		return
	}
	s.Peer.Sent()
}

// Free releases what o refers to, after it was sent or when it will not be.
func (c *Conn) Free(o *Out) {
	for i := range o.holds {
		h := &o.holds[i]
		c.held -= h.weight
		h.held.Release(h.sent)
		*h = hold{}
	}
	clear(o.parts)
	*o = Out{Bytes: o.Bytes[:0], parts: o.parts[:0], holds: o.holds[:0]}
	if cap(o.Bytes) <= 2*Gathered {
		outs.Put(o)
	}
}

// countProgress counts n bytes of a body that were gathered. After each 64 KiB, the time for which the client may block a stream or
// the connection starts again.
func (c *Conn) countProgress(s *Stream, n int) {
	if s.chunk += n; s.chunk >= Gathered {
		s.chunk, s.spent = 0, 0
	}
	if c.chunk += n; c.chunk >= Gathered {
		c.chunk, c.spent = 0, 0
	}
}

// unblock records that the client's window no longer blocks the stream.
func (s *Stream) unblock(now time.Time) {
	if !s.blocked.IsZero() {
		s.spent += now.Sub(s.blocked)
		s.blocked = time.Time{}
	}
}

// checkBlocked records since when the connection's window blocks streams.
func (c *Conn) checkBlocked() {
	waits := c.window <= 0 && c.schedule.filled != 0
	switch {
	case waits && c.blocked.IsZero():
		c.blocked = c.now
	case !waits && !c.blocked.IsZero():
		c.spent += c.now.Sub(c.blocked)
		c.blocked = time.Time{}
	}
	if len(c.streams) == 0 {
		c.spent, c.chunk = 0, 0
	}
}

// NextExpiry returns when Expire has to be called, zero for never.
func (c *Conn) NextExpiry() time.Time {
	var due time.Time
	if c.failed {
		return due
	}
	earlier := func(t time.Time) {
		if due.IsZero() || t.Before(due) {
			due = t
		}
	}
	if c.Halfway() {
		earlier(c.begun.Add(c.o.HeaderTimeout))
	}
	if !c.blocked.IsZero() {
		earlier(c.blocked.Add(c.o.Stall - c.spent))
	}
	for _, s := range c.streams {
		if !s.blocked.IsZero() {
			earlier(s.blocked.Add(s.blockedTimeout() - s.spent))
		}
	}
	return due
}

// Halfway reports whether a frame or header block is incomplete that a client has no reason to send slowly.
func (c *Conn) Halfway() bool {
	return c.blockOf != 0 || len(c.partial) > 0 && (len(c.partial) < frameHead || c.partial[3] != data)
}

// blockedTimeout returns how long a stream may wait for the client's window.
func (s *Stream) blockedTimeout() time.Duration {
	if s.held != nil && s.held.Scarce() {
		return s.conn.o.Stall / 4
	}
	return s.conn.o.Stall
}

// Expire ends the streams and the connection that have waited too long.
func (c *Conn) Expire(now time.Time) {
	c.now = now
	switch {
	case c.failed:
		return
	case c.Halfway() && !now.Before(c.begun.Add(c.o.HeaderTimeout)):
		c.fail(ProtocolError)
		return
	case !c.blocked.IsZero() && c.spent+now.Sub(c.blocked) >= c.o.Stall:
		c.fail(EnhanceYourCalm)
		return
	}
	for i := len(c.streams) - 1; i >= 0; i-- {
		if s := c.streams[i]; !s.blocked.IsZero() && s.spent+now.Sub(s.blocked) >= s.blockedTimeout() {
			c.resetStream(s, Cancel)
		}
	}
}
