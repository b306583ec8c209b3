package lane

import (
	"net"
	"sync"
)

// connectionSlots bound how many connections are open. The bound can change while they are.
type connectionSlots struct {
	mu    sync.Mutex
	most  int // 0 for any number
	taken int
	freed chan struct{} // has one if a goroutine that waits in acquire should look again
}

// newSlots returns slots for most open connections, 0 for any number.
func newSlots(most int) *connectionSlots {
	return &connectionSlots{most: most, freed: make(chan struct{}, 1)}
}

// acquire acquires a slot. It waits for one until closed is closed, and returns net.ErrClosed then.
func (s *connectionSlots) acquire(closed <-chan struct{}) error {
	for !s.tryAcquire() {
		select {
		case <-s.freed:
		case <-closed:
			return net.ErrClosed
		}
	}
	return nil
}

// tryAcquire acquires a slot without waiting. It returns false if all are taken. If another slot is free afterwards, it wakes a
// goroutine that waits for one.
func (s *connectionSlots) tryAcquire() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most > 0 && s.taken >= s.most {
		return false
	}
	s.taken++
	s.wakeOne() // the listener beside this one may wait, too
	return true
}

// release releases a slot, and wakes a goroutine that waits for one, unless more than the limit are still taken.
func (s *connectionSlots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken--
	s.wakeOne()
}

// setLimit changes the limit. Connections beyond a lower one keep their slots until they end.
func (s *connectionSlots) setLimit(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
	s.wakeOne()
}

// wakeOne wakes one of the goroutines that wait for a slot, if a slot is free. The caller holds mu.
func (s *connectionSlots) wakeOne() {
	if s.most > 0 && s.taken >= s.most {
		return
	}
	select {
	case s.freed <- struct{}{}:
	default:
	}
}
