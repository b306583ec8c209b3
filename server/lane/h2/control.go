package h2

import "encoding/binary"

// This file processes the frames that control how responses are sent, and PING.

// onWindowUpdate processes a WINDOW_UPDATE frame, by which the client allows more bytes on a stream, or with id 0 on the
// connection. An increment of 0, or one beyond the largest window, resets the stream, or with id 0 ends the connection. It
// ignores the frame for a closed stream.
func (c *Conn) onWindowUpdate(id uint32, p []byte) {
	if len(p) != 4 {
		c.fail(FrameSizeError)
		return
	}
	if !c.spend(frameCost) {
		return
	}
	n := int(binary.BigEndian.Uint32(p) & mostID)
	if id == 0 {
		switch {
		case n == 0:
			c.fail(ProtocolError)
		case c.window+n > mostWindow:
			c.fail(FlowControlError)
		default:
			c.window += n
		}
		return
	}
	if c.isUnused(id) {
		c.fail(ProtocolError)
		return
	}
	s := c.find(id)
	switch {
	case s == nil:
	case n == 0:
		c.resetStream(s, ProtocolError)
	case s.window+n > mostWindow:
		c.resetStream(s, FlowControlError)
	default:
		c.addWindow(s, n)
	}
}

// addWindow adds n, which may be negative, to the bytes that may be sent on a stream, and gives the stream a turn if it can send
// now.
func (c *Conn) addWindow(s *Stream, n int) {
	if s.window += n; s.window <= 0 {
		return
	}
	s.stall.end(c.now)
	if s.given || s.asked {
		c.giveTurn(s)
	}
}

// onSettings processes a SETTINGS frame: it changes the windows of streams, and queues the acknowledgement. It checks the values
// of other settings and otherwise ignores them. An invalid frame ends the connection. It ignores the acknowledgement of the
// server's own settings.
func (c *Conn) onSettings(id uint32, flags byte, p []byte) {
	switch {
	case id != 0:
		c.fail(ProtocolError)
		return
	case flags&ack != 0:
		if len(p) > 0 {
			c.fail(FrameSizeError)
		}
		return
	case len(p)%6 != 0:
		c.fail(FrameSizeError)
		return
	}
	c.settled = true
	for ; len(p) > 0 && !c.failed; p = p[6:] {
		value := binary.BigEndian.Uint32(p[2:])
		switch binary.BigEndian.Uint16(p) {
		case enablePush, enableConnect, noPriorities:
			if value > 1 {
				c.fail(ProtocolError)
			}
		case initialWindow:
			if value > mostWindow {
				c.fail(FlowControlError)
				return
			}
			by := int(value) - c.initial
			c.initial = int(value)
			for _, s := range c.streams {
				if s.window+by > mostWindow {
					c.fail(FlowControlError)
					return
				}
				c.addWindow(s, by)
			}
		case maxFrameSize:
			if value < largestFrame || value >= 1<<24 {
				c.fail(ProtocolError)
			}
		}
	}
	if !c.failed {
		c.control = appendFrameHead(c.control, 0, settings, ack, 0)
	}
}

// onPing processes a PING frame: it queues the response, or, if the frame is the response to the PING of Announce, calls Drain.
func (c *Conn) onPing(id uint32, flags byte, p []byte) {
	switch {
	case id != 0:
		c.fail(ProtocolError)
	case len(p) != 8:
		c.fail(FrameSizeError)
	case flags&ack == 0:
		c.control = append(appendFrameHead(c.control, len(p), ping, ack, 0), p...)
	case c.pinged && string(p) == farewell:
		c.Drain()
	}
}

// onPriority checks a PRIORITY frame and otherwise ignores it, as RFC 9113 allows. A malformed one resets its stream; one for
// stream 0 ends the connection.
func (c *Conn) onPriority(id uint32, p []byte) {
	switch {
	case id == 0:
		c.fail(ProtocolError)
	case len(p) != 5:
		c.resetEither(id, FrameSizeError)
	case binary.BigEndian.Uint32(p)&mostID == id:
		c.resetEither(id, ProtocolError)
	}
}

// onPriorityUpdate processes a PRIORITY_UPDATE frame (RFC 9218), which changes the priority of an open stream, or of one that is
// still to come.
func (c *Conn) onPriorityUpdate(id uint32, p []byte) {
	if id != 0 {
		c.fail(ProtocolError)
		return
	}
	if len(p) < 4 {
		c.fail(FrameSizeError)
		return
	}
	of, to := binary.BigEndian.Uint32(p)&mostID, parsePriority(string(p[4:min(len(p), 4+priorityBytes)]))
	switch s := c.find(of); {
	case of == 0 || of%2 == 0:
		c.fail(ProtocolError)
	case s != nil:
		was := s.queued
		c.schedule.remove(s)
		if s.priority = to; was {
			c.schedule.put(s)
		}
	case of > c.lastID:
		c.early[c.updates%updatesKept].id, c.early[c.updates%updatesKept].priority = of, to
		c.updates++
	}
}

// applyEarlyPriority gives a new stream the priority that a PRIORITY_UPDATE frame had for it before the stream was opened, if one
// had, and that of the latest of several.
func (c *Conn) applyEarlyPriority(s *Stream) {
	for i := range c.early { // from the oldest on
		if e := &c.early[(c.updates+i)%updatesKept]; e.id == s.id {
			s.priority = e.priority
			e.id = 0
		}
	}
}
