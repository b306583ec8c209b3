package testkit

import (
	"context"
	"net"
	"net/http"
)

// SpeakHTTP2 sends the preface of HTTP/2 over conn, and returns a client that sends requests over it. conn is encrypted already if it
// should be.
func SpeakHTTP2(conn net.Conn) (*http.ClientConn, error) {
	transport := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Protocols:   new(http.Protocols),
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	return transport.NewClientConn(context.Background(), "http", "example.com:80") // dials conn
}
