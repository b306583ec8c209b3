package queue

import (
	"testing"
	"time"
)

// full is a room for two, filled, with no visitor waiting.
func full(t testing.TB, method Method) (*world, *DataCentre) {
	w := newWorld(t, settings(t, 2, 2, func(s *Settings) { s.Method = method }), "one", "two")
	w.fill(w.sites[0], 2)
	return w, w.sites[0]
}

func TestTooEarly(t *testing.T) {
	w, d := full(t, FIFO)
	v := w.outcome(d, w.newcomer(), Wait)
	w.now = w.now.Add(v.RefreshInterval - time.Second)
	if decision := w.visit(d, v); decision.Outcome != Wait || decision.Counted || decision.Changed || decision.Ticket != v {
		t.Errorf("too early: %+v", decision)
	}
	w.now = w.now.Add(time.Second)
	decision := w.visit(d, v)
	if decision.Outcome != Wait || !decision.Counted || !decision.Ticket.LastCheckIn.Equal(w.now) || decision.Ticket.Since != v.Since {
		t.Errorf("in time: %+v", decision)
	}
	// the ticket of before
	if again := w.visit(d, v); again.Outcome != Wait || again.Counted {
		t.Errorf("the old ticket once more: %+v", again)
	}
}

func TestIntervalVaries(t *testing.T) {
	w, d := full(t, FIFO)
	seen := map[time.Duration]int{}
	sum := time.Duration(0)
	for range 700 {
		v := w.outcome(d, w.newcomer(), Wait)
		seen[v.RefreshInterval]++
		sum += v.RefreshInterval
	}
	for i := 17 * time.Second; i <= 23*time.Second; i += time.Second {
		if seen[i] < 60 {
			t.Errorf("%v: %d times of 700", i, seen[i])
		}
	}
	if mean := sum / 700; len(seen) != 7 || mean < 19700*time.Millisecond || mean > 20300*time.Millisecond {
		t.Errorf("mean %v of %v", mean, seen)
	}
}

// TestFirstRequestsComeLast has a slot come free for a visitor who waits: a newcomer who is
// there first does not get it, by any method.
func TestFirstRequestsComeLast(t *testing.T) {
	for _, method := range []Method{FIFO, Random} {
		w := newWorld(t, settings(t, 5, 1, func(s *Settings) { s.Method = method }), "one")
		d := w.sites[0]
		w.fill(d, 1)
		v := w.outcome(d, w.newcomer(), Wait)
		released := false
		for step := 0; step < 60 && !released; step++ {
			w.pass(3 * time.Second)
			released = d.rows[v.ID].kind == called
			if released || w.now.After(v.LastCheckIn.Add(v.RefreshInterval)) {
				if released {
					if d.Queued(w.now) != 0 {
						t.Fatalf("%d wait", d.Queued(w.now))
					}
					w.outcome(d, w.newcomer(), Wait)
					w.now = w.now.Add(v.RefreshInterval)
				}
				v = d.Settle(w.now, v).Ticket
			}
		}
		if !released || v.AcceptedAt.IsZero() {
			t.Errorf("%v: slot released %v, the visitor who waited is in %v", method, released, !v.AcceptedAt.IsZero())
		}
	}
}

func TestSpentTickets(t *testing.T) {
	w := newWorld(t, settings(t, 2, 1, func(s *Settings) { s.SessionDuration = time.Minute }), "one")
	d := w.sites[0]
	w.fill(d, 1)
	old := w.outcome(d, w.newcomer(), Wait)
	v := old
	for v.AcceptedAt.IsZero() {
		w.pass(25 * time.Second)
		v = w.visit(d, v).Ticket
	}
	if active := d.Active(w.now); active != 1 && active != 2 {
		t.Fatalf("%d active", active)
	}
	before := d.Active(w.now)
	if again := w.outcome(d, old, Pass); !again.AcceptedAt.Equal(v.AcceptedAt) || d.Active(w.now) != before {
		t.Errorf("the waiting ticket of a visitor inside is %+v, %d active", again, d.Active(w.now))
	}
	for range 25 {
		w.pass(20 * time.Second)
		if w.now.After(v.Ends) {
			w.outcome(d, v, Reissue)
			w.outcome(d, old, Reissue)
		}
	}
	// forgotten only when the ticket has lost its place
	w.pass(10 * time.Minute)
	if len(d.rows) != 0 || len(d.ends)+len(d.wheel)+len(d.spent) != 0 {
		t.Errorf("left behind: %d tickets, %d, %d, %d", len(d.rows), len(d.ends), len(d.wheel), len(d.spent))
	}
	w.outcome(d, old, Reissue)
}

func TestStrangeTickets(t *testing.T) {
	w, d := full(t, FIFO)
	now := w.now
	inside := Ticket{ID: testID(99), Since: now, AcceptedAt: now, LastCheckIn: now, Ends: now.Add(time.Minute)}
	for name, change := range map[string]func(*Ticket){
		"ended":           func(v *Ticket) { v.Ends = now },
		"for ever":        func(v *Ticket) { v.Ends = now.Add(24 * time.Hour) },
		"from the future": func(v *Ticket) { v.AcceptedAt, v.LastCheckIn = now.Add(time.Minute), now.Add(time.Minute) },
		"seen before":     func(v *Ticket) { v.LastCheckIn = now.Add(-time.Second) },
		"waits, lost":     func(v *Ticket) { *v = Ticket{ID: v.ID, LastCheckIn: now.Add(-5*time.Minute - 1)} },
		"waits, future":   func(v *Ticket) { *v = Ticket{ID: v.ID, LastCheckIn: now.Add(time.Second)} },
		"waits, too late": func(v *Ticket) {
			*v = Ticket{ID: v.ID, Since: now.Add(time.Minute), LastCheckIn: now.Add(-time.Minute)}
		},
		"waits since ever": func(v *Ticket) { *v = Ticket{ID: v.ID, LastCheckIn: time.Unix(0, 0)} },
	} {
		v := inside
		change(&v)
		if decision := d.Settle(now, v); decision.Outcome != Reissue {
			t.Errorf("%s: %v, want reissue", name, decision.Outcome)
		}
	}
	w.outcome(d, inside, Pass)
}

func TestSession(t *testing.T) {
	s := settings(t, 2, 2)
	fixed := s
	fixed.FixedSessions = true
	start := minuteOf(t, "15:54").Time()
	for _, c := range []struct {
		name  string
		s     Settings
		after time.Duration
		want  Session
	}{
		{"the same minute", s, 29 * time.Second, SessionPasses},
		{"the next minute", s, 30 * time.Second, SessionRenews},
		{"five minutes after the last request of the minute", s, 30*time.Second + 5*time.Minute - 1, SessionRenews},
		{"then", s, 30*time.Second + 5*time.Minute, SessionOver},
		{"fixed, the next minute", fixed, 30 * time.Second, SessionPasses},
		{"fixed, to the end", fixed, 5*time.Minute - 1, SessionPasses},
		{"fixed, at the end", fixed, 5 * time.Minute, SessionOver},
	} {
		at := start.Add(30 * time.Second)
		v := Ticket{AcceptedAt: at, LastCheckIn: at, Ends: c.s.sessionEnd(at, maxSession)}
		if got := c.s.Session(at.Add(c.after), &v); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestRenewal keeps a session alive by one renewal a minute, counted once.
func TestRenewal(t *testing.T) {
	w, d := full(t, FIFO)
	inside := Ticket{ID: testID(1), Since: w.now, AcceptedAt: w.now, LastCheckIn: w.now, Ends: w.settings.sessionEnd(w.now, maxSession)}
	for range 20 {
		w.pass(4 * time.Minute)
		decision := w.visit(d, inside)
		if decision.Outcome != Pass || !decision.Changed || !decision.Ticket.LastCheckIn.Equal(w.now) {
			t.Fatalf("%+v", decision)
		}
		inside = decision.Ticket
		w.now = MinuteOf(w.now).end().Add(-1)
		if again := w.visit(d, inside); again.Outcome != Pass || again.Changed {
			t.Fatalf("in the same minute: %+v", again)
		}
	}
	if n := d.Active(w.now); n != 1 {
		t.Errorf("%d active, want 1", n)
	}
}

func TestRevoke(t *testing.T) {
	for _, everywhere := range []bool{true, false} {
		w := newWorld(t, settings(t, 2, 2, func(s *Settings) { s.SessionDuration, s.PlaceKept = 10*time.Minute, time.Minute }), "one")
		d := w.sites[0]
		inside := w.fill(d, 2)
		w.pass(time.Minute)
		d.Revoke(w.now, inside[0].ID, everywhere)
		w.outcome(d, inside[0], Reissue)
		want := 2
		if everywhere {
			want = 1
		}
		if n := d.Active(w.now); n != want {
			t.Errorf("everywhere %v: %d counted, want %d", everywhere, n, want)
		}
		for range 10 { // for as long as the ticket would have passed
			w.pass(time.Minute)
			w.outcome(d, inside[0], Reissue)
		}
		if n := d.Active(w.now); n != 0 {
			t.Errorf("everywhere %v: %d counted after the end, want 0", everywhere, n)
		}
		w.outcome(d, inside[0], Reissue)
		d.Revoke(w.now, testID(77), everywhere) // no visitor's
	}
}

// TestAbsent has a visitor stay away: the slot goes to the next, but the place is kept.
func TestAbsent(t *testing.T) {
	w, d := full(t, FIFO)
	first := w.outcome(d, w.newcomer(), Wait)
	if n := d.Queued(w.now); n != 1 {
		t.Fatalf("%d wait, want 1", n)
	}
	w.pass(first.RefreshInterval + absence + 9*time.Second)
	if n := d.Queued(w.now); n != 0 {
		t.Errorf("%d wait, want none", n)
	}
	w.pass(time.Minute)
	second := w.outcome(d, w.newcomer(), Wait)
	first = w.outcome(d, first, Wait)
	if got := d.buckets; len(got) != 2 || got[0].Minute != first.Bucket() || got[1].Minute != second.Bucket() {
		t.Errorf("buckets %v", got)
	}
}
