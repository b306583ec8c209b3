package lane

import (
	"net"
	"sync"
)

// slots bounds how many connections are open. The bound can change while they are.
type slots struct {
	mu    sync.Mutex
	most  int // 0 for any number
	taken int
	freed chan struct{} // has one if a goroutine that waits in acquire should look again
}

// newSlots returns that many slots, 0 for any number.
func newSlots(most int) *slots { return &slots{most: most, freed: make(chan struct{}, 1)} }

// acquire acquires a slot. It waits for one until closed is closed, and returns net.ErrClosed then.
func (s *slots) acquire(closed <-chan struct{}) error {
	for !s.tryAcquire() {
		select {
		case <-s.freed:
		case <-closed:
			return net.ErrClosed
		}
	}
	return nil
}

// tryAcquire acquires a slot without waiting; false if there is none.
func (s *slots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 0 && s.taken >= s.most {
		return false
	}
	s.taken++
	s.wakeOne() // the listener beside this one may wait, too
	return true
}

// release releases a slot.
func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.wakeOne()
}

// setLimit changes the limit. Connections beyond a lower one keep their slots until they end.
func (s *slots) setLimit(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
	s.wakeOne()
}

// wakeOne wakes a goroutine that waits for a slot, if there is one. The caller holds mu.
func (s *slots) wakeOne() {
	if s.most > 0 && s.taken >= s.most {
		return
	}
	select {
	case s.freed <- struct{}{}:
	default:
	}
}
