package lane

import (
	"cmp"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/client"
)

// This file closes connections that wait for a request, which any goroutine may do.

// closeWaiting closes c if it still waits as it did in s, and reports whether it did.
func (l *Listener) closeWaiting(c *conn, s state) bool {
	l.mu.Lock()
	closes := l.evict(c, s)
	l.mu.Unlock()
	if closes {
		_ = c.shut()
	}
	return closes
}

// evict forgets c if it still waits as it did in s, and reports whether the caller is to
// shut it. It is called with mu held, but other goroutines must not wait for a goodbye.
func (l *Listener) evict(c *conn, s state) bool {
	if !c.move(s, closing) {
		return false
	}
	l.remove(c)
	return true
}

// An idler is a connection that has been waiting for its next request since it had that
// state, if it still has.
type idler struct {
	c     *conn
	state state
}

// idlersKept bounds how many are remembered from one look at all connections.
const idlersKept = 256

// CloseIdle closes the connection that has been waiting longest for its next request, if
// it has since before that time, and reports whether there was one.
//
// Since when a connection waits stands in its state and nowhere else, so that answering
// takes no lock. So all have to be looked at; but the one that waited longest then and
// still does waits longest now, so one look is good for many calls.
func (l *Listener) CloseIdle(before time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closeKept(idle.since(before)) {
		return true
	}
	for c := range l.open.all() {
		if s := c.state(); s.name() == idle {
			l.idlers = append(l.idlers, idler{c, s})
		}
	}
	slices.SortFunc(l.idlers, func(a, b idler) int { return cmp.Compare(a.state, b.state) })
	l.idlers = slices.Delete(l.idlers, min(len(l.idlers), idlersKept), len(l.idlers))
	return l.closeKept(idle.since(before))
}

func (l *Listener) closeKept(before state) bool {
	for len(l.idlers) > 0 {
		longest := l.idlers[0]
		if longest.state >= before && longest.c.state() == longest.state {
			return false
		}
		l.idlers[0] = idler{}
		l.idlers = l.idlers[1:]
		if l.evict(longest.c, longest.state) {
			go longest.c.shut()
			return true
		}
	}
	l.idlers = nil
	return false
}

// sweeps is how often the shortest time limit is looked after.
const sweeps = 8

// sweep closes connections whose deadline has passed, and when none is left, the loops. Until the listener stops it looks at
// those on loops only; goroutines have deadlines of their own for the others.
func (l *Listener) sweep() {
	ticks := time.NewTicker(max(time.Millisecond, min(l.deadlines.Unanswered, l.deadlines.Idle)/sweeps))
	defer ticks.Stop()
	for stopped := l.stopped; ; {
		select {
		case now := <-ticks.C:
			l.closeOverdue(now)
		case <-stopped:
			ticks.Reset(max(time.Millisecond, l.o.IdleAtEnd))
			stopped = nil
		case <-l.none:
			for _, loop := range l.loops {
				loop.close()
			}
			return
		}
	}
}

func (l *Listener) closeOverdue(now time.Time) {
	ending := l.endingSince()
	var overdue []*conn
	l.mu.Lock()
	for c := range l.open.all() {
		s, ends := c.state(), ending
		if !s.waits() || c.loop == nil && ending.IsZero() {
			continue
		}
		if c.multiplexed.Load() != nil {
			ends = time.Time{} // it sends GOAWAY first, see multiplexer.endBy
		}
		if !now.Before(l.deadlines.At(s.phase(), s.start(), ends)) && l.evict(c, s) {
			overdue = append(overdue, c)
		}
	}
	l.mu.Unlock()
	for _, c := range overdue {
		if c.loop == nil {
			go c.shut() // TLS says goodbye first, and may wait for that
		} else {
			_ = c.shut()
		}
	}
}

// A limited listener bounds how many of its connections are open. Unlike netutil's it leaves
// them TCP connections, so that an answer can be written in parts with one system call, and on
// Linux it can give them away as descriptors.
type limited struct {
	*net.TCPListener
	slots  *slots
	room   *room
	trusts func(peer netip.Addr) bool // whether that is a proxy, whose connections are not counted as a client's; nil for never
	closed chan struct{}
	once   sync.Once

	// The same socket, for acceptDescriptor: package net has no way to wait for it.
	file *os.File
	raw  syscall.RawConn
	next arrival
}

// Limit returns a listener that has no more than most connections of l open at a time,
// where that is not 0; the others wait in the system's queue. Near that many the client with
// the most gives way to others.
func Limit(l *net.TCPListener, most int) net.Listener { return LimitAll(most, l)[0] }

// LimitAll is [Limit] of several listeners together, of TCP or Unix sockets. All connections of
// a Unix socket are one client's, so none of them gives way.
func LimitAll(most int, of ...net.Listener) []net.Listener {
	slots, room := newSlots(most), newRoom(most)
	all := make([]net.Listener, len(of))
	for i, l := range of {
		if tcp, ok := l.(*net.TCPListener); ok {
			all[i] = &limited{TCPListener: tcp, slots: slots, room: room, closed: make(chan struct{})}
		} else {
			all[i] = &limitedLocal{Listener: l, slots: slots, closed: make(chan struct{})}
		}
	}
	return all
}

// A limitedLocal listener is one of a Unix socket.
type limitedLocal struct {
	net.Listener
	slots  *slots
	closed chan struct{}
	once   sync.Once
}

func (l *limitedLocal) Accept() (net.Conn, error) {
	if err := l.slots.acquire(l.closed); err != nil {
		return nil, err
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.slots.release()
		return nil, err
	}
	return &localConn{Conn: c, leave: sync.OnceFunc(l.slots.release)}, nil
}

func (l *limitedLocal) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type localConn struct {
	net.Conn
	leave func()
}

func (c *localConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *localConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

func (l *limited) enter() error { return l.slots.acquire(l.closed) }

func (l *limited) leave() { l.slots.release() }

func (l *limited) Accept() (net.Conn, error) {
	for {
		if err := l.enter(); err != nil {
			return nil, err
		}
		c, err := l.AcceptTCP()
		if err != nil {
			l.leave()
			return nil, err
		}
		p := l.newPlace(-1, c)
		peer, _ := c.RemoteAddr().(*net.TCPAddr) // nil of one that was reset meanwhile
		if l.admit(p, peer.AddrPort().Addr()) {
			return &limitedConn{TCPConn: c, of: l, place: p}, nil
		}
		_ = c.SetLinger(0)
		_ = c.Close()
		l.leave()
	}
}

func (l *limited) newPlace(fd int, tcp *net.TCPConn) *place {
	if !l.room.bounded && l.trusts == nil {
		return nil
	}
	return &place{room: l.room, fd: fd, tcp: tcp}
}

// admit reports whether a connection may stay.
func (l *limited) admit(p *place, peer netip.Addr) bool {
	if p == nil {
		return true
	}
	p.proxy = l.trusts != nil && l.trusts(peer)
	return l.room.admit(p, client.At(peer), !p.proxy)
}

// hasRoomFor counts the connection of a trusted proxy as the client's that asks by it, while connections are scarce. It
// returns false where that client has too many. Over HTTP/2 a proxy needs few connections, and has them.
func (l *Listener) hasRoomFor(c *conn) bool {
	if !l.Scarce() || c.place == nil || !c.place.proxy || c.place.remote != nil || len(c.exchange.Relayed) == 0 {
		return true
	}
	of := l.o.Proxies.Client(c.exchange.Remote(), c.exchange.Relayed)
	return !of.IsValid() || l.source.room.isFrom(c.place, client.At(of))
}

// Fair reports whether no client has so many connections that it gives way before others do.
func (l *Listener) Fair() bool { return l.source == nil || l.source.room.isFair() }

// SetLimit changes how many connections the listener may have open, together with those that share its limit, which was not 0. Beyond a
// lower limit the clients with the most lose some.
func (l *Listener) SetLimit(most int) {
	if local, ok := l.Listener.(*limitedLocal); ok {
		local.slots.setLimit(most)
	}
	if l.source != nil {
		l.source.slots.setLimit(most)
		l.source.room.setLimit(most)
	}
}

// Scarce reports whether connections are, so that clients have to hurry.
func (l *Listener) Scarce() bool { return l.source != nil && l.source.room.scarce.Load() }

func (l *limited) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.file != nil {
			_ = l.file.Close()
		}
	})
	return l.TCPListener.Close()
}

type limitedConn struct {
	*net.TCPConn
	of    *limited
	place *place
	once  sync.Once
}

// RemoteAddr is the client's.
func (c *limitedConn) RemoteAddr() net.Addr {
	if c.place != nil && c.place.remote != nil {
		return c.place.remote
	}
	return c.TCPConn.RemoteAddr()
}

func (c *limitedConn) Close() error {
	c.place.leave()
	err := c.TCPConn.Close()
	c.once.Do(c.of.leave)
	return err
}
