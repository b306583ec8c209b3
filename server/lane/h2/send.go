package h2

import (
	"slices"
	"time"
)

// find returns the open stream with a number, nil if it is not open.
func (c *Conn) find(id uint32) *Stream {
	if n := len(c.streams); n > 0 && c.streams[n-1].id == id {
		return c.streams[n-1]
	}
	if i, ok := c.streamIndex(id); ok {
		return c.streams[i]
	}
	return nil
}

// streamIndex returns the index of a stream in the list of open ones and true; if it is not there, the index at which it would be
// and false.
func (c *Conn) streamIndex(id uint32) (int, bool) {
	return slices.BinarySearchFunc(c.streams, id, func(s *Stream, id uint32) int { return int(s.id) - int(id) })
}

// isUnused reports whether the client cannot have used the stream yet: its number is even, or higher than that of the last stream.
func (c *Conn) isUnused(id uint32) bool { return id%2 == 0 || id > c.lastID }

// An end says how a stream ended.
type end struct {
	id    uint32
	reset bool // by either side
}

// rememberClosed records that a stream was closed, and whether by a RST_STREAM of either side. The connection remembers only the
// last few.
func (c *Conn) rememberClosed(id uint32, reset bool) {
	c.closed[c.oldest] = end{id, reset}
	c.oldest = (c.oldest + 1) % remembered
}

// removeStream removes a stream from the open ones and from the schedule, and returns the unread bytes of its body to the
// connection's window. reset says that a RST_STREAM ended it.
func (c *Conn) removeStream(s *Stream, reset bool) {
	c.schedule.remove(s)
	if i, ok := c.streamIndex(s.id); ok {
		c.streams = slices.Delete(c.streams, i, i+1)
	}
	c.rememberClosed(s.id, reset)
	s.inClosed = true
	if s.unconsumed > 0 { // nothing reads that any more
		c.consumed(s.unconsumed)
	}
}

// dropStream releases the body that a removed stream holds. It notifies the stream's peer that the stream is broken, with code,
// or recycles a stream without a peer.
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

// consumed records that n bytes of request bodies take no memory any more, and allows the client to send as many again. It queues
// a WINDOW_UPDATE for the connection once they are a quarter of the window.
func (c *Conn) consumed(n int) {
	if c.unconsumed += n; c.unconsumed >= connWindow/4 && !c.failed {
		c.control = appendFrame(c.control, windowUpdate, 0, uint32(c.unconsumed))
		c.recvWindow += c.unconsumed
		c.unconsumed = 0
	}
}

// resetStream closes an open stream with an error, queues RST_STREAM, and notifies the stream's peer. It counts against the
// client's budget, even if the server caused it; if that is used up, the connection ends instead, without RST_STREAM.
func (c *Conn) resetStream(s *Stream, code Code) {
	c.removeStream(s, true)
	if c.spend(resetCost) {
		c.control = appendFrame(c.control, rstStream, s.id, uint32(code))
	}
	c.dropStream(s, code)
}

// resetID queues RST_STREAM for the number of a stream that is not open, and records that the stream was reset.
func (c *Conn) resetID(id uint32, code Code) {
	c.rememberClosed(id, true)
	c.control = appendFrame(c.control, rstStream, id, uint32(code))
}

// resetEither resets the stream with a number, whether it is open or not. That counts against the client's budget.
func (c *Conn) resetEither(id uint32, code Code) {
	if s := c.find(id); s != nil {
		c.resetStream(s, code)
	} else if c.spend(resetCost) {
		c.resetID(id, code)
	}
}

// fail ends the connection with an error: it queues a GOAWAY with code as the last frame. Only the first call has an effect.
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

// Fail ends the connection with an error. The next Gather sends the GOAWAY with the code.
func (c *Conn) Fail(code Code) { c.fail(code) }

// Failure returns the error code with which the connection ends, and whether it ends with an error or was abandoned. The code is
// NoError if it was only abandoned.
func (c *Conn) Failure() (Code, bool) { return c.code, c.failed }

// Abandon closes all streams, because nothing more can be sent, releases their bodies, and notifies their peers. It sends nothing.
// The connection counts as failed from then on.
func (c *Conn) Abandon() {
	c.failed, c.draining = true, true
	for len(c.streams) > 0 {
		s := c.streams[len(c.streams)-1]
		c.removeStream(s, true)
		c.dropStream(s, c.code)
	}
}

// Announce queues a GOAWAY that announces the end of the connection, without forbidding streams that are on their way, and a PING.
// When the client responds to the PING, the connection drains as after Drain. The caller calls Drain itself if that takes too
// long. Announce does nothing if it was called before, or after Drain or an error.
func (c *Conn) Announce() {
	if c.ending || c.draining {
		return
	}
	c.ending, c.pinged = true, true
	c.control = appendFrame(c.control, goAway, 0, mostID, uint32(NoError))
	c.control = append(appendFrameHead(c.control, len(farewell), ping, 0, 0), farewell...)
}

// Drain makes the connection accept no more streams, and queues a GOAWAY with the number of the last one. Open streams get their
// responses. Later calls, and those after an error, do nothing.
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

// Done reports whether the connection is to be closed once everything that was gathered is sent: it has failed, or drains and has
// no stream left.
func (c *Conn) Done() bool {
	return len(c.control) == 0 && (c.failed || c.draining && len(c.streams) == 0)
}

// Greeted reports whether the client has sent its preface and its first SETTINGS.
func (c *Conn) Greeted() bool { return c.settled }

// Last returns the highest stream number that the client has used, 0 for none, and whether any stream is open.
func (c *Conn) Last() (id uint32, open bool) { return c.lastID, len(c.streams) > 0 }

// Full reports whether so many bytes of control frames wait to be sent that the caller must not read more from the client.
func (c *Conn) Full() bool { return len(c.control) > controlMost }

// mayHold reports whether the connection may hold another body in memory: the client takes bytes, and the bodies that are held
// are below HeldMost.
func (c *Conn) mayHold() bool { return c.window > 0 && (c.held == 0 || c.held < HeldMost) }

// giveTurn adds a stream to the schedule if it can continue but for the connection's window. A stream that its own window blocks
// gets a turn when that opens.
func (c *Conn) giveTurn(s *Stream) {
	if !s.inClosed && s.isReady() {
		c.schedule.put(s)
	}
}

// isReady reports whether the stream can continue as soon as the connection's window is open: to request its response, or to send
// a part of it.
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

// mayContinue reports whether a scheduled stream can continue now, by the connection's window and the limit of held bodies.
func (c *Conn) mayContinue(s *Stream) bool {
	switch {
	case s.asked:
		return !s.parked || s.CanSend()
	case len(s.head) == 0 && len(s.body) > 0:
		return c.window > 0
	}
	return true
}

// Gather appends to o the frames that can be sent now, about Gathered bytes at most: control frames, then those of streams in the
// order of their turns. It calls Server.Serve for each stream whose turn it is to get a response. The caller sends o and passes it
// to Free.
func (c *Conn) Gather(o *Out, now time.Time) {
	c.now = now
	if len(c.control) > 0 {
		o.append(c.control)
		if c.control = c.control[:0]; cap(c.control) > partialKept {
			c.control = nil
		}
	}
	for o.size < Gathered && len(o.parts) < MostParts-2 && !c.failed {
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

// Resume ends Stream.Wait: the next Gather calls Server.Serve again for the streams for which it was called.
func (c *Conn) Resume() {
	for _, s := range c.streams {
		if s.waits {
			s.waits = false
			c.giveTurn(s)
		}
	}
}

// requestResponse calls Server.Serve for a stream, and takes the stream out of the schedule if it cannot continue. It resets a
// stream for which Serve has done nothing.
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

// startBlocked records since when the client's window blocks the stream, for its timeout. It ignores streams with a peer, which
// have their own timeouts.
func (s *Stream) startBlocked() {
	if s.Peer == nil && s.window <= 0 && (s.parked || len(s.body) > 0) {
		s.stall.since = s.conn.now
	}
}

// appendHeaders appends a header block to b as a HEADERS frame of the stream id, with flags, and CONTINUATION frames, of up to
// most bytes each.
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

// gatherStream appends the frames of a stream to o: as many as fit if its priority is not incremental, else at most one DATA
// frame. It finishes the stream after the last one, and takes it out of the schedule when nothing is left for now.
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
	for len(s.body) > 0 && s.window > 0 && c.window > 0 && o.size < Gathered && len(o.parts) < MostParts-2 {
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
		s.stall.count(n)
		c.stall.count(n)
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

// finishStream closes a stream whose response was gathered completely, and passes its held body to o, for Free. It queues
// RST_STREAM if the client has not sent all of the request's body.
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

// Free releases the bodies that o holds, and returns o to its pool. The caller must call it after o was sent, or when it will not
// be.
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

// checkBlocked records since when the connection's window blocks the scheduled streams, or that it does not any more, for the
// timeout.
func (c *Conn) checkBlocked() {
	if c.window > 0 || c.schedule.filled == 0 {
		c.stall.end(c.now)
	} else if c.stall.since.IsZero() {
		c.stall.since = c.now
	}
	if len(c.streams) == 0 {
		c.stall.spent, c.stall.chunk = 0, 0
	}
}

// NextExpiry returns the earliest deadline of the connection and its streams, when the caller has to call Expire; zero for none.
func (c *Conn) NextExpiry() (due time.Time) {
	if c.failed {
		return due
	}
	due = Earlier(c.frameDeadline(), c.stall.deadline(c.o.Stall))
	for _, s := range c.streams {
		due = Earlier(due, s.stall.deadline(s.blockedTimeout()))
	}
	return due
}

// frameDeadline returns when the rest of a frame or header block of which a part has come must have come; zero without such a part.
func (c *Conn) frameDeadline() (by time.Time) {
	if c.Halfway() {
		by = c.begun.Add(c.o.HeaderTimeout)
	}
	return by
}

// Halfway reports whether a header block or a frame other than DATA has come in part, which a client has no reason to send
// slowly.
func (c *Conn) Halfway() bool {
	return c.blockOf != 0 || len(c.partial) > 0 && (len(c.partial) < frameHead || c.partial[3] != data)
}

// blockedTimeout returns how long the client's window may block the stream for each 64 KiB: Options.Stall, or a quarter of it
// under memory pressure.
func (s *Stream) blockedTimeout() time.Duration {
	if s.held != nil && s.held.Scarce() {
		return s.conn.o.Stall / 4
	}
	return s.conn.o.Stall
}

// Expire resets the streams whose deadline has passed at the time now, or ends the connection with an error if its own has. It
// does nothing if the connection has failed.
func (c *Conn) Expire(now time.Time) {
	c.now = now
	switch {
	case c.failed:
		return
	case Passed(c.frameDeadline(), now):
		c.fail(ProtocolError)
		return
	case Passed(c.stall.deadline(c.o.Stall), now):
		c.fail(EnhanceYourCalm)
		return
	}
	for _, s := range slices.Backward(c.streams) {
		if Passed(s.stall.deadline(s.blockedTimeout()), now) {
			c.resetStream(s, Cancel)
		}
	}
}
