package lane

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
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
		score := r.score(c.p, now)
		if score <= last {
			t.Errorf("%s has the score %g, and the one before %g", c.name, score, last)
		}
		last = score
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
					p.leave()
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
				if other.place >= 0 {
					highest = max(highest, r.score(other, time.Now()))
				}
			}
			open[p] = true
			for p := range open {
				if p.place >= 0 {
					continue
				}
				if delete(open, p); len(open) < r.ample {
					t.Fatalf("a connection is evicted where %d of %d are open", len(open), most)
				}
				r.add(p) // as it was
				if score := r.score(p, time.Now()); score < highest {
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
	for i, p := range r.entries {
		if p.place != i || !open[p] {
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
	for client, n := range r.clients {
		if *n != counts[client] {
			t.Fatalf("%v has %+v, counted as %+v", client, counts[client], *n)
		}
	}
	if len(r.clients) != len(counts) || len(r.entries) != len(open) || r.scarce.Load() != (len(open) > r.most*3/4) {
		t.Fatalf("%d connections of %d clients are counted as %d of %d", len(open), len(counts), len(r.entries), len(r.clients))
	}
}
