package simulate

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// begin is when every run begins. That it is the turn of a minute makes minutes of the
// run those of the clock.
var begin = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// drawTimeout is how long a request waits for the global object.
const drawTimeout = time.Second

type run struct {
	Options
	rng    *rand.Rand
	now    time.Duration // since begin, by the global object's clock
	events events

	users    []user
	sites    []site
	global   *queue.Global
	sessions []session
	messages []message
	free     []int32                  // of the messages
	left     int                      // users that are not done
	streams  map[queue.TicketID]int32 // users by the tickets of their event streams

	active, waiting int
	result          *Result
	err             error
}

type user struct {
	Visitor
	ticket  queue.Ticket
	first   queue.Ticket // for Resend
	stay    time.Duration
	gives   time.Duration // when it gives up waiting
	site    int
	session int32 // of the ticket, -1 without
	state   userState
}

type userState uint8

const (
	coming userState = iota
	waiting
	inside
	done
)

type session struct {
	ends   time.Duration
	closed bool
}

// A site is one data centre.
type site struct {
	name    string
	dc      *queue.DataCentre
	workers []*queue.Worker
	siteClock
	down     bool
	cut      bool
	life     int32
	due      time.Duration // of the next report
	reported time.Time     // by its clock
	journal  map[queue.TicketID][]byte
	head     []byte  // of the journal
	drawing  uint64  // the report under way for a draw, 0 without
	pending  []int32 // users who wait for it
	late     []int32 // users who wait for the one after it
}

type message struct {
	report queue.Report
	state  queue.State
	sent   *waitingroom.SentRequest // with Follow: the request that state is the response to,
	at     time.Time                // and when that was made
	copies int                      // still under way
}

// Run simulates a waiting room until all visitors have come and gone, or o.Longest of virtual time is over. It returns an error
// for invalid options, and if ctx ends before.
func Run(ctx context.Context, o Options) (*Result, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &run{Options: o, rng: rand.New(rand.NewPCG(o.Seed, 0x5eed)), left: o.Visitors, streams: map[queue.TicketID]int32{}}
	r.result = newResult(o)
	r.global = queue.NewGlobal(o.Settings, r.clockAt(0))
	for i := range o.DataCentres {
		s := site{name: fmt.Sprintf("dc%02d", i)}
		// No two clocks differ by more than Clocks; the global object's is in the middle.
		s.offset = time.Duration((r.rng.Float64() - 0.5) * float64(o.Clocks))
		r.sites = append(r.sites, s)
		r.startSite(i, false)
	}
	r.createUsers()
	for i, f := range o.Failures {
		r.events.push(event{f.From, failureBegins, int32(i), 0})
		if f.Kind == Down || f.Kind == Cut || f.Kind == Killed {
			r.events.push(event{f.Until, failureEnds, int32(i), 0})
		}
	}
	r.events.push(event{0, sample, 0, 0})
	for r.left > 0 && len(r.events) > 0 && r.err == nil {
		e := r.events.pop()
		if e.at > o.Longest {
			break
		}
		r.now = max(r.now, e.at)
		r.handle(e)
		r.deliverCalls()
		if e.kind == sample && ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	r.result.addVisitors(r)
	return r.result, r.err
}

// clockAt returns the present virtual time by a clock that differs by offset from that of the global object.
func (r *run) clockAt(offset time.Duration) time.Time { return begin.Add(r.now + offset) }

// startSite starts the data centre with the number i with workers and no memory or, with again, from its journal. It schedules
// their reports.
func (r *run) startSite(i int, again bool) {
	s := &r.sites[i]
	s.life++
	r.startClock(s)
	if !again {
		s.dc = queue.NewDataCentre(s.name, int64(s.life), r.Settings, r.Seed, s.clock(r))
		if slices.ContainsFunc(r.Failures, func(f Failure) bool { return f.Kind == Killed && f.DataCentre == i }) {
			s.dc.StartJournal()
			s.journal = map[queue.TicketID][]byte{}
		}
	} else if s.dc, r.err = queue.ContinueDataCentre(s.name, s.head, maps.All(s.journal), r.Settings, r.Seed, s.clock(r)); r.err != nil {
		return
	}
	s.saveJournal()
	s.workers = nil
	for w := range r.Workers {
		worker := queue.NewWorker(fmt.Sprintf("%s/%d/%d", s.name, w, s.life), r.Settings, r.Seed)
		s.workers = append(s.workers, worker)
		r.events.push(event{r.now + time.Duration(r.rng.Int64N(int64(time.Second))), workerReports, int32(i), int32(w) | s.life<<8})
	}
	s.drawing, s.pending, s.late = 0, nil, nil
	s.due = r.now + time.Duration(r.rng.Int64N(int64(2*time.Second)))
	r.events.push(event{s.due, dcReports, int32(i), s.life})
}

// saveJournal applies the changes since the last call to the data centre's journal, as its store would. It does nothing without a
// journal.
func (s *site) saveJournal() {
	if s.journal == nil {
		return
	}
	rows, head := s.dc.TakeChanges()
	for _, c := range rows {
		if c.Row == nil {
			delete(s.journal, c.ID)
		} else {
			s.journal[c.ID] = c.Row
		}
	}
	if head != nil {
		s.head = head
	}
}

// handle carries out an event that is due, and schedules those that follow from it.
func (r *run) handle(e event) {
	switch e.kind {
	case userVisits:
		r.visit(e.a)
	case streamOpens:
		r.openStream(e.a)
	case sessionEnds:
		s := &r.sessions[e.a]
		if s.ends > r.now {
			r.events.push(event{s.ends, sessionEnds, e.a, 0})
		} else if !s.closed {
			s.closed = true
			r.active--
			r.result.countEnd(r.now)
		}
	case workerReports:
		s := &r.sites[e.a]
		if s.down || e.b>>8 != s.life {
			return
		}
		w := s.workers[e.b&0xff]
		w.Apply(s.dc.MergeReport(s.clock(r), w.Report(s.clock(r))))
		r.events.push(event{r.now + max(time.Second, time.Duration(len(s.workers))*time.Second/20), workerReports, e.a, e.b})
	case dcReports:
		s := &r.sites[e.a]
		if s.down || e.b != s.life || e.at != s.due {
			return
		}
		r.sendReport(e.a)
		s.reported, s.due = s.clock(r), 0
		r.scheduleReport(e.a)
	case reportArrives:
		m := r.takeMessage(e.a)
		r.sendMessage(int(e.b), message{state: r.global.Receive(r.clockAt(0), m.report), sent: m.sent, at: r.clockAt(0)}, stateArrives)
	case stateArrives:
		s, m := &r.sites[e.b], r.takeMessage(e.a)
		if s.down || !s.accept(&m) {
			return
		}
		s.dc.Apply(s.clock(r), m.state)
		r.scheduleReport(e.b)
		if s.drawing > 0 && m.state.Incarnation == s.dc.Incarnation() && m.state.Ack >= s.drawing {
			r.endDraw(e.b)
		}
	case drawTimesOut:
		if s := &r.sites[e.a]; s.drawing > 0 && int32(s.drawing) == e.b {
			r.endDraw(e.a)
		}
	case failureBegins, failureEnds:
		r.applyFailure(r.Failures[e.a], e.kind == failureBegins)
	case sample:
		r.result.addSample(r)
		r.events.push(event{r.now + time.Second, sample, 0, 0})
	}
}

// applyFailure makes a failure begin or end, such as that a data centre goes down and comes back. Users who waited for a data
// centre that goes down try again elsewhere.
func (r *run) applyFailure(f Failure, begins bool) {
	s := &r.sites[f.DataCentre]
	switch f.Kind {
	case Down, Killed:
		s.down = begins
		if begins {
			for _, u := range append(s.pending, s.late...) { // these users try again elsewhere
				r.events.push(event{r.now + time.Second, userVisits, u, 0})
			}
			s.drawing, s.pending, s.late = 0, nil, nil
			r.endStreams(f.DataCentre)
		} else {
			r.startSite(f.DataCentre, f.Kind == Killed)
		}
	case Cut:
		s.cut = begins
	case Amnesia:
		var names []string
		for i := range r.sites {
			names = append(names, r.sites[i].name)
		}
		r.global = queue.RecoverGlobal(r.Settings, names, r.clockAt(0))
	case Restart:
		r.global, r.err = queue.RestoreGlobal(r.global.Snapshot(), r.Settings, r.clockAt(0))
	}
}

// scheduleReport schedules the next report of the data centre with the number i for the time that the data centre names.
func (r *run) scheduleReport(i int32) {
	s := &r.sites[i]
	due := r.now + max(s.dc.NextReport(s.reported).Sub(s.clock(r)), time.Millisecond)
	if s.due != due {
		s.due = due
		r.events.push(event{due, dcReports, i, s.life})
	}
}

// sendReport sends a report of the data centre with the number i to the global object, and returns the report's sequence number.
func (r *run) sendReport(i int32) (seq uint64) {
	s := &r.sites[i]
	m := message{}
	if s.member != nil {
		m.sent = s.member.NewRequest()
	}
	m.report = s.dc.Report(s.clock(r))
	s.saveJournal()
	r.sendMessage(int(i), m, reportArrives)
	return m.report.Seq
}

// startDraw sends a report of the data centre with the number i to the global object to get slots for the users who wait for
// that, and schedules the timeout.
func (r *run) startDraw(i int32) {
	s := &r.sites[i]
	s.pending, s.late = s.late, nil
	s.drawing = r.sendReport(i)
	r.events.push(event{r.now + drawTimeout, drawTimesOut, i, int32(s.drawing)})
}

// sendMessage sends a message between the data centre with the number site and the global object. The message arrives as an event
// of that kind after a random delay. It may be lost, or arrive several times.
func (r *run) sendMessage(site int, m message, kind eventKind) {
	if r.sites[site].cut || r.rng.Float64() < r.Loss {
		return
	}
	var slot int32
	if n := len(r.free); n > 0 {
		slot = r.free[n-1]
		r.free = r.free[:n-1]
	} else {
		slot = int32(len(r.messages))
		r.messages = append(r.messages, message{})
	}
	for m.copies = 0; m.copies == 0 || r.rng.Float64() < r.Repeat; m.copies++ {
		delay := time.Duration((0.5 + r.rng.Float64()) * float64(r.Delay))
		r.events.push(event{r.now + delay, kind, slot, int32(site)})
	}
	r.messages[slot] = m
}

// takeMessage returns the message in a slot when one copy of it arrives. It frees the slot with the last copy.
func (r *run) takeMessage(slot int32) message {
	m := r.messages[slot]
	if r.messages[slot].copies--; m.copies == 1 {
		r.messages[slot] = message{}
		r.free = append(r.free, slot)
	}
	return m
}

// endDraw decides about the users who have waited for slots from the global object, with those that have come by now: after the
// response, or after the timeout. It starts another draw for the users who came since.
func (r *run) endDraw(i int32) {
	s := &r.sites[i]
	pending := s.pending
	s.drawing, s.pending = 0, nil
	for _, u := range pending {
		r.applyDecision(u, s.dc.Settle(s.clock(r), r.ticketToSend(u)))
	}
	if len(s.late) > 0 {
		r.startDraw(i)
	}
}

// ticketToSend returns the ticket that the user with the number i sends: its own or, for an attacker who waits, the one of the
// attack.
func (r *run) ticketToSend(i int32) queue.Ticket {
	u := &r.users[i]
	if u.Attacks && u.state == waiting {
		switch r.Attack {
		case Drop:
			return queue.Ticket{ID: r.newID()}
		case Resend:
			return u.first
		}
	}
	return u.ticket
}

// newID returns a random ticket id.
func (r *run) newID() (id queue.TicketID) {
	binary.LittleEndian.PutUint64(id[:8], r.rng.Uint64())
	binary.LittleEndian.PutUint64(id[8:], r.rng.Uint64())
	return id
}

// visit is one request of the user with the number i. A user who has stayed, or waited, as long as planned leaves instead.
func (r *run) visit(i int32) {
	u := &r.users[i]
	if u.state == done {
		return
	}
	if u.state == inside && r.now >= u.Admitted+u.stay || u.state == waiting && r.now >= u.gives {
		if u.state == waiting {
			r.waiting--
			r.sites[u.site].dc.CloseStream(r.sites[u.site].clock(r), u.ticket.ID)
		}
		u.state = done
		r.left--
		return
	}
	if r.Roaming > 0 && r.rng.Float64() < r.Roaming {
		u.site = r.rng.IntN(len(r.sites))
	}
	s := r.findSite(u.site)
	if s.down {
		r.events.push(event{r.now + 5*time.Second, userVisits, i, 0})
		return
	}
	r.request(i, s, r.ticketToSend(i))
	if u.Attacks && r.Attack == Twice && u.state == waiting {
		if w := s.workers[r.rng.IntN(len(s.workers))]; r.Settings.Allocator != queue.Counter {
			w.Visit(s.clock(r), u.first)
		} else if d := s.dc.Settle(s.clock(r), u.first); d.Outcome == queue.Pass {
			r.applyDecision(i, d)
		}
	}
}

// findSite returns the data centre with the number site or, if that is down, the next one that is not. If all are down, it
// returns the data centre with that number.
func (r *run) findSite(site int) *site {
	for k := range r.sites {
		if s := &r.sites[(site+k)%len(r.sites)]; !s.down {
			return s
		}
	}
	return &r.sites[site]
}

// request sends a ticket v of the user with the number i to one of the site's workers, more often to the first ones, and applies
// the decision. A user whose decision needs more slots waits for a draw.
func (r *run) request(i int32, s *site, v queue.Ticket) {
	for range 3 {
		w := s.workers[int(float64(len(s.workers))*r.rng.Float64()*r.rng.Float64())]
		var d queue.Decision
		if r.Settings.Allocator == queue.Counter {
			d = s.dc.Visit(s.clock(r), v)
		} else {
			d = w.Visit(s.clock(r), v)
		}
		switch d.Outcome {
		case queue.Reissue:
			v = queue.Ticket{ID: r.newID()}
			r.users[i].ticket = v
			continue
		case queue.Draw:
			r.result.Draws++
			s.late = append(s.late, i)
			r.users[i].ticket = v
			if s.drawing == 0 {
				r.startDraw(r.indexOf(s))
			}
		default:
			r.applyDecision(i, d)
		}
		return
	}
	r.err = fmt.Errorf("visitor %d: three worthless tickets in a row", i)
}

// indexOf returns the number of a data centre.
func (r *run) indexOf(s *site) int32 {
	for i := range r.sites {
		if &r.sites[i] == s {
			return int32(i)
		}
	}
	return -1
}

// applyDecision has the user with the number i react to a decision. Before, all data centres save their journals.
func (r *run) applyDecision(i int32, d queue.Decision) {
	u := &r.users[i]
	for k := range r.sites {
		r.sites[k].saveJournal() // before the answer leaves
	}
	switch d.Outcome {
	case queue.Pass:
		r.enter(i, d)
	case queue.Wait:
		r.keepWaiting(i, d)
	case queue.Refuse:
		if u.state == waiting {
			r.waiting--
		}
		u.state = done
		r.left--
	}
}

// enter has the user with the number i go in, or stay in with a session that was renewed, and schedules the next request.
func (r *run) enter(i int32, d queue.Decision) {
	u := &r.users[i]
	fresh := u.session < 0 || u.ticket.ID != d.Ticket.ID || r.sessions[u.session].closed
	if u.state == waiting {
		r.waiting--
	}
	if u.state != inside && !u.In {
		u.In, u.Admitted = true, r.now
	}
	u.state = inside
	u.ticket = d.Ticket
	// the ticket passes until the slowest clock has reached its end
	ends := d.Ticket.Ends.Sub(begin) + r.Clocks/2
	if fresh {
		u.session = int32(len(r.sessions))
		r.sessions = append(r.sessions, session{ends: ends})
		r.events.push(event{ends, sessionEnds, u.session, 0})
		r.active++
		r.result.countAdmission(r)
	} else if s := &r.sessions[u.session]; ends > s.ends {
		s.ends = ends
	}
	// while it stays, a request every 5 to 25 seconds
	next := min(r.now+5*time.Second+time.Duration(r.rng.Int64N(int64(20*time.Second))), max(r.now+time.Millisecond, u.Admitted+u.stay))
	r.events.push(event{next, userVisits, i, 0})
}

// keepWaiting has the user with the number i wait, and schedules the next request, or the event stream of a user who holds one.
func (r *run) keepWaiting(i int32, d queue.Decision) {
	u := &r.users[i]
	if u.Called > 0 && r.now < u.Called+queue.CallDuration {
		u.Missed = true
	}
	if u.state != waiting {
		if u.state == coming && r.Patience > 0 {
			u.gives = r.now + time.Duration(r.rng.ExpFloat64()*float64(r.Patience))
		}
		u.state = waiting
		r.waiting++
		if r.waiting == 1 && r.result.FirstWait == 0 {
			r.result.FirstWait = r.active
		}
		u.first = d.Ticket
	}
	u.ticket = d.Ticket
	if d.Counted && d.Estimate.Known && u.ToldAt == 0 {
		u.ToldAt, u.Told = r.now, time.Duration(d.Estimate.Minutes*float64(time.Minute))
	}
	next := d.Ticket.RefreshInterval + time.Duration(r.rng.Int64N(int64(300*time.Millisecond)))
	if !d.Counted {
		next = time.Duration(1+r.rng.Int64N(3)) * time.Second
	} else {
		u.CheckIns++
	}
	if u.Attacks && r.Attack != Twice {
		next = time.Second
	}
	if u.Streams {
		r.events.push(event{r.now + 50*time.Millisecond + time.Duration(r.rng.Int64N(int64(500*time.Millisecond))), streamOpens, i, 0})
		return
	}
	r.events.push(event{r.now + next, userVisits, i, 0})
}

// createUsers creates all users and schedules their first requests, by the profile of the options.
func (r *run) createUsers() {
	weights := make([]float64, r.DataCentres)
	for i := range weights {
		weights[i] = 1 / float64(i+1)
	}
	pick := func(turn int) int {
		sum := 0.0
		for _, w := range weights {
			sum += w
		}
		x := r.rng.Float64() * sum
		for i, w := range weights {
			if x -= w; x < 0 {
				return (i + turn) % len(weights)
			}
		}
		return 0
	}
	type burst struct {
		at   time.Duration
		site int
	}
	var bursts []burst
	for range 4 {
		bursts = append(bursts, burst{time.Duration(r.rng.Int64N(int64(r.Over))), r.rng.IntN(r.DataCentres)})
	}
	for i := range r.Visitors {
		u := user{session: -1, gives: math.MaxInt64}
		u.Arrived = time.Duration(r.rng.Int64N(int64(r.Over)))
		u.site = pick(0)
		switch r.Profile {
		case Bursts:
			if i%2 == 0 {
				b := bursts[r.rng.IntN(len(bursts))]
				u.Arrived, u.site = b.at+time.Duration(r.rng.Int64N(int64(6*time.Second))), b.site
			}
		case Shifts:
			u.site = pick(int(u.Arrived / (2 * time.Minute)))
		}
		u.Attacks = i < r.Attackers
		u.Streams = r.Streams > 0 && r.rng.Float64() < r.Streams
		u.stay = time.Duration((0.9 + 0.2*r.rng.Float64()) * float64(r.Stay))
		u.ticket = queue.Ticket{ID: r.newID()}
		u.Joined = u.Arrived
		if r.Profile == Together {
			u.Joined = time.Duration(r.rng.Int64N(int64(r.Settings.RefreshInterval)))
			u.ticket.RefreshInterval = r.Settings.RefreshInterval
			u.ticket.Since = begin.Add(u.Arrived - r.Over)
			u.ticket.LastCheckIn = begin.Add(-time.Minute)
		}
		r.users = append(r.users, u)
		r.events.push(event{u.Joined, userVisits, int32(i), 0})
	}
}
