package retry_test

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

func TestPauses(t *testing.T) {
	for attempts, want := range map[int]time.Duration{
		-1: time.Minute, 0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 6: 32 * time.Minute, 7: time.Hour, 31: time.Hour, 40: time.Hour, 64: time.Hour, math.MaxInt: time.Hour,
	} {
		if got := retry.Doubled(attempts, time.Minute, time.Hour); got != want {
			t.Errorf("the pause after %d attempts is %v, want %v", attempts, got, want)
		}
		if got := retry.After(attempts, time.Minute, time.Hour); got < want || got > want+want/4 {
			t.Errorf("the pause after %d attempts is %v, want %v and up to a quarter more", attempts, got, want)
		}
	}
}

func TestSleep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		begun := time.Now()
		if err := retry.Sleep(t.Context(), time.Hour); err != nil || time.Since(begun) != time.Hour {
			t.Errorf("it slept %v (%v)", time.Since(begun), err)
		}
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		begun = time.Now()
		if err := retry.SleepUnless(t.Context(), time.Hour, wake); err != nil || time.Since(begun) != 0 {
			t.Errorf("it slept %v although it was woken (%v)", time.Since(begun), err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := retry.Sleep(ctx, time.Hour); err != context.DeadlineExceeded || time.Since(begun) != time.Minute {
			t.Errorf("it slept %v although its context ended (%v)", time.Since(begun), err)
		}
	})
}

func TestFollowClock(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var ahead atomic.Int64
		ahead.Store(int64(24 * time.Hour))
		now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		var back []time.Duration
		go func() {
			done <- retry.FollowClock(ctx, time.Minute, now, func(by time.Duration) error {
				back = append(back, by)
				return nil
			})
		}()
		time.Sleep(90 * time.Second)
		ahead.Store(0)
		time.Sleep(time.Hour)
		ahead.Store(int64(time.Hour))
		time.Sleep(time.Hour)
		cancel()
		if err := <-done; err != context.Canceled || len(back) != 1 || back[0] != 24*time.Hour-time.Minute {
			t.Errorf("set back by %v (%v)", back, err)
		}
	})
}
