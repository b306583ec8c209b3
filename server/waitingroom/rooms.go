package waitingroom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore/durable"
	"github.com/larder-cdn/larder/server/waitingroom/config"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// Options are the options of rooms.
type Options struct {
	// Rooms are the rooms. They must not change any more.
	Rooms []config.Room
	// Keys are those of the tickets. Required.
	Keys *Keyring
	// Runtime runs the rooms' objects and keeps their state. Required.
	Runtime *durable.Runtime
	// Cluster shares the rooms with the other nodes of a cluster, except those that each node has by itself.
	// Nil: this is the only node.
	Cluster *Cluster
	// Known reports whether a room had state before, so that missing state has been lost.
	// Nil: every room without state is new.
	Known func(room string) bool
	// Frozen has the rooms decide nothing and write nothing, for a store that is not to be
	// written: users with a session pass, and the parts of their pages; all others wait. [Rooms.Run] must not
	// run then.
	Frozen bool
	// Notify notifies webhooks of what happens in the rooms. After an error it is called again. Default: nothing is notified.
	Notify func(context.Context, Notification) error
	// Revision returns which version of the settings the rooms follow. Default: none is displayed.
	Revision func() Revision
	// Versions returns the history of the settings, newest first. Default: no history.
	Versions func() []Version
	// StreamMemory is how much memory event streams may take, in bytes. Default: not bounded, except by their number.
	StreamMemory int64
	// Now is the clock. Default [time.Now].
	Now func() time.Time
	// Logger gets errors, and changes of rooms and upstreams. Default: nothing is logged.
	Logger *slog.Logger
	// Registerer gets the metrics. Default: they are not registered.
	Registerer prometheus.Registerer
}

// setDefaults sets defaults for missing options.
func (o *Options) setDefaults() {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Revision == nil {
		o.Revision = func() Revision { return Revision{} }
	}
	if o.Versions == nil {
		o.Versions = func() []Version { return nil }
	}
}

// alone is the name of the data centre of a room that this process has by itself.
const alone = "local"

// place is where a room is decided: as which data centre, and by which clock.
type place struct {
	cluster *Cluster // nil: here alone
	name    string
	now     func() time.Time
	skew    time.Duration
}

// newPlace returns the name of the data centre as which this process decides about visitors of a room, and the clock that it goes
// by. It is the node's own name and the cluster's clock if the nodes of a cluster share the room, otherwise the fixed name alone
// and the clock of the options.
func (o *Options) newPlace(c *config.Room) place {
	if o.Cluster == nil || c.EachNode {
		return place{nil, alone, o.Now, 0}
	}
	m := o.Cluster.Member
	return place{o.Cluster, m.Name, m.Clock.Now, clockSkew}
}

// isReady reports whether the process knows what time it is in the room, so that it can decide about visitors. A node of a
// cluster must first receive the leader's time. Without a cluster the result is true.
func (p *place) isReady() bool { return p.cluster == nil || p.cluster.Member.Clock.Known() }

// readyTimeout is how long a request that is not repeated by itself waits for a room that is not ready.
const readyTimeout = 2 * time.Second

// waitUntilReady waits until the process knows what time it is in a room that the nodes of a cluster share, and then returns
// true. It returns false if ctx or readyTimeout ends before. The room must be shared.
func (p *place) waitUntilReady(ctx context.Context) bool {
	_ = retry.SleepUnless(ctx, readyTimeout, p.cluster.Member.Clock.known.Done())
	return p.isReady()
}

// Rooms are the waiting rooms of one process. They are safe for concurrent use.
type Rooms struct {
	options    Options
	configured atomic.Pointer[configuredRooms] // never changed, only replaced
	centres    *durable.Namespace[task, struct{}]
	past       *durable.Namespace[historyRequest, []record]
	pages      pageRenderer
	vectors    vectors

	streaming  atomic.Int64    // event streams that are open
	streamsEnd context.Context // ends the event streams
	endStreams func()

	changing sync.Mutex       // held while the configured rooms are replaced
	kept     map[string]*kept // of all rooms that there have been
	changed  chan struct{}    // has a value if the configured rooms were replaced
}

// A configuredRooms is all rooms, as they are configured, with a table by which requests find theirs.
type configuredRooms struct {
	table  *config.Table
	rooms  []*room
	byName map[string]*room
}

// currentRooms returns the rooms as they are configured now. The caller must not change them.
func (r *Rooms) currentRooms() *configuredRooms { return r.configured.Load() }

// A room has the state of a room that requests use.
type room struct {
	config  *config.Room
	current atomic.Pointer[config.EffectiveSettings] // in force at present; never changed, only replaced
	place
	log      *slog.Logger
	codec    *ticketCodec
	upstream *upstream  // nil: none
	checks   *challenge // nil: none
	*kept
}

// kept is the state of a room that outlives a change of its configuration.
type kept struct {
	centre    durable.Object[task, struct{}]
	history   durable.Object[historyRequest, []record]
	revoked   revocations
	parts     parts // of pages, which carry no ticket
	limit     autoLimit
	streams   streams
	analytics analytics
	metrics   roomMetrics
	overview  atomic.Pointer[overview]
	wake      chan struct{} // has a value if a visitor came since the last report
	urgent    chan struct{} // has a value if the next report must be sent at once
}

// centreClass is the class of the rooms' objects.
const centreClass = "room-centre"

// ErrEachNode is the error of a change of each_node in a cluster: another global object counts the sessions that were admitted.
var ErrEachNode = errors.New("each_node cannot change while the node runs; restart it")

// New returns the waiting rooms of a process. It opens their durable objects and registers metrics. The caller must run
// [Rooms.Run] while it uses them, except with the option Frozen: then New reads which sessions were revoked, and logs an error of
// that.
func New(o Options) (*Rooms, error) {
	o.setDefaults()
	preparePages()
	r := &Rooms{options: o, kept: map[string]*kept{}, changed: make(chan struct{}, 1), vectors: newVectors()}
	r.streamsEnd, r.endStreams = context.WithCancel(context.Background())
	var err error
	// An object that comes back to memory reads who is in, so all stay for long.
	limits := durable.Limits{Events: 100_000, Idle: time.Hour, Live: max(10_000, len(o.Rooms))}
	if r.centres, err = durable.Open(o.Runtime, durable.Class[task, struct{}]{Name: centreClass, New: r.openCentre, Limits: limits}); err != nil {
		return nil, fmt.Errorf("waitingroom: %w", err)
	}
	if r.past, err = openHistory(o.Runtime); err != nil {
		return nil, fmt.Errorf("waitingroom: %w", err)
	}
	first, err := r.newConfiguredRooms(o.Rooms, &configuredRooms{})
	if err != nil {
		return nil, err
	}
	r.configured.Store(first)
	if o.Frozen {
		for _, made := range first.rooms { // so that the sessions that were revoked are known
			if err := made.do(context.Background(), func(context.Context, *durable.State, *centre) error { return nil }); err != nil {
				o.Logger.Error("waitingroom: couldn't read which sessions of a room were revoked; they pass", "room", made.config.Name, "err", err)
			}
		}
	}
	return r, r.register(o.Registerer)
}

// newConfiguredRooms returns rooms with a new configuration. before are the rooms so far: rooms with the same name keep their
// state, and their upstream connections if the upstreams are the same. In a cluster it returns an [ErrEachNode] if each_node of a
// room differs. It does not put the new rooms into force. The caller holds r.changing or is New.
func (r *Rooms) newConfiguredRooms(configured []config.Room, before *configuredRooms) (*configuredRooms, error) {
	l := &configuredRooms{table: config.NewTable(configured), byName: map[string]*room{}}
	for i := range configured {
		c := &configured[i]
		stays := r.kept[c.Name]
		if stays == nil {
			stays = &kept{centre: r.centres.Object(c.Name), history: r.past.Object(c.Name), wake: make(chan struct{}, 1), urgent: make(chan struct{}, 1), metrics: r.vectors.forRoom(c.Name)}
			stays.overview.Store(&overview{})
			r.kept[c.Name] = stays
		}
		if old := before.byName[c.Name]; old != nil && r.options.Cluster != nil && old.config.EachNode != c.EachNode {
			return nil, fmt.Errorf("waitingroom: room %s: %w", c.Name, ErrEachNode)
		}
		made := &room{config: c, place: r.options.newPlace(c), log: r.options.Logger, codec: newTicketCodec(r.options.Keys, c), kept: stays}
		made.current.Store(made.compute(made.now()))
		switch old := before.byName[c.Name]; {
		case len(c.Upstreams) == 0:
		case old != nil && old.upstream != nil && c.SameUpstreams(old.config):
			made.upstream = old.upstream // with its connections
		default:
			made.upstream = newUpstream(c, r.options.Logger, r.options.Now, &stays.limit)
		}
		if c.Challenge != nil {
			made.checks = newChallengeClient(c.Challenge, r.options.Logger.With("room", c.Name))
		}
		l.rooms, l.byName[c.Name] = append(l.rooms, made), made
	}
	return l, nil
}

// Change replaces the configuration of all rooms. Tickets, sessions, places in the queue and requests under way stay for a room
// whose name stays. Change logs which rooms are new, gone or have other settings, and notifies webhooks of the last. The caller
// must not modify the rooms afterwards. After an error, such as [ErrEachNode], the configuration is as before.
func (r *Rooms) Change(configured []config.Room) error {
	r.changing.Lock()
	defer r.changing.Unlock()
	before := r.currentRooms()
	next, err := r.newConfiguredRooms(configured, before)
	if err != nil {
		return err
	}
	r.configured.Store(next)
	for _, room := range next.rooms {
		if room.upstream != nil {
			room.upstream.room.Store(room.config)
		}
		old := before.byName[room.config.Name]
		switch {
		case old == nil:
			r.options.Logger.Info("a waiting room is new", "room", room.config.Name)
		case !reflect.DeepEqual(old.config, room.config):
			r.options.Logger.Info("a waiting room has other settings", "room", room.config.Name, "total_active_users", room.config.TotalActiveUsers,
				"new_users_per_minute", room.config.NewUsersPerMinute, "queueing_method", room.config.Method, "queue_all", room.config.QueueAll, "suspended", room.config.Suspended)
			r.notifyChange(room)
		}
		room.wakeReports()
	}
	for _, room := range before.rooms {
		if next.byName[room.config.Name] == nil {
			r.options.Logger.Info("a waiting room is gone; all its visitors go in", "room", room.config.Name)
		}
	}
	retry.Wake(r.changed)
	return nil
}

// do runs a task in the turn of the durable object of the room's data centre, and waits up to five seconds for the result. A task
// continues if ctx ends because the client goes away: a decision must be complete. The error is that of the task or of the
// object.
func (r *room) do(ctx context.Context, t task) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*globalTimeout+time.Second)
	defer cancel()
	_, err := r.centre.Send(ctx, t)
	return err
}

// Run has each room report to its global object, and checks the health of upstreams, until ctx ends. Then it stops the rooms:
// they admit no new user, end the event streams and store their state, from which the next process continues. It starts and ends
// loops as rooms come and go. It logs errors.
func (r *Rooms) Run(ctx context.Context) {
	var running sync.WaitGroup
	loops := map[any]context.CancelFunc{}
	for ctx.Err() == nil {
		wanted := map[any]func(context.Context){}
		for _, room := range r.currentRooms().rooms {
			wanted[room.kept] = func(ctx context.Context) { r.reportRegularly(ctx, room.config.Name) }
			if room.upstream != nil && room.config.UpstreamHealth != "" {
				wanted[room.upstream] = room.upstream.checkRegularly
			}
		}
		for of, end := range loops {
			if wanted[of] == nil {
				end()
				delete(loops, of)
			}
		}
		for of, loop := range wanted {
			if loops[of] == nil {
				inside, end := context.WithCancel(ctx)
				loops[of] = end
				running.Go(func() { loop(inside) })
			}
		}
		select {
		case <-r.changed:
		case <-ctx.Done():
		}
	}
	for _, end := range loops {
		end()
	}
	running.Wait()
	r.endStreams()
	for _, room := range r.currentRooms().rooms {
		if !room.isReady() {
			continue // nothing was decided
		}
		running.Go(func() {
			if err := room.do(ctx, func(_ context.Context, _ *durable.State, c *centre) error { c.stop(); return nil }); err != nil {
				r.options.Logger.Warn("waitingroom: couldn't save the users of a room; the next process counts them as they come", "room", room.config.Name, "err", err)
			}
			if err := room.storeHistory(context.WithoutCancel(ctx), true); err != nil {
				r.options.Logger.Warn("waitingroom: couldn't save the last minutes of a room's history", "room", room.config.Name, "err", err)
			}
		})
	}
	running.Wait()
}

// reportRegularly sends the reports of the room with a name when they are due, until the room does not exist any more or ctx
// ends. With each report it stores the room's history and notifies webhooks. It logs errors and tries again. A room without users
// reports nothing until a visitor comes, the configuration changes or an event begins or ends, except in a cluster, to learn of
// revoked sessions.
func (r *Rooms) reportRegularly(ctx context.Context, name string) {
	const again = 5 * time.Second // after a failure
	var known *notified
	for {
		room := r.currentRooms().byName[name]
		if room == nil || ctx.Err() != nil {
			return
		}
		if !room.isReady() {
			_ = retry.Sleep(ctx, time.Second/10) // the loop sees that ctx has ended
			continue
		}
		wait := again
		next, err := room.report(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			r.options.Logger.Error("waitingroom: a room could not report; no new user may be let in", "room", room.config.Name, "err", err)
		case err == nil:
			wait = max(next.Sub(room.now()), time.Second/10)
		}
		fresh, lost := r.notify(ctx, room, known)
		if lost != nil && ctx.Err() == nil {
			r.options.Logger.Error("waitingroom: couldn't notify webhooks of a room; trying again", "room", room.config.Name, "err", lost)
		}
		known = fresh
		if o := room.overview.Load(); err == nil && lost == nil && room.cluster == nil && !known.mayChange() && o.active == 0 && o.queued == 0 && o.connected && !o.holding {
			now := room.now() // until a visitor comes, the configuration changes or an event of the room begins or ends
			if retry.SleepUnless(ctx, max(room.settingsAt(now).Until.Sub(now), time.Second/10), room.wake) != nil {
				return
			}
		}
		_ = retry.SleepUnless(ctx, wait, room.urgent)
		select {
		case <-room.wake:
		default:
		}
	}
}

// reportAtOnce ends the pause before the next report, because another node waits for that. It does not block.
func (r *room) reportAtOnce() { retry.Wake(r.urgent) }

// callReportInterval is how often a node of a cluster reports while it has called visitors.
const callReportInterval = 250 * time.Millisecond

// report has the room's data centre report to the global object, then stores the counts of minutes that are over in the history,
// whose errors it logs. It returns when the next report is due. Before that it updates an automatic limit, and probes the site
// behind the room while visitors wait.
func (r *room) report(ctx context.Context) (next time.Time, err error) {
	if r.cluster == nil { // else the leader does it
		r.followOrigin(r.kept.limit.takeMeasured())
	}
	if r.upstream != nil && r.overview.Load().queued > 0 { // who waits with an event stream makes no request that would
		r.upstream.probe(ctx, true)
	}
	err = r.do(ctx, func(ctx context.Context, s *durable.State, c *centre) error {
		err := c.report(ctx, s)
		next = c.machine.NextReport(c.reported)
		if called := c.reported.Add(callReportInterval); c.remote != nil && c.machine.HasCalled(c.reported) && called.Before(next) {
			next = called // the visitor may come to another node, which waits for this one
		}
		return err
	})
	if err == nil {
		r.analytics.addSample(r.now(), r.overview.Load())
		if err := r.storeHistory(ctx, false); err != nil {
			r.log.Warn("waitingroom: couldn't save what happened in a room; trying again", "room", r.config.Name, "err", err)
		}
	}
	return next, err
}

// followOrigin adjusts the limit of a room whose limit is automatic by the site's responses that a node has measured, and puts
// the new limit into force. It does nothing for other rooms, or if measured is nil.
func (r *room) followOrigin(measured *OriginResponses) {
	if measured != nil && r.config.Automatic && r.kept.limit.adjust(r.now(), r.config, r.overview.Load().active, measured) {
		r.applyLimit()
	}
}

// adoptLimit puts the limit of active users into force that the leader of the cluster has computed, for a room whose limit is
// automatic. It does nothing for other rooms, and for a limit of 0.
func (r *room) adoptLimit(limit int) {
	if r.config.Automatic && limit > 0 && r.kept.limit.current.Swap(int64(limit)) != int64(limit) {
		r.applyLimit()
	}
}

// applyLimit replaces the settings in force by ones with the current automatic limit.
func (r *room) applyLimit() {
	now := r.now()
	before := r.settingsAt(now)
	r.current.CompareAndSwap(before, r.compute(now))
}

// wakeReports ends the wait of a room that reports nothing because it has no visitors. It is called when a visitor comes or the
// configuration changes, and does not block.
func (r *room) wakeReports() { retry.Wake(r.wake) }

// revoke ends the session of a ticket, as the site behind the room has requested by a header of its response. This process
// refuses the ticket at once; then the room's durable object stores the revocation, and queues it for the other nodes of a
// cluster. If that fails, the revocation is in memory only, and the error is ignored. A waiting ticket is ignored.
func (r *room) revoke(ctx context.Context, t queue.Ticket) {
	now := r.now()
	if t.Waiting() {
		return
	}
	// No session is promised for longer, whatever data centre has renewed it meanwhile.
	until := now.Add(r.config.LongestSession() + 2*time.Minute + r.skew)
	r.revoked.add(t.ID, until, now) // at once; the object makes it durable
	r.analytics.countRevoked(now)
	_ = r.do(ctx, func(ctx context.Context, s *durable.State, c *centre) error { // logged where it reports
		return c.revoke(ctx, s, t.ID, until)
	})
}

// compute derives the settings in force at a time from the room's configuration, its events and the automatic limit, with Skew,
// the secret of a shuffle and defaults. It stores nothing.
func (r *room) compute(now time.Time) *config.EffectiveSettings {
	m := r.config.At(now)
	m.Settings.Skew = r.skew
	if r.config.Automatic && m.Settings.TotalActiveUsers == r.config.TotalActiveUsers { // else an event has a limit of its own
		m.Settings.TotalActiveUsers = r.kept.limit.limitOf(r.config)
		m.Settings.NewUsersPerMinute = min(m.Settings.NewUsersPerMinute, m.Settings.TotalActiveUsers)
	}
	if shuffle := &m.Settings.Shuffle; shuffle.Until > shuffle.From {
		shuffle.Salt = r.codec.keys.deriveNumber(r.config.Name + "/" + m.Event.Name)
	}
	m.Settings = m.Settings.WithDefaults()
	return &m
}

// settingsAt returns the settings in force at a time, which is not before those of earlier calls. It computes and caches them
// when an event or its pre-queue has begun or ended since. The caller must not change them.
func (r *room) settingsAt(now time.Time) *config.EffectiveSettings {
	m := r.current.Load()
	if now.Before(m.Until) {
		return m
	}
	r.current.CompareAndSwap(m, r.compute(now))
	return r.current.Load()
}
