package lane

import (
	"net"
	"syscall"
	"time"
)

func (l *Listener) startLoops() {
	loops, err := newLoops()
	if err != nil {
		l.o.Logger.Warn("server: there is no event loop, so each connection has a goroutine", "error", err)
		return
	}
	l.loops = loops
	go l.sweep()
}

// loopFor returns the loop of the next connection, nil where it is to have a goroutine:
// with TLS one read of it is many of the system's.
func (l *Listener) loopFor(raw net.Conn) *loop {
	if _, ok := raw.(syscall.Conn); !ok || l.o.Handler == nil || l.o.TLS != nil {
		return nil
	}
	l.loopsOnce.Do(l.startLoops)
	if len(l.loops) == 0 {
		return nil
	}
	l.next++
	return l.loops[l.next%len(l.loops)]
}

// closeIdle closes a connection that waits on a loop, if its state is still that.
func (l *Listener) closeIdle(c *conn, state int64) {
	if c.state.CompareAndSwap(state, ending) {
		_ = c.Close()
		l.end(c)
	}
}

// sweeps is how often the shortest time limit is looked after.
const sweeps = 8

// sweep closes the connections on loops whose time is over, and in the end the loops.
func (l *Listener) sweep() {
	ticks := time.NewTicker(max(time.Millisecond, min(l.o.HeaderTimeout, l.o.IdleTimeout)/sweeps))
	defer ticks.Stop()
	for {
		select {
		case now := <-ticks.C:
			l.closeOverdue(now)
		case <-l.none:
			for _, loop := range l.loops {
				loop.close()
			}
			return
		}
	}
}

func (l *Listener) closeOverdue(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := now.Add(-l.o.IdleTimeout).UnixNano()
	for c := range l.open {
		if c.loop == nil {
			continue
		}
		state := c.state.Load()
		if state > 0 && state < idle || state == fresh && now.Sub(c.opened) > l.o.HeaderTimeout {
			if c.state.CompareAndSwap(state, ending) {
				_ = c.Close()
				l.remove(c)
			}
		}
	}
	l.checkNone()
}
