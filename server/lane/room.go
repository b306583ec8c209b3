package lane

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// A room knows whose the connections of a listener are. While there is room each client may have as many as it likes. Near
// the bound the client with the most gives way, whatever its connections are doing. It costs something when a
// connection is accepted and when it is closed, and nothing when a request is answered.
//
// Proxies that the operator trusts are not counted: their clients are told apart by request, while connections are scarce.
type room struct {
	bounded bool        // otherwise there may be any number
	scarce  atomic.Bool // whether clients have to hurry

	mu      sync.Mutex
	most    int
	ample   int // up to here nothing gives way
	open    int // connections, without those that were cut
	crowds  map[netip.Prefix]*crowd
	bySize  []ring[*crowd] // at n those that have n connections
	largest int            // how many the client with the most has
}

// A crowd is a client's connections.
type crowd struct {
	client netip.Prefix
	places ring[*place]
	link[*crowd]
}

// A place is that of one connection. It is the same for as long as the connection is open, whichever goroutine has it, and
// whether it is a descriptor or one of package net's. The methods of nil do nothing.
type place struct {
	room  *room
	crowd *crowd // nil where it is not counted for a client
	link[*place]
	in     bool                 // whether it counts as open
	fd     int                  // -1 where there is none
	tcp    *net.TCPConn         // nil where it is a descriptor, or closed
	conn   atomic.Pointer[conn] // nil where it is not the lane's
	proxy  bool                 // whether a trusted proxy has connected
	remote net.Addr             // what that told with the PROXY protocol; or nil
}

const (
	// few is how many connections a browser has to a host, and a few more. A client with so few is not told from others.
	few = 8
	// looks bounds how many connections are looked at for one that is idle.
	looks = 64
)

func newRoom(most int) *room {
	return &room{bounded: most > 0, most: most, ample: most * 9 / 10, crowds: make(map[netip.Prefix]*crowd), bySize: make([]ring[*crowd], 1)}
}

// admit gives a new connection its place, and has another give way where that is needed. It returns false where its own
// client is the one that has to.
func (r *room) admit(p *place, of netip.Prefix, counts bool) bool {
	if !r.bounded {
		return true
	}
	r.mu.Lock()
	r.add(p, of, counts)
	return r.makeRoom(p)
}

// isFrom counts a connection as a client's, of which that was not known when it was accepted, or that has another one's. It returns false where the
// client has to give way; then the connection is cut.
func (r *room) isFrom(p *place, of netip.Prefix) bool {
	if !r.bounded {
		return true
	}
	r.mu.Lock()
	if !p.in {
		r.mu.Unlock()
		return false
	}
	if p.crowd != nil && p.crowd.client == of {
		r.mu.Unlock()
		return true
	}
	r.remove(p)
	r.add(p, of, true)
	stays := r.makeRoom(p)
	if !stays {
		r.cut(p)
	}
	return stays
}

func (r *room) cut(p *place) {
	r.mu.Lock()
	p.cut()
	r.mu.Unlock()
}

// setLimit changes the bound. Beyond a lower one the clients with the most lose connections, as if others came.
func (r *room) setLimit(most int) {
	r.mu.Lock()
	r.most, r.ample = most, most*9/10
	r.count(0)
	excess := r.open - r.ample
	r.mu.Unlock()
	for range excess {
		r.mu.Lock()
		r.makeRoom(&place{})
	}
}

// makeRoom has a connection give way if p is one too many. It returns false where that is p. It is called with mu held,
// and returns without.
func (r *room) makeRoom(p *place) bool {
	loser := r.loser(p)
	if loser == nil {
		r.mu.Unlock()
		return true
	}
	r.remove(loser)
	c := loser.conn.Load()
	if c == nil || c.state().name() != idle {
		if loser != p {
			loser.cut()
		}
		r.mu.Unlock()
		return loser != p
	}
	r.mu.Unlock()
	go func() { // TLS says goodbye first, and may wait for that
		if s := c.state(); s.name() != idle || !c.listener.closeWaiting(c, s) {
			r.mu.Lock()
			loser.cut()
			r.mu.Unlock()
		}
	}()
	return true
}

// loser returns which connection gives way now that p has come, if any.
func (r *room) loser(p *place) *place {
	if r.open <= r.ample {
		return nil
	}
	heaviest := r.bySize[r.largest].first
	if p.crowd != nil && p.crowd.places.n == r.largest {
		heaviest = p.crowd
	}
	mine := heaviest != nil && heaviest == p.crowd
	if heaviest == nil || r.largest <= few && (mine || r.open <= (r.ample+r.most)/2) {
		return nil // then the connection that is idle for longest makes room, whosever it is
	}
	switch worst := heaviest.worst(p); {
	case !mine, worst.idles():
		return worst
	case r.open > r.most-max(1, r.most/50):
		return p
	}
	return nil // no other client needs the room yet
}

// worst returns the connection that the client can do without best: one that waits for its next request, or has not asked
// yet; else the oldest, which among those that are being sent to is likely the slowest. It looks at some, which then
// are the last in line. It never is the one that has just come.
func (h *crowd) worst(newcomer *place) *place {
	var worst *place
	rank := func(p *place) int {
		switch {
		case p.idles():
			return 2
		case p.conn.Load() != nil && p.conn.Load().state().name() == fresh:
			return 1
		}
		return 0
	}
	for range min(looks, h.places.n) {
		p := h.places.first
		if p != newcomer && (worst == nil || rank(p) > rank(worst)) {
			worst = p
		}
		if worst != nil && rank(worst) == 2 {
			break
		}
		h.places.remove(p)
		h.places.add(p)
	}
	return worst
}

func (p *place) idles() bool {
	c := p.conn.Load()
	return c != nil && c.state().name() == idle
}

// isFair reports whether no client has so many connections that it would give way to others.
func (r *room) isFair() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.largest <= few
}

// add and remove are called with mu held.
func (r *room) add(p *place, of netip.Prefix, counts bool) {
	p.in = true
	r.count(1)
	if !counts {
		return
	}
	h := r.crowds[of]
	if h == nil {
		h = &crowd{client: of}
		r.crowds[of] = h
	}
	p.crowd = h
	r.resize(h, func() { h.places.add(p) })
}

func (r *room) remove(p *place) {
	if !p.in {
		return
	}
	p.in = false
	r.count(-1)
	if h := p.crowd; h != nil {
		p.crowd = nil
		r.resize(h, func() { h.places.remove(p) })
	}
}

func (r *room) count(n int) {
	r.open += n
	r.scarce.Store(r.open > r.most*3/4)
}

// resize changes how many connections a client has, by one.
func (r *room) resize(h *crowd, change func()) {
	if n := h.places.n; n > 0 {
		r.bySize[n].remove(h)
	}
	change()
	n := h.places.n
	if n == len(r.bySize) {
		r.bySize = append(r.bySize, ring[*crowd]{})
	}
	if n == 0 {
		delete(r.crowds, h.client)
	} else {
		r.bySize[n].add(h)
	}
	for r.largest = max(r.largest, n); r.largest > 0 && r.bySize[r.largest].n == 0; {
		r.largest--
	}
}

// hold tells what the connection is from now on: a descriptor, or one of package net's.
func (p *place) hold(fd int, tcp *net.TCPConn) {
	if p != nil {
		p.room.mu.Lock()
		p.fd, p.tcp = fd, tcp
		p.room.mu.Unlock()
	}
}

// leave is called before the connection is closed.
func (p *place) leave() {
	if p != nil {
		p.room.mu.Lock()
		p.room.remove(p)
		p.fd, p.tcp = -1, nil
		p.room.mu.Unlock()
	}
}

// become says which connection of the lane it is, or with nil that it is not one any more.
func (p *place) become(c *conn) {
	if p != nil {
		p.conn.Store(c)
	}
}

// cut makes reading and writing fail for the connection's owner, which then closes it. What is not sent yet is dropped. It
// is called with the room's mu held, so that the descriptor's number is not another connection's already.
func (p *place) cut() {
	switch {
	case p.tcp != nil:
		_ = p.tcp.SetLinger(0)
		_ = p.tcp.CloseRead()
		_ = p.tcp.CloseWrite()
	case p.fd >= 0:
		cutDescriptor(p.fd)
	}
}
