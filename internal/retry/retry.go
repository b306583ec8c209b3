// Package retry says how long to wait before what failed is tried again.
//
// It must not know what is tried.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

// Doubled returns the pause after so many attempts that failed in a row: first after the first of
// them, doubled after each further one, and longest at most.
func Doubled(attempts int, first, longest time.Duration) time.Duration {
	if pause := first << max(0, attempts-1); attempts < 32 && pause>>max(0, attempts-1) == first {
		return min(pause, longest)
	}
	return longest
}

// After returns the doubled pause and up to a quarter more, so that what failed together is not
// tried again together.
func After(attempts int, first, longest time.Duration) time.Duration {
	pause := Doubled(attempts, first, longest)
	return pause + rand.N(pause/4+1)
}

// How often Transient tries, and its backoff.
const (
	tries        = 3
	firstPause   = 200 * time.Millisecond
	longestPause = 2 * time.Second
)

// Transient calls do once, and up to three times, with a backoff, until it succeeds, ctx ends, or final reports that its error is
// not transient. It returns the last error, or that of ctx if ctx has ended before another call.
func Transient(ctx context.Context, final func(error) bool, do func(context.Context) error) error {
	for attempt := 1; ; attempt++ {
		err := do(ctx)
		switch {
		case err == nil || attempt == tries || final(err):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if err := Sleep(ctx, After(attempt, firstPause, longestPause)); err != nil {
			return err
		}
	}
}

// FollowClock calls back when the clock is behind what it was at the last check, with how much; it does not notice that the clock was
// set back by less than interval. It checks at intervals until ctx ends or back fails, and returns the error of ctx or of back.
func FollowClock(ctx context.Context, interval time.Duration, now func() time.Time, back func(by time.Duration) error) error {
	for before := now().Round(0); ; { // without the monotonic reading, which would hide that the clock was set back
		if err := Sleep(ctx, interval); err != nil {
			return err
		}
		at := now().Round(0)
		if at.Before(before) {
			if err := back(before.Sub(at)); err != nil {
				return err
			}
		}
		before = at
	}
}

// Wake wakes the goroutine that receives from wake or, if none does, the next one that will; further calls before that do nothing. wake has room for
// one value. Wake does not block.
func Wake(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// Sleep waits that long, or until the context ends, and returns its error then. If both are so at once, it may return nil.
func Sleep(ctx context.Context, d time.Duration) error { return SleepUnless(ctx, d, nil) }

// SleepUnless waits that long, or until something comes from wake or wake is closed, and returns nil; or until the context ends,
// and returns its error. A nil wake never ends the wait.
func SleepUnless(ctx context.Context, d time.Duration, wake <-chan struct{}) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}
