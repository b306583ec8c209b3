package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
)

// What net/http answers hurries as the lane does where connections are scarce.
func TestRequestsHurry(t *testing.T) {
	socket, err := OpenSocket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := LimitConnections(8, socket)[0]
	s := NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, answers.IsScarce(r.Context()))
	}), HTTPOptions{Proxies: new(requests.Proxies)})
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
