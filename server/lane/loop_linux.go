package lane

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A loop serves the connections that are ready, one after the other, in one goroutine.
// Those that wait for a request, or for the client to take more of a response, cost nothing but
// their place in an epoll set, edge-triggered, and with TLS what crypto/tls keeps.
//
// Before its goroutine waits for a client it leaves the loop to another one, and stays with the
// connection. After [Exchange.MayBlock] another goroutine takes the loop, but only if the
// handler is not back soon: mostly it is, because what it reads is in memory anyway, and a
// change of goroutines for each such read would cost much more.
type loop struct {
	epoll  *os.File
	wait   syscall.RawConn // of epoll
	nudge  int             // an eventfd in the set
	buffer *[bufferBytes]byte

	events [batch]unix.EpollEvent
	at, n  int // in events
	now    time.Time
	begun  time.Time // when other goroutines could last run

	poll func(uintptr) bool // the method, made once so that calling it allocates nothing

	// Goroutines that have left the loop and are done rest until one is needed again: their
	// stacks are large enough already for a miss, and that of a new one would have to grow.
	resting atomic.Int32
	wake    chan struct{}
	ended   chan struct{} // closed with the loop

	blocker atomic.Pointer[conn] // may block, or might when it was stored here
	overdue *time.Timer          // calls takeOver

	newcomers    [batch]*conn
	met, greeted int // newcomers: how many there are, and how many were greeted

	mu      sync.Mutex
	conns   []*conn // by descriptor
	arrived []*conn // not among the newcomers yet
	asleep  bool    // the loop's goroutine has to be woken to look at arrived
}

const (
	// batch is how many connections a loop serves before it looks which others are ready.
	batch    = 128
	interest = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET
	// turn is how long a loop runs before other goroutines can. Go's scheduler does not look
	// at the network for them as long as there is something to run.
	turn = 200 * time.Microsecond
	// blockTimeout is how long a handler may block before another goroutine takes the loop.
	blockTimeout = 100 * time.Microsecond
	// rounds is how often a loop reads of one connection before it goes on without it.
	rounds = 16
	// mostResting bounds what the resting goroutines of a loop take, some 32 KiB each.
	mostResting = 16
)

var past = time.Unix(1, 0)

var one = binary.NativeEndian.AppendUint64(nil, 1)

// newLoop returns an event loop that watches no connection yet.
func newLoop() (*loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("lane: epoll: %w", err)
	}
	_ = unix.SetNonblock(epoll, true) // so that Go polls it
	l := &loop{
		epoll: os.NewFile(uintptr(epoll), "epoll"), buffer: buffers.Get().(*[bufferBytes]byte),
		wake: make(chan struct{}), ended: make(chan struct{}),
	}
	l.poll = l.doPoll
	l.overdue = time.AfterFunc(time.Hour, l.takeOver)
	l.nudge, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		l.wait, err = l.epoll.SyscallConn()
	}
	if err == nil {
		err = l.changeEvents(unix.EPOLL_CTL_ADD, l.nudge, interest)
	}
	if err != nil {
		l.close()
		_ = unix.Close(l.nudge)
		return nil, fmt.Errorf("lane: epoll: %w", err)
	}
	return l, nil
}

// close ends the event loop. Its goroutine closes the eventfd afterwards: while the goroutine may write there, the number must
// not be reused for another descriptor.
func (l *loop) close() {
	close(l.ended)
	l.overdue.Stop()
	l.epoll.Close()
}

// addNew queues a new connection for the loop's goroutine, and wakes that. The goroutine responds to what came with the
// connection, and watches it by epoll only if it stays open.
func (l *loop) addNew(c *conn) {
	l.mu.Lock()
	l.arrived = append(l.arrived, c)
	asleep := l.asleep
	l.asleep = false
	l.mu.Unlock()
	if asleep {
		_ = l.epoll.SetReadDeadline(past) // it wakes without a system call
	}
}

// takeArrived moves a batch of queued new connections to those that the loop's goroutine serves next, and reports whether there
// are any. If there is nothing else to do either, it records that the goroutine has to be woken.
func (l *loop) takeArrived() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.met, l.greeted = copy(l.newcomers[:], l.arrived), 0
	l.arrived = slices.Delete(l.arrived, 0, l.met)
	l.asleep = l.met == 0 && l.n == 0
	return l.met > 0
}

// serveNew responds to what came with a new connection, unless it was closed meanwhile. It returns false if this goroutine no
// longer runs the loop.
func (l *loop) serveNew(c *conn) bool {
	s := c.state()
	if !s.isWaiting() || !c.move(s, onLoop) {
		return true // it was closed meanwhile
	}
	c.buffer, c.unread = l.buffer, some
	return c.serveReady(l.now)
}

// add makes the loop watch the connection's descriptor by epoll. After an error the connection is in the loop's list, and not
// watched.
func (l *loop) add(c *conn) error {
	c.added = true
	l.mu.Lock()
	for len(l.conns) <= c.fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[c.fd] = c
	l.mu.Unlock()
	return l.changeEvents(unix.EPOLL_CTL_ADD, c.fd, c.watchedEvents())
}

// watchedEvents returns the epoll events of the connection that its loop watches: that it can be read from, and if watchesOut is
// set, that it can be written to.
func (c *conn) watchedEvents() uint32 {
	if c.watchesOut {
		return interest | unix.EPOLLOUT
	}
	return interest
}

// changeEvents adds, modifies or removes a descriptor in the loop's epoll set. op is one of unix.EPOLL_CTL_ADD, MOD and DEL.
func (l *loop) changeEvents(op, fd int, events uint32) error {
	var err error
	closed := l.wait.Control(func(epoll uintptr) {
		err = unix.EpollCtl(int(epoll), op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
	})
	return cmp.Or(closed, err)
}

// watchAgain sets which events of c's descriptor fd the loop watches, and makes epoll report those that are there already. It
// does nothing if c was closed meanwhile: then another connection may have its descriptor.
func (l *loop) watchAgain(c *conn, fd int, events uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.conns[fd] == c {
		_ = l.changeEvents(unix.EPOLL_CTL_MOD, fd, events)
	}
}

// forget makes the loop ignore events of c's descriptor, before c is closed or handed over. It does not change the epoll set.
func (l *loop) forget(c *conn) {
	l.mu.Lock()
	if 0 <= c.fd && c.fd < len(l.conns) && l.conns[c.fd] == c {
		l.conns[c.fd] = nil
	}
	l.mu.Unlock()
}

// run serves the connections of the loop in this goroutine, until the loop is closed or another goroutine has taken it over.
func (l *loop) run() {
	for {
		// If this goroutine has handed the loop to another one meanwhile, both positions may have changed.
		for l.at < l.n || l.greeted < l.met {
			if !l.serveNext() && !l.waitForLoop() {
				return
			}
		}
		switch err := l.wait.Read(l.poll); {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			_ = l.epoll.SetReadDeadline(time.Time{})
			l.now = time.Now()
			l.begun = l.now
			l.takeArrived()
		default:
			_ = unix.Close(l.nudge)
			return
		}
	}
}

// serveNext serves the next connection of the current batch, one with an event or a new one. It returns false if this goroutine
// no longer runs the loop.
func (l *loop) serveNext() bool {
	if l.at < l.n {
		l.at++
		return l.serve(l.events[l.at-1])
	}
	c := l.newcomers[l.greeted]
	l.newcomers[l.greeted] = nil
	l.greeted++
	return l.serveNew(c)
}

// waitForLoop lets a goroutine rest that has left the loop to another one, until the loop needs it again. It returns false if the
// goroutine has to end: the loop was closed, or enough others rest.
func (l *loop) waitForLoop() bool {
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

// doPoll fetches a batch of events from the epoll descriptor without waiting, and of new connections. It returns false, so that
// Go's poller waits for the epoll descriptor, if there are none, or if the loop has run for so long that other goroutines get
// their turn first.
func (l *loop) doPoll(epoll uintptr) bool {
	if l.now.Sub(l.begun) > turn {
		// The set is ready at once. The sum in the eventfd is never read: ones do not fill it.
		l.begun = l.now
		_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(l.nudge), uintptr(unsafe.Pointer(&one[0])), uintptr(len(one)))
		return false
	}
	n, _, err := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&l.events[0])), uintptr(len(l.events)), 0, 0, 0)
	l.now = time.Now()
	if l.at, l.n = 0, int(n); err != 0 {
		l.n = 0
	}
	if !l.takeArrived() && l.n == 0 {
		l.begun = l.now
		return false
	}
	return true
}

// serve responds on the connection of an epoll event. It does nothing if another goroutine owns the connection or the connection
// was closed. It returns false if this goroutine no longer runs the loop.
func (l *loop) serve(e unix.EpollEvent) bool {
	var c *conn
	l.mu.Lock()
	if fd := int(e.Fd); fd < len(l.conns) {
		c = l.conns[fd]
	}
	l.mu.Unlock()
	if c == nil {
		return true
	}
	s := c.state()
	if m := c.multiplexed.Load(); m != nil {
		m.onEvent(e.Events, l.now)
		return true
	}
	if !s.isWaiting() && s.name() != sending || !c.move(s, onLoop) {
		return true
	}
	c.buffer, c.unread = l.buffer, some
	if e.Events&^unix.EPOLLOUT != unix.EPOLLIN || s.name() == sending { // the client has closed the connection, it broke, or bytes came before
		c.unread = unknown
	}
	return c.serveReady(l.now)
}

// serveReady responds to what the client has sent, and then lets the connection wait on its loop, hands it over, or closes it.
// The caller owns the connection. It returns false if this goroutine does not run the loop, or no longer.
func (c *conn) serveReady(now time.Time) bool {
	next := c.respondNow(now)
	if next == handed {
		c.leaveLoop() // net/http may take its time
	}
	if next == busy && !c.added && c.loop.add(c) != nil {
		next = closing
	}
	mine, buffer := c.state() == onLoop, c.buffer
	open := c.enterState(next)
	switch next {
	case busy:
		c.buffer = nil // the multiplexer has had the loop look again
	case sending:
		c.saveUnparsed()
	}
	if !mine {
		buffers.Put(buffer)
	}
	if open { // events meanwhile went to a loop that saw an owner
		c.waitOnLoop(!mine)
	} else if next == sending {
		c.waitToSend(!mine)
	}
	return mine
}

// respondNow sends the rest of a response, then responds to all requests that can be read without waiting, and returns the next
// state as respondToRead does. It returns idle when there is nothing more to read, and closing when the client has closed the
// connection or reading fails. After 16 reads its goroutine leaves the loop to another one and goes on.
func (c *conn) respondNow(now time.Time) state {
	if c.unsent() > 0 {
		if next := c.continueSending(now); next != idle {
			return next
		}
	}
	read := c.receiveNow
	if c.secure != nil {
		read = c.secure.Read
	}
	for round := 0; ; round++ {
		n, err := read(c.buffer[:])
		switch {
		case n == 0 && err == errAgain:
			return idle
		case n == 0:
			return closing
		case round == rounds:
			c.leaveLoop() // other connections are ready
		}
		if round > 0 {
			now = time.Now()
		}
		c.start, c.end = 0, n
		if next := c.respondToRead(now); next != idle {
			return next
		}
	}
}

// waitOnLoop lets the connection wait on its loop for its next request. again makes the loop check for bytes that came while this
// goroutine owned the connection. It closes the connection if the loop cannot watch it, or after Listener.Abort.
func (c *conn) waitOnLoop(again bool) {
	s, loop, fd, events := c.waitingState(), c.loop, c.fd, c.watchedEvents()
	c.buffer = nil
	if !c.added && loop.add(c) != nil { // while the descriptor is surely c's
		c.close()
		return
	}
	c.moveTo(s)
	if c.listener.aborted.Load() {
		c.listener.closeWaiting(c, s)
	} else if again {
		loop.watchAgain(c, fd, events)
	}
}

// continueSending sends more of a response, without waiting. When it is complete, it responds to the bytes that were read after
// its request. It returns the next state: sending if the client takes no more.
func (c *conn) continueSending(now time.Time) state {
	x := &c.exchange
	if x.err = c.sendNow(); x.err == nil && c.unsent() > 0 {
		return sending
	}
	x.releaseBody()
	if x.err != nil || x.closes {
		return closing
	}
	c.now = now // the time to wait begins
	b := c.unparsed
	if b == nil {
		return idle
	}
	copy(c.buffer[c.start:c.end], b[c.start:c.end])
	buffers.Put(b)
	c.unparsed = nil
	return c.respondToRead(now)
}

// saveUnparsed copies the bytes in the buffer that follow a request whose response is being sent, for continueSending, because
// the buffer is the loop's.
func (c *conn) saveUnparsed() {
	if c.start < c.end && c.unparsed == nil {
		c.unparsed = buffers.Get().(*[bufferBytes]byte)
		copy(c.unparsed[c.start:c.end], c.buffer[c.start:c.end])
	}
	c.buffer = nil
}

// waitToSend lets the connection wait on its loop until the client takes more of a response, and starts the timer that closes it
// if that takes too long. again makes the loop check whether the client did while this goroutine owned the connection. It closes
// the connection if the loop cannot watch it.
func (c *conn) waitToSend(again bool) {
	loop, fd, now := c.loop, c.fd, time.Now()
	timeout := c.exchange.sendTimeout(now)
	watched := c.watchesOut
	c.watchesOut = true
	if !c.added && loop.add(c) != nil {
		c.close()
		return
	}
	if c.sendTimer == nil {
		c.sendTimer = time.AfterFunc(timeout, c.closeStalled)
	} else {
		c.sendTimer.Reset(timeout)
	}
	c.moveTo(sending.withStart(now.Add(timeout)))
	if again || !watched {
		loop.watchAgain(c, fd, interest|unix.EPOLLOUT)
	}
}

// closeStalled closes the connection if its client has not taken enough of a response in time.
func (c *conn) closeStalled() {
	if s := c.state(); s.name() == sending && !time.Now().Before(s.waitingSince()) {
		c.listener.closeWaiting(c, s)
	}
}

// allowBlocking lets another goroutine take the loop over if this one runs it and does not call [conn.endBlocking] within
// blockTimeout.
func (c *conn) allowBlocking() {
	if c.state() == onLoop {
		c.moveTo(mayBlock)
		c.loop.blocker.Store(c)
		c.loop.overdue.Reset(blockTimeout)
	}
}

// endBlocking ends what allowBlocking has started, if no other goroutine has taken the loop over.
func (c *conn) endBlocking() {
	if c.state() == mayBlock && c.move(mayBlock, onLoop) {
		c.loop.overdue.Stop()
	}
}

// takeOver runs the loop in this goroutine if the one that ran it still blocks. A timer calls it blockTimeout after
// allowBlocking. If that goroutine has returned meanwhile and blocks again, the early takeover does no harm.
func (l *loop) takeOver() {
	if c := l.blocker.Load(); c != nil && c.move(mayBlock, alone) {
		l.buffer = buffers.Get().(*[bufferBytes]byte)
		l.run()
	}
}

// leaveLoop lets this goroutine serve only this connection from now on. If the goroutine runs a loop, another one takes the loop
// over.
func (c *conn) leaveLoop() {
	c.endBlocking()
	if c.state() != onLoop {
		return
	}
	c.moveTo(alone)
	l := c.loop
	l.buffer = buffers.Get().(*[bufferBytes]byte)
	select {
	case l.wake <- struct{}{}: // to one that rests
	default:
		go l.run()
	}
}
