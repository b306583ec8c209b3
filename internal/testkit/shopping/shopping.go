// Package shopping has visitors come to a site behind waiting rooms, at several nodes, and counts at the site how many are in.
package shopping

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	// Total and Rate are the limits of the room over /shop in [Rooms].
	Total, Rate = 16, 12
	// Recovers is how long it takes at most until visitors come in again where all nodes answer: the ten seconds until another
	// node writes and five more of docs/cluster.md, and the rest for a machine that does much else.
	Recovers = 40 * time.Second
	// Horizon is how long where one does not: two session durations and a minute more, and for clocks and epochs 20 s.
	Horizon = 3*time.Minute + 20*time.Second + Recovers
)

// Rooms is a file of rooms with sessions of a minute: one over /shop, whose limits are small, one over /open, which is never full, and one
// over /calls, which admits three users a minute.
func Rooms(site string) string {
	return fmt.Sprintf(`
- {name: shop, path: /shop, total_active_users: %d, new_users_per_minute: %d, session_duration: 1, upstream: %q}
- {name: open, path: /open, total_active_users: 9000, new_users_per_minute: 9000, session_duration: 1, upstream: %q, cookie_suffix: open, enabled_origin_commands: [revoke]}
- {name: calls, path: /calls, total_active_users: 9000, new_users_per_minute: 3, session_duration: 1, upstream: %q, cookie_suffix: calls}
`, Total, Rate, site, site, site)
}

// A Site is behind the rooms. It counts the users who come to it by name. At /open/bye it ends a session.
type Site struct {
	mu    sync.Mutex
	users map[string]*stay
	came  map[minutes]int // how many users a room has let in within these minutes
}

type stay struct{ first, last time.Time }

// The minutes from that in which a request was sent to that in which it came to the site.
type minutes struct{ sent, came int64 }

// ServeHTTP implements [http.Handler].
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("X-Shop", "open")
	if r.URL.Path == "/open/bye" {
		w.Header().Set("Cf-Waiting-Room-Command", "revoke")
	}
	if user := r.Header.Get("X-User"); user != "" {
		now := time.Now()
		if s.users[user] == nil {
			if s.users == nil {
				s.users, s.came = map[string]*stay{}, map[minutes]int{}
			}
			s.users[user] = &stay{first: now}
			sent, err := strconv.ParseInt(r.Header.Get("X-Sent"), 10, 64)
			if err != nil {
				sent = now.UnixNano()
			}
			s.came[minutes{sent / int64(time.Minute), now.UnixNano() / int64(time.Minute)}]++
		}
		s.users[user].last = now
	}
}

// Most returns how many users came, how many there were at once, between the first and the last request of each, and how many were let in
// within a minute. A request that was on its way at the end of a minute counts for the one that has fewer, because the room
// may have seen it in either. So does a user who comes again after a request without a response, which the room may have admitted.
func (s *Site) Most() (all, atOnce, inMinute int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.users {
		n := 0
		for _, other := range s.users {
			if !other.first.After(u.first) && !other.last.Before(u.first) {
				n++
			}
		}
		atOnce = max(atOnce, n)
	}
	for !s.fit(inMinute) {
		inMinute++
	}
	return len(s.users), atOnce, inMinute
}

// fit reports whether no minute need have had more than most users.
func (s *Site) fit(most int) bool {
	ranges := slices.SortedFunc(maps.Keys(s.came), func(a, b minutes) int { return cmp.Or(cmp.Compare(a.came, b.came), cmp.Compare(a.sent, b.sent)) })
	in := map[int64]int{}
	for _, r := range ranges { // those that end first have the least choice
		left := s.came[r]
		for m := r.sent; m <= r.came; m++ {
			n := min(left, most-in[m])
			in[m] += n
			left -= n
		}
		if left > 0 {
			return false
		}
	}
	return true
}

// A Crowd visits nodes, each visitor now this one, now that.
type Crowd struct {
	tb    testing.TB
	ctx   context.Context
	nodes []atomic.Pointer[string]
	named atomic.Int64
	// unanswered is by user when the first request was sent that a room may have admitted although its response was lost.
	unanswered sync.Map
}

// NewCrowd returns one that visits so many nodes, until ctx ends.
func NewCrowd(ctx context.Context, tb testing.TB, nodes int) *Crowd {
	return &Crowd{tb: tb, ctx: ctx, nodes: make([]atomic.Pointer[string], nodes)}
}

// Find tells where a node is.
func (c *Crowd) Find(node int, url string) { c.nodes[node].Store(&url) }

// Node returns the URL of a node.
func (c *Crowd) Node(node int) string { return *c.nodes[node].Load() }

// Visit sends one request of a visitor to a node, and reports whether it came in and when to come back.
func (c *Crowd) Visit(node int, client *http.Client, user, path string) (in bool, again time.Duration) {
	ctx, cancel := context.WithTimeout(c.ctx, 4*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Node(node)+path, nil)
	if err != nil {
		c.tb.Error(err)
		return false, time.Second
	}
	r.Header.Set("Accept", "text/html")
	if user != "" {
		sent, earlier := c.unanswered.LoadOrStore(user, time.Now().UnixNano())
		if !earlier {
			defer func() {
				if err == nil {
					c.unanswered.Delete(user)
				}
			}()
		}
		r.Header.Set("X-User", user)
		r.Header.Set("X-Sent", fmt.Sprint(sent))
	}
	response, err := client.Do(r)
	if err != nil { // the node is down, or slow
		return false, 200 * time.Millisecond
	}
	defer response.Body.Close()
	io.Copy(io.Discard, response.Body) //nolint:errcheck // it may be killed
	if response.StatusCode == http.StatusOK && response.Header.Get("X-Shop") != "" {
		return true, 0
	}
	refresh := 2
	fmt.Sscan(response.Header.Get("Refresh"), &refresh) //nolint:errcheck // 2 then
	return false, time.Duration(refresh) * time.Second
}

// AwaitCall holds an event stream of a visitor at a node until the visitor is called, and reports whether it is before the stream ends.
func (c *Crowd) AwaitCall(node int, client *http.Client, path string) bool {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.Node(node)+path, nil)
	if err != nil {
		c.tb.Error(err)
		return false
	}
	r.Header.Set("Accept", "text/event-stream")
	response, err := client.Do(r)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if lines.Text() == "event: called" {
			return true
		}
	}
	return false
}

// Client returns a browser without cookies.
func (c *Crowd) Client() *http.Client {
	jar, err := cookiejar.New(nil)
	if err != nil {
		c.tb.Error(err)
	}
	return &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}
}

// Live is one visitor of the shop after another, until ctx ends.
func (c *Crowd) Live() {
	for c.ctx.Err() == nil {
		client, user := c.Client(), fmt.Sprint("user-", c.named.Add(1))
		leaves, at := time.Time{}, rand.IntN(len(c.nodes))
		for c.ctx.Err() == nil && (leaves.IsZero() || time.Now().Before(leaves)) {
			if rand.IntN(12) == 0 {
				at = rand.IntN(len(c.nodes))
			}
			in, again := c.Visit(at, client, user, "/shop")
			if in && leaves.IsZero() { // within one session, which a node may not renew while another one takes over
				leaves = time.Now().Add(time.Duration(5+rand.IntN(50)) * time.Second)
			}
			if in {
				again = time.Duration(1+rand.IntN(5)) * time.Second
			}
			select {
			case <-time.After(again):
			case <-c.ctx.Done():
			}
		}
	}
}

// ComesIn waits until new visitors come in at one of the nodes, and returns how long that took.
func (c *Crowd) ComesIn(within time.Duration, nodes ...int) time.Duration {
	c.tb.Helper()
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		if in, _ := c.Visit(nodes[rand.IntN(len(nodes))], c.Client(), "", "/open"); in {
			return time.Since(began)
		}
		if time.Since(began) > within {
			c.tb.Fatalf("no visitor has come in at nodes %v for %v", nodes, within)
		}
	}
}

// Stays reports whether the room lets a visitor whom it has let in go on with the next requests.
func (c *Crowd) Stays(node int, client *http.Client) bool {
	for range 3 { // a process that takes up another role answers a little later
		if in, _ := c.Visit(node, client, "", "/open"); in {
			return true
		}
	}
	return false
}
