package lane

import "time"

// A Phase is how far a connection has come. A client that takes long between two steps spends that time in the first three.
type Phase uint8

const (
	// Handshake: the client has connected, and has not finished the TLS handshake or the header of the PROXY protocol.
	Handshake Phase = iota
	// Unanswered: the connection can carry requests, and the first one has not come; or a part of a later one has.
	Unanswered
	// Answering: a request has come and its response has not been sent.
	Answering
	// Idle: the last request has been answered.
	Idle
)

// Deadlines has how long a connection may stay in each phase. The lane and net/http's connections use the same ones. Abort
// ends all phases, when the time to drain is over.
type Deadlines struct {
	// Handshake, Unanswered and Idle are for a server that goes on.
	Handshake  time.Duration
	Unanswered time.Duration
	Idle       time.Duration
	// UnansweredAtEnd and IdleAtEnd replace two of them when a server has begun to end, if they are shorter. They count from
	// then, or from the beginning of the phase, whichever is later. IdleAtEnd is for requests that were on their way, from
	// clients whose earlier ones have been answered. UnansweredAtEnd is for clients that have nothing yet of what they came for,
	// and may be slow, and bounds how long connections that are opened in advance make a server wait.
	UnansweredAtEnd time.Duration
	IdleAtEnd       time.Duration
}

// At returns when a connection must be closed that has been in a phase since a time. ending is when its server began to end, zero
// if it does not. The result is zero for Answering, because each read and write has its own deadline then.
func (d Deadlines) At(p Phase, since, ending time.Time) time.Time {
	switch p {
	case Handshake:
		return since.Add(d.Handshake)
	case Unanswered:
		return phaseDeadline(since, d.Unanswered, ending, d.UnansweredAtEnd)
	case Idle:
		return phaseDeadline(since, d.Idle, ending, d.IdleAtEnd)
	}
	return time.Time{}
}

// phaseDeadline returns the deadline of a phase: allowed after its start. In a server that ends it is at the latest atEnd after
// ending, or after the start of the phase if that is later.
func phaseDeadline(since time.Time, allowed time.Duration, ending time.Time, atEnd time.Duration) time.Time {
	at, from := since.Add(allowed), since
	if from.Before(ending) {
		from = ending
	}
	if soon := from.Add(atEnd); !ending.IsZero() && soon.Before(at) {
		return soon
	}
	return at
}
