package queue

import (
	"slices"
	"testing"
	"time"
)

// TestBatch has slots become free by and by: they belong to one batch, until that or its minute is over.
func TestBatch(t *testing.T) {
	g, all := known(t, settings(t, 1000, 10), "one", "two")
	m := MinuteOf(g.now)
	all[0].Waiting, all[1].Waiting = []Bucket{{m - 1, 2, 0}, {m - 1, 6, 50}}, []Bucket{{m - 1, 3, 0}, {m, 9, 0}}
	first := Batch{g.now, 10, []Bucket{{m - 1, 5, 0}, {m - 1, 6, 50}}} // as many as may be admitted are next, at least
	if g.updateBatch(4); g.batch.Start != first.Start || g.batch.Slots != first.Slots || !slices.Equal(g.batch.Line, first.Line) {
		t.Errorf("%+v", g.batch)
	}
	g.queueing, g.settings.NewUsersPerMinute = m-1, 100
	all[0].Counts[m-1] = MinuteCounts{Minute: m - 1, Admitted: 7}
	all[0].Waiting = []Bucket{{m, 1, 0}}
	all[1].Granted[m] = given{Total: 12}
	g.now = g.now.Add(batchDuration - 1)
	if g.updateBatch(4); g.batch.Start != first.Start || g.batch.Slots != 16 || !slices.Equal(g.batch.Line, first.Line) {
		t.Errorf("when more slots become free: %+v", g.batch)
	}
	g.now, all[1].Granted[m] = g.now.Add(1), given{Total: 2}
	if g.updateBatch(0); g.batch.Start != g.now || g.batch.Slots != 7 || !slices.Equal(g.batch.Line, []Bucket{{m - 1, 3, 0}, {m, 10, 0}}) {
		t.Errorf("after it: %+v", g.batch)
	}
	turn := (m + 1).Time()
	g.settings.Skew, g.batch.Start, g.now = 5*time.Second, turn.Add(-time.Second), turn.Add(300*time.Millisecond)
	for range 2 {
		if g.updateBatch(0); !g.batch.Start.Equal(turn.Add(g.settings.Skew)) {
			t.Errorf("the batch of the next minute starts %v after its turn", g.batch.Start.Sub(turn))
		}
		g.now = g.now.Add(7 * time.Second)
	}
}

// TestLongLine has a data centre report buckets without visitors, and more buckets than a batch has.
func TestLongLine(t *testing.T) {
	g, all := known(t, settings(t, 10000, 10000), "one")
	for m := range Minute(longestLine + 1) {
		all[0].Waiting = append(all[0].Waiting, Bucket{m, 0, 0}, Bucket{m, 1, 10})
	}
	g.updateBatch(1)
	if line := g.batch.Line; len(line) != longestLine || line[longestLine-1] != (Bucket{longestLine - 1, 1, 10}) {
		t.Errorf("%d buckets, the last one %+v", len(line), line[len(line)-1])
	}
}

// TestCallTime has visitors of a batch called in their order, those of all data centres within callsWithin.
func TestCallTime(t *testing.T) {
	w := newWorld(t, settings(t, 1000, 1000), "one")
	d := w.sites[0]
	m, start := MinuteOf(w.now), w.now.Add(-time.Second)
	for _, c := range []struct {
		slots int
		at    place
		want  time.Duration // after the start
	}{
		{100, place{m - 2, 0}, time.Second}, // not before now
		{100, place{m - 1, 5}, 50 * callGap},
		{100, place{m - 1, 10}, 100 * callGap},
		{100, place{m - 1, 599}, 100 * callGap},
		{100, place{m, 0}, 100 * callGap},
		{60, place{m, 30}, 60 * callGap}, // if others do not come for whom there would be no slot
		{1000, place{m, 30}, 1000 * 5 * time.Millisecond},
	} {
		d.calls.batch = Batch{start, c.slots, []Bucket{{m - 1, 100, 0}, {m, 900, 20}}}
		if got := d.callTime(c.at).Sub(start); got != c.want {
			t.Errorf("%d slots: the visitor at %+v is called after %v, not %v", c.slots, c.at, got, c.want)
		}
	}
	d.settings.Method, d.calls.last = Random, w.now
	if got := d.callTime(place{m, 0}).Sub(w.now); got != 5*time.Millisecond {
		t.Errorf("at random the next one is called after %v", got)
	}
}

// TestSlotsOfTheAbsent has visitors from before a restart not come back, for whom slots were granted. In that minute no visitor has the slots
// before whom, in all data centres, as many wait as may be admitted.
func TestSlotsOfTheAbsent(t *testing.T) {
	w := newWorld(t, settings(t, 1000, 10), "one")
	d := w.sites[0]
	m := MinuteOf(w.now)
	d.calls.batch = Batch{w.now, 10, []Bucket{{m - 2, 6, 0}, {m - 1, 4, 0}, {m - 1, 3, 20}}}
	for _, c := range []struct {
		bucket Minute
		absent time.Time // until when
		want   bool
	}{{m - 1, w.now, false}, {m, w.now, true}, {m, w.now.Add(-time.Minute), false}} {
		if d.absentUntil = c.absent; d.isBeyondBatch(c.bucket) != c.want {
			t.Errorf("visitors of minute %d, after those before a restart were given up at %v: %t", c.bucket-m, c.absent.Sub(w.now), !c.want)
		}
	}
}

// TestFirstRequestsAfterTheAbsent has slots granted for visitors from before a restart who do not come back: no first request takes them
// while visitors wait who came before it, here and at other data centres.
func TestFirstRequestsAfterTheAbsent(t *testing.T) {
	w := newWorld(t, settings(t, 1000, 10), "one")
	d := w.sites[0]
	w.exchange(d)
	m := MinuteOf(w.now)
	d.leaseUntil, d.ledgerOf(m).granted, d.absentUntil = w.now.Add(time.Minute), 10, w.now
	d.calls.batch = Batch{w.now, 10, []Bucket{{m - 1, 10, 0}}}
	if got := d.Settle(w.now, w.newcomer()).Outcome; got != Wait {
		t.Errorf("a first request: %v", got)
	}
	d.absentUntil = w.now.Add(-time.Minute)
	if got := d.Settle(w.now, w.newcomer()).Outcome; got != Pass {
		t.Errorf("a first request in a later minute: %v", got)
	}
}

// TestReportedLine has the next visitors reported by the second in which they came.
func TestReportedLine(t *testing.T) {
	m := minuteOf(t, "15:54")
	all := newTickets(m.Time())
	for i, at := range []place{{m, 3}, {m, 9}, {m, 10}, {m, 599}, {m + 1, 25}, {m + 2, 7}} {
		all.enter(testID(uint64(i)), &row{place: at, back: i != 1})
	}
	all.expectReturns([]Bucket{{m - 1, 2, 0}, {m, 4, 0}}, m.end())
	for next, want := range map[int][]Bucket{
		0: {{m - 1, 2, 0}, {m, 8, 0}, {m + 1, 1, 0}, {m + 2, 1, 0}},
		9: {{m - 1, 2, 0}, {m, 6, 0}, {m, 1, 10}, {m, 1, 590}, {m + 1, 1, 20}, {m + 2, 1, 0}},
	} {
		if got := all.report(next); !slices.Equal(got, want) {
			t.Errorf("of %d the parts are reported: %v, want %v", next, got, want)
		}
	}
}
