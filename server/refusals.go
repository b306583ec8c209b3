package server

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// A request that net/http cannot read never reaches a handler: net/http writes a
// few fixed lines to the connection and closes it. Clients of the API must be able
// to rely on one shape of errors, so a refusingConn puts an answer of ours in the
// place of those lines.
//
// They come in a single Write, and first after a request began, where an answer of a
// handler always has more header fields. So nothing that a handler sends, not even a
// file that has the same lines in it, is taken for one.
//
// A connection with HTTP/2 over TLS must reach net/http as *tls.Conn, and has no such
// lines.

// refusingListener wraps what speaks HTTP/1.
type refusingListener struct{ net.Listener }

func (l refusingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	switch encrypted := c.(type) {
	case *tls.Conn:
		return c, nil
	case interface{ ConnectionState() tls.ConnectionState }:
		return &refusingTLSConn{refusingConn{Conn: c}, encrypted.ConnectionState()}, nil
	}
	return &refusingConn{Conn: c}, nil
}

// A refusingTLSConn tells net/http that there is TLS.
type refusingTLSConn struct {
	refusingConn
	state tls.ConnectionState
}

func (c *refusingTLSConn) ConnectionState() tls.ConnectionState { return c.state }

type refusingConn struct {
	net.Conn
	// turn is atomic because HTTP/2 writes and tells its states from different
	// goroutines.
	turn atomic.Uint32
}

// The values of refusingConn.turn.
const (
	requesting uint32 = iota // nothing was written since the last answer ended
	answering
	multiplexed // it is HTTP/2, where net/http writes no such lines
)

// idle is called when an answer has ended.
func (c *refusingConn) idle() { c.turn.CompareAndSwap(answering, requesting) }

func (c *refusingConn) Write(p []byte) (int, error) {
	if c.turn.Load() == requesting {
		return c.begin(p)
	}
	return c.Conn.Write(p)
}

// begin writes the first bytes of an answer.
func (c *refusingConn) begin(p []byte) (int, error) {
	if !bytes.HasPrefix(p, []byte("HTTP/1.")) {
		c.turn.Store(multiplexed)
		return c.Conn.Write(p)
	}
	c.turn.Store(answering)
	f, ok := refusal(p)
	if !ok {
		return c.Conn.Write(p)
	}
	if _, err := c.Conn.Write(f.raw(time.Now())); err != nil {
		return 0, err
	}
	c.linger()
	return len(p), nil
}

// CloseWrite is what net/http calls before it closes a connection that it has not
// read to the end.
func (c *refusingConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// A refused client may still be sending what it was refused for. If the connection
// were closed then, its system would answer what is under way with a reset, and the
// client might never see why (RFC 9112 §9.6). So all that is read and thrown away
// first, within these bounds.
const (
	lingerBytes   = 4 << 20
	lingerSilence = time.Second     // without a byte
	lingerTime    = 5 * time.Second // in all
)

func (c *refusingConn) linger() {
	// Who waits for the end of the connection has it now.
	_ = c.CloseWrite()
	end := time.Now().Add(lingerTime)
	rest := make([]byte, 16<<10)
	for read := 0; read < lingerBytes; {
		deadline := time.Now().Add(lingerSilence)
		if end.Before(deadline) {
			deadline = end
		}
		if c.SetReadDeadline(deadline) != nil {
			return
		}
		n, err := c.Read(rest)
		if err != nil {
			return
		}
		read += n
	}
}

// refusalFields is how net/http's refusals go on after their status line.
const refusalFields = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// refusal returns our answer for one that net/http writes without a handler.
func refusal(p []byte) (failure, bool) {
	const version = len("HTTP/1.1 ")
	if len(p) < version+len("400 ") || p[version] != '4' && p[version] != '5' {
		return failure{}, false
	}
	status, err := strconv.Atoi(string(p[version : version+3]))
	if err != nil {
		return failure{}, false
	}
	end := bytes.IndexByte(p, '\r')
	if end < 0 {
		return failure{}, false
	}
	if bytes.HasPrefix(p[end:], []byte(refusalFields)) {
		_, reason, _ := bytes.Cut(p[:end], []byte(": "))
		return failure{status: status, message: refusalMessage(status, string(reason)), cache: noStore}, true
	}
	// To an Expect field that it does not know, net/http answers through its own
	// response writer. No handler of ours answers 417.
	if status == http.StatusExpectationFailed {
		return failure{status: status, message: refusalMessage(status, ""), cache: noStore}, true
	}
	return failure{}, false
}

// refusalMessage says what is wrong; reason is net/http's own word on it, if any.
func refusalMessage(status int, reason string) string {
	switch {
	case status == http.StatusRequestHeaderFieldsTooLarge:
		return "The URL and the headers together are too large. Send a shorter URL, or fewer and shorter headers."
	case status == http.StatusNotImplemented:
		return `The Transfer-Encoding is not known. Send "chunked", or none.`
	case status == http.StatusHTTPVersionNotSupported:
		return "The version of HTTP is not supported. Use HTTP/1.1 or HTTP/2."
	case status == http.StatusExpectationFailed:
		return `The Expect field is not known. Send "100-continue", or none.`
	case reason != "":
		return "The request is malformed: " + reason + "."
	}
	return "The request is malformed: its first line or a header cannot be read as HTTP."
}

// raw returns the failure as it goes over a connection that ends after it.
func (f failure) raw(now time.Time) []byte {
	body := f.json()
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", f.status, http.StatusText(f.status))
	fields := append([]*field{
		newField("Date", now.UTC().Format(http.TimeFormat)),
		newField("Content-Type", "application/json"),
		newField("Content-Length", strconv.Itoa(len(body))),
		newField("Cache-Control", f.cache),
		newField("Connection", "close"),
	}, crossOrigin...)
	for _, field := range fields {
		b.WriteString(field.name + ": " + field.value[0] + "\r\n")
	}
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}
