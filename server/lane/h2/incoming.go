package h2

import (
	"encoding/binary"
	"slices"
)

// This file takes the frames that requests come in, and those that end them.

// onData processes a DATA frame: it passes its bytes to the stream's peer and reduces the windows. A frame for a closed stream,
// or beyond a window or Content-Length, resets the stream or ends the connection.
func (c *Conn) onData(id uint32, flags byte, p []byte) {
	if id == 0 || c.isUnused(id) {
		c.fail(ProtocolError)
		return
	}
	whole := len(p)
	if whole > c.recvWindow {
		c.fail(FlowControlError)
		return
	}
	c.recvWindow -= whole
	p, ok := c.removePadding(flags, p)
	if !ok || len(p) == 0 && flags&endStream == 0 && !c.spend(frameCost) {
		return
	}
	s := c.find(id)
	if s == nil || s.ended {
		c.consumed(whole)
		if !c.spend(frameCost) {
			return
		}
		switch {
		case s != nil:
			c.resetStream(s, StreamClosed)
		case c.draining && id > c.final:
		default:
			c.resetID(id, StreamClosed)
		}
		return
	}
	if whole > s.recvWindow {
		c.consumed(whole)
		c.resetStream(s, FlowControlError)
		return
	}
	s.recvWindow -= whole
	s.received += int64(len(p))
	s.unconsumed += whole
	s.ended = flags&endStream != 0
	if length := s.Request.Length; length >= 0 && (s.received > length || s.ended && s.received != length) {
		c.consumed(whole)
		s.unconsumed -= whole
		c.resetStream(s, ProtocolError)
		return
	}
	if len(p) > 0 {
		s.Peer.Received(p)
	}
	if padding := whole - len(p); padding > 0 {
		s.Consumed(padding)
	}
	if s.ended {
		s.Peer.Ended(nil)
	}
}

// onHeaders processes a HEADERS frame. If the header block is complete, it opens a stream or ends its body; else CONTINUATION
// frames have to follow.
func (c *Conn) onHeaders(id uint32, flags byte, p []byte) {
	if id%2 == 0 {
		c.fail(ProtocolError)
		return
	}
	p, ok := c.removePadding(flags, p)
	if !ok {
		return
	}
	if flags&hasPriority != 0 {
		if len(p) < 5 {
			c.fail(FrameSizeError)
			return
		}
		if binary.BigEndian.Uint32(p)&mostID == id { // a stream that depends on itself
			c.selfish = true
		}
		p = p[5:]
	}
	c.blockOf, c.ends, c.pieces = id, flags&endStream != 0, 0
	if flags&endHeaders != 0 {
		c.onHeaderBlock(p)
		return
	}
	c.block, c.begun = append(c.block[:0], p...), c.now
}

// onContinuation processes a CONTINUATION frame, which has the next part of a header block.
func (c *Conn) onContinuation(id uint32, flags byte, p []byte) {
	if c.blockOf == 0 {
		c.fail(ProtocolError)
		return
	}
	if !c.spend(frameCost) {
		return
	}
	if c.pieces++; c.pieces > continuations || len(c.block)+len(p) > blockBytes {
		c.fail(EnhanceYourCalm)
		return
	}
	c.block = append(c.block, p...)
	if flags&endHeaders != 0 {
		block := c.block
		c.block = nil
		c.onHeaderBlock(block)
	}
}

// onHeaderBlock decodes a complete header block. It opens a stream and queues it for its response, or passes the block of an
// earlier stream to onTrailer. A malformed request, or one too many, only resets its stream. After Drain or an error it ignores
// new streams, whose blocks it still decodes. A compression error ends the connection.
func (c *Conn) onHeaderBlock(block []byte) {
	id, selfish := c.blockOf, c.selfish
	c.blockOf, c.selfish = 0, false
	if id <= c.lastID {
		c.onTrailer(id, block)
		return
	}
	c.lastID = id
	s := newStream(c.o.HeaderBytes)
	if !c.decoder.decode(block, &s.Request) {
		s.recycle()
		c.fail(CompressionError)
		return
	}
	s.Request.Bodiless = c.ends
	switch {
	case c.draining:
		s.recycle() // the client got an error for this stream
		return
	case selfish, !s.Request.isComplete():
		s.recycle()
		if c.spend(resetCost) {
			c.resetID(id, ProtocolError)
		}
		return
	case len(c.streams) >= c.o.Streams:
		s.recycle()
		if c.spend(resetCost) {
			c.resetID(id, RefusedStream)
		}
		return
	}
	s.conn, s.id, s.window, s.recvWindow, s.asked, s.ended = c, id, c.initial, streamWindow, true, c.ends
	s.priority = defaultPriority
	if s.Request.urgency != "" {
		s.priority = parsePriority(s.Request.urgency)
	}
	if c.updates > 0 {
		c.applyEarlyPriority(s)
	}
	c.streams = append(c.streams, s)
	if !s.ended {
		s.Peer = c.o.Server.ReceiveBody(s)
	}
	c.schedule.put(s)
}

// onTrailer processes a header block for a stream that was opened before: the trailer that ends the body, whose fields it
// passes to the stream's peer. A malformed trailer, or one after the end of the body, resets the stream. For a closed stream it
// sends another reset if a reset had closed it; otherwise, or if the connection does not remember the stream, it ends the
// connection.
func (c *Conn) onTrailer(id uint32, block []byte) {
	s := c.find(id)
	if s == nil {
		switch was := slices.IndexFunc(c.closed[:], func(e end) bool { return e.id == id }); {
		case was < 0:
			c.fail(ProtocolError) // it was never opened, or long ago
			return
		case !c.closed[was].reset:
			c.fail(StreamClosed)
			return
		}
	}
	if c.dropping == nil {
		c.dropping = new(Request)
	}
	r := c.dropping
	r.reset(c.o.HeaderBytes)
	r.trailer = true
	if !c.decoder.decode(block, r) {
		c.fail(CompressionError)
		return
	}
	switch {
	case s == nil:
		// The server may have reset it before the client knew.
		if c.spend(resetCost) {
			c.resetID(id, StreamClosed)
		}
	case s.ended:
		c.resetStream(s, StreamClosed)
	case !c.ends || r.malformed || r.TooLarge || s.Request.Length >= 0 && s.received != s.Request.Length:
		c.resetStream(s, ProtocolError)
	default:
		s.ended = true
		s.Peer.Ended(r.Fields)
	}
}

// onReset processes a RST_STREAM frame: it closes the stream and notifies its peer.
func (c *Conn) onReset(id uint32, p []byte) {
	switch {
	case len(p) != 4:
		c.fail(FrameSizeError)
		return
	case id == 0 || c.isUnused(id):
		c.fail(ProtocolError)
		return
	}
	s := c.find(id)
	if s == nil {
		c.spend(frameCost)
		return
	}
	if c.spend(resetCost) {
		c.removeStream(s, true)
		c.dropStream(s, Code(binary.BigEndian.Uint32(p)))
	}
}
