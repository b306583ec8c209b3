package lane

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop serves the connections that are ready, one after the other, in one goroutine.
// Those that wait for a request cost nothing but their place in an epoll set, edge-triggered,
// and with TLS what crypto/tls keeps.
//
// Nobody makes the others wait for long. A goroutine that has to wait for a client stays with
// the connection, and another one goes on with the loop. One whose handler says that it may
// take a while, see [Exchange.Leave], lends the loop: if it is not back soon, another one
// takes it, and else nothing has changed, which is much cheaper than a change of goroutines
// for each read of what is in memory anyway.
//
// A connection's descriptor is closed by who serves it, or by who finds it waiting; who
// ends one that is being served only shuts it down. So nobody uses a number that is
// another connection's already.
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

	poll func(uintptr) bool // the method, made once so that calling it allocates nothing

	// Goroutines that have left the loop and are done rest until one is wanted again: their
	// stacks are large enough already for what a miss needs, and a new one would have to grow.
	resting atomic.Int32
	wake    chan struct{}
	ended   chan struct{} // closed with the loop

	lentBy atomic.Pointer[conn] // by the goroutine that serves it, which may not come back
	patrol *time.Timer          // that takes it then

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
	// patience is for how long a loop may be lent.
	patience = 100 * time.Microsecond
	// rounds is how often a loop reads of one connection before it goes on without it.
	rounds = 16
	// mostResting bounds what the resting goroutines of a loop take, some 32 KiB each.
	mostResting = 16
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
	l := &loop{
		epoll: os.NewFile(uintptr(fd), "epoll"), buffer: buffers.Get().(*[bufferBytes]byte),
		wake: make(chan struct{}), ended: make(chan struct{}),
	}
	l.poll = l.doPoll
	l.patrol = time.AfterFunc(time.Hour, l.takeOver)
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
	close(l.ended)
	l.patrol.Stop()
	l.epoll.Close()
	unix.Close(l.nudge)
}

// add has the loop look after c from now on.
func (l *loop) add(c *conn) error {
	l.mu.Lock()
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.fd] = c
	l.mu.Unlock()
	return l.control(unix.EPOLL_CTL_ADD, c.fd)
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

// again has the loop look at the connection with that descriptor again, if there is
// something to see.
func (l *loop) again(fd int) { _ = l.control(unix.EPOLL_CTL_MOD, fd) }

// forget is called before c is closed, or somebody else's.
func (l *loop) forget(c *conn) {
	l.mu.Lock()
	if 0 <= c.fd && c.fd < len(l.conns) && l.conns[c.fd] == c {
		l.conns[c.fd] = nil
	}
	l.mu.Unlock()
}

// letGo takes c out of the set.
func (l *loop) letGo(c *conn) {
	l.forget(c)
	_ = l.control(unix.EPOLL_CTL_DEL, c.fd)
}

// run serves, until the loop is closed or another goroutine goes on.
func (l *loop) run() {
	for {
		for l.at < l.n {
			r := l.ready[l.at]
			l.ready[l.at] = readyConn{}
			l.at++
			if !l.serve(r.c, r.more) && !l.rest() {
				return
			}
		}
		if l.wait.Read(l.poll) != nil {
			return
		}
	}
}

// rest waits until this goroutine is the loop's again. It returns false where it is not
// wanted any more.
func (l *loop) rest() bool {
	defer l.resting.Add(-1)
	if l.resting.Add(1) > mostResting {
		return false
	}
	select {
	case <-l.wake:
		return true
	case <-l.ended:
		return false
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
	n, _, err := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
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
	c.on, c.buffer, c.drained, c.ended = l, l.buffer, false, more
	return c.serveNow(l.now)
}

// serveNow answers what has come, then lets c wait on its loop. It returns whether this
// goroutine is the loop's.
func (c *conn) serveNow(now time.Time) bool {
	open := c.answerAll(now)
	mine := c.on != nil
	if !mine {
		buffers.Put(c.buffer)
	}
	c.on, c.buffer = nil, nil
	if open {
		// What came meanwhile was told to a loop that saw c served.
		c.becomeIdle(!mine)
	}
	return mine
}

func (c *conn) answerAll(now time.Time) (open bool) {
	for round := 0; ; round++ {
		n, err := c.receive()
		if err == errAgain && n == 0 {
			return true
		}
		if n == 0 {
			return c.close()
		}
		if round > 0 {
			now = time.Now()
		}
		if round == rounds {
			c.leave() // others wait
		}
		c.start, c.end = 0, n
		c.begin(now)
		open := c.step()
		for open && c.start < c.end {
			open = c.next()
		}
		if !open {
			return false
		}
	}
}

// receive reads what is there of requests.
func (c *conn) receive() (int, error) {
	if c.records != nil {
		return c.Conn.Read(c.buffer[:])
	}
	return c.receiveNow(c.buffer[:])
}

// becomeIdle lets c wait for its next request; again where the set may not tell that
// there is something already.
func (c *conn) becomeIdle(again bool) {
	state, loop, fd := fresh, c.loop, c.fd
	if !c.now.IsZero() {
		state = c.now.UnixNano()
	}
	if !c.state.CompareAndSwap(busy, state) {
		c.close()
		return
	}
	if c.listener.stopping.Load() {
		c.listener.closeIdle(c, state)
		return
	}
	if again {
		loop.again(fd) // who closes c meanwhile does no harm: there is nothing to look at
	}
}

// lend lets another goroutine have the loop, if it is this one's and is not back soon.
func (c *conn) lend() {
	if l := c.on; l != nil && !c.lends {
		c.lends = true
		l.lentBy.Store(c)
		l.patrol.Reset(patience)
	}
}

// isBack is called before anything is done with a connection that may have lent its loop.
func (c *conn) isBack() {
	if !c.lends {
		return
	}
	c.lends = false
	if c.on.lentBy.CompareAndSwap(c, nil) {
		c.on.patrol.Stop()
	} else {
		c.on = nil // another goroutine has it
	}
}

// takeOver goes on with a loop whose goroutine is not back. It may come too early, where
// the loop has been lent again, which does no harm.
func (l *loop) takeOver() {
	if c := l.lentBy.Load(); c != nil && l.lentBy.CompareAndSwap(c, nil) {
		l.buffer = buffers.Get().(*[bufferBytes]byte)
		l.run()
	}
}

// leave makes this goroutine the connection's own, if it is the loop's.
func (c *conn) leave() {
	c.isBack()
	l := c.on
	if l == nil {
		return
	}
	c.on = nil
	l.buffer = buffers.Get().(*[bufferBytes]byte)
	select {
	case l.wake <- struct{}{}: // somebody rests
	default:
		go l.run()
	}
}
