package waitingroom

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// responseTimeout is how long after its request a response counts.
	responseTimeout = 2 * time.Second
	// epochTimeout is how long a leader responds after the start of a read that showed no later epoch.
	epochTimeout = 5 * time.Second
	// clockSkew is the most that the clocks of two nodes differ: each is at most responseTimeout and clockAhead from the leader's, and
	// the rest is for drift while a node gets no response from the leader.
	clockSkew = 5 * time.Second
	// clockAhead is how far a clock may be ahead of the leader's while its node accepts responses.
	clockAhead = 200 * time.Millisecond
)

// A Clock is the clock of a node's rooms. Reading it takes no lock.
type Clock struct {
	elapsed func() time.Duration
	known   context.Context // ends once the leader's time is known
	// setKnown makes Known return true from now on. On the leader's node it is called without setByLeader, because all others follow
	// its clock.
	setKnown func()
	offset   atomic.Int64 // the time at which elapsed was zero, in nanoseconds since 1970
	floor    atomic.Int64 // the clock never returns an earlier time
	setting  sync.Mutex   // held while it is changed
}

// NewClock returns the clock of a node, which shows wall, and goes on from there, until it follows a leader. elapsed returns the
// monotonic time of the process.
func NewClock(elapsed func() time.Duration, wall time.Time) *Clock {
	c := &Clock{elapsed: elapsed}
	c.known, c.setKnown = context.WithCancel(context.Background())
	c.offset.Store(wall.UnixNano() - int64(elapsed()))
	return c
}

// Now returns the leader's time, as far as it is known; before that, that of NewClock. It never goes back once Known returns
// true.
func (c *Clock) Now() time.Time {
	offset := c.offset.Load() // first: setByLeader raises the floor before it lowers the offset
	return time.Unix(0, max(offset+int64(c.elapsed()), c.floor.Load()))
}

// Known reports whether the leader's time is known. Until then no room may use the clock.
func (c *Clock) Known() bool { return c.known.Err() != nil }

// setByLeader sets the clock by the leader's, which showed at at some time between the request, sent at the monotonic time asked,
// and now. The first call always sets it, and makes Known return true. A clock that is ahead of the leader's stands still until
// the leader's has caught up; if it is ahead by more than clockAhead, setByLeader returns false.
func (c *Clock) setByLeader(at time.Time, asked time.Duration) bool {
	c.setting.Lock()
	defer c.setting.Unlock()
	now := c.elapsed()
	way := now - asked
	between := at.Add(way/2).UnixNano() - int64(now)
	if !c.Known() {
		c.offset.Store(between)
		c.setKnown()
		return true
	}
	switch shown := c.Now(); {
	case shown.Before(at):
		c.offset.Store(between)
	case shown.After(at.Add(way)):
		c.floor.Store(shown.UnixNano())
		c.offset.Store(between)
		return !shown.After(at.Add(way + clockAhead))
	}
	return true
}
