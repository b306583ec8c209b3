package lane

import (
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/larder-cdn/larder/internal/requests"
)

// This file closes connections that wait for a request, which any goroutine may do.

// closeWaiting closes c if it is still in the waiting state s, and reports whether it did. Any goroutine may call it, because
// a connection that waits belongs to no goroutine.
func (l *Listener) closeWaiting(c *conn, s state) bool {
	l.mu.Lock()
	closes := l.takeWaiting(c, s)
	l.mu.Unlock()
	if closes {
		_ = c.closeSocket()
	}
	return closes
}

// takeWaiting moves c to the state closing and removes it from the listener, if it is still in the waiting state s. It reports
// whether it did; then the caller has to close the socket, after it has released the listener's mu, because the goodbye of TLS
// may take time. The caller holds that mu.
func (l *Listener) takeWaiting(c *conn, s state) bool {
	if !c.move(s, closing) {
		return false
	}
	l.remove(c)
	return true
}

// sweeps is how often the shortest time limit is looked after.
const sweeps = 8

// sweep periodically closes connections that have waited past their deadline. It closes the event loops and returns when the
// listener has stopped and no connection is left. Until the listener stops, it considers only connections on loops: others have
// deadlines in their goroutines.
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

// closeOverdue closes the connections that wait for a request and whose deadline has passed at the time now. Those without an
// event loop have their own deadlines, so it closes them only once the listener has stopped.
func (l *Listener) closeOverdue(now time.Time) {
	ending := l.endingSince()
	var overdue []*conn
	l.mu.Lock()
	for _, c := range slices.Backward(l.open.members) {
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
	net.Listener
	tcp    *net.TCPListener // the same; nil for a Unix socket
	room   *connLimit
	closed chan struct{}
	once   sync.Once                  // closes closed
	trusts func(peer netip.Addr) bool // whether peer is a proxy, whose connections are not counted as a client's; nil for no proxies

	// The same socket, for acceptDescriptor: package net has no way to wait for it.
	file *os.File
	raw  syscall.RawConn
	next arrival
}

// Limit returns a listener for the connections of l with at most most of them open at a time, 0 for any number. Further clients
// wait in the system's queue. Near the limit a new connection evicts another one.
func Limit(l *net.TCPListener, most int) net.Listener { return LimitAll(most, l)[0] }

// LimitAll is [Limit] for several listeners, of TCP or Unix sockets, that share one limit. Its results are in their order.
// Connections of a Unix socket count for no client.
func LimitAll(most int, of ...net.Listener) []net.Listener {
	room := newConnLimit(most)
	all := make([]net.Listener, len(of))
	for i, l := range of {
		tcp, _ := l.(*net.TCPListener)
		all[i] = &limited{Listener: l, tcp: tcp, room: room, closed: make(chan struct{})}
	}
	return all
}

// counted is what an open connection of a listener with limits takes of them.
type counted struct {
	of    *connLimit
	place *connEntry // nil if it has none
	once  sync.Once  // releases the slot
}

// entry returns the connection's entry in the limit of connections, nil if it has none.
func (c *counted) entry() *connEntry { return c.place }

// close closes the socket of the connection, removes the connection from the limit, and releases its slot once.
func (c *counted) close(socket io.Closer) error {
	c.place.remove()
	err := socket.Close()
	c.once.Do(c.of.release)
	return err
}

// A unixConn is a connection of a limited listener of a Unix socket.
type unixConn struct {
	*net.UnixConn
	counted
}

// Close closes the connection, removes it from the limit, and releases its slot. Later calls only return an error.
func (c *unixConn) Close() error { return c.close(c.UnixConn) }

// Accept implements net.Listener. It waits for a slot and for a connection, and counts it towards the limit. Near the limit it
// evicts another one.
func (l *limited) Accept() (net.Conn, error) {
	if err := l.room.acquire(l.closed); err != nil {
		return nil, err
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.room.release()
		return nil, err
	}
	p := l.newEntry(-1, c)
	peer, _ := c.RemoteAddr().(*net.TCPAddr) // nil of a Unix socket, and of a connection that was reset meanwhile
	l.admit(p, peer.AddrPort().Addr())
	if tcp, ok := c.(*net.TCPConn); ok {
		return &limitedConn{TCPConn: tcp, counted: counted{of: l.room, place: p}}, nil
	}
	return &unixConn{UnixConn: c.(*net.UnixConn), counted: counted{of: l.room, place: p}}, nil
}

// newEntry returns the limit's entry of a connection, nil if there is neither a limit nor Options.Proxies. Either fd is the
// descriptor of the connection and socket is nil, or fd is -1.
func (l *limited) newEntry(fd int, socket net.Conn) *connEntry {
	if !l.room.bounded && l.trusts == nil {
		return nil
	}
	return l.room.newEntry(fd, socket)
}

// admit counts a new connection towards the limit of all connections, and for the client at its peer's address, or for no client if
// the peer is a trusted proxy. If nine tenths of the limit are open, or half of it is in the TLS handshake, it evicts another connection,
// which the clients' counts decide; a client has no limit of its own. Without a limit it only marks in p whether the peer is a trusted
// proxy. A nil entry is ignored.
func (l *limited) admit(p *connEntry, peer netip.Addr) {
	if p == nil {
		return
	}
	var of netip.Prefix
	if p.proxy = l.trusts != nil && l.trusts(peer); !p.proxy {
		of = requests.ClientAt(peer)
	}
	l.room.admit(p, of)
}

// countForClient counts the HTTP/1.1 connection of a trusted proxy for the client whose request it carries, while connections
// are scarce. It returns false if this connection was evicted, then or before, so that it is being shut down. Otherwise, and for
// all other connections, it returns true. It does not count HTTP/2: there a proxy needs few connections.
func (l *Listener) countForClient(c *conn) bool {
	if !l.Scarce() || c.place == nil || !c.place.proxy || c.place.remote != nil || len(c.exchange.Relayed) == 0 {
		return true
	}
	of := l.o.Proxies.Client(c.exchange.Remote(), c.exchange.Relayed)
	return !of.IsValid() || l.source.room.moveToClient(c.place, requests.ClientAt(of))
}

// SetLimit changes to most how many connections the listener, and those that share its limit, may have open. It evicts
// connections beyond a lower limit. Neither most nor the limit before may be 0. It does nothing if the connections come from a
// listener without a limit of this package.
func (l *Listener) SetLimit(most int) {
	if limited, ok := l.Listener.(*limited); ok {
		limited.room.setLimit(most)
	}
}

// Scarce reports whether more than three quarters of the limit of connections are in use, so that clients get less time. It is
// false without a limit, and for a listener of a Unix socket, even if that shares a limit.
func (l *Listener) Scarce() bool { return l.source != nil && l.source.room.scarce.Load() }

// Close implements net.Listener. It also ends a call of Accept or acceptDescriptor that waits.
func (l *limited) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.file != nil {
			_ = l.file.Close()
		}
	})
	return l.Listener.Close()
}

// A limitedConn is a connection of a limited listener of TCP.
type limitedConn struct {
	*net.TCPConn
	counted
}

// RemoteAddr returns the address of the peer, or of the client that the PROXY protocol names.
func (c *limitedConn) RemoteAddr() net.Addr {
	if c.place != nil && c.place.remote != nil {
		return c.place.remote
	}
	return c.TCPConn.RemoteAddr()
}

// Close closes the connection, removes it from the limit, and releases its slot. Later calls only return an error.
func (c *limitedConn) Close() error { return c.close(c.TCPConn) }
