package waitingroom

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane"
)

// fast is a lane that answers everything.
type fast struct{ head lane.Head }

func (f fast) Answer(x *lane.Exchange) bool {
	x.Send(f.head, []byte("lane"), nil)
	return true
}

// TestLane holds the fast lane to never answering for what a room covers, whatever a path is written like.
func TestLane(t *testing.T) {
	h := open(t, "- {name: a, path: /hot/, total_active_users: 1, new_users_per_minute: 1}\n- {name: b, host: shop.example, total_active_users: 1, new_users_per_minute: 1}\n")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	head := lane.NewHead(http.StatusOK, answers.Field{Name: "Content-Length", Value: "4"})
	front := lane.New(listener, lane.Options{
		Handler: h.rooms.Lane(fast{head}), HeaderTimeout: time.Minute, IdleTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
	})
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "net/http") })}
	go server.Serve(front) //nolint:errcheck // it ends with Close
	t.Cleanup(func() { server.Close(); front.Close() })
	for target, want := range map[string]string{
		"/hot/a": "net/http", "/hot/a?b": "net/http", "/hotter": "lane", "/%68ot/a": "net/http", "/x/../hot/a": "net/http", "//hot/a": "net/http", "/": "lane", "/x?/hot/": "lane",
	} {
		for host, want := range map[string]string{
			"": want, "SHOP.example:80": "net/http", "cdn.example\r\nX-Forwarded-Host: shop.example": "net/http", "cdn.example\r\nForwarded: host=shop.example": "net/http",
		} {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			if host == "" {
				host = "cdn.example"
			}
			io.WriteString(conn, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
			answer, err := io.ReadAll(conn)
			conn.Close()
			if body := string(answer[max(0, len(answer)-len(want)):]); err != nil || body != want {
				t.Errorf("%s%s: %v, %q, want %s", host, target, err, answer, want)
			}
		}
	}
}
