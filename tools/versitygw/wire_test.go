package versitygw

import (
	"net"
	"sync"
	"testing"
)

// A wire carries connections to an address, until it is cut.
type wire struct {
	net.Listener
	to string

	mu    sync.Mutex
	moves *sync.Cond
	state wireState
	conns map[net.Conn]bool
}

type wireState int

const (
	whole   wireState = iota
	cut               // connections end, and no other can be made
	stalled           // bytes are taken, and carried when it is whole again
	gone              // the test is over
)

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{Listener: l, to: to, conns: map[net.Conn]bool{}}
	w.moves = sync.NewCond(&w.mu)
	var carrying sync.WaitGroup
	carrying.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			carrying.Go(func() { w.carry(from) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.become(gone)
		carrying.Wait()
	})
	return w
}

// address is where it takes connections.
func (w *wire) address() string { return w.Addr().String() }

func (w *wire) become(state wireState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == gone {
		return
	}
	w.state = state
	if state == cut || state == gone {
		for conn := range w.conns {
			conn.Close()
		}
	}
	w.moves.Broadcast()
}

// passes waits while the wire is stalled, and reports whether it is whole then.
func (w *wire) passes() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.state == stalled {
		w.moves.Wait()
	}
	return w.state == whole
}

// note has a connection end with the wire.
func (w *wire) note(conn net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state == cut || w.state == gone {
		conn.Close()
		return false
	}
	w.conns[conn] = true
	return true
}

func (w *wire) forget(conn net.Conn) {
	conn.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, conn)
}

func (w *wire) carry(from net.Conn) {
	if !w.note(from) {
		return
	}
	defer w.forget(from)
	if !w.passes() {
		return
	}
	to, err := net.Dial("tcp", w.to)
	if err != nil || !w.note(to) {
		return
	}
	defer w.forget(to)
	var back sync.WaitGroup
	back.Go(func() { w.copy(from, to) })
	w.copy(to, from)
	back.Wait()
}

// copy copies what comes from one side to the other. Where one ends, so does the other.
func (w *wire) copy(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if !w.passes() {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
