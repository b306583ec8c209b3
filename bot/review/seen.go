package review

import (
	"crypto/sha256"
	"sync"

	"github.com/larder-cdn/larder/github"
)

// seen remembers the newest deliveries, by their ids and by what they say: the id is not signed, so who
// sends again what GitHub sent can choose another.
type seen struct {
	mu    sync.Mutex
	known map[[sha256.Size]byte]bool
	order [][sha256.Size]byte // a ring
	next  int
}

func newSeen(most int) *seen {
	return &seen{known: map[[sha256.Size]byte]bool{}, order: make([][sha256.Size]byte, 2*most)}
}

func keysOf(d github.Delivery) [2][sha256.Size]byte {
	return [2][sha256.Size]byte{sha256.Sum256([]byte("id " + d.ID)), sha256.Sum256(append([]byte("payload "+d.Event+" "), d.Payload...))}
}

// first reports whether a delivery comes for the first time.
func (s *seen) first(d github.Delivery) bool {
	keys := keysOf(d)
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.ID != "" && s.known[keys[0]] || s.known[keys[1]] {
		return false
	}
	for _, key := range keys {
		delete(s.known, s.order[s.next])
		s.order[s.next], s.known[key] = key, true
		s.next = (s.next + 1) % len(s.order)
	}
	return true
}

// forget lets a delivery come again that could not be taken.
func (s *seen) forget(d github.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keysOf(d) {
		delete(s.known, key)
	}
}
