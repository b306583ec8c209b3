package lane

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop serves the connections that are ready, one after the other, in one goroutine.
// Those that wait for a request cost nothing but their place in an epoll set. Go's own
// poller has them too, edge-triggered as here: it sees what happens and does nothing while
// no goroutine waits.
//
// What may take long never happens in the loop: the goroutine that has come to it stays
// with the connection, and another one goes on with the loop, see [Exchange.Leave].
type loop struct {
	epoll  *os.File
	wait   syscall.RawConn // of epoll
	nudge  int             // an eventfd in the set
	buffer *[bufferBytes]byte

	events [128]unix.EpollEvent
	ready  [128]readyConn
	at, n  int // in ready
	now    time.Time
	begun  time.Time // when it last let others run

	poll func(uintptr) bool // the methods, made once so that calling them allocates nothing
	recv func(uintptr)
	send func(uintptr)
	iov  [3]unix.Iovec
	iovs int // of iov
	size int // of them together
	got  int
	err  syscall.Errno

	mu    sync.Mutex
	conns []*conn // by descriptor
}

type readyConn struct {
	c    *conn
	more bool // than what one read tells, such as that the client has closed
}

const (
	interest = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	// turn is for how long a loop runs before it lets other goroutines run. Go's
	// scheduler would not look for what the network has for them, as long as there is
	// something to run.
	turn = 200 * time.Microsecond
)

// one is what an eventfd takes for 1.
var one = func() (b [8]byte) {
	binary.NativeEndian.PutUint64(b[:], 1)
	return b
}()

// newLoops returns as many as can run at a time.
func newLoops() ([]*loop, error) {
	var loops []*loop
	for range runtime.GOMAXPROCS(0) {
		l, err := newLoop()
		if err != nil {
			for _, l := range loops {
				l.close()
			}
			return nil, err
		}
		loops = append(loops, l)
	}
	for _, l := range loops {
		go l.run()
	}
	return loops, nil
}

func newLoop() (*loop, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("lane: epoll: %w", err)
	}
	_ = unix.SetNonblock(fd, true) // so that Go polls it
	l := &loop{epoll: os.NewFile(uintptr(fd), "epoll"), buffer: buffers.Get().(*[bufferBytes]byte)}
	l.poll, l.recv, l.send = l.doPoll, l.doRecv, l.doSend
	if l.nudge, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		l.epoll.Close()
		return nil, fmt.Errorf("lane: eventfd: %w", err)
	}
	err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, l.nudge, &unix.EpollEvent{Events: interest, Fd: int32(l.nudge)})
	if err == nil {
		l.wait, err = l.epoll.SyscallConn()
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("lane: epoll: %w", err)
	}
	return l, nil
}

func (l *loop) close() {
	l.epoll.Close()
	unix.Close(l.nudge)
}

// take makes the loop serve c from now on.
func (l *loop) take(c *conn) {
	raw, err := c.Conn.(syscall.Conn).SyscallConn()
	if err == nil {
		c.raw = raw
		if e := raw.Control(func(fd uintptr) { err = l.add(c, int(fd)) }); e != nil {
			err = e
		}
	}
	if err != nil || c.listener.stopping.Load() {
		c.listener.closeIdle(c, fresh)
	}
}

func (l *loop) add(c *conn, fd int) error {
	l.mu.Lock()
	for len(l.conns) <= fd {
		l.conns = append(l.conns, nil)
	}
	c.fd = fd
	l.conns[fd] = c
	l.mu.Unlock()
	return l.control(unix.EPOLL_CTL_ADD, fd)
}

func (l *loop) control(op, fd int) error {
	var err error
	if e := l.wait.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), op, fd, &unix.EpollEvent{Events: interest, Fd: int32(fd)})
	}); e != nil {
		return e
	}
	return err
}

// again has the loop look at c again, if there is something to see.
func (l *loop) again(c *conn) {
	_ = c.raw.Control(func(fd uintptr) { _ = l.control(unix.EPOLL_CTL_MOD, int(fd)) })
}

// forget is called when c is closed or somebody else's.
func (l *loop) forget(c *conn) {
	l.mu.Lock()
	if c.fd < len(l.conns) && l.conns[c.fd] == c {
		l.conns[c.fd] = nil
	}
	l.mu.Unlock()
}

// letGo takes c out of the set.
func (l *loop) letGo(c *conn) {
	_ = c.raw.Control(func(fd uintptr) { _ = l.control(unix.EPOLL_CTL_DEL, int(fd)) })
}

// run serves, until the loop is closed or another goroutine goes on.
func (l *loop) run() {
	for {
		for l.at < l.n {
			r := l.ready[l.at]
			l.ready[l.at] = readyConn{}
			l.at++
			if !l.serve(r.c, r.more) {
				return
			}
		}
		if l.wait.Read(l.poll) != nil {
			return
		}
	}
}

// doPoll asks for connections that are ready, and returns false where there are none.
func (l *loop) doPoll(epoll uintptr) bool {
	if l.now.Sub(l.begun) > turn {
		// It waits for itself. Nobody reads the sum of the nudges: ones never fill it.
		l.begun = l.now
		_, _ = unix.Write(l.nudge, one[:])
		return false
	}
	n, _, err := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
	l.now = time.Now()
	if err != 0 || n == 0 {
		l.begun = l.now
		return false
	}
	l.at, l.n = 0, 0
	l.mu.Lock()
	for _, e := range l.events[:n] {
		if fd := int(e.Fd); fd < len(l.conns) && l.conns[fd] != nil {
			l.ready[l.n] = readyConn{l.conns[fd], e.Events&^unix.EPOLLIN != 0}
			l.n++
		}
	}
	l.mu.Unlock()
	return true
}

// serve answers what c asks, and returns false where this goroutine is not the loop's
// any more.
func (l *loop) serve(c *conn, more bool) bool {
	state := c.state.Load()
	if state == busy || state == ending || !c.state.CompareAndSwap(state, busy) {
		return true
	}
	if c.raw.Control(l.recv) != nil {
		l.got, l.err = 0, 0
	}
	if l.err == unix.EAGAIN || l.err == unix.EINTR {
		c.becomeIdle(state, l.err == unix.EINTR)
		return true
	}
	if l.got <= 0 {
		c.close()
		c.listener.end(c)
		return true
	}
	c.on, c.buffer, c.start, c.end = l, l.buffer, 0, l.got
	more = more || l.got == bufferBytes
	c.begin(l.now)
	open := c.step()
	for open && c.start < c.end {
		open = c.next()
	}
	mine := c.on != nil
	if !mine {
		buffers.Put(c.buffer)
	}
	c.on, c.buffer = nil, nil
	if !open {
		c.listener.end(c)
	} else {
		c.becomeIdle(c.now.UnixNano(), more || !mine)
	}
	return mine
}

// becomeIdle lets c wait for its next request; again where the set may not tell that
// there is something already.
func (c *conn) becomeIdle(state int64, again bool) {
	if !c.state.CompareAndSwap(busy, state) {
		c.close()
		c.listener.end(c)
		return
	}
	if c.listener.stopping.Load() {
		c.listener.closeIdle(c, state)
		return
	}
	if again {
		c.loop.again(c)
	}
}

// leave makes this goroutine the connection's own, if it is the loop's.
func (c *conn) leave() {
	l := c.on
	if l == nil {
		return
	}
	c.on = nil
	l.buffer = buffers.Get().(*[bufferBytes]byte)
	go l.run()
}

func (l *loop) doRecv(fd uintptr) {
	n, _, err := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(l.buffer)), bufferBytes)
	l.got, l.err = int(n), err
}

// doSend tells the runtime of the system call only where much is copied: else the garbage
// collector can wait for it.
func (l *loop) doSend(fd uintptr) {
	call := unix.RawSyscall
	if l.size > chunkBytes {
		call = unix.Syscall
	}
	n, _, err := call(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&l.iov[0])), uintptr(l.iovs))
	l.got, l.err = int(n), err
}

// write writes as much of the parts as c takes at once, and leaves the rest of them.
func (l *loop) write(c *conn, parts *[3][]byte) error {
	l.iovs, l.size = 0, 0
	for _, p := range parts {
		if len(p) > 0 {
			l.iov[l.iovs].Base = &p[0]
			l.iov[l.iovs].SetLen(len(p))
			l.iovs++
			l.size += len(p)
		}
	}
	err := c.raw.Control(l.send)
	l.iov = [3]unix.Iovec{}
	switch {
	case err != nil:
		return err
	case l.err == unix.EAGAIN || l.err == unix.EINTR:
		return nil
	case l.err != 0:
		return os.NewSyscallError("writev", l.err)
	}
	for i, n := 0, l.got; i < len(parts) && n > 0; i++ {
		m := min(n, len(parts[i]))
		parts[i] = parts[i][m:]
		n -= m
	}
	return nil
}
