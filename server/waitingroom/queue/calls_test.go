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

// TestCallsEndWithTheMinute has a reservation outlive its minute: it is charged again, and its visitor is the first.
func TestCallsEndWithTheMinute(t *testing.T) {
	w := newWorld(t, settings(t, 10, 1, func(s *Settings) { s.Skew = 2 * time.Second }), "one")
	d := w.sites[0]
	w.fill(d, 1)
	waiting := w.streaming(d, 2)
	w.pass(MinuteOf(w.now).end().Add(40 * time.Second).Sub(w.now))
	if called := taken(d); !slices.Equal(called, []TicketID{waiting[0].ID, waiting[1].ID}) {
		t.Fatalf("the first one does not come, so these are called: %v", called)
	}
	w.pass(MinuteOf(w.now).end().Add(5 * time.Second).Sub(w.now))
	if called := taken(d); !slices.Equal(called, []TicketID{waiting[1].ID}) {
		t.Errorf("in the next minute: %v", called)
	}
	for m, l := range d.minutes {
		if l.Charged > 1 {
			t.Errorf("minute %d: charged %d", m, l.Charged)
		}
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
