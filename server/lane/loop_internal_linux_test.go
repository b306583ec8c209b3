package lane

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// A loop that has let other goroutines run comes back, however often: nothing else wakes it
// where all clients wait for their answers.
func TestLoopComesBack(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	if err := l.epoll.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	for n := range 1000 {
		l.now = l.begun.Add(2 * turn)
		if err := l.wait.Read(l.poll); err != nil {
			t.Fatalf("after %d times: %v", n, err)
		}
	}
}

// in returns c in a state that it would take a client to bring it to.
func in(s state, c *conn) *conn {
	c.word.Store(int64(s))
	return c
}

// A connection that begins to wait after Abort has shut it down is closed and forgotten.
func TestAbortForgetsWhatBeganToWait(t *testing.T) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	l := &Listener{open: newOpenList(), none: make(chan struct{}), stopped: make(chan struct{}), stoppedAt: time.Now()}
	c := in(onLoop, &conn{listener: l, socket: ours, fd: -1, loop: new(loop), now: time.Now()})
	l.open.add(c)
	close(l.stopped)
	l.closeHTTP1()
	s := c.waitingState()
	c.moveTo(s) // as waitOnLoop begins
	if l.aborted.Load() {
		l.closeWaiting(c, s) // and ends
	}
	select {
	case <-l.none:
	default:
		t.Errorf("%d are still the lane's", l.Len())
	}
	if _, err := ours.Write(nil); err != io.ErrClosedPipe {
		t.Errorf("the connection is open: %v", err)
	}
}

// Goroutines that are done rest, though not any number of them, are used again before there
// are new ones, and end with the loop.
func TestGoroutinesRest(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := &loop{wake: make(chan struct{}), ended: make(chan struct{})}
		var wanted, unwanted atomic.Int32
		for range mostResting + 3 {
			go func() {
				if l.waitForLoop() {
					wanted.Add(1)
				} else {
					unwanted.Add(1)
				}
			}()
		}
		want := func(w, u int32) {
			t.Helper()
			synctest.Wait()
			if wanted.Load() != w || unwanted.Load() != u {
				t.Errorf("%d are wanted again and %d are not, want %d and %d", wanted.Load(), unwanted.Load(), w, u)
			}
		}
		want(0, 3)
		in(onLoop, &conn{loop: l}).leaveLoop()
		want(1, 3)
		close(l.ended)
		want(1, mostResting+2)
		if l.resting.Load() != 0 {
			t.Errorf("%d are said to rest", l.resting.Load())
		}
	})
}

// A loop stays with its goroutine if that is back soon from what may block, and else is
// another's, whatever may block then.
func TestMayBlock(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	early, late, next := &conn{loop: l}, &conn{loop: l}, &conn{loop: l}

	in(mayBlock, early) // but takeOver is not due
	early.endBlocking()
	if early.state() != onLoop {
		t.Error("a goroutine that is back soon has lost the loop")
	}

	in(onLoop, late).allowBlocking()
	for late.state() != alone { // until another goroutine has the loop
		runtime.Gosched()
	}
	l.blocker.Store(in(mayBlock, next))
	late.endBlocking()
	if late.state() != alone || next.state() != mayBlock {
		t.Error("a goroutine that is back late still has the loop, or has taken it from the next one")
	}
	next.endBlocking()
	if next.state() != onLoop {
		t.Error("the one after that has lost it")
	}
}

// lockWatcher sees whether the lock is held while a connection is closed.
type lockWatcher struct {
	net.Conn
	l    *Listener
	free bool
}

func (w *lockWatcher) Close() error {
	if w.free = w.l.mu.TryLock(); w.free {
		w.l.mu.Unlock()
	}
	return nil
}

// However many connections are overdue at once, others need not wait until all are closed.
func TestSweepingDelaysNoOthers(t *testing.T) {
	l := &Listener{open: newOpenList(), none: make(chan struct{}), deadlines: Deadlines{Idle: time.Second}}
	w := &lockWatcher{l: l}
	now := time.Now()
	c := in(idle.withStart(now.Add(-time.Minute)), &conn{listener: l, socket: w, loop: new(loop)})
	l.open.add(c)
	l.closeOverdue(now)
	if !w.free || l.Len() != 0 {
		t.Errorf("it was closed without the lock: %v; %d are open", w.free, l.Len())
	}
}

// greeter answers each request with nothing. One for /leave leaves the loop before, and as one for /stay, which does not, it
// tells asked and waits for answer.
type greeter struct{ asked, answer chan string }

func (g *greeter) Answer(x *Exchange) bool {
	switch path := strings.Clone(x.Path); path {
	case "/leave":
		x.c.leaveLoop()
		fallthrough
	case "/stay":
		g.asked <- path
		<-g.answer
	}
	x.Send(NewHead(http.StatusNoContent), nil, nil)
	return true
}

// welcoming returns a listener with one loop, to whose clients g answers.
func welcoming(t *testing.T, g *greeter) *Listener {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	l := New(tcp, Options{Handler: g, HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute})
	t.Cleanup(l.Abort)
	return l
}

// visit connects to a listener, and sends.
func visit(t *testing.T, l *Listener, request string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", l.Addr().String(), time.Minute)
	if err == nil {
		t.Cleanup(func() { c.Close() })
		_, err = io.WriteString(c, request)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// wantAnswer reads one, which ends the test if it does not come.
func wantAnswer(t *testing.T, c *net.TCPConn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if answer, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || answer.StatusCode != http.StatusNoContent {
		t.Fatalf("%v, %v", answer, err)
	}
}

// A connection that asks once and ends is never in the set: what came with it is answered as soon as the loop hears of it,
// and many that come at once are answered, too. One that stays is added.
func TestWelcome(t *testing.T) {
	l := welcoming(t, new(greeter))
	added := func() int {
		l.loops[0].mu.Lock()
		defer l.loops[0].mu.Unlock()
		return len(l.loops[0].conns)
	}
	l.mu.Lock() // no connection is accepted before its request has come
	var waiting []*net.TCPConn
	for range 2*batch + 1 {
		waiting = append(waiting, visit(t, l, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"))
	}
	l.mu.Unlock()
	for _, c := range waiting {
		wantAnswer(t, c)
	}
	if n := added(); n > 0 {
		t.Errorf("the set has had descriptors up to %d", n)
	}

	silent := visit(t, l, "")
	for added() == 0 {
		runtime.Gosched()
	}
	for range 2 {
		if _, err := io.WriteString(silent, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		wantAnswer(t, silent)
	}
}

// A goroutine that left the loop while it greeted a connection, and gets it back, goes on with what is ready: the set does not
// tell it again.
func TestNothingReadyIsForgotten(t *testing.T) {
	const leave, stay, plain = "GET /leave HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET /stay HTTP/1.1\r\nHost: a.example\r\n\r\n", "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"
	g := &greeter{asked: make(chan string), answer: make(chan string)}
	l := welcoming(t, g)
	ask := func(c *net.TCPConn, request string) {
		t.Helper()
		if _, err := io.WriteString(c, request); err != nil {
			t.Fatal(err)
		}
	}
	var held, leaving, last *net.TCPConn
	for _, c := range []**net.TCPConn{&held, &leaving, &last} {
		*c = visit(t, l, plain)
		wantAnswer(t, *c)
	}
	l.mu.Lock() // so that its loop greets it with its request
	greeted := visit(t, l, leave)
	l.mu.Unlock()
	<-g.asked
	g.answer <- ""
	wantAnswer(t, greeted)
	for l.loops[0].resting.Load() == 0 {
		runtime.Gosched()
	}

	ask(held, stay)
	<-g.asked
	ask(leaving, leave) // and the next one are ready together
	ask(last, plain)
	g.answer <- ""
	<-g.asked
	wantAnswer(t, last)
	g.answer <- ""
	wantAnswer(t, leaving)
	wantAnswer(t, held)
}
