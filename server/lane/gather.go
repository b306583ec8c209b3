package lane

import (
	"net"
	"sync"
)

// gatheredBytes bounds what a client that takes nothing holds: two records and a little.
const gatheredBytes = 34 << 10

// A gatherer is what TLS writes its records to. While it gathers it keeps them, so that the
// records of an answer go to the system together; else it is the connection.
type gatherer struct {
	net.Conn
	kept *[]byte // nil while it does not gather
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
	_, err := g.Conn.Write(*kept)
	records.Put(kept)
	return err
}

func (g *gatherer) Write(p []byte) (int, error) {
	if g.kept == nil {
		return g.Conn.Write(p)
	}
	if len(*g.kept)+len(p) > cap(*g.kept) {
		if _, err := g.Conn.Write(*g.kept); err != nil {
			return 0, err
		}
		*g.kept = (*g.kept)[:0]
	}
	*g.kept = append(*g.kept, p...) // a record is always smaller
	return len(p), nil
}

// CloseWrite is for who ends a connection that is not read to the end.
func (g *gatherer) CloseWrite() error { return closeWrite(g.Conn) }
