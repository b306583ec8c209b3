package lane

import (
	"time"
)

// Transitions are those that follow allows, by the names of the states.
func Transitions() map[[2]string]bool {
	all := make(map[[2]string]bool)
	for from := opening; from <= closing; from++ {
		for to := opening; to <= closing; to++ {
			if follow[from]&(1<<to) != 0 {
				all[[2]string{from.String(), to.String()}] = true
			}
		}
	}
	return all
}

// SetDeadline changes that of one phase, and not what else the options say of the same time limit.
func (o *Options) SetDeadline(p Phase, limit time.Duration) {
	d := o.Deadlines()
	*map[Phase]*time.Duration{Handshake: &d.Handshake, Unanswered: &d.Unanswered, Idle: &d.Idle}[p] = limit
	o.deadlines = &d
}

// Observe tells moved of each change of a connection's state.
func (o *Options) Observe(moved func(transition [2]string)) {
	o.moved = func(from, to state) { moved([2]string{from.String(), to.String()}) }
}

// CloseIdle closes a connection that has been waiting for its next request since before a time, as an eviction does. It reports whether
// there was one.
func (l *Listener) CloseIdle(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.open.members {
		if s := c.state(); s.name() == idle && s < idle.withStart(before) && l.takeWaiting(c, s) {
			go c.closeSocket()
			return true
		}
	}
	return false
}
