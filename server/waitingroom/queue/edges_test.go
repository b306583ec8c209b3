package queue

import (
	"math"
	"testing"
	"time"
)

// These hold single conditions at their edges, where larger tests would notice a change only by luck: `make mutants` makes such changes.
// It leaves out what Go's coverage does not count, which is conditions of cases, and constants: those were changed by hand.
//
// It also makes some that no test can notice, because they change nothing that counts. Of those that live, these are that, by the code:
//
//   - Visit: one more or one fewer of mostWaiting (2^20) is remembered; it bounds memory.
//   - welcome: an incarnation equal to a known one never comes there, because Receive has found its reporter.
//   - give, with n < 0 for n <= 0, and grant, with own+drawn >= 0: they note a minute with no grants, which counts as none.
//   - grant, with anywhere >= 0: it gives the lesser of anywhere and what is wanted, which is 0 then.
//   - divideAmongWaiting, with total >= left: divideCapped gives each its need where the needs sum to the slots.
//   - divideAmongWaiting, with left >= 0: buckets after the last slot get none.
//   - Continue, with another seed: one is as good as the other.
//   - eachBucket, with Minute <= oldest: it is the same minute.
//   - Less, with <=: of two equal times each may be the first.
//   - WithDefaults, with CurveFactor <= 0: a zero has become 1 there.
//   - divide, with whole < 0, and divideCapped, with whole >= 0: where nothing is to be shared out, every part is 0.
//   - coverage, with left < 0: no bucket is empty, so none is covered where no slot is left.

func TestAdvanceForgets(t *testing.T) {
	w := newWorld(t, settings(t, 10, 10), "one")
	d, first := w.sites[0], MinuteOf(w.now)
	d.ledgerOf(first)
	for m := first + 1; m <= first+keptMinutes+3; m++ { // each step turns a minute
		d.ledgerOf(m)
		d.advance(m.Time())
		if has := d.minutes[first] != nil; has != (m <= first+keptMinutes) {
			t.Errorf("%d minutes later the counts are there: %v", m-first, has)
		}
	}
	if len(d.minutes) != keptMinutes+1 {
		t.Errorf("%d minutes are kept", len(d.minutes))
	}
}

// TestGuestAtFullLine has a guest come while as many visitors wait as are remembered: it is refused, as in any other line.
func TestGuestAtFullLine(t *testing.T) {
	w := newWorld(t, settings(t, 5, 5), "one")
	d := w.sites[0]
	d.waiting = mostWaiting
	if got := d.VisitGuest(w.now, testID(7)); got.Outcome != Refuse {
		t.Errorf("a guest at a full line gets %v", got.Outcome)
	}
}

func TestGuestComesAgain(t *testing.T) {
	w := newWorld(t, settings(t, 5, 5, func(s *Settings) { s.SessionDuration = time.Minute }), "one")
	d, id := w.sites[0], testID(7)
	pass := func() {
		t.Helper()
		if got := d.VisitGuest(w.now, id).Outcome; got == Draw {
			w.exchange(d)
			if got = d.SettleGuest(w.now, id).Outcome; got != Pass {
				t.Fatalf("a guest gets %v", got)
			}
		} else if got != Pass {
			t.Fatalf("a guest gets %v", got)
		}
		if n := d.Active(w.now); n != 1 {
			t.Fatalf("a guest is %d users", n)
		}
	}
	pass()
	pass()
	w.pass(5 * time.Minute)
	if n := d.Active(w.now); n != 0 {
		t.Fatalf("%d are in after the session", n)
	}
	pass()
}

// A ticket that waits here comes back with a session from elsewhere: it waits no more.
func TestSessionOfAWaitingTicket(t *testing.T) {
	w, d := full(t, FIFO)
	w.now = MinuteOf(w.now).end().Add(-5 * time.Second)
	w.exchange(d)
	v := w.outcome(d, w.newcomer(), Wait)
	v.AcceptedAt, v.LastCheckIn, v.Ends = w.now, w.now, w.now.Add(2*time.Minute)
	w.now = w.now.Add(10 * time.Second)
	w.outcome(d, v, Pass)
	if n := d.Queued(w.now); n != 0 {
		t.Errorf("%d wait", n)
	}
}

func TestLongestSession(t *testing.T) {
	for allocator, want := range map[Allocator]time.Duration{Counter: time.Minute, Even: maxSession, Adaptive: maxSession} {
		w := newWorld(t, settings(t, 5, 5, func(s *Settings) { s.Allocator = allocator }), "one")
		d := w.sites[0]
		w.exchange(d)
		d.leaseDuration = time.Minute
		if got := d.longestSession(); got != want {
			t.Errorf("%v promises %v and not %v", allocator, got, want)
		}
	}
}

func TestMayDraw(t *testing.T) {
	w := newWorld(t, settings(t, 5, 5), "one")
	d := w.sites[0]
	w.exchange(d)
	d.waiting, d.anywhere = 1, 0
	if d.mayDraw(false) {
		t.Error("it draws where there is nothing to draw")
	}
	if d.anywhere = 1; !d.mayDraw(false) {
		t.Error("it does not draw")
	}
}

func TestEstimateIsKnown(t *testing.T) {
	w := newWorld(t, settings(t, 5, 5), "one")
	d := w.sites[0]
	ticket := Ticket{ID: testID(1), Since: w.now}
	d.room = Room{Waiting: []Bucket{{MinuteOf(w.now) - 1, 6, 0}}}
	if e := d.estimate(&ticket); e.Known || e.Ahead != 6 || e.Minutes != 0 {
		t.Errorf("%+v", e)
	}
	d.room.PerMinute = 2
	if e := d.estimate(&ticket); !e.Known || e.Minutes != 3 || e.Position != 7 {
		t.Errorf("%+v", e)
	}
}

func TestNextReportAtTheTurn(t *testing.T) {
	w := newWorld(t, settings(t, 5, 5, func(s *Settings) { s.Skew = 5 * time.Second }), "one")
	d, turn := w.sites[0], MinuteOf(w.now).end()
	d.reportEvery = 10 * time.Second
	for after, want := range map[time.Duration]time.Duration{2 * time.Second: 5 * time.Second, 4 * time.Second: 5 * time.Second, 5 * time.Second: 15 * time.Second, -3 * time.Second: 5 * time.Second} {
		if got := d.NextReport(turn.Add(after)); !got.Equal(turn.Add(want)) {
			t.Errorf("after a report %v after the turn the next one is %v after it, not %v", after, got.Sub(turn), want)
		}
	}
	d.Report(w.now)                                                                 // to which no response comes
	for _, every := range []time.Duration{soonReport, usualReport, slowestReport} { // that the last response has named
		d.reportEvery = every
		if got := d.NextReport(turn.Add(20 * time.Second)); !got.Equal(turn.Add(21 * time.Second)) {
			t.Errorf("without a response the next report is %v later", got.Sub(turn.Add(20*time.Second)))
		}
	}
}

func TestApply(t *testing.T) {
	for name, c := range map[string]struct {
		anywhere, waiting, elsewhere, charged, total int
	}{
		"none waits":                  {0, 0, 0, 0, 3},
		"one waits here":              {0, 1, 0, 0, 3},
		"one waits elsewhere":         {0, 0, 1, 0, 3},
		"some were used before":       {0, 1, 0, 2, 3},
		"none is granted":             {0, 1, 1, 0, 0},
		"more were used than granted": {0, 1, 1, 4, 3},
	} {
		w := newWorld(t, settings(t, 9, 9), "one")
		d := w.sites[0]
		m := MinuteOf(w.now)
		d.waiting = c.waiting
		d.ledgerOf(m).Charged = c.charged
		st := State{DataCentre: "one", Incarnation: 1, Anywhere: c.anywhere, Grants: []Grant{{m, c.total}}, ReportEvery: time.Second}
		if c.elsewhere > 0 {
			st.Room.Waiting = []Bucket{{m, c.elsewhere, 0}}
		}
		d.Apply(w.now, st)
		if l := d.minutes[m]; l.granted != c.total {
			t.Errorf("%s: %d grants, not %d", name, l.granted, c.total)
		}
		// The answer to a report that was sent twice is as new as the first one.
		st.Room.PerMinute = 4
		d.Apply(w.now, st)
		if d.room.PerMinute != 4 {
			t.Errorf("%s: the second answer does not count", name)
		}
	}
}

func TestHoldsExactly(t *testing.T) {
	s := settings(t, 9, 9, func(s *Settings) { s.Skew, s.SessionDuration, s.Lease = 5*time.Second, time.Minute, 3*time.Minute })
	m := minuteOf(t, "15:54")
	g := RecoverGlobal(s, []string{"one"}, m.Time().Add(52*time.Second))
	if want := (m + 2).Time().Add(10 * time.Second); !g.closed.Equal(want) {
		t.Errorf("reports count from %v on, not %v", g.closed, want)
	}
	if want := m.Time().Add(52*time.Second + 5*time.Minute + 15*time.Second); !g.holdUntil.Equal(want) {
		t.Errorf("it holds until %v, not %v", g.holdUntil, want)
	}
	r := &reporter{Report: Report{At: g.closed, Started: m.Time()}}
	g.now = m.Time().Add(2*time.Minute + 10*time.Second)
	if !g.isComplete(r) {
		t.Error("what an earlier life promised is over")
	}
	if g.now = g.now.Add(-1); g.isComplete(r) {
		t.Error("what an earlier life promised is not over")
	}
}

func TestBoundsOfReports(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9))
	buckets := func(n, first int) []Bucket {
		return append(make([]Bucket, n-1), Bucket{Waiting: first})
	}
	minutes := func(n, apart int) (all []MinuteCounts) {
		for i := range n {
			all = append(all, MinuteCounts{Minute: Minute(i * apart)})
		}
		return all
	}
	for name, c := range map[string]struct {
		r  Report
		ok bool
	}{
		"most active":      {Report{Active: mostCount}, true},
		"more active":      {Report{Active: mostCount + 1}, false},
		"fewer than none":  {Report{Want: -1}, false},
		"most buckets":     {Report{Waiting: buckets(mostBuckets, mostCount)}, true},
		"more buckets":     {Report{Waiting: buckets(mostBuckets+1, 1)}, false},
		"more waiting":     {Report{Waiting: buckets(1, mostCount+1)}, false},
		"most minutes":     {Report{Minutes: minutes(mostMinutes, 1)}, true},
		"more words":       {Report{Minutes: minutes(mostMinutes+1, 0)}, false},
		"most grants":      {Report{Account: &Account{Grants: make([]Grant, mostMinutes)}}, true},
		"more grants":      {Report{Account: &Account{Grants: make([]Grant, mostMinutes+1)}}, false},
		"too many minutes": {Report{Minutes: minutes(mostMinutes, 1), Account: &Account{Grants: []Grant{{Minute: 1000}}}}, false},
	} {
		if ok := w.global.isWithinBounds(nil, &c.r); ok != c.ok {
			t.Errorf("%s: %v", name, ok)
		}
	}
}

// known has a global object with reporters that were heard just now.
func known(t *testing.T, s Settings, names ...string) (*Global, []*reporter) {
	t.Helper()
	g := NewGlobal(s, minuteOf(t, "15:54").Time().Add(20*time.Second))
	var all []*reporter
	for _, name := range names {
		r := &reporter{Granted: map[Minute]given{}, Counts: map[Minute]MinuteCounts{}, Heard: g.now, Horizon: g.now.Add(time.Hour), Report: Report{DataCentre: name, At: g.now}}
		g.insertReporter(reporterID{name, 1}, r)
		all = append(all, r)
	}
	return g, all
}

func TestQueueingAndAverage(t *testing.T) {
	g, all := known(t, settings(t, 100, 100), "one", "two")
	m := MinuteOf(g.now)
	for _, r := range all {
		for k := range Minute(9) {
			r.Counts[m-k] = MinuteCounts{Minute: m - k, Admitted: 1 << k} // 1 in this minute
		}
	}
	g.updateQueueStart()
	if room := g.sumReports(); g.queueing != 0 || room.PerMinute != 0 || room.Admitted != 2 {
		t.Errorf("while none waits: since %v, %+v", g.queueing, room)
	}
	all[1].Waiting = []Bucket{{m, 1, 0}}
	g.updateQueueStart()
	if room := g.sumReports(); g.queueing != m+1 || room.PerMinute != 0 {
		t.Errorf("when the queue begins: since %v, %+v", g.queueing, room)
	}
	for of, want := range map[Minute]float64{0: 0, 1: 2 * 2, 2: 2 * (2 + 4) / 2., 5: 2 * (2 + 4 + 8 + 16 + 32) / 5., 7: 2 * (2 + 4 + 8 + 16 + 32) / 5.} {
		g.queueing = m - of
		g.updateQueueStart()
		if room := g.sumReports(); g.queueing != m-of || room.PerMinute != want {
			t.Errorf("%d minutes later: since %v, %v a minute, not %v", of, g.queueing, room.PerMinute, want)
		}
	}
	g.now = g.now.Add(silent - 1)
	if g.updateQueueStart(); g.queueing == 0 {
		t.Error("a data centre counts as silent too early")
	}
	g.now = g.now.Add(1)
	if g.updateQueueStart(); g.queueing != 0 || g.isPresent(all[1]) {
		t.Error("visitors of a silent data centre wait")
	}
}

func TestReportEvery(t *testing.T) {
	g, _ := known(t, settings(t, 9, 9))
	for n, want := range map[int]time.Duration{0: 2 * time.Second, 40: 2 * time.Second, 60: 3 * time.Second, 100: 5 * time.Second, 200: 10 * time.Second, 1000: 10 * time.Second} {
		g.order = make([]reporterID, n)
		if got := g.reportEvery(); got != want {
			t.Errorf("%d data centres report every %v, not %v", n, got, want)
		}
	}
	g, all := known(t, settings(t, 9, 9), "one", "two")
	turn := MinuteOf(g.now).Time()
	all[0].At, all[1].At = turn.Add(-time.Second), turn
	for _, c := range []struct {
		queueing Minute
		after    time.Duration
		want     time.Duration
	}{{0, time.Second, 2 * time.Second}, {1, time.Second, time.Second / 4}, {1, 2 * time.Second, 2 * time.Second}} {
		if g.queueing, g.now = c.queueing, turn.Add(c.after); g.reportEvery() != c.want {
			t.Errorf("%v after the turn, while another has yet to report, queueing since %v: every %v, not %v", c.after, c.queueing, g.reportEvery(), c.want)
		}
	}
	g.queueing, g.now, all[0].At = 1, turn.Add(time.Second), turn
	if got := g.reportEvery(); got != 2*time.Second {
		t.Errorf("after all have reported: every %v", got)
	}
}

func TestNoEmptyGrants(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9, func(s *Settings) { s.QueueAll = true }), "one")
	if st := w.global.Receive(w.now, w.sites[0].Report(w.now)); len(st.Grants) != 0 {
		t.Errorf("%v is granted", st.Grants)
	}
}

func TestGrantForNew(t *testing.T) {
	for name, c := range map[string]struct {
		want, users int
		all         given // of the minute
		left        int   // to draw
	}{
		"more than its share":  {30, 10, given{30, 10, 20}, 130},
		"a little more":        {12, 10, given{19, 10, 9}, 141}, // and some ahead
		"its share":            {10, 10, given{10, 10, 0}, 150},
		"without a share":      {5, 0, given{10, 0, 10}, 150},
		"more than there is":   {500, 10, given{160, 10, 150}, 0},
		"nothing, of no share": {0, 0, given{}, 160},
	} {
		g, all := known(t, settings(t, 1000, 160), "one", "two")
		r := all[0]
		r.Want = c.want
		traffic := Traffic{Of: 160}
		if c.users > 0 {
			traffic.Shares = []Share{{"one", c.users}}
		}
		left := g.grant(r, &traffic)
		if got := r.Granted[MinuteOf(g.now)]; got != c.all || left != c.left {
			t.Errorf("%s: %+v is granted, and %d are left; want %+v and %d", name, got, left, c.all, c.left)
		}
	}
}

// Near the turn of a minute an admission is charged to two, so what is wanted is granted for both.
func TestGrantAtTheTurn(t *testing.T) {
	g, all := known(t, settings(t, 1000, 160, func(s *Settings) { s.Skew = 2 * time.Second }), "one")
	r, m := all[0], MinuteOf(g.now)
	g.now = m.end().Add(-time.Second)
	r.At, r.Heard, r.Want = g.now, g.now, 80
	r.Granted[m+1] = given{Total: 3}
	g.grant(r, &Traffic{Of: 160})
	if got, next := r.Granted[m].Total, r.Granted[m+1].Total; got != 80 || next != 80 {
		t.Errorf("%d is granted for this minute, and %d for the next", got, next)
	}
}

func TestForWaiting(t *testing.T) {
	m := minuteOf(t, "15:54")
	traffic := &Traffic{Shares: []Share{{"one", 30}, {"two", 10}}}
	for name, c := range map[string]struct {
		method   Method
		one, two []Bucket
		free     int
		mine     [2]int
		left     int
	}{
		"by traffic":       {FIFO, []Bucket{{m, 10, 0}}, []Bucket{{m, 10, 0}}, 8, [2]int{6, 2}, 0},
		"by need":          {Random, []Bucket{{m, 4, 0}}, []Bucket{{m, 12, 0}}, 8, [2]int{2, 6}, 0},
		"the oldest first": {FIFO, []Bucket{{m, 5, 0}}, []Bucket{{m - 1, 5, 0}}, 4, [2]int{0, 4}, 0},
		"all the same":     {Random, []Bucket{{m, 5, 0}}, []Bucket{{m - 1, 5, 0}}, 4, [2]int{2, 2}, 0},
		"by seconds":       {FIFO, []Bucket{{m, 3, 0}, {m, 7, 10}}, []Bucket{{m, 2, 0}, {m, 8, 20}}, 8, [2]int{6, 2}, 0},
		"a part of both":   {FIFO, []Bucket{{m, 2, 0}, {m, 8, 10}}, []Bucket{{m, 2, 0}, {m, 8, 10}}, 8, [2]int{5, 3}, 0},
		"more than wait":   {FIFO, []Bucket{{m, 5, 0}}, []Bucket{{m, 3, 0}}, 10, [2]int{5, 3}, 2},
	} {
		g, all := known(t, settings(t, 1000, 1000, func(s *Settings) { s.Method = c.method }), "one", "two")
		all[0].Waiting, all[1].Waiting = c.one, c.two
		for i, r := range all {
			if mine, left := g.divideAmongWaiting(r, MinuteOf(g.now), c.free, traffic); mine != c.mine[i] || left != c.left {
				t.Errorf("%s: %d for data centre %d, and %d left; want %d and %d", name, mine, i, left, c.mine[i], c.left)
			}
		}
	}
}

func TestForNew(t *testing.T) {
	for name, c := range map[string]struct {
		traffic       Traffic
		given         given // to the other
		free          int
		own, anywhere int
	}{
		"others have drawn all":             {Traffic{[]Share{{"one", 2}, {"two", 4}}, 10}, given{4, 0, 4}, 6, 2, 0},
		"others have more than their share": {Traffic{[]Share{{"one", 2}}, 10}, given{4, 4, 0}, 6, 2, 4},
		"others have drawn some":            {Traffic{[]Share{{"one", 2}, {"two", 2}}, 10}, given{2, 0, 2}, 8, 2, 4},
	} {
		g, all := known(t, settings(t, 1000, 1000), "one", "two")
		m := MinuteOf(g.now)
		all[1].Granted[m] = c.given
		if own, anywhere := g.splitForNewVisitors(all[0], m, c.free, &c.traffic); own != c.own || anywhere != c.anywhere {
			t.Errorf("%s: %d and %d; want %d and %d", name, own, anywhere, c.own, c.anywhere)
		}
	}
}

func TestReporter(t *testing.T) {
	m, skew := minuteOf(t, "15:54"), 5*time.Second
	now := m.Time()
	r := &reporter{Granted: map[Minute]given{}, Counts: map[Minute]MinuteCounts{}, Horizon: now}
	r.Seq = 3
	r.applyReport(now, skew, Report{Seq: 3})
	if !r.Heard.IsZero() {
		t.Error("a report that comes twice counts as new")
	}
	for k := range Minute(keptMinutes + 5) {
		r.Counts[m-k] = MinuteCounts{Minute: m - k}
		r.Granted[m-k] = given{Total: 1}
	}
	r.applyReport(now, skew, Report{Seq: 4, At: now.Add(time.Hour)}) // nothing is outstanding
	if len(r.Counts) != keptMinutes+3 || !r.Heard.Equal(now) {
		t.Errorf("%d minutes are counted", len(r.Counts))
	}
	r.forgetGrants(now, skew)
	if len(r.Granted) != keptMinutes+1 {
		t.Errorf("the grants of %d minutes are kept", len(r.Granted))
	}
	r.At, r.Granted[m-keptMinutes-1] = (m - keptMinutes - 1).Time(), given{Total: 1}
	if r.forgetGrants(now, skew); len(r.Granted) != keptMinutes+2 {
		t.Error("grants are forgotten that may be used")
	}
	r.extendLease(now.Add(2*time.Minute), 3*time.Minute, skew)
	if want := now.Add(6*time.Minute + 10*time.Second); !r.Horizon.Equal(want) {
		t.Errorf("its sessions are over %v later, not %v", r.Horizon.Sub(now), want.Sub(now))
	}
	r.markEnded(now, skew)
	if want := now.Add(4*time.Minute + 10*time.Second); !r.Horizon.Equal(want) {
		t.Errorf("the sessions of an earlier life are over %v later, not %v", r.Horizon.Sub(now), want.Sub(now))
	}
}

func TestLine(t *testing.T) {
	m := minuteOf(t, "15:54")
	filled := func(buckets ...Bucket) *tickets {
		all := newTickets(m.Time())
		for _, b := range buckets {
			for n := range b.Waiting {
				all.enter(testID(uint64(n)), &row{place: place{bucket: b.Minute}, back: true})
			}
		}
		return &all
	}
	l := filled(Bucket{m - 2, 5, 0}, Bucket{m - 1, 5, 0}, Bucket{m, 9, 0})
	l.enter(testID(90), &row{place: place{m, 3}, back: true})
	l.enter(testID(91), &row{place: place{m, 3}}) // may never come back
	for at, want := range map[place]int{{m - 2, 1}: 5, {m - 1, 0}: 5, {m, 0}: 10, {m, 3}: 19, {m, 4}: 21, {m, 3 + uint16(freshTicks)}: 21, {m, 4 + uint16(freshTicks)}: 20} {
		if n := l.aheadOf(at, nil); n != want {
			t.Errorf("%d are ahead of %+v, not %d", n, at, want)
		}
	}
	for name, c := range map[string]struct {
		here, room []Bucket
		want       int
	}{
		"here and elsewhere":        {[]Bucket{{m - 1, 3, 0}}, []Bucket{{m - 1, 4, 0}}, 4},
		"older elsewhere":           {[]Bucket{{m - 1, 3, 0}}, []Bucket{{m - 2, 4, 0}}, 7},
		"as old elsewhere":          {[]Bucket{{m + 1, 3, 0}}, []Bucket{{m, 4, 0}}, 0},
		"as old, and none here":     {nil, []Bucket{{m, 4, 0}}, 0},
		"older, and none here":      {nil, []Bucket{{m - 1, 4, 0}}, 4},
		"younger here, older there": {[]Bucket{{m + 1, 3, 0}}, []Bucket{{m - 1, 4, 0}}, 4},
	} {
		if n := filled(c.here...).aheadOf(place{bucket: m}, c.room); n != c.want {
			t.Errorf("%s: %d are ahead, not %d", name, n, c.want)
		}
	}
}

func TestAbsentVisitors(t *testing.T) {
	w := newWorld(t, settings(t, 9, 9), "one")
	d, m := w.sites[0], MinuteOf(w.now)
	gone := w.now.Add(40 * time.Second)
	d.expectReturns([]Bucket{{m - 2, 0, 0}, {m - 1, 3, 0}, {m, 1, 0}}, gone)
	if len(d.buckets) != 2 {
		t.Errorf("a bucket is empty: %v", d.buckets)
	}
	for _, want := range []int{3, 3} { // the second one is none of them
		if d.countReturn(m); d.waiting != want {
			t.Errorf("%d wait, not %d", d.waiting, want)
		}
	}
	if n := d.Queued(gone.Add(-1)); n != 3 {
		t.Errorf("%d wait before the absent are gone", n)
	}
	if d.advance(gone); d.waiting != 0 || len(d.buckets) != 0 {
		t.Errorf("%d absent wait: %v", d.waiting, d.buckets)
	}
	d.seq = 7
	d.restoreRow(&pack{}, testID(1), row{kind: adopting, ends: m + 1})
	if got := d.rows[testID(1)].seq; got != 8 {
		t.Errorf("report %d counts the session", got)
	}
}

func TestSmallSums(t *testing.T) {
	m := minuteOf(t, "15:54")
	for at, want := range map[time.Duration]int{-time.Second: 0, 0: 0, 4 * time.Second: 0, 5 * time.Second: 1, 12 * time.Second: 2, 59 * time.Second: 11, time.Hour: 11} {
		if got := sliceOf(m, m.Time().Add(at)); got != want {
			t.Errorf("%v is in slice %d, not %d", at, got, want)
		}
	}
	s := settings(t, 10, 10)
	if n := s.availableSlots(7-2, 0); n != 5 {
		t.Errorf("%d slots of a minute", n)
	}
	if wait := FIFOWait(0, 0); wait != 0 {
		t.Errorf("none is ahead, and the wait is %v", wait)
	}
	if all, none := RandomWait(1, 5, 5), RandomWait(0, 0, 5); all != 0 || RandomWait(0.5, 0, 0) != 0 || !math.IsInf(none, 1) {
		t.Errorf("the waits are %v where all come in, and %v where none does", all, none)
	}
	for at, want := range map[int64]Minute{-61: -2, -60: -1, -1: -1, 0: 0, 59: 0, 60: 1} {
		if got := MinuteOf(time.Unix(at, 0)); got != want {
			t.Errorf("second %d is in minute %d, not %d", at, got, want)
		}
	}
	if got := s.longestRefresh(); got != 24*time.Second {
		t.Errorf("a check-in comes after %v at most", got)
	}
	s.Shuffle = Shuffle{m, m + 5, 7}
	for n := range uint64(20) {
		if p := s.placeOf(&Ticket{ID: testID(n), Since: m.Time()}); int(p.tick) >= ticks {
			t.Errorf("tick %d", p.tick)
		}
	}
	name, read := "one", ""
	written := writePack()
	written.string(&name)
	p := readPack(written.bytes)
	if p.string(&read); p.checkEnd() != nil || read != name {
		t.Errorf("the last string of a snapshot is read as %q", read)
	}
}
