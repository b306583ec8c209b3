package h2

import (
	"slices"
	"sync"
)

const (
	// Gathered is how many bytes of frames are gathered, or a little more, before they go to the
	// system together.
	Gathered = 64 << 10
	// copied is up to how many bytes of a body are copied rather than sent from where they are.
	copied = 4 << 10
	// MostParts bounds how many pieces are gathered.
	MostParts = 64
)

// A Held is a body that is being sent, in memory that it shares with others.
type Held interface {
	// Scarce reports whether memory is scarce and the body adds to that, so that the client gets less time.
	Scarce() bool
	// Release is called once, when the body is no longer needed. sent is how many of its bytes were sent.
	Release(sent int64)
}

// An Out is a piece of what a connection sends.
type Out struct {
	Bytes []byte // what was copied; if it is flat, all of it
	flat  bool
	parts [][]byte // of Bytes, or of a body that is sent from where it is; empty if it is flat
	size  int
	last  int  // where the last part begins in Bytes, if it is of Bytes
	grows bool // whether it is, so that what is copied next continues it
	holds []hold
}

// A hold is of a body that is gathered to its end, but not sent.
type hold struct {
	held   Held
	sent   int64
	weight int
}

var outs = sync.Pool{New: func() any { return &Out{Bytes: make([]byte, 0, Gathered+largestFrame)} }}

// NewOut returns an empty Out from a pool, for Gather. flat makes it copy everything into Out.Bytes; else it refers to bodies
// where they are. Conn.Free returns it to the pool.
func NewOut(flat bool) *Out {
	o := outs.Get().(*Out)
	o.flat = flat
	return o
}

// Size returns how many bytes are left to send.
func (o *Out) Size() int { return o.size }

// Scarce reports whether a body that o has gathered to its end reports memory pressure, so that the client gets less time.
func (o *Out) Scarce() bool {
	for _, h := range o.holds {
		if h.held.Scarce() {
			return true
		}
	}
	return false
}

// addCopied records that Bytes has grown from the length from by bytes to send.
func (o *Out) addCopied(from int) {
	n := len(o.Bytes) - from
	o.size += n
	if o.flat || n == 0 {
		return
	}
	if !o.grows {
		o.parts = append(o.parts, nil)
		o.last, o.grows = from, true
	}
	o.parts[len(o.parts)-1] = o.Bytes[o.last:]
}

// append appends a copy of b to the data to send.
func (o *Out) append(b []byte) {
	from := len(o.Bytes)
	o.Bytes = append(o.Bytes, b...)
	o.addCopied(from)
}

// appendBody appends the part b of a body to the data to send. It does not copy b if b is large and stays in memory until it is
// sent, unless o is flat.
func (o *Out) appendBody(b []byte, stays bool) {
	if o.flat || !stays || len(b) <= copied {
		o.append(b)
		return
	}
	o.parts, o.grows = append(o.parts, b), false
	o.size += len(b)
}

// Parts returns the pieces that are left to send, in order; none if o is flat: then Bytes has everything. The result is valid until
// Sent is called.
func (o *Out) Parts() [][]byte { return o.parts }

// Sent removes the first n bytes from the data, because they were sent. If o is flat, it only reduces Size: Bytes stays.
func (o *Out) Sent(n int) {
	o.size -= n
	done := 0
	for ; done < len(o.parts) && n >= len(o.parts[done]); done++ {
		n -= len(o.parts[done])
	}
	o.parts = slices.Delete(o.parts, 0, done)
	if len(o.parts) > 0 {
		o.parts[0] = o.parts[0][n:]
	}
}
