package lane

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/larder-cdn/larder/internal/requests"
)

// This file has what comes before a connection is started: the PROXY protocol, in which a proxy says first whose connection it passes on
// (https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt), and the delay for clients that churn.

const (
	// leastIntroduction is the length of the shortest of version 1, and no more than the fixed part of version 2.
	leastIntroduction = len("PROXY UNKNOWN\r\n")
	// longestLine is that of version 1.
	longestLine = 107
	// fixedPart is that of version 2, and longestRest what may come after it: addresses, and what proxies add, such as
	// the fields of certificates.
	fixedPart   = 16
	longestRest = 4 << 10
)

var errIntroduction = errors.New("lane: a trusted proxy does not begin with the PROXY protocol")

// readProxyHeader reads a header of the PROXY protocol and returns the client's address, nil if the connection is the proxy's own
// or the header names no TCP address. It reads no byte beyond the header. The error is [errIntroduction] for another beginning or a
// malformed header, else that of reading.
func readProxyHeader(r io.Reader) (*net.TCPAddr, error) {
	b := make([]byte, leastIntroduction, longestLine)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	more := func(n int) error {
		b = append(b, make([]byte, n)...)
		_, err := io.ReadFull(r, b[len(b)-n:])
		return err
	}
	switch {
	case bytes.HasPrefix(b, proxyproto.SIGV2):
		if err := more(fixedPart - leastIntroduction); err != nil {
			return nil, err
		}
		rest := int(binary.BigEndian.Uint16(b[fixedPart-2:]))
		if rest > longestRest {
			return nil, fmt.Errorf("%w: %d bytes are too many", errIntroduction, rest)
		}
		if err := more(rest); err != nil {
			return nil, err
		}
	case bytes.HasPrefix(b, proxyproto.SIGV1):
		for !bytes.HasSuffix(b, []byte("\r\n")) {
			if len(b) == longestLine {
				return nil, errIntroduction
			}
			if err := more(1); err != nil {
				return nil, err
			}
		}
	default:
		return nil, errIntroduction
	}
	header, err := proxyproto.Read(bufio.NewReader(bytes.NewReader(b)))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errIntroduction, err)
	}
	from, ok := header.SourceAddr.(*net.TCPAddr)
	if header.Command.IsLocal() || !ok || from == nil {
		return nil, nil
	}
	addr, ok := netip.AddrFromSlice(from.IP)
	if !ok {
		return nil, errIntroduction
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr.Unmap(), uint16(from.Port))), nil
}

// startLater starts a new connection that cannot be served at once, in its own goroutine: after delay if that is more than 0, else
// after a trusted proxy has sent the header of the PROXY protocol. If that fails, it closes the connection. It logs why it refused
// a proxy, unless the connection was closed or its client has too many.
func (l *Listener) startLater(c *conn, delay time.Duration) {
	err := l.waitToStart(c, delay)
	if err != nil {
		if delay == 0 && !errors.Is(err, net.ErrClosed) {
			l.o.Logger.Warn("server: a trusted proxy was refused", "err", err)
		}
		l.mu.Lock()
		delete(l.arriving, c)
		l.mu.Unlock()
		c.close()
		return
	}
	l.start(c)
}

// waitToStart waits for delay if it is more than 0, else it reads the header of the PROXY protocol. It gives a connection without
// a socket one of package net meanwhile. It returns an error if the connection has to be closed.
func (l *Listener) waitToStart(c *conn, delay time.Duration) error {
	bare := c.socket == nil
	if bare {
		l.mu.Lock()
		c.loop = l.nextLoop()
		l.mu.Unlock()
		if err := c.moveToPoller(); err != nil {
			return err
		}
	}
	prepare := func() error { return l.readProxied(c) }
	if delay > 0 {
		prepare = func() error { return waitWhileOpen(c.socket, delay) }
	}
	if err := prepare(); err != nil {
		return err
	}
	_ = c.socket.SetReadDeadline(time.Time{})
	if bare {
		fd, err := c.socket.(*limitedConn).takeDescriptor()
		if err != nil {
			return err
		}
		c.socket, c.fd = nil, fd
	}
	c.opened = time.Now()
	return nil
}

// readProxied reads the header of the PROXY protocol within the deadline for the handshake, records the address that it names, and
// counts the connection for that client. It does neither, and returns nil, for a header that names no client. It returns net.ErrClosed
// if the client has too many connections.
func (l *Listener) readProxied(c *conn) error {
	_ = c.socket.SetReadDeadline(l.deadlines.At(Handshake, c.opened, time.Time{}))
	from, err := readProxyHeader(c.socket)
	if err != nil || from == nil {
		return err
	}
	c.place.remote = from
	if !l.source.room.moveToClient(c.place, requests.ClientAt(from.AddrPort().Addr())) {
		return net.ErrClosed // the client has too many
	}
	return nil
}
