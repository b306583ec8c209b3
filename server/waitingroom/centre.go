package waitingroom

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// centre is a data centre's object of one room, on a single node with the room's global
// object. All that it decides is durable: who is in, in a journal, the number of its lives, its
// revocations and, where the global object is here, all grants.
type centre struct {
	rooms   *Rooms
	room    *room // as it is configured now
	moment  *config.EffectiveSettings
	machine *queue.DataCentre
	worker  *queue.Worker // of Even and Adaptive, which decide without the data centre
	global  *queue.Global // nil where it is on another node,
	remote  *remote       // which this leads to
	logger  *slog.Logger

	reported time.Time // when the last report was made
	answered time.Time // when the last response came
	stopped  bool
	down     bool // the site was down at the last task
	first    bool // the data centre has no earlier incarnation
}

// A task is done with a room's data centre while it has the turn of its durable object.
type task func(ctx context.Context, s *durable.State, c *centre) error

// overview is the state of a room as its data centre knows it.
type overview struct {
	active, queued int
	perMinute      float64 // admitted on average
	holding        bool    // the state was lost, and no new user is let in
	connected      bool    // the global object has answered lately
	cutOff         bool    // it is on another node, which has not answered for some seconds
}

const (
	livesKey      = "lives"
	firstKey      = "first" // has the first of them
	revokedPrefix = "revoked/"
)

// openCentre creates the object that decides about a room's visitors on this node (its data centre), when the room's durable
// object is loaded. It restores the stored state, stores what is new on the disk before the first decision, and reads the revoked
// sessions. With the option Frozen it only reads these, and the object has stopped. It fails for an unknown room, and while the
// time in the room is not known.
func (r *Rooms) openCentre(ctx context.Context, s *durable.State) (durable.Handler[task, struct{}], error) {
	room := r.currentRooms().byName[s.Name()]
	if room == nil {
		return nil, errors.New("there is no such room")
	}
	if !room.isReady() {
		return nil, errors.New("it is not known yet what time it is in the rooms of the cluster")
	}
	o := &r.options
	now := room.now()
	c := &centre{rooms: r, room: room, moment: room.settingsAt(now), logger: o.Logger}
	var err error
	if o.Frozen {
		c.stopped, c.machine = true, queue.NewDataCentre(room.name, now.UnixNano(), c.moment.Settings, rand.Uint64(), now)
		c.worker = queue.NewWorker(room.name, c.moment.Settings, rand.Uint64())
		return c, c.loadRevoked(ctx, s)
	}
	if room.cluster != nil {
		c.remote = &remote{Cluster: room.cluster, reported: make(chan struct{})}
	} else if c.global, err = openGlobal(ctx, s, o, c.moment, []string{room.name}, now); err != nil {
		return nil, err
	}
	if err = c.restoreState(ctx, s, now); err != nil {
		return nil, err
	}
	if err := c.updateJournal(ctx, s); err != nil {
		return nil, err
	}
	if err := s.Sync(ctx); err != nil { // before it decides anything
		return nil, err
	}
	c.worker = queue.NewWorker(room.name, c.moment.Settings, rand.Uint64())
	return c, c.loadRevoked(ctx, s)
}

// loadRevoked reads the stored revocations of sessions, makes this process refuse these tickets, and queues the revocations for
// the other nodes. It deletes those that are over, and damaged rows, unless the centre has stopped.
func (c *centre) loadRevoked(ctx context.Context, s *durable.State) error {
	now := c.room.now()
	_, err := eachRevoked(ctx, s, now, func(id queue.TicketID, until time.Time) {
		c.room.revoked.add(id, until, now)
		c.remote.queueRevocation(id, until)
	}, !c.stopped)
	return err
}

// restoreState sets c.machine to the data centre of the previous process, from its journal. If the journal is missing or damaged,
// it deletes it, starts a new data centre with a higher incarnation number, and stores that number. It sets c.first. The caller
// waits until that is durable.
func (c *centre) restoreState(ctx context.Context, s *durable.State, now time.Time) error {
	lives, _, err := durable.GetJSON[int64](ctx, s, livesKey)
	if err != nil {
		return err
	}
	first, _, err := durable.GetJSON[int64](ctx, s, firstKey)
	if err != nil {
		return err
	}
	c.machine, err = resumeCentre(ctx, s, c.room.name, c.moment, lives, now)
	c.first = first != 0 && first == lives
	if err != nil || c.machine != nil {
		return err
	}
	if err := deleteJournal(ctx, s); err != nil {
		return err
	}
	known := c.rooms.options.Known
	c.first = lives == 0 && (known == nil || !known(s.Name()))
	lives = max(lives+1, now.UnixNano())
	c.machine = queue.NewDataCentre(c.room.name, lives, c.moment.Settings, rand.Uint64(), now)
	c.machine.StartJournal()
	if c.first && c.room.cluster != nil {
		if err := durable.PutJSON(ctx, s, firstKey, lives); err != nil {
			return err
		}
	}
	return durable.PutJSON(ctx, s, livesKey, lives)
}

// Handle implements durable.Handler. It puts changed settings into force, runs a task, and writes the journal, also if the task
// fails. Then it updates the overview for status and metrics, and sends events to the event streams of waiting visitors. The
// error is that of the task and the journal.
func (c *centre) Handle(ctx context.Context, s *durable.State, do task) (struct{}, error) {
	if room := c.rooms.currentRooms().byName[s.Name()]; room != nil {
		c.room = room
	}
	now, changed := c.room.now(), false
	if m, down := c.room.settingsAt(now), c.room.isDown(); m != c.moment || down != c.down {
		changed = down != c.down || !sameButLimits(m, c.moment)
		c.moment, c.down = m, down
		here := c.room.settingsFor(m.Settings)
		c.machine.Configure(now, here)
		c.worker.Configure(here)
		if c.global != nil {
			c.global.Configure(now, m.Settings)
		}
	}
	err := errors.Join(do(ctx, s, c), c.updateJournal(ctx, s))
	now = c.room.now()
	c.room.overview.Store(c.newOverview(now))
	c.room.analytics.countStays(now, c.machine.TakeStays())
	c.room.streams.deliver(c, now, changed)
	return struct{}{}, err
}

// sameButLimits reports whether two settings differ at most in the limits of users, which the waiting page does not display.
func sameButLimits(a, b *config.EffectiveSettings) bool {
	before, after := *a, *b
	after.Settings.TotalActiveUsers, after.Settings.NewUsersPerMinute = before.Settings.TotalActiveUsers, before.Settings.NewUsersPerMinute
	return reflect.DeepEqual(before, after)
}

// newOverview returns the counts of the room's users for status, metrics and history: those of all nodes, as far as known here.
func (c *centre) newOverview(now time.Time) *overview {
	known := c.machine.Room()
	o := &overview{
		active: max(known.Active, c.machine.Active(now)), // the former includes earlier lives and other data centres
		queued: c.machine.Queued(now), perMinute: known.PerMinute, holding: known.Holding,
		connected: !c.answered.IsZero() && now.Sub(c.answered) < time.Minute,
	}
	if c.global == nil {
		o.queued = max(known.Queued(), o.queued)
		o.cutOff = now.Sub(c.answered) > epochTimeout
	}
	return o
}

// decideVisit decides about a request with ticket t. It may request grants from the global object, which is the leader's in a
// cluster. It replaces an invalid ticket by a new one; but if the room has a challenge, it returns queue.Reissue, because the
// visitor must pass the challenge before. After three invalid tickets it lets the visitor wait. The error is errStopped if the
// centre has stopped.
func (c *centre) decideVisit(ctx context.Context, s *durable.State, t queue.Ticket) (queue.Decision, error) {
	const attempts = 3
	for range attempts {
		if c.stopped {
			return queue.Decision{}, errStopped
		}
		if redeemed, ok, err := c.redeem(ctx, s, t); ok || err != nil {
			return redeemed, err
		}
		now := c.room.now()
		var d queue.Decision
		if c.moment.Settings.Allocator == queue.Counter {
			d = c.machine.Visit(now, t)
		} else {
			c.syncWorker(now)
			d = c.worker.Visit(now, t)
		}
		if d.Outcome == queue.Draw {
			if err := c.requestGrants(ctx, s); err != nil {
				return d, err
			}
			d = c.machine.Settle(c.room.now(), t)
		}
		if d.Outcome != queue.Reissue || c.room.checks != nil && !t.First() {
			return d, nil
		}
		t = newTicket()
	}
	return keepWaiting(c.room.now(), c.moment, t), nil
}

// redeem decides about a waiting visitor whom another node of the cluster may have called, and for whom that node has reserved a
// slot. It requests the session from that node through the leader, and waits for the response. ok is false if no node has called
// the visitor or the session came too late. The outcome is queue.Reissue for a session that was revoked.
func (c *centre) redeem(ctx context.Context, s *durable.State, t queue.Ticket) (d queue.Decision, ok bool, err error) {
	if c.remote == nil || !c.machine.MayBeCalledElsewhere(&t) {
		return d, false, nil
	}
	t, ok, err = c.remote.redeem(ctx, s, c, t)
	if ok && c.room.revoked.contains(t.ID) { // the leader may still have the session from before it was revoked
		return queue.Decision{Outcome: queue.Reissue}, true, nil
	}
	if ok {
		d, ok = c.machine.PassRedeemed(c.room.now(), t)
	}
	return d, ok, err
}

// admitGuest reports whether a client without a ticket is in the room or may come in now, and counts its admission. id stands for
// the client's address. Such a client never waits in the queue. It may request grants from the global object. The error is
// errStopped if the centre has stopped.
func (c *centre) admitGuest(ctx context.Context, s *durable.State, id queue.TicketID) (bool, error) {
	if c.stopped {
		return false, errStopped
	}
	d := c.machine.VisitGuest(c.room.now(), id)
	if d.Outcome == queue.Draw {
		if err := c.requestGrants(ctx, s); err != nil {
			return false, err
		}
		d = c.machine.SettleGuest(c.room.now(), id)
	}
	return d.Outcome == queue.Pass, nil
}

// syncWorker exchanges reports between the worker, which decides alone under the allocators Even and Adaptive, and the data
// centre. It does nothing under Counter.
func (c *centre) syncWorker(now time.Time) {
	if c.moment.Settings.Allocator != queue.Counter {
		c.worker.Apply(c.machine.MergeReport(now, c.worker.Report(now)))
	}
}

// requestGrants reports to the room's global object, in this process or on the leader, and applies the grants in the response. If
// the leader does not respond, there are no new grants, and no error. If the centre had stopped before the call, the error is
// errStopped; if it stops meanwhile, the response is dropped, without an error. If another report is under way to the leader, it
// only waits for that one.
func (c *centre) requestGrants(ctx context.Context, s *durable.State) error {
	if c.global != nil {
		return c.report(ctx, s)
	}
	err := c.remote.reportForGrants(ctx, s, c)
	if err == nil && c.stopped { // meanwhile
		return errStopped
	}
	return err
}

// report reports the data centre's counts to the global object, in this process or on the leader, and applies the response. If
// the leader does not respond, there is no error. If the centre has stopped, the error is errStopped. The caller has the turn of
// the durable object, which report gives up while it calls the leader.
func (c *centre) report(ctx context.Context, s *durable.State) error {
	switch {
	case c.stopped:
		return errStopped
	case c.global == nil:
		return c.remote.report(ctx, s, c)
	}
	r := c.newReport()
	answer := c.global.Receive(r.At, r)
	err := s.Put(ctx, globalKey, c.global.Snapshot()) // which is on the disk before a response to a visitor can leave
	if err == nil {
		c.applyResponse(answer)
	}
	return err
}

// newReport returns the next report of the data centre to the global object, and sets c.reported to its time.
func (c *centre) newReport() queue.Report {
	c.reported = c.room.now()
	c.syncWorker(c.reported)
	return c.machine.Report(c.reported)
}

// applyResponse applies the global object's response to a report, and sets c.answered to the present time.
func (c *centre) applyResponse(answer queue.State) {
	c.answered = c.room.now()
	c.machine.Apply(c.answered, answer)
}

// revoke ends the session of a ticket, stores that durably, and queues it for the other nodes. The slot is free at once if this
// node has the global object, otherwise when the session would have ended. until is a time after which the ticket passes nowhere
// anyway: then the stored revocation is deleted, for which revoke sets the object's alarm.
func (c *centre) revoke(ctx context.Context, s *durable.State, id queue.TicketID, until time.Time) error {
	now := c.room.now()
	c.room.revoked.add(id, until, now)
	c.machine.Revoke(now, id, c.global != nil)
	c.remote.queueRevocation(id, until)
	text, err := until.MarshalText()
	if err != nil {
		return err
	}
	if err := s.Put(ctx, revokedPrefix+id.String(), text, durable.NoCache); err != nil {
		return err
	}
	if _, set, err := s.GetAlarm(ctx); err != nil || set {
		return err
	}
	return s.SetAlarm(ctx, until.Add(time.Minute))
}

// Alarm implements durable.Handler. It deletes the stored revocations that are over, and sets the next alarm if others remain.
func (c *centre) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	next, err := eachRevoked(ctx, s, c.room.now(), func(queue.TicketID, time.Time) {}, true)
	if err != nil || next.IsZero() {
		return err
	}
	return s.SetAlarm(ctx, next.Add(time.Minute))
}

// eachRevoked calls f with each stored revocation that is not over. With forget it deletes the others, and rows that are none. It
// returns when the first of those that stay will be over, zero if none stays.
func eachRevoked(ctx context.Context, s *durable.State, now time.Time, f func(id queue.TicketID, until time.Time), forget bool) (first time.Time, err error) {
	err = eachRow(ctx, s, revokedPrefix, func(id queue.TicketID, ok bool, row durable.Entry) (bool, error) {
		var until time.Time
		switch ok = ok && until.UnmarshalText(row.Value) == nil && until.After(now); {
		case !ok && forget:
			return true, s.Delete(ctx, row.Key)
		case ok:
			f(id, until)
			if first.IsZero() || until.Before(first) {
				first = until
			}
		}
		return true, nil
	})
	return first, err
}

// revocations are the ids of tickets whose sessions were ended early. Reading takes no lock
// and does not allocate; writing copies one part in 64.
type revocations struct {
	parts [64]atomic.Pointer[map[queue.TicketID]time.Time] // until when each could still pass
	mu    sync.Mutex                                       // held while writing
}

// shardOf returns the part of the table that has a ticket, if it was revoked. The map in it is nil before the first revocation.
func (r *revocations) shardOf(id queue.TicketID) *atomic.Pointer[map[queue.TicketID]time.Time] {
	return &r.parts[id[0]%64] // ids are random
}

// contains reports whether the session of a ticket was revoked. It does not compare times: a revocation that is over may still
// count. It takes no lock.
func (r *revocations) contains(id queue.TicketID) bool {
	m := r.shardOf(id).Load()
	if m == nil {
		return false
	}
	_, ok := (*m)[id]
	return ok
}

// add adds a revoked ticket, which is kept until a time, and removes tickets of the same part whose time is over at now.
func (r *revocations) add(id queue.TicketID, until, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	part := r.shardOf(id)
	fresh := map[queue.TicketID]time.Time{id: until}
	if old := part.Load(); old != nil {
		for other, end := range *old {
			if end.After(now) && other != id {
				fresh[other] = end
			}
		}
	}
	part.Store(&fresh)
}
