package simulate

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// ranks returns the rank of each value; equal values share the mean of theirs.
func ranks(values []time.Duration) []float64 {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(values[a], values[b]) })
	ranks := make([]float64, len(values))
	for i := 0; i < len(order); {
		j := i
		for j < len(order) && values[order[j]] == values[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			ranks[k] = float64(i+j-1) / 2
		}
		i = j
	}
	return ranks
}

// spearman is the rank correlation of two lists.
func spearman(a, b []time.Duration) float64 {
	x, y := ranks(a), ranks(b)
	mean := float64(len(x)-1) / 2
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mean) * (y[i] - mean)
		xx += (x[i] - mean) * (x[i] - mean)
		yy += (y[i] - mean) * (y[i] - mean)
	}
	return xy / math.Sqrt(xx*yy)
}

// TestOrderWithinAMinute: who comes earlier in a minute comes in earlier, but for what
// check-ins spread.
func TestOrderWithinAMinute(t *testing.T) {
	t.Parallel()
	o := experiment(queue.FIFO, Uniform)
	o.DataCentres, o.Delay, o.Over = 1, 0, 20*time.Minute
	res := simulated(t, o)
	byMinute := map[int][]*Visitor{}
	for i := range res.Visitors {
		v := &res.Visitors[i]
		byMinute[int(v.Joined/time.Minute)] = append(byMinute[int(v.Joined/time.Minute)], v)
	}
	sum, n, least := 0.0, 0, 1.0
	for minute, visitors := range byMinute {
		if minute < 2 { // while there is room all go straight in
			continue
		}
		var came, entered []time.Duration
		for _, v := range visitors {
			came, entered = append(came, v.Joined), append(entered, v.Admitted)
		}
		c := spearman(came, entered)
		sum, n, least = sum+c, n+1, min(least, c)
	}
	t.Logf("rank correlation of arrival with entering within a minute: %.3f on average, %.3f at least", sum/float64(n), least)
	if sum/float64(n) < 0.93 {
		t.Errorf("rank correlation %.3f, want 0.93", sum/float64(n))
	}
}

// told returns the errors of what visitors were told, as parts of what they waited, of those
// who joined in a time and waited for some minutes.
func told(res *Result, from, until, least time.Duration) (errs []float64) {
	for _, v := range res.Visitors {
		waited := v.Admitted - v.ToldAt
		if v.ToldAt == 0 || !v.In || v.ToldAt < from || v.ToldAt >= until || waited < least || v.Attacks {
			continue
		}
		errs = append(errs, math.Abs((v.Told-waited).Seconds())/waited.Seconds())
	}
	slices.Sort(errs)
	return errs
}

// TestEstimates holds what visitors of a steady queue are told to an error of 20 % for nine of ten. While it is not known how fast the
// queue goes, in its first minute, they are told that; afterwards all are told a wait at once.
func TestEstimates(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		o    Options
	}{
		{"the experiment", experiment(queue.FIFO, Uniform)},
		{"a slow room", Options{Settings: queue.Settings{TotalActiveUsers: 200, NewUsersPerMinute: 50, SessionDuration: time.Minute}, Visitors: 4000, Over: 40 * time.Minute, Seed: 2, DataCentres: 1}},
		{"a rolling minute", Options{Settings: queue.Settings{TotalActiveUsers: 300, NewUsersPerMinute: 60, SessionDuration: time.Minute, RollingMinute: true}, Visitors: 4000, Over: 40 * time.Minute, Seed: 3, DataCentres: 1}},
	} {
		res := simulated(t, c.o)
		errs := told(res, 10*time.Minute, 40*time.Minute, 5*time.Minute)
		if len(errs) < 500 {
			t.Fatalf("%s: %d visitors were told anything", c.name, len(errs))
		}
		t.Logf("%s: error of %d estimates: p50 %.1f %%, p90 %.1f %%", c.name, len(errs), 100*errs[len(errs)/2], 100*errs[len(errs)*9/10])
		if errs[len(errs)*9/10] > 0.2 {
			t.Errorf("%s: p90 of the error is %.0f %%, want 20 %%", c.name, 100*errs[len(errs)*9/10])
		}
		begins := time.Hour // of the queue
		for _, v := range res.Visitors {
			if v.Admitted > v.Joined {
				begins = min(begins, v.Joined)
			}
		}
		soon, later := 0, 0
		for _, v := range res.Visitors {
			switch {
			case v.Admitted <= v.Joined:
			case v.ToldAt > 0 && v.ToldAt < begins+time.Minute:
				t.Fatalf("%s: a visitor is told a wait %v after the queue has begun", c.name, v.ToldAt-begins)
			case v.Joined < begins+time.Minute:
				soon++
			case v.Joined > begins+3*time.Minute:
				later++
				if v.ToldAt == 0 || v.ToldAt > v.Joined+2*time.Second {
					t.Fatalf("%s: a visitor who came %v after the queue has begun is told a wait %v later", c.name, v.Joined-begins, v.ToldAt-v.Joined)
				}
			}
		}
		if soon == 0 || later == 0 {
			t.Errorf("%s: %d visitors waited in the first minute of the queue, and %d later", c.name, soon, later)
		}
	}
}

// TestEstimatesUnderAFlood has as many clients as visitors throw their tickets away every
// second. They are not told as people ahead.
func TestEstimatesUnderAFlood(t *testing.T) {
	t.Parallel()
	long(t)
	o := Options{
		Settings: queue.Settings{TotalActiveUsers: 100, NewUsersPerMinute: 40, SessionDuration: time.Minute}, Visitors: 1500, Over: 20 * time.Minute, Seed: 4, DataCentres: 1,
		Attack: Drop, Attackers: 30, Longest: 60 * time.Minute,
	}
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	errs := told(res, 10*time.Minute, 20*time.Minute, 3*time.Minute)
	if len(errs) < 100 {
		t.Fatalf("%d visitors were told anything", len(errs))
	}
	t.Logf("error of %d estimates under a flood: p50 %.1f %%, p90 %.1f %%", len(errs), 100*errs[len(errs)/2], 100*errs[len(errs)*9/10])
	if errs[len(errs)*9/10] > 0.2 {
		t.Errorf("p90 of the error is %.0f %%, want 20 %%", 100*errs[len(errs)*9/10])
	}
}
