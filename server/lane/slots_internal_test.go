package lane

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// TestSlots has goroutines wait for slots, and changes how many there are.
func TestSlots(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s, closed, in, ended := newConnLimit(2), make(chan struct{}), 0, 0
		acquired := make(chan error)
		for range 10 {
			go func() { acquired <- s.acquire(closed) }()
		}
		count := func(want int) {
			t.Helper()
			for {
				synctest.Wait()
				select {
				case err := <-acquired:
					if err == net.ErrClosed {
						ended++
					} else {
						in++
					}
					continue
				default:
				}
				break
			}
			if in != want {
				t.Errorf("%d have a slot, want %d", in, want)
			}
		}
		release := func(n int) {
			for range n {
				s.release()
				in--
			}
		}
		count(2)
		s.setLimit(5)
		count(5)
		release(2)
		count(5)
		s.setLimit(3) // those that have a slot keep it
		count(5)
		release(2)
		count(3)
		release(2)
		count(3)
		close(closed)
		count(3)
		if ended != 1 {
			t.Errorf("%d ended because the listener is closed, want 1", ended)
		}
	})
}

// TestRoomLimitChanges lowers the limit: the client with the most loses connections, another one none.
func TestRoomLimitChanges(t *testing.T) {
	r := newConnLimit(100)
	heavy, light := netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("192.0.2.2/32")
	open := func(n int, client netip.Prefix) {
		for range n {
			p := r.newEntry(-1, nil)
			p.opened = p.opened.Add(-time.Second)
			r.admit(p, client)
		}
	}
	open(60, heavy)
	open(5, light)
	r.setLimit(50)
	if h, l := r.clients[heavy].silent, r.clients[light].silent; l != 5 || h != 40 || len(r.entries.members) != 45 {
		t.Errorf("%d connections are open: %d of the client with the most, %d of the other", len(r.entries.members), h, l)
	}
	r.setLimit(200)
	if r.scarce.Load() {
		t.Error("connections are scarce under a high limit")
	}
	for range 100 {
		r.admit(r.newEntry(-1, nil), heavy)
	}
	if len(r.entries.members) != 145 {
		t.Errorf("%d connections are open under a high limit", len(r.entries.members))
	}
}
