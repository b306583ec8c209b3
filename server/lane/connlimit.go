package lane

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// A connLimit limits how many connections a listener has, and counts them by client. Below the limit each client may have any number.
// Near it the client with the most loses connections, whatever these are doing. It costs something when a connection is accepted and when
// it is closed, and nothing when a request is served.
//
// Connections of proxies that the operator trusts do not count for a client. While connections are scarce, each request counts them for
// the client that it is from.
type connLimit struct {
	bounded bool        // false without a limit
	scarce  atomic.Bool // whether clients have to hurry

	mu      sync.Mutex
	most    int
	ample   int // up to this number none is evicted
	open    int // connections, without those that were cut
	groups  map[netip.Prefix]*clientGroup
	bySize  []ring[*clientGroup] // by number of connections
	largest int                  // how many the client with the most has
}

// A clientGroup is the connections of one client.
type clientGroup struct {
	client netip.Prefix
	places ring[*connEntry]
	link[*clientGroup]
}

// A connEntry is a connection in a connLimit. It stays the same while the connection is open, whichever goroutine owns that, and
// whether it is a descriptor or a connection of package net. A nil entry may set a descriptor or a connection and leave: that does
// nothing.
type connEntry struct {
	room  *connLimit
	group *clientGroup // nil where it is not counted for a client
	link[*connEntry]
	in     bool                 // whether it counts as open
	fd     int                  // -1 for none
	tcp    *net.TCPConn         // nil where it is a descriptor, or closed
	conn   atomic.Pointer[conn] // nil where it is not the lane's
	proxy  bool                 // whether a trusted proxy has connected
	remote net.Addr             // the client's, by the PROXY protocol; or nil
}

const (
	// few is how many connections a browser has to a host, and a few more. Clients with up to so many connections are not ranked.
	few = 8
	// looks bounds how many connections are looked at for one that is idle.
	looks = 64
)

func newConnLimit(most int) *connLimit {
	return &connLimit{bounded: most > 0, most: most, ample: most * 9 / 10, groups: make(map[netip.Prefix]*clientGroup), bySize: make([]ring[*clientGroup], 1)}
}

// admit adds a new connection of a client, and evicts a connection if there are too many. counts says that the new one counts for
// its client. admit returns false if the new connection is the evicted one, which the caller closes.
func (r *connLimit) admit(p *connEntry, of netip.Prefix, counts bool) bool {
	if !r.bounded {
		return true
	}
	r.mu.Lock()
	r.add(p, of, counts)
	return r.makeRoom(p)
}

// moveToClient counts a connection for a client, if it counted for none or for another one before. It returns false if the
// connection was evicted before, or is evicted now because the client has too many; then the connection is shut down.
func (r *connLimit) moveToClient(p *connEntry, of netip.Prefix) bool {
	if !r.bounded {
		return true
	}
	r.mu.Lock()
	if !p.in {
		r.mu.Unlock()
		return false
	}
	if p.group != nil && p.group.client == of {
		r.mu.Unlock()
		return true
	}
	r.remove(p)
	r.add(p, of, true)
	stays := r.makeRoom(p)
	if !stays {
		r.shutDown(p)
	}
	return stays
}

// shutDown makes reading and writing of a connection fail, so that its owner closes it.
func (r *connLimit) shutDown(p *connEntry) {
	r.mu.Lock()
	p.shutDown()
	r.mu.Unlock()
}

// setLimit changes the limit. If more connections are open than a lower limit allows, the clients with the most connections lose
// some.
func (r *connLimit) setLimit(most int) {
	r.mu.Lock()
	r.most, r.ample = most, most*9/10
	r.addOpen(0)
	excess := r.open - r.ample
	r.mu.Unlock()
	for range excess {
		r.mu.Lock()
		r.makeRoom(&connEntry{})
	}
}

// makeRoom evicts a connection if there are too many now that p counts. It returns false if that connection is p, which the caller
// closes. The caller holds mu, which makeRoom releases.
func (r *connLimit) makeRoom(p *connEntry) bool {
	evicted := r.evictionCandidate(p)
	if evicted == nil {
		r.mu.Unlock()
		return true
	}
	r.remove(evicted)
	c := evicted.conn.Load()
	if c == nil || c.state().name() != idle {
		if evicted != p {
			evicted.shutDown()
		}
		r.mu.Unlock()
		return evicted != p
	}
	r.mu.Unlock()
	go func() { // TLS says goodbye first, and may wait for that
		if s := c.state(); s.name() != idle || !c.listener.closeWaiting(c, s) {
			r.mu.Lock()
			evicted.shutDown()
			r.mu.Unlock()
		}
	}()
	return true
}

// evictionCandidate returns the connection to evict now that p has come, nil for none.
func (r *connLimit) evictionCandidate(p *connEntry) *connEntry {
	if r.open <= r.ample {
		return nil
	}
	heaviest := r.bySize[r.largest].first
	if p.group != nil && p.group.places.n == r.largest {
		heaviest = p.group
	}
	mine := heaviest != nil && heaviest == p.group
	if heaviest == nil || r.largest <= few && (mine || r.open <= (r.ample+r.most)/2) {
		return nil // then the connection that is idle for longest makes room, whosever it is
	}
	switch candidate := heaviest.evictionCandidate(p); {
	case !mine, candidate.isIdle():
		return candidate
	case r.open > r.most-max(1, r.most/50):
		return p
	}
	return nil // no other client needs the room yet
}

// evictionCandidate returns the connection of the client that can be closed with the least harm, and is not newcomer: one that
// waits for its next request or has sent none yet; else the oldest, which is likely the slowest. It looks at some connections, and
// moves them to the end of the order.
func (h *clientGroup) evictionCandidate(newcomer *connEntry) *connEntry {
	var candidate *connEntry
	rank := func(p *connEntry) int {
		switch {
		case p.isIdle():
			return 2
		case p.conn.Load() != nil && p.conn.Load().state().name() == fresh:
			return 1
		}
		return 0
	}
	for range min(looks, h.places.n) {
		p := h.places.first
		if p != newcomer && (candidate == nil || rank(p) > rank(candidate)) {
			candidate = p
		}
		if candidate != nil && rank(candidate) == 2 {
			break
		}
		h.places.remove(p)
		h.places.append(p)
	}
	return candidate
}

// isIdle reports whether the connection waits for its next request.
func (p *connEntry) isIdle() bool {
	c := p.conn.Load()
	return c != nil && c.state().name() == idle
}

// isFair reports whether no client has so many connections that it would lose some before others.
func (r *connLimit) isFair() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.largest <= few
}

// add counts a connection, and with counts also counts it for the client. The caller holds mu.
func (r *connLimit) add(p *connEntry, of netip.Prefix, counts bool) {
	p.in = true
	r.addOpen(1)
	if !counts {
		return
	}
	h := r.groups[of]
	if h == nil {
		h = &clientGroup{client: of}
		r.groups[of] = h
	}
	p.group = h
	r.changeGroup(h, func() { h.places.append(p) })
}

// remove stops counting a connection. The caller holds mu.
func (r *connLimit) remove(p *connEntry) {
	if !p.in {
		return
	}
	p.in = false
	r.addOpen(-1)
	if h := p.group; h != nil {
		p.group = nil
		r.changeGroup(h, func() { h.places.remove(p) })
	}
}

// addOpen adds n to the number of open connections, and updates whether connections are scarce.
func (r *connLimit) addOpen(n int) {
	r.open += n
	r.scarce.Store(r.open > r.most*3/4)
}

// changeGroup changes the connections of a client by one, and keeps the groups sorted by their size.
func (r *connLimit) changeGroup(h *clientGroup, change func()) {
	if n := h.places.n; n > 0 {
		r.bySize[n].remove(h)
	}
	change()
	n := h.places.n
	if n == len(r.bySize) {
		r.bySize = append(r.bySize, ring[*clientGroup]{})
	}
	if n == 0 {
		delete(r.groups, h.client)
	} else {
		r.bySize[n].append(h)
	}
	for r.largest = max(r.largest, n); r.largest > 0 && r.bySize[r.largest].n == 0; {
		r.largest--
	}
}

// setDescriptor sets what the connection is from now on: a descriptor, or a connection of package net.
func (p *connEntry) setDescriptor(fd int, tcp *net.TCPConn) {
	if p != nil {
		p.room.mu.Lock()
		p.fd, p.tcp = fd, tcp
		p.room.mu.Unlock()
	}
}

// leave removes the connection from the limit, before it is closed.
func (p *connEntry) leave() {
	if p != nil {
		p.room.mu.Lock()
		p.room.remove(p)
		p.fd, p.tcp = -1, nil
		p.room.mu.Unlock()
	}
}

// setConn sets which connection of the lane this is, nil if it is none any more.
func (p *connEntry) setConn(c *conn) {
	if p != nil {
		p.conn.Store(c)
	}
}

// shutDown makes reading and writing of the connection fail, so that its owner closes it. What is not sent yet is dropped. The
// caller holds mu, so that the number of the descriptor still is this connection's.
func (p *connEntry) shutDown() {
	switch {
	case p.tcp != nil:
		_ = p.tcp.SetLinger(0)
		_ = p.tcp.CloseRead()
		_ = p.tcp.CloseWrite()
	case p.fd >= 0:
		shutdownDescriptor(p.fd)
	}
}
