package waitingroom

import (
	"maps"
	"slices"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A visitor whom one node has called may come to another one. That node, where the visitor has a ticket but no slot, queries the leader.
// The node that made the call admits the visitor, and the other one passes on the ticket of the session, which it takes over like any
// session of another node. So the slot is charged once, by the node that has reserved it, and a lost message costs only time.

const (
	// mostRedeemed is how many tickets each list of a message has at most. The others come with the next one.
	mostRedeemed = 2000
	// mostCalls bounds the calls of a room that the leader knows.
	mostCalls = 1 << 17
	// callKept is how long the leader knows a call, which no reservation outlives.
	callKept = 2 * time.Minute
)

// calls are the tickets of a room that nodes have called.
type calls struct {
	byTicket map[queue.TicketID]*call
	asked    map[string]map[queue.TicketID]*call // by the node that has called: those that came to another one, and have no session yet
	pruned   time.Time                           // when old ones were removed
}

// A call is one ticket that a node has called.
type call struct {
	node    string
	made    time.Time
	asked   *queue.Ticket // as it came to another node
	session *queue.Ticket // as the node that called has admitted it
}

// exchange records what a request about a room has about calls: which visitors the node has called, which came to it although
// another node may have called them, and the sessions that it has given to such visitors. It adds to the response a, which has
// the time already, what other nodes have reported about the same visitors. The leader calls it while it holds its lock.
func (c *calls) exchange(q *LeaderRequest, a *LeaderResponse) {
	if c.byTicket == nil {
		c.byTicket, c.asked, c.pruned = map[queue.TicketID]*call{}, map[string]map[queue.TicketID]*call{}, a.Now
	}
	if a.Now.Sub(c.pruned) > callKept/4 {
		c.pruned = a.Now
		isOld := func(_ queue.TicketID, one *call) bool { return a.Now.Sub(one.made) > callKept }
		maps.DeleteFunc(c.byTicket, isOld)
		for _, asked := range c.asked {
			maps.DeleteFunc(asked, isOld)
		}
	}
	for _, id := range q.Called[:min(len(q.Called), mostRedeemed)] {
		switch one := c.byTicket[id]; {
		case one != nil && one.node == q.Node: // the response to the last report of it was lost, or it is called again
			one.made = a.Now
		case one != nil || len(c.byTicket) < mostCalls:
			if one != nil {
				delete(c.asked[one.node], id)
			}
			c.byTicket[id] = &call{node: q.Node, made: a.Now}
		}
	}
	for i := range q.Redeemed[:min(len(q.Redeemed), mostRedeemed)] {
		t := &q.Redeemed[i]
		switch one := c.byTicket[t.ID]; {
		case one == nil || one.node != q.Node:
		case t.Waiting(): // the reservation has lapsed
			delete(c.byTicket, t.ID)
			delete(c.asked[q.Node], t.ID)
		default:
			one.session = t
			delete(c.asked[q.Node], t.ID)
		}
	}
	for i := range q.Redeem[:min(len(q.Redeem), mostRedeemed)] {
		t := &q.Redeem[i]
		switch one := c.byTicket[t.ID]; {
		case one == nil || one.node == q.Node:
		case one.session != nil:
			a.Redeemed = append(a.Redeemed, *one.session)
		default:
			one.asked = t
			if c.asked[one.node] == nil {
				c.asked[one.node] = map[queue.TicketID]*call{}
			}
			c.asked[one.node][t.ID] = one
			a.Pending = append(a.Pending, t.ID)
		}
	}
	for _, one := range c.asked[q.Node] {
		if len(a.Redeem) < mostRedeemed {
			a.Redeem = append(a.Redeem, *one.asked)
		}
	}
}

// redemptions are a node's part in the calls of a room. They are not safe for concurrent use.
type redemptions struct {
	called   []calledTicket // of the last callKept, in their order
	reported int            // of them, those that the leader of epoch knows
	epoch    int64
	wanted   map[queue.TicketID]*redemption
	numbered int            // redemptions so far
	sessions []queue.Ticket // of visitors who came to other nodes
}

// A calledTicket is a ticket that the node has called.
type calledTicket struct {
	id queue.TicketID
	at time.Time
}

// A redemption is a ticket that came to a node, which another one may have called.
type redemption struct {
	ticket  queue.Ticket
	number  int           // rises with each ticket that came
	visits  int           // that wait for it
	Pending bool          // the other node has yet to respond
	Session *queue.Ticket // of the visitor; nil before that is known
}

// AddCalled records that this node has called the visitor of a ticket, for the next requests to the leader. It ignores the call
// if mostCalls are recorded.
func (r *redemptions) AddCalled(now time.Time, id queue.TicketID) {
	if len(r.called) < mostCalls {
		r.called = append(r.called, calledTicket{id, now})
	}
}

// Want adds a ticket that came to this node although another one may have called its visitor, so that the next requests to the
// leader request its session. [redemptions.Apply] sets Session and Pending of the result, at which the caller looks after each
// response. Calls with the same ticket share a result. The caller must call [redemptions.Done] with it afterwards. It
// takes no lock: the caller has the turn of the room's durable object.
func (r *redemptions) Want(t queue.Ticket) *redemption {
	wanted := r.wanted[t.ID]
	if wanted == nil {
		r.numbered++
		wanted = &redemption{ticket: t, number: r.numbered}
		if r.wanted == nil {
			r.wanted = map[queue.TicketID]*redemption{}
		}
		r.wanted[t.ID] = wanted
	}
	wanted.visits++
	return wanted
}

// Done ends one use of a result of [redemptions.Want]. When all uses have ended, the next requests do not have the ticket.
func (r *redemptions) Done(wanted *redemption) {
	if wanted.visits--; wanted.visits == 0 {
		delete(r.wanted, wanted.ticket.ID)
	}
}

// AddTo adds to a request the called tickets that the leader does not know, the tickets whose sessions this node wants, and the
// sessions that it has given to visitors of other nodes. A leader of another epoch knows no called tickets. The tickets that came
// first come first, as many as one request may have. What the request has counts as known to the leader only after
// [redemptions.Apply].
func (r *redemptions) AddTo(now time.Time, q *LeaderRequest) {
	if r.epoch != q.Epoch {
		r.epoch, r.reported = q.Epoch, 0
	}
	old := 0
	for old < len(r.called) && now.Sub(r.called[old].at) > callKept {
		old++
	}
	r.called, r.reported = r.called[old:], max(0, r.reported-old)
	for _, one := range r.called[r.reported:min(len(r.called), r.reported+mostRedeemed)] {
		q.Called = append(q.Called, one.id)
	}
	q.Redeemed = slices.Clone(r.sessions[:min(len(r.sessions), mostRedeemed)])
	open := slices.SortedFunc(maps.Values(r.wanted), func(a, b *redemption) int { return a.number - b.number })
	for _, wanted := range open {
		if wanted.Session == nil && len(q.Redeem) < mostRedeemed {
			q.Redeem = append(q.Redeem, wanted.ticket)
		}
	}
}

// Apply applies the leader's response a to the request q, which AddTo has filled last. It must be called once for a response that
// counts, and not if none came. The data centre d admits its called visitors who came to other nodes. report says that it has
// decided about such visitors: the caller must store the journal and then send the next report soon, which has their sessions.
func (r *redemptions) Apply(now time.Time, d *queue.DataCentre, q *LeaderRequest, a *LeaderResponse) (report bool) {
	r.reported, r.sessions = r.reported+len(q.Called), r.sessions[len(q.Redeemed):]
	for _, wanted := range r.wanted {
		wanted.Pending = false
	}
	for _, id := range a.Pending {
		if wanted := r.wanted[id]; wanted != nil {
			wanted.Pending = true
		}
	}
	for i := range a.Redeemed {
		if wanted := r.wanted[a.Redeemed[i].ID]; wanted != nil {
			wanted.Session = &a.Redeemed[i]
		}
	}
	for _, t := range a.Redeem[:min(len(a.Redeem), mostRedeemed)] {
		if session, ok := d.Redeem(now, t); ok { // otherwise the leader requests it again
			r.sessions = append(r.sessions, session)
			report = true
		}
	}
	return report
}
