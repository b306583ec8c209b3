package waitingroom

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/page"
	"github.com/larder-cdn/larder/server/waitingroom/ticket"
)

// Options is what rooms need.
type Options struct {
	// Rooms are the rooms. They must not change any more.
	Rooms []config.Room
	// Keys are those of the tickets. Required.
	Keys *ticket.Keyring
	// Runtime runs the data centre's objects and keeps their state. Required.
	Runtime *durable.Runtime
	// Transport leads to the global objects. Required.
	Transport Transport
	// DataCentre is what this one is called. Default "local".
	DataCentre string
	// Sole says that there is no other data centre, so that a session that is revoked
	// here passes nowhere, and its slot is free at once.
	Sole bool
	// Skew is how far the clocks of data centres may be apart; at most 5 s. Default 0.
	Skew time.Duration
	// Now is the clock. Default [time.Now].
	Now func() time.Time
	// Logger gets what goes wrong. Default: nothing is logged.
	Logger *slog.Logger
	// Registerer is told of the metrics. Default: nobody is.
	Registerer prometheus.Registerer
}

// Rooms are the waiting rooms of one process. They are safe for concurrent use.
type Rooms struct {
	options Options
	now     func() time.Time
	table   *config.Table
	rooms   []*room
	byName  map[string]*room
	centres *durable.Namespace[event, answer]
	pages   page.Renderer
	metrics *metrics
}

// A room is what requests need of one.
type room struct {
	config    *config.Room
	now       func() time.Time
	salt      func(event string) uint64
	skew      time.Duration
	transport Transport
	sole      bool

	jar       *ticket.Jar
	centre    durable.Object[event, answer]
	current   atomic.Pointer[moment]
	revoked   revocations
	parts     allowance // of a page, which carry no ticket
	upstream  http.Handler
	analytics analytics
	overview  atomic.Pointer[overview]
	wake      chan struct{} // has one where somebody came since the last report
}

var errNoRoom = errors.New("there is no such room")

// New returns the rooms. [Rooms.Run] has to run while they are used.
func New(o Options) (*Rooms, error) {
	if o.Keys == nil || o.Runtime == nil || o.Transport == nil {
		return nil, errors.New("waitingroom: Options lacks Keys, Runtime or Transport")
	}
	if o.DataCentre == "" {
		o.DataCentre = "local"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Rooms{options: o, now: o.Now, table: config.NewTable(o.Rooms), byName: map[string]*room{}}
	var err error
	// The objects forget their users where they leave memory, so they stay.
	limits := durable.Limits{Events: 100_000, Idle: time.Hour, Live: max(10_000, len(o.Rooms))}
	if r.centres, err = durable.Open(o.Runtime, durable.Class[event, answer]{Name: "room-centre", New: r.wake, Limits: limits}); err != nil {
		return nil, fmt.Errorf("waitingroom: %w", err)
	}
	for i := range o.Rooms {
		c := &o.Rooms[i]
		made := &room{
			config: c, now: o.Now, skew: o.Skew, transport: o.Transport, sole: o.Sole,
			salt: saltOf(o.Keys.Salt, c.Name),
			jar:  o.Keys.Jar(c.Name, c.Cookie.Suffix), centre: r.centres.Object(c.Name), wake: make(chan struct{}, 1),
		}
		made.parts.perMinute = int64(c.SubresourcesPerMinute)
		m, err := momentAt(c, o.Now(), o.Skew, made.salt)
		if err != nil {
			return nil, err
		}
		made.current.Store(m)
		made.overview.Store(&overview{})
		if c.Upstream != nil {
			made.upstream = newUpstream(c, o.Logger)
		}
		r.rooms, r.byName[c.Name] = append(r.rooms, made), made
	}
	if r.metrics, err = newMetrics(r, o.Registerer); err != nil {
		return nil, err
	}
	return r, nil
}

// Covers reports whether a room has a word in what happens to a path, percent-encoded as
// the client sent it, on a host. It takes no lock, and allocates nothing for a usual path.
func (r *Rooms) Covers(host, path string) bool { return r.table.Covers(host, path) }

// momentAt returns what holds in the room.
func (r *room) momentAt(now time.Time) *moment {
	m := r.current.Load()
	if now.Before(m.until) {
		return m
	}
	fresh, err := momentAt(r.config, now, r.skew, r.salt)
	if err != nil { // what was accepted when it was read does not fail later
		return m
	}
	r.current.CompareAndSwap(m, fresh)
	return r.current.Load()
}

// send delivers an event to the room's data centre object. That the client goes away
// does not end it: what it decided must be whole.
func (r *room) send(ctx context.Context, e event) (answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*patience+time.Second)
	defer cancel()
	a, err := r.centre.Send(ctx, e)
	if err == nil {
		r.overview.Store(&a.overview)
	}
	return a, err
}

// Run has the data centres report until ctx ends. Then they stop: nobody new is let in any
// more, and the next process continues where they were.
func (r *Rooms) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, room := range r.rooms {
		running.Go(func() {
			r.report(ctx, room)
			if _, err := room.send(ctx, event{moment: room.momentAt(r.now()), stop: true}); err != nil {
				r.options.Logger.Warn("waitingroom: a room couldn't keep who is in it; the next process counts them as they come", "room", room.config.Name, "err", err)
			}
		})
	}
	running.Wait()
}

// report sends a room's reports when they are due. Where nobody is in the room and
// nobody comes there is nothing to report.
func (r *Rooms) report(ctx context.Context, room *room) {
	const retry = 5 * time.Second
	for {
		wait := retry
		a, err := room.send(ctx, event{moment: room.momentAt(r.now()), report: true})
		switch {
		case err != nil && ctx.Err() == nil:
			r.options.Logger.Error("waitingroom: a room could not report; nobody new may be let in", "room", room.config.Name, "err", err)
		case err == nil:
			now := r.now()
			wait = max(a.next.Sub(now), time.Second/10)
			room.analytics.sample(now, a.overview)
			if a.overview.active == 0 && a.overview.queued == 0 && a.overview.connected && !a.overview.holding {
				select {
				case <-room.wake:
				case <-ctx.Done():
					return
				}
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		select {
		case <-room.wake:
		default:
		}
	}
}

// came notes that somebody is there to report of.
func (r *room) came() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
