package queue

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"
)

// restart has a data centre of the world continue from its snapshot, after a pause.
func (w *world) restart(i int, pause time.Duration) {
	w.t.Helper()
	data, err := w.sites[i].Snapshot()
	if err != nil {
		w.t.Fatal(err)
	}
	w.now = w.now.Add(pause)
	if w.sites[i], err = RestoreDataCentre(data, w.sites[i].name, w.settings, 99, w.now); err != nil {
		w.t.Fatal(err)
	}
}

// TestStopInOrder has a room of ten with eight inside, and a new process: the eight stay
// in, two more come in, and no third.
func TestStopInOrder(t *testing.T) {
	for _, pause := range []time.Duration{0, 5 * time.Second, 2 * time.Minute} {
		w := newWorld(t, settings(t, 10, 10), "one")
		inside := w.fill(w.sites[0], 8)
		w.restart(0, pause)
		for i, v := range inside {
			inside[i] = w.outcome(w.sites[0], v, Pass)
		}
		w.pass(time.Minute)
		for _, v := range inside {
			w.outcome(w.sites[0], v, Pass)
		}
		w.fill(w.sites[0], 2)
		w.outcome(w.sites[0], w.newcomer(), Wait)
		if n := w.global.Room(w.now).Active; n != 10 {
			t.Errorf("after %v: %d are counted, want 10", pause, n)
		}
	}
}

// TestDataCentreSnapshot compares a data centre with one that continues from its snapshot, with
// tickets of every kind.
func TestDataCentreSnapshot(t *testing.T) {
	s := settings(t, 6, 6, func(s *Settings) { s.SessionDuration = time.Minute })
	w := newWorld(t, s, "one", "two")
	d := w.sites[0]
	w.fill(d, 2)
	w.pass(3 * time.Minute) // these two are over
	inside := w.fill(d, 4)
	w.outcome(w.sites[1], w.newcomer(), Pass)
	moved := w.outcome(w.sites[1], w.newcomer(), Pass)
	w.pass(time.Minute)
	w.outcome(d, moved, Pass) // adopted
	for range 3 {
		w.outcome(d, w.newcomer(), Wait)
	}
	d.Revoke(w.now, inside[0].ID, false)
	d.Revoke(w.now, inside[1].ID, true)
	kinds := map[kind]bool{}
	for _, r := range d.rows {
		kinds[r.kind] = true
	}
	if len(kinds) != 4 {
		t.Fatalf("the tickets are of the kinds %v", kinds)
	}
	data, err := d.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	restored, err := RestoreDataCentre(data, "one", s, 7, w.now)
	if err != nil {
		t.Fatal(err)
	}
	for now := w.now; now.Before(w.now.Add(10 * time.Minute)); now = now.Add(7 * time.Second) {
		if a, b := d.Report(now), restored.Report(now); !a.At.Equal(b.At) || a.Active != b.Active || a.Seq != b.Seq || a.Incarnation != b.Incarnation ||
			!slices.Equal(a.Waiting, b.Waiting) || !slices.Equal(a.Minutes, b.Minutes) {
			t.Fatalf("at %v:\n%+v\n%+v", now, a, b)
		}
		if !maps.Equal(d.rows, restored.rows) {
			t.Fatalf("at %v:\n%+v\n%+v", now, d.rows, restored.rows)
		}
		if a, b := d.unused(true), restored.unused(true); a != b {
			t.Fatalf("at %v: %d slots, %d", now, a, b)
		}
		if !reflect.DeepEqual(d.room.Waiting, restored.room.Waiting) || d.room.Active != restored.room.Active {
			t.Fatalf("at %v: another room", now)
		}
	}
	if len(d.rows) != 0 {
		t.Errorf("%d tickets are never forgotten", len(d.rows))
	}
	bad := []string{"", "{", "\x02" + string(data[1:]), string(data) + "\x00"}
	for n := range data {
		bad = append(bad, string(data[:n]))
	}
	for _, bad := range bad {
		if _, err := RestoreDataCentre([]byte(bad), "one", s, 7, w.now); err == nil {
			t.Errorf("%q: restored", bad)
		}
	}
	if _, err := RestoreDataCentre(data, "two", s, 7, w.now); err == nil {
		t.Error("the state of another data centre: restored")
	}
	for n := range uint64(mostSaved + 1) {
		restored.rows[testID(n+1000)] = row{kind: waiting}
	}
	if _, err := restored.Snapshot(); !errors.Is(err, ErrTooMany) {
		t.Errorf("a snapshot of too many: %v", err)
	}
}
