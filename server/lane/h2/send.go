package h2

import (
	"slices"
	"time"
)

// find returns an open stream.
func (c *Conn) find(id uint32) *Stream {
	if n := len(c.streams); n > 0 && c.streams[n-1].id == id {
		return c.streams[n-1]
	}
	if i, ok := c.index(id); ok {
		return c.streams[i]
	}
	return nil
}

func (c *Conn) index(id uint32) (int, bool) {
	return slices.BinarySearchFunc(c.streams, id, func(s *Stream, id uint32) int { return int(s.id) - int(id) })
}

// isUnused reports whether the client has not opened the stream, nor any later one.
func (c *Conn) isUnused(id uint32) bool { return id%2 == 0 || id > c.lastID }

// An end says how a stream ended.
type end struct {
	id    uint32
	reset bool // by either side
}

func (c *Conn) remember(id uint32, reset bool) {
	c.closed[c.oldest] = end{id, reset}
	c.oldest = (c.oldest + 1) % remembered
}

// remove takes a stream off the connection.
func (c *Conn) remove(s *Stream, reset bool) {
	c.schedule.take(s)
	if i, ok := c.index(s.id); ok {
		c.streams = slices.Delete(c.streams, i, i+1)
	}
	c.remember(s.id, reset)
	s.inClosed = true
	if s.unconsumed > 0 { // nothing reads that any more
		c.consumed(s.unconsumed)
	}
}

// drop ends what a removed stream was at.
func (c *Conn) drop(s *Stream, code Code) {
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

// consumed lets the client send n bytes more on the connection.
func (c *Conn) consumed(n int) {
	if c.unconsumed += n; c.unconsumed >= connWindow/4 && !c.failed {
		c.control = appendFrame(c.control, windowUpdate, 0, uint32(c.unconsumed))
		c.recvWindow += c.unconsumed
		c.unconsumed = 0
	}
}

// reset ends a stream with an error that the client is told. Whose fault it is does not matter:
// it counts as one that the client has made the server reset.
func (c *Conn) reset(s *Stream, code Code) {
	c.remove(s, true)
	if c.spend(resetCost) {
		c.control = appendFrame(c.control, rstStream, s.id, uint32(code))
	}
	c.drop(s, code)
}

// resetID is reset for a stream that there is not.
func (c *Conn) resetID(id uint32, code Code) {
	c.remember(id, true)
	c.control = appendFrame(c.control, rstStream, id, uint32(code))
}

func (c *Conn) resetEither(id uint32, code Code) {
	if s := c.find(id); s != nil {
		c.reset(s, code)
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

// Fail ends the connection with an error, beginning with what is gathered next.
func (c *Conn) Fail(code Code) { c.fail(code) }

// Failure returns the error that the connection ends with.
func (c *Conn) Failure() (Code, bool) { return c.code, c.failed }

// Abandon drops all streams, when nothing more can be sent.
func (c *Conn) Abandon() {
	c.failed, c.draining = true, true
	for len(c.streams) > 0 {
		s := c.streams[len(c.streams)-1]
		c.remove(s, true)
		c.drop(s, c.code)
	}
}

// Announce tells the client of an end to come. When it has heard of that, Drain is called.
func (c *Conn) Announce() {
	if c.ending || c.draining {
		return
	}
	c.ending, c.pinged = true, true
	c.control = appendFrame(c.control, goAway, 0, mostID, uint32(NoError))
	c.control = append(appendHead(c.control, len(farewell), ping, 0, 0), farewell...)
}

// Drain takes no more streams, and tells the client which was the last.
func (c *Conn) Drain() {
	if c.draining {
		return
	}
	c.ending, c.draining, c.pinged, c.final = true, true, false, c.lastID
	c.control = appendFrame(c.control, goAway, 0, c.final, uint32(NoError))
}

// Draining reports whether the final GOAWAY, or one for an error, has been queued.
func (c *Conn) Draining() bool { return c.draining }

// Idle reports whether there is no stream, and nothing to send.
func (c *Conn) Idle() bool { return len(c.streams) == 0 && len(c.control) == 0 }

// Done reports whether the connection can be closed when all that was gathered is sent.
func (c *Conn) Done() bool {
	return len(c.control) == 0 && (c.failed || c.draining && len(c.streams) == 0)
}

// Greeted reports whether the client has sent its preface and settings.
func (c *Conn) Greeted() bool { return c.settled }

// Last is the number of the last stream, and whether it or another one is open.
func (c *Conn) Last() (id uint32, open bool) { return c.lastID, len(c.streams) > 0 }

// Full reports whether so much is to be sent that nothing should be read before.
func (c *Conn) Full() bool { return len(c.control) > controlMost }

// mayHold reports whether a body more may be held, and could be sent.
func (c *Conn) mayHold() bool { return c.window > 0 && (c.held == 0 || c.held < HeldMost) }

// put gives a stream a turn if it has something to do. Blocked ones come back with their window.
func (c *Conn) put(s *Stream) {
	if !s.inClosed && s.ready() {
		c.schedule.put(s)
	}
}

// ready reports whether the stream could go on if the connection's window were open.
func (s *Stream) ready() bool {
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

// may reports whether a stream that has a turn can go on.
func (c *Conn) may(s *Stream) bool {
	switch {
	case s.asked:
		return !s.parked || s.CanSend()
	case len(s.head) == 0 && len(s.body) > 0:
		return c.window > 0
	}
	return true
}

// Gather fills o with what can be sent now, as it is the streams' turn. Streams are answered.
func (c *Conn) Gather(o *Out, now time.Time) {
	c.now = now
	if len(c.control) > 0 {
		o.append(c.control)
		if c.control = c.control[:0]; cap(c.control) > partialKept {
			c.control = nil
		}
	}
	for o.size < Gathered && len(o.parts) < Parts-2 && !c.failed {
		s := c.schedule.turn(c.mayGo)
		if s == nil {
			break
		}
		if s.asked {
			c.answer(s)
			continue
		}
		c.send(s, o)
	}
	if len(c.control) > 0 && len(o.Bytes)+len(c.control) <= cap(o.Bytes) {
		o.append(c.control)
		c.control = c.control[:0]
	}
	c.checkBlocked()
}

// Resume has the streams answered that wait.
func (c *Conn) Resume() {
	for _, s := range c.streams {
		if s.waits {
			s.waits = false
			c.put(s)
		}
	}
}

// answer has a stream answered.
func (c *Conn) answer(s *Stream) {
	s.parked = false
	id := s.id
	c.o.Server.Serve(s)
	if n := len(c.streams); n == 0 || c.find(id) != s {
		return // it is closed
	}
	if s.asked && !s.parked && !s.waits {
		c.reset(s, InternalError) // the server has done nothing
		return
	}
	if !s.ready() {
		c.schedule.take(s)
		s.block()
	}
}

// block notes since when the client's window keeps a stream back. What answers later has time
// limits of its own.
func (s *Stream) block() {
	if s.Peer == nil && s.window <= 0 && (s.parked || len(s.body) > 0) {
		s.blocked = s.conn.now
	}
}

// appendHeaders appends a header block in as many frames as it takes.
func appendHeaders(b, block []byte, flags byte, id uint32, most int) []byte {
	kind := byte(headers)
	for {
		n := min(len(block), most)
		if n == len(block) {
			flags |= endHeaders
		}
		b = append(appendHead(b, n, kind, flags, id), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return b
		}
		kind, flags = continuation, 0
	}
}

// send gathers what a stream has: as much as fits of one that is not incremental, else a frame.
func (c *Conn) send(s *Stream, o *Out) {
	from := len(o.Bytes)
	if len(s.head) > 0 {
		var flags byte
		if s.last && len(s.body) == 0 && s.trailers == nil {
			flags = endStream
		}
		o.Bytes = appendHeaders(o.Bytes, s.head, flags, s.id, c.frame)
		o.copied(from)
		if s.head = s.head[:0]; flags != 0 {
			c.finish(s, o)
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
		o.Bytes = appendHead(o.Bytes, n, data, flags, s.id)
		o.copied(from)
		o.body(s.body[:n], s.stays)
		s.body = s.body[n:]
		s.window -= n
		c.window -= n
		s.sent += int64(n)
		c.sent += int64(n)
		c.progress(s, n)
		c.calm.earn(dataCredit)
		if flags != 0 {
			c.finish(s, o)
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
				o.Bytes = appendHead(o.Bytes, 0, data, endStream, s.id)
			}
			o.copied(from)
			c.finish(s, o)
			return
		}
		c.schedule.take(s)
		if s.Peer != nil {
			s.Peer.Sent()
		}
		return
	}
	if c.schedule.take(s); s.window > 0 {
		c.schedule.put(s) // an incremental one goes behind the others
		return
	}
	s.block()
}

// finish is called when the end of an answer is gathered.
func (c *Conn) finish(s *Stream, o *Out) {
	c.calm.earn(answerCredit)
	if !s.ended { // the client need not send the rest (RFC 9113 §8.1)
		from := len(o.Bytes)
		o.Bytes = appendFrame(o.Bytes, rstStream, s.id, uint32(NoError))
		o.copied(from)
	}
	if s.held != nil {
		o.holds = append(o.holds, hold{s.held, s.sent, s.weight})
		s.held = nil
	}
	c.remove(s, !s.ended)
	if s.Peer == nil {
		s.recycle()
		return
	}
	s.Peer.Sent()
}

// Free is called when o is sent, or will not be.
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

// progress counts what was gathered of a body.
func (c *Conn) progress(s *Stream, n int) {
	if s.chunk += n; s.chunk >= Gathered {
		s.chunk, s.spent = 0, 0
	}
	if c.chunk += n; c.chunk >= Gathered {
		c.chunk, c.spent = 0, 0
	}
}

func (s *Stream) unblock(now time.Time) {
	if !s.blocked.IsZero() {
		s.spent += now.Sub(s.blocked)
		s.blocked = time.Time{}
	}
}

// checkBlocked notes since when the connection's window keeps streams back.
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

// Due returns when Expire is to be called, zero for not at all.
func (c *Conn) Due() time.Time {
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
			earlier(s.blocked.Add(s.allowed() - s.spent))
		}
	}
	return due
}

// Halfway reports whether a frame or header block has begun that a client has no reason to send
// slowly.
func (c *Conn) Halfway() bool {
	return c.blockOf != 0 || len(c.partial) > 0 && (len(c.partial) < frameHead || c.partial[3] != data)
}

// allowed is how long a stream may wait for the client's window.
func (s *Stream) allowed() time.Duration {
	if s.held != nil && s.held.Scarce() {
		return s.conn.o.Stall / 4
	}
	return s.conn.o.Stall
}

// Expire ends what has waited too long.
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
		if s := c.streams[i]; !s.blocked.IsZero() && s.spent+now.Sub(s.blocked) >= s.allowed() {
			c.reset(s, Cancel)
		}
	}
}
