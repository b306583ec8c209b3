package sources

import (
	"math/rand/v2"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
)

// MinWait is the least time between two polls of a package in one process.
const MinWait = time.Minute

// The waits between attempts.
const (
	firstWait   = time.Minute
	LongestWait = 6 * time.Hour
)

// Backoff returns how long to wait after that many failed attempts in a row: a minute after the first, doubled up to six hours, and at random up to a
// quarter more.
func Backoff(attempts int) time.Duration {
	return retry.After(attempts, firstWait, LongestWait)
}

// longestRetryAfter is the longest wait that an upstream may ask for; package fetch bounds it.
const longestRetryAfter = 24 * time.Hour

// longestDelay returns how far ahead a stored time of a poll or attempt can be: the longest of the poll interval, the longest backoff and the longest
// Retry-After, and an hour more.
func (r *Records) longestDelay() time.Duration {
	return max(longestRetryAfter, r.options.Interval, LongestWait) + time.Hour
}

// BoundTime returns stored, or now if stored is more than longest after now. Such a time was stored while the clock was ahead; so a wrong clock
// delays nothing for longer than that.
func BoundTime(stored, now time.Time, longest time.Duration) time.Time {
	if stored.After(now.Add(longest)) {
		return now
	}
	return stored
}

// Jittered returns a random duration between nine tenths of d and d.
func Jittered(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

// Later returns the later one of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// LongestRest is the longest pause between two attempts of what fails although its upstream is up.
const LongestRest = time.Hour
