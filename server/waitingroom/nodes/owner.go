package nodes

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// An Owner has the global objects of all rooms in one epoch. It keeps nothing: the next one learns from
// the nodes what was granted. It is safe for concurrent use.
type Owner struct {
	epoch    int64
	clock    *Clock
	settings func(room string, measured *Responses) (Room, bool)

	mu      sync.Mutex
	read    time.Duration // when the last read began that showed no later epoch
	sure    bool          // there was one
	over    bool          // there is a later epoch
	listed  map[string][]string
	lacks   bool                     // a node asked that is not listed
	vain    map[[2]string]int        // node and room: how many lists have been read in vain for it
	heard   map[string]time.Duration // when each node asked last
	rooms   map[string]*room
	revoked map[string]*revocations
	calls   map[string]*calls
}

// Room has the settings of a room that are in force now.
type Room struct {
	Settings queue.Settings
	// Longest is the longest session that it may have promised, whatever held before.
	Longest time.Duration
	// AutomaticLimit is the limit of active users that follows the origin, whatever an event sets meanwhile; 0 if none does.
	AutomaticLimit int
}

type room struct {
	*queue.Global
	settings queue.Settings
}

// revocations are those of a room, in the order in which they came.
type revocations struct {
	all   []Revocation
	gone  int // that are over, and were before all
	known map[queue.TicketID]bool
}

// NewOwner returns the owner of an epoch. The clock of its node is the one that all follow from then on.
// settings returns what holds in a room, after responses of the site behind it that a node has measured, nil for none.
func NewOwner(epoch int64, clock *Clock, settings func(room string, measured *Responses) (Room, bool)) *Owner {
	clock.setLeading()
	return &Owner{
		epoch: epoch, clock: clock, settings: settings, vain: map[[2]string]int{}, heard: map[string]time.Duration{}, rooms: map[string]*room{}, revoked: map[string]*revocations{},
		calls: map[string]*calls{},
	}
}

// Epoch is the owner's.
func (o *Owner) Epoch() int64 { return o.epoch }

// ConfirmEpoch records that a read of the bucket's epochs, which began at a time, showed that one as the highest.
func (o *Owner) ConfirmEpoch(began time.Duration, highest int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if highest > o.epoch {
		o.over = true
	} else if !o.sure || began > o.read {
		o.read, o.sure = began, true
	}
}

// SetMembers sets which nodes the bucket lists, and with which rooms. It has to be read after the epoch was taken.
func (o *Owner) SetMembers(listed map[string][]string) {
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

// isListed reports whether the bucket lists a node with a room; "" is for any.
func (o *Owner) isListed(node, room string) bool {
	rooms, listed := o.listed[node]
	return listed && (room == "" || slices.Contains(rooms, room))
}

// Bounds of the lists that are read because a node asked that is not listed. Later ones come at their time.
const (
	mostInVain = 25   // for one node and room
	mostLacked = 1000 // nodes and rooms
)

// requestList requests that the list is read again, unless that was in vain.
func (o *Owner) requestList(node, room string) {
	of := [2]string{node, room}
	if n, known := o.vain[of]; o.lacks || n == mostInVain || !known && len(o.vain) == mostLacked {
		return
	}
	o.vain[of]++
	o.lacks = true
}

// NeedsList reports whether a node has asked since the last List that was not in it, and may be by now.
func (o *Owner) NeedsList() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.lacks
}

// SilentNodes returns the listed nodes that have sent no request for that long.
func (o *Owner) SilentNodes(since time.Duration) (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name := range o.listed {
		if o.clock.elapsed()-o.heard[name] >= since {
			names = append(names, name)
		}
	}
	return names
}

// RemoveNode has the owner respond to a node no more until the bucket lists it again. It has to come before the bucket drops it.
func (o *Owner) RemoveNode(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.listed, name)
	delete(o.heard, name)
}

// Respond responds to a request of a node.
func (o *Owner) Respond(q Request) Response {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := Response{Epoch: o.epoch}
	switch {
	case o.over || q.Epoch != o.epoch:
		o.over = o.over || q.Epoch > o.epoch
		a.Refused = NotOwner
	case !o.sure || o.clock.elapsed()-o.read >= Sure:
		a.Refused = Unsure
	case !o.isListed(q.Node, ""):
		a.Refused = Unlisted
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
		a.Refused = NoRoom
	case q.Report.DataCentre != q.Node:
		a.Refused = Unlisted
	case !o.isListed(q.Node, q.Room):
		a.Refused = Unlisted
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

// openRoom returns the global object of a room, by what holds now.
func (o *Owner) openRoom(name string, holds Room, now time.Time) *room {
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
		// The owner before may give something for Sure after the epoch was taken: a lease, in which sessions are renewed.
		over := now.Add(Sure + max(s.Lease, holds.Longest) + time.Minute + max(s.SessionDuration, holds.Longest) + 3*s.Skew)
		r = &room{queue.SucceedGlobal(s, expected, now, over, holds.Longest), s}
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
	// mostKept bounds the revocations of a room that are passed on: about 100 MB. Later ones hold where they were made.
	mostKept = 1 << 20
)

// exchangeRevocations takes a node's revocations, and answers with those that it lacks.
func (o *Owner) exchangeRevocations(q *Request, a *Response) {
	r := o.revoked[q.Room]
	if r == nil {
		r = &revocations{known: map[queue.TicketID]bool{}}
		o.revoked[q.Room] = r
	}
	for len(r.all) > 0 && !r.all[0].Until.After(a.Now) {
		delete(r.known, r.all[0].ID)
		r.all, r.gone = r.all[1:], r.gone+1
	}
	for _, one := range q.Revoked[:min(len(q.Revoked), MostRevoked)] {
		if longest := a.Now.Add(longestRevoked); one.Until.After(longest) {
			one.Until = longest
		}
		if !r.known[one.ID] && one.Until.After(a.Now) && len(r.all) < mostKept {
			r.known[one.ID] = true
			r.all = append(r.all, one)
		}
	}
	from := min(max(0, q.After-r.gone), len(r.all))
	to := min(len(r.all), from+MostRevoked)
	a.Revoked, a.Next = slices.Clone(r.all[from:to]), r.gone+to
}
