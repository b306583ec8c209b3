package waitingroom

import (
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A LeaderRequest is a request of a node to the leader, about one room or only for the time.
type LeaderRequest struct {
	// Node is the name of the data centre, and Epoch the highest that it knows.
	Node  string
	Epoch int64
	// Follows says that the node runs on the leader's clock.
	Follows bool
	// Room and Report are empty in a request for the time.
	Room   string        `json:",omitempty"`
	Report *queue.Report `json:",omitempty"`
	// Revoked are revocations that the leader may not know, and After how many of the leader's the node knows.
	Revoked []Revocation `json:",omitempty"`
	After   int
	// Called are tickets that the node has called, Redeem those that came to it although another node may have called them, and
	// Redeemed those that it was asked to redeem: with a session, or waiting if no slot is reserved for them any more.
	Called   []queue.TicketID `json:",omitempty"`
	Redeem   []queue.Ticket   `json:",omitempty"`
	Redeemed []queue.Ticket   `json:",omitempty"`
	// Responses are those of the site behind the room since the last report; nil if they are not measured.
	Responses *OriginResponses `json:",omitempty"`
}

// A Revocation is a session that was ended early, and until when it could still pass.
type Revocation struct {
	ID    queue.TicketID
	Until time.Time
}

// mostRevoked is how many revocations a message has at most. The others come with the next one.
const mostRevoked = 5000

// A LeaderResponse is the response of the leader.
type LeaderResponse struct {
	Epoch int64
	// Refused says why the leader has refused the request, "" if it has not.
	Refused refusal `json:",omitempty"`
	// Now is the time by the leader's clock.
	Now time.Time
	// State is the global object's response; nil if it has not used the report because the node did not run on its
	// clock. After this response the node does, and reports again.
	State *queue.State `json:",omitempty"`
	// Revoked are the revocations that the node lacks, and Next is how many it knows then.
	Revoked []Revocation `json:",omitempty"`
	Next    int
	// Redeem are tickets that the node has called, and that came to another one. Redeemed are the sessions of those that came to this
	// node, and Pending those of which the other node has yet to say.
	Redeem   []queue.Ticket   `json:",omitempty"`
	Redeemed []queue.Ticket   `json:",omitempty"`
	Pending  []queue.TicketID `json:",omitempty"`
	// Limit is the room's automatic limit of active users, 0 if it has none.
	Limit int `json:",omitempty"`
}

// A refusal is the reason for which a leader refuses a request, and the error of the node.
type refusal string

func (r refusal) Error() string { return "refused: " + string(r) }

// The refusals.
const (
	refusedNotLeader refusal = "this node does not have the rooms in that epoch"
	refusedUnsure    refusal = "the node that has the rooms has not found out lately that no other node has them"
	refusedUnlisted  refusal = "the bucket does not list the node that asks"
	refusedNoRoom    refusal = "the node that has the rooms has no room of that name: give all nodes the same --rooms"
)
