package lane

import (
	"iter"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A connLimit limits how many connections a listener has. Below nine tenths of the limit each client may have any number. Beyond, each new
// connection evicts the one with the highest score of some; the package comment has the scores, and which connections are served later.
// The limit costs something when a connection is accepted, when it makes its first request and when it is closed, and nothing for other
// requests.
//
// Connections of proxies that the operator trusts do not count for a client. While connections are scarce, each request counts them for
// the client that it is from.
type connLimit struct {
	bounded bool          // false without a limit
	scarce  atomic.Bool   // whether clients have to hurry
	freed   chan struct{} // has one if a goroutine that waits in acquire should look again

	mu         sync.Mutex
	most       int // 0 for any number
	taken      int // how many connections have a slot, see acquire
	ample      int // up to this number none is evicted
	entries    list[connEntry]
	silent     int             // of entries, those that have made no complete request
	handshakes list[connEntry] // of entries, those in the TLS handshake
	clients    map[netip.Prefix]*clientCount
}

// A clientCount counts the connections of a client, or of an IPv6 network with several clients.
type clientCount struct {
	silent int // have made no complete request yet
	asked  int
	churn  time.Time // when the connections that ended without a complete request are forgiven, see connEntry.delay
}

// A connEntry is a connection in a connLimit. It stays the same while the connection is open, whichever goroutine owns that, and
// whether it is a descriptor or a connection of package net. A nil entry may be changed and leave: that does nothing.
type connEntry struct {
	limit     *connLimit
	client    netip.Prefix // the zero prefix if it is not counted for a client
	opened    time.Time
	asked     atomic.Bool          // whether it has made a complete request; changed under limit.mu
	place     int                  // in limit.entries, 0 if it does not count as open
	handshake int                  // in limit.handshakes, 0 if it is not there
	fd        int                  // -1 for none
	socket    net.Conn             // nil where it is a descriptor, or closed
	conn      atomic.Pointer[conn] // nil if it is not the lane's
	proxy     bool                 // whether a trusted proxy has connected
	remote    net.Addr             // the client that the proxy names with the PROXY protocol; or nil
}

const (
	// samples is how many connections are compared for an eviction. With half of all connections useless, the chance that only useful
	// ones are among them is 2⁻³².
	samples = 32
	// stalledWeight and idleWeight are what a second counts of a connection whose client takes nothing, and of one that waits for its next request.
	stalledWeight = 10
	idleWeight    = 0.001
	// leastQuiet is what every connection counts as quiet: of those whose bytes move, the client with the most loses one.
	leastQuiet = time.Millisecond
	// leastSilent is what every silent connection counts as quiet: of a burst that comes within microseconds, the client with the most
	// loses one, and no client that waits for its next request.
	leastSilent = 10 * time.Millisecond
	// leastScore is that of connections that are evicted before the limit is near: those that had no request for a tenth of a second.
	leastScore = 0.01
	// churnCost is how long a connection that ends without a complete request counts against its client; one with a request makes up for
	// it. Beyond churnAllowed new connections of the client are served later, by mostDelay at most.
	churnCost    = 500 * time.Millisecond
	churnAllowed = 20 * churnCost
	mostDelay    = 2 * time.Second
	// silentAllowed is the part of the limit, an eighth, that silent connections may take before any client is served later. Those in the
	// TLS handshake are silent too.
	silentAllowed = 8
)

// networks are the sizes of IPv6 networks whose connections count together, and the share of them that counts: a subscriber gets a /64 or
// a /56, an organization a /48.
var networks = [...]struct {
	bits  int
	share float64
}{{64, 1}, {56, 1. / 4}, {48, 1. / 16}}

// newConnLimit returns a limit of most open connections in all, shared fairly among clients. With 0 it limits nothing, but still
// has entries for connections.
func newConnLimit(most int) *connLimit {
	return &connLimit{
		bounded: most > 0, freed: make(chan struct{}, 1), most: most, ample: evictionThreshold(most), clients: make(map[netip.Prefix]*clientCount),
		entries:    list[connEntry]{placeOf: func(p *connEntry) *int { return &p.place }},
		handshakes: list[connEntry]{placeOf: func(p *connEntry) *int { return &p.handshake }},
	}
}

// evictionThreshold returns how many connections may be open before a new one evicts another, nine tenths of the limit most. The
// rest is for evicted connections that are not closed yet.
func evictionThreshold(most int) int { return most * 9 / 10 }

// newEntry returns the entry of a connection that has been accepted and does not count towards the limit yet. Either fd is its
// descriptor and socket is nil, or fd is -1 and package net has the socket.
func (r *connLimit) newEntry(fd int, socket net.Conn) *connEntry {
	return &connEntry{limit: r, fd: fd, socket: socket, opened: time.Now()}
}

// admit counts a new connection for its client, and evicts another connection if too many are open. client is the zero prefix if
// the connection counts for no client. Without a limit it does nothing.
func (r *connLimit) admit(p *connEntry, client netip.Prefix) {
	if !r.bounded {
		return
	}
	r.mu.Lock()
	p.client = client
	r.add(p)
	r.removeForgiven(p.opened)
	r.makeRoom(p)
}

// serveDelay returns how much later than it was accepted a new connection has to be served, at most mostDelay, because too many connections of
// its client or network have ended without a complete request. It returns 0 for a nil entry, and unless more than an eighth of the limit has
// made no request yet, because a delay also affects other users of the same address or network.
func (p *connEntry) serveDelay() (delay time.Duration) {
	if p == nil {
		return 0
	}
	r := p.limit
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.silent <= r.most/silentAllowed {
		return 0
	}
	for network := range networksOf(p.client) {
		if n := r.clients[network]; n != nil && n.churn.After(p.opened) {
			delay = max(delay, n.churn.Sub(p.opened)-churnAllowed)
		}
	}
	return delay
}

// countChurn adds n, 1 or -1, to the count of connections that ended without a complete request, for the client of p and its
// networks. The count is a time until which they are forgiven; each adds half a second or the network's share of it. The caller
// holds mu.
func (r *connLimit) countChurn(p *connEntry, n int, now time.Time) {
	for network, share := range networksOf(p.client) {
		c := r.clients[network]
		if c == nil && n < 0 {
			continue
		}
		if c == nil {
			c = new(clientCount)
			r.clients[network] = c
		}
		cost := time.Duration(float64(n) * float64(churnCost) * share)
		c.churn = now.Add(min(max(0, c.churn.Sub(now))+cost, churnAllowed+mostDelay))
	}
}

// removeForgiven deletes the counters of some clients that have no open connection, and whose connections without a request are
// forgiven. It looks at as many as a new connection may add, and one more, so that the map does not grow. The caller holds mu.
func (r *connLimit) removeForgiven(now time.Time) {
	looked := 0
	for network, c := range r.clients {
		if c.silent == 0 && c.asked == 0 && !c.churn.After(now) {
			delete(r.clients, network)
		}
		if looked++; looked > len(networks) {
			return
		}
	}
}

// moveToClient counts a connection for client instead of the one that it counted for, if any, and evicts a connection if too many
// are open. It returns false if that one, or an earlier evicted one, is p; then the connection has been or is being shut down.
func (r *connLimit) moveToClient(p *connEntry, client netip.Prefix) bool {
	if !r.bounded {
		return true
	}
	r.mu.Lock()
	if p.place == 0 || p.client == client {
		defer r.mu.Unlock()
		return p.place > 0
	}
	r.count(p, -1)
	p.client = client
	r.count(p, 1)
	return r.makeRoom(nil) != p
}

// shutDown makes reading and writing of a connection fail, so that its owner closes it. It locks mu.
func (r *connLimit) shutDown(p *connEntry) {
	r.mu.Lock()
	p.shutDown()
	r.mu.Unlock()
}

// setLimit changes the limit to most open connections. Neither most nor the limit before may be 0. It evicts connections if more are open than
// may be without an eviction. Connections beyond a lower limit keep their slots until they end.
func (r *connLimit) setLimit(most int) {
	r.mu.Lock()
	r.most, r.ample = most, evictionThreshold(most)
	r.updateScarce()
	r.wakeOne()
	excess := len(r.entries.members) - r.ample
	r.mu.Unlock()
	for range excess {
		r.mu.Lock()
		r.makeRoom(nil)
	}
}

// makeRoom evicts a connection other than newcomer (nil for any) if too many are open or in the TLS handshake, and returns it;
// nil if it evicts none. It closes one that waits for a request in a goroutine, and shuts down any other. The caller holds mu,
// which makeRoom releases.
func (r *connLimit) makeRoom(newcomer *connEntry) (evicted *connEntry) {
	defer r.mu.Unlock()
	switch now := time.Now(); {
	case len(r.entries.members) > r.most-max(1, r.most/50):
		evicted = r.evictionCandidate(r.entries.members, newcomer, now, 0)
	case len(r.entries.members) > r.ample:
		evicted = r.evictionCandidate(r.entries.members, newcomer, now, leastScore)
	case len(r.handshakes.members) > r.most/2:
		evicted = r.evictionCandidate(r.handshakes.members, newcomer, now, leastScore)
	}
	if evicted == nil {
		return nil
	}
	r.remove(evicted)
	c := evicted.conn.Load()
	if c == nil || c.state().name() != idle {
		evicted.shutDown()
		return evicted
	}
	go func() { // TLS says goodbye first, and may wait for that
		if s := c.state(); s.name() != idle || !c.listener.closeWaiting(c, s) {
			r.shutDown(evicted)
		}
	}()
	return evicted
}

// evictionCandidate returns the connection of all with the highest eviction score. It compares all if they are few, else some at
// random. It never returns newcomer, and returns nil if no score is higher than least. The caller holds mu.
func (r *connLimit) evictionCandidate(all []*connEntry, newcomer *connEntry, now time.Time, least float64) (candidate *connEntry) {
	highest := least
	for i := range min(samples, len(all)) {
		p := all[i]
		if len(all) > samples {
			p = all[rand.IntN(len(all))]
		}
		if p == newcomer {
			continue
		}
		if score := r.evictionScore(p, now); score > highest {
			candidate, highest = p, score
		}
	}
	return candidate
}

// evictionScore returns how little harm it does to evict a connection now: the higher, the less. It depends on how long the
// connection has been without traffic or a first request, and on how many its client has; the package comment has the formula.
// The caller holds mu.
func (r *connLimit) evictionScore(p *connEntry, now time.Time) float64 {
	silent, asked := r.clientShare(p)
	quiet := now.Sub(p.opened)
	switch c := p.conn.Load(); {
	case p.asked.Load():
		unsent, moved := p.outstanding()
		if unsent {
			return moved.Seconds() * stalledWeight
		}
		if quiet = moved; c != nil {
			if s := c.state(); s.name() == idle {
				quiet = now.Sub(s.waitingSince())
			}
		}
	case p.client.IsValid(): // else a trusted proxy has opened it in advance
		quiet = max(quiet, leastSilent)
		return quiet.Seconds() * quiet.Seconds() * silent / (1 + asked) * float64(r.silent) / float64(len(r.entries.members))
	}
	return max(quiet, leastQuiet).Seconds() * math.Sqrt(max(1, asked)) * idleWeight
}

// clientShare returns how many connections the client of p has: silent have made no complete request, asked have made one. For
// IPv6 it is the client's own count, or the share of its network's count if that is more. The caller holds mu.
func (r *connLimit) clientShare(p *connEntry) (silent, asked float64) {
	silent, asked = 1, 0
	if p.asked.Load() {
		silent, asked = 0, 1
	}
	for network, share := range networksOf(p.client) {
		if n := r.clients[network]; n != nil {
			silent, asked = max(silent, float64(n.silent)*share), max(asked, float64(n.asked)*share)
		}
	}
	return silent, asked
}

// networksOf yields the client itself and the larger IPv6 networks that it is part of, each with the share of its connections
// that counts (1 for the client). It yields nothing for the zero prefix.
func networksOf(client netip.Prefix) iter.Seq2[netip.Prefix, float64] {
	return func(yield func(netip.Prefix, float64) bool) {
		if !client.IsValid() {
			return
		}
		if client.Addr().Is4() {
			yield(client, 1)
			return
		}
		for _, n := range networks {
			if network, _ := client.Addr().Prefix(n.bits); !yield(network, n.share) {
				return
			}
		}
	}
}

// add adds a connection to those that count towards the limit and for their client. The caller holds mu.
func (r *connLimit) add(p *connEntry) {
	r.entries.add(p)
	r.updateScarce()
	r.count(p, 1)
}

// remove removes a connection from those that count towards the limit and for their client; nothing if it does not count. The
// caller holds mu.
func (r *connLimit) remove(p *connEntry) {
	if p.place == 0 {
		return
	}
	r.handshakes.remove(p)
	r.entries.remove(p)
	r.updateScarce()
	r.count(p, -1)
}

// updateScarce stores whether more than three quarters of the limit are in use, so that clients get less time. The caller holds
// mu.
func (r *connLimit) updateScarce() { r.scarce.Store(len(r.entries.members) > r.most*3/4) }

// count adds n, 1 or -1, to the counters of the client of p, of its networks, and of all connections without a complete request.
// The caller holds mu.
func (r *connLimit) count(p *connEntry, n int) {
	if !p.asked.Load() {
		r.silent += n
	}
	for network := range networksOf(p.client) {
		c := r.clients[network]
		if c == nil {
			c = new(clientCount)
			r.clients[network] = c
		}
		if p.asked.Load() {
			c.asked += n
		} else {
			c.silent += n
		}
		if *c == (clientCount{}) {
			delete(r.clients, network)
		}
	}
}

// markAsked records that the connection has made a complete request, so that it is evicted after those that have made none, and
// makes up for one that ended without a request. Later calls, and those of a nil entry, do nothing.
func (p *connEntry) markAsked() {
	if p == nil || p.asked.Load() { // so that only the first request takes the lock
		return
	}
	p.limit.mu.Lock()
	defer p.limit.mu.Unlock()
	if p.asked.Load() {
		return
	}
	if p.place == 0 {
		p.asked.Store(true)
		return
	}
	p.limit.count(p, -1)
	p.asked.Store(true)
	p.limit.count(p, 1)
	p.limit.countChurn(p, -1, time.Now())
}

// setHandshake records that the TLS handshake of the connection begins, or else that it has ended. While more than half of the limit is in the
// handshake, makeRoom evicts one of those. It does nothing for a nil entry.
func (p *connEntry) setHandshake(begins bool) {
	if p == nil {
		return
	}
	p.limit.mu.Lock()
	defer p.limit.mu.Unlock()
	if begins && p.place > 0 {
		p.limit.handshakes.add(p)
	} else {
		p.limit.handshakes.remove(p)
	}
}

// setTransport records by what the connection can be shut down from now on: the descriptor fd (-1 for none), or a socket of
// package net (nil for none).
func (p *connEntry) setTransport(fd int, socket net.Conn) {
	if p != nil {
		p.limit.mu.Lock()
		p.fd, p.socket = fd, socket
		p.limit.mu.Unlock()
	}
}

// remove removes the connection from the limit, before it is closed. If it has made no complete request, that counts against its
// client, unless it was evicted, which is not the client's doing. A nil entry is ignored.
func (p *connEntry) remove() {
	if p != nil {
		p.limit.mu.Lock()
		if p.place > 0 && !p.asked.Load() {
			p.limit.countChurn(p, 1, time.Now())
		}
		p.limit.remove(p)
		p.fd, p.socket = -1, nil
		p.limit.mu.Unlock()
	}
}

// setConn records the lane's connection of this entry, nil when the lane has it no longer.
func (p *connEntry) setConn(c *conn) {
	if p != nil {
		p.conn.Store(c)
	}
}

// shutDown makes reading and writing of the connection fail, so that its owner closes it. What is not sent yet is dropped. The
// caller holds mu, so that the number of the descriptor still is this connection's.
func (p *connEntry) shutDown() {
	switch s := p.socket.(type) {
	case nil:
		if p.fd >= 0 {
			shutdownDescriptor(p.fd)
		}
	case *net.TCPConn:
		_ = s.SetLinger(0)
		_ = s.CloseRead()
		_ = s.CloseWrite()
	case *net.UnixConn:
		_ = s.CloseRead()
		_ = s.CloseWrite()
	}
}
