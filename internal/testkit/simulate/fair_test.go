package simulate

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/shopping"
	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// correlations returns the mean and the least rank correlation, over the minutes of arrival, of arrival with another time of some of
// the visitors.
func correlations(res *Result, of func(v *Visitor) (at time.Duration, ok bool)) (mean, least float64) {
	byMinute := map[int][2][]time.Duration{}
	for i := range res.Visitors {
		v := &res.Visitors[i]
		if at, ok := of(v); ok && v.Joined >= 2*time.Minute { // while there is room all go straight in
			lists := byMinute[int(v.Joined/time.Minute)]
			lists[0], lists[1] = append(lists[0], v.Joined), append(lists[1], at)
			byMinute[int(v.Joined/time.Minute)] = lists
		}
	}
	least = 1
	for _, lists := range byMinute {
		c := shopping.RankCorrelation(lists[0], lists[1])
		mean, least = mean+c/float64(len(byMinute)), min(least, c)
	}
	return mean, least
}

// TestOrderWithinAMinute: who comes earlier in a minute comes in earlier, but for what check-ins spread. With event streams they do
// not spread it. Where some visitors hold streams and others poll, both wait as long.
func TestOrderWithinAMinute(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ streams, entered, called float64 }{{0, 0.93, 0}, {1, 0.99, 0.99}, {0.5, 0.93, 0.99}} {
		o := experiment(queue.FIFO, Uniform)
		o.DataCentres, o.Delay, o.Over, o.Streams = 1, 0, 10*time.Minute, c.streams
		o.Visitors = 5000
		res := simulated(t, o)
		mean, least := correlations(res, func(v *Visitor) (time.Duration, bool) { return v.Admitted, v.In })
		t.Logf("%.0f %% hold streams: rank correlation of arrival with entering within a minute %.4f on average, %.4f at least", 100*c.streams, mean, least)
		if mean < c.entered {
			t.Errorf("rank correlation %.4f, want %.2f", mean, c.entered)
		}
		if c.called > 0 {
			mean, least = correlations(res, func(v *Visitor) (time.Duration, bool) { return v.Called, v.Called > 0 })
			t.Logf("with being called %.4f on average, %.4f at least", mean, least)
			if mean < c.called {
				t.Errorf("rank correlation with being called %.4f, want %.2f", mean, c.called)
			}
		}
		var waited [2]time.Duration
		var n [2]int
		for _, v := range res.Visitors {
			if v.Joined < 2*time.Minute {
				continue
			}
			k := 0
			if v.Streams {
				k = 1
			}
			waited[k] += v.Wait()
			n[k]++
		}
		if n[0] > 0 && n[1] > 0 {
			polls, streams := waited[0]/time.Duration(n[0]), waited[1]/time.Duration(n[1])
			t.Logf("visitors who poll wait %v on average, visitors with streams %v", polls, streams)
			if (polls - streams).Abs() > 20*time.Second { // a check-in
				t.Errorf("visitors who poll wait %v, visitors with streams %v", polls, streams)
			}
		}
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

// TestOrderAcrossDataCentres has visitors hold event streams at three data centres: without failures, and with lost messages and a data
// centre that is killed, whose visitors open other streams, and with wall clocks that differ. The order is that of one data centre.
func TestOrderAcrossDataCentres(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		loss     float64
		failures []Failure
		skew     time.Duration // of clocks that follow the global object's, for which limits allow as much
		total    int
	}{
		{total: 400},
		{loss: 0.1, failures: []Failure{{Kind: Killed, DataCentre: 1, From: 5 * time.Minute, Until: 5*time.Minute + 10*time.Second}}, total: 400},
		{skew: 5 * time.Second, total: 2000}, // no slot is free before the minute has begun by all clocks
	} {
		o := experiment(queue.FIFO, Uniform)
		o.DataCentres, o.Over, o.Visitors, o.Streams, o.Loss, o.Failures = 3, 10*time.Minute, 5000, 1, c.loss, c.failures
		o.Settings.Skew, o.Settings.TotalActiveUsers, o.Clocks, o.Follow = c.skew, c.total, c.skew, c.skew > 0
		mean, least := correlations(simulated(t, o), func(v *Visitor) (time.Duration, bool) { return v.Called, v.Called > 0 })
		t.Logf("%.0f %% of the messages lost, %d killed, clocks may differ by %v: rank correlation of arrival with being called %.4f on average, %.4f at least", 100*c.loss, len(c.failures), c.skew, mean, least)
		if mean < 0.99 {
			t.Errorf("rank correlation %.4f, want 0.99", mean)
		}
	}
}

// TestCalledVisitorsEnter has visitors take up to 29 s to come when they are called, also over the end of a minute: all enter, whatever the
// limits allow by then to others, at one data centre and at three.
func TestCalledVisitorsEnter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		total, centres int
		skew           time.Duration
		rolling        bool
	}{{total: 400, centres: 1}, {total: 2000, centres: 1}, {total: 400, centres: 3}, {total: 2000, centres: 3}, {total: 400, centres: 3, skew: 5 * time.Second}, {total: 2000, centres: 3, skew: 5 * time.Second}, {total: 2000, centres: 3, skew: 5 * time.Second, rolling: true}, {total: 2000, centres: 1, rolling: true}} {
		o := experiment(queue.FIFO, Uniform)
		o.DataCentres, o.Over, o.Visitors, o.Streams, o.Slow = c.centres, 10*time.Minute, 5000, 1, 0.5
		o.Settings.TotalActiveUsers, o.Settings.Skew, o.Settings.RollingMinute = c.total, c.skew, c.rolling
		called, missed := 0, 0
		for _, v := range simulated(t, o).Visitors {
			if v.Called > 0 {
				called++
			}
			if v.Missed {
				missed++
			}
		}
		t.Logf("%+v: of %d visitors who were called %d did not enter", c, called, missed)
		if missed > 0 || called < 3000 {
			t.Errorf("of %d visitors who were called %d did not enter", called, missed)
		}
	}
}
