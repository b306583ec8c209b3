package waitingroom

import (
	"context"
	"encoding/hex"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// An event is what a data centre object is told. One of the members is there.
type event struct {
	moment *moment // that holds
	visit  *queue.Visitor
	revoke *revocation
	report bool // whatever is due
	stop   bool // nothing is decided any more
}

type revocation struct {
	id    ticket.ID
	until time.Time // when it could pass no more anyway
}

// An answer is what comes of an event.
type answer struct {
	decision queue.Decision // of a visit
	overview overview
	next     time.Time // when the next report is due
}

// overview is what a data centre knows of its room.
type overview struct {
	active, queued int
	perMinute      float64 // admitted on average
	holding        bool    // the state was lost, and nobody new is let in
	connected      bool    // the global object has answered lately
}

// centre is a data centre's object of one room. It forgets its users when it leaves memory, as package
// queue allows, unless it was stopped in order; how often it has lived and whom it has revoked is durable.
type centre struct {
	room    *room
	moment  *moment
	machine *queue.DataCentre
	worker  *queue.Worker // of Even and Adaptive, which decide without the data centre
	logger  *slog.Logger

	reported time.Time // when the last report was sent
	answered time.Time // when the last answer came

	// Reports for who draws: asked counts visits that wait for one, built those of them
	// that a report under way knows of, settled those that one has come back for.
	asked, built, settled uint64
	flying                bool
	landed                chan struct{} // closed when a report has come back
	unreachable           bool          // logged
	stopped               bool
}

const (
	livesKey      = "lives"
	revokedPrefix = "revoked/"
	// patience is how long a visitor is kept for the global object's answer.
	patience = 2 * time.Second
	// revokedAtOnce is how many revocations are read at a time.
	revokedAtOnce = 1000
)

func (r *Rooms) wake(ctx context.Context, s *durable.State) (durable.Handler[event, answer], error) {
	room := r.byName[s.Name()]
	if room == nil {
		return nil, errNoRoom
	}
	now := r.now()
	lives, _, err := durable.GetJSON[int64](ctx, s, livesKey)
	if err != nil {
		return nil, err
	}
	c := &centre{room: room, moment: room.momentAt(now), logger: r.options.Logger, landed: make(chan struct{})}
	if c.machine, err = resume(ctx, s, r.options.DataCentre, c.moment, lives, now); err != nil {
		return nil, err
	}
	if c.machine == nil {
		lives = max(lives+1, now.UnixNano())
		if err := durable.PutJSON(ctx, s, livesKey, lives); err != nil {
			return nil, err
		}
		// Nothing is promised in this life before the disk knows of it.
		if err := s.Sync(ctx); err != nil {
			return nil, err
		}
		c.machine = queue.NewDataCentre(r.options.DataCentre, lives, c.moment.settings, rand.Uint64(), now)
	}
	if err := restoreRevoked(ctx, s, &room.revoked, now); err != nil {
		return nil, err
	}
	c.worker = queue.NewWorker(r.options.DataCentre, c.moment.settings, rand.Uint64())
	return c, nil
}

func restoreRevoked(ctx context.Context, s *durable.State, to *revocations, now time.Time) error {
	_, err := eachRevoked(ctx, s, now, func(id ticket.ID, until time.Time) { to.add(id, until, now) })
	return err
}

// eachRevoked calls f with the revocations that are not over, and forgets those that are.
// It returns when the first will be, zero where there is none.
func eachRevoked(ctx context.Context, s *durable.State, now time.Time, f func(id ticket.ID, until time.Time)) (first time.Time, err error) {
	o := durable.ListOptions{Prefix: revokedPrefix, Limit: revokedAtOnce}
	for {
		rows, err := s.List(ctx, o, durable.NoCache)
		if err != nil {
			return first, err
		}
		for _, row := range rows {
			id, until, ok := parseRevoked(row)
			if !ok || !until.After(now) {
				if err := s.Delete(ctx, row.Key); err != nil {
					return first, err
				}
				continue
			}
			f(id, until)
			if first.IsZero() || until.Before(first) {
				first = until
			}
		}
		if len(rows) < o.Limit {
			return first, nil
		}
		o.StartAfter = rows[len(rows)-1].Key
	}
}

func parseRevoked(row durable.Entry) (id ticket.ID, until time.Time, ok bool) {
	n, err := hex.Decode(id[:], []byte(strings.TrimPrefix(row.Key, revokedPrefix)))
	if err != nil || n != len(id) {
		return id, until, false
	}
	return id, until, until.UnmarshalText(row.Value) == nil
}

func (c *centre) Handle(ctx context.Context, s *durable.State, e event) (answer, error) {
	now := c.room.now()
	if e.moment != c.moment {
		c.moment = e.moment
		c.machine.Configure(now, e.moment.settings)
		c.worker.Configure(e.moment.settings)
	}
	var a answer
	var err error
	switch {
	case e.stop:
		err = c.stop(ctx, s)
	case c.stopped && e.revoke == nil:
		return a, errStopped
	case e.visit != nil:
		a.decision, err = c.visit(ctx, s, now, *e.visit)
	case e.revoke != nil:
		err = c.revoke(ctx, s, now, *e.revoke)
	case e.report:
		err = c.reportOnce(ctx, s)
	}
	now = c.room.now()
	described := c.machine.Room()
	a.overview = overview{
		active: c.machine.Active(now), queued: c.machine.Queued(now), perMinute: described.PerMinute, holding: described.Holding,
		connected: !c.answered.IsZero() && now.Sub(c.answered) < time.Minute,
	}
	a.overview.active = max(described.Active, a.overview.active) // of an earlier life, or elsewhere
	if !c.room.sole {
		a.overview.queued = max(described.Queued(), a.overview.queued)
	}
	a.next = c.machine.NextReport(c.reported)
	return a, err
}

// visit decides about a request.
func (c *centre) visit(ctx context.Context, s *durable.State, now time.Time, v queue.Visitor) (queue.Decision, error) {
	if c.moment.settings.Allocator != queue.Counter {
		c.exchange(now)
		if d := c.worker.Visit(now, v); d.Outcome != queue.Ask {
			return d, nil
		}
	}
	d := c.machine.Visit(now, v)
	if d.Outcome != queue.Draw {
		return d, nil
	}
	c.asked++
	for mine := c.asked; c.settled < mine; {
		if err := c.awaitReport(ctx, s); err != nil {
			return d, err
		}
	}
	if c.stopped { // meanwhile
		return d, errStopped
	}
	return c.machine.Settle(c.room.now(), v), nil
}

// exchange tells the data centre what its worker has decided, and the worker what holds.
func (c *centre) exchange(now time.Time) {
	c.worker.Apply(c.machine.Merge(now, c.worker.Report(now)))
}

// awaitReport sends a report, or waits for the one under way.
func (c *centre) awaitReport(ctx context.Context, s *durable.State) error {
	if !c.flying {
		return c.send(ctx, s)
	}
	landed := c.landed
	return s.Call(ctx, func(ctx context.Context) error {
		select {
		case <-landed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// reportOnce sends the report that is due, unless one is on its way.
func (c *centre) reportOnce(ctx context.Context, s *durable.State) error {
	if c.flying {
		return c.awaitReport(ctx, s)
	}
	return c.send(ctx, s)
}

// send carries a report to the global object and applies its answer. That none comes is
// no failure: then nobody new is let in.
func (c *centre) send(ctx context.Context, s *durable.State) error {
	now := c.room.now()
	if c.moment.settings.Allocator != queue.Counter {
		c.exchange(now)
	}
	report := c.machine.Report(now)
	c.reported, c.flying, c.built = now, true, c.asked
	var st queue.State
	var lost error
	err := s.Call(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		st, lost = c.room.transport.Report(ctx, c.room.config.Name, report)
		return nil
	})
	c.flying, c.settled = false, c.built
	close(c.landed)
	c.landed = make(chan struct{})
	if err != nil {
		return err
	}
	if lost != nil {
		if !c.unreachable {
			c.logger.Warn("waitingroom: nobody new is let in while the global object does not answer", "room", c.room.config.Name, "err", lost)
		}
		c.unreachable = true
		return nil
	}
	if c.stopped {
		return nil // the answer is lost, as if it had not come
	}
	c.unreachable, c.answered = false, c.room.now()
	c.machine.Apply(c.answered, st)
	return nil
}

// revoke ends a session for good, also beyond this process's life.
func (c *centre) revoke(ctx context.Context, s *durable.State, now time.Time, r revocation) error {
	c.room.revoked.add(r.id, r.until, now)
	c.machine.Revoke(now, queue.TicketID(r.id), c.room.sole)
	until, err := r.until.MarshalText()
	if err != nil {
		return err
	}
	if err := s.Put(ctx, revokedPrefix+r.id.String(), until, durable.NoCache); err != nil {
		return err
	}
	if _, set, err := s.GetAlarm(ctx); err != nil || set {
		return err
	}
	return s.SetAlarm(ctx, r.until.Add(time.Minute))
}

// Alarm forgets the revocations that are over.
func (c *centre) Alarm(ctx context.Context, s *durable.State, _ durable.Alarm) error {
	next, err := eachRevoked(ctx, s, c.room.now(), func(ticket.ID, time.Time) {})
	if err != nil || next.IsZero() {
		return err
	}
	return s.SetAlarm(ctx, next.Add(time.Minute))
}
