package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/shopping"
	"github.com/larder-cdn/larder/server/waitingroom"
)

// TestClusterAutoLimit has the limit of a room at three nodes follow a site whose capacity falls and rises by a factor of four, while more
// users than that want to come in: once the limit has followed, the site is used by at least 85 % of what it can bear, its 99th percentile
// is within the objective, and the limit is never beyond its bounds. It runs for LARDER_TEST_WHOLE, which `make rooms` sets.
func TestClusterAutoLimit(t *testing.T) {
	if testVariable("WHOLE") == "" {
		t.Skip("takes 25 minutes")
	}
	t.Parallel()
	const least, most, large, small = 30, 200, 160, 40
	site := &shopping.BoundedSite{}
	site.Bear(large)
	upstream := httptest.NewServer(site)
	defer upstream.Close()
	c := newCrew(t)
	c.write("rooms.yaml", fmt.Sprintf("- {name: shop, path: /shop, upstream: %q, total_active_users: auto, total_active_users_min: %d, total_active_users_max: %d, latency_objective_p99: %d, new_users_per_minute: %d, session_duration: 1}\n",
		upstream.URL, least, most, shopping.Objective.Milliseconds(), most))
	one, two, three := c.three(candidateFiles, candidateFiles)
	all := []*machine{one, two, three}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	crowd := shopping.NewCrowd(ctx, t, len(all))
	for i, m := range all {
		crowd.Find(i, m.url)
	}
	var users atomic.Int64
	for range 260 {
		go func() {
			for ctx.Err() == nil {
				shopper(ctx, crowd, rand.IntN(len(all)), fmt.Sprint("user-", users.Add(1)))
			}
		}()
	}
	for _, phase := range []struct {
		bears   int
		settles time.Duration // a quarter of the sessions end in a minute
	}{{large, 6 * time.Minute}, {small, 10 * time.Minute}, {large, 6 * time.Minute}} {
		bears := phase.bears
		site.Bear(bears)
		settled := time.Now().Add(phase.settles)
		used, samples := 0.0, 0
		for until := settled.Add(2 * time.Minute); time.Now().Before(until); time.Sleep(time.Second) {
			measuring := time.Now().After(settled)
			load, _, atOnce := site.Load(!measuring)
			if measuring {
				used, samples = used+load, samples+1
			}
			if time.Now().Second()%10 == 0 {
				limits := []int{one.limit(), two.limit(), three.limit()}
				for _, n := range limits {
					if n < least || n > most || atOnce > most {
						t.Fatalf("the limit is %d, and %d were at the site at once", n, atOnce)
					}
				}
				t.Logf("the site bears %d: limits %v, load %.2f", bears, limits, load)
			}
		}
		_, late, atOnce := site.Load(true)
		used /= float64(samples)
		t.Logf("the site bears %d: used by %.1f %%, %.2f %% of the responses beyond the objective, at most %d at once so far", bears, 100*used, 100*late, atOnce)
		if used < 0.85 || late > 0.01 {
			t.Errorf("the site bears %d: used by %.1f %%, %.2f %% of the responses beyond the objective", bears, 100*used, 100*late)
		}
	}
}

// shopper is a user who waits with an event stream at a node, stays for a few minutes, and leaves.
func shopper(ctx context.Context, crowd *shopping.Crowd, node int, user string) {
	client := crowd.Client()
	in, again := crowd.Visit(node, client, user, "/shop")
	for !in && ctx.Err() == nil {
		if !crowd.AwaitCall(node, client, "/shop") {
			wait(ctx, again)
		}
		in, again = crowd.Visit(node, client, user, "/shop")
	}
	for leaves := time.Now().Add(time.Duration(60+rand.IntN(120)) * time.Second); in && ctx.Err() == nil && time.Now().Before(leaves); {
		wait(ctx, 2*time.Second+time.Duration(rand.IntN(1000))*time.Millisecond)
		in, _ = crowd.Visit(node, client, user, "/shop")
	}
}

// wait returns after a duration, or when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// limit returns the limit of the room shop at the machine.
func (m *machine) limit() int {
	m.Helper()
	text, code := m.command("room", "status", "--json", "shop")
	var rooms []waitingroom.Status
	if err := json.Unmarshal([]byte(text), &rooms); err != nil || len(rooms) != 1 {
		m.Fatalf("larder room status ended with %s: %v: %s", strconv.Itoa(code), err, text)
	}
	return rooms[0].TotalActiveUsers
}
