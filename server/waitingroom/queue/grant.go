package queue

import (
	"time"
)

// grant gives grants to r, whose data centre has just reported, within the limits. Waiting visitors of all data centres come
// first, the oldest first; r gets the part of its own visitors. The remaining slots are for new visitors: r gets its share by the
// traffic, which must not be nil. If its report wants more, it also gets slots that belong to no data centre: as many as it
// wants, or a small part of those left in advance if that is more. Near the turn of a minute it gives grants for the neighboring
// minute, too. anywhere is how many slots are left that any data centre may still draw. The caller has checked that grants may be
// given at all ([Global.Receive]).
//
// Before all that, it grants the slots that are reserved at r since the minute before.
func (g *Global) grant(r *reporter, traffic *Traffic) (anywhere int) {
	s := &g.settings
	now := MinuteOf(g.now)
	first, last := s.chargeableMinutes(r.At)
	for m := first; m <= last; m++ {
		g.grantReserved(r, m)
	}
	free := g.grantableIn(now)
	if free == 0 {
		return 0
	}
	mine, left := g.divideAmongWaiting(r, now, free, traffic)
	if g.grantMore(r, now, mine) > 0 {
		g.updateBatch(free - mine)
	}
	if left == 0 {
		return 0
	}

	// new visitors: the share, then what was asked for
	own, anywhere := g.splitForNewVisitors(r, now, left, traffic)
	g.grantMore(r, now, own)
	drawn := 0
	if r.Want > own && anywhere > 0 {
		ahead := anywhere / (8 * len(g.order)) // so that a burst does not ask for every visitor
		drawn = g.grantMore(r, now, min(anywhere, max(r.Want-own, ahead)))
	}
	if all := r.Granted[now]; own+drawn > 0 {
		all.Own += own
		all.Drawn += drawn
		r.Granted[now] = all
	}
	// near the turn of a minute an admission is charged to two
	for m := first; m <= last; m++ {
		if m != now {
			g.grantMore(r, m, min(r.Want, r.unspentGrants(now, s.Skew))-r.unspentGrants(m, s.Skew))
		}
	}
	return anywhere - drawn
}

// grantReserved grants r as much for minute m as r has charged to it for visitors whom it has called before, if the limit of new
// users allows that. Bounds stay the same: these visitors count as active, and the charges are as many as the grants afterwards. r
// must have sent its report when the minute may have begun, because earlier charges may be taken back without the visitors' leaving.
func (g *Global) grantReserved(r *reporter, m Minute) {
	all := r.Granted[m]
	if n := min(r.Counts[m].Charged-all.Total, g.rateLeft(m)); n > 0 {
		all.Total += n
		r.Granted[m] = all
	}
}

// rateLeft returns how many more admissions in minute m the limit of new users allows to be granted; a negative number if more
// were granted than it allows now.
func (g *Global) rateLeft(m Minute) int {
	s := &g.settings
	rate := s.NewUsersPerMinute
	for _, r := range g.reporters {
		rate -= r.Granted[m].Total
		if s.RollingMinute {
			rate -= r.recentGrants(m-1, later(g.now, m.Time()).Add(-time.Minute-2*s.Skew), s.Skew)
		}
	}
	return rate
}

// grantMore raises the grant of r for minute m by n, or by less if the limits allow no more. It returns by how many. Granted
// grows only here and in grantReserved. So these hold afterwards, if they held before or if it granted anything:
//
//	Σ granted(minute) ≤ new users per minute
//	Σ bound           ≤ total active users
func (g *Global) grantMore(r *reporter, m Minute, n int) int {
	n = min(n, g.grantableIn(m))
	if n <= 0 {
		return 0
	}
	all := r.Granted[m]
	all.Total += n
	r.Granted[m] = all
	return n
}

// grantableIn returns how many more admissions may be granted for minute m, to all data centres together, beside those of reserved
// slots. It is 0 or more.
func (g *Global) grantableIn(m Minute) int {
	total, rate := g.settings.TotalActiveUsers, g.rateLeft(m)
	for _, r := range g.reporters {
		total -= r.maxSessions(g.now, g.settings.Skew)
		rate -= r.reservedIn(m, g.settings.Skew)
	}
	return max(0, min(total, rate))
}

// longestLine is how many buckets a batch has at most: each response carries them, and a data centre reports as many as it likes.
const longestLine = 1024

// updateBatch adds to the current batch, which is the visitors of all data centres for whom slots become free at about the same
// time. The batch's slots become at least what is granted in this minute plus left, the slots that remain free. It starts a new
// batch, with the line of who is next everywhere, if the last one is over or of an earlier minute. A batch starts only when the
// minute has begun by all clocks, because a slot is charged to both minutes until then.
func (g *Global) updateBatch(left int) {
	m := MinuteOf(g.now)
	granted, lists := left, make([][]Bucket, 0, len(g.order))
	for _, id := range g.order {
		r := g.reporters[id]
		granted += r.Granted[m].Total
		if g.isPresent(r) {
			lists = append(lists, r.Waiting)
		}
	}
	g.batch.Slots = max(g.batch.Slots, granted)
	if MinuteOf(g.batch.Start) == m && g.now.Sub(g.batch.Start) < batchDuration {
		return
	}
	expected := int(g.sumReports().PerMinute) // data centres that have yet to report may have slots
	if expected == 0 {
		expected = g.settings.NewUsersPerMinute
	}
	g.batch = Batch{Start: later(g.now, m.Time().Add(g.settings.Skew)), Slots: max(expected, granted)}
	total := 0
	eachBucket(lists, func(at place, counts []int) bool {
		n := 0
		for _, c := range counts {
			n += c
		}
		if n > 0 {
			g.batch.Line = append(g.batch.Line, Bucket{at.bucket, n, at.tick})
		}
		total += n
		return total < g.settings.NewUsersPerMinute && len(g.batch.Line) < longestLine
	})
}

// divideAmongWaiting divides free slots among the visitors who wait at all present data centres: longest waiting first, and by
// the traffic among those of one place in line; or, if the queue is random, all with the same chance. Visitors who can use grants
// of minute m that their data centre has not used yet need no slot. mine is how many slots go to the data centre of r. left is
// how many remain when every waiting visitor has one. It changes nothing.
func (g *Global) divideAmongWaiting(r *reporter, m Minute, free int, traffic *Traffic) (mine, left int) {
	s := &g.settings
	var lists [][]Bucket
	var outstanding, weights []int
	at := -1
	for _, id := range g.order {
		o := g.reporters[id]
		if len(o.Waiting) == 0 || !g.isPresent(o) {
			continue
		}
		if o == r {
			at = len(lists)
		}
		list := o.Waiting
		if s.Method == Random { // all have the same chance
			n := 0
			for _, b := range list {
				n += b.Waiting
			}
			list = []Bucket{{Waiting: n}}
		}
		lists = append(lists, list)
		outstanding = append(outstanding, o.unspentGrants(m, s.Skew))
		users := 0
		for _, share := range traffic.Shares {
			if share.DataCentre == id.DataCentre {
				users = share.Users
			}
		}
		weights = append(weights, users)
	}
	left = free
	eachBucket(lists, func(_ place, need []int) bool {
		total := 0
		for i := range need {
			have := min(need[i], outstanding[i])
			outstanding[i] -= have
			need[i] -= have
			total += need[i]
		}
		parts := need
		if total > left {
			if s.Method == Random {
				copy(weights, need)
			}
			parts = divideCapped(left, weights, need)
			total = left
		}
		if at >= 0 {
			mine += parts[at]
		}
		left -= total
		return left > 0
	})
	return mine, left
}

// splitForNewVisitors divides free slots of minute m, which no waiting visitor needs. own is how many belong to the data centre
// of r by its share of the traffic, less what it was granted before. anywhere is how many of the others belong to no data centre,
// so that r may draw them. It changes nothing.
func (g *Global) splitForNewVisitors(r *reporter, m Minute, free int, traffic *Traffic) (own, anywhere int) {
	had, drawn, all := 0, 0, free
	for _, o := range g.reporters {
		given := o.Granted[m]
		all += given.Own + given.Drawn
		drawn += given.Drawn
		if o.DataCentre == r.DataCentre {
			had += given.Own
		}
	}
	share, rest := traffic.slotsOf(all, r.DataCentre)
	own = min(free, max(0, share-had))
	return own, max(0, min(free-own, rest-drawn))
}

// A reporter is what the global object knows about one incarnation of a data centre.
type reporter struct {
	Report                             // the last one by Seq
	Heard      time.Time               // when it came
	Granted    map[Minute]given        // by minute
	Counts     map[Minute]MinuteCounts // those reported, kept longer than they are repeated
	LeaseUntil time.Time               // the latest that was promised
	Horizon    time.Time               // every session it has promised is over, everywhere
	Longest    time.Duration           // the longest session that it may have promised
	Ended      bool                    // a later incarnation has taken its place
}

// given is what was granted for one minute.
type given struct {
	Total int
	// Own and Drawn are the parts of it that are for new visitors: from the data
	// centre's share and from Anywhere. The rest is for visitors who waited.
	Own, Drawn int
}

// unspentGrants returns how many admissions r may still charge to minute m, by its last report. It is 0 if the report was sent
// after the minute was over by all clocks. Charges do not count in a report that was sent before the minute began by any clock: they
// are for reservations, and are taken back if the visitors come in the minute before.
func (r *reporter) unspentGrants(m Minute, skew time.Duration) int {
	switch {
	case !r.At.Before(m.end().Add(skew)):
		return 0
	case r.isBefore(m, skew):
		return r.Granted[m].Total
	}
	return max(0, r.Granted[m].Total-r.Counts[m].Charged)
}

// isBefore reports whether the last report of r was sent before minute m began by any clock.
func (r *reporter) isBefore(m Minute, skew time.Duration) bool {
	return r.At.Before(m.Time().Add(-skew))
}

// reservedIn returns how many slots of minute m must be left for visitors whom r has called, or may call, before that minute: beyond
// what is granted. By a report from before the minute, these are all that it charges to m, and the unspent grants of the minute before,
// which it may have used for calls since.
func (r *reporter) reservedIn(m Minute, skew time.Duration) int {
	if r.isBefore(m, skew) {
		return r.Counts[m].Charged + r.unspentGrants(m-1, skew)
	}
	return max(0, r.Counts[m].Charged-r.Granted[m].Total)
}

// recentGrants returns how many grants of minute m were charged later than the time after, or may still be charged. A charge
// counts if its slice of 5 seconds ends later.
func (r *reporter) recentGrants(m Minute, after time.Time, skew time.Duration) int {
	n := r.unspentGrants(m, skew)
	for i, charged := range r.Counts[m].Slices {
		if m.Time().Add(time.Duration(i+1) * slice).After(after) {
			n += charged
		}
	}
	return n
}

// maxSessions returns the highest number of sessions that the data centre of r has, or may reach without another grant:
//
//	reported active + Σ over the minutes still open when it was sent (granted - charged)
//
// It is 0 once all sessions are over that r may have promised. The package documentation says why.
func (r *reporter) maxSessions(now time.Time, skew time.Duration) int {
	if !now.Before(r.Horizon) {
		return 0
	}
	n := r.Active
	for m := range r.Granted {
		n += r.unspentGrants(m, skew)
	}
	return n
}

// applyReport stores a report that came in at now, unless it is not newer than the last one by Seq. An account in it can raise
// the grants and the time at which all sessions of r are over. Counts of old minutes are deleted.
func (r *reporter) applyReport(now time.Time, skew time.Duration, report Report) {
	if report.Seq <= r.Seq {
		return
	}
	r.Report, r.Heard = report, now
	if a := report.Account; a != nil {
		for _, g := range a.Grants { // perhaps by the global object before
			all := r.Granted[g.Minute]
			all.Total = max(all.Total, g.Total)
			r.Granted[g.Minute] = all
		}
		r.Longest = max(r.Longest, a.Over.Sub(report.At))
		r.Horizon = later(r.Horizon, a.Over.Add(2*skew))
	}
	for _, c := range report.Minutes {
		r.Counts[c.Minute] = c
	}
	r.Minutes = nil // they are in Counts
	for m := range r.Counts {
		if m < MinuteOf(now)-keptMinutes-2 {
			delete(r.Counts, m)
		}
	}
}

// extendLease records that the data centre may renew sessions until a time, each for at most d, and moves the time at which all
// of them have ended everywhere (Horizon), never back. It does nothing if a later incarnation has replaced r.
func (r *reporter) extendLease(until time.Time, d, skew time.Duration) {
	if r.Ended {
		return
	}
	r.LeaseUntil = later(r.LeaseUntil, until)
	r.Longest = max(r.Longest, d)
	// a session lasts from the end of the minute of its renewal
	r.Horizon = later(r.Horizon, r.LeaseUntil.Add(time.Minute+r.Longest+2*skew))
}

// forgetGrants deletes the grants of minutes that reports do not mention any more, if none of them can still be charged.
func (r *reporter) forgetGrants(now time.Time, skew time.Duration) {
	for m := range r.Granted {
		if m < MinuteOf(now)-keptMinutes && r.unspentGrants(m, skew) == 0 {
			delete(r.Granted, m)
		}
	}
}

// markEnded records that a later incarnation, started at a time, has replaced r. Visitors of r no longer wait, and its sessions
// were last renewed before that time.
func (r *reporter) markEnded(at time.Time, skew time.Duration) {
	r.Ended, r.Waiting = true, nil
	r.Horizon = earlier(r.Horizon, at.Add(time.Minute+r.Longest+2*skew))
}
