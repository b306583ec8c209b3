package lane

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestRoomIsFair has connections of clients come and go at random. Whichever gives way is of a client with the most, and
// all is counted.
func TestRoomIsFair(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		most := 20 + random.IntN(200)
		r := newConnLimit(most)
		of := make(map[*connEntry]netip.Prefix)
		for range 2000 {
			if random.IntN(4) == 0 {
				for p := range of {
					p.leave()
					delete(of, p)
					break
				}
				continue
			}
			from := netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(min(random.IntN(10), random.IntN(10)))}), 32)
			p := &connEntry{room: r, fd: -1}
			counts, others := make(map[netip.Prefix]int), 0
			of[p] = from
			for _, client := range of {
				counts[client]++
			}
			for _, n := range counts {
				others = max(others, n)
			}
			admitted := r.admit(p, from, true)
			if admitted != p.in {
				t.Fatalf("admitted %v, and it is in: %v", admitted, p.in)
			}
			for p, client := range of {
				if p.in {
					continue
				}
				if delete(of, p); counts[client] < others || len(of) < r.ample {
					t.Fatalf("a client with %d gives way, where another has %d; %d of %d are open", counts[client], others, len(of), most)
				}
			}
			if sum := check(t, r); sum != len(of) || sum != r.open || r.scarce.Load() != (sum > most*3/4) {
				t.Fatalf("%d are counted as %d and listed as %d", len(of), r.open, sum)
			}
		}
	}
}

// check returns how many places are listed.
func check(t *testing.T, r *connLimit) (sum int) {
	t.Helper()
	for size := range r.bySize {
		n := 0
		for h := r.bySize[size].first; h != nil; h = h.after {
			n++
			places := 0
			for p := h.places.first; p != nil; p = p.after {
				places++
			}
			if places != size || places != h.places.n || r.groups[h.client] != h || size > r.largest {
				t.Fatalf("a client with %d connections is listed as having %d", places, size)
			}
			sum += places
		}
		if n != r.bySize[size].n {
			t.Fatalf("%d clients are counted as %d", n, r.bySize[size].n)
		}
	}
	return sum
}
