package client

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Shares are places that clients share: archives being made, streams of the log, processors for pages. While places are
// free a client may have as many as it likes. What waits stands in a line of its client; a place that is free goes to
// the client that has fewest, and among these to the one that got none for longest. It is safe for concurrent use.
type Shares struct {
	places int
	firm   bool // whether a client keeps what it has

	mu    sync.Mutex
	taken int
	turn  uint64 // counts places given
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

// mostWaiting bounds the line of one client.
const mostWaiting = 100

// Why a client gets no place, or loses the one that it has.
var (
	ErrNoPlace = errors.New("all places are taken, and no other client has more of them")
	ErrLost    = errors.New("another client needed the place")
)

// NewShares returns places that are held for long. When none is free, the client that has the most loses its newest to
// a client that has fewer.
func NewShares(places int) *Shares {
	return &Shares{places: places, of: make(map[netip.Prefix]*holder)}
}

// NewTurns returns places that are held for moments. A client keeps the one that it has.
func NewTurns(places int) *Shares {
	s := NewShares(places)
	s.firm = true
	return s
}

// Processors is how many of the machine's processors may make pages and responses of the API at once. The others are for
// files.
func Processors() int { return max(1, runtime.GOMAXPROCS(0)/2) }

type scarcityKey struct{}

// WithScarcity returns the context of a connection at a server whose connections are scarce when the function says so.
func WithScarcity(ctx context.Context, scarce func() bool) context.Context {
	return context.WithValue(ctx, scarcityKey{}, scarce)
}

// Hurries reports whether connections are scarce where a request with that context came in, so that its client has to
// take its answer faster.
func Hurries(ctx context.Context) bool {
	scarce, ok := ctx.Value(scarcityKey{}).(func() bool)
	return ok && scarce()
}

// Timeout is how long a request waits for its turn at these.
const Timeout = 10 * time.Second

// Enter takes a place for the client at a remote address, and waits for one up to that time, or until ctx ends. Its
// context ends with [ErrLost] if the client has to give the place up; then, or when it is done, the caller calls leave
// once. Without a place the error is [ErrNoPlace], or that of ctx.
//
// For a moment, until the goroutine that lost its place has left, one more than all may be inside.
func (s *Shares) Enter(ctx context.Context, remote string, timeout time.Duration) (inside context.Context, leave func(), err error) {
	client, _ := Of(remote)
	inside, lose := context.WithCancelCause(ctx)
	p := &place{given: make(chan struct{}), lose: lose}
	leave = sync.OnceFunc(func() { s.leave(client, p) })
	if !s.enter(client, p, timeout > 0) {
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

// enter gives p to the client, or has it wait if it may.
func (s *Shares) enter(client netip.Prefix, p *place, waits bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.of[client]
	if h == nil {
		h = &holder{}
		s.of[client] = h
	}
	switch {
	case s.taken < s.places:
		s.give(h, p)
	case s.evict(len(h.held)):
		s.give(h, p)
	case waits && len(h.waiting) < mostWaiting:
		h.waiting = append(h.waiting, p)
	default:
		s.forget(client, h)
		return false
	}
	return true
}

func (s *Shares) give(h *holder, p *place) {
	s.taken++
	s.turn++
	h.last = s.turn
	h.held = append(h.held, p)
	close(p.given)
}

// evict takes a place from the client that has the most, if that is two more than mine: else they would only change places.
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
	s.forget(client, most)
	return true
}

// Taken returns how many places are taken.
func (s *Shares) Taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken
}

// Full reports whether the next client has to wait, or evicts another one.
func (s *Shares) Full() bool { return s.Taken() >= s.places }

// leave ends a place, or the wait for it.
func (s *Shares) leave(client netip.Prefix, p *place) {
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
		s.next()
	} else if i := slices.Index(h.waiting, p); i >= 0 {
		h.waiting = slices.Delete(h.waiting, i, i+1)
	}
	s.forget(client, h)
}

// next gives the free place to the client whose turn it is.
func (s *Shares) next() {
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
	s.give(first, p)
}

// forget drops a client that has nothing and waits for nothing.
func (s *Shares) forget(client netip.Prefix, h *holder) {
	if len(h.held)+len(h.waiting) == 0 {
		delete(s.of, client)
	}
}
