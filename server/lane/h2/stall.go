package h2

import "time"

// A stall is the time for which the client's windows have blocked the present 64 KiB of a stream, or of the connection.
type stall struct {
	since time.Time     // zero while nothing is blocked
	spent time.Duration // before
	chunk int           // bytes since spent was 0
}

// count counts n bytes of a body that were gathered. After each 64 KiB the time starts again at 0.
func (s *stall) count(n int) {
	if s.chunk += n; s.chunk >= Gathered {
		s.chunk, s.spent = 0, 0
	}
}

// end records that the client's window no longer blocks anything.
func (s *stall) end(now time.Time) {
	if !s.since.IsZero() {
		s.spent += now.Sub(s.since)
		s.since = time.Time{}
	}
}

// deadline returns when the window will have blocked for as long as it may; zero while nothing is blocked.
func (s *stall) deadline(allowed time.Duration) time.Time {
	if s.since.IsZero() {
		return time.Time{}
	}
	return s.since.Add(allowed - s.spent)
}

// Earlier returns the earlier one of two deadlines, of which a zero one stands for none.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Passed reports whether a deadline, zero for none, has passed at the time now.
func Passed(by, now time.Time) bool { return !by.IsZero() && !now.Before(by) }
