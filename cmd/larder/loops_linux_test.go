package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// In the real program connections wait for their next request on event loops, and keep no goroutine.
func TestConnectionsWaitOnLoops(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	stockNoise(t, data, 1, 1000)
	s := startServe(t, data, nil)
	for range 20 {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.public, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET /ajax/libs/noise/1.0.0/0.bin HTTP/1.1\r\nHost: localhost\r\n\r\n") //nolint:errcheck // reading tells
		answer, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", answer, err)
		}
		if _, err := io.Copy(io.Discard, answer.Body); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := http.Get(s.private + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	stacks, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(stacks), "lane.(*loop).run") {
		t.Errorf("there is no event loop:\n%s", stacks)
	}
	if strings.Contains(string(stacks), "lane.(*conn).serve+") {
		t.Errorf("connections have goroutines while they wait:\n%s", stacks)
	}
}
