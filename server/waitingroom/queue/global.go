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
// [RecoverGlobal] returns a new Global. A caller that replaces a lost Global by [SucceedGlobal] stores nothing.
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

// A reporterID identifies one incarnation of a data centre.
type reporterID struct {
	DataCentre  string
	Incarnation int64
}

// compare orders reporters by the name of the data centre, then by incarnation. It returns a negative number, 0 or a positive
// number.
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

// NewGlobal returns the global object of a room that has never had a visitor: all slots are free. A global object receives the
// reports of all data centres and grants them slots. The settings must have come from [Settings.WithDefaults].
func NewGlobal(s Settings, now time.Time) *Global {
	return &Global{settings: s, now: now, reporters: map[reporterID]*reporter{}}
}

// RecoverGlobal returns the global object of a room whose state was lost. It admits no new visitor until all grants from before
// have expired and then each data centre named in expected has sent a complete report. If one of them does not report, or
// expected is empty, it waits until every session that a data centre may have promised is over: a lease plus a session duration,
// and some minutes.
func RecoverGlobal(s Settings, expected []string, now time.Time) *Global {
	g := NewGlobal(s, now)
	g.holding = true
	g.expected = slices.Clone(expected)
	// Grants may be out for this minute, and near its end for the next.
	g.closed = (MinuteOf(now.Add(2*s.Skew)) + 1).Time().Add(2 * s.Skew)
	g.holdUntil = later(g.closed, now.Add(s.Lease+time.Minute+s.SessionDuration+3*s.Skew))
	return g
}

// SucceedGlobal returns the global object that replaces another one, whose state is not known. The caller guarantees that no data
// centre that reports takes grants from the old one any more. The new one admits no visitor until each data centre named in
// expected has reported; their reports must have accounts ([DataCentre.AddAccount]). If one of them does not report, it waits
// until holdUntil, when all sessions promised under the old one are over. No such session lasts longer than longest.
func SucceedGlobal(s Settings, expected []string, now, holdUntil time.Time, longest time.Duration) *Global {
	g := NewGlobal(s, now)
	g.holding, g.holdUntil, g.expected, g.longest = true, holdUntil, slices.Clone(expected), longest
	return g
}

// Configure replaces the settings. A lower limit holds for later grants only. If limits come back into force after [Passthrough]
// or Suspended, nothing is granted until every data centre has sent a newer report.
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

// advance moves the global object's clock to now, never back. It deletes expired grants, and the data centres whose promised
// sessions are all over. It ends the hold once mustHold allows it, and never begins another one.
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

// mustHold reports whether the global object, while it holds, must still give no grants: holdUntil has not come, and an expected
// data centre has not sent a complete report. With no expected data centres, only holdUntil ends the hold.
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

// isComplete reports whether the last report of r counts all users who are inside through its data centre: it was sent after
// earlier grants had expired, and either the data centre has no earlier incarnation, or everything has expired that an earlier
// one promised.
func (g *Global) isComplete(r *reporter) bool {
	s := &g.settings
	if r.At.Before(g.closed) {
		return false
	}
	return r.Account != nil && r.Account.First || !g.now.Before(r.Started.Add(time.Minute+max(s.SessionDuration, g.longest)+2*s.Skew))
}

// Receive stores a data centre's report, renews the data centre's lease (until when it may admit visitors and renew sessions)
// and, within the limits, grants it more slots. The returned State is the response for the data centre; see [Global] for what the
// caller stores before it sends that. An old or repeated report renews the lease but gets no new grants, as does a report while
// none may be given; the response has the grants so far. An incarnation that a later one has replaced gets neither. A report with
// numbers out of bounds, or the first one of an incarnation when a later incarnation is known, changes nothing and gets a
// response without lease and grants.
func (g *Global) Receive(now time.Time, report Report) State {
	g.advance(now)
	s := &g.settings
	id := reporterID{report.DataCentre, report.Incarnation}
	r := g.reporters[id]
	accepted := g.isWithinBounds(r, &report)
	if accepted && r == nil {
		r = g.addReporter(id, report.Started)
		accepted = r != nil // otherwise it is dead, and its successor known
	}
	if !accepted {
		return State{DataCentre: id.DataCentre, Incarnation: id.Incarnation, ReportEvery: slowestReport, Room: g.sumReports()}
	}
	r.applyReport(g.now, s.Skew, report)
	r.extendLease(g.now.Add(s.Lease), s.SessionDuration, s.Skew)
	g.updateQueueStart()
	st := State{
		DataCentre: id.DataCentre, Incarnation: id.Incarnation, Ack: r.Seq,
		LeaseUntil: r.LeaseUntil, LeaseDuration: s.SessionDuration,
		ReportEvery: g.reportEvery(),
	}
	st.Room = g.sumReports()
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

// isWithinBounds reports whether all counts and lists of a report are within the bounds above, and the minutes in it together
// with those that are known of the sender. r is what the global object knows about the sender. For a new sender r is nil, and the
// data centre must have fewer than mostLives incarnations.
func (g *Global) isWithinBounds(r *reporter, report *Report) bool {
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

// updateQueueStart sets g.queueing to the next minute if visitors have started to wait at any data centre that is present, and to
// 0 if none wait. The average admissions per minute count only from then on: while no visitors wait, admissions do not show how many
// are possible.
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

// addReporter adds a data centre's incarnation, which began at started, and marks the earlier incarnations of that data centre as
// ended. It returns nil, and changes nothing, if a later incarnation is known.
func (g *Global) addReporter(id reporterID, started time.Time) *reporter {
	for _, other := range g.order {
		if other.DataCentre == id.DataCentre && other.Incarnation > id.Incarnation {
			return nil
		}
	}
	for _, other := range g.order {
		if o := g.reporters[other]; other.DataCentre == id.DataCentre {
			o.markEnded(started, g.settings.Skew)
		}
	}
	r := &reporter{Granted: map[Minute]given{}, Counts: map[Minute]MinuteCounts{}}
	g.insertReporter(id, r)
	return r
}

// insertReporter inserts r into the reporters, and its id into their sorted order.
func (g *Global) insertReporter(id reporterID, r *reporter) {
	g.reporters[id] = r
	i, _ := slices.BinarySearchFunc(g.order, id, reporterID.compare)
	g.order = slices.Insert(g.order, i, id)
}

// hasUncounted reports whether visitors may be inside whom no report counts: the global object holds, or a data centre admits
// without limits or has not reported since limits came back into force. Nothing may be granted then.
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

// reportEvery returns the interval after which a data centre should report again: between usualReport and slowestReport, the more
// data centres the longer. It is soonReport shortly after a minute has begun, while visitors wait and a present data centre has
// not reported since then: not all free slots are known before, and all data centres should call their visitors at the same time.
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

// sumReports returns the totals of the room over the last reports of all data centres: sessions, admissions, waiting visitors,
// workers and traffic. Only data centres that are present count with their waiting visitors and workers.
func (g *Global) sumReports() Room {
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

// isPresent reports whether the waiting visitors of r count: no later incarnation has replaced it, and it has reported within the
// time silent.
func (g *Global) isPresent(r *reporter) bool { return !r.Ended && g.now.Sub(r.Heard) < silent }

// traffic returns how many different visitors tried to come in during minute m, per data centre in ascending order of their
// names, without those that had none. Traffic.Of is the limit of active users if HistoryMinutes is 1, else 0.
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
