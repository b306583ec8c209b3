package nodes

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Within is how long after its request a response counts.
	Within = 2 * time.Second
	// Sure is how long a leader responds after the start of a read that showed no later epoch.
	Sure = 5 * time.Second
	// Skew is the most that the clocks of two nodes differ: each is at most Within and ahead from the leader's, and
	// the rest is for drift while a node gets no response from the leader.
	Skew = 5 * time.Second
	// ahead is how far a clock may be ahead of the leader's while its node accepts responses.
	ahead = 200 * time.Millisecond
)

// A Clock is the clock of a node's rooms. Reading it takes no lock.
type Clock struct {
	elapsed func() time.Duration
	known   chan struct{} // closed once the leader's time is known
	learned sync.Once     // closes known
	offset  atomic.Int64  // the time at which elapsed was zero, in nanoseconds since 1970
	floor   atomic.Int64  // the clock never returns an earlier time
	setting sync.Mutex    // held while it is changed
}

// NewClock returns the clock of a node: elapsed is its monotonic time, and wall the time by its own clock.
func NewClock(elapsed func() time.Duration, wall time.Time) *Clock {
	c := &Clock{elapsed: elapsed, known: make(chan struct{})}
	c.offset.Store(wall.UnixNano() - int64(elapsed()))
	return c
}

// Now returns the leader's time, as far as it is known.
func (c *Clock) Now() time.Time {
	offset := c.offset.Load() // first: Follow raises the floor before it lowers the offset
	return time.Unix(0, max(offset+int64(c.elapsed()), c.floor.Load()))
}

// Known reports whether the leader's time is known. Until then no room may use the clock.
func (c *Clock) Known() bool {
	select {
	case <-c.known:
		return true
	default:
		return false
	}
}

// WhenKnown returns a channel that is closed once the leader's time is known.
func (c *Clock) WhenKnown() <-chan struct{} { return c.known }

// setKnown closes the channel of WhenKnown.
func (c *Clock) setKnown() { c.learned.Do(func() { close(c.known) }) }

// setLeading makes the clock the one that all others follow.
func (c *Clock) setLeading() { c.setKnown() }

// setBy sets the clock by that of the leader, which was at at some moment between asked and now. It returns false if the clock is ahead of
// the leader's.
func (c *Clock) setBy(at time.Time, asked time.Duration) bool {
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
		return !shown.After(at.Add(way + ahead))
	}
	return true
}
