package queue

import (
	"time"
)

// Minute is a calendar minute: minutes since 1970 in UTC. A visitor's bucket is the
// minute of the first request.
type Minute int64

// MinuteOf cuts t to its minute.
func MinuteOf(t time.Time) Minute {
	s := t.Unix()
	m := s / 60
	if s%60 < 0 {
		m--
	}
	return Minute(m)
}

// Time is when the minute begins.
func (m Minute) Time() time.Time { return time.Unix(int64(m)*60, 0).UTC() }

// end is when the minute is over.
func (m Minute) end() time.Time { return (m + 1).Time() }

// TicketID tells tickets apart. It has to be random, as it decides about places in a
// shuffle.
type TicketID [16]byte

// Visitor is what a ticket says, or, with only an ID and otherwise zero, somebody who
// came without a ticket that is worth anything and for whom the caller has drawn a new
// ID.
type Visitor struct {
	ID     TicketID
	Bucket Minute
	// LastCheckIn is when the last check-in counted or, once admitted, when the session
	// was last renewed. Zero for a first request.
	LastCheckIn time.Time
	// RefreshInterval is how long after LastCheckIn the next check-in counts.
	RefreshInterval time.Duration
	// AcceptedAt is when the visitor was admitted; zero while waiting.
	AcceptedAt time.Time
	// Ends is when the session ends if it is not renewed; zero while waiting. It is
	// part of the ticket, so that a change of the settings cannot wake a session that
	// nobody counts any more.
	Ends time.Time
}

// First reports whether the visitor came without a ticket.
func (v *Visitor) First() bool { return v.LastCheckIn.IsZero() && v.AcceptedAt.IsZero() }

// Outcome is what happens to a request.
type Outcome uint8

const (
	// Wait shows the page.
	Wait Outcome = iota
	// Pass lets the request through.
	Pass
	// Refuse shows the page of a room that rejects; it does not refresh.
	Refuse
	// Reissue says that the ticket is worth nothing any more, or not yet: the caller
	// draws a new ID and asks again for the Visitor that has only this ID.
	Reissue
	// Ask, from a [Worker], says that the [DataCentre] has to decide.
	Ask
	// Draw, from [DataCentre.Visit], says that its grants are used up but that the
	// global object may have more: the caller carries a [DataCentre.Report] there and
	// the answer back, then calls [DataCentre.Settle]. Nothing else is needed where it
	// cannot be reached.
	Draw
)

var outcomeNames = [...]string{"wait", "pass", "refuse", "reissue", "ask", "draw"}

func (o Outcome) String() string { return outcomeNames[o] }

// Decision is the answer to one request.
type Decision struct {
	Outcome Outcome
	// Visitor is what the ticket has to say from now on, for Wait and Pass. It needs to
	// be sent only where Changed.
	Visitor Visitor
	Changed bool
	// Counted is whether this check-in had its chance. One that came too early had
	// not, and changes nothing that the visitor is shown.
	Counted bool
	// Estimate is for Wait only.
	Estimate Estimate
}

// Session is what an accepted ticket is worth at one moment.
type Session uint8

const (
	// SessionOver is what has ended, or comes from the future.
	SessionOver Session = iota
	// SessionPasses needs nobody's word: the last renewal was in this minute, or
	// sessions are fixed.
	SessionPasses
	// SessionRenews passes, and asks the data centre to renew it.
	SessionRenews
)

// Session says what an accepted ticket is worth at now. It takes no lock and no
// allocation, so that a request with a session costs the room next to nothing.
func (s *Settings) Session(now time.Time, v *Visitor) Session {
	switch {
	case v.AcceptedAt.IsZero() || v.LastCheckIn.Before(v.AcceptedAt) || v.LastCheckIn.After(now.Add(s.Skew)):
		return SessionOver
	case !now.Before(v.Ends) || v.Ends.Sub(v.LastCheckIn) > maxSession:
		return SessionOver
	case s.FixedSessions || MinuteOf(now) <= MinuteOf(v.LastCheckIn):
		return SessionPasses
	}
	return SessionRenews
}

// maxSession is the longest time from a renewal to the session's end.
const maxSession = 31 * time.Minute

// sessionEnd is when a session that is begun or renewed at now ends: with renewal,
// counted from the end of the minute, so that requests later in it need not be
// recorded.
func (s *Settings) sessionEnd(now time.Time, longest time.Duration) time.Time {
	d := min(s.SessionDuration, longest)
	if s.FixedSessions {
		return now.Add(d)
	}
	return MinuteOf(now).end().Add(d)
}
