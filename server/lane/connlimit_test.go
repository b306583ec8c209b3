package lane_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/lane"
)

// muchToTake is a body that a client takes only if it reads.
var muchToTake = []byte(strings.Repeat("x", 8<<20))

// sender answers with little, or for /large with much.
type sender struct{}

func (sender) Answer(x *lane.Exchange) bool {
	body := []byte("ok")
	if x.Path == "/large" {
		body = muchToTake
	}
	x.Send(lane.NewHead(200, answers.Field{Name: "Content-Length", Value: fmt.Sprint(len(body))}), body, nil)
	return true
}

// roomFor serves with that many places.
func roomFor(t *testing.T, most int, trusted ...string) string {
	t.Helper()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	proxies, err := requests.NewProxies(trusted, "")
	if err != nil {
		t.Fatal(err)
	}
	l := lane.New(lane.Limit(tcp.(*net.TCPListener), most), lane.Options{
		Handler: sender{}, Logger: slog.New(slog.DiscardHandler), Proxies: proxies,
		HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
	})
	t.Cleanup(l.Abort)
	go func() { // net/http closes what was cut in the middle of a request
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			c.Close()
		}
	}()
	return tcp.Addr().String()
}

// from connects from one of the loopback's addresses, and sends something.
func from(t *testing.T, source, address, sent string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	c, err := d.Dial("tcp", address)
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Skip("the loopback has one address only:", err)
	}
	if err != nil { // it was cut before the client heard that it is there
		c, _ = net.Pipe()
		c.Close()
		return c
	}
	t.Cleanup(func() { c.Close() })
	io.WriteString(c, sent)
	return c
}

const small = "GET /small HTTP/1.1\r\nHost: larder.example\r\n\r\n"

// isAnswered reports whether the client has an answer.
func isAnswered(c net.Conn) bool {
	b := make([]byte, 8)
	_, err := io.ReadFull(c, b)
	return err == nil && string(b) == "HTTP/1.1"
}

// TestGreedyClientGivesWay has one client take more connections than there are places, in each way, and another come
// for each of them.
func TestGreedyClientGivesWay(t *testing.T) {
	const most = 50
	for what, sent := range map[string]string{
		"fresh": "", "half a head": "GET /small HTTP/1.1\r\nHo", "idle": small, "half a later head": small + "GET /small HTTP/1.1\r\nHo", "sending": strings.Replace(small, "/small", "/large", 1),
	} {
		t.Run(what, func(t *testing.T) {
			address := roomFor(t, most)
			for range most * 3 / 2 {
				from(t, "127.0.0.2", address, sent)
			}
			for range most / 2 {
				if !isAnswered(from(t, "127.0.0.3", address, small)) {
					t.Fatal("a client with few connections is not answered")
				}
			}
		})
	}
}

// TestOneClientHasTheRoom has one client be served for as long as no other wants the room.
func TestOneClientHasTheRoom(t *testing.T) {
	const most = 50
	address := roomFor(t, most)
	var all []net.Conn
	for range most * 9 / 10 {
		all = append(all, from(t, "127.0.0.2", address, ""))
	}
	for i, c := range all {
		if io.WriteString(c, small); !isAnswered(c) {
			t.Fatalf("connection %d of %d is not answered", i+1, len(all))
		}
	}
	// Beyond that idle connections make room.
	for range most {
		if !isAnswered(from(t, "127.0.0.2", address, small)) {
			t.Fatal("idle connections of the same client keep it out")
		}
	}
}

// TestGreedyClientBehindHTTPProxy has one client have a trusted proxy open more connections than there are places.
func TestGreedyClientBehindHTTPProxy(t *testing.T) {
	const most = 50
	address := roomFor(t, most, "127.0.0.4")
	ask := func(client, path string) net.Conn {
		return from(t, "127.0.0.4", address, "GET "+path+" HTTP/1.1\r\nHost: larder.example\r\nX-Forwarded-For: "+client+"\r\n\r\n")
	}
	for range most * 3 / 2 {
		isAnswered(ask("198.51.100.7", "/large")) // or closed
	}
	for range most / 2 {
		if !isAnswered(ask("198.51.100.8", "/small")) {
			t.Fatal("a client with few requests is not answered")
		}
	}
}

// TestTrustedProxyIsNoClient has a client take all the other places. The connections of a trusted proxy, which are fewer and newer than the
// client's first ones, stay open.
func TestTrustedProxyIsNoClient(t *testing.T) {
	const most = 50
	address := roomFor(t, most, "127.0.0.4")
	for range most / 2 {
		from(t, "127.0.0.2", address, "")
	}
	var proxy []net.Conn
	for range most * 2 / 5 {
		proxy = append(proxy, from(t, "127.0.0.4", address, ""))
	}
	for range most / 5 {
		from(t, "127.0.0.2", address, "")
	}
	for range most / 10 {
		if !isAnswered(from(t, "127.0.0.3", address, small)) {
			t.Fatal("a client with few connections is not answered")
		}
	}
	for _, c := range proxy {
		if io.WriteString(c, small); !isAnswered(c) {
			t.Fatal("a connection of the trusted proxy was closed")
		}
	}
}
