package waitingroom

import (
	"sync"
	"time"
)

// An allowance lets so many requests pass in a minute: none at 0, all below.
type allowance struct {
	perMinute int64

	mu     sync.Mutex
	minute int64
	used   int64
}

// take uses one, or tells how long it takes until there are more.
func (a *allowance) take(now time.Time) (ok bool, again time.Duration) {
	if a.perMinute < 0 {
		return true, 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if m := now.Unix() / 60; m != a.minute {
		a.minute, a.used = m, 0
	}
	if a.used < a.perMinute {
		a.used++
		return true, 0
	}
	return false, time.Unix((a.minute+1)*60, 0).Sub(now)
}
