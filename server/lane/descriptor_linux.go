package lane

import (
	"cmp"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// prepare makes acceptDescriptor possible. It gives the listener the options that package
// net gives each connection by default: those that are accepted inherit them.
func (l *limited) prepare() error {
	var err error
	if l.file, err = l.File(); err != nil {
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

// acceptDescriptor is Accept for a caller that needs the descriptor only: Go's poller never
// hears of it. The goroutine that closes it calls leave.
func (l *limited) acceptDescriptor() (int, *place, error) {
	for {
		if err := l.acceptNext(); err != nil {
			return -1, nil, err
		}
		fd := l.next.fd
		p := l.newPlace(fd, nil)
		if p == nil || l.admit(p, l.next.peer) {
			return fd, p, nil
		}
		cutDescriptor(fd)
		_ = unix.Close(fd)
		l.leave()
	}
}

func (l *limited) acceptNext() error {
	if err := l.enter(); err != nil {
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
	l.leave()
	return err
}

// An arrival is what the system says of a connection that was accepted.
type arrival struct {
	fd   int
	peer netip.Addr
	err  syscall.Errno

	accept func(uintptr) bool // the method, made once so that calling it allocates nothing
}

// doAccept returns false where there is no connection. The listener must not block, in no process that shares it: nothing
// could stop this goroutine then.
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
		a.fd, a.peer, a.err = int(fd), addressIn(&peer).Addr(), err
		return true
	}
}

// addressIn returns an address of the system's, or an invalid one where it is none of a network.
func addressIn(a *unix.RawSockaddrAny) netip.AddrPort {
	switch a.Addr.Family {
	case unix.AF_INET:
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), port(v4.Port))
	case unix.AF_INET6:
		v6 := (*unix.RawSockaddrInet6)(unsafe.Pointer(a))
		return netip.AddrPortFrom(netip.AddrFrom16(v6.Addr).Unmap(), port(v6.Port))
	}
	return netip.AddrPort{}
}

// port returns a port that is in the order of the network.
func port(n uint16) uint16 { return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n)) }

// cutDescriptor is place.cut of a descriptor.
func cutDescriptor(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
}

// descriptor takes a connection away from Go. Its place stays taken.
func (c *limitedConn) descriptor() (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	closed := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) })
	if err = cmp.Or(closed, err); err != nil {
		return -1, err
	}
	c.place.hold(fd, nil)
	_ = c.TCPConn.Close() // the other one stays
	return fd, nil
}

// prepareToWait is called before waiting for the client: another goroutine goes on with the
// loop, and Go's poller knows the connection beside it.
func (c *conn) prepareToWait() error {
	if c.leaveLoop(); c.socket != nil {
		return nil
	}
	if err := c.leaveSet(); err != nil {
		return err
	}
	return c.loop.add(c)
}

// leaveSet makes Go's poller know the connection, and its loop forget it.
func (c *conn) leaveSet() error {
	c.loop.forget(c)
	if c.added {
		_ = c.loop.control(unix.EPOLL_CTL_DEL, c.fd, 0)
	}
	switch {
	case c.socket != nil:
		return nil
	case c.fd < 0: // it has failed before
		return net.ErrClosed
	}
	file := os.NewFile(uintptr(c.fd), "")
	socket, fd, err := tcpConn(file)
	c.listener.mu.Lock() // for cut
	c.fd = fd
	c.place.hold(-1, socket)
	c.listener.mu.Unlock()
	_ = file.Close()
	if err != nil {
		c.place.leave()
		c.listener.source.leave()
		return err
	}
	c.socket = &limitedConn{TCPConn: socket, of: c.listener.source, place: c.place}
	if c.records != nil {
		c.records.Conn = c.socket
	}
	_ = c.socket.SetReadDeadline(c.readBy)
	_ = c.socket.SetWriteDeadline(c.writeBy)
	return nil
}

// tcpConn makes the connection that file is one of package net's, with another descriptor.
// A reset connection has no peer address, so limits for an address cannot apply to it: it is
// an error.
func tcpConn(file *os.File) (*net.TCPConn, int, error) {
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

// closeDescriptor closes a connection without a socket; there is no descriptor either where
// leaveSet has failed.
func (c *conn) closeDescriptor() error {
	if c.fd < 0 {
		return nil
	}
	c.place.leave()
	_, _, err := syscall.RawSyscall(syscall.SYS_CLOSE, uintptr(c.fd), 0, 0)
	c.listener.source.leave()
	if err != 0 {
		return err
	}
	return nil
}

// shutDown makes reading and writing fail. It is called with the listener's mu held, so that
// the number is not another connection's already.
func (c *conn) shutDown() {
	if c.fd >= 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// receiveNow reads what is there; errAgain says that there is nothing, io.EOF that nothing
// will be.
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

// sendNow writes as much of the parts as the system takes at once, and leaves the rest.
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
		c.sent(int(sent))
	case unix.EAGAIN, unix.EINTR:
	default:
		return os.NewSyscallError("writev", err)
	}
	return nil
}
