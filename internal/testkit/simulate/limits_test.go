package simulate

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/queue"
)

// complete reports whether the long form of a test runs. Tests call it, so that go test sees that their results depend on the
// variable.
func complete() bool { return os.Getenv("LARDER_TEST_WHOLE") != "" }

// seeds is how many runs the tests over seeds make: LARDER_SEEDS where it is set, else 1000 in the long form.
func seeds(t *testing.T) int {
	if s := os.Getenv("LARDER_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	switch {
	case testing.Short() || raceEnabled:
		return 60
	case complete():
		return 1000
	}
	return 120
}

// hostile is a run in which everything goes wrong that may go wrong, by its seed.
func hostile(seed uint64) Options {
	r := rand.New(rand.NewPCG(seed, 1))
	between := func(a, b time.Duration) time.Duration { return a + time.Duration(r.Int64N(int64(b-a)+1)) }
	total := 20 + r.IntN(80)
	over := between(2*time.Minute, 6*time.Minute)
	o := Options{
		Settings: queue.Settings{
			TotalActiveUsers:  total,
			NewUsersPerMinute: 1 + total/5 + r.IntN(total-total/5),
			SessionDuration:   time.Duration(1+r.IntN(2)) * time.Minute,
			FixedSessions:     r.IntN(5) == 0,
			Method:            []queue.Method{queue.FIFO, queue.Random}[r.IntN(2)],
			HistoryMinutes:    1 + r.IntN(2),
			Skew:              between(0, 2*time.Second),
			RollingMinute:     seed%3 == 0,
		},
		Visitors:    2*total + r.IntN(2*total),
		Over:        over,
		Profile:     []Profile{Uniform, Bursts, Shifts}[r.IntN(3)],
		Stay:        between(10*time.Second, 3*time.Minute),
		DataCentres: 1 + r.IntN(5),
		Workers:     1 + r.IntN(3),
		Delay:       between(0, 3*time.Second),
		Seed:        seed,
		Longest:     over + 7*time.Minute,
	}
	if r.IntN(2) == 0 {
		o.Patience = between(30*time.Second, 5*time.Minute)
	}
	if r.IntN(2) == 0 {
		o.Roaming = 0.2 * r.Float64()
	}
	if r.IntN(3) > 0 {
		o.Loss, o.Repeat = 0.5*r.Float64(), 0.3*r.Float64()
	}
	o.Streams, o.Slow = float64(seed%4)/3, float64(seed%5)/8
	for range r.IntN(4) {
		from := between(10*time.Second, over+time.Minute)
		o.Failures = append(o.Failures, Failure{FailureKind(r.IntN(5)), r.IntN(o.DataCentres), from, from + between(time.Second, 5*time.Minute)})
	}
	return o
}

func TestCounterNeverExceedsALimit(t *testing.T) {
	t.Parallel()
	full, busy, turned := 0, 0, 0
	for seed := range uint64(seeds(t)) {
		o := hostile(seed)
		res, err := Run(t.Context(), o)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		s := res.Settings
		if res.PeakActive > s.TotalActiveUsers || res.PeakAdmitted > s.NewUsersPerMinute {
			t.Errorf("seed %d: %d of %d active, %d of %d admitted in a minute\n%+v", seed, res.PeakActive, s.TotalActiveUsers, res.PeakAdmitted, s.NewUsersPerMinute, o)
		}
		if s.RollingMinute && res.PeakRolling > s.NewUsersPerMinute {
			t.Errorf("seed %d: %d of %d admitted in 60 seconds\n%+v", seed, res.PeakRolling, s.NewUsersPerMinute, o)
		}
		if !s.RollingMinute && res.PeakRolling > s.NewUsersPerMinute {
			turned++
		}
		if res.PeakActive == s.TotalActiveUsers {
			full++
		}
		if res.PeakAdmitted == s.NewUsersPerMinute {
			busy++
		}
	}
	// a room that lets no visitor in keeps its limits, too
	t.Logf("limit of active users reached in %d runs, of new users in %d; more than that came in 60 seconds across the turn of a minute in %d", full, busy, turned)
	if full == 0 || busy == 0 || turned == 0 {
		t.Error("no run has come to its limits, so nothing is proven")
	}
}
