package waitingroom

import (
	"context"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// globalKey is where a global object keeps its state.
const globalKey = "global"

// openGlobal returns a room's global object, which grants slots to data centres, from its stored state. It stores nothing.
// centres are the names of all data centres. If the state is missing although the room had one (Options.Known), or is damaged, it
// logs that, and the object grants nothing until it is known how many users are inside. A room without earlier state gets a new
// object. The error is that of reading.
func openGlobal(ctx context.Context, s *durable.State, o *Options, m *config.EffectiveSettings, centres []string, now time.Time) (*queue.Global, error) {
	stored, found, err := s.Get(ctx, globalKey)
	if err != nil {
		return nil, err
	}
	switch {
	case found:
		g, err := queue.RestoreGlobal(stored, m.Settings, now)
		if err == nil {
			g.Configure(now, m.Settings)
			return g, nil
		}
		o.Logger.Error("waitingroom: the state of a room is damaged; no new user is let in until it is known how many are inside", "room", s.Name(), "err", err)
	case o.Known == nil || !o.Known(s.Name()):
		return queue.NewGlobal(m.Settings, now), nil
	default:
		o.Logger.Error("waitingroom: the state of a room is lost; no new user is let in until it is known how many are inside", "room", s.Name())
	}
	return queue.RecoverGlobal(m.Settings, centres, now), nil
}

// A Cluster is how a node takes part in the rooms of a cluster.
type Cluster struct {
	// Member is the node. Rooms go by its clock, and its name is the data centre's.
	Member *Member
	// Carry sends a request to the leader and returns the response, which may come late, or not at all:
	// then it returns an error.
	Carry func(context.Context, LeaderRequest) (LeaderResponse, error)
}

// EffectiveRoom returns the settings in force in a room, for the leader of the cluster; false if there is no such room, or each
// node has it by itself. measured are responses of the site behind the room that a node has measured, nil for none: they first
// adjust the room's limit if that is automatic, and a new limit comes into force here.
func (r *Rooms) EffectiveRoom(name string, measured *OriginResponses) (SharedRoom, bool) {
	room := r.currentRooms().byName[name]
	if room == nil || room.config.EachNode {
		return SharedRoom{}, false
	}
	room.followOrigin(measured)
	holds := SharedRoom{Settings: room.settingsAt(room.now()).Settings, Longest: room.config.LongestSession()}
	if room.config.Automatic {
		holds.AutomaticLimit = room.kept.limit.limitOf(room.config)
	}
	return holds, true
}

// SharedRooms returns the names of the rooms that the nodes of a cluster share, in the order of the configuration.
func (r *Rooms) SharedRooms() (names []string) {
	for _, room := range r.currentRooms().rooms {
		if !room.config.EachNode {
			names = append(names, room.config.Name)
		}
	}
	return names
}

// globalTimeout is how long a visitor waits for the response of a global object on another node.
const globalTimeout = responseTimeout

// A remote is a data centre's way to a global object on another node. One report is under
// way at a time; visits that draw while it is share the next one.
type remote struct {
	*Cluster

	draws         uint64        // visits that wait for slots, since the start
	reportedDraws uint64        // of them, those before the last report was made
	answeredDraws uint64        // of them, those before the last report with a response
	reporting     bool          // a report waits for its response
	reported      chan struct{} // closed when the response arrives
	unreachable   bool          // the last report had no response that counts, and that was logged

	epoch            int64        // of the leader that the next two fields are about
	sentRevocations  int          // how many of the node's revocations the leader knows
	knownRevocations int          // how many of the leader's revocations the node knows
	revoked          []Revocation // of this node

	redemptions redemptions
}

// Bounds of the time that a visitor waits until the node that may have called it says so: the interval between two reports to the
// leader, so that clients who repeat their requests do not multiply those; how many there are at most, and how many if the leader does
// not know the call, which may arrive there a moment later. Shortly before the end of a minute the node that has called the visitor
// waits for the next one, up to three seconds.
const (
	redeemInterval   = 150 * time.Millisecond
	redeemRequests   = 30
	redeemIfNotKnown = 2
)

// redeem requests from other nodes, through the leader, the session of a visitor whom one of them may have called. It reports to
// the leader again and again, until the session has come or the node gives up (see redeemRequests). session is the ticket with
// its session. If ok is false, no session has come, and session is t. The error is errStopped if the centre has stopped.
func (r *remote) redeem(ctx context.Context, s *durable.State, c *centre, t queue.Ticket) (session queue.Ticket, ok bool, err error) {
	wanted := r.redemptions.Want(t)
	defer r.redemptions.Done(wanted)
	for n := 1; ; n++ {
		if wait := redeemInterval - c.room.now().Sub(c.reported); wait > 0 {
			if err := s.Call(ctx, func(ctx context.Context) error { return retry.Sleep(ctx, wait) }); err != nil {
				return t, false, err
			}
		}
		if err := r.reportForGrants(ctx, s, c); err != nil {
			return t, false, err
		}
		switch {
		case c.stopped:
			return t, false, errStopped
		case wanted.Session != nil:
			return *wanted.Session, true, nil
		case n >= redeemRequests || n >= redeemIfNotKnown && !wanted.Pending || r.unreachable:
			return t, false, nil
		}
	}
}

// reportForGrants reports the data centre c to the room's global object on the leader, and waits until a report that was made
// after the call has its response, or failed. If the leader does not respond, there are no new grants, and no error. It returns
// nil also if the centre has stopped meanwhile.
func (r *remote) reportForGrants(ctx context.Context, s *durable.State, c *centre) error {
	r.draws++
	for mine := r.draws; r.answeredDraws < mine && !c.stopped; {
		if err := r.report(ctx, s, c); err != nil {
			return err
		}
	}
	return nil
}

// report sends a report of the data centre c to the leader and applies the response. Before, it writes the journal. If another
// report is under way, it only waits for that one. If the leader does not respond, it logs that once and returns no error: then
// no new visitor is admitted. Errors are those of the durable object.
func (r *remote) report(ctx context.Context, s *durable.State, c *centre) error {
	if r.reporting {
		reported := r.reported
		return s.Call(ctx, func(ctx context.Context) error {
			select {
			case <-reported:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	asked := r.Member.NewRequest()
	report := c.newReport()
	c.machine.AddAccount(&report, c.first)
	asked.AddReport(s.Name(), report)
	r.addRevocations(asked)
	r.redemptions.AddTo(c.room.now(), &asked.LeaderRequest)
	if c.room.config.Automatic {
		asked.Responses = c.room.kept.limit.takeMeasured()
	}
	delivered := false
	defer func() {
		if !delivered && asked.Responses != nil {
			c.room.kept.limit.restoreMeasured(asked.Responses)
		}
	}()
	if err := c.updateJournal(ctx, s); err != nil { // what the report contains must not be lost
		return err
	}
	r.reporting, r.reportedDraws = true, r.draws
	var a LeaderResponse
	var lost error
	err := s.Call(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, globalTimeout)
		defer cancel()
		a, lost = r.Carry(ctx, asked.LeaderRequest)
		return nil
	})
	r.reporting = false
	close(r.reported)
	r.reported = make(chan struct{})
	if err != nil {
		return err
	}
	again := false
	if lost == nil && !c.stopped { // otherwise the response is lost, as if it had not come
		again, lost = r.applyResponse(ctx, s, c, asked, &a)
	}
	if again {
		c.machine.RestoreWant(&report)
	} else {
		r.answeredDraws = r.reportedDraws
	}
	delivered = lost == nil
	if lost != nil && !r.unreachable {
		c.logger.Warn("waitingroom: no new user is let in while the node that has the rooms does not answer", "room", s.Name(), "err", lost)
	}
	r.unreachable = lost != nil
	return nil
}

// applyResponse applies the leader's response a to the request asked, if it is in time and of the current leader: the grants, an
// automatic limit, sessions for visitors who were called elsewhere, and revocations, which it stores. again says that the leader
// has not used the report, so that another one must be sent. If the response does not count, nothing but its epoch and its time
// is applied. After an error of the store, the leader sends the revocations again.
func (r *remote) applyResponse(ctx context.Context, s *durable.State, c *centre, asked *SentRequest, a *LeaderResponse) (again bool, err error) {
	st, err := r.Member.AcceptResponse(asked, *a)
	if err != nil {
		return false, err
	}
	if st != nil {
		c.applyResponse(*st)
	}
	c.room.adoptLimit(a.Limit)
	if r.redemptions.Apply(c.room.now(), c.machine, &asked.LeaderRequest, a) {
		c.room.reportAtOnce()
	}
	if r.epoch == a.Epoch {
		r.sentRevocations += len(asked.Revoked)
	}
	for _, one := range a.Revoked {
		if c.room.revoked.contains(one.ID) {
			continue
		}
		if err := c.revoke(ctx, s, one.ID, one.Until); err != nil {
			return false, err
		}
	}
	if r.epoch == a.Epoch { // not before: what could not be noted is asked for again
		r.knownRevocations = a.Next
	}
	return st == nil, nil
}

// queueRevocation adds a revocation, of this node or another one, to those that the next reports send to the leader. r may be
// nil: then it does nothing.
func (r *remote) queueRevocation(id queue.TicketID, until time.Time) {
	if r != nil {
		r.revoked = append(r.revoked, Revocation{ID: id, Until: until})
	}
}

// addRevocations adds to a request the next revocations that the leader does not know yet, up to mostRevoked, and how many of the
// leader's this node knows. A leader of another epoch knows none. It also deletes revocations that are over from the queue.
func (r *remote) addRevocations(asked *SentRequest) {
	if r.epoch != asked.Epoch {
		r.epoch, r.sentRevocations, r.knownRevocations = asked.Epoch, 0, 0
	}
	if r.sentRevocations == 0 || r.sentRevocations == len(r.revoked) && len(r.revoked) > mostRevoked {
		hadSent := r.sentRevocations > 0
		r.revoked = slices.DeleteFunc(r.revoked, func(one Revocation) bool { return !one.Until.After(r.Member.Clock.Now()) })
		if hadSent {
			r.sentRevocations = len(r.revoked)
		}
	}
	asked.Revoked = r.revoked[r.sentRevocations:min(len(r.revoked), r.sentRevocations+mostRevoked)]
	asked.After = r.knownRevocations
}
