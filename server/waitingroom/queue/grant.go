package queue

import (
	"time"
)

// grant gives a data centre that has just reported what it may have now, and returns
// how many slots are left to draw. First come waiting visitors, wherever they are, the
// oldest first; the slots they leave are for new visitors, by the traffic's shares.
//
// Every grant goes through grantMore, which is where the limits are kept.
func (g *Global) grant(r *reporter, traffic *Traffic) (anywhere int) {
	s := &g.settings
	now := MinuteOf(g.now)
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
	own, anywhere := g.forNew(r, now, left, traffic)
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
	first, last := s.chargeableMinutes(r.At)
	for m := first; m <= last; m++ {
		if m != now {
			g.grantMore(r, m, min(r.Want, r.unspentGrants(now, s.Skew))-r.unspentGrants(m, s.Skew))
		}
	}
	return anywhere - drawn
}

// grantMore grants up to n more charges of a minute, if the limits allow, and returns how
// many. It is the only place where Granted grows:
//
//	Σ granted(minute) ≤ new users per minute
//	Σ bound           ≤ total active users
//
// hold after it, where they did before or where it gave anything.
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

// grantableIn returns how many more charges of a minute may be granted.
func (g *Global) grantableIn(m Minute) int {
	s := &g.settings
	total, rate := s.TotalActiveUsers, s.NewUsersPerMinute
	for _, r := range g.reporters {
		total -= r.maxSessions(g.now, s.Skew)
		rate -= r.Granted[m].Total
		if s.RollingMinute {
			rate -= r.recentGrants(m-1, later(g.now, m.Time()).Add(-time.Minute-2*s.Skew), s.Skew)
		}
	}
	return max(0, min(total, rate))
}

// longestLine is how many buckets a batch has at most: each response carries them, and a data centre reports as many as it likes.
const longestLine = 1024

// updateBatch counts what is granted in this minute, and what is left, towards the present batch. It starts a batch if the last one is over,
// or of the minute before. A batch does not start before the minute has begun by all clocks:
// a slot is charged to both minutes until then.
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
	expected := int(g.room().PerMinute) // data centres that have yet to report may have slots
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

// divideAmongWaiting divides free slots among the visitors who wait at any present reporter, longest waiting first unless the queue is
// random. It first covers visitors by the grants of minute m that their reporter has not used; these are not in the parts. mine is the part
// of r. left is what remains when every waiting visitor has a slot.
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

// forNew is how many of the slots left for new visitors are r's own, by its share of the
// traffic, and how many it may draw.
func (g *Global) forNew(r *reporter, m Minute, free int, traffic *Traffic) (own, anywhere int) {
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

// unspentGrants returns how many of the minute's grants may still be charged, according to the last report; none if the data centre sent it
// after the minute was over everywhere.
func (r *reporter) unspentGrants(m Minute, skew time.Duration) int {
	if !r.At.Before(m.end().Add(skew)) {
		return 0
	}
	return max(0, r.Granted[m].Total-r.Counts[m].Charged)
}

// recentGrants returns how many of a minute's grants were charged after a time, or may still be.
func (r *reporter) recentGrants(m Minute, after time.Time, skew time.Duration) int {
	n := r.unspentGrants(m, skew)
	for i, charged := range r.Counts[m].Slices {
		if m.Time().Add(time.Duration(i+1) * slice).After(after) {
			n += charged
		}
	}
	return n
}

// maxSessions returns the most sessions that the data centre has, or may have without another grant:
//
//	reported active + Σ over the minutes still open when it was sent (granted - charged)
//
// The package documentation says why.
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

// applyReport takes a report, unless it is older than the last one.
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

// extendLease records that the data centre may renew sessions until a time, each for at most d, and moves the time at which all of them have
// ended everywhere.
func (r *reporter) extendLease(until time.Time, d, skew time.Duration) {
	if r.Ended {
		return
	}
	r.LeaseUntil = later(r.LeaseUntil, until)
	r.Longest = max(r.Longest, d)
	// a session lasts from the end of the minute of its renewal
	r.Horizon = later(r.Horizon, r.LeaseUntil.Add(time.Minute+r.Longest+2*skew))
}

// forgetGrants drops the grants that no report can mention any more.
func (r *reporter) forgetGrants(now time.Time, skew time.Duration) {
	for m := range r.Granted {
		if m < MinuteOf(now)-keptMinutes && r.unspentGrants(m, skew) == 0 {
			delete(r.Granted, m)
		}
	}
}

// end notes that the data centre did nothing any more from then on.
func (r *reporter) end(at time.Time, skew time.Duration) {
	r.Ended, r.Waiting = true, nil
	r.Horizon = earlier(r.Horizon, at.Add(time.Minute+r.Longest+2*skew))
}
