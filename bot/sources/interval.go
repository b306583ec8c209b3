package sources

import (
	"cmp"
	"slices"
	"time"

	"github.com/larder-cdn/larder/packages"
)

// The bot polls an upstream pollsPerRelease times in the average time between the last few releases of the package, at most once in
// shortestInterval and at least once in Options.Interval. So a package with a release a day is polled every five minutes, and one without a
// release for weeks at the longest interval. After a change or an event the interval is shortestInterval for an hour, because releases come
// in groups.
const (
	shortestInterval = 5 * time.Minute
	pollsPerRelease  = 288
	maxMoves         = 5
	busy             = time.Hour
)

// A registry may respond with the old versions for a while after its event. The bot polls after each of these times from the event on.
const (
	FirstLag = 15 * time.Second
	lastLag  = time.Minute
)

// PollInterval returns how long to wait for the next poll after one that did not fail, at most longest. It is 15 seconds, then a minute, after an
// event whose change no poll has found yet; five minutes for an hour after a change or an event; else a fraction of the average time since the last
// few releases, at least five minutes; and longest if none is known.
func (u *Upstream) PollInterval(now time.Time, longest time.Duration) time.Duration {
	shortest := min(shortestInterval, longest)
	since := now.Sub(u.Named)
	switch {
	case u.Named.After(u.Changed) && since < FirstLag:
		return min(FirstLag, longest)
	case u.Named.After(u.Changed) && since < lastLag:
		return min(lastLag, longest)
	case since < busy || now.Sub(u.Changed) < busy:
		return shortest
	case len(u.Moves) == 0:
		return longest
	}
	gap := now.Sub(u.Moves[len(u.Moves)-1]) / time.Duration(len(u.Moves))
	return min(max(gap/pollsPerRelease, shortest), longest)
}

// RecordMoves replaces Moves by when the newest few releases appeared: by the times that upstream states, else now for a version that is not in Seen,
// unless Seen is empty. Invalid and ignored versions do not count. If the list has too few times, earlier Moves stay.
func (u *Upstream) RecordMoves(p *packages.Package, listed map[string]Candidate, now time.Time) {
	known := make(map[string]bool, len(u.Seen))
	for _, version := range u.Seen {
		known[version] = true
	}
	var times []time.Time
	for name, v := range listed {
		if !packages.ValidVersion(name) || p.IgnoresVersion(name) { // such are no releases, and not in Seen by that name
			continue
		}
		if !v.Published.IsZero() && !v.Published.After(now) {
			times = append(times, v.Published)
		} else if len(known) > 0 && !known[name] {
			times = append(times, now)
		}
	}
	if len(times) < maxMoves {
		for _, at := range u.Moves {
			if !slices.ContainsFunc(times, at.Equal) {
				times = append(times, at)
			}
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return cmp.Compare(b.UnixNano(), a.UnixNano()) })
	u.Moves = slices.Clip(times[:min(len(times), maxMoves)])
}
