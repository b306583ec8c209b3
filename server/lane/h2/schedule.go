package h2

import (
	"math/bits"
	"strings"
)

// A Priority says when a stream is served (RFC 9218): those of the lowest urgency first, and
// among equals those that are not incremental one after the other, the others in turn.
type Priority struct {
	Urgency     uint8 // 0 to 7
	Incremental bool
}

const urgencies = 8

var defaultPriority = Priority{Urgency: 3}

// parsePriority parses the value of a Priority field (RFC 9218), a dictionary of RFC 8941. It ignores unknown and invalid
// members, so that the defaults remain.
func parsePriority(s string) Priority {
	p := defaultPriority
	for member := range strings.SplitSeq(s, ",") {
		member, _, _ = strings.Cut(member, ";")
		switch key, value, valued := strings.Cut(strings.Trim(member, " \t"), "="); {
		case key == "u" && len(value) == 1 && '0' <= value[0] && value[0] <= '7':
			p.Urgency = value[0] - '0'
		case key == "i":
			p.Incremental = !valued || value == "?1"
		}
	}
	return p
}

// A queue has streams of one urgency in the order of their turns.
type queue struct{ first, last *Stream }

// A schedule has the streams that have data to send, or wait for their response.
type schedule struct {
	queues [urgencies]queue
	filled uint8 // a bit for each queue that has a stream
}

// put adds a stream to the queue of its urgency: an incremental one at the end, any other before those with a higher number. It
// does nothing if the stream is queued already.
func (q *schedule) put(s *Stream) {
	if s.queued {
		return
	}
	s.queued = true
	at := &q.queues[s.priority.Urgency]
	before := at.last
	if !s.priority.Incremental {
		for before != nil && before.id > s.id {
			before = before.previous
		}
	}
	s.previous = before
	if before == nil {
		s.next, at.first = at.first, s
	} else {
		s.next, before.next = before.next, s
	}
	if s.next == nil {
		at.last = s
	} else {
		s.next.previous = s
	}
	q.filled |= 1 << s.priority.Urgency
}

// remove removes a stream from its queue, if it is queued. The stream's priority must be the one with which put added it.
func (q *schedule) remove(s *Stream) {
	if !s.queued {
		return
	}
	at := &q.queues[s.priority.Urgency]
	if s.previous == nil {
		at.first = s.next
	} else {
		s.previous.next = s.next
	}
	if s.next == nil {
		at.last = s.previous
	} else {
		s.next.previous = s.previous
	}
	s.next, s.previous, s.queued = nil, nil, false
	if at.first == nil {
		q.filled &^= 1 << s.priority.Urgency
	}
}

// next returns the first stream in the order of turns for which may returns true, nil for none. The stream stays queued.
func (q *schedule) next(may func(*Stream) bool) *Stream {
	for left := q.filled; left != 0; left &= left - 1 {
		for s := q.queues[bits.TrailingZeros8(left)].first; s != nil; s = s.next {
			if may(s) {
				return s
			}
		}
	}
	return nil
}
