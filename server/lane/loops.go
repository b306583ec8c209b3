package lane

import (
	"errors"
	"time"
)

// startLoops is called once, before any connection is there. Without loops, or without a
// handler, each connection has a goroutine.
func (l *Listener) startLoops() {
	if l.source == nil || l.o.Handler == nil {
		return
	}
	loops, err := newLoops()
	if err == nil {
		err = l.source.prepare()
	}
	if err != nil {
		for _, loop := range loops {
			loop.close()
		}
		if errors.Is(err, errors.ErrUnsupported) {
			return
		}
		l.o.Logger.Warn("server: there is no event loop, so each connection has a goroutine", "error", err)
		return
	}
	l.loops = loops
	go l.sweep()
}

// nextLoop is called with mu held.
func (l *Listener) nextLoop() *loop {
	l.next++
	return l.loops[l.next%len(l.loops)]
}

// startBare has a loop serve the connection with that descriptor.
func (l *Listener) startBare(fd int) {
	c := &conn{listener: l, fd: fd, bare: true, opened: time.Now()}
	c.state.Store(fresh)
	l.mu.Lock()
	if l.stopping.Load() {
		l.mu.Unlock()
		_ = c.Close()
		return
	}
	c.loop = l.nextLoop()
	l.open[c] = struct{}{}
	// Nobody closes it, and with it the descriptor, while mu is held.
	err := c.loop.add(c)
	l.mu.Unlock()
	if err != nil {
		l.closeIdle(c, fresh)
	}
	if l.o.Opened != nil {
		l.o.Opened()
	}
}

// moveToLoop makes a connection with TLS wait for its requests on a loop. It returns
// false where it stays with its goroutine.
func (c *conn) moveToLoop() bool {
	l := c.listener
	if c.records == nil || len(l.loops) == 0 {
		return false
	}
	below, ok := c.records.Conn.(*limitedConn)
	if !ok {
		return false
	}
	l.mu.Lock()
	if c.state.Load() != busy {
		l.mu.Unlock()
		return false
	}
	fd, err := below.descriptor()
	if err != nil {
		l.mu.Unlock()
		return false
	}
	c.fd, c.bare, c.loop = fd, true, l.nextLoop()
	c.records.Conn, c.records.of = nil, c
	err = c.loop.add(c)
	l.mu.Unlock()
	if err != nil {
		c.close()
		return true
	}
	// With the end of the handshake the first request may have come.
	c.buffer, c.ended = buffers.Get().(*[bufferBytes]byte), true
	c.serveNow(time.Now())
	return true
}

// closeIdle closes a connection that waits on a loop, if its state is still that.
func (l *Listener) closeIdle(c *conn, state int64) {
	if c.state.CompareAndSwap(state, ending) {
		l.end(c)
		_ = c.Close()
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
	for _, c := range l.overdue(now) {
		_ = c.Close() // without mu, for which others wait
	}
}

// overdue forgets the connections that closeOverdue closes.
func (l *Listener) overdue(now time.Time) (overdue []*conn) {
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
				l.remove(c)
				overdue = append(overdue, c)
			}
		}
	}
	l.checkNone()
	return overdue
}
