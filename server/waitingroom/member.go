package waitingroom

import (
	"errors"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A Member is a node that queries the leader. It is safe for concurrent use.
type Member struct {
	Name  string
	Clock *Clock

	mu      sync.Mutex
	epoch   int64 // the highest known
	follows bool  // it runs on the clock of its leader
}

// NewMember returns a node with a name, which no other node may have, and the clock of its rooms. It knows no epoch yet.
func NewMember(name string, clock *Clock) *Member { return &Member{Name: name, Clock: clock} }

// LearnEpoch records an epoch, the number of a leader's term. If it is higher than all that the node knows, the node accepts
// nothing from an earlier one any more, and has to get the time from its leader again.
func (m *Member) LearnEpoch(epoch int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if epoch > m.epoch {
		m.epoch, m.follows = epoch, false
	}
}

// Epoch returns the highest epoch that the node knows, and whether it runs on the clock of that epoch's leader.
func (m *Member) Epoch() (epoch int64, follows bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.epoch, m.follows
}

// A SentRequest is a request, and when it was made, by the monotonic time of the clock.
type SentRequest struct {
	LeaderRequest
	at time.Duration
}

// NewRequest returns a request to the leader and remembers when it was made. It sends nothing. The caller makes the report of a
// room afterwards, and adds it with AddReport; without a report it is a request for the time.
func (m *Member) NewRequest() *SentRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &SentRequest{LeaderRequest: LeaderRequest{Node: m.Name, Epoch: m.epoch, Follows: m.follows}, at: m.Clock.elapsed()}
}

// AddReport sets the room of the request, and the report of this node's data centre of that room.
func (a *SentRequest) AddReport(room string, r queue.Report) { a.Room, a.Report = room, &r }

// Errors of responses that do not count.
var (
	errLate  = errors.New("the answer of the node that has the rooms came too late")
	errOld   = errors.New("another node has the rooms by now")
	errAhead = errors.New("the clock of this node is ahead of that of the node which has the rooms; it waits until that has caught up")
)

// AcceptResponse checks a response to q: it must come in time, be of the present epoch and be no refusal (a [refusal]). In
// any case it learns the epoch in the response. It sets this node's clock by the leader's, and fails if the clock was too far
// ahead. It returns the state in the response, which the caller applies before it sends another request about the room. A nil
// state without an error means that the request had no report, or that the leader needs another one.
func (m *Member) AcceptResponse(q *SentRequest, a LeaderResponse) (*queue.State, error) {
	m.LearnEpoch(a.Epoch)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.Clock.elapsed()-q.at >= responseTimeout:
		return nil, errLate
	case a.Epoch != m.epoch:
		return nil, errOld
	case a.Refused != "":
		return nil, a.Refused
	}
	if m.follows = m.Clock.setByLeader(a.Now, q.at); !m.follows {
		return nil, errAhead
	}
	return a.State, nil
}
