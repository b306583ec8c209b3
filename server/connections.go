package server

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

// connections knows net/http's open connections, and which of them wait for a request; the
// fast lanes know theirs. Where there are more than most, the one that has waited longest is
// closed, so that connections that ask for nothing never keep others out.
type connections struct {
	most      int // 0 for any number
	deadlines lane.Deadlines

	mu      sync.Mutex
	lanes   []*lane.Listener
	coming  int // are handed over, and not open yet
	open    map[net.Conn]connection
	idle    list.List     // of net.Conn, longest idle first
	ended   time.Time     // when the server began to end, zero before
	changed chan struct{} // has one when something has changed since then
}

// A connection is in a phase since then.
type connection struct {
	phase lane.Phase
	since time.Time
	place *list.Element // in idle; nil where it is in another phase
	shut  bool          // is being closed
}

func newConnections(most int) *connections {
	return &connections{most: most, open: make(map[net.Conn]connection), changed: make(chan struct{}, 1)}
}

func (c *connections) scarce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.lanes, (*lane.Listener).Scarce)
}

func (c *connections) add(l *lane.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes = append(c.lanes, l)
}

func (c *connections) fronts() []*lane.Listener {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lanes)
}

// observe is an http.Server's ConnState.
func (c *connections) observe(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(conn)
	if !c.ended.IsZero() {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	now := time.Now()
	switch state {
	case http.StateClosed, http.StateHijacked:
		return
	case http.StateNew:
		c.coming--
		c.open[conn] = connection{phase: lane.Unanswered, since: now}
	case http.StateActive:
		c.open[conn] = connection{phase: lane.Answering, since: now}
	case http.StateIdle:
		c.open[conn] = connection{phase: lane.Idle, since: now, place: c.idle.PushBack(conn)}
	}
	c.makeRoomLocked()
}

// expect counts n more connections that a lane is about to hand over.
func (c *connections) expect(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coming += n
}

// forget is called with mu held.
func (c *connections) forget(conn net.Conn) {
	if place := c.open[conn].place; place != nil {
		c.idle.Remove(place)
	}
	delete(c.open, conn)
}

// close is called with mu held. The connection stays open until it says that it is closed.
func (c *connections) close(conn net.Conn) {
	c.forget(conn)
	c.open[conn] = connection{shut: true}
	go conn.Close() // TLS says goodbye first, and may wait for that
}

// makeRoom is called when a lane has one connection more.
func (c *connections) makeRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.makeRoomLocked()
}

func (c *connections) makeRoomLocked() {
	if c.most == 0 {
		return
	}
	n := len(c.open)
	for _, l := range c.lanes {
		n += l.Len()
	}
	if n <= c.most || slices.ContainsFunc(c.lanes, func(l *lane.Listener) bool { return !l.Fair() }) {
		return // or a client with many gives way
	}
	before, longest := time.Now(), c.idle.Front()
	if longest != nil {
		before = c.open[longest.Value.(net.Conn)].since
	}
	for _, l := range c.lanes {
		if l.CloseIdle(before) {
			return
		}
	}
	if longest != nil {
		c.close(longest.Value.(net.Conn))
	}
}

// busy returns how many connections are not idle.
func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, is := range c.open {
		if is.place == nil && !is.shut {
			n++
		}
	}
	for _, l := range c.lanes {
		_, working := l.Counts()
		n += working
	}
	return n
}

// drain returns when there are no connections and over is closed, or ctx ends. Until then it closes those whose deadlines pass,
// of a server that ends from now on.
func (c *connections) drain(ctx context.Context, over <-chan struct{}) error {
	for {
		now := time.Now()
		n, next := c.closeOverdue(now)
		if n == 0 && over == nil {
			return nil
		}
		timer := time.NewTimer(next.Sub(now))
		select {
		case <-timer.C:
		case <-c.changed:
		case <-over:
			over = nil
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		timer.Stop()
	}
}

// closeOverdue closes the connections of a server that ends whose deadlines have passed. It returns how many are open or coming, and when
// the next deadline passes; or a later time where there is none.
func (c *connections) closeOverdue(now time.Time) (n int, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.IsZero() {
		c.ended = now
	}
	next = now.Add(time.Hour)
	for conn, is := range c.open {
		switch by := c.deadlines.At(is.phase, is.since, c.ended); {
		case by.IsZero(), is.shut:
		case !now.Before(by):
			c.close(conn)
		case by.Before(next):
			next = by
		}
	}
	return len(c.open) + c.coming, next
}
