package queue

import (
	"math/rand/v2"
	"time"
)

// DataCentre decides about the visitors of one data centre. It is not safe for use by
// several goroutines at once.
//
// It may forget everything when its process ends: a new incarnation starts with nothing,
// and the global object counts what the last one promised until that must be over. An
// incarnation that keeps a journal may be continued instead: see [ContinueDataCentre].
type DataCentre struct {
	name        string
	incarnation int64
	settings    Settings
	rng         *rand.Rand
	started     time.Time
	now         time.Time // never goes back

	tickets
	minutes map[Minute]*ledger
	calls   calls

	seq, acked    uint64
	leaseUntil    time.Time
	leaseDuration time.Duration
	room          Room
	anywhere      int
	stated        time.Time // when the last state came
	reportEvery   time.Duration
	want          int

	workers map[string]time.Time // when each last reported

	continued int64 // how often, after its process had ended
	beyond    bool  // the head of the journal is not what it was
}

// NewDataCentre returns a data centre without visitors, which keeps no journal before [DataCentre.StartJournal]. At most one with
// this name may run at a time, and each run needs a higher incarnation, such as its start in nanoseconds. seed determines its
// random numbers. The settings must have come from [Settings.WithDefaults].
func NewDataCentre(name string, incarnation int64, s Settings, seed uint64, now time.Time) *DataCentre {
	return &DataCentre{
		name: name, incarnation: incarnation, settings: s, rng: newRandom(seed, name, incarnation), started: now, now: now,
		tickets: newTickets(now), calls: calls{lapses: map[int64][]TicketID{}, turned: now.Unix()}, minutes: map[Minute]*ledger{}, workers: map[string]time.Time{},
		reportEvery: usualReport,
	}
}

// Configure replaces the settings. Existing sessions keep the end that they were promised.
func (d *DataCentre) Configure(now time.Time, s Settings) {
	d.advance(now)
	d.settings = s
}

// Incarnation returns the number that distinguishes this run of the data centre from others. A continued run has that of the run
// before.
func (d *DataCentre) Incarnation() int64 { return d.incarnation }

// Active returns how many sessions this data centre counts, and slots reserved for waiting visitors, together. It first advances
// the clock to now.
func (d *DataCentre) Active(now time.Time) int { d.advance(now); return d.tickets.active }

// Queued returns how many visitors wait at this data centre, with those from before a restart who may still come back, and
// without those for whom a slot is reserved. It first advances the clock to now.
func (d *DataCentre) Queued(now time.Time) int { d.advance(now); return d.waiting }

// Room returns the totals of the room over all data centres, as of the last response of the global object; zero before the first.
// The caller must not change the lists in it.
func (d *DataCentre) Room() Room { return d.room }

// advance moves the data centre's clock to now, never back. It ends sessions and reservations that have expired, removes waiting
// visitors who stayed away, and deletes old counts and silent workers. Slots of ended reservations go to other visitors at once.
func (d *DataCentre) advance(now time.Time) {
	if !now.After(d.now) {
		return
	}
	turned := MinuteOf(now) != MinuteOf(d.now)
	d.now = now
	d.tickets.advance(now, &d.settings)
	d.endLapsedReservations()
	if !turned {
		return
	}
	for m := range d.minutes {
		if m < MinuteOf(now)-keptMinutes {
			delete(d.minutes, m)
		}
	}
	for name, heard := range d.workers {
		if now.Sub(heard) > workerGone {
			delete(d.workers, name)
		}
	}
}

const (
	// keptMinutes is how many minutes of counts are reported again and again.
	keptMinutes = 6
	// workerGone is how long a silent worker still counts.
	workerGone = 30 * time.Second
	// mostWaiting bounds the memory that strangers can fill: about 200 MB. Later visitors
	// get a ticket with a place, and a chance once fewer wait.
	mostWaiting = 1 << 20
	// mostActive does the same under Passthrough. Later visitors pass uncounted, without a
	// session.
	mostActive = 1 << 20
	// absence is how late a check-in may be before its slot goes to other visitors. The
	// ticket keeps its place for longer.
	absence = 10 * time.Second
)

// Visit decides about a request with ticket t: it admits the visitor, renews the session, or has the visitor wait; or it refuses,
// or says that the ticket is worthless ([Reissue]). The outcome is Draw if the grants are used up but the global object may have
// more. Then the visitor's place has not changed, and the caller must report to the global object and call [DataCentre.Settle].
func (d *DataCentre) Visit(now time.Time, t Ticket) Decision { return d.decide(now, t, true, false) }

// Settle decides about a request for which [DataCentre.Visit] returned Draw, by the grants that the data centre has now, if new
// ones have come or not. t is the ticket that Visit got. Settle never returns Draw.
func (d *DataCentre) Settle(now time.Time, t Ticket) Decision { return d.decide(now, t, false, false) }

// VisitGuest decides about a request of a client that carries no ticket, such as a program: id is always the same for the same
// client. A guest passes with the session that it has, or takes a free slot as a first request does. It never waits in line:
// every outcome but Pass and Draw means that it is not admitted. After Draw the caller reports to the global object and calls
// [DataCentre.SettleGuest].
func (d *DataCentre) VisitGuest(now time.Time, id TicketID) Decision {
	return d.decide(now, Ticket{ID: id}, true, true)
}

// SettleGuest decides about a guest's request for which [DataCentre.VisitGuest] returned Draw, by the grants that the data centre
// has now. It never returns Draw.
func (d *DataCentre) SettleGuest(now time.Time, id TicketID) Decision {
	return d.decide(now, Ticket{ID: id}, false, true)
}

// decide decides about a request with ticket t and records the outcome: see [DataCentre.Visit]. Only if draw is set, it may
// return Draw instead of having the visitor wait. If guest is set, the client carries no ticket: it is refused instead of
// getting a place in line, and may take a new session under the same id when the last one is over.
func (d *DataCentre) decide(now time.Time, t Ticket, draw, guest bool) Decision {
	d.advance(now)
	s := &d.settings
	if s.Suspended {
		return Decision{Outcome: Pass, Ticket: t}
	}
	if !t.Waiting() {
		return d.passSession(t)
	}
	r, known := d.rows[t.ID]
	if guest && r.kind == spent { // it may come again, because it has no other id
		r, known = row{}, false
	}
	switch {
	case known && r.kind == active && !r.revoked:
		if d.mayResume(t.ID, r) {
			return d.resumeSession(t, d.rows[t.ID])
		}
		if draw && d.mayDraw(false) {
			d.want++
			return Decision{Outcome: Draw, Ticket: t}
		}
		return d.checkIn(t)
	case known && r.kind != waiting && r.kind != called:
		return Decision{Outcome: Reissue}
	case s.Method == Passthrough:
		if !known && d.tickets.active >= mostActive {
			return Decision{Outcome: Pass, Ticket: t}
		}
		return d.admit(t, r)
	case s.Method == Reject, guest && !known && d.waiting >= mostWaiting:
		return Decision{Outcome: Refuse, Ticket: t}
	case s.hasLostPlace(d.now, &t), known && t.First(): // the latter has sent its new ticket already
		return Decision{Outcome: Reissue}
	case known && d.now.UnixNano() < r.at, !known && !t.First() && d.now.Before(t.nextCheckIn()):
		return Decision{Outcome: Wait, Ticket: t, Estimate: d.estimate(&t)} // too early
	}
	if t.First() {
		t.Since = d.now
	}
	if !known && d.waiting >= mostWaiting {
		// A ticket that is not remembered could be sent twice, so it has no chance.
		return d.checkIn(t)
	}
	if r.kind == called {
		return d.decideCalled(t, r, draw)
	}
	if !t.First() {
		r = d.returnToLine(&t, r)
	}
	if r.kind == called || t.First() && d.mayAdmitAtOnce() {
		return d.admit(t, r)
	}
	if draw && d.mayDraw(r.kind == waiting) {
		d.want++
		return Decision{Outcome: Draw, Ticket: t}
	}
	if guest {
		return Decision{Outcome: Refuse, Ticket: t}
	}
	return d.keepWaiting(t, r)
}

// decideCalled decides about a visitor for whom a slot is reserved, by the ticket and its row r: it enters, or waits on if all
// visitors have to queue. If the minute has changed and the global object has not granted the slot for this one yet, the outcome
// is Draw, after which the caller reports and calls [DataCentre.Settle]. Without draw, the reservation ends and the visitor is in
// line again.
func (d *DataCentre) decideCalled(t Ticket, r row, draw bool) Decision {
	switch {
	case d.settings.QueueAll:
		return d.checkIn(t)
	case d.unused() >= 0:
		return d.admit(t, r)
	case draw:
		return Decision{Outcome: Draw, Ticket: t}
	}
	d.refund(&r)
	return d.keepWaiting(t, r)
}

// resumeSession decides about a visitor who still sends a waiting ticket although it was admitted meanwhile. The decision has the
// ticket with the session from its row r; it passes the visitor unless the session is over or revoked. resumeSession stores the
// row, with the mark deleted that the session was given for another data centre, and records the change for the journal. The
// caller has asked mayResume before.
func (d *DataCentre) resumeSession(t Ticket, r row) Decision {
	t.AcceptedAt, t.LastCheckIn, t.Ends, t.RefreshInterval, t.Stream = time.Unix(0, r.accepted).UTC(), time.Unix(0, r.at).UTC(), r.ends.Time(), 0, false
	if d.settings.FixedSessions { // the row knows only the minute
		t.Ends = earlier(t.Ends, t.AcceptedAt.Add(d.settings.SessionDuration))
	}
	r.elsewhere = false
	d.rows[t.ID] = r
	d.recordChange(t.ID)
	decision := d.passSession(t)
	decision.Changed = true
	return decision
}

// passSession decides about an admitted ticket. It passes a valid session, and renews it unless it was renewed in this minute,
// sessions are fixed, or this data centre does not count the session or has no lease. A session from another data centre is
// counted here from now on, but not renewed before the global object knows of that. The outcome is Reissue if the session is over
// or revoked.
func (d *DataCentre) passSession(t Ticket) Decision {
	s := &d.settings
	r, known := d.rows[t.ID]
	if known && r.revoked {
		return Decision{Outcome: Reissue}
	}
	switch s.Session(d.now, &t) {
	case SessionOver:
		return Decision{Outcome: Reissue}
	case SessionPasses:
		return Decision{Outcome: Pass, Ticket: t, Counted: true}
	}
	d.countUser(&r)
	if !known || r.kind == waiting || r.kind == called || r.kind == spent {
		// A session from another data centre, which counts it until t.Ends. It may last
		// longer only once the global object counts it here.
		switch r.kind {
		case waiting:
			d.remove(&r)
		case called:
			d.refund(&r)
		}
		r = row{kind: adopting, seq: d.seq + 1, counted: r.counted, accepted: t.AcceptedAt.UnixNano(), at: t.LastCheckIn.UnixNano()}
		d.tickets.active++
		d.countSession(t.ID, r, s.sessionEnd(d.now, maxSession))
		return Decision{Outcome: Pass, Ticket: t, Counted: true}
	}
	if r.kind == adopting && d.acked >= r.seq {
		r.kind = active
	}
	if r.kind == adopting || !d.now.Before(d.leaseUntil) && s.Allocator == Counter {
		d.rows[t.ID] = r
		return Decision{Outcome: Pass, Ticket: t, Counted: true}
	}
	t.LastCheckIn, t.Ends = d.now, s.sessionEnd(d.now, d.longestSession())
	r.at = d.now.UnixNano()
	d.countSession(t.ID, r, later(t.Ends, r.ends.Time()))
	return Decision{Outcome: Pass, Ticket: t, Changed: true, Counted: true}
}

// longestSession returns the longest session that this data centre may promise now: what the lease allows, or maxSession without
// the Counter allocator.
func (d *DataCentre) longestSession() time.Duration {
	if d.settings.Allocator != Counter {
		return maxSession
	}
	return d.leaseDuration
}

// mayAdmitAtOnce reports whether a first request may be admitted without waiting: the lease holds, not all visitors have to
// queue, and there are more unused grants than waiting visitors, here and at the data centres to which they may have gone.
func (d *DataCentre) mayAdmitAtOnce() bool {
	return !d.settings.QueueAll && d.now.Before(d.leaseUntil) && d.unused() > d.waiting && !d.isBeyondBatch(MinuteOf(d.now))
}

// returnToLine records that the visitor of a waiting ticket has come back, and counts it in line: from now on a slot may be
// reserved for it. It then reserves the free slots for those who are next, which may include this ticket. r is the ticket's row,
// empty for an unknown one. It returns the row after that, whose kind is called if a slot is reserved.
func (d *DataCentre) returnToLine(t *Ticket, r row) row {
	if r.kind != waiting {
		d.countReturn(d.settings.placeOf(t).bucket)
	}
	d.countUser(&r)
	d.joinLine(t.ID, row{
		kind: waiting, place: d.settings.placeOf(t), back: true, stream: r.stream, counted: r.counted,
		at: d.now.UnixNano(), gone: max(r.gone, d.now.Add(d.settings.longestRefresh()+absence).UnixNano()),
	})
	d.reserveFreeSlots()
	return d.rows[t.ID]
}

// mayDraw reports whether it is worthwhile to request slots from the global object for one visitor. inLine says whether the
// visitor is one of those counted as waiting. It changes nothing.
func (d *DataCentre) mayDraw(inLine bool) bool {
	s := &d.settings
	if s.QueueAll || s.Allocator != Counter || d.room.Holding {
		return false
	}
	if d.anywhere > 0 {
		return true
	}
	// While other people wait here, the reports ask for them.
	return (d.waiting == 0 || inLine && d.waiting == 1) && (d.now.Sub(d.stated) >= fastestReport || !d.hasGrants())
}

// admit starts the session of a ticket and returns Pass with the changed ticket. r is the ticket's row, empty for an unknown one.
// The admission is charged to the grants of this minute, unless a slot was reserved for the ticket, which was charged then. It
// does not check that there is a grant.
func (d *DataCentre) admit(t Ticket, r row) Decision {
	if r.kind == waiting {
		d.remove(&r)
	}
	if r.kind == called { // the slot counts as active
		d.redeemCharge(&r)
	} else {
		d.charge(d.now)
		d.tickets.active++
	}
	d.ledgerOf(MinuteOf(d.now)).Admitted++
	d.beyond = true
	d.countUser(&r)
	longest := d.longestSession()
	if d.settings.unlimited() {
		longest = maxSession
	}
	t.AcceptedAt, t.LastCheckIn, t.RefreshInterval, t.Stream = d.now, d.now, 0, false
	t.Ends = d.settings.sessionEnd(d.now, longest)
	if t.Since.IsZero() {
		t.Since = d.now
	}
	d.countSession(t.ID, row{kind: active, counted: r.counted, accepted: d.now.UnixNano(), at: d.now.UnixNano()}, t.Ends)
	return Decision{Outcome: Pass, Ticket: t, Changed: true, Counted: true}
}

// keepWaiting counts a visitor as waiting until shortly after the next check-in is due, and returns Wait with the changed ticket.
// r is the ticket's row, empty for an unknown one. If a slot was reserved for it, the caller has taken that back.
func (d *DataCentre) keepWaiting(t Ticket, r row) Decision {
	d.countUser(&r)
	decision := d.checkIn(t)
	next := d.now.Add(decision.Ticket.RefreshInterval)
	gone := next.Add(absence).UnixNano()
	if r.stream {
		gone = max(gone, r.gone)
	}
	d.joinLine(t.ID, row{
		kind: waiting, place: d.settings.placeOf(&t), back: !t.First(), stream: r.stream, counted: r.counted,
		at: next.UnixNano(), gone: gone,
	})
	return decision
}

// checkIn returns the decision Wait for a check-in that counts and gets no slot: with a ticket that names the time and a newly
// drawn refresh interval. It records nothing.
func (d *DataCentre) checkIn(t Ticket) Decision {
	t.LastCheckIn, t.RefreshInterval, t.Stream = d.now, d.chooseRefresh(d.settings.placeOf(&t)), false
	return Decision{Outcome: Wait, Ticket: t, Changed: true, Counted: true, Estimate: d.estimate(&t)}
}

// estimate returns the estimated wait of a waiting ticket.
func (d *DataCentre) estimate(t *Ticket) Estimate {
	return d.estimateAt(d.settings.placeOf(t))
}

// estimateAt returns the estimated wait of a visitor who is at a place in line. Under FIFO it counts the visitors ahead here, and
// scales them to all data centres. Under other methods it goes by the totals of the room, and the position is 0.
func (d *DataCentre) estimateAt(p place) Estimate {
	if d.settings.Method != FIFO {
		return d.room.estimate(d.settings.Method, p.bucket)
	}
	e := Estimate{Known: d.room.PerMinute > 0, Ahead: d.aheadOf(p, d.room.Waiting)}
	e.Position = e.Ahead + 1
	if e.Known {
		e.Minutes = FIFOWait(e.Ahead, d.room.PerMinute)
	}
	return e
}

// countUser counts the ticket of r as a user of this minute, unless r says that it was counted. It changes r, which the caller
// stores.
func (d *DataCentre) countUser(r *row) {
	if m := MinuteOf(d.now); r.counted != m {
		r.counted = m
		d.ledgerOf(m).Users++
	}
}

// Revoke ends the session, or the wait, of a ticket: it does not pass here any more. With everywhere its slot is free at once,
// and the caller has to make sure that no other node lets the ticket pass. Otherwise the slot is free when the session would have
// ended. A ticket that this data centre does not know is ignored, so the caller must refuse it by itself.
func (d *DataCentre) Revoke(now time.Time, id TicketID, everywhere bool) {
	d.advance(now)
	r, known := d.rows[id]
	if !known || r.revoked {
		return
	}
	switch {
	case r.kind == waiting:
		d.remove(&r)
	case r.kind == spent:
		return
	case !everywhere:
		r.revoked = true
		d.rows[id] = r
		d.recordChange(id)
		return
	case r.kind == called:
		d.refund(&r)
	default:
		d.tickets.active--
	}
	r.revoked = true
	d.endSession(id, r, d.now, &d.settings)
}

// Report returns the next report for the global object: how many visitors are active and wait, the counts of the last minutes,
// and how many visitors want slots, which it then counts from zero again ([DataCentre.RestoreWant]). Except for that, the next
// report has the same counts and newer ones, so a report may be lost. The report has no account.
func (d *DataCentre) Report(now time.Time) Report {
	d.advance(now)
	d.seq++
	r := Report{
		DataCentre: d.name, Incarnation: d.incarnation, Started: d.started, Seq: d.seq, At: d.now,
		Active: d.tickets.active, Waiting: d.line.report(d.settings.NewUsersPerMinute),
		Workers: max(1, len(d.workers)), Want: d.want, Unlimited: d.settings.unlimited(),
	}
	for m := MinuteOf(d.now) - keptMinutes; m <= MinuteOf(d.now)+1; m++ {
		if l := d.minutes[m]; l != nil {
			r.Minutes = append(r.Minutes, l.MinuteCounts)
		}
	}
	d.want = 0
	d.beyond = true
	return r
}

// RestoreWant adds the Want of a report that has not been answered to the next report: the number of visitors for whom slots were
// requested.
func (d *DataCentre) RestoreWant(r *Report) { d.want += r.Want }

// AddAccount adds an [Account] to r, which Report has just returned, for a global object that may not be the one that gave the
// grants: all grants that may still be charged, and when every promised session is over. first says that this data centre has no
// earlier incarnation.
func (d *DataCentre) AddAccount(r *Report, first bool) {
	a := &Account{First: first}
	for _, c := range r.Minutes {
		l := d.minutes[c.Minute]
		a.Grants = append(a.Grants, Grant{c.Minute, l.granted})
	}
	last := d.tickets.aged
	for m := range d.tickets.ends {
		last = max(last, m)
	}
	a.Over = later(last.Time(), d.leaseUntil.Add(time.Minute+d.leaseDuration))
	r.Account = a
}

// NextReport returns when the next report is due, after one that was sent at last: after the interval that the global object has
// named, or soon after a minute begins if that is earlier, when sessions have ended and grants have expired. While a report is
// unacknowledged, the interval is fastestReport.
func (d *DataCentre) NextReport(last time.Time) time.Time {
	turn := MinuteOf(last.Add(-d.settings.Skew)).end().Add(d.settings.Skew)
	every := d.reportEvery
	if d.acked < d.seq {
		every = fastestReport
	}
	return earlier(turn, last.Add(every))
}

// Apply takes over the global object's response to a report: lease, grants and totals of the room. Then it reserves free slots
// for waiting visitors, whose calls [DataCentre.TakeCalls] returns. A response that comes late or twice does no harm. One for
// another data centre or incarnation is ignored.
func (d *DataCentre) Apply(now time.Time, st State) {
	d.advance(now)
	if st.DataCentre != d.name || st.Incarnation != d.incarnation {
		return
	}
	d.leaseUntil = later(d.leaseUntil, st.LeaseUntil)
	if st.Ack >= d.acked {
		d.acked = st.Ack
		d.leaseDuration = st.LeaseDuration
		d.room = st.Room
		d.anywhere = st.Anywhere
		d.calls.batch = st.Batch
		d.calls.batch.Start = d.now.Add(st.Batch.Start.Sub(st.Room.At))
		d.reportEvery = st.ReportEvery
		d.stated = d.now
	}
	for _, g := range st.Grants {
		if g.Minute < MinuteOf(d.now)-1 {
			continue
		}
		l := d.ledgerOf(g.Minute)
		l.granted = max(l.granted, g.Total)
	}
	d.reserveFreeSlots()
}

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
