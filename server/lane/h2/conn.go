// Package h2 is the server's side of HTTP/2 (RFC 9113, with the priorities of RFC 9218) without
// any I/O: bytes that a client has sent go into a [Conn], and frames to send come out of it.
//
// What it guarantees:
//
//   - A request that it returns is complete and well-formed; what is not ends its stream or the
//     connection, with the error code that the RFC names.
//   - Nothing is sent beyond what the client takes, for each stream and for all of them.
//   - It is the turn of the most urgent stream that can send. A request is answered when it is its
//     turn, not before, so bodies are in memory for as long as they are being sent, and no more
//     than HeldMost of them for one connection, or one body.
//   - What a client makes the server do and remember is bounded, see the constants in limits.go
//     and framebudget.go.
//   - A request that is answered with a prepared head and body takes no allocation.
//
// A Conn is for one goroutine at a time. It must not know what clients request, nor sockets, nor TLS.
package h2

import (
	"encoding/binary"
	"time"
)

// A Server answers requests.
type Server interface {
	// Serve is called by Gather when it is a stream's turn to get its response. It must call Send, SendHead, Postpone, Wait,
	// Delegate or Reset; a stream for which it calls none of these is reset. It does not wait for the body of a request.
	Serve(s *Stream)
	// ReceiveBody is called when the head of a request with a body has come. It returns the peer that receives the body,
	// which may come before Serve is called.
	ReceiveBody(s *Stream) Peer
}

// Options are the same for many connections.
type Options struct {
	Server Server
	// HeaderTimeout is how long the rest of a frame or header block may take.
	HeaderTimeout time.Duration
	// Stall is how long a client's windows may block 64 KiB of responses, on a stream or on the connection. On a stream it is
	// a quarter of that if the body reports that memory is scarce.
	Stall time.Duration
	// HeaderBytes bounds a header list, as RFC 9113 §6.5.2 counts it. A request beyond it is TooLarge.
	HeaderBytes int
	// Streams is how many streams may be open at a time. Further ones are reset with REFUSED_STREAM.
	Streams int
}

// A Conn is a connection.
type Conn struct {
	o *Options

	// Reading.
	greeted  int    // how many bytes of the preface have come
	settled  bool   // whether the first SETTINGS have
	partial  []byte // the beginning of a frame
	begun    time.Time
	decoder  decoder
	block    []byte // a header block without its end
	blockOf  uint32 // the stream that it is for, 0 for none
	ends     bool   // whether that stream ends with it
	selfish  bool   // whether it was said to depend on itself
	pieces   int
	dropping *Request // for blocks that are of no stream
	now      time.Time
	calm     frameBudget

	// Streams.
	streams  []*Stream // open, in order
	lastID   uint32    // the highest that the client has used
	final    uint32    // the last that the client may use, after a GOAWAY
	closed   [remembered]end
	oldest   int
	schedule schedule
	held     int   // bytes of bodies
	sent     int64 // bytes of bodies
	early    [updatesKept]struct {
		id       uint32
		priority Priority
	}
	updates int

	// Sending.
	control    []byte // frames that go first
	window     int
	initial    int // window of a new stream
	frame      int // the largest that the client takes
	recvWindow int
	unconsumed int
	stall      stall              // of all streams that have a turn, by the connection's window
	mayGo      func(*Stream) bool // the method, made once

	draining bool // no new streams are taken beyond lastID
	ending   bool // the client got a GOAWAY that announces the end
	pinged   bool // and has not answered yet
	failed   bool // GOAWAY with an error is the last frame
	code     Code
}

// New returns a connection whose client has sent nothing yet. The server's SETTINGS and a larger window are queued for the first
// Gather.
func New(o *Options, now time.Time) *Conn {
	c := &Conn{o: o, window: firstWindow, initial: firstWindow, frame: largestFrame, recvWindow: connWindow}
	c.decoder.max = tableBytes
	c.calm = frameBudget{allowance, now}
	c.mayGo = c.mayContinue
	b := appendFrameHead(c.control, 3*6, settings, 0, 0)
	b = appendSetting(b, maxStreams, uint32(o.Streams))
	b = appendSetting(b, maxHeaderListSize, uint32(o.HeaderBytes))
	b = appendSetting(b, noPriorities, 1)
	c.control = appendFrame(b, windowUpdate, 0, connWindow-firstWindow)
	return c
}

// Receive processes bytes that the client has sent at the time now, in pieces of any size. The caller may reuse b afterwards. It opens
// streams, queues control frames, and calls Server.ReceiveBody and the methods of peers, but no Server.Serve: Gather does. An error of the
// client ends the connection, see Failure; after that it ignores all bytes.
func (c *Conn) Receive(b []byte, now time.Time) {
	c.now = now
	if n := len(Preface) - c.greeted; n > 0 && !c.failed {
		n = min(n, len(b))
		if string(b[:n]) != Preface[c.greeted:c.greeted+n] {
			c.fail(ProtocolError)
			return
		}
		c.greeted += n
		b = b[n:]
	}
	for len(b) > 0 && !c.failed {
		if len(c.partial) > 0 {
			b = c.fillFrame(b)
			continue
		}
		n := c.frameLength(b)
		if n < 0 || n > len(b) {
			if !c.failed {
				c.partial, c.begun = append(c.partial, b...), now
			}
			return
		}
		c.processFrame(b[:n])
		b = b[n:]
	}
}

// frameLength returns the length in bytes, with its head, of the frame at the beginning of b. It returns -1 if the head of the frame is not
// complete, or if the payload is larger than largestFrame, which ends the connection.
func (c *Conn) frameLength(b []byte) int {
	if len(b) < frameHead {
		return -1
	}
	n := int(b[0])<<16 | int(b[1])<<8 | int(b[2])
	if n > largestFrame {
		c.fail(FrameSizeError)
		return -1
	}
	return frameHead + n
}

// fillFrame moves bytes from the beginning of b to c.partial, an incomplete frame that came before: up to the end of the frame's head if that
// is incomplete, else up to the end of the frame, which it then processes. It returns the rest of b. The caller calls it again while the
// frame is incomplete and bytes are left.
func (c *Conn) fillFrame(b []byte) []byte {
	want := frameHead
	if len(c.partial) >= frameHead {
		if want = c.frameLength(c.partial); want < 0 {
			return nil
		}
	}
	n := max(0, min(want-len(c.partial), len(b)))
	c.partial = append(c.partial, b[:n]...)
	if len(c.partial) < frameHead {
		return b[n:]
	}
	if want = c.frameLength(c.partial); want == len(c.partial) {
		frame := c.partial
		c.partial = nil
		c.processFrame(frame)
		if cap(frame) <= partialKept {
			c.partial = frame[:0]
		}
	}
	return b[n:]
}

// processFrame processes the complete frame b by its type. It ignores frames of unknown types, which cost the client's budget. A frame that
// the client must not send now ends the connection.
func (c *Conn) processFrame(b []byte) {
	kind, flags := b[3], b[4]
	id := binary.BigEndian.Uint32(b[5:]) & mostID
	p := b[frameHead:]
	switch {
	case !c.settled && (kind != settings || flags&ack != 0):
		c.fail(ProtocolError)
		return
	case c.blockOf != 0 && (kind != continuation || id != c.blockOf):
		c.fail(ProtocolError)
		return
	}
	switch kind {
	case data:
		c.onData(id, flags, p)
	case headers:
		c.onHeaders(id, flags, p)
	case continuation:
		c.onContinuation(id, flags, p)
	case rstStream:
		c.onReset(id, p)
	case windowUpdate:
		c.onWindowUpdate(id, p)
	default:
		if !c.spend(frameCost) {
			return
		}
		switch kind {
		case settings:
			c.onSettings(id, flags, p)
		case ping:
			c.onPing(id, flags, p)
		case goAway:
			if id != 0 {
				c.fail(ProtocolError)
			} else if len(p) < 8 {
				c.fail(FrameSizeError)
			}
		case priorityFrame:
			c.onPriority(id, p)
		case priorityUpdate:
			c.onPriorityUpdate(id, p)
		case pushPromise:
			c.fail(ProtocolError)
		}
	}
}

// spend subtracts n from the budget of frames that cost the server more than the client. If the budget is used up, it ends the
// connection with ENHANCE_YOUR_CALM and returns false.
func (c *Conn) spend(n int) bool {
	if c.calm.spend(n, c.now) {
		return true
	}
	c.fail(EnhanceYourCalm)
	return false
}

// removePadding returns the payload p of a frame with flags without its padding. If the padding is malformed, it ends the
// connection and returns false.
func (c *Conn) removePadding(flags byte, p []byte) ([]byte, bool) {
	if flags&padded == 0 {
		return p, true
	}
	if len(p) == 0 {
		c.fail(FrameSizeError)
		return nil, false
	}
	n := int(p[0])
	if p = p[1:]; n > len(p) {
		c.fail(ProtocolError)
		return nil, false
	}
	return p[:len(p)-n], true
}
