package queue

import (
	"math"
	"reflect"
	"slices"
	"testing"
	"time"
)

// These hold the rules that the proof in the package documentation rests on, one by one,
// where a simulation would need luck to find them broken.

// TestAdoption: a session that moves is renewed only when the global object knows of it.
func TestAdoption(t *testing.T) {
	w := newWorld(t, settings(t, 1, 1, func(s *Settings) { s.SessionDuration = time.Minute }), "one", "two")
	one, two := w.sites[0], w.sites[1]
	w.exchange(two)
	v := w.fill(one, 1)[0]
	w.now = w.now.Add(time.Minute)
	w.exchange(two)
	decision := two.Visit(w.now, v)
	if decision.Outcome != Pass || decision.Changed {
		t.Fatalf("before a report: %+v", decision)
	}
	if decision = two.Visit(w.now, v); decision.Changed {
		t.Fatalf("again: %+v", decision)
	}
	lost := two.Report(w.now) // which does not arrive
	if decision = two.Visit(w.now, v); decision.Changed {
		t.Fatalf("after a report that was lost: %+v", decision)
	}
	st := w.global.Receive(w.now, lost)
	if decision = two.Visit(w.now, v); decision.Changed {
		t.Fatalf("after a report without an answer: %+v", decision)
	}
	two.Apply(w.now, st)
	if decision = two.Visit(w.now, v); !decision.Changed || !decision.Ticket.Ends.After(v.Ends) {
		t.Fatalf("after the answer: %+v", decision)
	}
	// while it is counted twice no visitor comes in, and afterwards it still counts once
	w.outcome(one, w.newcomer(), Wait)
	w.now = v.Ends
	w.exchange(one)
	w.outcome(one, w.newcomer(), Wait)
	if one.Active(w.now) != 0 || two.Active(w.now) != 1 {
		t.Errorf("%d and %d active, want 0 and 1", one.Active(w.now), two.Active(w.now))
	}
}

// TestCountedUntilNoClockLets: a session counts for Skew longer than it lasts.
func TestCountedUntilNoClockLets(t *testing.T) {
	w := newWorld(t, settings(t, 1, 1, func(s *Settings) { s.Skew = 2 * time.Second }), "one")
	v := w.fill(w.sites[0], 1)[0]
	if n := w.sites[0].Active(v.Ends.Add(2*time.Second - 1)); n != 1 {
		t.Errorf("%d active before Skew is over, want 1", n)
	}
	if n := w.sites[0].Active(v.Ends.Add(2 * time.Second)); n != 0 {
		t.Errorf("%d active after it, want 0", n)
	}
}

// TestTurnOfAMinute: near it an admission is charged to both minutes.
func TestTurnOfAMinute(t *testing.T) {
	s := settings(t, 10, 4, func(s *Settings) { s.Skew = 2 * time.Second })
	w := newWorld(t, s, "one")
	d := w.sites[0]
	turn := MinuteOf(w.now).end()
	w.now = turn.Add(-time.Second)
	w.fill(d, 3)
	w.now = turn.Add(time.Second)
	w.fill(d, 1)
	w.outcome(d, w.newcomer(), Wait) // four are charged to both minutes
	w.now = turn.Add(10 * time.Second)
	w.outcome(d, w.newcomer(), Wait)
	for _, m := range []Minute{MinuteOf(turn) - 1, MinuteOf(turn)} {
		if l := d.minutes[m]; l.Charged != 4 || l.granted > 4 {
			t.Errorf("minute %v: %d charged of %d, want 4", m.Time(), l.Charged, l.granted)
		}
	}
}

// TestExpiredGrants come back with the first report after their minute, not before.
func TestExpiredGrants(t *testing.T) {
	s := settings(t, 10, 10, func(s *Settings) { s.Skew = time.Second; s.HistoryMinutes = 2 })
	w := newWorld(t, s, "one", "two")
	one, two := w.sites[0], w.sites[1]
	report := one.Report(w.now)
	report.Want = 10
	one.Apply(w.now, w.global.Receive(w.now, report))
	if n := one.unused(); n != 10 {
		t.Fatalf("%d granted, want 10", n)
	}
	for _, at := range []time.Duration{10 * time.Second, time.Minute, 3 * time.Minute} {
		w.now = w.now.Add(at)
		w.exchange(two)
		w.outcome(two, w.newcomer(), Wait)
	}
	w.exchange(one)
	w.now = w.now.Add(time.Minute)
	w.outcome(two, w.newcomer(), Pass)
}

// TestSilence: what a data centre has promised counts until its horizon, and it promises
// nothing beyond it, though it is alive.
func TestSilence(t *testing.T) {
	s := settings(t, 2, 2)
	w := newWorld(t, s, "one", "two")
	one, two := w.sites[0], w.sites[1]
	inside := w.fill(one, 2)
	answered := w.now
	last := time.Time{}
	horizon := answered.Add(s.Lease + time.Minute + s.SessionDuration)
	for w.now.Before(horizon.Add(-30 * time.Second)) {
		w.now = w.now.Add(30 * time.Second)
		if decision := one.Settle(w.now, inside[0]); decision.Outcome == Pass {
			inside[0], last = decision.Ticket, w.now
		}
		w.exchange(two)
		w.outcome(two, w.newcomer(), Wait)
	}
	if least := answered.Add(s.Lease); last.Before(least) {
		t.Errorf("cut off, it let its last session pass at %v, before its lease of %v was over", last, least)
	}
	if inside[0].Ends.After(horizon) {
		t.Errorf("a session ends at %v, after the horizon %v", inside[0].Ends, horizon)
	}
	w.now = horizon.Add(time.Minute)
	w.outcome(two, w.newcomer(), Pass)
	w.outcome(one, inside[0], Reissue)
}

// TestNextLife: a data centre that comes back without memory adopts its sessions, and what
// its last life promised counts no longer than it must.
func TestNextLife(t *testing.T) {
	s := settings(t, 4, 4)
	w := newWorld(t, s, "one", "two")
	inside := w.fill(w.sites[0], 3)
	w.exchange(w.sites[0])
	delayed := w.sites[0].Report(w.now)
	reborn := NewDataCentre("one", 2, s, 1, w.now)
	w.sites[0] = reborn
	w.exchange(reborn)
	delayed.Want = 1
	if st := w.global.Receive(w.now, delayed); len(st.Grants) > 0 && st.Grants[len(st.Grants)-1].Total > 3+1 {
		t.Errorf("the last life is given %+v", st.Grants)
	}
	if room := w.global.Room(w.now); room.Active != 3 {
		t.Errorf("%d active, want 3", room.Active)
	}
	w.outcome(reborn, w.newcomer(), Pass) // the fourth
	w.outcome(reborn, w.newcomer(), Wait)
	started := w.now
	w.pass(time.Minute)
	w.outcome(reborn, inside[0], Pass) // counted twice from now on
	w.pass(3 * time.Second)
	kept := w.outcome(reborn, inside[0], Pass)
	if !kept.Ends.After(inside[0].Ends) {
		t.Errorf("the session is not renewed: %+v", kept)
	}
	w.pass(started.Add(6*time.Minute + 3*time.Second).Sub(w.now))
	w.outcome(reborn, w.newcomer(), Pass)
	// a message of the last life, far too late
	late := w.global.Receive(w.now, Report{DataCentre: "one", Incarnation: 1, Seq: 99, At: w.now, Active: 3, Want: 3})
	if len(late.Grants) != 0 || !late.LeaseUntil.IsZero() {
		t.Errorf("the dead are given %+v", late)
	}
}

func TestLostState(t *testing.T) {
	s := settings(t, 2, 2)
	for name, c := range map[string]struct {
		expected []string
		after    time.Duration // until a visitor comes in again
	}{
		"all report":       {[]string{"one", "two"}, time.Minute},
		"one is missing":   {[]string{"one", "two", "three"}, 11 * time.Minute},
		"none is expected": {nil, 11 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, s, "one", "two")
			inside := w.fill(w.sites[0], 1)[0]
			w.pass(6*time.Minute + time.Second) // what a last life might have promised is over
			w.sites[0].Settle(w.now, inside)
			w.global = RecoverGlobal(s, c.expected, w.now)
			lost := w.now
			v := w.outcome(w.sites[1], w.newcomer(), Wait)
			for v.AcceptedAt.IsZero() && w.now.Before(lost.Add(15*time.Minute)) {
				w.pass(25 * time.Second)
				v = w.visit(w.sites[1], v).Ticket
				if took := w.now.Sub(lost); took < c.after-time.Minute && (!v.AcceptedAt.IsZero() || !w.sites[1].Room().Holding) {
					t.Fatalf("it holds no more after %v, want about %v", took, c.after)
				}
			}
			if took := v.AcceptedAt.Sub(lost); v.AcceptedAt.IsZero() || took > c.after+90*time.Second {
				t.Errorf("a visitor came in after %v, want about %v", took, c.after)
			}
		})
	}
}

func TestSnapshot(t *testing.T) {
	s := settings(t, 20, 7)
	w := newWorld(t, s, "one", "two")
	w.fill(w.sites[0], 5)
	w.outcome(w.sites[1], w.newcomer(), Pass)
	data := w.global.Snapshot()
	restored, err := RestoreGlobal(data, s, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if again := restored.Snapshot(); string(again) != string(data) || !reflect.DeepEqual(restored, w.global) {
		t.Errorf("restored:\n%x\n%x\n%+v\n%+v", data, again, w.global, restored)
	}
	w.global = restored
	w.outcome(w.sites[1], w.newcomer(), Pass)
	w.outcome(w.sites[1], w.newcomer(), Wait)
	bad := []string{"", "{", "\x07" + string(data[1:]), string(data) + "\x00", `{"Version":1,"Reporters":[{}]}`}
	for n := range data {
		bad = append(bad, string(data[:n]))
	}
	twice := *w.global
	twice.order = append(slices.Clone(twice.order), twice.order[0])
	for _, bad := range append(bad, string(twice.Snapshot())) {
		if _, err := RestoreGlobal([]byte(bad), s, w.now); err == nil {
			t.Errorf("%q: restored", bad)
		}
	}
	for behind, stored := range map[time.Duration]bool{maxAhead: true, maxAhead + time.Minute: false, 365 * 24 * time.Hour: false} {
		if _, err := RestoreGlobal(w.global.Snapshot(), s, w.now.Add(-behind)); stored != (err == nil) {
			t.Errorf("stored by a clock that was %v ahead: %v", behind, err)
		}
	}
}

// TestOldMessages: repeated and reordered ones change nothing.
func TestOldMessages(t *testing.T) {
	w := newWorld(t, settings(t, 10, 10), "one")
	d := w.sites[0]
	early := d.Report(w.now)
	first := w.global.Receive(w.now, early)
	w.fill(d, 10)
	w.exchange(d)
	d.Apply(w.now, first)
	w.global.Receive(w.now, early)
	w.global.Receive(w.now, early)
	if room := w.global.Room(w.now); room.Active != 10 {
		t.Errorf("an old report makes it %d active", room.Active)
	}
	w.outcome(d, w.newcomer(), Wait)
	w.exchange(d)
	if room := w.global.Room(w.now); room.Active != 10 || room.Admitted != 10 || room.Queued() != 1 {
		t.Errorf("%+v", room)
	}
	other := first
	other.Incarnation++
	other.Grants = []Grant{{MinuteOf(w.now), 1000}}
	d.Apply(w.now, other)
	if n := d.unused(); n != 0 {
		t.Errorf("%d grants of another life", n)
	}
}

// TestWorkerReportsTwice: a data centre counts each ticket once.
func TestWorkerReportsTwice(t *testing.T) {
	s := settings(t, 10, 10, func(s *Settings) { s.Allocator = Even })
	w := newWorld(t, s, "one")
	d := w.sites[0]
	worker := NewWorker("a", s, 1)
	worker.Apply(d.MergeReport(w.now, worker.Report(w.now)))
	for range 12 {
		worker.Visit(w.now, w.newcomer())
	}
	lost := worker.Report(w.now)
	d.MergeReport(w.now, lost)
	report := worker.Report(w.now)
	d.MergeReport(w.now, report)
	worker.Apply(d.MergeReport(w.now, report))
	if d.Active(w.now) != 10 && d.Active(w.now)+d.Queued(w.now) != 12 {
		t.Errorf("%d active, %d waiting", d.Active(w.now), d.Queued(w.now))
	}
	if r := worker.Report(w.now); len(r.Tickets) != 0 {
		t.Errorf("said again after it was acknowledged: %+v", r)
	}
	if n := d.minutes[MinuteOf(w.now)].Admitted; n != d.Active(w.now) {
		t.Errorf("%d admitted, %d active", n, d.Active(w.now))
	}
}

// TestReportsAreBounded has a data centre report what no honest one does: it neither takes memory without end, nor makes room
// for others.
func TestReportsAreBounded(t *testing.T) {
	s := settings(t, 200, 200)
	now := time.Date(2026, 3, 10, 12, 0, 5, 0, time.UTC)
	g := NewGlobal(s, now)
	report := func(name string, incarnation int64, seq uint64, change func(*Report)) State {
		r := Report{DataCentre: name, Incarnation: incarnation, Started: now, Seq: seq, At: now, Workers: 1, Account: &Account{Over: now}}
		change(&r)
		return g.Receive(now, r)
	}
	far := now.AddDate(1000, 0, 0)
	for i := range int64(5 * mostLives) {
		report("bad", i+1, 1, func(r *Report) { r.Started, r.Account.Over = far, far })
	}
	if n := len(g.reporters); n > mostLives {
		t.Errorf("%d lives are counted", n)
	}
	g = NewGlobal(s, now)
	for i := range 5 * mostMinutes {
		report("bad", 1, uint64(i+1), func(r *Report) {
			r.At = time.Unix(0, 0)
			r.Account.Grants = []Grant{{Minute(10 * i), 1}}
			r.Minutes = []MinuteCounts{{Minute: MinuteOf(far) + Minute(i)}}
		})
	}
	if r := g.reporters[reporterID{"bad", 1}]; len(r.Granted)+len(r.Counts) > mostMinutes+10 {
		t.Errorf("grants of %d minutes and counts of %d are kept", len(r.Granted), len(r.Counts))
	}
	report("bad", 1, 9999, func(r *Report) { r.Waiting = make([]Bucket, mostBuckets+1) })
	if r := g.reporters[reporterID{"bad", 1}]; len(r.Waiting) > 0 {
		t.Errorf("%d buckets are kept", len(r.Waiting))
	}
	for i, change := range []func(*Report){
		func(r *Report) { r.Active = -1000 },
		func(r *Report) { r.Active = math.MaxInt },
		func(r *Report) {
			r.Account.Grants = []Grant{{MinuteOf(now), math.MaxInt}, {MinuteOf(now) + 1, math.MaxInt}}
		},
		func(r *Report) { r.Account.Grants = []Grant{{MinuteOf(now), -1000}} },
		func(r *Report) { r.Minutes = []MinuteCounts{{Minute: MinuteOf(now), Charged: -1000}} },
	} {
		g = NewGlobal(s, now)
		report("bad", 1, 1, change)
		st := report("good", 1, 1, func(r *Report) { r.Active, r.Want = 150, 1000 })
		for _, grant := range st.Grants {
			if grant.Total > s.TotalActiveUsers-150 {
				t.Errorf("%d: %d are granted", i, grant.Total)
			}
		}
		if len(st.Grants) == 0 {
			t.Errorf("%d: nothing is granted", i)
		}
	}
}

// TestSuccessionAfterALongEvent has an event end whose sessions last longer than those after it, and a data centre lose what it
// knew of them: the next global object waits for theirs.
func TestSuccessionAfterALongEvent(t *testing.T) {
	s := settings(t, 200, 200)
	s.SessionDuration = 5 * time.Minute
	const long = 30 * time.Minute
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	began := now.Add(-10 * time.Minute) // its life before had visitors of the event
	for i, holding := range map[int]bool{1: true, 19: true, 23: false} {
		at := now.Add(time.Duration(i) * time.Minute)
		g := SucceedGlobal(s, []string{"a"}, now, now.Add(2*time.Hour), long)
		g.Receive(at, Report{DataCentre: "a", Incarnation: 2, Started: began, Seq: 1, At: at, Workers: 1, Account: &Account{Over: at}})
		g.Receive(at, Report{DataCentre: "a", Incarnation: 2, Started: began, Seq: 2, At: at, Workers: 1, Account: &Account{Over: at}})
		if g.holding != holding {
			t.Errorf("after %d minutes it holds: %v", i, g.holding)
		}
	}
}
