package lane

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// TestScores holds the order in which connections are evicted.
func TestScores(t *testing.T) {
	r, now := newConnLimit(1000), epoch.Add(time.Hour)
	open := func(client string, ago time.Duration, asked bool, s state) *connEntry {
		p := r.newEntry(-1, nil)
		p.opened = now.Add(-ago)
		p.asked.Store(asked)
		if client != "" {
			p.client = netip.MustParsePrefix(client)
		}
		if s != handed {
			c := new(conn)
			c.word.Store(int64(s.withStart(now.Add(-ago))))
			p.conn.Store(c)
		}
		r.add(p)
		return p
	}
	for range 199 { // a company behind one address, and 8 silent connections of each attacker
		open("192.0.2.1/32", time.Second, true, idle)
	}
	for range 7 {
		open("198.51.100.1/32", time.Second, false, fresh)
	}
	for i := range 1600 { // one subscriber's network
		addr := netip.MustParsePrefix("2001:db8::/64").Addr().As16()
		addr[6], addr[7] = byte(i>>8), byte(i)
		open(netip.PrefixFrom(netip.AddrFrom16(addr), 64).String(), time.Second, false, fresh)
	}
	last := -1.
	for _, c := range []struct {
		name string
		p    *connEntry
	}{
		{"a first request that takes long", open("203.0.113.9/32", time.Minute, true, alone)},
		{"a new connection of the company", open("192.0.2.1/32", 100*time.Millisecond, false, fresh)},
		{"a new connection", open("203.0.113.2/32", 100*time.Millisecond, false, fresh)},
		{"an idle connection", open("203.0.113.1/32", 20*time.Second, true, idle)},
		{"an idle connection of the company", open("192.0.2.1/32", 20*time.Second, true, idle)},
		{"a proxy's connection for later", open("", 10*time.Minute, false, fresh)},
		{"a slow handshake", open("203.0.113.3/32", time.Second, false, opening)},
		{"a silent connection of an attacker with several", open("198.51.100.1/32", time.Second, false, fresh)},
		{"a silent connection of a network with many", open("2001:db8:0:99::/64", time.Second, false, opening)},
		{"half a head that is older", open("2001:db8:0:98::/64", 2*time.Second, false, alone)},
	} {
		score := r.evictionScore(c.p, now)
		if score <= last {
			t.Errorf("%s has the score %g, and the one before %g", c.name, score, last)
		}
		last = score
	}
	var burst *connEntry // accepted at the same moment
	for range 20 {
		burst = open("203.0.113.4/32", 0, false, fresh)
	}
	if waiting := open("", 500*time.Millisecond, false, fresh); r.evictionScore(waiting, now) >= r.evictionScore(burst, now) {
		t.Error("a proxy's connection for later is evicted before those of a burst of silent ones")
	}
}

// TestEvictions has connections of clients come and go at random. Whichever is evicted has the highest score, and all is counted.
func TestEvictions(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		most := 5 + random.IntN(samples-5)
		r := newConnLimit(most)
		open := make(map[*connEntry]bool)
		for range 500 {
			for p := range open {
				switch random.IntN(8) {
				case 0:
					p.remove()
					delete(open, p)
				case 1:
					p.markAsked()
				}
				break
			}
			from := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(min(random.IntN(10), random.IntN(10)))}), 32)
			p := r.newEntry(-1, nil)
			p.opened = p.opened.Add(-time.Duration(random.IntN(1e6)) * time.Millisecond)
			r.admit(p, from)
			highest := 0.
			for other := range open {
				if other.place > 0 {
					highest = max(highest, r.evictionScore(other, time.Now()))
				}
			}
			open[p] = true
			for p := range open {
				if p.place > 0 {
					continue
				}
				if delete(open, p); len(open) < r.ample {
					t.Fatalf("a connection is evicted where %d of %d are open", len(open), most)
				}
				r.add(p) // as it was
				if score := r.evictionScore(p, time.Now()); score < highest {
					t.Errorf("a connection with the score %g is evicted, where another has %g", score, highest)
				}
				r.remove(p)
			}
			checkCounts(t, r, open)
		}
	}
}

// checkCounts holds that what is open is counted.
func checkCounts(t *testing.T, r *connLimit, open map[*connEntry]bool) {
	t.Helper()
	counts := make(map[netip.Prefix]clientCount)
	for i, p := range r.entries.members {
		if p.place != i+1 || !open[p] {
			t.Fatal("a connection has another's place")
		}
		n := counts[p.client]
		if p.asked.Load() {
			n.asked++
		} else {
			n.silent++
		}
		counts[p.client] = n
	}
	known := 0
	for client, n := range r.clients {
		n := clientCount{silent: n.silent, asked: n.asked}
		if n != counts[client] {
			t.Fatalf("%v has %+v, counted as %+v", client, counts[client], n)
		}
		if n != (clientCount{}) {
			known++
		}
	}
	if known != len(counts) || len(r.entries.members) != len(open) || r.scarce.Load() != (len(open) > r.most*3/4) {
		t.Fatalf("%d connections of %d clients are counted as %d of %d", len(open), len(counts), len(r.entries.members), known)
	}
}

// TestChurn holds how much later new connections of a client are served whose connections have ended without a request, while an eighth
// of the limit is silent and one more; and that none is on an idle server, or because of evictions.
func TestChurn(t *testing.T) {
	const client = "192.0.2.1/32"
	many := func(n int, what string) (all []string) {
		for range n {
			all = append(all, what)
		}
		return all
	}
	other := func(n int, format string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return all
	}
	for name, tt := range map[string]struct {
		ended []string // clients of connections that ended without a request
		asked int      // requests of the new one's client after that
		after time.Duration
		of    string
		want  time.Duration
		idle  bool // few connections are silent
		evict bool // those of ended are evicted
	}{
		"none":                        {of: client},
		"some":                        {ended: many(20, client), of: client},
		"one too many":                {ended: many(21, client), of: client, want: 500 * time.Millisecond},
		"an attack":                   {ended: many(1000, client), of: client, want: 2 * time.Second},
		"an idle server":              {ended: many(1000, client), of: client, idle: true},
		"a /56 of an idle server":     {ended: other(84, "2001:db8:0:%x::/64"), of: "2001:db8:0:ff::/64", idle: true},
		"evictions":                   {ended: many(1000, client), of: client, evict: true},
		"an attack that is over":      {ended: many(1000, client), after: 2 * time.Second, of: client},
		"made up for":                 {ended: many(24, client), asked: 3, of: client, want: 500 * time.Millisecond},
		"another client":              {ended: many(1000, client), of: "192.0.2.2/32"},
		"a trusted proxy":             {ended: many(1000, client), of: ""},
		"a /64":                       {ended: many(22, "2001:db8::/64"), of: "2001:db8::/64", want: time.Second},
		"a /56, of which a quarter":   {ended: other(84, "2001:db8:0:%x::/64"), of: "2001:db8:0:ff::/64", want: 500 * time.Millisecond},
		"a /48, of which a sixteenth": {ended: append(other(256, "2001:db8:0:%x01::/64"), other(80, "2001:db8:0:%x02::/64")...), of: "2001:db8:0:ff00::/64", want: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newConnLimit(10_000)
				open := func(of string) *connEntry {
					p := r.newEntry(-1, nil)
					var client netip.Prefix
					if of != "" {
						client = netip.MustParsePrefix(of)
					}
					r.admit(p, client)
					return p
				}
				silent := make([]*connEntry, r.most/silentAllowed)
				for i := range silent {
					silent[i] = open("203.0.113.1/32")
				}
				if tt.idle {
					silent[0].remove() // the new one is the last that is allowed
				}
				for _, of := range tt.ended {
					p := open(of)
					if tt.evict {
						r.mu.Lock()
						r.remove(p)
						r.mu.Unlock()
					}
					p.remove()
				}
				for range tt.asked {
					p := open(tt.of)
					p.markAsked()
					p.remove()
				}
				time.Sleep(tt.after)
				if got := open(tt.of).serveDelay(); got.Round(time.Millisecond) != tt.want {
					t.Errorf("a new connection is served %v later, not %v", got, tt.want)
				}
				for _, p := range silent {
					p.remove()
				}
				time.Sleep(time.Minute)
				// Which clients removeForgiven looks at is random: after 1,000 connections, more than ten of 600 forgiven clients may
				// still be remembered.
				for i := range 4000 {
					open(fmt.Sprintf("198.51.%d.%d/32", 100+i>>8, i&255))
				}
				if n := len(r.clients); n > 4010 {
					t.Errorf("%d clients are remembered after a minute, of whom 4,000 have connections", n)
				}
			})
		})
	}
}
