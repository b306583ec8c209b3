package discovery

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

func TestPace(t *testing.T) {
	const day = 24 * time.Hour
	now := Noon.Add(1000 * day)
	ago := func(ds ...time.Duration) (times []time.Time) {
		for _, d := range ds {
			times = append(times, now.Add(-d))
		}
		return times
	}
	for _, tt := range []struct {
		name  string
		moves []time.Time
		// since upstream changed, and since an event named the package; 0: never
		changed, named time.Duration
		longest        time.Duration
		want           time.Duration
	}{
		{"nothing is known", nil, 0, 0, time.Hour, time.Hour},
		{"a release a day", ago(day/2, 3*day/2, 5*day/2, 7*day/2, 9*day/2), 0, 0, time.Hour, 5 * time.Minute},
		{"a release every three days", ago(3*day, 6*day, 9*day, 12*day, 15*day), 0, 0, time.Hour, 15 * time.Minute},
		{"a release every two weeks", ago(14*day, 28*day, 42*day, 56*day, 70*day), 0, 0, time.Hour, time.Hour},
		{"many releases, a year ago", ago(365*day, 365*day, 365*day, 365*day, 365*day), 0, 0, time.Hour, time.Hour},
		{"the first release, today", ago(day / 2), 0, 0, time.Hour, 5 * time.Minute},
		{"just changed", ago(365 * day), 59 * time.Minute, 0, time.Hour, 5 * time.Minute},
		{"changed for a while", ago(365 * day), 61 * time.Minute, 0, time.Hour, time.Hour},
		{"an event, and no change yet", nil, 2 * day, time.Second, time.Hour, 15 * time.Second},
		{"an event, and no change for a while", nil, 2 * day, 20 * time.Second, time.Hour, time.Minute},
		{"an event that led to nothing", nil, 2 * day, 2 * time.Minute, time.Hour, 5 * time.Minute},
		{"an event of a change that was found", nil, time.Second, 2 * time.Second, time.Hour, 5 * time.Minute},
		{"a short interval", nil, 0, 0, time.Minute, time.Minute},
		{"a short interval that moves", ago(time.Hour), time.Second, 0, time.Minute, time.Minute},
		{"a long interval", ago(30*day, 60*day, 90*day), 0, 0, day, 150 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := sources.Upstream{Moves: tt.moves}
			if tt.changed > 0 {
				u.Changed = now.Add(-tt.changed)
			}
			if tt.named > 0 {
				u.Named = now.Add(-tt.named)
			}
			if got := u.PollInterval(now, tt.longest); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	for range 1000 {
		if d := sources.Jittered(time.Hour); d > time.Hour || d < 54*time.Minute {
			t.Fatalf("jittered to %v", d)
		}
	}
}

func TestMoves(t *testing.T) {
	var u sources.Upstream
	p := testPackage(t, `"*-nightly*"`)
	now := hour(100)
	u.RecordMoves(p, releasedAt("1", "2", "3", "4", "5", "6", "7"), now)
	if got, want := fmt.Sprint(u.Moves), fmt.Sprint([]time.Time{hour(6), hour(5), hour(4), hour(3), hour(2)}); got != want {
		t.Errorf("by upstream's times: %v", got)
	}
	// Without times, what a look finds counts, but not what the first one does.
	tags := map[string]sources.Candidate{"1": {Name: "1"}, "2": {Name: "2"}}
	u = sources.Upstream{}
	if u.RecordMoves(p, tags, now); len(u.Moves) > 0 {
		t.Errorf("the first look has %v", u.Moves)
	}
	u.Seen = []string{"1", "2"}
	tags["3"] = sources.Candidate{Name: "3"}
	u.RecordMoves(p, tags, now)
	u.Seen = []string{"1", "2", "3"}
	u.RecordMoves(p, tags, now.Add(time.Hour))
	tags["4"] = sources.Candidate{Name: "4"}
	for _, name := range []string{"5-nightly", "no version", "../6"} { // which are there at every look
		tags[name] = sources.Candidate{Name: name}
	}
	u.RecordMoves(p, tags, now.Add(2*time.Hour))
	u.Seen = append(u.Seen, "4")
	u.RecordMoves(p, tags, now.Add(3*time.Hour))
	if got, want := fmt.Sprint(u.Moves), fmt.Sprint([]time.Time{now.Add(2 * time.Hour), now}); got != want {
		t.Errorf("by what looks found: %v", got)
	}
}

func TestQueueTakesWhatIsFreshFirst(t *testing.T) {
	q := newQueue()
	for i := range 3 {
		q.push(newTask("backlog", fmt.Sprint(i), i))
	}
	fresh := func(pkg string, tried int) ingest.Task {
		t := newTask(pkg, "9", 5)
		t.Fresh, t.Tried = true, tried
		return t
	}
	q.push(fresh("tried", 1), fresh("new", 0))
	t2 := newTask("backlog", "2", 2)
	t2.Fresh = true
	q.push(t2) // an event names what waits already
	q.push(newTask("named", "9", 0), newTask("named", "8", 1))
	q.markNewestFresh("named")
	q.close()
	var all []string
	for _, only := range []bool{true, false} {
		for {
			task, ok, err := q.pop(context.Background(), only)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			all = append(all, task.ID())
		}
		all = append(all, "end")
	}
	if got, want := strings.Join(all, ", "), "named 9, backlog 2, new 9, tried 9, end, backlog 0, backlog 1, named 8, end"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What has appeared since the first look is fresh until it is done, also where the package still gets those that it starts with.
func TestPlanTellsWhatIsFresh(t *testing.T) {
	s := planInput{pkg: testPackage(t, ""), newest: 2, now: hour(100), listed: releasedAt("1.0.0", "1.1.0", "1.2.0")}
	freshOf := func(p planned) string {
		var all []string
		for _, t := range p.tasks {
			if t.Fresh {
				all = append(all, t.Version.Name)
			}
		}
		return strings.Join(all, " ")
	}
	first := planPackage(s)
	if got := freshOf(first); got != "" || len(first.tasks) != 2 {
		t.Errorf("of a new package, %q of %d are fresh", got, len(first.tasks))
	}
	s.named = true
	if got := freshOf(planPackage(s)); got != "1.2.0" {
		t.Errorf("of a new package that an event names, %q", got)
	}
	s.named = false
	s.known = sources.Upstream{UpstreamVersions: sources.UpstreamVersions{Seen: first.Seen}}
	for _, c := range first.changes {
		s.states = append(s.states, c.State)
	}
	s.listed["1.3.0"] = sources.Candidate{Name: "1.3.0", Published: hour(50)}
	second := planPackage(s)
	if got := freshOf(second); got != "1.3.0" {
		t.Errorf("while it is being filled, %q is fresh", got)
	}
	for _, c := range second.changes {
		s.states = append(s.states, c.State)
	}
	s.known.Seen, s.known.Fresh = second.Seen, second.fresh
	if got := freshOf(planPackage(s)); got != "1.3.0" {
		t.Errorf("after a restart, %q is fresh", got)
	}
	s.states[len(s.states)-1].Next = hour(101)
	if got := planPackage(s).fresh; len(got) != 1 {
		t.Errorf("while it waits for its next attempt, %q is kept", got)
	}
}

func TestNewsAreLookedAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		n := newEventQueue()
		name := func(names ...string) { n.release(n.add(names)) }
		want := func(name string, after time.Duration) {
			t.Helper()
			begun := time.Now()
			got, err := n.next(t.Context())
			if err != nil || got != name || time.Since(begun) != after {
				t.Errorf("got %s after %v (%v), want %s after %v", got, time.Since(begun), err, name, after)
			}
		}
		name("a", "b", "a")
		name("b", "c")
		want("a", 0)
		want("b", 0)
		name("b", "b")
		if !n.has("b") || !n.has("c") || n.has("d") {
			t.Error("it does not know what it has")
		}
		n.finishPoll("a")
		n.finishPoll("b")
		time.Sleep(time.Millisecond)
		want("c", 0)
		n.finishPoll("c")
		if n.has("c") {
			t.Error("what rests is about to be looked at")
		}
		name("c")
		if !n.has("c") {
			t.Error("what is named while it rests is not about to be looked at")
		}
		want("b", repollInterval-time.Millisecond)
		want("c", time.Millisecond)
		n.finishPoll("b")
		n.finishPoll("c")
		time.Sleep(time.Minute)
		n.mu.Lock()
		defer n.mu.Unlock()
		if len(n.all) > 0 {
			t.Errorf("it still has %v", n.all)
		}
	})
}
