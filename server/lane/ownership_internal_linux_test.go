package lane

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// accepted returns a connection of a listener that has one place, and its client.
func accepted(t *testing.T) (*conn, *net.TCPConn) {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	source := Limit(tcp.(*net.TCPListener), 1).(*limited)
	t.Cleanup(func() { source.Close() })
	if err := source.prepareListener(); err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("tcp", tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	fd, p, err := source.acceptDescriptor()
	if err != nil {
		t.Fatal(err)
	}
	loop, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(loop.close)
	l := &Listener{open: newOpenList(), none: make(chan struct{}), source: source}
	return &conn{listener: l, loop: loop, fd: fd, place: p}, client.(*net.TCPConn)
}

// A connection that the client has reset has no peer address. Its requests must not escape
// limits for an address.
func TestResetConnectionIsNotHandedOver(t *testing.T) {
	c, client := accepted(t)
	if _, err := client.Write([]byte("GET /else HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if err := client.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	client.Close()
	if err := c.moveToPoller(); err == nil {
		t.Errorf("a connection from %v is handed over", c.peerAddress())
	}
	_ = c.closeSocket()
	if n := c.listener.source.room.taken; n > 0 {
		t.Errorf("%d places are taken and have no connection", n)
	}
}

// The caller of Accept can tell a listener that was closed from one that cannot go on.
func TestAcceptDescriptorAfterClose(t *testing.T) {
	c, _ := accepted(t)
	_ = c.closeSocket()
	c.listener.source.Close()
	for range 10 { // there is a place, which it may find first
		if _, _, err := c.listener.source.acceptDescriptor(); !errors.Is(err, net.ErrClosed) {
			t.Fatalf("the error is %v, want %v", err, net.ErrClosed)
		}
	}
}

// TLS must not take what was sent in part for sent.
func TestSendingLessIsAnError(t *testing.T) {
	c, _ := accepted(t)
	defer c.closeSocket()
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4<<10); err != nil {
		t.Fatal(err)
	}
	in(closing, c)
	p := make([]byte, 16<<20)
	if n, err := (&gatherer{of: c}).Write(p); n >= len(p) || err == nil {
		t.Errorf("%d of %d bytes were written, and the error is %v", n, len(p), err)
	}
}
