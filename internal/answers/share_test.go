package answers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

func TestShares(t *testing.T) {
	s := NewShares(4)
	type holder struct {
		ctx   context.Context
		leave func()
	}
	enter := func(remote string, want error) holder {
		t.Helper()
		ctx, leave, err := s.Enter(t.Context(), remote, 0)
		if !errors.Is(err, want) {
			t.Fatalf("%s: %v, want %v", remote, err, want)
		}
		return holder{ctx, leave}
	}
	lost := func(h holder, want bool) {
		t.Helper()
		if got := context.Cause(h.ctx) == ErrLost; got != want {
			t.Errorf("lost: %v (%v)", got, context.Cause(h.ctx))
		}
	}
	// One client may have all of them while no other wants one. Two ports, one client; IPv4 in IPv6 too.
	var greedy []holder
	for _, remote := range []string{"127.0.0.1:1", "127.0.0.1:2", "[::ffff:127.0.0.1]:3", "127.0.0.1:4"} {
		greedy = append(greedy, enter(remote, nil))
	}
	enter("127.0.0.1:5", ErrNoPlace)
	// The second client takes its newest, then the next; then both have two, and no change would make them more equal.
	a := enter("10.0.0.7:1", nil)
	lost(greedy[3], true)
	lost(greedy[2], false)
	b := enter("10.0.0.7:2", nil)
	lost(greedy[2], true)
	lost(greedy[1], false)
	enter("10.0.0.7:3", ErrNoPlace)
	// A third takes from one of the two.
	c := enter("[2001:db8::1]:1", nil)
	enter("[2001:db8::ffff]:2", ErrNoPlace) // the same /64
	if s.Taken() != 4 || !s.Full() {
		t.Errorf("%d taken", s.Taken())
	}
	for _, h := range append(greedy, a, b, c) {
		h.leave()
		h.leave()
	}
	if s.Taken() != 0 || len(s.of) != 0 {
		t.Errorf("%d taken, %v held", s.Taken(), s.of)
	}
	lost(c, false)
}

func TestSharesWait(t *testing.T) {
	s := NewShares(1)
	_, leave, err := s.Enter(t.Context(), "127.0.0.1:1", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Enter(t.Context(), "127.0.0.2:1", 0); !errors.Is(err, ErrNoPlace) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Enter(ctx, "127.0.0.2:1", time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	entered := make(chan error)
	go func() {
		_, _, err := s.Enter(t.Context(), "127.0.0.2:1", time.Hour)
		entered <- err
	}()
	leave()
	if err := <-entered; err != nil || s.Taken() != 1 {
		t.Errorf("%v, %d taken", err, s.Taken())
	}
}

// TestSharesAreFair has clients come and go at random: whenever a client is refused, no client has two more.
func TestSharesAreFair(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		s := NewShares(1 + random.IntN(12))
		var leaves []func()
		for range 200 {
			if random.IntN(3) == 0 && len(leaves) > 0 {
				i := random.IntN(len(leaves))
				leaves[i]()
				leaves = append(leaves[:i], leaves[i+1:]...)
				continue
			}
			addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, byte(random.IntN(5))}), 1)
			_, leave, err := s.Enter(t.Context(), addr.String(), 0)
			most, mine, held := 0, 0, 0
			for client, h := range s.of {
				most, held = max(most, len(h.held)), held+len(h.held)
				if client == requests.ClientAt(addr.Addr()) {
					mine = len(h.held)
				}
			}
			if err == nil {
				leaves = append(leaves, leave)
			} else if !s.Full() || most > mine+1 {
				t.Fatalf("refused with %d of its own, while another has %d, and %d of %d are taken", mine, most, s.taken, s.places)
			}
			if s.taken != held || s.taken > s.places {
				t.Fatalf("%d taken, %d held, of %d", s.taken, held, s.places)
			}
		}
	}
}

// TestTurns has one client stand in line a hundred times, and others once. Each of these waits for one turn of the first.
func TestTurns(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := NewTurns(1)
		_, leave, err := s.Enter(t.Context(), "127.0.0.1:1", 0)
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		enter := func(remote string) {
			_, leave, err := s.Enter(t.Context(), remote, time.Hour)
			if err != nil {
				t.Error(err)
				return
			}
			order = append(order, remote) // one at a time
			leave()
		}
		for range mostWaiting {
			go enter("127.0.0.1:1")
		}
		synctest.Wait()
		if _, _, err := s.Enter(t.Context(), "127.0.0.1:1", time.Hour); !errors.Is(err, ErrNoPlace) {
			t.Errorf("the line has no bound: %v", err)
		}
		for _, remote := range []string{"127.0.0.2:1", "127.0.0.3:1", "127.0.0.2:1"} {
			go enter(remote)
			synctest.Wait()
		}
		leave()
		synctest.Wait()
		if len(order) != mostWaiting+3 || s.Taken() != 0 || len(s.of) != 0 {
			t.Fatalf("%d turns; %d taken, %v", len(order), s.Taken(), s.of)
		}
		for i, remote := range order[4:] {
			if remote != "127.0.0.1:1" {
				t.Errorf("%s came as number %d, behind the long line: %v", remote, i+4, order[:i+5])
			}
		}
	})
}
