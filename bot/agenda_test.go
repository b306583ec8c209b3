package bot

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAgendaYieldsInOrderOfTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var a agenda
		a.set("later", start.Add(time.Hour))
		a.set("moved", start.Add(time.Minute))
		a.set("first", start.Add(time.Second))
		a.set("moved", start.Add(2*time.Hour))
		a.set("past", start.Add(-time.Hour))
		for _, want := range []struct {
			pkg   string
			after time.Duration
		}{{"past", 0}, {"first", time.Second}, {"later", time.Hour}, {"moved", 2 * time.Hour}} {
			got, err := a.next(t.Context(), time.Now)
			if err != nil {
				t.Fatal(err)
			}
			if got != want.pkg || time.Since(start) != want.after {
				t.Errorf("got %s after %v, want %s after %v", got, time.Since(start), want.pkg, want.after)
			}
		}
	})
}

func TestAgendaWakesForWhatIsSetMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var a agenda
		a.set("tomorrow", time.Now().Add(24*time.Hour))
		go func() {
			time.Sleep(time.Minute)
			a.set("now", time.Now())
		}()
		start := time.Now()
		got, err := a.next(t.Context(), time.Now)
		if err != nil || got != "now" || time.Since(start) != time.Minute {
			t.Errorf("got %s, %v after %v", got, err, time.Since(start))
		}
	})
}

func TestAgendaEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var a agenda
		if _, err := a.next(ctx, time.Now); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestBackoffDoublesUpToItsCap(t *testing.T) {
	for attempts, want := range map[int]time.Duration{
		0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 5: 16 * time.Minute, 9: 256 * time.Minute, 10: longestWait, 1000: longestWait,
	} {
		if got := backoff(attempts); got < want || got >= want+want/4 {
			t.Errorf("after %d attempts: %v, want %v and up to a quarter more", attempts, got, want)
		}
	}
}
