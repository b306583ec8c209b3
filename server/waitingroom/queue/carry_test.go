package queue

import (
	"slices"
	"testing"
	"time"
)

// callAt returns a room for rate new visitors a minute, full of visitors who stay, and n others who hold event streams at the first of
// two data centres. One of those who are in leaves at so many seconds of the minute, so that the first of the others is called.
func callAt(t *testing.T, second time.Duration, n int, change ...func(*Settings)) (w *world, one, two *DataCentre, waiting []Ticket) {
	t.Helper()
	w = newWorld(t, settings(t, 2, 2, append(change, func(s *Settings) { s.SessionDuration = 30 * time.Minute })...), "one", "two")
	one, two = w.sites[0], w.sites[1]
	inside := w.fill(one, 2)
	waiting = w.streaming(one, n)
	w.pass(MinuteOf(w.now).end().Add(second).Sub(w.now))
	one.Revoke(w.now, inside[0].ID, true)
	for range 40 { // near the turn of a minute by any clock there may be no slots
		w.exchange(two)
		w.exchange(one)
		if called := taken(one); slices.Equal(called, []TicketID{waiting[0].ID}) {
			return w, one, two, waiting
		}
		w.pass(time.Second)
	}
	t.Fatal("the visitor is not called")
	return w, one, two, waiting
}

// TestReservationOutlivesTheMinute has visitors called at any time of a minute: each has 30 seconds, also if the minute ends meanwhile,
// enters with a slot of the minute in which it comes, and no other visitor gets that slot.
func TestReservationOutlivesTheMinute(t *testing.T) {
	for _, skew := range []time.Duration{0, 5 * time.Second} {
		for _, rolling := range []bool{false, true} {
			for second := time.Second; second < time.Minute; second += 2 * time.Second {
				for _, comes := range []time.Duration{4 * time.Second, 29 * time.Second} {
					w, one, two, waiting := callAt(t, second, 2, func(s *Settings) { s.Skew, s.RollingMinute = skew, rolling })
					other := w.outcome(two, w.newcomer(), Wait)
					w.pass(comes)
					w.outcome(two, w.newcomer(), Wait)
					if called := taken(one); len(called) != 0 {
						t.Fatalf("called at %v with clocks that differ by %v, rolling %v: after %v another visitor is called", second, skew, rolling, comes)
					}
					if d := w.visit(one, waiting[0]); d.Outcome != Pass {
						t.Fatalf("called at %v with clocks that differ by %v, rolling %v: after %v the visitor gets %v", second, skew, rolling, comes, d.Outcome)
					}
					w.outcome(two, other, Wait)
					first, last := one.settings.chargeableMinutes(w.now)
					for m, l := range one.minutes {
						if want := m >= first && m <= last; m >= first && l.Charged > 0 != want {
							t.Errorf("called at %v: %d charged in minute %+d", second, l.Charged, m-MinuteOf(w.now))
						}
					}
					if n := one.Active(w.now) + two.Active(w.now); n != 2 {
						t.Errorf("%d are active", n)
					}
				}
			}
		}
	}
}

// TestMinuteStartsWithReservations has another data centre report first in a minute: it gets no slot that is reserved for a visitor whom
// the first one has called in the minute before, whether that has been reported or not.
func TestMinuteStartsWithReservations(t *testing.T) {
	for _, rolling := range []bool{false, true} {
		for _, reported := range []bool{true, false} {
			w, one, two, v := calledLate(t, rolling)
			if reported {
				w.exchange(one)
			}
			w.now = MinuteOf(w.now).end().Add(time.Second)
			for range 3 {
				if w.exchange(two); len(taken(two)) != 0 {
					t.Fatalf("rolling %v, reported %v: another visitor is called with the slot of the first", rolling, reported)
				}
			}
			w.outcome(one, v, Pass)
			if l := one.minutes[MinuteOf(w.now)]; l.Charged != 1 || l.granted != 1 {
				t.Errorf("charged %d of %d", l.Charged, l.granted)
			}
			if w.pass(20 * time.Second); len(taken(two)) != 0 {
				t.Error("another visitor is called in the same minute")
			}
		}
	}
}

// TestReservationIsNotGrantedAgain has no grant left for a visitor who was called in the minute before: the visitor waits on, as the first
// in line.
func TestReservationIsNotGrantedAgain(t *testing.T) {
	w, one, two, v := calledLate(t, false)
	w.global.reporters[reporterID{"two", 1}].Granted[MinuteOf(w.now)+1] = given{Total: 1}
	w.now = MinuteOf(w.now).end().Add(time.Second)
	active := one.Active(w.now)
	v = w.outcome(one, v, Wait)
	if n := one.Active(w.now); n != active-1 {
		t.Errorf("%d are active, %d before", n, active)
	}
	if l := one.minutes[MinuteOf(w.now)]; l.Charged != 0 {
		t.Errorf("charged %d", l.Charged)
	}
	if v, standing := one.OpenStream(w.now, v, time.Hour); standing != InLine || v.First() {
		t.Errorf("standing %d", standing)
	}
	w.exchange(two)
	taken(two)
	w.pass(MinuteOf(w.now).end().Add(time.Second).Sub(w.now))
	if called := taken(one); !slices.Equal(called, []TicketID{v.ID}) {
		t.Errorf("called in the next minute: %v", called)
	}
}

// calledLate returns a room for one new visitor a minute, whose first data centre calls the visitor v at the 50th second. Another visitor
// waits at the second one.
func calledLate(t *testing.T, rolling bool) (w *world, one, two *DataCentre, v Ticket) {
	t.Helper()
	w = newWorld(t, settings(t, 10, 1, func(s *Settings) { s.RollingMinute = rolling }), "one", "two")
	one, two = w.sites[0], w.sites[1]
	one.StartJournal()
	w.fill(one, 1)
	v = w.streaming(one, 1)[0]
	w.streaming(two, 1)
	open := w.settings
	closed := open
	closed.QueueAll = true
	w.configure(closed)
	w.pass(MinuteOf(w.now).end().Add(50 * time.Second).Sub(w.now))
	w.configure(open)
	w.exchange(one)
	if called := taken(one); !slices.Equal(called, []TicketID{v.ID}) {
		t.Fatalf("called: %v", called)
	}
	return w, one, two, v
}

// TestReservationsEndWithTheProcess has a process that has called a visitor start again: nothing is charged to the next minute.
func TestReservationsEndWithTheProcess(t *testing.T) {
	w, one, _, _ := calledLate(t, false)
	if l := one.minutes[MinuteOf(w.now)+1]; l == nil || l.Charged != 1 {
		t.Fatalf("the reservation is not charged to the next minute: %+v", l)
	}
	w.kill(0, &book{}, time.Second)
	one = w.sites[0]
	if l := one.minutes[MinuteOf(w.now)+1]; l != nil && l.Charged != 0 {
		t.Errorf("%d charged to the next minute", l.Charged)
	}
	r := one.Report(w.now)
	one.AddAccount(&r, false)
	for _, g := range r.Account.Grants {
		if want := map[Minute]int{MinuteOf(w.now) - 1: 1, MinuteOf(w.now): 1}[g.Minute]; g.Total != want {
			t.Errorf("the account has a grant of %d for minute %+d, want %d", g.Total, g.Minute-MinuteOf(w.now), want)
		}
	}
}

// TestRevokeReservation has a ticket revoked for which a slot is reserved: its charges are free again.
func TestRevokeReservation(t *testing.T) {
	w, one, _, v := calledLate(t, false)
	one.Revoke(w.now, v.ID, true)
	for m, l := range one.minutes {
		if m >= MinuteOf(w.now) && l.Charged != 0 {
			t.Errorf("%d charged in minute %+d", l.Charged, m-MinuteOf(w.now))
		}
	}
}

// TestRedeemAtTheEndOfTheMinute has a visitor come to another data centre shortly before the end of a minute, when that would have too little
// time to let it in: it gets its session when the next minute has begun and its slot was granted again.
func TestRedeemAtTheEndOfTheMinute(t *testing.T) {
	w, one, two, v := calledLate(t, false)
	end := MinuteOf(w.now).end()
	for _, at := range []time.Duration{-redeemMargin + 1, -1, time.Second} {
		if session, ok := one.Redeem(end.Add(at), v); ok || !session.Waiting() {
			t.Errorf("%v after the end of the minute: %+v, %v", at, session, ok)
		}
	}
	w.now = end.Add(time.Second)
	w.exchange(one)
	session, ok := one.Redeem(w.now, v)
	if !ok || session.Waiting() {
		t.Fatalf("in the next minute: %+v, %v", session, ok)
	}
	if d, ok := two.PassRedeemed(w.now, session); !ok || d.Outcome != Pass {
		t.Errorf("%+v", d)
	}
}
