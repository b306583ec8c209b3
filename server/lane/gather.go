package lane

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// gatheredBytes bounds what a client that takes nothing holds: two records and a little.
const gatheredBytes = 34 << 10

// A gatherer is what TLS reads and writes its records from and to. While it gathers it keeps
// what is written, so that the records of an answer go to the system together.
//
// For a loop it reads what is there and never waits, see [errAgain]. It writes what the
// system takes at once; for the rest the goroutine leaves the loop and waits.
type gatherer struct {
	net.Conn         // nil as long as only a loop has the descriptor
	of       *conn   // of a connection on a loop
	kept     *[]byte // nil while it does not gather
}

func (g *gatherer) Read(p []byte) (int, error) {
	if g.of == nil || g.of.waiting {
		return g.Conn.Read(p)
	}
	return g.of.receiveNow(p)
}

var records = sync.Pool{New: func() any {
	b := make([]byte, 0, gatheredBytes)
	return &b
}}

// gather keeps what is written from now on.
func (g *gatherer) gather() {
	g.kept = records.Get().(*[]byte)
	*g.kept = (*g.kept)[:0]
}

// flush writes what was kept.
func (g *gatherer) flush() error {
	kept := g.kept
	g.kept = nil
	_, err := g.send(*kept)
	records.Put(kept)
	return err
}

func (g *gatherer) send(p []byte) (int, error) {
	c := g.of
	if c == nil {
		return g.Conn.Write(p)
	}
	c.exchange.parts = [3][]byte{p}
	err := c.sendNow(&c.exchange.parts)
	rest := c.exchange.parts[0]
	c.exchange.parts = [3][]byte{}
	if err == nil && len(rest) > 0 && c.state.Load() == ending {
		err = io.ErrShortWrite // who closes says goodbye, and does not wait for that
	}
	if err != nil || len(rest) == 0 {
		return len(p) - len(rest), err
	}
	c.leave()
	if err := c.adopt(); err != nil {
		return len(p) - len(rest), err
	}
	n, err := g.Conn.Write(rest)
	return len(p) - len(rest) + n, err
}

func (g *gatherer) Write(p []byte) (int, error) {
	if g.kept == nil {
		return g.send(p)
	}
	if len(*g.kept)+len(p) > cap(*g.kept) {
		if _, err := g.send(*g.kept); err != nil {
			return 0, err
		}
		*g.kept = (*g.kept)[:0]
	}
	*g.kept = append(*g.kept, p...) // a record is always smaller
	return len(p), nil
}

// Close implements net.Conn, as do the deadlines: those are set when it has to wait.
func (g *gatherer) Close() error {
	if g.Conn == nil {
		return g.of.closeDescriptor()
	}
	return g.Conn.Close()
}

func (g *gatherer) SetDeadline(t time.Time) error {
	return errors.Join(g.SetReadDeadline(t), g.SetWriteDeadline(t))
}

func (g *gatherer) SetReadDeadline(t time.Time) error {
	if g.Conn == nil {
		return nil
	}
	return g.Conn.SetReadDeadline(t)
}

func (g *gatherer) SetWriteDeadline(t time.Time) error {
	if g.Conn == nil {
		return nil
	}
	return g.Conn.SetWriteDeadline(t)
}

// CloseWrite is for who ends a connection that is not read to the end.
func (g *gatherer) CloseWrite() error { return closeWrite(g.Conn) }
