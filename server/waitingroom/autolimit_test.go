package waitingroom

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server/waitingroom/config"
)

// An origin bears some users: its 99th percentile is 100 ms for few, and reaches the objective of 500 ms at its capacity.
type originModel struct{ capacity float64 }

// took returns how long a response takes while users are in.
func (o originModel) took(rng *rand.Rand, users int) time.Duration {
	load := float64(users) / o.capacity
	p99 := 100 + 400*load*load*load*load
	return time.Duration((0.5 + 0.5*rng.Float64()) * p99 * float64(time.Millisecond))
}

// TestAutoLimit has a limit follow an origin whose capacity falls and rises by a factor of four, while always more people want to come
// in. Once the sessions of before have ended, the origin is used by at least 85 %, and its 99th percentile within the objective. Three nodes
// measure it, a fifth of their reports is lost, and another one becomes the leader every seven minutes.
func TestAutoLimit(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	room := &config.Room{Automatic: true, AutomaticMin: 20, LatencyObjective: 500 * time.Millisecond}
	room.TotalActiveUsers = 1000
	var node [3]autoLimit
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	var ends []time.Time // of the sessions of who is in, a minute each
	for _, capacity := range []float64{400, 100, 400, 4000, 40} {
		origin := originModel{capacity}
		bears := min(capacity, float64(room.TotalActiveUsers))
		used, rounds, late, responses := 0.0, 0, 0, 0
		for second := range 30 * 60 {
			now = now.Add(time.Second)
			l := &node[second/420%len(node)] // the leader's
			for len(ends) > 0 && !ends[0].After(now) {
				ends = ends[1:]
			}
			for len(ends) < l.limitOf(room) {
				ends = append(ends, now.Add(time.Minute))
			}
			settled := second > 10*60
			for i := range len(ends)/5 + 1 {
				took := origin.took(rng, len(ends))
				node[i%len(node)].countResponse(took, http.StatusOK, "")
				if settled {
					if responses++; took > room.LatencyObjective {
						late++
					}
				}
			}
			for i := range node {
				if measured := node[i].takeMeasured(); rng.IntN(5) > 0 {
					l.adjust(now, room, len(ends), measured)
				} else {
					node[i].restoreMeasured(measured)
				}
				node[i].current.Store(l.current.Load())
			}
			if n := l.limitOf(room); n < room.AutomaticMin || n > room.TotalActiveUsers {
				t.Fatalf("the limit is %d", n)
			}
			if settled {
				used, rounds = used+float64(len(ends))/bears, rounds+1
			}
		}
		t.Logf("capacity %.0f: used by %.1f %%, %.2f %% of %d responses beyond the objective", capacity, 100*used/float64(rounds), 100*float64(late)/float64(responses), responses)
		if used/float64(rounds) < 0.85 || float64(late) > 0.01*float64(responses) {
			t.Errorf("capacity %.0f: used by %.1f %%, %d of %d responses beyond the objective", capacity, 100*used/float64(rounds), late, responses)
		}
	}
}

// TestAutoLimitWhileVisitorsCome has sessions end together with the minute, and the visitors who are called then come within 15 seconds. The
// limit does not rise because the origin is fast meanwhile, so that it stays within its objective while its capacity falls and rises by a
// factor of four. Once a minute, a fifth of the responses are up to 600 ms slower for a second, by which the limit does not fall.
func TestAutoLimitWhileVisitorsCome(t *testing.T) {
	t.Parallel()
	type session struct{ from, last, end time.Time }
	const runs = 40
	phases := []struct{ capacity, settles float64 }{{160, 360}, {40, 600}, {160, 360}}
	meanUse := make([]float64, len(phases))
	for seed := range uint64(runs) {
		rng := rand.New(rand.NewPCG(seed, 2))
		room := &config.Room{Automatic: true, AutomaticMin: 30, LatencyObjective: 500 * time.Millisecond}
		room.TotalActiveUsers = 200
		var l autoLimit
		var sessions []session
		now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
		for i, phase := range phases {
			origin := originModel{phase.capacity}
			used, late, responses := 0.0, 0, 0
			const window = 120.0
			for second := range int(phase.settles + window) {
				now = now.Add(time.Second)
				sessions = slices.DeleteFunc(sessions, func(s session) bool { return !s.end.After(now) })
				for len(sessions) < l.limitOf(room) {
					from := now.Add(time.Duration(rng.IntN(15000)) * time.Millisecond)
					last := from.Add(time.Duration(60+rng.IntN(120)) * time.Second)
					sessions = append(sessions, session{from, last, last.Truncate(time.Minute).Add(2 * time.Minute)})
				}
				arrived, requests := 0, 0
				for _, s := range sessions {
					if !s.from.After(now) {
						arrived++
						if now.Before(s.last) && rng.IntN(5) < 2 {
							requests++
						}
					}
				}
				settled, pause := second >= int(phase.settles), rng.IntN(60) == 0
				for range requests {
					took := min(2*time.Second, origin.took(rng, arrived))
					measured := took
					if pause && rng.IntN(5) == 0 {
						measured += time.Duration(rng.IntN(600)) * time.Millisecond
					}
					l.countResponse(measured, http.StatusOK, "")
					if settled {
						if responses++; took > room.LatencyObjective {
							late++
						}
					}
				}
				l.adjust(now, room, len(sessions), l.takeMeasured())
				if settled {
					used += float64(arrived) / phase.capacity / window
				}
			}
			meanUse[i] += used / runs
			if float64(late) > 0.01*float64(responses) {
				t.Errorf("run %d, capacity %.0f: %d of %d responses beyond the objective", seed, phase.capacity, late, responses)
			}
		}
	}
	t.Logf("used by %.3f", meanUse)
	for i, phase := range phases {
		if meanUse[i] < 0.85 {
			t.Errorf("capacity %.0f: used by %.1f %%", phase.capacity, 100*meanUse[i])
		}
	}
}

// TestAutoLimitOfUnsteadyOrigin has an origin be slow in every third interval: the limit falls, because too many responses of each minute are
// late, although no two intervals in a row are slow.
func TestAutoLimitOfUnsteadyOrigin(t *testing.T) {
	t.Parallel()
	room := &config.Room{Automatic: true, AutomaticMin: 10, LatencyObjective: 500 * time.Millisecond}
	room.TotalActiveUsers = 500
	var l autoLimit
	l.current.Store(500)
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	for interval := range 720 {
		now = now.Add(limitInterval)
		took := 50 * time.Millisecond
		if interval%3 == 0 {
			took = time.Second
		}
		for range 10 * limitMinimum {
			l.countResponse(took, http.StatusOK, "")
		}
		l.adjust(now, room, l.limitOf(room), l.takeMeasured())
	}
	if n := l.limitOf(room); n > 20 {
		t.Errorf("the limit is %d after an hour", n)
	}
}

// TestAutoLimitFalls has an origin fail: the limit falls to the minimum, and far below the users who are in only as sessions end.
func TestAutoLimitFalls(t *testing.T) {
	t.Parallel()
	room := &config.Room{Automatic: true, AutomaticMin: 5, LatencyObjective: time.Second}
	room.TotalActiveUsers = 100
	var l autoLimit
	l.current.Store(100)
	now := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	clients := 1
	step := func(active int) int {
		now = now.Add(limitInterval)
		for i := range limitMinimum {
			l.countResponse(time.Millisecond, http.StatusBadGateway, fmt.Sprintf("203.0.113.%d:1", i%clients))
		}
		l.adjust(now, room, active, l.takeMeasured())
		return l.limitOf(room)
	}
	if n := step(100); n != 100 {
		t.Errorf("the limit is %d after errors of one client", n)
	}
	clients = errorClients
	if n := step(100); n != 95 {
		t.Errorf("the limit is %d after errors", n)
	}
	for _, want := range []int{90, 85, 80, 76, 72, 70, 70} {
		if n := step(100); n != want {
			t.Errorf("the limit is %d before sessions have ended, want %d", n, want)
		}
	}
	if n := step(90); n != 66 {
		t.Errorf("the limit is %d after some sessions have ended", n)
	}
	for range 50 {
		step(l.limitOf(room))
	}
	if n := l.limitOf(room); n != 5 {
		t.Errorf("the limit is %d after more errors", n)
	}
}

// TestAutoLimitInForce has a room with an automatic limit let users in by it.
func TestAutoLimitInForce(t *testing.T) {
	t.Parallel()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "origin") }))
	defer site.Close()
	yaml := "- {name: shop, upstream: '" + site.URL + "', total_active_users: auto, total_active_users_min: 2, total_active_users_max: 10, latency_objective_p99: 60000, new_users_per_minute: 10}"
	h := open(t, yaml)
	var in []*user
	for range 2 {
		in = append(in, h.user())
		if r := in[len(in)-1].get("/"); !r.in() {
			t.Fatal(r.body)
		}
	}
	if r := h.user().get("/"); r.in() {
		t.Fatal("the minimum does not hold")
	}
	for range 3 {
		for range limitMinimum {
			in[0].get("/")
		}
		h.pass(limitInterval + time.Second)
	}
	if s, _ := h.rooms.Status("shop"); s.TotalActiveUsers < 3 || s.NewUsersPerMinute != s.TotalActiveUsers {
		t.Errorf("the limit does not follow the origin: %+v", s)
	}
	for _, wrong := range []string{"total_active_users_min: 2, ", "latency_objective_p99: 60000, ", "upstream: '" + site.URL + "', "} {
		if _, err := config.Parse("rooms.yaml", []byte(strings.Replace(yaml, wrong, "", 1))); err == nil {
			t.Errorf("a room without %s is accepted", wrong)
		}
	}
	if _, err := config.Parse("rooms.yaml", fmt.Appendf(nil, "- {name: shop, total_active_users: 5, total_active_users_min: 2, new_users_per_minute: 5}")); err == nil {
		t.Error("a minimum without auto is accepted")
	}
}
