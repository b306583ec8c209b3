package server

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/server/lane"
)

// connections knows net/http's open connections, and which of them wait for a request; the lanes know theirs.
type connections struct {
	deadlines lane.Deadlines

	mu      sync.Mutex
	limit   int // of the listeners, if it has changed; otherwise 0
	lanes   []*lane.Listener
	coming  int // are handed over, and not open yet
	open    map[net.Conn]connection
	leaving bool          // no connection may be upgraded
	ended   time.Time     // when the server began to end, zero before
	none    chan struct{} // has one when none is open any more
}

// A connection is a connection of net/http, and the phase in which it has been since a time.
type connection struct {
	phase    lane.Phase
	since    time.Time
	upgraded bool        // a handler has taken it
	shut     bool        // is being closed
	overdue  *time.Timer // closes it; nil where its server goes on, or the phase has no deadline
}

// newConnections returns an empty registry of net/http's open connections and of the lanes.
func newConnections() *connections {
	return &connections{open: make(map[net.Conn]connection), none: make(chan struct{}, 1)}
}

// isScarce reports whether any lane has so few free connections that slow clients have less time.
func (c *connections) isScarce() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.lanes, (*lane.Listener).Scarce)
}

// addLane registers a lane, whose connections count together with net/http's, and sets its limit of connections if setLimit was called before.
func (c *connections) addLane(l *lane.Listener) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes = append(c.lanes, l)
	if c.limit > 0 {
		l.SetLimit(c.limit)
	}
}

// setLimit changes how many connections the listeners of all lanes may have open. Neither limit nor the one before may be 0. If more are open, the
// listeners evict those that are idle or slow.
func (c *connections) setLimit(limit int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit = limit
	for _, l := range c.lanes {
		l.SetLimit(limit)
	}
}

// listLanes returns a copy of the list of registered lanes.
func (c *connections) listLanes() []*lane.Listener {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.lanes)
}

// trackState records the new state of a connection of net/http, as the function ConnState of an http.Server. It sets the connection's deadline if the
// server has begun to end. A hijacked connection stays in the registry until its Close, if it is a refusingConn, and is closed at once after
// closeUpgraded; any other hijacked connection is forgotten, because nothing reports its end.
func (c *connections) trackState(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.checkNone()
	c.forget(conn)
	now := time.Now()
	switch state {
	case http.StateClosed:
		return
	case http.StateHijacked:
		if _, ok := conn.(interface{ awaitRequest() }); !ok {
			return // its end is not reported
		}
		c.open[conn] = connection{phase: lane.Answering, since: now, upgraded: true}
		if c.leaving {
			c.close(conn)
		}
		return
	case http.StateNew:
		c.coming--
		c.setConnection(conn, connection{phase: lane.Unanswered, since: now})
	case http.StateActive:
		c.open[conn] = connection{phase: lane.Answering, since: now}
	case http.StateIdle:
		c.setConnection(conn, connection{phase: lane.Idle, since: now})
	}
}

// requestBegins records that bytes have come on an idle connection, which then counts as busy. If the server has begun to end, it replaces the
// timer that closes the connection by the one for an unanswered request; otherwise net/http's own timeouts apply. It sets no deadline of conn, and does
// nothing for a connection that is not idle.
func (c *connections) requestBegins(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if is := c.open[conn]; is.phase == lane.Idle && !is.since.IsZero() {
		if is.overdue != nil {
			is.overdue.Stop()
		}
		c.setConnection(conn, connection{phase: lane.Unanswered, since: time.Now()})
	}
}

// forgetUpgraded removes a connection that is being closed from the registry if a handler had taken it over (hijacked it), because net/http
// does not report the end of such a connection. If it was the last one, it wakes awaitNone. The limit of connections is the listener's,
// which forgetUpgraded does not change.
func (c *connections) forgetUpgraded(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open[conn].upgraded {
		c.forget(conn)
		c.checkNone()
	}
}

// expectHandedOff adds n to the count of connections that a lane is about to hand off to net/http, which trackState reduces when they arrive. n is
// negative if the lane could not hand off a connection that it had announced.
func (c *connections) expectHandedOff(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.coming += n
	c.checkNone()
}

// forget removes a connection from the registry and stops its deadline. The caller holds mu.
func (c *connections) forget(conn net.Conn) {
	is := c.open[conn]
	if is.overdue != nil {
		is.overdue.Stop()
	}
	delete(c.open, conn)
}

// close closes a connection in a goroutine of its own. The connection stays in the registry until net/http reports that it is closed; an upgraded one
// until its Close begins. The caller holds mu.
func (c *connections) close(conn net.Conn) {
	upgraded := c.open[conn].upgraded
	c.forget(conn)
	c.open[conn] = connection{shut: true, upgraded: upgraded}
	go conn.Close() // TLS says goodbye first, and may wait for that
}

// countBusy returns how many connections, of net/http and of the lanes, are not idle and not being closed.
func (c *connections) countBusy() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, is := range c.open {
		if is.phase != lane.Idle && !is.shut {
			n++
		}
	}
	for _, l := range c.lanes {
		_, working := l.Counts()
		n += working
	}
	return n
}

// closeUpgraded closes the connections that handlers have taken over (hijacked), now and from now on: they never end by themselves.
func (c *connections) closeUpgraded() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.leaving = true
	for conn, is := range c.open {
		if is.upgraded && !is.shut {
			c.close(conn)
		}
	}
}

// startDeadlines makes each connection close at the deadline of its phase from now on, because the server ends. Connections that the lanes still hand
// off follow.
func (c *connections) startDeadlines() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended.IsZero() {
		return
	}
	c.ended = time.Now()
	for conn, is := range c.open {
		c.setConnection(conn, is)
	}
}

// setConnection stores the phase of a connection. If the server has begun to end and the phase has a deadline, it starts a timer that closes the
// connection then, unless its phase has changed. It does not stop the timer of an earlier phase. The caller holds mu.
func (c *connections) setConnection(conn net.Conn, is connection) {
	by := c.deadlines.At(is.phase, is.since, c.ended)
	if !c.ended.IsZero() && !by.IsZero() && !is.shut {
		is.overdue = time.AfterFunc(time.Until(by), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if now := c.open[conn]; now.phase == is.phase && now.since.Equal(is.since) && !now.shut {
				c.close(conn)
			}
		})
	}
	c.open[conn] = is
}

// awaitNone waits until net/http has no open connection, and no lane is about to hand one off to it, or until ctx ends, whose
// error it returns then.
func (c *connections) awaitNone(ctx context.Context) error {
	return awaitNone(ctx, func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.open) + c.coming
	}, c.none)
}

// checkNone wakes awaitNone if no connection is open or about to be handed off. The caller holds mu.
func (c *connections) checkNone() {
	if len(c.open)+c.coming == 0 {
		retry.Wake(c.none)
	}
}
