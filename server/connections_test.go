package server

import (
	"io"
	"net"
	"net/http"
	"testing"
)

func TestLongestIdleIsClosed(t *testing.T) {
	c := NewHTTPServer(nil, HTTPOptions{MaxConnections: 4}).connections // closes beyond 3
	var ours []net.Conn
	open := func(states ...http.ConnState) net.Conn {
		client, conn := net.Pipe()
		ours = append(ours, client)
		for _, state := range states {
			c.observe(conn, state)
		}
		return conn
	}
	first := open(http.StateNew, http.StateActive, http.StateIdle)
	second := open(http.StateNew, http.StateActive, http.StateIdle)
	c.observe(first, http.StateActive)
	c.observe(first, http.StateIdle) // so that the second waits longest
	open(http.StateNew)
	if got := c.busy(); got != 1 {
		t.Errorf("%d connections are busy, want 1", got)
	}
	open(http.StateNew)
	if _, err := ours[1].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that is idle for longest was read with %v, want %v", err, io.EOF)
	}
	c.observe(second, http.StateClosed)
	if len(c.open) != 3 || c.idle.Len() != 1 {
		t.Errorf("%d are open and %d idle, want 3 and 1", len(c.open), c.idle.Len())
	}
	// A connection that has just become idle is closed too, if it is the only one.
	last := open(http.StateNew)
	c.observe(last, http.StateActive)
	if _, err := ours[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the other idle connection was read with %v, want %v", err, io.EOF)
	}
	c.observe(last, http.StateIdle)
	if _, err := ours[4].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the connection that became idle was read with %v, want %v", err, io.EOF)
	}
}
