package retry_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
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
	synctest.Test(t, func(t *testing.T) {
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
