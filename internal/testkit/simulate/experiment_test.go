package simulate

import (
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// experiment is 10,000 users who stay about a minute.
func experiment(method queue.Method, profile Profile) Options {
	return Options{
		Settings: queue.Settings{TotalActiveUsers: 400, NewUsersPerMinute: 400, SessionDuration: time.Minute, Method: method},
		Profile:  profile, Delay: 50 * time.Millisecond, Seed: 1,
	}
}

func simulated(t *testing.T, o Options) *Result {
	t.Helper()
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := res.Settings; s.Allocator == queue.Counter && (res.PeakActive > s.TotalActiveUsers || res.PeakAdmitted > s.NewUsersPerMinute) {
		t.Errorf("%d active of %d, %d admitted of %d", res.PeakActive, s.TotalActiveUsers, res.PeakAdmitted, s.NewUsersPerMinute)
	}
	if n := len(res.Waits()); n != len(res.Visitors) {
		t.Errorf("%d of %d came in", n, len(res.Visitors))
	}
	draw(t, res, o.Profile)
	return res
}

// draw writes the table and the charts of an experiment into the folder that LARDER_TEST_PICTURES names, if any.
func draw(t *testing.T, res *Result, profile Profile) {
	dir := os.Getenv("LARDER_TEST_PICTURES")
	if dir == "" {
		return
	}
	var table strings.Builder
	if err := res.Table(&table); err != nil {
		t.Fatal(err)
	}
	files, err := res.Draw(dir, t.Name()+"-"+string(profile))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\n%s", &table, strings.Join(files, "\n"))
}

// long leaves out what takes seconds where there is no time, or where the race detector
// makes minutes of it and has one goroutine to watch.
func long(t *testing.T) {
	if testing.Short() || raceEnabled {
		t.Skip("takes long")
	}
}

// fit is the least-squares line through the median waits by minute of arrival, and the
// part of their variance that it explains.
func fit(medians []float64) (slope, r2 float64) {
	n := float64(len(medians))
	var sx, sy, sxx, sxy, syy float64
	for i, y := range medians {
		x := float64(i)
		sx, sy, sxx, sxy, syy = sx+x, sy+y, sxx+x*x, sxy+x*y, syy+y*y
	}
	cov, vx, vy := sxy-sx*sy/n, sxx-sx*sx/n, syy-sy*sy/n
	return cov / vx, cov * cov / (vx * vy)
}

func medians(r *Result) (medians []float64, spread time.Duration) {
	for _, w := range r.waitsByArrival() {
		if len(w) > 100 {
			medians = append(medians, quantile(w, 0.5).Minutes())
			spread = max(spread, quantile(w, 0.9)-quantile(w, 0.1))
		}
	}
	return medians, spread
}

// TestFIFOWaits: the wait grows linearly with the minute of arrival, and friends who come
// in the same minute come in at about the same time.
func TestFIFOWaits(t *testing.T) {
	t.Parallel()
	for _, profile := range []Profile{Uniform, Together} {
		res := simulated(t, experiment(queue.FIFO, profile))
		medians, spread := medians(res)
		slope, r2 := fit(medians)
		t.Logf("%s: slope %.2f, R² %.4f, p10 to p90 within a minute of arrival at most %v, utilisation %.3f", profile, slope, r2, spread, res.Utilisation())
		if len(medians) != 30 || r2 < 0.98 || slope < 0.5 {
			t.Errorf("%s: %d minutes, slope %.2f, R² %.3f: not linear", profile, len(medians), slope, r2)
		}
		// it takes two minutes and a quarter to let the arrivals of one minute in
		if spread > 200*time.Second {
			t.Errorf("%s: within a minute of arrival the waits are spread over %v", profile, spread)
		}
	}
}

// TestRandomWaits: the wait does not depend on when the ticket says that its holder came.
func TestRandomWaits(t *testing.T) {
	t.Parallel()
	long(t)
	res := simulated(t, experiment(queue.Random, Together))
	all := res.Waits()
	const groups, parts = 6, 4
	var counts [groups][parts]float64
	var sums [groups]float64
	for _, v := range res.Visitors {
		g := int(v.Arrived * groups / (30 * time.Minute))
		part := 0
		for part < parts-1 && v.Wait() > quantile(all, float64(part+1)/parts) {
			part++
		}
		counts[g][part]++
		sums[g]++
	}
	chi := 0.0
	for g := range groups {
		for p := range parts {
			expected := 0.0
			for k := range groups {
				expected += counts[k][p]
			}
			expected *= sums[g] / float64(len(res.Visitors))
			chi += math.Pow(counts[g][p]-expected, 2) / expected
		}
	}
	medians, _ := medians(res)
	slope, _ := fit(medians)
	t.Logf("χ² %.1f with 15 degrees of freedom, slope %.3f, utilisation %.3f", chi, slope, res.Utilisation())
	if chi > 37.7 { // p = 0.001
		t.Errorf("the wait depends on the arrival: χ² %.1f", chi)
	}
	if math.Abs(slope) > 0.1 {
		t.Errorf("the median wait changes by %.2f minutes for each minute of arrival", slope)
	}
}

// chances compares, minute by minute, how many of a group came in with how many would
// have if every visitor who waited since before the minute had had the same chance.
func chances(res *Result, groups int, group func(v *Visitor, minute int) int) (came, expected []float64) {
	came, expected = make([]float64, groups), make([]float64, groups)
	for m := range res.Minutes {
		waiting, in := make([]float64, groups), make([]float64, groups)
		var all, allIn float64
		start, end := time.Duration(m)*time.Minute, time.Duration(m+1)*time.Minute
		for i := range res.Visitors {
			v := &res.Visitors[i]
			// a visitor who has come within the last interval has not had a chance yet
			if v.Joined > start-25*time.Second || v.Admitted < start || !v.In {
				continue
			}
			g := group(v, m)
			if g < 0 {
				continue
			}
			waiting[g]++
			all++
			if v.Admitted < end {
				in[g]++
				allIn++
			}
		}
		if all < 200 {
			continue // hardly any visitor is left to compare
		}
		for g := range groups {
			came[g] += in[g]
			expected[g] += waiting[g] * allIn / all
		}
	}
	return came, expected
}

func chiSquare(came, expected []float64) float64 {
	chi := 0.0
	for g := range came {
		chi += (came[g] - expected[g]) * (came[g] - expected[g]) / expected[g]
	}
	return chi
}

// TestRandomIsFair: a visitor who waits has the same chance as every other who does, whenever they
// came and in whatever second they check in.
func TestRandomIsFair(t *testing.T) {
	t.Parallel()
	long(t)
	for seed := uint64(1); seed <= 3 && (complete() || seed == 1); seed++ {
		o := experiment(queue.Random, Uniform)
		o.Visitors, o.Seed = 6_000, seed
		o.Settings.TotalActiveUsers, o.Settings.NewUsersPerMinute = 250, 250
		res := simulated(t, o)
		for _, c := range []struct {
			name   string
			groups int
			group  func(*Visitor, int) int
		}{
			{"minutes waited", 5, func(v *Visitor, m int) int { return min(4, (m-int(v.Joined/time.Minute))/3) }},
			{"second of the interval", 5, func(v *Visitor, _ int) int { return int(v.Joined % (20 * time.Second) / (4 * time.Second)) }},
			{"second of the minute", 6, func(v *Visitor, _ int) int { return int(v.Joined % time.Minute / (10 * time.Second)) }},
		} {
			came, expected := chances(res, c.groups, c.group)
			chi := chiSquare(came, expected)
			t.Logf("seed %d, %s: χ² %.1f, %.0f came in of %.0f expected", seed, c.name, chi, came, expected)
			if limit := []float64{0, 0, 0, 0, 18.5, 20.5}[c.groups-1]; chi > limit { // p = 0.001
				t.Errorf("seed %d: the chance depends on the %s: χ² %.1f, limit %.1f", seed, c.name, chi, limit)
			}
		}
	}
}

// TestAttackersGainNothing: a visitor who hammers, drops or repeats tickets comes in no earlier.
func TestAttackersGainNothing(t *testing.T) {
	t.Parallel()
	long(t)
	for _, method := range []queue.Method{queue.FIFO, queue.Random} {
		for i, attack := range []Attack{Hammer, Drop, Resend, Twice} {
			if !complete() && (method == queue.FIFO) != (i%2 == 0) {
				continue // each attack is tried once, and each method with two of them
			}
			o := experiment(method, Uniform)
			o.Visitors, o.Over, o.Longest = 3_000, 10*time.Minute, time.Hour
			o.Settings.TotalActiveUsers, o.Settings.NewUsersPerMinute = 250, 250
			o.Attackers, o.Attack = 300, attack
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			// against the visitors who came in the same minute
			var gain, honest, attackers float64
			byMinute := map[int][2][2]float64{}
			for _, v := range res.Visitors {
				k := 0
				if v.Attacks {
					k = 1
				}
				wait := v.Wait()
				if !v.In {
					wait = o.Longest - v.Joined
				}
				x := byMinute[int(v.Joined/time.Minute)]
				x[k][0] += wait.Seconds()
				x[k][1]++
				byMinute[int(v.Joined/time.Minute)] = x
			}
			for _, x := range byMinute {
				if x[1][1] > 0 {
					gain += x[1][1] * (x[0][0]/x[0][1] - x[1][0]/x[1][1])
					attackers += x[1][1]
					honest += x[1][1] * x[0][0] / x[0][1]
				}
			}
			gain, honest = gain/attackers, honest/attackers
			t.Logf("%v, %s: honest visitors wait %.0f s, attackers %.0f s", method, attack, honest, honest-gain)
			if gain > 0.1*honest { // three standard deviations of the mean under Random
				t.Errorf("%v, %s: attackers gain %.0f s of %.0f s", method, attack, gain, honest)
			}
		}
	}
}
