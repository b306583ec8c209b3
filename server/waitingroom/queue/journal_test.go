package queue

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// A book is the journal of a data centre as a store has it.
type book struct {
	rows map[TicketID][]byte
	head []byte
}

func (b *book) write(d *DataCentre) {
	rows, head := d.TakeChanges()
	if b.rows == nil {
		b.rows = map[TicketID][]byte{}
	}
	for _, c := range rows {
		if c.Row == nil {
			delete(b.rows, c.ID)
		} else {
			b.rows[c.ID] = c.Row
		}
	}
	if head != nil {
		b.head = head
	}
}

func (b *book) resume(d *DataCentre, s Settings, now time.Time) (*DataCentre, error) {
	next, err := ContinueDataCentre(d.name, b.head, maps.All(b.rows), s, 99, now)
	if err == nil {
		b.write(next)
	}
	return next, err
}

// kill ends a data centre of the world at any moment, and has it continue after a pause.
func (w *world) kill(i int, b *book, pause time.Duration) {
	w.t.Helper()
	b.write(w.sites[i])
	w.now = w.now.Add(pause)
	var err error
	if w.sites[i], err = b.resume(w.sites[i], w.settings, w.now); err != nil {
		w.t.Fatal(err)
	}
}

// TestKilled has a room of ten with eight inside, and a new process: the eight stay
// in, two more come in, and no third. A slot that comes free is free at once.
func TestKilled(t *testing.T) {
	for _, pause := range []time.Duration{0, 5 * time.Second, 2 * time.Minute} {
		w := newWorld(t, settings(t, 10, 10), "one")
		w.sites[0].StartJournal()
		var b book
		inside := w.fill(w.sites[0], 8)
		for range 3 {
			w.kill(0, &b, pause)
			for i, v := range inside {
				inside[i] = w.outcome(w.sites[0], v, Pass)
			}
			w.pass(time.Minute)
			for i, v := range inside {
				inside[i] = w.outcome(w.sites[0], v, Pass)
			}
		}
		w.fill(w.sites[0], 2)
		w.outcome(w.sites[0], w.newcomer(), Wait)
		if n := w.global.Room(w.now).Active; n != 10 {
			t.Errorf("after %v: %d are counted, want 10", pause, n)
		}
	}
}

// TestKilledFull has a full room killed: the first new visitor enters as soon as a session is
// over, and no earlier.
func TestKilledFull(t *testing.T) {
	s := settings(t, 5, 5, func(s *Settings) { s.SessionDuration = time.Minute })
	w := newWorld(t, s, "one")
	w.sites[0].StartJournal()
	var b book
	inside := w.fill(w.sites[0], 5)
	w.kill(0, &b, time.Second)
	ends := inside[0].Ends
	for w.now.Before(ends.Add(-time.Second)) {
		w.outcome(w.sites[0], w.newcomer(), Wait)
		w.pass(10 * time.Second)
	}
	w.pass(ends.Sub(w.now) + 2*time.Minute) // all who waited have left
	w.fill(w.sites[0], 5)
	w.outcome(w.sites[0], w.newcomer(), Wait)
}

// TestKilledAtOnce has nobody but a new visitor after the sessions of a killed room are over.
func TestKilledAtOnce(t *testing.T) {
	s := settings(t, 5, 5, func(s *Settings) { s.SessionDuration = time.Minute })
	w := newWorld(t, s, "one")
	w.sites[0].StartJournal()
	var b book
	inside := w.fill(w.sites[0], 5)
	w.kill(0, &b, time.Second)
	w.pass(inside[0].Ends.Sub(w.now) - time.Millisecond)
	w.outcome(w.sites[0], w.newcomer(), Wait)
	w = newWorld(t, s, "one")
	w.sites[0].StartJournal()
	b = book{}
	inside = w.fill(w.sites[0], 5)
	w.kill(0, &b, time.Second)
	w.pass(inside[0].Ends.Sub(w.now) + 2*time.Second)
	w.fill(w.sites[0], 5)
}

// TestKilledQueue has the visitors who wait come back after a kill: nobody overtakes them.
func TestKilledQueue(t *testing.T) {
	s := settings(t, 2, 2, func(s *Settings) { s.SessionDuration = time.Minute })
	w := newWorld(t, s, "one")
	w.sites[0].StartJournal()
	var b book
	w.fill(w.sites[0], 2)
	w.pass(45 * time.Second)
	var line []Ticket
	for range 3 {
		line = append(line, w.outcome(w.sites[0], w.newcomer(), Wait))
	}
	w.pass(24 * time.Second)
	for i, v := range line {
		line[i] = w.outcome(w.sites[0], v, Wait)
	}
	young := w.outcome(w.sites[0], w.newcomer(), Wait)
	w.pass(10 * time.Second)
	w.kill(0, &b, 4*time.Second)
	w.exchange(w.sites[0])
	if n := w.sites[0].waiting; n != 4 {
		t.Fatalf("%d wait, want 4", n)
	}
	for range 3 { // new visitors do not overtake, and add to the line
		w.outcome(w.sites[0], w.newcomer(), Wait)
	}
	w.pass(young.nextCheckIn().Sub(w.now) + time.Second)
	w.outcome(w.sites[0], young, Wait)
	for _, v := range line {
		w.outcome(w.sites[0], v, Wait)
	}
	if n := w.sites[0].waiting; n != 7 {
		t.Errorf("%d wait, want 7", n)
	}
	w.pass(40 * time.Second)
	if n := w.sites[0].waiting; n != 0 {
		t.Errorf("%d wait when all have left", n)
	}
}

// TestContinue compares a data centre with one that continues from its journal, with tickets
// of every kind.
func TestContinue(t *testing.T) {
	s := settings(t, 6, 6, func(s *Settings) { s.SessionDuration = time.Minute })
	w := newWorld(t, s, "one", "two")
	w.sites[0].StartJournal()
	d := w.sites[0]
	var b book
	w.fill(d, 2)
	w.pass(3 * time.Minute) // these two are over
	inside := w.fill(d, 4)
	b.write(d)
	w.outcome(w.sites[1], w.newcomer(), Pass)
	moved := w.outcome(w.sites[1], w.newcomer(), Pass)
	w.pass(time.Minute)
	w.outcome(d, moved, Pass) // adopted
	for range 3 {
		w.outcome(d, w.newcomer(), Wait)
	}
	w.exchange(d)
	d.Revoke(w.now, inside[0].ID, false)
	d.Revoke(w.now, inside[1].ID, true)
	kinds := map[kind]bool{}
	for _, r := range d.rows {
		kinds[r.kind] = true
	}
	if len(kinds) != 4 {
		t.Fatalf("the tickets are of the kinds %v", kinds)
	}
	b.write(d)
	restored, err := b.resume(d, s, w.now)
	if err != nil {
		t.Fatal(err)
	}
	for now := w.now; now.Before(w.now.Add(10 * time.Minute)); now = now.Add(7 * time.Second) {
		a, r := d.Report(now), restored.Report(now)
		if !a.At.Equal(r.At) || a.Active != r.Active || a.Seq >= r.Seq || a.Incarnation != r.Incarnation || !a.Started.Equal(r.Started) || !slices.Equal(a.Minutes, r.Minutes) {
			t.Fatalf("at %v:\n%+v\n%+v", now, a, r)
		}
		if now.Equal(w.now) && !slices.Equal(sumBuckets(a.Waiting), sumBuckets(r.Waiting)) {
			t.Fatalf("%v wait, then %v", a.Waiting, r.Waiting)
		}
		for id, row := range d.rows {
			if other := restored.rows[id]; row.kind != waiting && (other.kind != row.kind || other.revoked != row.revoked) && row.kind != spent {
				t.Fatalf("at %v:\n%+v\n%+v", now, row, other)
			}
		}
	}
	b.write(restored)
	if len(restored.rows) != 0 || len(b.rows) != 0 {
		t.Errorf("%d tickets are never forgotten, %d in the journal", len(restored.rows), len(b.rows))
	}
	bad := []string{"", "{", "\x07" + string(b.head[1:]), string(b.head) + "\x00"}
	for n := range b.head {
		bad = append(bad, string(b.head[:n]))
	}
	for _, bad := range bad {
		if _, err := ContinueDataCentre("one", []byte(bad), maps.All(b.rows), s, 7, w.now); err == nil {
			t.Errorf("%q: continued", bad)
		}
	}
	if _, err := ContinueDataCentre("two", b.head, maps.All(b.rows), s, 7, w.now); err == nil {
		t.Error("the journal of another data centre: continued")
	}
	if _, err := ContinueDataCentre("one", b.head, maps.All(b.rows), s, 7, w.now.Add(-365*24*time.Hour)); err == nil {
		t.Error("a journal from a clock that was a year ahead: continued")
	}
	for _, row := range []string{"", "\x01", "\x01\x09\x00\x00\x00\x00\x00"} {
		if _, err := ContinueDataCentre("one", b.head, maps.All(map[TicketID][]byte{testID(1): []byte(row)}), s, 7, w.now); err == nil {
			t.Errorf("a row %q: continued", row)
		}
	}
}
