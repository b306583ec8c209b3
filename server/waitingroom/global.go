package waitingroom

import (
	"context"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// globalKey is where a global object keeps its state.
const globalKey = "global"

// openGlobal returns a room's global object as it was stored. centres are the names of all
// data centres; if the state is lost, the room waits for their reports.
func openGlobal(ctx context.Context, s *durable.State, o *Options, m *config.Moment, centres []string, now time.Time) (*queue.Global, error) {
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

// receive has a global object answer a report. What it grants is on the disk before
// anything leaves the durable object.
func receive(ctx context.Context, s *durable.State, g *queue.Global, now time.Time, r queue.Report) (queue.State, error) {
	answer := g.Receive(now, r)
	return answer, s.Put(ctx, globalKey, g.Snapshot())
}

// A Transport carries the reports of data centres to a room's global object on another
// node, and the answers back. A message may be late, come twice, or be lost.
type Transport interface {
	Report(ctx context.Context, room string, r queue.Report) (queue.State, error)
}

// Globals are the global objects of rooms whose data centres are on several nodes. They
// answer what a [Transport] brings.
type Globals struct {
	options Options
	centres []string
	objects *durable.Namespace[queue.Report, queue.State]
	rooms   map[string]*schedule
}

// OpenGlobals begins to answer for the global objects of the rooms. centres are the names of
// all data centres. DataCentre, Transport and Registerer of the options have no meaning here.
func OpenGlobals(o Options, centres []string) (*Globals, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	g := &Globals{options: o, centres: centres, rooms: map[string]*schedule{}}
	for i := range o.Rooms {
		plan, err := newSchedule(&o.Rooms[i], &o)
		if err != nil {
			return nil, err
		}
		g.rooms[o.Rooms[i].Name] = plan
	}
	var err error
	g.objects, err = durable.Open(o.Runtime, durable.Class[queue.Report, queue.State]{
		Name: "room-global", New: g.wake, Limits: durable.Limits{Events: 10_000},
	})
	if err != nil {
		return nil, fmt.Errorf("waitingroom: %w", err)
	}
	return g, nil
}

// Report has a room's global object take a report and answer it.
func (g *Globals) Report(ctx context.Context, room string, r queue.Report) (queue.State, error) {
	return g.objects.Object(room).Send(ctx, r)
}

// global is one of them in memory.
type global struct {
	durable.NoAlarm
	now     func() time.Time
	plan    *schedule
	moment  *config.Moment
	machine *queue.Global
}

func (g *Globals) wake(ctx context.Context, s *durable.State) (durable.Handler[queue.Report, queue.State], error) {
	plan := g.rooms[s.Name()]
	if plan == nil {
		return nil, errNoRoom
	}
	now := g.options.Now()
	obj := &global{now: g.options.Now, plan: plan, moment: plan.at(now)}
	var err error
	obj.machine, err = openGlobal(ctx, s, &g.options, obj.moment, g.centres, now)
	return obj, err
}

func (g *global) Handle(ctx context.Context, s *durable.State, r queue.Report) (queue.State, error) {
	now := g.now()
	if m := g.plan.at(now); m != g.moment {
		g.moment = m
		g.machine.Configure(now, m.Settings)
	}
	return receive(ctx, s, g.machine, now, r)
}

// patience is how long a visitor is kept for an answer of a global object on another node.
const patience = 2 * time.Second

// A remote is a data centre's way to a global object on another node. One report is under
// way at a time; visits that draw while it is share the next one.
type remote struct {
	transport Transport

	asked       uint64 // visits that drew
	built       uint64 // of them, those before the last report was made
	settled     uint64 // of them, those before the last report that came back
	flying      bool
	landed      chan struct{} // closed when the report comes back
	unreachable bool          // and logged
}

// draw returns once a report that was made after it began has come back.
func (r *remote) draw(ctx context.Context, s *durable.State, c *centre) error {
	r.asked++
	for mine := r.asked; r.settled < mine; {
		if err := r.report(ctx, s, c); err != nil {
			return err
		}
	}
	return nil
}

// report sends a report and applies its answer, or waits for the report under way. Where no
// answer comes that is no failure: then no new visitor is let in.
func (r *remote) report(ctx context.Context, s *durable.State, c *centre) error {
	if r.flying {
		landed := r.landed
		return s.Call(ctx, func(ctx context.Context) error {
			select {
			case <-landed:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}
	report := c.newReport()
	if err := c.note(ctx, s); err != nil { // what it tells must not be lost
		return err
	}
	r.flying, r.built = true, r.asked
	var st queue.State
	var lost error
	err := s.Call(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		st, lost = r.transport.Report(ctx, s.Name(), report)
		return nil
	})
	r.flying, r.settled = false, r.built
	close(r.landed)
	r.landed = make(chan struct{})
	switch {
	case err != nil:
		return err
	case lost != nil:
		if !r.unreachable {
			c.logger.Warn("waitingroom: no new user is let in while the global object does not answer", "room", s.Name(), "err", lost)
		}
		r.unreachable = true
	case !c.stopped: // otherwise the answer is lost, as if it had not come
		r.unreachable = false
		c.apply(st)
	}
	return nil
}
