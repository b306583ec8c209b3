package queue

import (
	"math/rand/v2"
	"slices"
	"time"
)

// Worker is what a request meets first. Under Counter it passes sessions and sends
// everybody else to the data centre; under Even and Adaptive it decides alone, by what
// it was told last. It is not safe for use by several goroutines at once; for sessions
// [Settings.Session] says the same without one.
type Worker struct {
	name     string
	settings Settings
	rng      *rand.Rand
	now      time.Time

	seq     uint64
	sent    []sentTicket // since the last report that was acknowledged
	state   WorkerState
	known   bool // a state has come
	budget  budget
	covered map[Minute]int // how many have been admitted from a bucket this minute
}

// A sentTicket is one line of the reports, from its seq on.
type sentTicket struct {
	seq     uint64
	seen    SeenTicket
	waiting WaitingTicket
}

// A budget is what a worker may admit in one minute.
type budget struct {
	minute Minute
	used   int
}

// NewWorker returns a worker that has heard of nobody yet. The settings must have come
// from [Settings.WithDefaults].
func NewWorker(name string, s Settings, seed uint64) *Worker {
	return &Worker{name: name, settings: s, rng: generator(seed, "worker "+name, 0), covered: map[Minute]int{}}
}

// Configure changes the settings.
func (w *Worker) Configure(s Settings) { w.settings = s }

// Visit decides about a request, or says Ask.
func (w *Worker) Visit(now time.Time, v Visitor) Decision {
	if now.After(w.now) {
		w.now = now
	}
	s := &w.settings
	if s.Suspended {
		return Decision{Outcome: Pass, Visitor: v}
	}
	if !v.AcceptedAt.IsZero() {
		switch s.Session(w.now, &v) {
		case SessionOver:
			return Decision{Outcome: Reissue}
		case SessionPasses:
			return Decision{Outcome: Pass, Visitor: v, Counted: true}
		}
		if s.Allocator == Counter {
			return Decision{Outcome: Ask, Visitor: v}
		}
		v.LastCheckIn, v.Ends = w.now, s.sessionEnd(w.now, maxSession)
		w.see(v)
		return Decision{Outcome: Pass, Visitor: v, Changed: true, Counted: true}
	}
	switch {
	case s.Method == Reject:
		return Decision{Outcome: Refuse, Visitor: v}
	case !v.First() && w.now.Before(v.LastCheckIn.Add(v.RefreshInterval)) && s.Method != Passthrough:
		return Decision{Outcome: Wait, Visitor: v, Estimate: w.estimate(v)}
	case s.Allocator == Counter:
		return Decision{Outcome: Ask, Visitor: v}
	case !v.First() && (w.now.Sub(v.LastCheckIn) > s.PlaceKept || v.LastCheckIn.After(w.now.Add(s.Skew)) || v.Bucket > MinuteOf(w.now.Add(s.Skew))):
		return Decision{Outcome: Reissue}
	}
	first := v.First()
	if first {
		v.Bucket = MinuteOf(w.now)
	}
	if s.Method == Passthrough || !s.QueueAll && w.chance(&v, first) {
		v.AcceptedAt, v.LastCheckIn, v.RefreshInterval = w.now, w.now, 0
		v.Ends = s.sessionEnd(w.now, maxSession)
		w.see(v)
		return Decision{Outcome: Pass, Visitor: v, Changed: true, Counted: true}
	}
	v.LastCheckIn, v.RefreshInterval = w.now, s.refresh(w.rng)
	w.sent = append(w.sent, sentTicket{seq: w.seq + 1, waiting: WaitingTicket{v.ID, s.Shuffle.Place(v.ID, v.Bucket), w.now.Add(v.RefreshInterval)}})
	return Decision{Outcome: Wait, Visitor: v, Changed: true, Counted: true, Estimate: w.estimate(v)}
}

func (w *Worker) see(v Visitor) {
	w.sent = append(w.sent, sentTicket{seq: w.seq + 1, seen: SeenTicket{v.ID, v.AcceptedAt, v.LastCheckIn, v.Ends}})
}

func (w *Worker) estimate(v Visitor) Estimate {
	return w.state.Room.estimate(w.settings.Method, w.settings.Shuffle.Place(v.ID, v.Bucket))
}

// chance decides by what this worker may admit this minute, and counts who comes in.
func (w *Worker) chance(v *Visitor, first bool) bool {
	s, room := &w.settings, &w.state.Room
	if m := MinuteOf(w.now); w.budget.minute != m {
		w.budget = budget{minute: m}
		clear(w.covered)
	}
	// what is left, and with what has been admitted this minute, as far as was heard
	left, slots := s.Available(room.Active, room.Admitted), room.SlotsOfMinute(s)
	if MinuteOf(room.At) != w.budget.minute {
		left = s.Available(room.Active, 0)
		slots = left
	}
	ok := false
	switch covered, partly := w.coverage(v, left, first); {
	case covered:
		// a wholly covered bucket is admitted anywhere
		ok = true
		w.covered[v.Bucket]++
	case partly || s.Method == Random:
		ok = w.budget.used < w.Budget(slots)
	}
	if ok {
		w.budget.used++
	}
	return ok
}

// coverage reports whether the slots that are left cover the visitor's bucket wholly, or
// partly; for a first request, whether anything is left by all buckets.
func (w *Worker) coverage(v *Visitor, left int, first bool) (wholly, partly bool) {
	place := w.settings.Shuffle.Place(v.ID, v.Bucket)
	if w.settings.Method == Random {
		return false, false
	}
	for _, b := range w.state.Room.Waiting {
		if !first && b.Minute >= place {
			wholly = b.Minute == place && b.Waiting <= left && w.covered[v.Bucket] < b.Waiting
			return wholly, left > 0
		}
		if left -= b.Waiting; left <= 0 {
			return false, false
		}
	}
	return false, left > 0
}

// Budget is how many of a room's slots this worker may use: its part of the data
// centre's and its part of Anywhere's.
func (w *Worker) Budget(slots int) int {
	s, room := &w.settings, &w.state.Room
	own, anywhere := room.Traffic.share(slots, w.state.DataCentre)
	utilisation := float64(room.Active) / float64(s.TotalActiveUsers)
	return s.PerWorker(own, w.state.Workers, utilisation) + s.PerWorker(anywhere, room.Workers, utilisation)
}

// Report is what the data centre has to hear: everything since the last report that it
// has acknowledged.
func (w *Worker) Report(now time.Time) WorkerReport {
	if now.After(w.now) {
		w.now = now
	}
	w.seq++
	// what is over by now nobody needs to hear, however long reports have been lost
	w.sent = slices.DeleteFunc(w.sent, func(t sentTicket) bool {
		return !t.seen.Ends.After(w.now) && !t.waiting.Next.Add(absence).After(w.now)
	})
	r := WorkerReport{Worker: w.name, Seq: w.seq, At: w.now}
	for _, t := range w.sent {
		if t.seen.ID != (TicketID{}) {
			r.Seen = append(r.Seen, t.seen)
		} else {
			r.Waiting = append(r.Waiting, t.waiting)
		}
	}
	return r
}

// Apply takes what the data centre has answered.
func (w *Worker) Apply(st WorkerState) {
	if st.Worker != w.name || w.known && st.Ack < w.state.Ack {
		return
	}
	w.state, w.known = st, true
	w.state.Room = st.Room.clone()
	w.sent = slices.DeleteFunc(w.sent, func(t sentTicket) bool { return t.seq <= st.Ack })
}

// ReportEvery is how often the worker should report.
func (w *Worker) ReportEvery() time.Duration {
	if !w.known {
		return fastestReport
	}
	return w.state.ReportEvery
}

// Merge takes a worker's report and answers it. A report that comes twice changes
// nothing the second time.
func (d *DataCentre) Merge(now time.Time, report WorkerReport) WorkerState {
	d.advance(now)
	w := d.workers[report.Worker]
	if w == nil {
		w = &workerRecord{}
		d.workers[report.Worker] = w
	}
	w.seen = d.now
	for _, t := range report.Seen {
		d.merge(t)
	}
	for _, t := range report.Waiting {
		r, known := d.rows[t.ID]
		if known && (r.kind != waiting || r.at >= t.Next.UnixNano()) || !t.Next.Add(absence).After(d.now) {
			continue
		}
		d.countUser(&r)
		d.join(t.ID, row{kind: waiting, bucket: t.Bucket, counted: r.counted, at: t.Next.UnixNano(), gone: t.Next.Add(absence).UnixNano()})
	}
	return WorkerState{
		Worker: report.Worker, Ack: report.Seq, DataCentre: d.name, Workers: len(d.workers),
		ReportEvery: d.workerReportEvery(), Room: d.room.clone(),
	}
}

// merge takes a ticket that a worker has seen or admitted.
func (d *DataCentre) merge(t SeenTicket) {
	r, known := d.rows[t.ID]
	if known && r.kind == active && r.at >= t.At.UnixNano() || !t.Ends.After(d.now) {
		return
	}
	if !known && d.settings.Method == Passthrough && d.tickets.active >= mostActive {
		return
	}
	d.countUser(&r)
	if known && r.kind == waiting {
		d.leave(r.bucket)
	}
	if !known || r.kind == waiting || r.kind == spent {
		d.tickets.active++
		if t.AcceptedAt.Equal(t.At) {
			d.ledger(MinuteOf(t.At)).Admitted++
		}
	}
	d.keep(t.ID, row{kind: active, counted: r.counted, ends: r.ends, accepted: t.AcceptedAt.UnixNano(), at: t.At.UnixNano()}, later(t.Ends, r.ends.Time()))
}

// workerReportEvery is a second for a few workers, and more for many.
func (d *DataCentre) workerReportEvery() time.Duration {
	return min(slowestReport, max(fastestReport, time.Duration(len(d.workers))*time.Second/reportsPerSecond))
}
