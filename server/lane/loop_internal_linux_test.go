package lane

import (
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
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

// A connection that begins to wait between the halves of Abort is closed and forgotten.
func TestAbortForgetsWhatBeganToWait(t *testing.T) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	l := &Listener{open: make(map[*conn]struct{}), none: make(chan struct{})}
	c := in(onLoop, &conn{listener: l, socket: ours, loop: new(loop), now: time.Now()})
	l.open[c] = struct{}{}
	l.stopping.Store(true)
	s := c.waitingState()
	c.moveTo(s) // as waitOnLoop begins
	l.cut()
	l.closeWaiting(c, s) // and ends
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
	synctest.Test(t, func(t *testing.T) {
		l := &loop{wake: make(chan struct{}), ended: make(chan struct{})}
		var wanted, unwanted atomic.Int32
		for range mostResting + 3 {
			go func() {
				if l.rest() {
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
	early.isBack()
	if early.state() != onLoop {
		t.Error("a goroutine that is back soon has lost the loop")
	}

	in(onLoop, late).mayBlock()
	for late.state() != alone { // until another goroutine has the loop
		runtime.Gosched()
	}
	l.blocker.Store(in(mayBlock, next))
	late.isBack()
	if late.state() != alone || next.state() != mayBlock {
		t.Error("a goroutine that is back late still has the loop, or has taken it from the next one")
	}
	next.isBack()
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
	l := &Listener{open: make(map[*conn]struct{}), none: make(chan struct{}), o: Options{IdleTimeout: time.Second}}
	w := &lockWatcher{l: l}
	now := time.Now()
	c := in(idle.since(now.Add(-time.Minute)), &conn{listener: l, socket: w, loop: new(loop)})
	l.open[c] = struct{}{}
	l.closeOverdue(now)
	if !w.free || l.Len() != 0 {
		t.Errorf("it was closed without the lock: %v; %d are open", w.free, l.Len())
	}
}
