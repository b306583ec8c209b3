package main

import (
	"bytes"
	"encoding/gob"
	"net"
	"net/http"
	"testing"
	"time"
)

func TestBare(t *testing.T) {
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("0123456789abcdef"), 512<<10)
	response := append([]byte("HTTP/1.1 200 OK\r\nContent-Length: 8388608\r\n\r\n"), body...)
	var in bytes.Buffer
	if err := gob.NewEncoder(&in).Encode(bareJob{Address: address, Responses: map[string][]byte{"/large": response}}); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error, 1)
	go func() { failed <- runBare(&in) }() // until the tests end
	for {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			break
		}
		select {
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	conn, err := dial(t.Context(), address, false)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.close()
	for range 3 {
		a, err := conn.ask(request{Method: http.MethodGet, Path: "/large"}, validators{}, false, chrome)
		if err != nil || !bytes.Equal(a.body, body) {
			t.Fatalf("the bare server responds with %v", err)
		}
	}
	if _, err := conn.ask(request{Method: http.MethodGet, Path: "/other"}, validators{}, false, chrome); err == nil {
		t.Error("the bare server responds to a path that it has no response for")
	}
}
