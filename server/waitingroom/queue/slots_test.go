package queue

import (
	"math"
	"slices"
	"testing"
	"time"
)

// settings are valid ones with these limits.
func settings(t testing.TB, total, perMinute int, change ...func(*Settings)) Settings {
	t.Helper()
	s := Settings{TotalActiveUsers: total, NewUsersPerMinute: perMinute}
	for _, f := range change {
		f(&s)
	}
	return s.WithDefaults()
}

func minuteOf(t testing.TB, clock string) Minute {
	t.Helper()
	at, err := time.Parse("2006-01-02 15:04", "2021-05-27 "+clock)
	if err != nil {
		t.Fatal(err)
	}
	return MinuteOf(at)
}

func TestAvailable(t *testing.T) {
	for _, c := range []struct{ total, perMinute, active, admitted, want int }{
		{10_000, 2_000, 7_000, 0, 2_000},
		{200, 200, 201, 0, 0},
		{200, 200, 148, 0, 52},
		{200, 200, 50, 0, 150},
		{200, 100, 0, 70, 30},
		{200, 100, 0, 170, 0},
	} {
		s := settings(t, c.total, c.perMinute)
		if got := s.availableSlots(c.active, c.admitted); got != c.want {
			t.Errorf("%d of %d active, %d of %d admitted: %d slots, want %d", c.active, c.total, c.admitted, c.perMinute, got, c.want)
		}
	}
}

// TestReserve gives the slots to the oldest buckets first, and tells what they leave to new visitors.
func TestReserve(t *testing.T) {
	now := minuteOf(t, "15:57").Time()
	for _, c := range []struct {
		slots   int
		waiting []int
		want    []int
		left    int
	}{
		{2_000, []int{500, 1_000, 1_000}, []int{500, 1_000, 500}, 0},
		{2_000, []int{200}, []int{200}, 1_800},
		{52, []int{2, 50, 60}, []int{2, 50, 0}, 0},
		{0, []int{2, 50, 60}, []int{0, 0, 0}, 0},
		{20, nil, nil, 20},
	} {
		var buckets []Bucket
		var got []int
		sum, left := 0, c.slots
		for i := range len(c.waiting) + 1 {
			g := NewGlobal(settings(t, 2_000, 2_000), now)
			g.Receive(now, Report{DataCentre: "one", Seq: 1, At: now, Waiting: buckets, Unlimited: true}) // which is granted nothing yet
			r := g.reporters[reporterID{"one", 0}]
			if len(r.Granted) > 0 {
				t.Fatalf("%+v", r.Granted)
			}
			var mine int
			if mine, left = g.divideAmongWaiting(r, MinuteOf(now), c.slots, &Traffic{}); i > 0 {
				got = append(got, mine-sum)
			}
			sum = mine
			if i < len(c.waiting) {
				buckets = append(buckets, Bucket{minuteOf(t, "15:54") + Minute(i), c.waiting[i], 0})
			}
		}
		if !slices.Equal(got, c.want) || left != c.left {
			t.Errorf("%d slots for %v: %v and %d left, want %v and %d", c.slots, c.waiting, got, left, c.want, c.left)
		}
	}
}

func TestSum(t *testing.T) {
	m := minuteOf(t, "15:54")
	dublin := []Bucket{{m + 1, 20, 0}, {m + 2, 40, 0}}
	nairobi := []Bucket{{m, 2, 0}, {m + 1, 30, 0}, {m + 2, 20, 0}}
	if got, want := sumBuckets(dublin, nairobi), []Bucket{{m, 2, 0}, {m + 1, 50, 0}, {m + 2, 60, 0}}; !slices.Equal(got, want) {
		t.Errorf("sum is %v, want %v", got, want)
	}
}

// TestRoomIsTheSumOfReports is the state of the room in the article of 2021.
func TestRoomIsTheSumOfReports(t *testing.T) {
	now := minuteOf(t, "15:57").Time()
	m := minuteOf(t, "15:54")
	g := NewGlobal(settings(t, 200, 200), now)
	g.Receive(now, Report{DataCentre: "Dublin", Seq: 1, At: now, Active: 50, Waiting: []Bucket{{m + 1, 20, 0}, {m + 2, 40, 0}}})
	g.Receive(now, Report{DataCentre: "Nairobi", Seq: 1, At: now, Active: 151, Waiting: []Bucket{{m, 2, 0}, {m + 1, 30, 0}, {m + 2, 20, 0}}})
	room := g.Room(now)
	if want := []Bucket{{m, 2, 0}, {m + 1, 50, 0}, {m + 2, 60, 0}}; room.Active != 201 || !slices.Equal(room.Waiting, want) || room.Queued() != 112 {
		t.Errorf("active %d, waiting %v", room.Active, room.Waiting)
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		whole         int
		weights, want []int
	}{
		{500, []int{60, 40}, []int{300, 200}},
		{1_800, []int{60, 40}, []int{1_080, 720}},
		{2_000, []int{60, 40}, []int{1_200, 800}},
		{150, []int{20, 30, 150}, []int{15, 22, 113}}, // 15, 22.5, 112.5
		{1_000, []int{50, 50}, []int{500, 500}},
		{1_000, []int{45, 55}, []int{450, 550}},
		{20, []int{25, 75}, []int{5, 15}},
		{1, []int{1, 1, 1}, []int{1, 0, 0}},
		{7, []int{0, 0}, []int{0, 0}},
		{-3, []int{1}, []int{0}},
		{MaxUsers, []int{MaxUsers, MaxUsers, MaxUsers}, []int{333333334, 333333333, 333333333}},
	} {
		if got := divide(c.whole, c.weights); !slices.Equal(got, c.want) {
			t.Errorf("%d by %v: %v, want %v", c.whole, c.weights, got, c.want)
		}
	}
}

func FuzzDivide(f *testing.F) {
	f.Add(150, 20, 30, 150)
	f.Fuzz(func(t *testing.T, whole, a, b, c int) {
		whole &= 1<<30 - 1
		weights := []int{a & (1<<30 - 1), b & (1<<30 - 1), c & (1<<30 - 1)}
		total := weights[0] + weights[1] + weights[2]
		sum := 0
		for i, part := range divide(whole, weights) {
			sum += part
			if exact := float64(whole) * float64(weights[i]) / float64(max(1, total)); math.Abs(float64(part)-exact) > 1.001 {
				t.Errorf("%d by %v: part %d is %d, which is not near %v", whole, weights, i, part, exact)
			}
		}
		if total > 0 && sum != whole {
			t.Errorf("%d by %v: the parts sum to %d", whole, weights, sum)
		}
		caps := []int{c & 0xff, a & 0xff, b & 0xff}
		sum = 0
		for i, part := range divideCapped(whole, weights, caps) {
			sum += part
			if part > caps[i] {
				t.Errorf("part %d is %d of at most %d", i, part, caps[i])
			}
		}
		if want := min(whole, caps[0]+caps[1]+caps[2]); sum != want {
			t.Errorf("%d by %v with caps %v: the parts sum to %d, want %d", whole, weights, caps, sum, want)
		}
	})
}

func TestTraffic(t *testing.T) {
	history := Traffic{Shares: []Share{{"London", 30}, {"San Jose", 20}}, Of: 200}
	for name, want := range map[string]int{"London": 22, "San Jose": 15, "Delhi": 0} {
		if own, anywhere := history.slotsOf(150, name); own != want || anywhere != 113 {
			t.Errorf("150 slots: %d for %s and %d anywhere, want %d and 113", own, name, anywhere, want)
		}
	}
	if own, anywhere := (Traffic{Of: 200}).slotsOf(200, "London"); own != 0 || anywhere != 200 {
		t.Errorf("without history: %d and %d anywhere, want all of them anywhere", own, anywhere)
	}
	if own, anywhere := (Traffic{Shares: []Share{{"Dublin", 50}, {"Nairobi", 50}}}).slotsOf(1_000, "Nairobi"); own != 500 || anywhere != 0 {
		t.Errorf("of 1,000 slots %d are Nairobi's and %d anywhere, want 500 and 0", own, anywhere)
	}
}

// TestHistory holds the shares to the minute that the settings name.
func TestHistory(t *testing.T) {
	for _, c := range []struct {
		at      string
		history int
		want    []Share
		of      int
	}{
		{"16:33", 2, []Share{{"Dublin", 50}, {"Nairobi", 50}}, 0},
		{"16:34", 2, []Share{{"Dublin", 55}, {"Nairobi", 45}}, 0},
		{"16:32", 1, []Share{{"Dublin", 50}, {"Nairobi", 50}}, 2_000},
		{"16:33", 1, []Share{{"Dublin", 55}, {"Nairobi", 45}}, 2_000},
	} {
		now := minuteOf(t, c.at).Time().Add(20 * time.Second)
		g := NewGlobal(settings(t, 2_000, 1_000, func(s *Settings) { s.HistoryMinutes = c.history }), now)
		m := minuteOf(t, "16:31")
		g.Receive(now, Report{DataCentre: "Nairobi", Seq: 1, At: now, Minutes: []MinuteCounts{{Minute: m, Users: 50}, {Minute: m + 1, Users: 45}}})
		g.Receive(now, Report{DataCentre: "Dublin", Seq: 1, At: now, Minutes: []MinuteCounts{{Minute: m, Users: 50}, {Minute: m + 1, Users: 55}}})
		if got := g.Room(now).Traffic; !slices.Equal(got.Shares, c.want) || got.Of != c.of {
			t.Errorf("at %s, %d minutes back: %+v", c.at, c.history, got)
		}
	}
}

func TestPerWorker(t *testing.T) {
	// two workers, 10 slots, utilisation 10 %: 8 for each as in the article's diagram
	diagram := math.Log(10.0/8/2) / math.Log(0.1)
	for _, c := range []struct {
		name           string
		allocator      Allocator
		slots, workers int
		utilisation    float64
		curve          float64
		want           int
	}{
		{"the share of a worker in Nairobi", Even, 300, 3, 0, 1, 100},
		{"new users in Nairobi", Even, 1_080, 3, 0, 1, 360},
		{"random in Nairobi", Even, 1_200, 3, 0, 1, 400},
		{"San Jose's own", Even, 15, 3, 0.25, 1, 5},
		{"Anywhere", Even, 113, 10, 0.25, 1, 11},
		{"two workers", Even, 10, 2, 0, 1, 5},
		{"Delhi", Adaptive, 113, 10, 0.25, 1, 45},
		{"no visitor inside", Adaptive, 113, 10, 0, 1, 113},
		{"full", Adaptive, 113, 10, 1, 1, 11},
		{"a steeper curve", Adaptive, 100, 10, 0.5, 2, 40},
		{"the diagram", Adaptive, 10, 2, 0.1, diagram, 8},
	} {
		s := settings(t, 200, 200, func(s *Settings) { s.Allocator, s.CurveFactor = c.allocator, c.curve })
		if got := s.slotsPerWorker(c.slots, c.workers, c.utilisation); got != c.want {
			t.Errorf("%s: %d for each worker, want %d", c.name, got, c.want)
		}
	}
}

// TestWorkerBudget is the example of the article of 2023: 5 of San Jose's own and 11 of
// Anywhere's; Delhi has 45 under the curve.
func TestWorkerBudget(t *testing.T) {
	room := Room{Active: 50, Workers: 10, Traffic: Traffic{Shares: []Share{{"London", 30}, {"San Jose", 20}}, Of: 200}}
	for _, c := range []struct {
		allocator  Allocator
		dataCentre string
		workers    int
		want       int
	}{
		{Even, "San Jose", 3, 16},
		{Even, "Delhi", 1, 11},
		{Adaptive, "Delhi", 1, 45},
	} {
		w := NewWorker("w", settings(t, 200, 200, func(s *Settings) { s.Allocator = c.allocator }), 1)
		w.Apply(WorkerState{Worker: "w", DataCentre: c.dataCentre, Workers: c.workers, Room: room})
		slots := w.settings.availableSlots(room.Active, 0)
		if got := w.slotBudget(slots); slots != 150 || got != c.want {
			t.Errorf("%v in %s: %d of %d slots, want %d of 150", c.allocator, c.dataCentre, got, slots, c.want)
		}
	}
}

func TestEstimates(t *testing.T) {
	m := minuteOf(t, "15:54")
	room := Room{PerMinute: 30, Waiting: []Bucket{{m, 2, 0}, {m + 1, 50, 0}, {m + 2, 60, 0}}}
	if got := FIFOWait(60, 30); got != 2 {
		t.Errorf("60 people, 30 a minute: %v minutes, want 2", got)
	}
	if e := room.estimate(FIFO, m+2); !e.Known || e.Ahead != 52 || math.Ceil(e.Minutes) != 2 {
		t.Errorf("bucket 15:56: %+v, want 52 ahead and, rounded up, 2 minutes", e)
	}
	if e := room.estimate(FIFO, m); e.Ahead != 0 || e.Minutes != 0 {
		t.Errorf("the oldest bucket: %+v, want no visitor ahead", e)
	}
	if got := RandomWait(0.5, 10, 100); math.Abs(got-6.58) > 0.005 {
		t.Errorf("P 0.1, p 0.5: %v minutes, want 6.58", got)
	}
	if e := (&Room{PerMinute: 10, Waiting: []Bucket{{m, 100, 0}}}).estimate(Random, m); math.Abs(e.P25-2.73) > 0.005 || math.Abs(e.P50-6.58) > 0.005 || math.Abs(e.P75-13.16) > 0.005 || e.Minutes != e.P50 {
		t.Errorf("random: %+v", e)
	}
	if e := (&Room{Waiting: []Bucket{{m, 100, 0}}}).estimate(FIFO, m+1); e.Known || e.Minutes != 0 || e.Ahead != 100 {
		t.Errorf("no visitor admitted yet: %+v, want an unknown wait", e)
	}
	if got := RandomWait(0.5, 100, 100); got != 0 {
		t.Errorf("all come in within the minute: %v, want 0", got)
	}
	if got := RandomWait(0.5, 0, 100); !math.IsInf(got, 1) {
		t.Errorf("no visitor comes in: %v, want infinity", got)
	}
}

func TestDefaults(t *testing.T) {
	if s := settings(t, 2, 1); s.SessionDuration != 5*time.Minute || s.RefreshInterval != 20*time.Second || s.HistoryMinutes != 1 || s.Lease != s.SessionDuration {
		t.Errorf("defaults: %+v", s)
	}
}

var outcomeNames = [...]string{"wait", "pass", "refuse", "reissue", "draw"}

func (o Outcome) String() string { return outcomeNames[o] }
