package lane

import (
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/client"
)

// This file closes connections that wait for a request, which any goroutine may do.

// closeWaiting closes c if it still waits in the state s, and reports whether it did.
func (l *Listener) closeWaiting(c *conn, s state) bool {
	l.mu.Lock()
	closes := l.takeWaiting(c, s)
	l.mu.Unlock()
	if closes {
		_ = c.closeSocket()
	}
	return closes
}

// takeWaiting removes c if it still waits in the state s, and reports whether the caller has to close it. The caller holds mu; it closes
// c after it has released mu, because the goodbye of TLS may take time.
func (l *Listener) takeWaiting(c *conn, s state) bool {
	if !c.move(s, closing) {
		return false
	}
	l.remove(c)
	return true
}

// sweeps is how often the shortest time limit is looked after.
const sweeps = 8

// sweep closes connections whose deadline has passed at intervals, and the loops when no connection is left. Until the listener
// stops, it looks at connections on loops only: others have deadlines in their goroutines.
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

// closeOverdue closes the connections whose deadline has passed.
func (l *Listener) closeOverdue(now time.Time) {
	ending := l.endingSince()
	var overdue []*conn
	l.mu.Lock()
	for c := range l.open.all() {
		s, ends := c.state(), ending
		if !s.isWaiting() || c.loop == nil && ending.IsZero() {
			continue
		}
		if c.multiplexed.Load() != nil {
			ends = time.Time{} // it sends GOAWAY first, see multiplexer.endDeadline
		}
		if !now.Before(l.deadlines.At(s.phase(), s.waitingSince(), ends)) && l.takeWaiting(c, s) {
			overdue = append(overdue, c)
		}
	}
	l.mu.Unlock()
	for _, c := range overdue {
		if c.loop == nil {
			go c.closeSocket() // TLS says goodbye first, and may wait for that
		} else {
			_ = c.closeSocket()
		}
	}
}

// A limited listener bounds how many of its connections are open. Unlike netutil's it leaves
// them TCP connections, so that a response can be written in parts with one system call, and on
// Linux it can give them away as descriptors.
type limited struct {
	*net.TCPListener
	slots  *connectionSlots
	room   *connLimit
	trusts func(peer netip.Addr) bool // whether that is a proxy, whose connections are not counted as a client's; nil for never
	closed chan struct{}
	once   sync.Once

	// The same socket, for acceptDescriptor: package net has no way to wait for it.
	file *os.File
	raw  syscall.RawConn
	next arrival
}

// Limit returns a listener that has at most that many connections of l open at a time, if most is not 0; others wait in the
// system's queue. Near the limit a new connection evicts another one.
func Limit(l *net.TCPListener, most int) net.Listener { return LimitAll(most, l)[0] }

// LimitAll is [Limit] for several listeners together, of TCP or Unix sockets. Connections of a Unix socket count for no client.
func LimitAll(most int, of ...net.Listener) []net.Listener {
	slots, room := newSlots(most), newConnLimit(most)
	all := make([]net.Listener, len(of))
	for i, l := range of {
		if tcp, ok := l.(*net.TCPListener); ok {
			all[i] = &limited{TCPListener: tcp, slots: slots, room: room, closed: make(chan struct{})}
		} else {
			all[i] = &limitedUnixListener{Listener: l, slots: slots, room: room, closed: make(chan struct{})}
		}
	}
	return all
}

// A limitedUnixListener is a limited listener of a Unix socket.
type limitedUnixListener struct {
	net.Listener
	slots  *connectionSlots
	room   *connLimit
	closed chan struct{}
	once   sync.Once
}

// Accept waits for a slot and accepts a connection of a Unix socket. Near the limit it evicts another one.
func (l *limitedUnixListener) Accept() (net.Conn, error) {
	if err := l.slots.acquire(l.closed); err != nil {
		return nil, err
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.slots.release()
		return nil, err
	}
	p := l.room.newEntry(-1, c)
	l.room.admit(p, netip.Prefix{})
	return &unixConn{Conn: c, place: p, release: sync.OnceFunc(l.slots.release)}, nil
}

func (l *limitedUnixListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// A unixConn is a connection of a limitedUnixListener.
type unixConn struct {
	net.Conn
	place   *connEntry
	release func()
}

// CloseWrite closes the connection for writing.
func (c *unixConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

func (c *unixConn) entry() *connEntry { return c.place }

func (c *unixConn) Close() error {
	defer c.release()
	c.place.remove()
	return c.Conn.Close()
}

// acquireSlot waits until another connection may be open.
func (l *limited) acquireSlot() error { return l.slots.acquire(l.closed) }

// releaseSlot records that a connection was closed.
func (l *limited) releaseSlot() { l.slots.release() }

// Accept waits for a slot and accepts a connection. Near the limit it evicts another one.
func (l *limited) Accept() (net.Conn, error) {
	if err := l.acquireSlot(); err != nil {
		return nil, err
	}
	c, err := l.AcceptTCP()
	if err != nil {
		l.releaseSlot()
		return nil, err
	}
	p := l.newEntry(-1, c)
	peer, _ := c.RemoteAddr().(*net.TCPAddr) // nil of one that was reset meanwhile
	l.admit(p, peer.AddrPort().Addr())
	return &limitedConn{TCPConn: c, of: l, place: p}, nil
}

// newEntry returns the entry of a connection in the limit, nil if there is neither a limit nor a trusted proxy.
func (l *limited) newEntry(fd int, socket net.Conn) *connEntry {
	if !l.room.bounded && l.trusts == nil {
		return nil
	}
	return l.room.newEntry(fd, socket)
}

// admit adds a connection of a peer to the limit.
func (l *limited) admit(p *connEntry, peer netip.Addr) {
	if p == nil {
		return
	}
	var of netip.Prefix
	if p.proxy = l.trusts != nil && l.trusts(peer); !p.proxy {
		of = client.At(peer)
	}
	l.room.admit(p, of)
}

// countForClient counts the connection of a trusted proxy for the client whose request it carries, while connections are scarce. It
// returns false if that client has too many. It does not count HTTP/2: there a proxy needs few connections.
func (l *Listener) countForClient(c *conn) bool {
	if !l.Scarce() || c.place == nil || !c.place.proxy || c.place.remote != nil || len(c.exchange.Relayed) == 0 {
		return true
	}
	of := l.o.Proxies.Client(c.exchange.Remote(), c.exchange.Relayed)
	return !of.IsValid() || l.source.room.moveToClient(c.place, client.At(of))
}

// SetLimit changes how many connections the listener may have open, together with those that share its limit, which must not have
// been 0. Beyond a lower limit it evicts connections.
func (l *Listener) SetLimit(most int) {
	if local, ok := l.Listener.(*limitedUnixListener); ok {
		local.slots.setLimit(most)
		local.room.setLimit(most)
	}
	if l.source != nil {
		l.source.slots.setLimit(most)
		l.source.room.setLimit(most)
	}
}

// Scarce reports whether connections are scarce, so that clients have less time.
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
	place *connEntry
	once  sync.Once
}

// entry returns the connection's entry in the limit.
func (c *limitedConn) entry() *connEntry { return c.place }

// RemoteAddr returns the address of the peer, or of the client that the PROXY protocol names.
func (c *limitedConn) RemoteAddr() net.Addr {
	if c.place != nil && c.place.remote != nil {
		return c.place.remote
	}
	return c.TCPConn.RemoteAddr()
}

func (c *limitedConn) Close() error {
	c.place.remove()
	err := c.TCPConn.Close()
	c.once.Do(c.of.releaseSlot)
	return err
}
