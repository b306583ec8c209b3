package app

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// A node that asks again keeps its connection, and one that asks once does not. An answer that is no answer, or larger than it
// may be, is an error that says so.
func TestAsk(t *testing.T) {
	var connections atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		question, _ := io.ReadAll(r.Body)
		if string(question) == "no" {
			http.Error(w, "not this one", http.StatusTeapot)
			return
		}
		w.Write(question)
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	for keep, want := range map[bool]int32{true: 1, false: 4} {
		connections.Store(0)
		client := new(clusterNode).newNodeClient(keep)
		for question, want := range map[string]string{"": "", "hello": "hello", "hello there": "more than 5 bytes", "no": "responds 418 I'm a teapot: not this one"} {
			said, err := postToLeader(t.Context(), client, server.URL, strings.NewReader(question), 5)
			if got := string(said); err == nil && got != want || err != nil && !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%q gets %q, %v; want %q", question, got, err, want)
			}
		}
		client.CloseIdleConnections()
		if got := connections.Load(); got != want {
			t.Errorf("%d connections, want %d, if they are kept: %v", got, want, keep)
		}
	}
}
