package h2

import (
	"sync"
	"time"
)

// A Peer has the other half of a stream that is not answered at once. Its methods are called
// with the connection's lock held, and must not call the connection.
type Peer interface {
	// Received is called with each piece of the request's body.
	Received(p []byte)
	// Ended is called after the last piece, with the fields that came behind it.
	Ended(trailers []Field)
	// Sent is called when everything that was passed to Write has been copied to the output.
	Sent()
	// Broken is called where the stream ends before its response does. It is the last call.
	Broken(code Code)
}

// A Stream is a request and its response.
type Stream struct {
	Request Request
	// Peer is set by what answers later.
	Peer Peer

	conn     *Conn
	id       uint32
	priority Priority
	window   int // how much the client takes; below 0 after it has changed its mind

	asked    bool // not answered yet
	parked   bool // what answers wants the stream to be able to send
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

	// How long the client has let the stream wait for room.
	blocked time.Time
	spent   time.Duration
	chunk   int // bytes since spent began anew

	queued         bool
	next, previous *Stream
}

var streams = sync.Pool{New: func() any { return new(Stream) }}

func newStream(most int) *Stream {
	s := streams.Get().(*Stream)
	s.Request.reset(most)
	return s
}

// recycle returns a stream to the pool. Nothing may refer to it.
func (s *Stream) recycle() {
	*s = Stream{Request: s.Request, head: s.head[:0]}
	streams.Put(s)
}

// ID returns the number of the stream.
func (s *Stream) ID() uint32 { return s.id }

// CanSend reports whether a body could be sent now that it is the stream's turn.
func (s *Stream) CanSend() bool { return s.window > 0 && s.conn.mayHold() }

// Postpone postpones the response until CanSend returns true. It is called instead of responding.
func (s *Stream) Postpone() { s.parked = true }

// Wait postpones the response until Conn.Resume is called. It is called instead of responding.
func (s *Stream) Wait() { s.waits = true }

// Delegate lets a peer respond later. It is called instead of responding.
func (s *Stream) Delegate(p Peer) { s.Peer, s.asked = p, false }

// Send responds with a header block, in two parts that are copied, and a complete body, which held, if not nil, releases when it is
// sent.
func (s *Stream) Send(head, more, body []byte, held Held) {
	s.SendHead(head, more)
	s.body, s.last, s.stays = body, true, held != nil
	if held != nil {
		s.held, s.weight = held, len(body)
		s.conn.held += s.weight
	}
}

// SendHead sends a header block, in two parts. Informational responses may be sent before.
func (s *Stream) SendHead(head, more []byte) {
	s.asked = false
	s.given = true
	s.head = append(append(s.head, head...), more...)
	s.conn.giveTurn(s)
}

// Inform sends the header block of an informational response (1xx).
func (s *Stream) Inform(block []byte) {
	if s.inClosed {
		return
	}
	c := s.conn
	c.control = appendHeaders(c.control, block, 0, s.id, c.frame)
}

// Write sends a part of the body, which the caller must not modify until the peer's method Sent or Broken is called.
func (s *Stream) Write(p []byte, last bool) {
	s.body, s.last = p, last
	s.conn.giveTurn(s)
}

// End ends the response, with the header block of a trailer, nil for none.
func (s *Stream) End(trailers []byte) {
	s.last, s.trailers = true, trailers
	s.conn.giveTurn(s)
}

// SentByOthers returns how many bytes of bodies the connection's other streams have sent.
func (s *Stream) SentByOthers() int64 { return s.conn.sent - s.sent }

// Behind reports whether the stream could send something, but other streams go first, or have sent more than others bytes.
func (s *Stream) Behind(others int64) bool {
	return s.queued && (s.SentByOthers() > others || s.conn.schedule.next(s.conn.mayGo) != s)
}

// Open reports whether the stream is still open.
func (s *Stream) Open() bool { return !s.inClosed }

// Consumed lets the client send n more bytes, of those that the peer has received.
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

// Reset ends the stream before its response has ended.
func (s *Stream) Reset(code Code) {
	if !s.inClosed {
		s.conn.resetStream(s, code)
	}
}
