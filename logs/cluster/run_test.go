package cluster

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/buckets"
)

func TestWatch(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	failed := errors.New("the bucket is away")
	for _, test := range []struct {
		name  string
		looks []string // a second apart; "!" is a look that fails
		want  int      // the look that says it is dead, -1 for none
	}{
		{"there never was one", []string{""}, 0},
		{"it beats", []string{"1/1", "1/1", "1/2", "1/2", "1/3", "1/3", "1/4", "1/4", "1/5", "1/5"}, -1},
		{"it stops", []string{"1/1", "1/2", "1/2", "1/2", "1/2", "1/2", "1/2", "1/2", "1/2"}, 7},
		{"another is elected meanwhile", []string{"1/1", "1/1", "1/1", "1/1", "1/1", "2/", "2/", "2/", "2/", "2/"}, -1},
		{"it was asked to end", []string{"1/1", "1/2", "1/gone"}, 2},
		{"the bucket was away", []string{"1/1", "1/1", "1/1", "!", "!", "!", "!", "!", "1/1", "1/1", "1/1"}, -1},
	} {
		w, got := HeartbeatMonitor{}, -1
		for i, sign := range test.looks {
			var err error
			if sign == "!" {
				err = failed
			}
			if w.isVacant(at(i), 2*time.Second, sign, err) {
				got = i
				break
			}
		}
		if got != test.want {
			t.Errorf("%s: dead at look %d, not %d", test.name, got, test.want)
		}
	}
}

// TestReopenedCandidateFindsNoLeader tests that a candidate whose node is opened more often than a leader is waited for finds that the leader is silent.
func TestReopenedCandidateFindsNoLeader(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	two.Beat = 50 * time.Millisecond
	one.lead(t)
	var leader HeartbeatMonitor
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*two.Beat)
		after, vacant := two.Follow(ctx, &leader, nil)
		cancel()
		if vacant {
			if after != 1 {
				t.Errorf("the leader of epoch %d is silent, want 1", after)
			}
			return
		}
	}
	t.Error("no run of the candidate found that the leader is silent")
}

// TestOutageDeposesNoLeader tests that a candidate does not take an outage of the bucket for the silence of the leader, whose last heartbeat is older
// by then.
func TestOutageDeposesNoLeader(t *testing.T) {
	f := &buckets.Faulty{Bucket: folder(t)}
	one, two := join(t, f, "one"), join(t, f, "two")
	two.Beat = 20 * time.Millisecond
	one.lead(t)
	two.catchUp(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var away, read atomic.Bool
	f.SetFaults(func(_ bool, key string) buckets.Fault {
		switch {
		case away.Load():
			return buckets.Never
		case strings.HasPrefix(key, "beat/"):
			read.Store(true)
		}
		return buckets.None
	})
	wasAway := false
	each := func(context.Context) error {
		switch {
		case !read.Swap(false):
		case wasAway: // the heartbeat from before the outage was read again
			cancel()
		default:
			wasAway = true
			away.Store(true)
			time.AfterFunc(8*two.Beat, func() { away.Store(false) })
		}
		return nil
	}
	if _, vacant := two.Follow(ctx, new(HeartbeatMonitor), each); vacant {
		t.Error("the candidate takes over after the outage")
	}
}
