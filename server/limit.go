package server

import (
	"net"
	"sync"
)

// A limitedListener has so many connections open at a time. Unlike netutil's it leaves
// them TCP connections, so that an answer can be written in parts with one system call.
type limitedListener struct {
	*net.TCPListener
	places chan struct{} // has one for each connection
	closed chan struct{}
	once   sync.Once
}

func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.AcceptTCP()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{TCPConn: c, places: l.places}, nil
}

func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.TCPListener.Close()
}

type limitedConn struct {
	*net.TCPConn
	places chan struct{}
	once   sync.Once
}

func (c *limitedConn) Close() error {
	err := c.TCPConn.Close()
	c.once.Do(func() { <-c.places })
	return err
}
