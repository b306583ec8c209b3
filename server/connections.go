package server

import (
	"container/list"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/server/lane"
)

// connections knows which connections are open, and which of those wait for a
// request. Where there are more than most, who waits longest is closed, so that
// connections that ask for nothing never keep others out. Those on fast lanes are
// the lanes' to know.
type connections struct {
	most int // 0 for any number

	mu    sync.Mutex
	lanes []*lane.Listener
	open  map[net.Conn]*list.Element // its place in idle; nil where it is at work
	idle  list.List                  // of idler, longest idle first
}

// An idler is a connection of net/http's and when it began to wait for a request.
type idler struct {
	conn  net.Conn
	since time.Time
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
	if place := c.open[conn]; place != nil {
		c.idle.Remove(place)
	}
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
		return
	case http.StateIdle:
		c.open[conn] = c.idle.PushBack(idler{conn, time.Now()})
	default:
		c.open[conn] = nil
	}
	c.makeRoomLocked()
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
	if n <= c.most {
		return
	}
	before, longest := time.Now(), c.idle.Front()
	if longest != nil {
		before = longest.Value.(idler).since
	}
	for _, l := range c.lanes {
		if l.CloseIdle(before) {
			return
		}
	}
	if longest != nil {
		victim := c.idle.Remove(longest).(idler).conn
		c.open[victim] = nil // until it says that it is closed
		go victim.Close()    // TLS says goodbye first, and may wait for that
	}
}

// busy is how many are not idle.
func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.open) - c.idle.Len()
	for _, l := range c.lanes {
		_, working := l.Counts()
		n += working
	}
	return n
}
