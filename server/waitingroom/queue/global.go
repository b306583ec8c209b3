package queue

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Global is the one object of a room that receives the reports of all data centres and gives
// grants. It is not safe for use by several goroutines at once.
//
// Its grants must survive a crash: the caller sends a response only after it has stored [Global.Snapshot]. If the snapshot is lost,
// [RecoverGlobal] returns a new Global.
type Global struct {
	settings  Settings
	now       time.Time // never goes back
	reporters map[reporterID]*reporter
	order     []reporterID // sorted, so that the same reports give the same answers

	// After a loss no visitor is admitted before holdUntil; before that, only once all of
	// expected have reported after closed.
	holding   bool
	holdUntil time.Time
	closed    time.Time
	expected  []string
	longest   time.Duration // that a session from before may last, where that is more than the settings say
	// queueing is the first whole minute since which visitors wait, 0 where none do.
	queueing Minute
	batch    Batch // the last one
	// Reports from before barrier do not count the visitors who came in without grants.
	barrier time.Time
}

type reporterID struct {
	DataCentre  string
	Incarnation int64
}

func (a reporterID) compare(b reporterID) int {
	return cmp.Or(cmp.Compare(a.DataCentre, b.DataCentre), cmp.Compare(a.Incarnation, b.Incarnation))
}

const (
	// usualReport and slowestReport bound how often a data centre reports. In between,
	// all of them together send reportsPerSecond. A data centre draws no more often than
	// fastestReport after a response that nothing can be drawn.
	fastestReport    = time.Second
	usualReport      = 2 * time.Second
	slowestReport    = 10 * time.Second
	reportsPerSecond = 20
	// soonReport is when a data centre reports again that reported before others did in this minute.
	soonReport = time.Second / 4
	// silent is how long the waiting visitors of a data centre that does not report keep
	// others from a slot.
	silent = 45 * time.Second
)

// NewGlobal returns the global object of a room that has never had a visitor: all slots
// are free. The settings must have come from [Settings.WithDefaults].
func NewGlobal(s Settings, now time.Time) *Global {
	return &Global{settings: s, now: now, reporters: map[reporterID]*reporter{}}
}

// RecoverGlobal returns the global object of a room whose state was lost. It admits no new
// visitor until each of the data centres in expected has reported, after the expiry of
// all grants from before. If one of them does not report, or expected is empty, it waits
// until every session that a data centre may have promised is over: a lease and a session
// duration.
func RecoverGlobal(s Settings, expected []string, now time.Time) *Global {
	g := NewGlobal(s, now)
	g.holding = true
	g.expected = slices.Clone(expected)
	// Grants may be out for this minute, and near its end for the next.
	g.closed = (MinuteOf(now.Add(2*s.Skew)) + 1).Time().Add(2 * s.Skew)
	g.holdUntil = later(g.closed, now.Add(s.Lease+time.Minute+s.SessionDuration+3*s.Skew))
	return g
}

// SucceedGlobal returns the global object that takes the place of another one, whose state is not
// known, when no data centre that reports takes grants of that any more. It admits no new visitor until
// each of the data centres in expected has reported; their reports must have accounts. Where one of them does
// not report, it waits until holdUntil, when every session is over that this one may have promised, each of
// them for longest at most.
func SucceedGlobal(s Settings, expected []string, now, holdUntil time.Time, longest time.Duration) *Global {
	g := NewGlobal(s, now)
	g.holding, g.holdUntil, g.expected, g.longest = true, holdUntil, slices.Clone(expected), longest
	return g
}

// Holding reports whether no new visitor is admitted because it is not known how many are inside.
func (g *Global) Holding() bool { return g.holding }

// Configure changes the settings. A lower limit holds for what is granted from now on.
func (g *Global) Configure(now time.Time, s Settings) {
	g.advance(now)
	if g.settings.unlimited() && !s.unlimited() {
		g.barrier = g.now.Add(s.Skew)
		for _, r := range g.reporters {
			r.extendLease(g.now.Add(s.Lease), s.SessionDuration, s.Skew)
		}
	}
	g.settings = s
}

// advance moves the global object's time to now, and removes expired grants and the data centres without any promise.
func (g *Global) advance(now time.Time) {
	if now.After(g.now) {
		g.now = now
	}
	maps.DeleteFunc(g.reporters, func(_ reporterID, r *reporter) bool {
		r.forgetGrants(g.now, g.settings.Skew)
		return !g.now.Before(r.Horizon)
	})
	g.order = slices.DeleteFunc(g.order, func(id reporterID) bool { return g.reporters[id] == nil })
	g.holding = g.holding && g.mustHold()
}

// mustHold reports whether it is still unknown how many are inside.
func (g *Global) mustHold() bool {
	if !g.now.Before(g.holdUntil) {
		return false
	}
	for _, name := range g.expected {
		if !slices.ContainsFunc(g.order, func(id reporterID) bool { return id.DataCentre == name && g.isComplete(g.reporters[id]) }) {
			return true
		}
	}
	return len(g.expected) == 0
}

// isComplete reports whether a data centre's report counts all users who are inside: the data centre sent it after earlier grants had
// expired, and everything has expired that an earlier incarnation of it had promised.
func (g *Global) isComplete(r *reporter) bool {
	s := &g.settings
	if r.At.Before(g.closed) {
		return false
	}
	return r.Account != nil && r.Account.First || !g.now.Before(r.Started.Add(time.Minute+max(s.SessionDuration, g.longest)+2*s.Skew))
}

// Receive takes a report and answers it.
func (g *Global) Receive(now time.Time, report Report) State {
	g.advance(now)
	s := &g.settings
	id := reporterID{report.DataCentre, report.Incarnation}
	r := g.reporters[id]
	if !g.isBounded(r, &report) {
		return State{DataCentre: id.DataCentre, Incarnation: id.Incarnation, ReportEvery: slowestReport, Room: g.room()}
	}
	if r == nil {
		if r = g.addReporter(id, report.Started); r == nil { // it is dead, and its successor known
			return State{DataCentre: id.DataCentre, Incarnation: id.Incarnation, ReportEvery: slowestReport, Room: g.room()}
		}
	}
	r.applyReport(g.now, s.Skew, report)
	r.extendLease(g.now.Add(s.Lease), s.SessionDuration, s.Skew)
	g.updateQueueStart()
	st := State{
		DataCentre: id.DataCentre, Incarnation: id.Incarnation, Ack: r.Seq,
		LeaseUntil: r.LeaseUntil, LeaseDuration: s.SessionDuration,
		ReportEvery: g.reportEvery(),
	}
	st.Room = g.room()
	if report.Seq == r.Seq && !r.Ended && s.Allocator == Counter && !s.QueueAll && !s.unlimited() && s.Method != Reject && !g.hasUncounted() {
		st.Anywhere = g.grant(r, &st.Room.Traffic)
		st.Batch = g.batch
	}
	for m := MinuteOf(g.now) - 1; m <= MinuteOf(g.now)+1; m++ {
		if total := r.Granted[m].Total; total > 0 {
			st.Grants = append(st.Grants, Grant{m, total})
		}
	}
	return st
}

// Bounds of what a data centre may report. They are far above what an honest one does: another may not fill
// the memory, nor have sums overflow or shrink.
const (
	mostLives   = 100
	mostMinutes = 64
	mostBuckets = 1 << 16
	mostCount   = 1 << 30
)

// isBounded reports whether a report of r, nil where there was none, is within the bounds.
func (g *Global) isBounded(r *reporter, report *Report) bool {
	minutes := map[Minute]bool{}
	if r != nil {
		for m := range r.Granted {
			minutes[m] = true
		}
		for m := range r.Counts {
			minutes[m] = true
		}
	} else {
		lives := 0
		for _, id := range g.order {
			if id.DataCentre == report.DataCentre {
				lives++
			}
		}
		if lives >= mostLives {
			return false
		}
	}
	ok := true
	count := func(counts ...int) {
		for _, n := range counts {
			ok = ok && n >= 0 && n <= mostCount
		}
	}
	count(report.Active, report.Workers, report.Want)
	if len(report.Waiting) > mostBuckets || len(report.Minutes) > mostMinutes || report.Account != nil && len(report.Account.Grants) > mostMinutes {
		return false
	}
	for _, b := range report.Waiting {
		count(b.Waiting)
	}
	for _, c := range report.Minutes {
		minutes[c.Minute] = true
		count(c.Charged, c.Admitted, c.Users)
		count(c.Slices[:]...)
	}
	if report.Account != nil {
		for _, grant := range report.Account.Grants {
			minutes[grant.Minute] = true
			count(grant.Total)
		}
	}
	return ok && len(minutes) <= mostMinutes
}

// updateQueueStart notes since when visitors wait: how many come in while none do says nothing of
// how many will.
func (g *Global) updateQueueStart() {
	for _, r := range g.reporters {
		if len(r.Waiting) > 0 && g.isPresent(r) {
			if g.queueing == 0 {
				g.queueing = MinuteOf(g.now) + 1
			}
			return
		}
	}
	g.queueing = 0
}

// addReporter begins to count a data centre that has not reported before, and ends all
// renewals of its earlier lives.
func (g *Global) addReporter(id reporterID, started time.Time) *reporter {
	for _, other := range g.order {
		if other.DataCentre == id.DataCentre && other.Incarnation > id.Incarnation {
			return nil
		}
	}
	for _, other := range g.order {
		if o := g.reporters[other]; other.DataCentre == id.DataCentre {
			o.end(started, g.settings.Skew)
		}
	}
	r := &reporter{Granted: map[Minute]given{}, Counts: map[Minute]MinuteCounts{}}
	g.add(id, r)
	return r
}

func (g *Global) add(id reporterID, r *reporter) {
	g.reporters[id] = r
	i, _ := slices.BinarySearchFunc(g.order, id, reporterID.compare)
	g.order = slices.Insert(g.order, i, id)
}

// hasUncounted reports whether there may be visitors inside whom no report counts.
func (g *Global) hasUncounted() bool {
	if g.holding {
		return true
	}
	for _, id := range g.order {
		if r := g.reporters[id]; !r.Ended && (r.Unlimited || r.At.Before(g.barrier)) {
			return true
		}
	}
	return false
}

// reportEvery returns when a data centre should report again. After the turn of a minute not all slots are known to be free before all
// data centres have reported: until then those that have do it again soon, so that all call their visitors at the same time.
func (g *Global) reportEvery() time.Duration {
	if turn := MinuteOf(g.now).Time(); g.queueing > 0 && g.now.Sub(turn) < usualReport+g.settings.Skew {
		for _, r := range g.reporters {
			if r.At.Before(turn) && g.isPresent(r) {
				return soonReport
			}
		}
	}
	return min(slowestReport, max(usualReport, time.Duration(len(g.order))*time.Second/reportsPerSecond))
}

// room is what is known about the room.
func (g *Global) room() Room {
	m := MinuteOf(g.now)
	room := Room{At: g.now, Holding: g.holding}
	averaged := Minute(0)
	if g.queueing > 0 {
		averaged = max(0, min(5, m-g.queueing))
	}
	admitted := 0
	lists := make([][]Bucket, 0, len(g.order))
	for _, id := range g.order {
		r := g.reporters[id]
		room.Active += r.Active
		room.Admitted += r.Counts[m].Admitted
		for k := m - averaged; k < m; k++ {
			admitted += r.Counts[k].Admitted
		}
		if g.isPresent(r) {
			room.Workers += r.Workers
			lists = append(lists, r.Waiting)
		}
	}
	room.Waiting = sumBuckets(lists...)
	if averaged > 0 {
		room.PerMinute = float64(admitted) / float64(averaged)
	}
	room.Traffic = g.traffic(m - Minute(g.settings.HistoryMinutes))
	return room
}

// isPresent reports whether a data centre's visitors are still there, as far as is known.
func (g *Global) isPresent(r *reporter) bool { return !r.Ended && g.now.Sub(r.Heard) < silent }

// traffic is how many visitors tried to come in during a minute, by data centre.
func (g *Global) traffic(m Minute) Traffic {
	t := Traffic{}
	if g.settings.HistoryMinutes == 1 {
		t.Of = g.settings.TotalActiveUsers
	}
	for _, id := range g.order { // sorted by data centre
		users := g.reporters[id].Counts[m].Users
		switch last := len(t.Shares) - 1; {
		case users == 0:
		case last >= 0 && t.Shares[last].DataCentre == id.DataCentre:
			t.Shares[last].Users += users
		default:
			t.Shares = append(t.Shares, Share{id.DataCentre, users})
		}
	}
	return t
}
