package lane

import (
	"cmp"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/internal/answers"
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
		fd, peer, err := l.acceptNext()
		if err != nil {
			return -1, nil, err
		}
		p := l.newPlace(fd, nil)
		if p == nil || l.admit(p, addressOf(peer)) {
			return fd, p, nil
		}
		cutDescriptor(fd)
		_ = unix.Close(fd)
		l.leave()
	}
}

func (l *limited) acceptNext() (int, unix.Sockaddr, error) {
	if err := l.enter(); err != nil {
		return -1, nil, err
	}
	fd, peer, accepted := -1, unix.Sockaddr(nil), error(nil)
	err := l.raw.Read(func(listener uintptr) bool {
		for {
			fd, peer, accepted = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			switch accepted {
			case unix.EINTR, unix.ECONNABORTED:
				continue
			case unix.EAGAIN:
				return false
			}
			return true
		}
	})
	select {
	case <-l.closed: // of which Go's own error for a file says nothing
		if err != nil {
			err = net.ErrClosed
		}
	default:
	}
	if err == nil && accepted != nil {
		err = &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: os.NewSyscallError("accept4", accepted)}
	}
	if err != nil {
		l.leave()
		return -1, nil, err
	}
	return fd, peer, nil
}

// addressOf returns an address of the system's as one of package net's.
func addressOf(peer unix.Sockaddr) net.Addr {
	switch a := peer.(type) {
	case *unix.SockaddrInet4:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)))
	case *unix.SockaddrInet6:
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)))
	}
	return nil
}

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
	_ = c.loop.control(unix.EPOLL_CTL_DEL, c.fd, 0)
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
	err := unix.Close(c.fd)
	c.listener.source.leave()
	return err
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
	// The runtime is told only where much is copied: else the garbage collector can wait.
	var sent uintptr
	var err syscall.Errno
	if size > answers.Chunk {
		sent, _, err = syscall.Syscall(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&vectors)), uintptr(n))
	} else {
		sent, _, err = syscall.RawSyscall6(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&vectors)), uintptr(n), 0, 0, 0)
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
