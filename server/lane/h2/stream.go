package h2

import "sync"

// A Peer has the other half of a stream that is not answered at once. Its methods are called
// with the connection's lock held, and must not call the connection.
type Peer interface {
	// Received is called with each piece of the request's body. p is valid until it returns.
	Received(p []byte)
	// Ended is called after the last piece, with the fields of the trailer, nil for none. They are valid until it returns.
	Ended(trailers []Field)
	// Sent is called when everything that was passed to Write has been copied to the output.
	Sent()
	// Broken is called where the stream ends before its response does. It is the last call.
	Broken(code Code)
}

// A Stream is a request and its response.
type Stream struct {
	Request Request
	// Peer receives the request's body, or responds later; nil if the stream has neither.
	Peer Peer

	conn     *Conn
	id       uint32
	priority Priority
	window   int // how much the client takes; below 0 after it has changed its mind

	asked    bool // not answered yet
	parked   bool // Postpone was called, until CanSend
	waits    bool // until the connection resumes
	ended    bool // the client has sent all
	given    bool // the head of the response was given
	last     bool // and all of its body
	inClosed bool

	head     []byte // of the response, what is not gathered; then trailers
	body     []byte
	stays    bool // whether body is sent without a copy
	held     Held
	weight   int // of what is held
	sent     int64
	trailers []byte

	received   int64
	unconsumed int // bytes of the body that the peer has not read
	recvWindow int

	stall stall

	queued         bool
	next, previous *Stream
}

var streams = sync.Pool{New: func() any { return new(Stream) }}

// newStream returns an empty stream from a pool. most bounds the size of its request's fields in bytes.
func newStream(most int) *Stream {
	s := streams.Get().(*Stream)
	s.Request.reset(most)
	return s
}

// recycle returns a stream to the pool. The caller must be the last one that refers to it.
func (s *Stream) recycle() {
	*s = Stream{Request: s.Request, head: s.head[:0]}
	streams.Put(s)
}

// CanSend reports whether a body could be sent now: the windows are open, and the connection may hold another body.
func (s *Stream) CanSend() bool { return s.window > 0 && s.conn.mayHold() }

// Postpone makes Gather call Server.Serve again once CanSend returns true. Serve calls it instead of responding.
func (s *Stream) Postpone() { s.parked = true }

// Wait makes Gather call Server.Serve again after a call of Conn.Resume. Serve calls it instead of responding.
func (s *Stream) Wait() { s.waits = true }

// Delegate leaves the response to a peer, which sends it later with SendHead, Write and End. Server.Serve calls it instead of
// responding.
func (s *Stream) Delegate(p Peer) { s.Peer, s.asked = p, false }

// Send responds with a complete header block, given as the parts head and more, which are copied, and a complete body. held, if not
// nil, releases the body when it has been sent or will not be. Without held, the body must never change.
func (s *Stream) Send(head, more, body []byte, held Held) {
	s.SendHead(head, more)
	s.body, s.last, s.stays = body, true, held != nil
	if held != nil {
		s.held, s.weight = held, len(body)
		s.conn.held += s.weight
	}
}

// SendHead queues the header block of the response, given as the parts head and more, which are copied. Inform must be called
// before, if at all.
func (s *Stream) SendHead(head, more []byte) {
	s.asked = false
	s.given = true
	s.head = append(append(s.head, head...), more...)
	s.conn.giveTurn(s)
}

// Inform queues the complete header block of an informational response (1xx). It does nothing if the stream is closed.
func (s *Stream) Inform(block []byte) {
	if s.inClosed {
		return
	}
	c := s.conn
	c.control = appendHeaders(c.control, block, 0, s.id, c.frame)
}

// Write queues the next part p of the body; last says that it ends the response. The caller must not modify p, nor call Write
// again, until the method Sent or Broken of the stream's peer is called.
func (s *Stream) Write(p []byte, last bool) {
	s.body, s.last = p, last
	s.conn.giveTurn(s)
}

// End ends the response after what was written, with the header block of a trailer, nil for none.
func (s *Stream) End(trailers []byte) {
	s.last, s.trailers = true, trailers
	s.conn.giveTurn(s)
}

// SentByOthers returns how many bytes of bodies all other streams of the connection have sent since it was opened.
func (s *Stream) SentByOthers() int64 { return s.conn.sent - s.sent }

// Behind reports whether the stream waits only for its turn: it could send something but for the connection's window, and it is not
// the stream whose turn is next (also if the connection's window lets none send), or SentByOthers is more than others, its value at an
// earlier time.
func (s *Stream) Behind(others int64) bool {
	return s.queued && (s.SentByOthers() > others || s.conn.schedule.next(s.conn.mayGo) != s)
}

// Open reports whether the stream is still open.
func (s *Stream) Open() bool { return !s.inClosed }

// Consumed records that the peer needs n bytes of the request's body no longer, and allows the client to send as many again on the
// stream and the connection. It does nothing if the stream is closed, because closing does the same for all unread bytes.
func (s *Stream) Consumed(n int) {
	c := s.conn
	if s.inClosed {
		return
	}
	c.consumed(n)
	if s.unconsumed -= n; s.ended {
		return
	}
	if room := streamWindow - s.unconsumed - s.recvWindow; room >= streamWindow/2 {
		s.recvWindow += room
		c.control = appendFrame(c.control, windowUpdate, s.id, uint32(room))
	}
}

// Reset closes the stream with an error before its response has ended. It does nothing if the stream is closed.
func (s *Stream) Reset(code Code) {
	if !s.inClosed {
		s.conn.resetStream(s, code)
	}
}
