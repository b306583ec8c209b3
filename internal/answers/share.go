package answers

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/priority"
	"github.com/larder-cdn/larder/internal/requests"
)

// Shares are places that clients share, such as archives being made, streams of the log, and processors for pages. While places are free, a
// client may take any number. Each client has its own line of waiting requests. A free place goes to the client that has the fewest places,
// and among these to the one that has received none for longest. Shares is safe for concurrent use.
type Shares struct {
	places int
	firm   bool // a client never loses a place

	mu    sync.Mutex
	taken int
	turn  uint64 // counts the places given so far
	of    map[netip.Prefix]*holder
}

// A holder is a client that has places, or waits for one.
type holder struct {
	held    []*place // the oldest first; without those that were lost
	waiting []*place // the oldest first
	last    uint64   // the turn at which it got its last place
}

// A place is one that a client has or waits for.
type place struct {
	given chan struct{} // closed when the client has it
	lose  context.CancelCauseFunc
	lost  bool
}

// mostWaiting limits the line of one client.
const mostWaiting = 100

// Reasons why a client gets no place, or loses its place.
var (
	ErrNoPlace = errors.New("all places are taken, and no other client has more of them")
	ErrLost    = errors.New("another client needed the place")
)

// NewShares returns places that clients hold for long. When all are taken, the client that has the most loses its newest place to a client
// that has fewer.
func NewShares(places int) *Shares {
	return &Shares{places: places, of: make(map[netip.Prefix]*holder)}
}

// NewTurns returns places that clients hold for moments. A client never loses one.
func NewTurns(places int) *Shares {
	s := NewShares(places)
	s.firm = true
	return s
}

// PageProcessors returns how many of the machine's processors may produce pages and API responses at once: half of them, at least
// one. The others are for files.
func PageProcessors() int { return max(1, priority.Processors()/2) }

type scarcityKey struct{}

// WithScarcity returns the context of a connection to a server. scarce reports whether the server's connections are scarce.
func WithScarcity(ctx context.Context, scarce func() bool) context.Context {
	return context.WithValue(ctx, scarcityKey{}, scarce)
}

// IsScarce reports whether connections are scarce where a request with that context arrived, so that its client must receive the
// response faster. It returns false if the context is not from [WithScarcity].
func IsScarce(ctx context.Context) bool {
	scarce, ok := ctx.Value(scarcityKey{}).(func() bool)
	return ok && scarce()
}

// TurnTimeout limits how long a request waits for a place. It is shorter than the time for the whole response, so that the response says
// why.
const TurnTimeout = 8 * time.Second

// Enter takes a place for the client at a remote address, which has a host and a port; all other addresses, as of Unix sockets, are
// one client. It waits up to timeout, or until ctx ends. The context that it returns ends with the cause [ErrLost]
// ([context.Cause]) if the client has to give up the place. Then, or when it is done, the caller calls leave. Without a place inside
// and leave are nil, and the error is [ErrNoPlace], at once if timeout is 0 or too many requests of the client wait, or that of ctx.
// One more than all places may be in use for a moment, until the goroutine that lost its place has left.
func (s *Shares) Enter(ctx context.Context, remote string, timeout time.Duration) (inside context.Context, leave func(), err error) {
	client, _ := requests.ClientOf(remote)
	inside, lose := context.WithCancelCause(ctx)
	p := &place{given: make(chan struct{}), lose: lose}
	leave = sync.OnceFunc(func() { s.releasePlace(client, p) })
	if !s.requestPlace(client, p, timeout > 0) {
		lose(ErrNoPlace)
		return nil, nil, ErrNoPlace
	}
	select {
	case <-p.given:
		return inside, leave, nil
	default:
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.given:
		return inside, leave, nil
	case <-timer.C:
		err = ErrNoPlace
	case <-ctx.Done():
		err = ctx.Err()
	}
	leave() // or stop waiting
	return nil, nil, err
}

// requestPlace gives p to the client if a place is free or another client loses one to it, else makes it wait if waits and its line
// is not full. It reports whether it did either.
func (s *Shares) requestPlace(client netip.Prefix, p *place, waits bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of[client]
	if h == nil {
		h = &holder{}
		s.of[client] = h
	}
	switch {
	case s.taken < s.places:
		s.assign(h, p)
	case s.evict(len(h.held)):
		s.assign(h, p)
	case waits && len(h.waiting) < mostWaiting:
		h.waiting = append(h.waiting, p)
	default:
		s.removeIdle(client, h)
		return false
	}
	return true
}

// assign gives a place to a client: it counts the place as taken and closes p.given. The caller holds mu.
func (s *Shares) assign(h *holder, p *place) {
	s.taken++
	s.turn++
	h.last = s.turn
	h.held = append(h.held, p)
	close(p.given)
}

// evict takes the newest place from the client that has the most places, if it has at least two more than mine; the context of the
// place ends with the cause [ErrLost]. With fewer they would only swap. evict reports whether it did; never in [NewTurns]. The caller
// holds mu.
func (s *Shares) evict(mine int) bool {
	if s.firm {
		return false
	}
	var most *holder
	var client netip.Prefix
	for c, h := range s.of {
		if most == nil || len(h.held) > len(most.held) {
			client, most = c, h
		}
	}
	if most == nil || len(most.held) < mine+2 {
		return false
	}
	newest := most.held[len(most.held)-1]
	most.held = most.held[:len(most.held)-1]
	newest.lost = true
	newest.lose(ErrLost)
	s.taken--
	s.removeIdle(client, most)
	return true
}

// Taken returns how many places are taken.
func (s *Shares) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Full reports whether all places are taken, so that the next client waits, gets none, or evicts another one.
func (s *Shares) Full() bool { return s.Taken() >= s.places }

// releasePlace ends the context of the place p of a client, returns the place, which the next waiting client gets, or ends the wait
// for it. A place that was lost is not returned again.
func (s *Shares) releasePlace(client netip.Prefix, p *place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.lose(context.Canceled)
	h := s.of[client]
	if p.lost || h == nil {
		return
	}
	if i := slices.Index(h.held, p); i >= 0 {
		h.held = slices.Delete(h.held, i, i+1)
		s.taken--
		s.giveNext()
	} else if i := slices.Index(h.waiting, p); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	}
	s.removeIdle(client, h)
}

// giveNext gives a free place to the waiting client with the fewest places, and among these the one that has received none for
// longest; to none if no client waits. The caller holds mu.
func (s *Shares) giveNext() {
	var first *holder
	for _, h := range s.of {
		if len(h.waiting) > 0 && (first == nil || cmp.Or(cmp.Compare(len(h.held), len(first.held)), cmp.Compare(h.last, first.last)) < 0) {
			first = h
		}
	}
	if first == nil {
		return
	}
	p := first.waiting[0]
	first.waiting = slices.Delete(first.waiting, 0, 1)
	s.assign(first, p)
}

// removeIdle removes a client if it has no place and waits for none. The caller holds mu.
func (s *Shares) removeIdle(client netip.Prefix, h *holder) {
	if len(h.held)+len(h.waiting) == 0 {
		delete(s.of, client)
	}
}
