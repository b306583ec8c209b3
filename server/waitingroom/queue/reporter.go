package queue

import (
	"time"
)

// A reporter is what the global object knows about one incarnation of a data centre.
type reporter struct {
	Report                             // the last one by Seq
	Heard      time.Time               // when it came
	Granted    map[Minute]*given       // by minute
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
	// centre's share and from Anywhere. The rest is for those who waited.
	Own, Drawn int
}

func (r *reporter) granted(m Minute) given {
	if g := r.Granted[m]; g != nil {
		return *g
	}
	return given{}
}

// outstanding is how many of the minute's grants may still be charged, as far as the
// last report tells; none once it was sent after the minute was over everywhere.
func (r *reporter) outstanding(m Minute, skew time.Duration) int {
	if !r.At.Before(m.end().Add(skew)) {
		return 0
	}
	return max(0, r.granted(m).Total-r.Counts[m].Charged)
}

// bound is the most sessions that there are or may yet be without another grant:
//
//	reported active + Σ over the minutes still open when it was sent (granted - charged)
//
// See the package documentation for why.
func (r *reporter) bound(now time.Time, skew time.Duration) int {
	if !now.Before(r.Horizon) {
		return 0
	}
	n := r.Active
	for m := range r.Granted {
		n += r.outstanding(m, skew)
	}
	return n
}

// hear takes a report, unless it is older than the last one.
func (r *reporter) hear(now time.Time, report Report) {
	if report.Seq <= r.Seq {
		return
	}
	r.Report, r.Heard = report, now
	for _, c := range report.Minutes {
		r.Counts[c.Minute] = c
	}
	for m := range r.Counts {
		if m < MinuteOf(now)-keptMinutes-2 {
			delete(r.Counts, m)
		}
	}
}

// lease promises that sessions may be renewed until then, for at most d.
func (r *reporter) lease(until time.Time, d, skew time.Duration) {
	if r.Ended {
		return
	}
	r.LeaseUntil = later(r.LeaseUntil, until)
	r.Longest = max(r.Longest, d)
	// a session lasts from the end of the minute of its renewal
	r.Horizon = later(r.Horizon, r.LeaseUntil.Add(time.Minute+r.Longest+2*skew))
}

// forget drops the grants that no report can speak of any more.
func (r *reporter) forget(now time.Time, skew time.Duration) {
	for m := range r.Granted {
		if m < MinuteOf(now)-keptMinutes && r.outstanding(m, skew) == 0 {
			delete(r.Granted, m)
		}
	}
}

// end notes that the data centre did nothing any more from then on.
func (r *reporter) end(at time.Time, skew time.Duration) {
	r.Ended = true
	if horizon := at.Add(time.Minute + r.Longest + 2*skew); horizon.Before(r.Horizon) {
		r.Horizon = horizon
	}
}
