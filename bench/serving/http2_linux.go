package main

import (
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"
)

// The frames of RFC 9113 that the lean generator knows, and their flags.
const (
	frameData, frameHeaders, frameReset, frameSettings, framePing, frameGoAway, frameWindow = 0, 1, 3, 4, 6, 7, 8

	flagEndStream, flagAck, flagEndHeaders, flagPadded = 1, 1, 4, 8

	widest = 1<<31 - 1 // window
)

func appendFrame(b []byte, kind, flags byte, stream uint32, payload ...byte) []byte {
	b = append(b, byte(len(payload)>>16), byte(len(payload)>>8), byte(len(payload)), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// runHTTP2 does the job over HTTP/2 with TLS, a goroutine for each connection. Of answers it
// reads frames, and compares the bytes of each body with what it ought to be.
func (l *lean) runHTTP2() error {
	done := make(chan *leanHTTP2, l.Connections)
	var begin time.Time
	connected := make(chan error, l.Connections)
	ready := make(chan struct{}) // closed when all are connected, and begin is set
	for i := range l.Connections {
		go func() {
			c := &leanHTTP2{leanJob: &l.leanJob, next: i * len(l.Order) / l.Connections, streams: make([]leanStream, 0, l.Streams+1), took: make([]uint32, 0, 1<<16)}
			c.err = c.connect()
			connected <- c.err
			if <-ready; c.err == nil {
				c.err = c.run(begin.Add(l.Duration))
				c.conn.Close()
			}
			done <- c
		}()
	}
	for range l.Connections {
		<-connected
	}
	begin = time.Now()
	close(ready)
	var errs []error
	for range l.Connections {
		c := <-done
		errs = append(errs, c.err)
		l.turn.Requests += int64(len(c.took))
		l.turn.Bytes += c.bytes
		l.took = append(l.took, c.took...)
	}
	l.turn.Took = time.Since(begin)
	return errors.Join(errs...)
}

// A leanHTTP2 is a connection of the lean generator.
type leanHTTP2 struct {
	*leanJob
	conn    net.Conn
	next    int // in Order
	id      uint32
	streams []leanStream // that are open
	out     []byte
	credit  int // bytes that the server's window is short of
	took    []uint32
	bytes   int64
	err     error
}

type leanStream struct {
	id    uint32
	left  int // bytes of the body that are still to come
	first bool
	start time.Time
}

func (c *leanHTTP2) connect() error {
	conn, err := tls.Dial("tcp", c.Address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // on loopback, with a certificate of our own
	if err != nil {
		return err
	}
	c.conn = conn
	return nil
}

func (c *leanHTTP2) run(end time.Time) error {
	if err := c.conn.SetDeadline(end.Add(10 * time.Second)); err != nil {
		return err
	}
	c.out = append(c.out, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
	c.out = appendFrame(c.out, frameSettings, 0, 0, 0, 2, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff) // no pushes, windows as wide as can be
	c.out = appendFrame(c.out, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, widest-65535)...)
	c.id = 1
	c.out = appendFrame(c.out, frameHeaders, flagEndStream|flagEndHeaders, 1, c.First...)
	c.streams = append(c.streams, leanStream{id: 1, first: true})
	buffer, n := make([]byte, 128<<10), 0
	for {
		if len(c.out) > 0 {
			if _, err := c.conn.Write(c.out); err != nil {
				return err
			}
			c.out = c.out[:0]
		}
		got, err := c.conn.Read(buffer[n:])
		if err != nil {
			return err
		}
		now := time.Now()
		if now.After(end) {
			return nil
		}
		n += got
		c.bytes += int64(got)
		rest := buffer[:n]
		for len(rest) >= 9 {
			length := int(rest[0])<<16 | int(rest[1])<<8 | int(rest[2])
			if len(rest) < 9+length {
				break
			}
			if err := c.frame(rest[3], rest[4], binary.BigEndian.Uint32(rest[5:]), rest[9:9+length], now); err != nil {
				return err
			}
			rest = rest[9+length:]
		}
		n = copy(buffer, rest)
	}
}

// frame takes a whole frame; those of 16 KB, which is the most that a server may send here, fit.
func (c *leanHTTP2) frame(kind, flags byte, stream uint32, payload []byte, now time.Time) error {
	switch kind {
	case frameData:
		if c.credit += len(payload); c.credit > widest/2 {
			c.out = appendFrame(c.out, frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(c.credit))...)
			c.credit = 0
		}
		if flags&flagPadded != 0 {
			return errors.New("a frame is padded")
		}
		return c.received(stream, len(payload), flags&flagEndStream != 0, now)
	case frameHeaders:
		return c.received(stream, 0, flags&flagEndStream != 0, now)
	case frameSettings:
		if flags&flagAck == 0 {
			c.out = appendFrame(c.out, frameSettings, flagAck, 0)
		}
	case framePing:
		if flags&flagAck == 0 {
			c.out = appendFrame(c.out, framePing, flagAck, 0, payload...)
		}
	case frameReset, frameGoAway:
		return fmt.Errorf("the server ended stream %d or the connection: frame %d, %x", stream, kind, payload)
	}
	return nil
}

// received counts bytes of a stream's body, and goes on with the next request after the last.
func (c *leanHTTP2) received(id uint32, n int, ended bool, now time.Time) error {
	at := 0
	for at < len(c.streams) && c.streams[at].id != id {
		at++
	}
	if at == len(c.streams) {
		return fmt.Errorf("an answer on stream %d, which is not open", id)
	}
	s := &c.streams[at]
	s.left -= n
	if !ended {
		return nil
	}
	if s.left != 0 && !s.first {
		return fmt.Errorf("an answer is %d bytes longer than when it was compared", -s.left)
	}
	if !s.first {
		c.took = append(c.took, uint32(now.Sub(s.start).Microseconds()))
	}
	c.streams[at] = c.streams[len(c.streams)-1]
	c.streams = c.streams[:len(c.streams)-1]
	for len(c.streams) < c.Streams {
		q := c.Order[c.next]
		if c.next++; c.next == len(c.Order) {
			c.next = 0
		}
		c.id += 2
		c.out = appendFrame(c.out, frameHeaders, flagEndStream|flagEndHeaders, c.id, c.Requests[q]...)
		c.streams = append(c.streams, leanStream{id: c.id, left: c.Lengths[q], start: now})
	}
	return nil
}
