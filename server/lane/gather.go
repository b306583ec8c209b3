package lane

import (
	"net"
	"sync"
)

// A gatherer is what TLS writes its records to. While it gathers it keeps them, so that all
// records of an answer go to the system at once; else it is the connection.
type gatherer struct {
	net.Conn
	kept *[]byte // nil while it does not gather
}

// records are for the records of 64 KiB and a head.
var records = sync.Pool{New: func() any {
	b := make([]byte, 0, chunkBytes+8<<10)
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
	*g.kept = append(*g.kept, p...)
	return len(p), nil
}

// CloseWrite is for who ends a connection that is not read to the end.
func (g *gatherer) CloseWrite() error { return closeWrite(g.Conn) }
