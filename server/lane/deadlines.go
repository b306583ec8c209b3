package lane

import "time"

// A Phase is how far a connection has come. A client that takes long between two steps spends that time in the first three.
type Phase uint8

const (
	// Handshake: the client has connected, and has not finished the TLS handshake or the header of the PROXY protocol.
	Handshake Phase = iota
	// Unanswered: the connection can carry requests, and none has come.
	Unanswered
	// Answering: a request has come and its response has not been sent.
	Answering
	// Idle: the last request has been answered.
	Idle
)

func (p Phase) String() string {
	return [...]string{"handshake", "unanswered", "answering", "idle"}[p]
}

// Deadlines has how long a connection may stay in each phase. The lane and net/http's connections use the same ones. Abort
// ends all phases, when the time to drain is over.
type Deadlines struct {
	Handshake  time.Duration
	Unanswered time.Duration
	// Idle is for a server that goes on.
	Idle time.Duration
	// IdleAtEnd is how long after a server has begun to end it waits for requests that were on their way then, from clients whose
	// earlier ones have been answered. The other phases are as long as ever: a client in one of them has nothing yet of what it
	// came for.
	IdleAtEnd time.Duration
}

// At returns when a connection is to be closed that has been in a phase since then. The time ending is when its server began
// to end it, zero if that goes on. The result is zero for Answering, because each read and write there has its own deadline.
func (d Deadlines) At(p Phase, since, ending time.Time) time.Time {
	switch p {
	case Handshake:
		return since.Add(d.Handshake)
	case Unanswered:
		return since.Add(d.Unanswered)
	case Idle:
		at, soon := since.Add(d.Idle), ending.Add(d.IdleAtEnd)
		if !ending.IsZero() && soon.Before(at) {
			return soon
		}
		return at
	}
	return time.Time{}
}
