package lane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// prepareListener duplicates the listening socket for acceptDescriptor. It sets the options on the listener that package net
// would set on each connection, because accepted connections inherit them.
func (l *limited) prepareListener() error {
	var err error
	if l.file, err = l.tcp.File(); err != nil {
		return err
	}
	if l.raw, err = l.file.SyscallConn(); err != nil {
		return err
	}
	l.next.accept = l.next.doAccept
	return l.raw.Control(func(fd uintptr) {
		for _, o := range [...]struct{ level, name, value int }{
			{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
			{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15}, // seconds
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 9},
		} {
			// Package net ignores the error, too: Go's listeners are Multipath TCP's, of
			// which older kernels know only some options. Time limits do not depend on it.
			_ = unix.SetsockoptInt(int(fd), o.level, o.name, o.value)
		}
	})
}

// acceptDescriptor waits for a slot and a client, and accepts the connection as a descriptor that Go's poller does not know. It
// returns the descriptor and the connection's entry in the limit, which is nil without a limit and trusted proxies; after an error
// it returns -1 and nil. Only one goroutine may call it at a time. The goroutine that closes the descriptor must call
// connEntry.remove before, and connLimit.release afterwards.
func (l *limited) acceptDescriptor() (int, *connEntry, error) {
	if err := l.acceptNext(); err != nil {
		return -1, nil, err
	}
	p := l.newEntry(l.next.fd, nil)
	l.admit(p, l.next.peer)
	return l.next.fd, p, nil
}

// acceptNext waits for a slot and for a client, and accepts the connection into l.next. After an error it has released the slot.
// The error is net.ErrClosed when the listener was closed.
func (l *limited) acceptNext() error {
	if err := l.room.acquire(l.closed); err != nil {
		return err
	}
	err := l.raw.Read(l.next.accept)
	switch {
	case err == nil && l.next.err == 0:
		return nil
	case err == nil:
		err = &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: os.NewSyscallError("accept4", l.next.err)}
	default:
		select {
		case <-l.closed: // of which Go's own error for a file says nothing
			err = net.ErrClosed
		default:
		}
	}
	l.room.release()
	return err
}

// An arrival is what the system says of a connection that was accepted.
type arrival struct {
	fd   int
	peer netip.Addr
	err  syscall.Errno

	accept func(uintptr) bool // the method, made once so that calling it allocates nothing
}

// doAccept accepts a connection of the descriptor listener, and stores its descriptor and peer, or the error, in a. It returns
// false, so that Go's poller waits, if no client waits. The listener must be non-blocking in all processes that share it, because
// nothing could stop a blocked goroutine.
func (a *arrival) doAccept(listener uintptr) bool {
	for {
		var peer unix.RawSockaddrAny
		size := uint32(unsafe.Sizeof(peer))
		fd, _, err := syscall.RawSyscall6(syscall.SYS_ACCEPT4, listener, uintptr(unsafe.Pointer(&peer)), uintptr(unsafe.Pointer(&size)), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
		switch err {
		case unix.EINTR, unix.ECONNABORTED:
			continue
		case unix.EAGAIN:
			return false
		}
		a.fd, a.peer, a.err = int(fd), toAddrPort(&peer).Addr(), err
		return true
	}
}

// toAddrPort converts a socket address of the system to a netip.AddrPort, an IPv4 address in IPv6 to IPv4. The result is invalid
// if it is not an Internet address.
func toAddrPort(a *unix.RawSockaddrAny) netip.AddrPort {
	switch a.Addr.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), fromNetworkOrder(v4.Port))
	case unix.AF_INET6:
		v6 := (*unix.RawSockaddrInet6)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom16(v6.Addr).Unmap(), fromNetworkOrder(v6.Port))
	}
	return netip.AddrPort{}
}

// fromNetworkOrder converts a port in network byte order, as a socket address has it in memory, to a number.
func fromNetworkOrder(n uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n))
}

// shutdownDescriptor makes reading and writing of a descriptor fail. What is not sent yet is dropped.
func shutdownDescriptor(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}

// outstanding asks the kernel about the connection. unsent reports whether the client has not acknowledged all that was sent.
// quiet is how long ago the server sent something if unsent, else how long ago either side did. Both are zero for a Unix socket.
// The caller holds the limit's mu.
func (p *connEntry) outstanding() (unsent bool, quiet time.Duration) {
	read := func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return // of a Unix socket
		}
		milliseconds := min(info.Last_data_sent, info.Last_data_recv)
		if unsent = info.Unacked > 0 || info.Notsent_bytes > 0; unsent {
			milliseconds = info.Last_data_sent
		}
		quiet = time.Duration(milliseconds) * time.Millisecond
	}
	if p.fd >= 0 {
		read(uintptr(p.fd))
	} else if s, ok := p.socket.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			_ = raw.Control(read)
		}
	}
	return unsent, quiet
}

// takeDescriptor takes the connection from Go's package net: it duplicates the descriptor, closes the net.TCPConn, and returns the
// duplicate. The connection still counts towards the limit and has its slot. After an error nothing has changed.
func (c *limitedConn) takeDescriptor() (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	closed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = cmp.Or(closed, err); err != nil {
		return -1, err
	}
	c.place.setTransport(fd, nil)
	_ = c.TCPConn.Close() // the other one stays
	return fd, nil
}

// prepareToWait prepares the goroutine to wait for the client: another goroutine takes its event loop over, and the connection
// gets a socket of package net, so that Go's poller watches it. The caller owns the connection. After an error the connection is
// unusable.
func (c *conn) prepareToWait() error {
	if c.leaveLoop(); c.socket != nil {
		return nil
	}
	if err := c.moveToPoller(); err != nil {
		return err
	}
	return c.loop.add(c)
}

// moveToPoller takes the connection from its event loop, and makes a socket of package net of its descriptor, with the current
// deadlines, so that Go's poller watches it. It does nothing but leave the loop if there is a socket already. After an error the
// descriptor is closed, and its slot released.
func (c *conn) moveToPoller() error {
	c.loop.forget(c)
	if c.added {
		_ = c.loop.changeEvents(unix.EPOLL_CTL_DEL, c.fd, 0)
	}
	switch {
	case c.socket != nil:
		return nil
	case c.fd < 0: // it has failed before
		return net.ErrClosed
	}
	file := os.NewFile(uintptr(c.fd), "")
	socket, fd, err := newTCPConn(file)
	c.listener.mu.Lock() // for Listener.closeHTTP1
	c.fd = fd
	if err == nil {
		c.place.setTransport(-1, socket)
	} else {
		c.place.setTransport(-1, nil)
	}
	c.listener.mu.Unlock()
	_ = file.Close()
	if err != nil {
		c.place.remove()
		c.listener.source.room.release()
		return err
	}
	c.socket = &limitedConn{TCPConn: socket, counted: counted{of: c.listener.source.room, place: c.place}}
	if c.records != nil {
		c.records.Conn = c.socket
	}
	_ = c.socket.SetReadDeadline(c.readBy)
	_ = c.socket.SetWriteDeadline(c.writeBy)
	return nil
}

// newTCPConn returns a net.TCPConn with a duplicate of a connection's descriptor, and the number of that. It returns an error for a
// reset connection: without a peer address limits for an address cannot apply.
func newTCPConn(file *os.File) (*net.TCPConn, int, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, -1, err
	}
	tcp, fd := conn.(*net.TCPConn), -1
	raw, err := tcp.SyscallConn()
	if err == nil {
		err = raw.Control(func(d uintptr) { fd = int(d) })
	}
	if err == nil && tcp.RemoteAddr() == nil {
		err = unix.ENOTCONN
	}
	if err != nil {
		_ = tcp.Close()
		return nil, -1, err
	}
	return tcp, fd, nil
}

// waitWhileOpen waits for delay, without reading. It returns nil after that, with the socket's read deadline passed, which the
// caller must set anew. It returns net.ErrClosed at once when the client closes the connection, or another goroutine shuts it down.
func waitWhileOpen(socket net.Conn, delay time.Duration) error {
	s, ok := socket.(syscall.Conn)
	if !ok {
		return net.ErrClosed
	}
	raw, err := s.SyscallConn()
	if err == nil {
		err = socket.SetReadDeadline(time.Now().Add(delay))
	}
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, _ := unix.Poll(poll, 0)
		return n > 0
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return cmp.Or(err, net.ErrClosed)
}

// closeDescriptor closes a connection that is only a descriptor, not a net.Conn in c.socket, and releases its slot. It does
// nothing if moveToPoller failed, which has closed the descriptor and released the slot.
func (c *conn) closeDescriptor() error {
	if c.fd < 0 {
		return nil
	}
	c.place.remove()
	_, _, err := syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(c.fd), 0, 0)
	c.listener.source.room.release()
	if err != 0 {
		return err
	}
	return nil
}

// shutDown makes reading and writing of the connection fail. The caller holds the listener's mu, so that the number of the
// descriptor still is this connection's.
func (c *conn) shutDown() {
	if c.fd >= 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// receiveNow reads bytes of the client into p without waiting, and returns how many. It returns errAgain if there is nothing to
// read, and io.EOF if the client has closed the connection.
func (c *conn) receiveNow(p []byte) (int, error) {
	if c.unread == none {
		return 0, errAgain
	}
	for {
		n, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
		switch err {
		case 0:
			if n == 0 {
				return 0, io.EOF
			}
			if int(n) < len(p) && c.unread == some {
				c.unread = none
			}
			return int(n), nil
		case syscall.EAGAIN:
			c.unread = none
			return 0, errAgain
		case syscall.EINTR:
		default:
			return 0, os.NewSyscallError("recvfrom", err)
		}
	}
}

// mostUntold is how much is copied at once without telling the runtime: the garbage collector may have to wait for it.
const mostUntold = 256 << 10

// sendNow sends as much of the response's parts as the system takes without waiting, and removes it from them. It returns nil
// also if something is left.
func (c *conn) sendNow() error {
	var vectors [len(c.parts)]unix.Iovec
	n, size := 0, 0
	for _, p := range c.parts {
		if len(p) > 0 {
			vectors[n].Base = &p[0]
			vectors[n].SetLen(len(p))
			n++
			size += len(p)
		}
	}
	var sent uintptr
	var err syscall.Errno
	if size > mostUntold {
		sent, _, err = syscall.Syscall(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&vectors)), uintptr(n))
	} else {
		sent, _, err = syscall.RawSyscall(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&vectors)), uintptr(n))
	}
	switch err {
	case 0:
		c.removeSent(int(sent))
	case unix.EAGAIN, unix.EINTR:
	default:
		return os.NewSyscallError("writev", err)
	}
	return nil
}
