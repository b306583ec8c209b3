package queue

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Worker decides about requests under Even and Adaptive: alone, by the last state that it
// received. Under Counter the data centre decides. It is not safe for use by several
// goroutines at once.
type Worker struct {
	name     string
	settings Settings
	rng      *rand.Rand
	now      time.Time

	seq     uint64
	sent    []sentTicket // since the last report that was acknowledged
	state   WorkerState
	known   bool // a state has come
	minute  Minute
	used    int            // admissions of this minute
	covered map[Minute]int // those of them from buckets that are wholly covered
}

// A sentTicket is a ticket that is in the reports from number seq on, until one of them is acknowledged.
type sentTicket struct {
	seq uint64
	Ticket
}

// NewWorker returns a worker that knows of no visitors yet. name distinguishes it among the workers of a data centre, seed
// determines its random numbers. The settings must have come from [Settings.WithDefaults].
func NewWorker(name string, s Settings, seed uint64) *Worker {
	return &Worker{name: name, settings: s, rng: newRandom(seed, "worker "+name, 0), covered: map[Minute]int{}}
}

// Configure replaces the settings.
func (w *Worker) Configure(s Settings) { w.settings = s }

// Visit decides about a request with ticket t, and never returns Draw. It records a ticket that it has admitted, renewed or had
// wait for the next report. The allocator must be Even or Adaptive.
func (w *Worker) Visit(now time.Time, t Ticket) Decision {
	w.now = later(w.now, now)
	s := &w.settings
	if s.Suspended {
		return Decision{Outcome: Pass, Ticket: t}
	}
	if !t.Waiting() {
		switch s.Session(w.now, &t) {
		case SessionOver:
			return Decision{Outcome: Reissue}
		case SessionPasses:
			return Decision{Outcome: Pass, Ticket: t, Counted: true}
		}
		return w.startSession(t)
	}
	switch {
	case s.Method == Reject:
		return Decision{Outcome: Refuse, Ticket: t}
	case !t.First() && w.now.Before(t.nextCheckIn()) && s.Method != Passthrough:
		return Decision{Outcome: Wait, Ticket: t, Estimate: w.estimate(&t)}
	case s.hasLostPlace(w.now, &t):
		return Decision{Outcome: Reissue}
	}
	first := t.First()
	if first {
		t.Since = w.now
	}
	if s.Method == Passthrough || !s.QueueAll && w.tryAdmit(&t, first) {
		t.AcceptedAt, t.RefreshInterval = w.now, 0
		return w.startSession(t)
	}
	t.LastCheckIn, t.RefreshInterval = w.now, s.drawRefresh(w.rng)
	w.sent = append(w.sent, sentTicket{w.seq + 1, t})
	return Decision{Outcome: Wait, Ticket: t, Changed: true, Counted: true, Estimate: w.estimate(&t)}
}

// startSession starts or renews the session of a ticket from now, records it for the next report, and returns Pass with the
// changed ticket. The caller has set AcceptedAt.
func (w *Worker) startSession(t Ticket) Decision {
	t.LastCheckIn, t.Ends = w.now, w.settings.sessionEnd(w.now, maxSession)
	w.sent = append(w.sent, sentTicket{w.seq + 1, t})
	return Decision{Outcome: Pass, Ticket: t, Changed: true, Counted: true}
}

// estimate returns the estimated wait of a waiting ticket, by the last state of the room that the worker received.
func (w *Worker) estimate(t *Ticket) Estimate {
	return w.state.Room.estimate(w.settings.Method, w.settings.placeOf(t).bucket)
}

// tryAdmit reports whether this worker may admit a waiting ticket within its part of this minute's slots and, if so, counts the
// admission. It does not change the ticket. first says that this is the visitor's first request.
func (w *Worker) tryAdmit(t *Ticket, first bool) bool {
	s, room := &w.settings, &w.state.Room
	if m := MinuteOf(w.now); w.minute != m {
		w.minute, w.used = m, 0
		clear(w.covered)
	}
	// the slots that are left, and those of the whole minute, as far as was heard
	left, slots := s.availableSlots(room.Active, room.Admitted), s.availableSlots(room.Active-room.Admitted, 0)
	if MinuteOf(room.At) != w.minute {
		left = s.availableSlots(room.Active, 0)
		slots = left
	}
	ok := false
	switch covered, partly := w.coverage(t, left, first); {
	case covered:
		// a wholly covered bucket is admitted anywhere
		ok = true
		w.covered[t.Bucket()]++
	case partly || s.Method == Random:
		ok = w.used < w.slotBudget(slots)
	}
	if ok {
		w.used++
	}
	return ok
}

// coverage compares left, the remaining slots, with the visitors who wait before the ticket and in its bucket. wholly is true if
// the slots suffice for the whole bucket, partly if they suffice for some visitors of it. At a visitor's first request partly
// says whether slots remain after all buckets. Under Random both are false.
func (w *Worker) coverage(t *Ticket, left int, first bool) (wholly, partly bool) {
	place := w.settings.placeOf(t).bucket
	if w.settings.Method == Random {
		return false, false
	}
	for _, b := range w.state.Room.Waiting {
		if !first && b.Minute >= place {
			wholly = b.Minute == place && b.Waiting <= left && w.covered[t.Bucket()] < b.Waiting
			return wholly, left > 0
		}
		if left -= b.Waiting; left <= 0 {
			return false, false
		}
	}
	return false, left > 0
}

// slotBudget returns how many of the given slots of the room this worker may use: its part of the data centre's slots and of
// those that are reserved for no data centre. Under the allocator Adaptive a part may be larger than an equal one, up to all
// slots, so that the parts of all workers together may exceed the slots.
func (w *Worker) slotBudget(slots int) int {
	s, room := &w.settings, &w.state.Room
	own, anywhere := room.Traffic.slotsOf(slots, w.state.DataCentre)
	utilisation := float64(room.Active) / float64(s.TotalActiveUsers)
	return s.slotsPerWorker(own, w.state.Workers, utilisation) + s.slotsPerWorker(anywhere, room.Workers, utilisation)
}

// Report returns the next report for the data centre: every ticket that the worker has admitted, renewed or had wait since the
// last report that the data centre has acknowledged, except those that no longer count as active or waiting.
func (w *Worker) Report(now time.Time) WorkerReport {
	w.now = later(w.now, now)
	w.seq++
	w.sent = slices.DeleteFunc(w.sent, func(t sentTicket) bool { return !t.isCounted(w.now) })
	r := WorkerReport{Worker: w.name, Seq: w.seq}
	for _, t := range w.sent {
		r.Tickets = append(r.Tickets, t.Ticket)
	}
	return r
}

// Apply takes over the data centre's response to a report, and deletes the acknowledged tickets. It ignores older responses and
// those for another worker.
func (w *Worker) Apply(st WorkerState) {
	if st.Worker != w.name || w.known && st.Ack < w.state.Ack {
		return
	}
	w.state, w.known = st, true
	w.sent = slices.DeleteFunc(w.sent, func(t sentTicket) bool { return t.seq <= st.Ack })
}

// MergeReport counts the tickets in a worker's report, records that the worker is alive, and returns the response. A report that
// comes twice changes nothing the second time.
func (d *DataCentre) MergeReport(now time.Time, report WorkerReport) WorkerState {
	d.advance(now)
	d.workers[report.Worker] = d.now
	for i := range report.Tickets {
		if t := &report.Tickets[i]; t.isCounted(d.now) {
			d.mergeTicket(t)
		}
	}
	return WorkerState{
		Worker: report.Worker, Ack: report.Seq, DataCentre: d.name, Workers: len(d.workers), Room: d.room,
	}
}

// mergeTicket counts a ticket that a worker has admitted, renewed or had wait, as active or waiting here, its visitor as a user of
// this minute, and a new admission in that of its minute. It ignores a waiting ticket that is not newer than the one in line, or whose
// session is or was known here; an admitted one that is not newer than its active session; and one that is new while mostActive
// sessions count under Passthrough.
func (d *DataCentre) mergeTicket(t *Ticket) {
	r, known := d.rows[t.ID]
	if t.Waiting() {
		next := t.nextCheckIn().UnixNano()
		if known && (r.kind != waiting || r.at >= next) {
			return
		}
		d.countUser(&r)
		d.joinLine(t.ID, row{kind: waiting, place: d.settings.placeOf(t), back: known || t.LastCheckIn.After(t.Since), counted: r.counted, at: next, gone: next + int64(absence)})
		return
	}
	at := t.LastCheckIn.UnixNano()
	if known && r.kind == active && r.at >= at {
		return
	}
	if !known && d.settings.Method == Passthrough && d.tickets.active >= mostActive {
		return
	}
	d.countUser(&r)
	d.beyond = true
	if known && r.kind == waiting {
		d.remove(&r)
	}
	if r.kind == spent {
		r.ends = 0
	}
	if !known || r.kind == waiting || r.kind == spent {
		d.tickets.active++
		if t.AcceptedAt.Equal(t.LastCheckIn) {
			d.ledgerOf(MinuteOf(t.LastCheckIn)).Admitted++
		}
	}
	d.countSession(t.ID, row{kind: active, counted: r.counted, ends: r.ends, accepted: t.AcceptedAt.UnixNano(), at: at}, later(t.Ends, r.ends.Time()))
}
