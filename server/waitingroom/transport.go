package waitingroom

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// A Transport carries the reports of data centres to a room's global object, and the
// answers back. A message may be late, come twice, or be lost.
type Transport interface {
	Report(ctx context.Context, room string, r queue.Report) (queue.State, error)
}

// GlobalOptions is what the global objects need. All of it is required but where it says so.
type GlobalOptions struct {
	// Rooms are those that there is an object of each.
	Rooms []config.Room
	// Runtime runs the objects and keeps their state.
	Runtime *durable.Runtime
	// Salt is the secret that shuffles an event's users; see [ticket.Keyring.Salt].
	Salt func(string) uint64
	// Known reports whether a room had state before, so that where there is none it has
	// been lost. Nil: every room without state is new.
	Known func(room string) bool
	// DataCentres are the names of those there are, whose reports a room waits for that
	// has lost its state.
	DataCentres []string
	// Skew is how far the clocks of data centres may be apart; default 0.
	Skew time.Duration
	// Now is the clock. Default: the runtime's.
	Now func() time.Time
	// Logger gets what goes wrong. Default: nothing is logged.
	Logger *slog.Logger
}

// Globals are the global objects of rooms in this process. It is the [Transport] of the
// data centres in the same process.
type Globals struct {
	options GlobalOptions
	objects *durable.Namespace[queue.Report, queue.State]
	rooms   map[string]*config.Room
}

// OpenGlobals begins to answer for the global objects of the rooms.
func OpenGlobals(o GlobalOptions) (*Globals, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Globals{options: o, rooms: map[string]*config.Room{}}
	for i := range o.Rooms {
		g.rooms[o.Rooms[i].Name] = &o.Rooms[i]
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

// Report has a room's global object take a report and answer it, once what it grants is durable.
func (g *Globals) Report(ctx context.Context, room string, r queue.Report) (queue.State, error) {
	return g.objects.Object(room).Send(ctx, r)
}

// snapshotKey is where a global object keeps its state.
const snapshotKey = "state"

// global is one in memory.
type global struct {
	durable.NoAlarm
	now     func() time.Time
	salt    func(string) uint64
	skew    time.Duration
	room    *config.Room
	moment  *moment
	machine *queue.Global
}

func (g *Globals) wake(ctx context.Context, s *durable.State) (durable.Handler[queue.Report, queue.State], error) {
	o := g.options
	room := g.rooms[s.Name()]
	if room == nil {
		return nil, fmt.Errorf("there is no room %q", s.Name())
	}
	obj := &global{now: o.Now, salt: saltOf(o.Salt, room.Name), skew: o.Skew, room: room}
	if obj.now == nil {
		obj.now = s.Now
	}
	now := obj.now()
	var err error
	if obj.moment, err = momentAt(room, now, o.Skew, obj.salt); err != nil {
		return nil, err
	}
	text, found, err := s.Get(ctx, snapshotKey)
	switch {
	case err != nil:
		return nil, err
	case found:
		if obj.machine, err = queue.RestoreGlobal(text, obj.moment.settings, now); err == nil {
			obj.machine.Configure(now, obj.moment.settings)
			return obj, nil
		}
		o.Logger.Error("waitingroom: the state of a room is damaged; nobody new is let in until it is known who is inside", "room", room.Name, "err", err)
	case o.Known == nil || !o.Known(room.Name):
		obj.machine = queue.NewGlobal(obj.moment.settings, now)
		return obj, nil
	default:
		o.Logger.Error("waitingroom: the state of a room is lost; nobody new is let in until it is known who is inside", "room", room.Name)
	}
	obj.machine = queue.RecoverGlobal(obj.moment.settings, o.DataCentres, now)
	return obj, nil
}

func (g *global) Handle(ctx context.Context, s *durable.State, r queue.Report) (queue.State, error) {
	now := g.now()
	if !now.Before(g.moment.until) {
		m, err := momentAt(g.room, now, g.skew, g.salt)
		if err != nil {
			return queue.State{}, err
		}
		g.moment = m
		g.machine.Configure(now, m.settings)
	}
	st := g.machine.Receive(now, r)
	text, err := g.machine.Snapshot()
	if err != nil {
		return queue.State{}, err
	}
	return st, s.Put(ctx, snapshotKey, text) // it is on the disk before the answer leaves
}
