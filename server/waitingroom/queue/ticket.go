package queue

import (
	"encoding/binary"
	"encoding/hex"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// Minute is a calendar minute: minutes since 1970 in UTC.
type Minute int64

// MinuteOf returns the calendar minute that contains t.
func MinuteOf(t time.Time) Minute {
	s := t.Unix()
	m := s / 60
	if s%60 < 0 {
		m--
	}
	return Minute(m)
}

// Time returns when the minute begins.
func (m Minute) Time() time.Time { return time.Unix(int64(m)*60, 0).UTC() }

// end returns when the minute is over, which is when the next one begins.
func (m Minute) end() time.Time { return (m + 1).Time() }

// TicketID tells tickets apart. It has to be random, because it decides about places in a
// shuffle.
type TicketID [16]byte

// String returns the id in hexadecimal.
func (id TicketID) String() string { return hex.EncodeToString(id[:]) }

// Ticket is what a visitor carries from request to request. A visitor without a valid
// ticket gets a new one that has only an ID.
type Ticket struct {
	ID TicketID
	// Since is the first request. Its minute is the ticket's bucket.
	Since time.Time
	// LastCheckIn is when the last check-in counted or, once admitted, when the session
	// was last renewed. Zero for a first request.
	LastCheckIn time.Time
	// RefreshInterval is how long after LastCheckIn the next check-in counts.
	RefreshInterval time.Duration
	// Stream says that the visitor has opened an event stream since the last check-in. The data centre of it may have called the
	// ticket, which then comes to any data centre.
	Stream bool
	// AcceptedAt is when the visitor was admitted; zero while waiting.
	AcceptedAt time.Time
	// Ends is when the session ends if it is not renewed; zero while waiting. It is part
	// of the ticket, so that a change of the settings cannot revive a session that no data
	// centre counts any more.
	Ends time.Time
}

// Bucket returns the minute of the visitor's first request. Under [FIFO] older buckets enter first.
func (t *Ticket) Bucket() Minute { return MinuteOf(t.Since) }

// Waiting reports whether the visitor has not been admitted yet.
func (t *Ticket) Waiting() bool { return t.AcceptedAt.IsZero() }

// First reports whether the ticket comes with the first request of its visitor: it has no check-in and no session.
func (t *Ticket) First() bool { return t.LastCheckIn.IsZero() && t.Waiting() }

// hasLostPlace reports whether a waiting ticket has lost its place in line: the visitor stayed away longer than PlaceKept, or the
// ticket has times in the future, which no data centre writes. It is false for the ticket of a first request.
func (s *Settings) hasLostPlace(now time.Time, t *Ticket) bool {
	ahead := now.Add(s.Skew)
	return !t.First() && (now.Sub(t.LastCheckIn) > s.PlaceKept || t.LastCheckIn.After(ahead) || t.Bucket() > MinuteOf(ahead))
}

// isCounted reports whether the ticket still counts at now: its session is not over or, while it waits, its next check-in is not
// overdue.
func (t *Ticket) isCounted(now time.Time) bool {
	if t.Waiting() {
		return t.nextCheckIn().Add(absence).After(now)
	}
	return t.Ends.After(now)
}

// nextCheckIn returns the time from which the next check-in of a waiting ticket counts.
func (t *Ticket) nextCheckIn() time.Time { return t.LastCheckIn.Add(t.RefreshInterval) }

// Outcome is what happens to a request.
type Outcome uint8

const (
	// Wait shows the waiting page.
	Wait Outcome = iota
	// Pass lets the request through.
	Pass
	// Refuse shows the page of a room that rejects; it does not refresh.
	Refuse
	// Reissue says that the ticket is worthless: the caller draws a new ID and asks again
	// with a ticket that has only this ID.
	Reissue
	// Draw, from [DataCentre.Visit], says that its grants are used up but that the
	// global object may have more: the caller carries a [DataCentre.Report] there and
	// the answer back, then calls [DataCentre.Settle]. If the global object cannot be
	// reached, the caller goes straight to Settle.
	Draw
)

// Decision is the answer to one request.
type Decision struct {
	Outcome Outcome
	// Ticket is the visitor's ticket from now on, for Wait and Pass. It needs to be sent
	// only if Changed is set.
	Ticket  Ticket
	Changed bool
	// Counted says that a Pass has a session, or that the check-in of a Wait counted. It is false
	// for a check-in that comes too early, which changes nothing that the visitor is shown.
	Counted bool
	// Estimate is for Wait only.
	Estimate Estimate
}

// Session is what an accepted ticket is worth at one moment.
type Session uint8

const (
	// SessionOver has ended, or comes from the future.
	SessionOver Session = iota
	// SessionPasses needs no other decision: the last renewal was in this minute, or
	// sessions are fixed.
	SessionPasses
	// SessionRenews passes, and asks the data centre to renew it.
	SessionRenews
)

// Session returns whether the session of an admitted ticket is over at now, passes, or passes and has to be renewed. It looks
// only at the ticket, takes no lock and does not allocate, so that a request with a session costs the room next to nothing.
func (s *Settings) Session(now time.Time, t *Ticket) Session {
	switch {
	case t.Waiting() || t.LastCheckIn.Before(t.AcceptedAt) || t.LastCheckIn.After(now.Add(s.Skew)):
		return SessionOver
	case !now.Before(t.Ends) || t.Ends.Sub(t.LastCheckIn) > maxSession:
		return SessionOver
	case s.FixedSessions || MinuteOf(now) <= MinuteOf(t.LastCheckIn):
		return SessionPasses
	}
	return SessionRenews
}

// maxSession is the longest time from a renewal to the session's end.
const maxSession = 31 * time.Minute

// sessionEnd returns the end of a session that is started or renewed at now: after SessionDuration, but at most longest. A
// renewable session counts from the end of the minute, so that later requests in that minute need not be recorded.
func (s *Settings) sessionEnd(now time.Time, longest time.Duration) time.Time {
	d := min(s.SessionDuration, longest)
	if s.FixedSessions {
		return now.Add(d)
	}
	return MinuteOf(now).end().Add(d)
}

// mixBits returns 64 bits that depend on all bits of a ticket's id and of salt (the finaliser of SplitMix64, Steele, Lea and
// Flood 2014).
func mixBits(id TicketID, salt uint64) uint64 {
	step := func(x uint64) uint64 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	return step(step(step(salt)^binary.LittleEndian.Uint64(id[:8])) ^ binary.LittleEndian.Uint64(id[8:]))
}

// newRandom returns a random generator for one data centre or worker. Its numbers depend on seed, name and incarnation only.
func newRandom(seed uint64, name string, incarnation int64) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(incarnation)))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// variation is how far an interval may be from its mean, in percent.
const variation = 15

// drawRefresh returns a random interval until the next check-in, in whole seconds. It differs from RefreshInterval by up to 15 %,
// rounded to whole seconds, or by one second if that is more.
func (s *Settings) drawRefresh(r *rand.Rand) time.Duration {
	mean := int(s.RefreshInterval / time.Second)
	spread := max(1, (mean*variation+50)/100)
	return time.Duration(mean-spread+r.IntN(2*spread+1)) * time.Second
}

// longestRefresh returns an upper bound of what drawRefresh returns, for a RefreshInterval of 5 seconds or more.
func (s *Settings) longestRefresh() time.Duration {
	return s.RefreshInterval + s.RefreshInterval*(variation+5)/100
}
