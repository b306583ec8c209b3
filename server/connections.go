package server

import (
	"container/list"
	"net"
	"net/http"
	"sync"
)

// connections knows which connections are open, and which of those wait for a
// request. Where there are more than most, who waits longest is closed, so that
// connections that ask for nothing never keep others out.
type connections struct {
	most int // 0 for any number

	mu   sync.Mutex
	open map[net.Conn]*list.Element // its place in idle; nil where it is at work
	idle list.List                  // of net.Conn, longest idle first
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
		c.open[conn] = c.idle.PushBack(conn)
	default:
		c.open[conn] = nil
	}
	if longest := c.idle.Front(); longest != nil && c.most > 0 && len(c.open) > c.most {
		victim := c.idle.Remove(longest).(net.Conn)
		c.open[victim] = nil // until it says that it is closed
		go victim.Close()    // TLS says goodbye first, and may wait for that
	}
}

// busy is how many are not idle.
func (c *connections) busy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open) - c.idle.Len()
}
