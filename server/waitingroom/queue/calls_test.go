package queue

import (
	"slices"
	"testing"
	"time"
)

// streaming has n visitors wait with event streams, 300 ms apart.
func (w *world) streaming(d *DataCentre, n int) (waiting []Ticket) {
	w.t.Helper()
	for range n {
		w.now = w.now.Add(300 * time.Millisecond)
		v := w.outcome(d, w.newcomer(), Wait)
		v, standing := d.OpenStream(w.now, v, time.Hour)
		if standing != InLine {
			w.t.Fatal("a visitor who waits may not hold an event stream")
		}
		waiting = append(waiting, v)
	}
	return waiting
}

// taken returns the tickets that were called.
func taken(d *DataCentre) (ids []TicketID) {
	for _, c := range d.TakeCalls() {
		ids = append(ids, c.ID)
	}
	return ids
}

// TestStreamsAreCalledInOrder has slots become free while visitors hold event streams: they are called in their order, and each comes in,
// while a new visitor waits.
func TestStreamsAreCalledInOrder(t *testing.T) {
	w := newWorld(t, settings(t, 10, 3, func(s *Settings) { s.SessionDuration = 5 * time.Minute }), "one")
	d := w.sites[0]
	w.fill(d, 3)
	waiting := w.streaming(d, 7)
	if called := taken(d); len(called) != 0 {
		t.Fatalf("%d are called to a room without slots", len(called))
	}
	var order []TicketID
	for range 3 {
		w.pass(MinuteOf(w.now).end().Add(2 * time.Second).Sub(w.now))
		called := taken(d)
		if len(called) > 3 {
			t.Fatalf("%d are called in a minute", len(called))
		}
		active := d.Active(w.now)
		w.outcome(d, w.newcomer(), Wait)
		for _, id := range called {
			v := waiting[slices.IndexFunc(waiting, func(v Ticket) bool { return v.ID == id })]
			w.outcome(d, v, Pass)
		}
		if n := d.Active(w.now); n != active {
			t.Errorf("%d slots count before those who were called come, %d afterwards", active, n)
		}
		order = append(order, called...)
	}
	for i, v := range waiting {
		if i >= len(order) || order[i] != v.ID {
			t.Fatalf("visitor %d of %d is not called as number %d", i, len(waiting), i)
		}
	}
}

// TestCalledAndAbsent has a visitor not come who was called: the slot goes to the next one in the same minute, without another
// charge.
func TestCalledAndAbsent(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	waiting := w.streaming(d, 2)
	w.pass(MinuteOf(w.now).end().Add(time.Second).Sub(w.now))
	if called := taken(d); !slices.Equal(called, []TicketID{waiting[0].ID}) {
		t.Fatalf("called: %v", called)
	}
	w.pass(CallDuration + time.Second)
	if called := taken(d); !slices.Equal(called, []TicketID{waiting[1].ID}) {
		t.Fatalf("after the first one did not come: %v", called)
	}
	w.outcome(d, waiting[0], Wait)
	w.outcome(d, waiting[1], Pass)
	if l := d.minutes[MinuteOf(w.now)]; l.Charged != 1 || l.Admitted != 1 {
		t.Errorf("charged %d, admitted %d", l.Charged, l.Admitted)
	}
	w.pass(time.Minute) // the one who was away has come back, and is next
	if called := taken(d); !slices.Equal(called, []TicketID{waiting[0].ID}) {
		t.Errorf("in the next minute: %v", called)
	}
}

// TestCalledOnlyTwice holds that a client that discards its ticket, or makes no second request, gets no reservation.
func TestCalledOnlyTwice(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	w.pass(50*time.Second - time.Duration(w.now.Second())*time.Second)
	for range 20 {
		w.outcome(d, w.newcomer(), Wait)
	}
	last := w.streaming(d, 1)[0]
	w.pass(MinuteOf(w.now).end().Add(time.Second).Sub(w.now))
	if called := taken(d); !slices.Equal(called, []TicketID{last.ID}) {
		t.Errorf("called: %v", called)
	}
	if _, standing := d.OpenStream(w.now, w.newcomer(), time.Hour); standing != Polls {
		t.Error("a client without a ticket holds an event stream")
	}
}

// TestStreamCloses has visitors leave: the room notices, and calls others.
func TestStreamCloses(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	waiting := w.streaming(d, 2)
	if e, ok := d.EstimateOf(waiting[1].ID); !ok || e.Position != 2 {
		t.Errorf("the second one: %+v", e)
	}
	d.CloseStream(w.now, waiting[0].ID)
	w.pass(d.settings.longestRefresh() + absence + 9*time.Second)
	if n := d.Queued(w.now); n != 1 {
		t.Errorf("%d wait after one has left", n)
	}
}

// TestCalledWhileAllQueue has a room begin to queue everyone after a visitor was called: the visitor polls, because the page would
// show that it waits, and open a stream again at once.
func TestCalledWhileAllQueue(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	first := w.streaming(d, 1)[0]
	w.pass(MinuteOf(w.now).end().Add(time.Second).Sub(w.now))
	if called := taken(d); len(called) != 1 {
		t.Fatalf("called: %v", called)
	}
	open := d.settings
	closed := open
	closed.QueueAll = true
	w.configure(closed)
	first = w.outcome(d, first, Wait)
	if _, standing := d.OpenStream(w.now, first, time.Hour); standing != Polls {
		t.Errorf("standing %d", standing)
	}
	w.configure(open)
	w.outcome(d, first, Pass)
}

// TestRandomReentry has a visitor leave a random room and come back again and again: its chance is that of any other, and nothing of
// it stays in memory.
func TestRandomReentry(t *testing.T) {
	const others, rounds = 9, 400
	won := 0
	for round := range rounds {
		w := newWorld(t, settings(t, 100, 1, func(s *Settings) { s.Method = Random }), "one")
		d := NewDataCentre("one", 1, w.settings, uint64(round), w.now)
		w.sites[0] = d
		w.fill(d, 1)
		all := w.streaming(d, 1+others)
		for range 20 {
			r := d.rows[all[0].ID]
			d.remove(&r)
			delete(d.rows, all[0].ID)
			d.OpenStream(w.now, all[0], time.Hour)
		}
		w.pass(MinuteOf(w.now).end().Add(time.Second).Sub(w.now))
		if called := taken(d); len(called) == 1 && called[0] == all[0].ID {
			won++
		}
	}
	if won > rounds/4 { // a tenth is fair: 40, with a standard deviation of 6
		t.Errorf("the visitor was called in %d of %d rounds", won, rounds)
	}
}

// TestReentryMemory has a visitor open and close event streams, and leave and come back: the entries of it do not add up.
func TestReentryMemory(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1), "one")
	d := w.sites[0]
	w.fill(d, 1)
	v := w.streaming(d, 1)[0]
	for range 1000 {
		d.CloseStream(w.now, v.ID)
		d.OpenStream(w.now, v, 4*time.Minute)
	}
	for range 1000 {
		r := d.rows[v.ID]
		d.remove(&r)
		delete(d.rows, v.ID)
		d.OpenStream(w.now, v, 4*time.Minute)
	}
	watched, entries := 0, 0
	for _, ids := range d.wheel {
		watched += len(ids)
	}
	for _, b := range d.ticks {
		for _, list := range b.entries {
			entries += len(list)
		}
	}
	if entries > 2+2*pruneAbove {
		t.Errorf("%d entries of one visitor", entries)
	}
	if watched > 1010 { // one for each time that it was forgotten
		t.Errorf("the wheel has the visitor %d times", watched)
	}
	d.CloseStream(w.now, v.ID)
	w.pass(d.settings.longestRefresh() + absence + 9*time.Second)
	if n := d.Queued(w.now); n != 0 {
		t.Errorf("%d wait after the visitor has left", n)
	}
}

// TestRedeem has a visitor come to another data centre than the one that has called it: it passes there in the minutes for which the slot
// is charged, and not later; and a reservation that is about to lapse is not redeemed.
func TestRedeem(t *testing.T) {
	w, one, two, v := calledElsewhere(t)
	if !two.MayBeCalledElsewhere(&v) || one.MayBeCalledElsewhere(&v) {
		t.Error("it is not known where the visitor may be called")
	}
	if other, ok := two.Redeem(w.now, v); !ok || !other.Waiting() {
		t.Error("a data centre admits a visitor whom it has not called")
	}
	session, _ := one.Redeem(w.now, v)
	again, _ := one.Redeem(w.now, v)
	if session.Waiting() || again.AcceptedAt != session.AcceptedAt {
		t.Fatalf("%+v, then %+v", session, again)
	}
	if d, ok := two.PassRedeemed(w.now, session); !ok || d.Outcome != Pass || !d.Changed {
		t.Errorf("%+v", d)
	}
	if l := one.minutes[MinuteOf(w.now)]; l.Charged != 1 || l.Admitted != 1 {
		t.Errorf("charged %d, admitted %d", l.Charged, l.Admitted)
	}
	if _, ok := two.PassRedeemed(MinuteOf(w.now).end().Add(-2*time.Second), session); ok {
		t.Error("the visitor enters when the minute may be over")
	}

	two.settings.QueueAll = true
	if _, ok := two.PassRedeemed(w.now, session); ok {
		t.Error("a visitor enters where all have to wait")
	}

	w, one, _, v = calledElsewhere(t)
	lapses := time.Unix(0, one.rows[v.ID].gone)
	if late, ok := one.Redeem(lapses.Add(time.Second-redeemMargin), v); !ok || !late.Waiting() {
		t.Error("a reservation is redeemed that is about to lapse")
	}
	if n := one.Active(w.now); n != 1+1 {
		t.Errorf("%d are active", n)
	}
}

// calledElsewhere returns a room for one new visitor a minute, with two data centres, of which the first has called the visitor v.
func calledElsewhere(t *testing.T, change ...func(*Settings)) (w *world, one, two *DataCentre, v Ticket) {
	t.Helper()
	w = newWorld(t, settings(t, 10, 1, append(change, func(s *Settings) { s.Skew = 2 * time.Second })...), "one", "two")
	one, two = w.sites[0], w.sites[1]
	one.StartJournal()
	w.fill(one, 1)
	v = w.streaming(one, 1)[0]
	for range 60 {
		if w.pass(2 * time.Second); len(taken(one)) == 1 {
			return w, one, two, v
		}
	}
	t.Fatal("the visitor is not called")
	return w, one, two, v
}

// TestRedeemedSessionIsLost has a session not arrive at the data centre to which the visitor has come. The visitor comes to the other one:
// in the minute of the session it enters at once, later it takes a slot of that minute, or waits while there is none.
func TestRedeemedSessionIsLost(t *testing.T) {
	w, one, _, v := calledElsewhere(t)
	if session, _ := one.Redeem(w.now, v); session.Waiting() {
		t.Fatal("the reservation is not redeemed")
	}
	w.outcome(one, v, Pass)

	for _, crash := range []bool{false, true} {
		w, one, _, v = calledElsewhere(t)
		one.Redeem(w.now, v)
		if crash {
			w.kill(0, &book{}, time.Second)
			one = w.sites[0]
		}
		w.pass(MinuteOf(w.now).end().Add(8 * time.Second).Sub(w.now))
		minute, active := MinuteOf(w.now), one.Active(w.now)
		w.outcome(one, v, Pass)
		if l := one.ledgerOf(minute); l.Charged != 1 || one.Active(w.now) != active {
			t.Errorf("crash %v: %d charged in the minute in which the visitor enters, %d active and %d before", crash, l.Charged, one.Active(w.now), active)
		}
		w.outcome(one, w.newcomer(), Wait)

		w, one, _, v = calledElsewhere(t)
		one.Redeem(w.now, v)
		w.pass(MinuteOf(w.now).end().Add(8 * time.Second).Sub(w.now))
		w.fill(one, 1)
		late := w.outcome(one, v, Wait)
		next := w.outcome(one, w.newcomer(), Wait)
		w.pass(MinuteOf(w.now).end().Add(8 * time.Second).Sub(w.now))
		w.outcome(one, next, Wait)
		w.outcome(one, late, Pass)
	}
}

// TestRedeemInAnyMinute has a limit hold for any 60 seconds. The other data centre may pass a redeemed session only for a moment, and the
// slot counts as used at the end of that.
func TestRedeemInAnyMinute(t *testing.T) {
	w, one, two, v := calledElsewhere(t, func(s *Settings) { s.RollingMinute = true })
	session, _ := one.Redeem(w.now, v)
	if at := sliceOf(MinuteOf(w.now), w.now.Add(redeemWithin)); one.ledgerOf(MinuteOf(w.now)).Slices[at] != 1 {
		t.Errorf("the slot counts in %v, want slice %d", one.ledgerOf(MinuteOf(w.now)).Slices, at)
	}
	if _, ok := two.PassRedeemed(w.now.Add(redeemWithin), session); ok {
		t.Error("a session passes at another time than the one that was charged")
	}
	w.now = w.now.Add(redeemWithin)
	w.outcome(one, v, Wait)
}
