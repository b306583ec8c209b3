package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/internal/client"
)

func TestLongestIdleIsClosed(t *testing.T) {
	c := NewHTTPServer(nil, HTTPOptions{MaxConnections: 4}).connections // closes beyond 3
	var ours []net.Conn
	open := func(states ...http.ConnState) net.Conn {
		client, conn := net.Pipe()
		ours = append(ours, client)
		for _, state := range states {
			c.trackState(conn, state)
		}
		return conn
	}
	first := open(http.StateNew, http.StateActive, http.StateIdle)
	second := open(http.StateNew, http.StateActive, http.StateIdle)
	c.trackState(first, http.StateActive)
	c.trackState(first, http.StateIdle) // so that the second waits longest
	open(http.StateNew)
	if got := c.countBusy(); got != 1 {
		t.Errorf("%d connections are busy, want 1", got)
	}
	open(http.StateNew)
	if _, err := ours[1].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that is idle for longest was read with %v, want %v", err, io.EOF)
	}
	c.trackState(second, http.StateClosed)
	if len(c.open) != 3 || c.idle.Len() != 1 {
		t.Errorf("%d are open and %d idle, want 3 and 1", len(c.open), c.idle.Len())
	}
	// A connection that has just become idle is closed too, if it is the only one.
	last := open(http.StateNew)
	c.trackState(last, http.StateActive)
	if _, err := ours[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other idle connection was read with %v, want %v", err, io.EOF)
	}
	c.trackState(last, http.StateIdle)
	if _, err := ours[4].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that became idle was read with %v, want %v", err, io.EOF)
	}
}

// A byte of a next request does not keep a connection open that keeps others out.
func TestByteKeepsNoOtherOut(t *testing.T) {
	c := NewHTTPServer(nil, HTTPOptions{MaxConnections: 2}).connections // closes beyond 1
	client, conn := net.Pipe()
	for _, state := range []http.ConnState{http.StateNew, http.StateActive, http.StateIdle} {
		c.trackState(conn, state)
	}
	c.requestBegins(conn)
	if got := c.countBusy(); got != 1 {
		t.Errorf("%d connections are busy, want 1", got)
	}
	_, other := net.Pipe()
	c.trackState(other, http.StateNew)
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection with a byte was read with %v, want %v", err, io.EOF)
	}
	c.trackState(conn, http.StateClosed)
	if len(c.open) != 1 || c.idle.Len() != 0 {
		t.Errorf("%d are open and %d idle, want 1 and 0", len(c.open), c.idle.Len())
	}
}

// What net/http answers hurries as the lane does where connections are scarce.
func TestRequestsHurry(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0", 8)
	if err != nil {
		t.Fatal(err)
	}
	s := NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, client.IsScarce(r.Context()))
	}), HTTPOptions{Proxies: new(client.Proxies)})
	done := make(chan error)
	go func() { done <- s.Serve(l) }()
	defer func() {
		s.Close()
		<-done
	}()
	for i, want := range []string{"false", "false", "false", "false", "false", "false", "true"} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r.Body); string(got) != want || err != nil {
			t.Errorf("with %d of 8 connections: it has to hurry: %s, %v; want %s", i+1, got, err, want)
		}
	}
}
