package lane

import (
	"net"

	"github.com/larder-cdn/larder/internal/retry"
)

// This file bounds how many connections are open at all, those included that were evicted and are not closed yet. Each has a slot.

// acquire acquires a slot for the next connection. It waits for one until closed is closed, and returns net.ErrClosed then.
func (r *connLimit) acquire(closed <-chan struct{}) error {
	for !r.tryAcquire() {
		select {
		case <-r.freed:
		case <-closed:
			return net.ErrClosed
		}
	}
	return nil
}

// tryAcquire acquires a slot without waiting. It returns false if all are taken. If another slot is free afterwards, it wakes a
// goroutine that waits for one.
func (r *connLimit) tryAcquire() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.most > 0 && r.taken >= r.most {
		return false
	}
	r.taken++
	r.wakeOne() // the listener beside this one may wait, too
	return true
}

// release releases the slot of a connection that was closed, and wakes a goroutine that waits for one, unless more than the limit are still taken.
func (r *connLimit) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	r.wakeOne()
}

// wakeOne wakes one of the goroutines that wait for a slot, if a slot is free. The caller holds mu.
func (r *connLimit) wakeOne() {
	if r.most > 0 && r.taken >= r.most {
		return
	}
	retry.Wake(r.freed)
}
