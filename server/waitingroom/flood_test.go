package waitingroom

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// A contest has visitors and attackers come to one room, again and again, and counts at the origin, in minutes, how long
// each was in.
type contest struct {
	*house
	came     int              // contestants
	versions *httptest.Server // the same rooms over TLS, with HTTP/2

	mu     sync.Mutex
	inside map[string]map[int64]bool // minutes, by identity
}

// A contestant is one identity. Each time it is let act, it may send any number of requests.
type contestant struct {
	*user
	name string
	from string // the address
	act  func(*contestant)
	kept []string // tickets
	// again is when an honest visitor comes again: when the page says so.
	again time.Duration
}

const contestRoom = "- {name: shop, path: /shop, total_active_users: 12, new_users_per_minute: 12, session_duration: 1, disable_session_renewal: true, subresources: {paths: [/shop/assets/]}}\n"

func newContest(t *testing.T, room string) *contest {
	c := &contest{house: open(t, room), inside: map[string]map[int64]bool{}}
	c.origin = func(w http.ResponseWriter, r *http.Request) {
		if read := strings.ToLower(path.Clean(r.URL.Path)); strings.HasPrefix(read, "/shop") && r.Method != http.MethodOptions { // as a lenient site reads it
			c.mu.Lock()
			defer c.mu.Unlock()
			name := r.Header.Get("X-Identity")
			if c.inside[name] == nil {
				c.inside[name] = map[int64]bool{}
			}
			c.inside[name][c.Now().Unix()/60] = true
		}
		io.WriteString(w, "origin")
	}
	c.versions = httptest.NewUnstartedServer(c.rooms.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.origin(w, r) })))
	c.versions.EnableHTTP2 = true
	c.versions.StartTLS()
	t.Cleanup(c.versions.Close)
	return c
}

// ask sends one request, and forgets the ticket once the user is in: a session is used for what it is worth, then it is the end of the line.
func (c *contestant) ask(method, target string, fields ...string) *reply {
	c.Helper()
	req, err := http.NewRequest(method, c.url+target, nil)
	if err != nil {
		c.Fatal(err)
	}
	req.Header.Set("Accept", browserAccept)
	req.Header.Set("X-Identity", c.name)
	req.Header.Set("Test-From", c.from)
	for i := 0; i < len(fields); i += 2 {
		req.Header.Set(fields[i], fields[i+1])
		if fields[i] == "Host" {
			req.Host = fields[i+1]
			req.Header.Set("X-Identity", c.name+" at another host") // a ticket of its own, as browsers keep them, and a place
		}
	}
	r := c.send(req)
	if to := r.Header.Get("Location"); to != "" && strings.HasPrefix(to, "/") { // as a browser follows it
		return c.ask(method, to, fields...)
	}
	return r
}

// bare sends bytes to the server, with the ticket, and keeps the ticket that comes back.
func (c *contestant) bare(head string) {
	c.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.url, "http://"))
	if err != nil {
		c.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%sX-Identity: %s\r\nTest-From: %s\r\nAccept: text/html\r\nConnection: close\r\nCookie: %s=%s\r\n\r\n", head, c.name, c.from, cookieName(""), c.cookie())
	if res, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
		for _, cookie := range res.Cookies() {
			c.set(cookie.Value)
		}
		res.Body.Close()
	}
}

// forget throws the ticket away.
func (c *contestant) forget() {
	jar, _ := cookiejar.New(nil)
	c.client.Jar = jar
}

// honest comes when the page refreshes itself, and goes to the end of the line after its session. Inside it makes requests as often as
// attackers do, so that the minutes of both are counted alike.
func honest(c *contestant) { c.again = c.ask("GET", "/shop").refresh() }

// claims are fields that attackers send, each of them besides an honest request.
var claims = [][]string{
	{"X-Forwarded-For", "192.0.2.77"}, {"X-Real-IP", "127.0.0.1"}, {"Forwarded", "for=127.0.0.1;host=other.example"}, {"X-Forwarded-Host", "other.example"}, {"X-Original-URL", "/free"},
	{"X-Rewrite-URL", "/free"}, {"Cf-Waiting-Room-Command", "revoke"}, {"Sec-Fetch-Dest", "image"}, {"Sec-Fetch-Dest", "script"}, {"Sec-Purpose", "prefetch"}, {"Upgrade", "websocket"},
	{"X-HTTP-Method-Override", "OPTIONS"}, {"Accept", "*/*"}, {"Accept", "application/json"}, {"Host", "SHOP.example."}, {"Host", "other.example:80"}, {"Range", "bytes=0-10"}, {"Expect", "100-continue"},
	{"Cookie", cookieName("") + "=a; " + cookieName("") + "=b"},
}

// attacks are what attackers do instead of, or besides, waiting.
var attacks = map[string]func(*contestant){
	"methods": func(c *contestant) {
		for _, method := range []string{"POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "PROPFIND", "get", "QUERY"} {
			c.ask(method, "/shop", "Sec-Fetch-Dest", "image")
			c.ask(method, "/shop")
		}
	},
	"paths": func(c *contestant) {
		for _, target := range []string{
			"/%73hop", "//shop", "/./shop", "/free/../shop", "/free/..%2fshop", "/shop%2f", "/shop;x=1", "/free/%2e%2e/shop", "/shop?", "/shop#x", "/%2573hop", "/shop/../shop", "/\\shop", "/shop%00", "/free//../shop",
		} {
			c.ask("GET", target)
		}
	},
	"versions": func(c *contestant) {
		c.bare("GET /shop HTTP/1.0\r\n")
		c.bare("GET /shop HTTP/1.0\r\nHost: other.example\r\n")
		c.bare("GET http://other.example/shop HTTP/1.1\r\nHost: free.example\r\n")
		c.bare("GET /shop HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n")
		c.bare("GET /shop HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n")
	},
	"flood with a cookie": func(c *contestant) {
		for range 10 {
			c.ask("GET", "/shop")
		}
	},
	"replayed": func(c *contestant) {
		c.ask("GET", "/shop")
		if ticket := c.cookie(); ticket != "" && !slices.Contains(c.kept, ticket) {
			c.kept = append(c.kept, ticket)
		}
		for _, ticket := range c.kept[:min(10, len(c.kept))] {
			c.set(ticket)
			c.ask("GET", "/shop")
		}
	},
}

// compete runs a contest for so many minutes. Attackers act every ten seconds, in an order that turns, visitors when their
// page says so.
func (c *contest) compete(all []*contestant, minutes int) {
	c.Helper()
	due := make([]time.Time, len(all))
	for step := range minutes * 12 {
		c.pass(5 * time.Second)
		for i := range all {
			one := all[(i+step)%len(all)]
			if now := c.Now(); !now.Before(due[(i+step)%len(all)]) {
				one.act(one)
				due[(i+step)%len(all)] = now.Add(cmp.Or(one.again, 10*time.Second))
			}
		}
	}
}

func (c *contest) contestant(name string, act func(*contestant)) *contestant {
	c.came++
	return &contestant{user: c.user(), name: name, from: fmt.Sprintf("198.51.%d.%d", 100+c.came/250, 1+c.came%250), act: act}
}

// TestAttackers has three of each kind of attacker compete with thirty visitors for twelve slots: none of them is in for longer than the
// visitor who was in longest, but for one session.
func TestAttackers(t *testing.T) {
	c := newContest(t, contestRoom)
	minutes := 5
	whole := os.Getenv("LARDER_TEST_WHOLE") != ""
	if whole {
		minutes = 60
	}
	var all []*contestant
	for i := range 30 {
		all = append(all, c.contestant("visitor "+strconv.Itoa(i), honest))
	}
	for kind, act := range attacks {
		for i := range 3 {
			all = append(all, c.contestant(kind+" "+strconv.Itoa(i), act))
		}
	}
	for _, fields := range claims {
		all = append(all, c.contestant(fields[0]+": "+fields[1], func(one *contestant) {
			one.ask("GET", "/shop", fields...)
			one.ask("GET", "/shop")
			one.ask("GET", "/shop", fields...)
		}))
	}
	// Two trade their tickets each time, which makes them two tickets still.
	traders := []*contestant{c.contestant("traded 0", nil), c.contestant("traded 1", nil)}
	for i, trader := range traders {
		other := traders[1-i]
		trader.act = func(*contestant) {
			mine, theirs := trader.cookie(), other.cookie()
			trader.forget()
			other.forget()
			if theirs != "" {
				trader.set(theirs)
			}
			if mine != "" {
				other.set(mine)
			}
			trader.ask("GET", "/shop")
		}
		all = append(all, trader)
	}
	h2 := c.contestant("HTTP/2", nil)
	h2.client = c.versions.Client()
	h2.client.Jar, _ = cookiejar.New(nil)
	h2.act = func(o *contestant) {
		req, _ := http.NewRequest(http.MethodGet, c.versions.URL+"/shop", nil)
		req.Header.Set("Accept", browserAccept)
		req.Header.Set("X-Identity", o.name)
		req.Header.Set("Test-From", o.from)
		if r := o.send(req); r.ProtoMajor != 2 {
			t.Errorf("HTTP/%d", r.ProtoMajor)
		}
	}
	// Parts of pages may pass for an address where no user is in, which takes a slot: one attacker with many.
	many := c.contestant("many addresses", nil)
	many.act = func(o *contestant) {
		for i := range 20 {
			o.name, o.from = fmt.Sprintf("address %d", i), fmt.Sprintf("203.0.113.%d", i)
			o.ask("GET", "/shop/assets/a.png", "Sec-Fetch-Dest", "image")
			o.forget()
		}
	}
	all = append(all, h2, many)
	c.compete(all, minutes)

	most, least := 0, minutes
	for _, one := range all {
		if strings.HasPrefix(one.name, "visitor") {
			most, least = max(most, len(c.inside[one.name])), min(least, len(c.inside[one.name]))
		}
	}
	const session = 2 // minutes of the clock that one session touches
	for name, inside := range c.inside {
		if n := len(inside); n > most+session {
			t.Errorf("%s was in for %d minutes, and no visitor for more than %d", name, n, most)
		}
	}
	if most == 0 || whole && least == 0 {
		t.Errorf("visitors were in for %d to %d minutes: nothing is proven", least, most)
	}
	t.Logf("%d minutes; visitors were in for %d to %d of them: %v", minutes, least, most, c.shares())
}

// shares says how long each kind was in, on average.
func (c *contest) shares() map[string]float64 {
	sums, counts := map[string]float64{}, map[string]float64{}
	for name, minutes := range c.inside {
		kind := strings.TrimRight(name, " 0123456789")
		sums[kind] += float64(len(minutes))
		counts[kind]++
	}
	for kind := range sums {
		sums[kind] /= counts[kind]
	}
	return sums
}

// TestFlood holds the room to the bound of docs/waiting-room.md: beside a flood of requests without cookies, however large, the last
// visitor comes in at most a session duration and two minutes later than without it.
func TestFlood(t *testing.T) {
	floods := []int{20}
	if os.Getenv("LARDER_TEST_WHOLE") != "" {
		floods = []int{1, 5, 20, 60}
	}
	for _, test := range []struct {
		session, visitors int
		every             time.Duration // between two visitors
	}{{1, 24, 0}, {1, 48, 0}, {1, 30, 5 * time.Second}, {1, 30, 10 * time.Second}, {3, 24, 0}, {3, 24, 5 * time.Second}} {
		name := fmt.Sprintf("sessions of %d minutes, %d visitors, one each %v", test.session, test.visitors, test.every)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bound := time.Duration(test.session)*time.Minute + 2*time.Minute
			calm := floodedWait(t, test.session, test.visitors, test.every, 0)
			for _, flood := range floods {
				flooded := floodedWait(t, test.session, test.visitors, test.every, flood)
				t.Logf("%s: the longest wait is %v, and %v beside a flood of %d requests in five seconds", name, calm, flooded, flood)
				if flooded > calm+bound {
					t.Errorf("it is longer by more than %v", bound)
				}
			}
		})
	}
}

// floodedWait is the longest wait of visitors who come one after another, beside a flood of so many requests each five seconds.
func floodedWait(t *testing.T, session, visitors int, every time.Duration, flood int) (longest time.Duration) {
	t.Helper()
	c := newContest(t, strings.Replace(contestRoom, "session_duration: 1", fmt.Sprintf("session_duration: %d", session), 1))
	defer c.close()
	begun := c.Now()
	var all []*contestant
	came, due := map[*contestant]time.Duration{}, map[*contestant]time.Duration{}
	for i := range visitors {
		one := c.contestant("visitor "+strconv.Itoa(i), honest)
		came[one] = time.Duration(i) * every
		due[one] = came[one]
		all = append(all, one)
	}
	for step := range 40 * 12 {
		for i := range flood {
			attacker := c.contestant("flood", nil)
			attacker.name, attacker.from = "flood", fmt.Sprintf("203.0.%d.%d", step, i)
			attacker.ask("GET", "/shop")
		}
		now := c.Now().Sub(begun)
		all = slices.DeleteFunc(all, func(one *contestant) bool {
			if now < due[one] {
				return false
			}
			one.act(one)
			due[one] = now + one.again
			if c.inside[one.name] == nil {
				return false
			}
			longest = max(longest, now-came[one])
			return true
		})
		if len(all) == 0 {
			return longest
		}
		c.pass(5 * time.Second)
	}
	t.Errorf("with a flood of %d requests each five seconds %d of %d visitors did not come in within 40 minutes", flood, len(all), visitors)
	return longest
}
