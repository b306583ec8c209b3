package lane

import (
	"net"
	"os"
	"sync"
	"syscall"
)

// A limited listener has so many connections open at a time. Unlike netutil's it leaves
// them TCP connections, so that an answer can be written in parts with one system call,
// and on Linux it can give them away as bare descriptors.
type limited struct {
	*net.TCPListener
	places chan struct{} // has one for each connection; nil where any number may be open
	closed chan struct{}
	once   sync.Once

	// The same socket, for acceptDescriptor: what package net has does not wait.
	file *os.File
	raw  syscall.RawConn
}

// Limit returns a listener that has no more than most connections of l open at a time,
// where that is not 0; the others wait in the system's queue.
func Limit(l *net.TCPListener, most int) net.Listener {
	limited := &limited{TCPListener: l, closed: make(chan struct{})}
	if most > 0 {
		limited.places = make(chan struct{}, most)
	}
	return limited
}

func (l *limited) enter() error {
	if l.places == nil {
		return nil
	}
	select {
	case l.places <- struct{}{}:
		return nil
	case <-l.closed:
		return net.ErrClosed
	}
}

func (l *limited) leave() {
	if l.places != nil {
		<-l.places
	}
}

func (l *limited) Accept() (net.Conn, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	c, err := l.AcceptTCP()
	if err != nil {
		l.leave()
		return nil, err
	}
	return &limitedConn{TCPConn: c, of: l}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() {
		close(l.closed)
		if l.file != nil {
			_ = l.file.Close()
		}
	})
	return l.TCPListener.Close()
}

type limitedConn struct {
	*net.TCPConn
	of   *limited
	once sync.Once
}

func (c *limitedConn) Close() error {
	err := c.TCPConn.Close()
	c.once.Do(c.of.leave)
	return err
}
