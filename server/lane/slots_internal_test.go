package lane

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
)

// TestSlots has goroutines wait for slots, and changes how many there are.
func TestSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, closed, in, ended := newSlots(2), make(chan struct{}), 0, 0
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
	for range 60 {
		r.admit(&connEntry{room: r, fd: -1}, heavy, true)
	}
	for range 5 {
		r.admit(&connEntry{room: r, fd: -1}, light, true)
	}
	r.setLimit(50)
	if check(t, r); r.groups[light].places.n != 5 || r.open > 45 || r.groups[heavy].places.n < 30 {
		t.Errorf("%d connections are open: %d of the client with the most, %d of the other", r.open, r.groups[heavy].places.n, r.groups[light].places.n)
	}
	r.setLimit(200)
	if r.scarce.Load() {
		t.Error("connections are scarce under a high limit")
	}
	for range 100 {
		if !r.admit(&connEntry{room: r, fd: -1}, heavy, true) {
			t.Fatal("a connection is refused under a high limit")
		}
	}
}
