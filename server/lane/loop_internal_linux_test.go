package lane

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A loop that has let others run comes back, however often it has: nobody else wakes it
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

// A connection that comes back to its loop between the halves of Abort is nobody's to
// forget but Abort's.
func TestAbortForgetsWhoCameBack(t *testing.T) {
	ours, theirs := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	l := &Listener{open: make(map[*conn]struct{}), none: make(chan struct{})}
	c := &conn{listener: l, Conn: ours, loop: new(loop)}
	l.open[c] = struct{}{}
	l.stopping.Store(true)
	c.state.Store(time.Now().UnixNano()) // as becomeIdle begins
	l.cut()
	l.closeIdle(c, time.Now().UnixNano()) // and ends
	select {
	case <-l.none:
	default:
		t.Errorf("%d are still the lane's", l.Len())
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
		c := &conn{on: l}
		c.leave()
		want(1, 3)
		close(l.ended)
		want(1, mostResting+2)
		if l.resting.Load() != 0 {
			t.Errorf("%d are said to rest", l.resting.Load())
		}
	})
}

// A loop that is lent stays with its goroutine if that is back soon, and else is another's,
// whoever lends it then.
func TestLending(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	early, late, next := &conn{on: l}, &conn{on: l}, &conn{on: l}

	l.lentBy.Store(early) // as lend does, but nobody looks
	early.lends = true
	early.isBack()
	if early.on != l || l.lentBy.Load() != nil {
		t.Error("who is back soon has lost the loop, or it is still lent")
	}

	late.lend()
	for l.lentBy.Load() != nil { // until somebody has it
		runtime.Gosched()
	}
	l.lentBy.Store(next)
	next.lends = true
	late.isBack()
	if late.on != nil || l.lentBy.Load() != next {
		t.Error("who is back late still has the loop, or has taken it from who lent it since")
	}
	next.isBack()
	if next.on != l {
		t.Error("the one after that has lost it")
	}
}

// lockWatcher sees whether everybody has to wait for a client to be closed.
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

// However many connections are overdue at once, nobody waits until all are closed.
func TestSweepingKeepsNobody(t *testing.T) {
	l := &Listener{open: make(map[*conn]struct{}), none: make(chan struct{}), o: Options{IdleTimeout: time.Second}}
	w := &lockWatcher{l: l}
	c := &conn{listener: l, Conn: w, loop: new(loop)}
	l.open[c] = struct{}{}
	now := time.Now()
	c.state.Store(now.Add(-time.Minute).UnixNano())
	l.closeOverdue(now)
	if !w.free || l.Len() != 0 {
		t.Errorf("it was closed while nobody waited: %v; %d are open", w.free, l.Len())
	}
}
