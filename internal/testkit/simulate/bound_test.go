package simulate

import (
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// TestUnusedSlots holds what the counter leaves unused to the bound in the documentation
// of package queue: where more people wait than there are slots, as many as there are
// come in within one report, two ways, two skews, two check-ins and, where the minute
// turns, a minute more.
func TestUnusedSlots(t *testing.T) {
	t.Parallel()
	checked, slow := 0, 0
	for seed := range uint64(seeds(t) / 4) {
		o := hostile(seed)
		o.Failures, o.Loss, o.Roaming, o.Delay = nil, 0, 0, o.Delay/6
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		s := res.Settings
		usual := int((2*time.Second + 3*o.Delay + 2*s.Skew + 48*time.Second) / time.Second)
		within := usual + 60
		if s.RollingMinute { // the minute before counts too, by its slices
			within += 60
		}
		admitted := 0
		for i, x := range res.Seconds {
			if i%60 == 1 && !s.RollingMinute { // the sample of a minute's first second is the last one's
				admitted = 0
			}
			admitted += x.Admitted
			if s.RollingMinute && i >= 60 {
				admitted -= res.Seconds[i-60].Admitted
			}
			slots := min(s.TotalActiveUsers-x.Active, s.NewUsersPerMinute-admitted)
			if slots <= 0 || i+within >= len(res.Seconds) {
				continue
			}
			used, usedSoon, wanted := 0, 0, true
			for k := i + 1; k <= i+within && wanted; k++ {
				wanted = res.Seconds[k].Waiting >= slots
				used += res.Seconds[k].Admitted
				if k <= i+usual {
					usedSoon += res.Seconds[k].Admitted
				}
			}
			if !wanted {
				continue
			}
			checked++
			if usedSoon < slots {
				slow++
			}
			if used < slots {
				t.Errorf("seed %d, second %d: of %d slots %d are in use after %d s", seed, i, slots, used, within)
			}
		}
	}
	t.Logf("%d moments with free slots, %.1f %% needed the minute more", checked, 100*float64(slow)/float64(checked))
	if checked < 300 {
		t.Errorf("only %d moments were checked", checked)
	}
}

// TestWeaknesses measures what the articles say of the allocators that came before: even
// queues long before the limit, adaptive exceeds it after a quiet time, counter does
// neither.
func TestWeaknesses(t *testing.T) {
	t.Parallel()
	long(t)
	type measure struct {
		first    float64 // active users when a visitor had to wait first, as part of the limit
		exceeded float64 // the most active users, as part of the limit
	}
	mean := func(a queue.Allocator, profile Profile, visitors int, over time.Duration) (m measure) {
		runs := 10
		if complete() {
			runs = 30
		}
		for seed := range uint64(runs) {
			res, err := Run(t.Context(), Options{
				Settings: queue.Settings{TotalActiveUsers: 200, NewUsersPerMinute: 200, SessionDuration: 5 * time.Minute, Method: queue.Random, Allocator: a},
				Visitors: visitors, Over: over, Profile: profile, DataCentres: 3, Workers: 3, Delay: 100 * time.Millisecond, Seed: seed, Longest: 10 * time.Minute,
			})
			if err != nil {
				t.Fatal(err)
			}
			first := res.FirstWait
			if first == 0 { // no visitor had to wait
				first = res.PeakActive
			}
			m.first += float64(first) / 200 / float64(runs)
			m.exceeded = max(m.exceeded, float64(res.PeakActive)/200)
		}
		return m
	}
	steady, burst := map[queue.Allocator]measure{}, map[queue.Allocator]measure{}
	for _, a := range []queue.Allocator{queue.Even, queue.Adaptive, queue.Counter} {
		steady[a] = mean(a, Uniform, 300, 8*time.Minute)
		burst[a] = mean(a, Bursts, 600, 2*time.Minute)
		t.Logf("%v: queues from %.0f %% of the limit when visitors come evenly, %.0f %% in bursts; at most %.0f %% and %.0f %% active",
			a, 100*steady[a].first, 100*burst[a].first, 100*steady[a].exceeded, 100*burst[a].exceeded)
	}
	if e := steady[queue.Even].first; e > 0.8 {
		t.Errorf("even queues from %.2f of the limit, not early", e)
	}
	if c, e := steady[queue.Counter].first, burst[queue.Counter].first; c < 0.9 || e < burst[queue.Even].first+0.3 {
		t.Errorf("counter queues from %.2f of the limit, and in bursts from %.2f", c, e)
	}
	if a := burst[queue.Adaptive].exceeded; a < 1.2 {
		t.Errorf("adaptive reaches %.2f of the limit, and does not exceed it", a)
	}
	for name, m := range map[string]measure{"steady": steady[queue.Counter], "burst": burst[queue.Counter]} {
		if m.exceeded > 1 {
			t.Errorf("counter, %s: %.2f of the limit", name, m.exceeded)
		}
	}
}
