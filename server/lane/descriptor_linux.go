package lane

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/server/pace"
)

// keepAlive is how often the system asks a silent client whether it is there, and after how
// many questions without an answer it is not: what package net does by default.
const (
	keepAlive       = 15 * time.Second
	keepAliveProbes = 9
)

// prepare makes acceptDescriptor possible. It gives the listener the options that package
// net gives each connection: those that are accepted inherit them.
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
			{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepAlive / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepAlive / time.Second)},
			{unix.IPPROTO_TCP, unix.TCP_KEEPCNT, keepAliveProbes},
		} {
			// Package net ignores the error, too: Go's listeners are Multipath TCP's, of
			// which older kernels know only some options. Time limits do not depend on it.
			_ = unix.SetsockoptInt(int(fd), o.level, o.name, o.value)
		}
	})
}

// acceptDescriptor is Accept for who wants nothing but the descriptor: Go's poller never
// hears of it. Who closes it calls leave.
func (l *limited) acceptDescriptor() (int, error) {
	if err := l.enter(); err != nil {
		return -1, err
	}
	fd, accepted := -1, error(nil)
	err := l.raw.Read(func(listener uintptr) bool {
		for {
			fd, _, accepted = unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
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
		return -1, err
	}
	return fd, nil
}

// descriptor takes a connection away from Go. Its place stays taken.
func (c *limitedConn) descriptor() (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if e := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	if err != nil {
		return -1, err
	}
	_ = c.TCPConn.Close() // the other one stays
	return fd, nil
}

// adopt makes the connection one that can be waited for, beside its loop. Only who serves
// it may.
func (c *conn) adopt() error {
	if !c.bare {
		return nil
	}
	if err := c.detach(); err != nil {
		return err
	}
	return c.loop.add(c)
}

// detach is adopt for a connection that will not wait on its loop any more.
func (c *conn) detach() error {
	c.loop.letGo(c)
	if !c.bare {
		return nil
	}
	file := os.NewFile(uintptr(c.fd), "")
	adopted, fd, err := tcpConn(file)
	c.listener.mu.Lock() // for cut
	c.fd, c.bare = fd, false
	c.listener.mu.Unlock()
	_ = file.Close()
	if err != nil {
		c.listener.source.leave()
		return err
	}
	below := &limitedConn{TCPConn: adopted, of: c.listener.source}
	if c.records != nil {
		c.records.Conn = below
	} else {
		c.Conn = below
	}
	_ = below.SetReadDeadline(c.readBy)
	_ = below.SetWriteDeadline(c.writeBy)
	return nil
}

// tcpConn makes the connection that file is one of package net's, with another descriptor.
// One that the client has reset is none: the system has forgotten who that was, and nobody
// is to answer somebody from nowhere, who escapes what one address may have.
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

// closeDescriptor is Close for a connection that was never adopted, or failed to be.
func (c *conn) closeDescriptor() error {
	if c.fd < 0 {
		return nil
	}
	err := unix.Close(c.fd)
	c.listener.source.leave()
	return err
}

// shutDown makes reading and writing fail for who serves c, who then closes it. It is
// called with the listener's mu held.
func (c *conn) shutDown() {
	if c.fd >= 0 {
		_ = unix.Shutdown(c.fd, unix.SHUT_RDWR)
	}
}

// receiveNow reads what is there; errAgain says that there is nothing, io.EOF that nothing
// will be.
func (c *conn) receiveNow(p []byte) (int, error) {
	if c.drained {
		return 0, errAgain
	}
	for {
		n, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(c.fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), 0, 0, 0)
		switch err {
		case 0:
			if n == 0 {
				return 0, io.EOF
			}
			c.drained = int(n) < len(p) && !c.ended
			return int(n), nil
		case syscall.EAGAIN:
			c.drained = true
			return 0, errAgain
		case syscall.EINTR:
		default:
			return 0, os.NewSyscallError("recvfrom", err)
		}
	}
}

// parts are what a writev takes; kept with the connection, because they must not move.
type vectors [3]unix.Iovec

// sendNow writes as much of the parts as c takes at once, and leaves the rest of them.
func (c *conn) sendNow(parts *[3][]byte) error {
	n, size := 0, 0
	for _, p := range parts {
		if len(p) > 0 {
			c.vectors[n].Base = &p[0]
			c.vectors[n].SetLen(len(p))
			n++
			size += len(p)
		}
	}
	// The runtime is told only where much is copied: else the garbage collector can wait.
	var sent uintptr
	var err syscall.Errno
	if size > pace.Chunk {
		sent, _, err = syscall.Syscall(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&c.vectors)), uintptr(n))
	} else {
		sent, _, err = syscall.RawSyscall6(syscall.SYS_WRITEV, uintptr(c.fd), uintptr(unsafe.Pointer(&c.vectors)), uintptr(n), 0, 0, 0)
	}
	c.vectors = vectors{}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return nil
	case err != 0:
		return os.NewSyscallError("writev", err)
	}
	for i, left := 0, int(sent); i < len(parts) && left > 0; i++ {
		m := min(left, len(parts[i]))
		parts[i] = parts[i][m:]
		left -= m
	}
	return nil
}
