package queue

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
)

// Room is what is known about the room at a time.
func (g *Global) Room(now time.Time) Room {
	g.advance(now)
	return g.sumReports()
}

// A world is a room whose messages take no time and never get lost, unless a test carries
// them itself.
type world struct {
	t        testing.TB
	now      time.Time
	settings Settings
	global   *Global
	sites    []*DataCentre
	ids      uint64
}

func newWorld(t testing.TB, s Settings, names ...string) *world {
	w := &world{t: t, now: time.Date(2023, 9, 11, 11, 44, 10, 0, time.UTC), settings: s}
	w.global = NewGlobal(s, w.now)
	for i, name := range names {
		w.sites = append(w.sites, NewDataCentre(name, 1, s, uint64(i), w.now))
	}
	return w
}

func (w *world) configure(s Settings) {
	w.settings = s
	w.global.Configure(w.now, s)
	for _, d := range w.sites {
		d.Configure(w.now, s)
	}
}

func (w *world) newcomer() Ticket {
	w.ids++
	return Ticket{ID: testID(w.ids)}
}

func testID(n uint64) (id TicketID) {
	binary.LittleEndian.PutUint64(id[:8], n)
	return id
}

// exchange carries a report of the data centre and its answer.
func (w *world) exchange(d *DataCentre) { d.Apply(w.now, w.global.Receive(w.now, d.Report(w.now))) }

func (w *world) visit(d *DataCentre, v Ticket) Decision {
	decision := d.Visit(w.now, v)
	if decision.Outcome == Draw {
		w.exchange(d)
		decision = d.Settle(w.now, v)
	}
	return decision
}

// pass moves the time on, with reports when they are due.
func (w *world) pass(d time.Duration) {
	until := w.now.Add(d)
	last := w.now
	for {
		next := until
		for _, s := range w.sites {
			if due := s.NextReport(last); due.Before(next) {
				next = due
			}
		}
		if !next.Before(until) {
			break
		}
		w.now, last = next, next
		for _, s := range w.sites {
			w.exchange(s)
		}
	}
	w.now = until
}

// fill lets n visitors in and returns their tickets.
func (w *world) fill(d *DataCentre, n int) (inside []Ticket) {
	w.t.Helper()
	for range n {
		decision := w.visit(d, w.newcomer())
		if decision.Outcome != Pass {
			w.t.Fatalf("visitor %d of %d: %v", len(inside), n, decision.Outcome)
		}
		inside = append(inside, decision.Ticket)
	}
	return inside
}

func (w *world) outcome(d *DataCentre, v Ticket, want Outcome) Ticket {
	w.t.Helper()
	decision := w.visit(d, v)
	if decision.Outcome != want {
		w.t.Fatalf("%v, want %v", decision.Outcome, want)
	}
	return decision.Ticket
}

// TestCounterOfTheArticle has 50 of 200 inside, of whom San Jose had 20 and London 30 in
// the minute before. So 150 slots are 15 for San Jose, 22 for London and 113 for
// Anywhere: 128 visitors come in through San Jose, by whichever worker.
func TestCounterOfTheArticle(t *testing.T) {
	w := newWorld(t, settings(t, 200, 200), "San Jose", "London")
	sanJose, london := w.sites[0], w.sites[1]
	w.fill(sanJose, 20)
	w.fill(london, 30)
	w.now = w.now.Add(44 * time.Second)
	w.exchange(sanJose)
	w.exchange(london)
	w.now = time.Date(2023, 9, 11, 11, 45, 54, 0, time.UTC)
	w.exchange(sanJose)
	w.exchange(london)
	w.exchange(sanJose)
	if own := sanJose.unused(); own != 15 {
		t.Errorf("%d slots are San Jose's own, want 15", own)
	}
	if own := london.unused(); own != 22 {
		t.Errorf("%d slots are London's own, want 22", own)
	}
	in := 0
	for range 200 {
		if w.visit(sanJose, w.newcomer()).Outcome == Pass {
			in++
		}
	}
	if in != 128 {
		t.Errorf("%d visitors came in through San Jose, want 128", in)
	}
	in = 0
	for range 200 {
		if w.visit(london, w.newcomer()).Outcome == Pass {
			in++
		}
	}
	if in != 22 {
		t.Errorf("%d visitors came in through London, want 22", in)
	}
}

// TestUnevenWorkers has 10 slots and two workers.
func TestUnevenWorkers(t *testing.T) {
	diagram := 0.2041199826559248 // ln 0.625 / ln 0.1: 8 slots a worker at 10 %
	for _, c := range []struct {
		allocator   Allocator
		users       [2]int
		in, waiting int
	}{
		{Even, [2]int{7, 1}, 6, 2},
		{Adaptive, [2]int{7, 1}, 8, 0},
		{Adaptive, [2]int{8, 7}, 15, 0},
		{Counter, [2]int{7, 1}, 8, 0},
		{Counter, [2]int{8, 7}, 10, 5},
	} {
		t.Run(fmt.Sprint(c.allocator, c.users), func(t *testing.T) {
			s := settings(t, 100, 10, func(s *Settings) { s.Allocator, s.CurveFactor = c.allocator, diagram })
			w := newWorld(t, s, "San Jose")
			var in, waiting int
			for i, n := range c.users {
				worker := NewWorker(fmt.Sprint(i), s, 1)
				worker.Apply(WorkerState{Worker: fmt.Sprint(i), DataCentre: "San Jose", Workers: 2, Room: Room{
					At: w.now, Active: 10, Workers: 2, Traffic: Traffic{Shares: []Share{{"San Jose", 10}}},
				}})
				for range n {
					v := w.newcomer()
					var decision Decision
					if c.allocator == Counter {
						decision = w.visit(w.sites[0], v)
					} else {
						decision = worker.Visit(w.now, v)
					}
					switch decision.Outcome {
					case Pass:
						in++
					case Wait:
						waiting++
					}
				}
			}
			if in != c.in || waiting != c.waiting {
				t.Errorf("%d in and %d waiting, want %d and %d", in, waiting, c.in, c.waiting)
			}
		})
	}
}

// TestMethodChanges is the queue 5 4 3 2 1 in which random takes a user out, such as 4: fifo goes on with the others in order.
func TestMethodChanges(t *testing.T) {
	seen := map[string]bool{}
	for seed := range uint64(30) {
		seen[fmt.Sprint(orderOfMethods(t, seed))] = true
	}
	for order := range seen {
		if !slices.Contains([]string{"[1 2 3 4 5]", "[2 1 3 4 5]", "[3 1 2 4 5]", "[4 1 2 3 5]", "[5 1 2 3 4]"}, order) {
			t.Errorf("they came in as %v", order)
		}
	}
	if len(seen) != 5 {
		t.Errorf("random takes out too few users: %v", seen)
	}
}

// orderOfMethods returns the order in which five users come in, the first of them under random and the others under fifo.
func orderOfMethods(t *testing.T, seed uint64) (order []int) {
	s := settings(t, 5, 1)
	w := newWorld(t, s)
	d := NewDataCentre("one", 1, s, seed, w.now)
	w.sites = append(w.sites, d)
	w.outcome(d, w.newcomer(), Pass) // the slot of this minute
	users := map[int]Ticket{}
	for n := 1; n <= 5; n++ {
		users[n] = w.outcome(d, w.newcomer(), Wait)
		w.now = w.now.Add(time.Minute)
		for k := 1; k <= n; k++ { // they keep coming, but there are no reports, so no slots
			users[k] = d.Settle(w.now, users[k]).Ticket
		}
	}
	// every visitor checks in every 25 seconds, in an order that is not the queue's
	for step := 0; len(order) < 5 && step < 40; step++ {
		switch len(order) {
		case 0:
			random := s
			random.Method = Random
			w.configure(random)
		case 1:
			w.configure(s)
		}
		w.now = w.now.Add(25 * time.Second)
		w.exchange(d)
		for _, n := range []int{4, 5, 3, 2, 1} {
			if users[n].AcceptedAt.IsZero() {
				decision := w.visit(d, users[n])
				users[n] = decision.Ticket
				if decision.Outcome == Pass {
					order = append(order, n)
				}
			}
		}
	}
	return order
}

func TestModes(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Settings)
		want   Outcome
	}{
		"fifo":        {func(s *Settings) {}, Pass},
		"queue all":   {func(s *Settings) { s.QueueAll = true }, Wait},
		"reject":      {func(s *Settings) { s.Method = Reject }, Refuse},
		"passthrough": {func(s *Settings) { s.Method = Passthrough }, Pass},
		"suspended":   {func(s *Settings) { s.Suspended = true }, Pass},
	} {
		t.Run(name, func(t *testing.T) {
			s := settings(t, 10, 10, c.change)
			w := newWorld(t, s, "one")
			v := w.newcomer()
			decision := w.visit(w.sites[0], v)
			if decision.Outcome != c.want || decision.Changed == (c.want == Refuse || s.Suspended) {
				t.Errorf("%+v", decision)
			}
			// a visitor inside stays there in every mode
			open := newWorld(t, settings(t, 10, 10), "one")
			inside := open.fill(open.sites[0], 1)[0]
			open.configure(s)
			open.now = open.now.Add(90 * time.Second)
			open.outcome(open.sites[0], inside, Pass)
		})
	}
}

// TestPassthroughIsCounted: 30 came in through a room for 10; no visitor does afterwards until
// they have gone.
func TestPassthroughIsCounted(t *testing.T) {
	limited := settings(t, 10, 10)
	w := newWorld(t, settings(t, 10, 10, func(s *Settings) { s.Method = Passthrough }), "one", "two")
	w.exchange(w.sites[0])
	w.fill(w.sites[0], 30)
	w.configure(limited)
	// "two" has reported under the new settings, but "one", where they are, has not
	w.outcome(w.sites[1], w.newcomer(), Wait)
	w.pass(10 * time.Second)
	w.outcome(w.sites[1], w.newcomer(), Wait)
	w.pass(7 * time.Minute)
	w.outcome(w.sites[1], w.newcomer(), Pass)
}

// TestPassthroughIsBounded has more visitors than are remembered.
func TestPassthroughIsBounded(t *testing.T) {
	s := settings(t, 10, 10, func(s *Settings) { s.Method = Passthrough })
	now := minuteOf(t, "15:54").Time()
	d := NewDataCentre("one", 1, s, 1, now)
	for n := range uint64(mostActive + 10) {
		decision := d.Visit(now, Ticket{ID: testID(n)})
		if decision.Outcome != Pass || decision.Changed != (n < mostActive) {
			t.Fatalf("visitor %d: %+v", n, decision)
		}
	}
	if n := d.Active(now); n != mostActive {
		t.Errorf("%d sessions", n)
	}
}

// TestEvent has five visitors wait before it, in an order that the shuffle changes and
// that does not depend on when they came.
func TestEvent(t *testing.T) {
	from := minuteOf(t, "15:50")
	shuffle := Shuffle{From: from, Until: from + 5, Salt: 7}
	places := map[Minute]int{}
	for n := range uint64(5000) {
		bucket := from + Minute(n%5)
		place, ok := shuffle.placeOf(testID(n), bucket)
		if other, _ := shuffle.placeOf(testID(n), from); !ok || place != other {
			t.Fatal("the place depends on the bucket")
		}
		places[place.bucket]++
	}
	chi := 0.0
	for m := from; m < from+5; m++ {
		chi += float64((places[m]-1000)*(places[m]-1000)) / 1000
	}
	if len(places) != 5 || chi > 18.5 { // 4 degrees of freedom, p = 0.001
		t.Errorf("places are not spread evenly: %v", places)
	}
	if got, ok := shuffle.placeOf(testID(1), from+5); ok {
		t.Errorf("a visitor who comes after the start is moved to %v", got)
	}
	if got, ok := (Shuffle{}).placeOf(testID(1), from); ok {
		t.Errorf("no shuffle moves %v to %v", from, got)
	}
}

// TestCalledInOrder: in a minute's bucket, a slot is for the visitor who came first, whoever
// checks in first.
func TestCalledInOrder(t *testing.T) {
	w := newWorld(t, settings(t, 40, 20, func(s *Settings) { s.SessionDuration = time.Minute }), "one")
	d := w.sites[0]
	w.fill(d, 20)
	w.pass(51 * time.Second)
	w.fill(d, 20)
	var line []Ticket
	for range 200 {
		w.now = w.now.Add(tick)
		w.exchange(d)
		line = append(line, w.outcome(d, w.newcomer(), Wait))
	}
	reserved, entered := map[TicketID]time.Time{}, 0
	last := -1 // of those who were called
	for entered < 200 {
		w.now = w.now.Add(time.Second)
		w.exchange(d)
		waits := -1
		for i, v := range line {
			switch r := d.rows[v.ID]; {
			case r.kind == waiting && r.back:
				waits = max(waits, i)
			case r.kind == called && reserved[v.ID].IsZero():
				if i < last || waits >= 0 {
					t.Fatalf("visitor %d is called after visitor %d, and before %d", i, last, waits)
				}
				reserved[v.ID], last = w.now, i
			}
		}
		for i, v := range line {
			if !v.Waiting() {
				continue
			}
			decision := w.visit(d, v)
			line[i] = decision.Ticket
			if decision.Outcome == Pass {
				if entered++; reserved[v.ID].IsZero() && d.rows[v.ID].accepted != w.now.UnixNano() {
					t.Errorf("visitor %d comes in without being called", i)
				}
			}
			if e := decision.Estimate; decision.Counted && decision.Outcome == Wait && e.Position != e.Ahead+1 {
				t.Errorf("%+v", e)
			}
		}
		if w.now.Sub(line[0].Since) > time.Hour {
			t.Fatalf("%d of 200 came in", entered)
		}
	}
}

// TestPosition tells visitors their place in line, without those who do not come back.
func TestPosition(t *testing.T) {
	w := newWorld(t, settings(t, 1, 1, func(s *Settings) { s.QueueAll = true }), "one")
	d := w.sites[0]
	w.exchange(d)
	position := func(v Ticket) int { return d.estimate(&v).Position }
	var line []Ticket
	for i := range 5 {
		w.now = w.now.Add(time.Second)
		v := w.newcomer()
		decision := w.visit(d, v)
		if decision.Estimate.Position != i+1 {
			t.Errorf("visitor %d is told place %d", i, decision.Estimate.Position)
		}
		line = append(line, decision.Ticket)
	}
	for range 6 { // a flood that never comes back, beside visitors who do
		for range 100 {
			w.outcome(d, w.newcomer(), Wait)
		}
		w.pass(24 * time.Second)
		for i := range line {
			line[i] = w.outcome(d, line[i], Wait)
		}
	}
	v := w.outcome(d, w.newcomer(), Wait)
	if got := position(v); got < 6 || got > 30 {
		t.Errorf("behind 5 visitors and a flood of 100 to 200 the place is %d", got)
	}
	for i, v := range line {
		if got := position(v); got != i+1 {
			t.Errorf("visitor %d is told place %d", i, got)
		}
	}
}
