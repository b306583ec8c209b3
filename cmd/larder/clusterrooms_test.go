package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/shopping"
)

// A crowd visits the nodes of a cluster, each visitor now this one, now that.
type crowd struct {
	*crew
	*shopping.Crowd
}

// TestClusterRooms has three nodes share rooms, with visitors who go from node to node, and kills and pauses the one that
// writes: no more users reach the site behind than the limits say, and new ones come in again in time. A session that the site ends is
// over on all nodes. With LARDER_TEST_WHOLE, which `make rooms` sets, it is so within five seconds, and visitors with event streams are called in the order of their
// arrival, by one node and by three.
func TestClusterRooms(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes, and waits until one takes the place of another")
	}
	t.Parallel()
	const ordered = 600
	rounds, whole := 2, testVariable("WHOLE") != ""
	if whole {
		rounds = 20
	}
	site := &shopping.Site{}
	upstream := httptest.NewServer(site)
	defer upstream.Close()
	c := newCrew(t)
	c.write("rooms.yaml", shopping.Rooms(upstream.URL)+shopping.OrderRooms(upstream.URL, ordered))
	c.write("bucket/room/notes.txt", "no node wrote this")
	one := c.machine("one", nil)
	one.start()
	one.writes()
	two, three := c.machine("two", one, candidateFiles...), c.machine("three", one, candidateFiles...)
	two.start()
	three.start()
	all := []*machine{one, two, three}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	crowd := &crowd{c, shopping.NewCrowd(ctx, t, len(all))}
	for i, m := range all {
		crowd.Find(i, m.url)
	}
	t.Logf("at first visitors come in after %v", crowd.ComesIn(shopping.Horizon, 0, 1, 2))
	if said := one.said(); !strings.Contains(said, "room/notes.txt") {
		t.Error("an object that no node has written among those with waiting rooms is not named")
	}
	var living sync.WaitGroup
	for range 40 {
		living.Go(crowd.Live)
	}
	var redeemed sync.WaitGroup
	redeemed.Go(func() { crowd.redeem(len(all)) })
	if whole { // on a busy machine visitors arrive later than they were sent
		redeemed.Go(func() { crowd.order("/order", ordered, 0, 1, 2) })
		redeemed.Go(func() { crowd.order("/alone", ordered, 0) })
	}
	// Not within one minute of the site's clock: those who came at its end fill the room in the next.
	crowd.eventually("as many have come to the shop as may in a minute", func() bool {
		n, _, _ := site.Most()
		return n >= shopping.Rate
	})
	redeemed.Wait()
	crowd.revoke(all, whole)
	for round := range rounds {
		i := crowd.writer(all)
		m := all[i]
		failed := time.Now()
		waits := round%10 >= 8 // until all is over that the lost node may have promised
		within := shopping.Recovers
		switch {
		case round%2 == 0:
			m.end(syscall.SIGKILL)
			if waits {
				within = shopping.Horizon
				break
			}
			m.start()
			crowd.Find(i, m.url)
		default:
			m.signal(syscall.SIGSTOP)
			if waits {
				within = shopping.Horizon
				break
			}
			crowd.writer(slices.Delete(slices.Clone(all), i, i+1))
			m.signal(syscall.SIGCONT)
		}
		crowd.ComesIn(within, 0, 1, 2)
		t.Logf("round %d: visitors come in again %v after a node that wrote was lost", round, time.Since(failed).Round(100*time.Millisecond))
		if waits {
			if round%2 == 0 {
				m.start()
				crowd.Find(i, m.url)
			} else {
				m.signal(syscall.SIGCONT)
			}
		}
		if _, atOnce, inMinute := site.Most(); atOnce > shopping.Total || inMinute > shopping.Rate {
			t.Fatalf("round %d: %d users were at the site of %d, %d came in a minute of %d", round, atOnce, shopping.Total, inMinute, shopping.Rate)
		}
	}
	end()
	living.Wait()
	users, atOnce, inMinute := site.Most()
	t.Logf("%d users, at most %d at once of %d, %d in a minute of %d", users, atOnce, shopping.Total, inMinute, shopping.Rate)
	if atOnce > shopping.Total || inMinute > shopping.Rate || users < shopping.Rate {
		t.Error("more than the limit, or hardly any")
	}
}

// writer returns which machine writes.
func (c *crowd) writer(all []*machine) (i int) {
	c.Helper()
	c.eventually("one node writes", func() bool {
		for k, m := range all {
			if m.role() == "leader" {
				i = k
				return true
			}
		}
		return false
	})
	return i
}

// order has visitors hold event streams at nodes: they are called in the order of their arrival.
func (c *crowd) order(path string, rate int, nodes ...int) {
	const enough = 0.99
	if got := c.Order(path, rate, enough, nodes...); got < enough {
		c.Errorf("%s at %d nodes: the rank correlation of arrival with being called is %.4f, want %.2f", path, len(nodes), got, enough)
	}
}

// redeem has a visitor wait with an event stream at each node, and come to another one when that calls it: it enters at once. Where
// the machine is so slow that the reservation is over by then, another visitor takes its turn.
func (c *crowd) redeem(nodes int) {
	var all sync.WaitGroup
	defer all.Wait()
	for home := range nodes {
		all.Go(func() {
			for range 5 {
				client := c.Client()
				if !c.waits(home, client) {
					return
				}
				is := false
				for n := 0; n < 5 && !is; n++ { // a stream ends after two minutes
					is = c.AwaitCall(home, client, "/calls")
				}
				if !is {
					c.Errorf("a visitor is not called at node %d", home)
					return
				}
				called := time.Now()
				if in, _ := c.Visit((home+1)%nodes, client, "", "/calls"); in {
					return
				}
				c.Logf("a visitor whom node %d has called did not enter at another one within %v", home, time.Since(called))
			}
			c.Errorf("no visitor whom node %d has called enters at another one", home)
		})
	}
}

// waits has a visitor come to a node until the room over /calls has it wait there.
func (c *crowd) waits(node int, client *http.Client) bool {
	for range 1000 {
		client.Jar = c.Client().Jar
		in, _ := c.Visit(node, client, "", "/calls")
		if !in && len(client.Jar.Cookies(mustURL(c.T, c.Node(node)+"/calls"))) > 0 {
			return true
		}
	}
	c.Errorf("no visitor waits at node %d", node)
	return false
}

// revoke has the site end a session at one node, and sees that it is over at the others; if timed is set, in time.
func (c *crowd) revoke(all []*machine, timed bool) {
	c.Helper()
	client := c.Client()
	get := func(i int, path string) bool {
		in, _ := c.Visit(i, client, "", path)
		return in
	}
	c.eventually("a visitor comes in", func() bool {
		client = c.Client()
		return get(0, "/open")
	})
	kept := client.Jar
	for i, m := range all[1:] {
		c.eventually(m.name+" lets visitors in", func() bool {
			in, _ := c.Visit(1+i, c.Client(), "", "/open")
			return in
		})
	}
	if !c.Stays(1, client) || !c.Stays(2, client) {
		c.Error("a ticket of one node does not pass at the others")
	}
	before := all[1].cookie(kept)
	c.eventually("the site ends the session", func() bool { return get(0, "/open/bye") })
	ended := time.Now()
	for i, m := range all {
		c.eventually(m.name+" lets the session pass no longer", func() bool {
			other := c.Client()
			other.Jar.SetCookies(mustURL(c.T, m.url), before)
			client = other
			get(i, "/open")
			after := m.cookie(other.Jar)
			return len(after) == 0 || after[0].Value != before[0].Value // it had to come in anew
		})
		if took := time.Since(ended); timed && took > 5*time.Second {
			c.Fatalf("%s lets a session pass that was ended %v ago", m.name, took)
		}
	}
	c.Logf("a session that the site ends is over on all nodes after %v", time.Since(ended).Round(time.Millisecond))
}

// cookie returns the ticket that a jar has for the machine.
func (m *machine) cookie(jar http.CookieJar) []*http.Cookie {
	m.Helper()
	return jar.Cookies(mustURL(m.T, m.url+"/open"))
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}
