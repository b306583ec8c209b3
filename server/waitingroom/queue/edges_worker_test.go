package queue

import (
	"fmt"
	"testing"
	"time"
)

// These hold the conditions of workers, and of what data centres take from them, at their edges.

func TestWorkerCoverage(t *testing.T) {
	now := minuteOf(t, "15:54").Time().Add(10 * time.Second)
	m := MinuteOf(now)
	even := settings(t, 100, 5, func(s *Settings) { s.Allocator = Even })
	random := settings(t, 100, 5, func(s *Settings) { s.Allocator, s.Method = Even, Random })
	for name, c := range map[string]struct {
		settings Settings
		first    bool
		waiting  []Bucket
		admitted int
		workers  int
		in       int // of seven
	}{
		"covered":                    {even, false, []Bucket{{m - 1, 2, 0}}, 0, 100, 2},
		"just covered":               {even, false, []Bucket{{m - 1, 2, 0}}, 3, 100, 2},
		"covered, behind another":    {even, false, []Bucket{{m - 2, 2, 0}, {m - 1, 2, 0}}, 0, 100, 2},
		"partly covered":             {even, false, []Bucket{{m - 1, 3, 0}}, 3, 5, 1},
		"no slots left":              {even, false, []Bucket{{m - 1, 3, 0}}, 5, 1, 0},
		"new":                        {even, true, []Bucket{{m - 1, 2, 0}}, 0, 1, 5},
		"new, all slots are taken":   {even, true, nil, 5, 1, 0},
		"new, others wait for slots": {even, true, []Bucket{{m - 1, 5, 0}}, 0, 1, 0},
		"random":                     {random, true, []Bucket{{m - 1, 50, 0}}, 0, 1, 5},
	} {
		w := NewWorker("one", c.settings, 1)
		w.Apply(WorkerState{Worker: "one", Workers: c.workers, Room: Room{At: now, Active: c.admitted, Admitted: c.admitted, Waiting: c.waiting, Workers: c.workers}})
		in := 0
		for n := range uint64(7) {
			v := Ticket{ID: testID(n)}
			if !c.first {
				v.Since, v.LastCheckIn, v.RefreshInterval = now.Add(-time.Minute), now.Add(-25*time.Second), 20*time.Second
			}
			if w.Visit(now, v).Outcome == Pass {
				in++
			}
		}
		if in != c.in {
			t.Errorf("%s: %d come in, not %d", name, in, c.in)
		}
	}
}

func TestWorkerMinute(t *testing.T) {
	now := minuteOf(t, "15:54").Time()
	w := NewWorker("one", settings(t, 100, 2, func(s *Settings) { s.Allocator = Even }), 1)
	w.Apply(WorkerState{Worker: "one", Workers: 1, Room: Room{At: now, Active: 2, Admitted: 2, Workers: 1}})
	in := ""
	for n := range uint64(7) {
		in += fmt.Sprint(w.Visit(now.Add(time.Duration(n)*20*time.Second), Ticket{ID: testID(n)}).Outcome, " ")
	}
	if in != "wait wait wait pass pass wait pass " {
		t.Errorf("every 20 s: %s", in)
	}
}

func TestWorkerVisits(t *testing.T) {
	now := minuteOf(t, "15:54").Time()
	inside := Ticket{ID: testID(1), AcceptedAt: now.Add(-2 * time.Minute), LastCheckIn: now.Add(-2 * time.Minute), Ends: now.Add(time.Minute)}
	early := Ticket{ID: testID(2), Since: now.Add(-time.Minute), LastCheckIn: now.Add(-time.Second), RefreshInterval: 20 * time.Second}
	for name, c := range map[string]struct {
		allocator Allocator
		method    Method
		ticket    Ticket
		want      Outcome
		counted   bool
	}{
		"a renewal, alone":          {Even, FIFO, inside, Pass, true},
		"too early":                 {Even, FIFO, early, Wait, false},
		"too early, when all go in": {Even, Passthrough, early, Pass, true},
	} {
		w := NewWorker("one", settings(t, 9, 9, func(s *Settings) { s.Allocator, s.Method = c.allocator, c.method }), 1)
		if got := w.Visit(now, c.ticket); got.Outcome != c.want || got.Counted != c.counted {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestWorkerAcknowledged(t *testing.T) {
	now := minuteOf(t, "15:54").Time()
	w := NewWorker("one", settings(t, 9, 9, func(s *Settings) { s.Allocator = Even }), 1)
	w.Apply(WorkerState{Worker: "one", Workers: 1, Room: Room{At: now, Workers: 1}})
	sent := func(want int) {
		t.Helper()
		if len(w.sent) != want {
			t.Errorf("%d tickets are to be sent, not %d", len(w.sent), want)
		}
	}
	for n, queueAll := range []bool{false, true} { // the worker lets the visitor in, or has the visitor wait
		ack := uint64(n)
		w.settings.QueueAll = queueAll
		w.Visit(now, Ticket{ID: testID(ack)})
		w.Apply(WorkerState{Worker: "one", Ack: ack})
		sent(1)
		w.Report(now)
		w.Apply(WorkerState{Worker: "one", Ack: ack + 1})
		sent(0)
	}
	if w.Apply(WorkerState{Worker: "one", Ack: 2, Workers: 7}); w.state.Workers != 7 {
		t.Error("an answer as new as the last one does not count")
	}
}

func TestMergeWaiting(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.Allocator = Even }), "one")
	d, id := w.sites[0], testID(1)
	merge := func(v Ticket) row {
		d.MergeReport(w.now, WorkerReport{Worker: "a", Tickets: []Ticket{v}})
		return d.rows[id]
	}
	v := Ticket{ID: id, Since: w.now, LastCheckIn: w.now, RefreshInterval: 20 * time.Second}
	first := merge(v)
	if first.kind != waiting || first.back || first.at != v.nextCheckIn().UnixNano() || first.gone != v.nextCheckIn().Add(absence).UnixNano() {
		t.Errorf("%+v", first)
	}
	if again := merge(v); again != first {
		t.Errorf("the same once more: %+v", again)
	}
	w.now = w.now.Add(20 * time.Second)
	v.LastCheckIn = w.now
	if next := merge(v); !next.back || next.at != v.nextCheckIn().UnixNano() {
		t.Errorf("the next check-in: %+v", next)
	}
	in := v
	in.AcceptedAt, in.LastCheckIn, in.Ends = w.now, w.now, w.now.Add(5*time.Minute)
	merge(in)
	v.LastCheckIn = w.now.Add(time.Second)
	if r := merge(v); r.kind != active || d.Queued(w.now) != 0 || d.Active(w.now) != 1 {
		t.Errorf("the waiting ticket of a visitor who is in: %+v, %d wait", r, d.waiting)
	}
}

func TestMergeSessions(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.Allocator = Even }), "one")
	d, id := w.sites[0], testID(1)
	d.StartJournal()
	changed := func(v Ticket) bool {
		d.MergeReport(w.now, WorkerReport{Worker: "a", Tickets: []Ticket{v}})
		rows, head := d.TakeChanges()
		if d.tickets.active != 1 {
			t.Errorf("%d are in", d.tickets.active)
		}
		return len(rows) > 0 || head != nil
	}
	v := Ticket{ID: id, Since: w.now, AcceptedAt: w.now, LastCheckIn: w.now, Ends: w.now.Add(5 * time.Minute)}
	older := v
	if !changed(v) || changed(v) {
		t.Error("a session is to change something, and only once")
	}
	w.now = w.now.Add(2 * time.Minute)
	v.LastCheckIn = w.now
	v.Ends = w.now.Add(5 * time.Minute)
	if !changed(v) || changed(older) {
		t.Error("a renewal is to change something, and an older one nothing")
	}
	// Its session is over here; a worker renewed it.
	d.tickets.active--
	d.endSession(id, row{kind: active}, w.now.Add(time.Hour), &w.settings)
	want := MinuteOf(v.Ends.Add(time.Minute - 1))
	if changed(v); d.rows[id].kind != active || d.rows[id].ends != want {
		t.Errorf("after its end it is %+v", d.rows[id])
	}
}

func TestMergeIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		method Method
		active int
		kept   bool
	}{
		"the last one":       {Passthrough, mostActive - 1, true},
		"one more":           {Passthrough, mostActive, false},
		"where limits count": {FIFO, mostActive, true},
	} {
		w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.Allocator, s.Method = Even, c.method }), "one")
		d := w.sites[0]
		d.tickets.active = c.active
		d.MergeReport(w.now, WorkerReport{Worker: "a", Tickets: []Ticket{{ID: testID(1), AcceptedAt: w.now, LastCheckIn: w.now, Ends: w.now.Add(time.Minute)}}})
		if _, kept := d.rows[testID(1)]; kept != c.kept {
			t.Errorf("%s is remembered: %v", name, kept)
		}
	}
}
