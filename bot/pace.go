package bot

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// The pace at which a package's upstream is asked goes by how often releases appear: looksPerRelease times in the average
// time between the last few of them, up to now, but never more often than once in shortestPause, nor less often than
// Options.Interval says. So a release a day is enough to be asked every five minutes, and a package without one for weeks
// is asked at the longest pause. After a change or an event it is shortestPause for an hour, because releases come in groups.
const (
	shortestPause   = 5 * time.Minute
	looksPerRelease = 288
	keptMoves       = 5
	busy            = time.Hour
)

// An event that comes before what the registry answers with is followed by these looks, from the event on.
const (
	firstLag = 15 * time.Second
	lastLag  = time.Minute
)

// pause returns how long to wait after a look in which nothing failed.
func (u *Upstream) pause(now time.Time, longest time.Duration) time.Duration {
	shortest := min(shortestPause, longest)
	since := now.Sub(u.Named)
	switch {
	case u.Named.After(u.Changed) && since < firstLag:
		return min(firstLag, longest)
	case u.Named.After(u.Changed) && since < lastLag:
		return min(lastLag, longest)
	case since < busy || now.Sub(u.Changed) < busy:
		return shortest
	case len(u.Moves) == 0:
		return longest
	}
	gap := now.Sub(u.Moves[len(u.Moves)-1]) / time.Duration(len(u.Moves))
	return min(max(gap/looksPerRelease, shortest), longest)
}

// moved remembers when the newest releases appeared, by what upstream says of their times; where it says nothing, by when
// looks found them.
func (u *Upstream) moved(p *packages.Package, listed map[string]candidate, now time.Time) {
	known := make(map[string]bool, len(u.Seen))
	for _, version := range u.Seen {
		known[version] = true
	}
	var times []time.Time
	for name, v := range listed {
		if !packages.ValidVersion(name) || p.IgnoresVersion(name) { // such are no releases, and not in Seen by that name
			continue
		}
		if !v.published.IsZero() && !v.published.After(now) {
			times = append(times, v.published)
		} else if len(known) > 0 && !known[name] {
			times = append(times, now)
		}
	}
	if len(times) < keptMoves {
		for _, at := range u.Moves {
			if !slices.ContainsFunc(times, at.Equal) {
				times = append(times, at)
			}
		}
	}
	slices.SortFunc(times, func(a, b time.Time) int { return cmp.Compare(b.UnixNano(), a.UnixNano()) })
	u.Moves = slices.Clip(times[:min(len(times), keptMoves)])
}

// minWait is the least time between two polls of a package in one process.
const minWait = time.Minute

// The waits between attempts.
const (
	firstWait   = time.Minute
	longestWait = 6 * time.Hour
)

// backoff returns how long to wait after the given number of attempts failed.
func backoff(attempts int) time.Duration {
	return retry.After(attempts, firstWait, longestWait)
}

// longestRetryAfter is the longest wait that an upstream may ask for; package fetch bounds it.
const longestRetryAfter = 24 * time.Hour

// longestDelay returns how far ahead the next poll or the next attempt may be.
func (b *Bot) longestDelay() time.Duration {
	return max(longestRetryAfter, b.options.Interval, longestWait) + time.Hour
}

// boundTime returns a stored time that is at most so far ahead. One that is further ahead was stored by a clock that was ahead
// itself, and counts as now: so a wrong clock delays nothing for longer than that.
func boundTime(stored, now time.Time, longest time.Duration) time.Time {
	if stored.After(now.Add(longest)) {
		return now
	}
	return stored
}

// states returns the states of a package's versions, with times that the clock allows.
func (b *Bot) states(pkg string) ([]views.State, error) {
	states, err := views.States(b.store, pkg)
	for i := range states {
		states[i].Next = boundTime(states[i].Next, b.options.Now(), b.longestDelay())
	}
	return states, err
}

// jittered returns d and up to a tenth less.
func jittered(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
