package server

import (
	"io"
	"net"
	"strings"
	"testing"
)

// A pipe is a connection as the lane hands it over.
type pipe struct{ net.Conn }

func (pipe) MarkAsked() {}

func (pipe) CloseWrite() error { return nil }

// TestFirstByteOfTheNextRequest has net/http read the first byte of a request while it still sends the answer before, and then refuse
// that request.
func TestFirstByteOfTheNextRequest(t *testing.T) {
	here, client := net.Pipe()
	c := &refusingConn{handedOff: pipe{here}, connections: newConnections()}
	c.turn.Store(answering)
	answer := make(chan string, 1)
	go func() {
		_, err := io.WriteString(client, "HEAD /libraries/% HTTP/1.1\r\nHost: x\r\n\r\n")
		text := make([]byte, 4096)
		n := 0
		if err == nil {
			n, err = client.Read(text)
		}
		if err != nil {
			t.Error(err)
		}
		answer <- string(text[:n])
		client.Close()
	}()
	for i, size := range []int{1, 4096} {
		if i == 1 {
			c.awaitRequest()
		}
		p := make([]byte, size)
		if _, err := c.Read(p); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			clear(p) // net/http's memory is another connection's as soon as this one has ended
		}
	}
	if _, err := c.Write([]byte("HTTP/1.1 400 Bad Request" + refusalFields + "400 Bad Request")); err != nil {
		t.Fatal(err)
	}
	if head, body, ok := strings.Cut(<-answer, "\r\n\r\n"); !ok || !strings.HasPrefix(head, "HTTP/1.1 404 ") || body != "" {
		t.Errorf("%s\nand a body: %q", head, body)
	}
}
