package waitingroom

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A Leader has the global objects of all rooms in one epoch. It stores nothing: the next leader learns the grants from the nodes'
// reports. It is safe for concurrent use.
type Leader struct {
	epoch    int64
	clock    *Clock
	settings func(room string, measured *OriginResponses) (SharedRoom, bool)

	mu      sync.Mutex
	read    time.Duration // when the last read began that showed no later epoch
	sure    bool          // there was one
	over    bool          // there is a later epoch
	listed  map[string][]string
	lacks   bool                     // a node that is not listed sent a request
	vain    map[[2]string]int        // by node and room: for how many requests the list was read because it lacked them
	heard   map[string]time.Duration // when each node sent its last request
	rooms   map[string]*leaderRoom
	revoked map[string]*leaderRevocations
	calls   map[string]*calls
}

// SharedRoom has the settings of a room that are in force now.
type SharedRoom struct {
	Settings queue.Settings
	// Longest is the longest session that may have been promised under any earlier settings.
	Longest time.Duration
	// AutomaticLimit is the limit of active users that follows the origin, whatever an event sets meanwhile; 0 if none does.
	AutomaticLimit int
}

// A leaderRoom is the global object of a room, with the settings that it has.
type leaderRoom struct {
	*queue.Global
	settings queue.Settings
}

// leaderRevocations are those of a room, in the order in which they came.
type leaderRevocations struct {
	all   []Revocation
	gone  int // that are over, and were before all
	known map[queue.TicketID]bool
}

// NewLeader returns the leader of an epoch. It marks the clock of its node as known: all nodes follow that clock from then on.
// settings returns the settings in force in a room, false for an unknown room; measured are the responses of the site that a node
// has measured, nil for none. The leader calls settings while it holds its lock.
func NewLeader(epoch int64, clock *Clock, settings func(room string, measured *OriginResponses) (SharedRoom, bool)) *Leader {
	clock.setKnown()
	return &Leader{
		epoch: epoch, clock: clock, settings: settings,
		vain: map[[2]string]int{}, heard: map[string]time.Duration{}, calls: map[string]*calls{},
		rooms: map[string]*leaderRoom{}, revoked: map[string]*leaderRevocations{},
	}
}

// Epoch returns the leader's epoch.
func (o *Leader) Epoch() int64 { return o.epoch }

// ConfirmEpoch records that a read of the bucket's epochs, which began at a monotonic time of the clock's process, showed highest
// as the highest. If that is higher than the leader's own, the leader refuses all requests from now on.
func (o *Leader) ConfirmEpoch(began time.Duration, highest int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if highest > o.epoch {
		o.over = true
	} else if !o.sure || began > o.read {
		o.read, o.sure = began, true
	}
}

// SetMembers sets which nodes the bucket lists, by their names, and with which rooms. The caller must have read the list after
// the epoch was taken, and must not use the map afterwards, which the leader changes.
func (o *Leader) SetMembers(listed map[string][]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed, o.lacks = listed, false
	maps.DeleteFunc(o.vain, func(of [2]string, _ int) bool { return o.isListed(of[0], of[1]) })
	for name := range listed {
		if _, ok := o.heard[name]; !ok {
			o.heard[name] = o.clock.elapsed()
		}
	}
}

// isListed reports whether the bucket lists a node with a room; "" is for any room. The caller holds the lock.
func (o *Leader) isListed(node, room string) bool {
	rooms, listed := o.listed[node]
	return listed && (room == "" || slices.Contains(rooms, room))
}

// The limits of reading the list because of requests of nodes that are not listed. Beyond them, the list is read at its usual time.
const (
	mostInVain = 25   // for one node and room
	mostLacked = 1000 // nodes and rooms
)

// requestList makes NeedsList return true because a node is not listed with a room ("" for any), unless reading the list has
// often been in vain for them. The caller holds the lock.
func (o *Leader) requestList(node, room string) {
	of := [2]string{node, room}
	if n, known := o.vain[of]; o.lacks || n == mostInVain || !known && len(o.vain) == mostLacked {
		return
	}
	o.vain[of]++
	o.lacks = true
}

// NeedsList reports whether the list has to be read again, because a node that is not listed, or not with the room, has sent a
// request since SetMembers. It ignores nodes for which the list was often read in vain.
func (o *Leader) NeedsList() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lacks
}

// SilentNodes returns the names of the listed nodes, in no order, that have sent no request for the duration since. A node counts
// as heard when it is listed for the first time.
func (o *Leader) SilentNodes(since time.Duration) (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name := range o.listed {
		if o.clock.elapsed()-o.heard[name] >= since {
			names = append(names, name)
		}
	}
	return names
}

// RemoveNode makes the leader refuse requests of a node until SetMembers lists it again. The caller removes the node from the
// bucket afterwards.
func (o *Leader) RemoveNode(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.listed, name)
	delete(o.heard, name)
}

// Respond handles a request of a node, for the time or about a room, and returns the response. It refuses the request if another
// node may be the leader, the node is not listed (with the room), or the room is unknown. A request without a report only gets
// the time. With a report, it exchanges revocations and calls, and returns the automatic limit. Only if the node follows the
// leader's clock, the room's global object processes the report; otherwise the State is nil.
func (o *Leader) Respond(q LeaderRequest) LeaderResponse {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := LeaderResponse{Epoch: o.epoch}
	switch {
	case o.over || q.Epoch != o.epoch:
		o.over = o.over || q.Epoch > o.epoch
		a.Refused = refusedNotLeader
	case !o.sure || o.clock.elapsed()-o.read >= epochTimeout:
		a.Refused = refusedUnsure
	case !o.isListed(q.Node, ""):
		a.Refused = refusedUnlisted
		o.requestList(q.Node, "")
	}
	if a.Refused != "" {
		return a
	}
	o.heard[q.Node] = o.clock.elapsed()
	a.Now = o.clock.Now()
	if q.Report == nil {
		return a
	}
	now, ok := o.settings(q.Room, q.Responses)
	switch {
	case !ok:
		a.Refused = refusedNoRoom
	case q.Report.DataCentre != q.Node:
		a.Refused = refusedUnlisted
	case !o.isListed(q.Node, q.Room):
		a.Refused = refusedUnlisted
		o.requestList(q.Node, q.Room)
	}
	if a.Refused != "" {
		return a
	}
	a.Limit = now.AutomaticLimit
	o.exchangeRevocations(&q, &a)
	if o.calls[q.Room] == nil {
		o.calls[q.Room] = &calls{}
	}
	o.calls[q.Room].exchange(&q, &a)
	if q.Follows {
		st := o.openRoom(q.Room, now, a.Now).Receive(a.Now, *q.Report)
		a.State = &st
	}
	return a
}

// openRoom returns the global object of a room, with the settings in force. At the first call it creates the object, which grants
// nothing until all listed nodes have reported or all earlier promises are over. The caller holds the lock.
func (o *Leader) openRoom(name string, holds SharedRoom, now time.Time) *leaderRoom {
	s := holds.Settings
	r := o.rooms[name]
	if r == nil {
		var expected []string
		for node, rooms := range o.listed {
			if slices.Contains(rooms, name) {
				expected = append(expected, node)
			}
		}
		slices.Sort(expected)
		// For epochTimeout after the epoch was taken, the leader before may still grant leases, in which sessions are renewed.
		over := now.Add(epochTimeout + max(s.Lease, holds.Longest) + time.Minute + max(s.SessionDuration, holds.Longest) + 3*s.Skew)
		r = &leaderRoom{queue.SucceedGlobal(s, expected, now, over, holds.Longest), s}
		o.rooms[name] = r
	}
	if r.settings != s {
		r.Configure(now, s)
		r.settings = s
	}
	return r
}

const (
	// longestRevoked is how long a revocation is passed on at most: every session from before it has ended by then.
	longestRevoked = time.Hour
	// mostKept bounds the revocations of a room that are passed on: about 100 MB. Later ones apply only on the node that made them.
	mostKept = 1 << 20
)

// exchangeRevocations stores the revoked sessions that a node reports, each for an hour at most, and adds to the response those
// that the node does not know yet. Both are up to mostRevoked. The caller holds the lock.
func (o *Leader) exchangeRevocations(q *LeaderRequest, a *LeaderResponse) {
	r := o.revoked[q.Room]
	if r == nil {
		r = &leaderRevocations{known: map[queue.TicketID]bool{}}
		o.revoked[q.Room] = r
	}
	for len(r.all) > 0 && !r.all[0].Until.After(a.Now) {
		delete(r.known, r.all[0].ID)
		r.all, r.gone = r.all[1:], r.gone+1
	}
	for _, one := range q.Revoked[:min(len(q.Revoked), mostRevoked)] {
		if longest := a.Now.Add(longestRevoked); one.Until.After(longest) {
			one.Until = longest
		}
		if !r.known[one.ID] && one.Until.After(a.Now) && len(r.all) < mostKept {
			r.known[one.ID] = true
			r.all = append(r.all, one)
		}
	}
	from := min(max(0, q.After-r.gone), len(r.all))
	to := min(len(r.all), from+mostRevoked)
	a.Revoked, a.Next = slices.Clone(r.all[from:to]), r.gone+to
}
