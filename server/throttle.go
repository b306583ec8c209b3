package server

import (
	"sync"
	"time"
)

// A throttle lets one event a second through and counts the others. The zero
// value is ready.
type throttle struct {
	now func() time.Time // time.Now where nil

	mu   sync.Mutex
	last time.Time
	held int
}

// next reports whether this event may pass, and how many were held back before it
// since the last one that did.
func (t *throttle) next() (held int, ok bool) {
	now := time.Now
	if t.now != nil {
		now = t.now
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if at := now(); t.last.IsZero() || at.Sub(t.last) >= time.Second {
		held, t.held, t.last = t.held, 0, at
		return held, true
	}
	t.held++
	return 0, false
}
