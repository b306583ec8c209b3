package lane

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// A handler that has given itself an hour keeps it, whatever other streams of the client get meanwhile.
func TestOthersDoNotShortenADeadline(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	begun, goOn, left := make(chan bool), make(chan bool), make(chan time.Duration, 1)
	l := New(inner, Options{
		Clear: true, Context: context.Background(), HeaderBytes: 32 << 10, Logger: slog.New(slog.DiscardHandler), HeaderTimeout: time.Minute, IdleTimeout: time.Minute,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute, StallTimeout: time.Minute,
		Requests: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/other" {
				io.WriteString(w, "other")
				return
			}
			c, h := http.NewResponseController(w), w.(*handled)
			if err := c.SetWriteDeadline(time.Now().Add(time.Hour)); err != nil {
				t.Error(err)
			}
			begun <- true
			<-goOn
			io.WriteString(w, "long")
			if err := c.Flush(); err != nil {
				t.Error(err)
			}
			h.m.mu.Lock()
			defer h.m.mu.Unlock()
			left <- time.Until(h.writeTime.at)
		}),
	})
	t.Cleanup(func() {
		l.Abort()
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(path string) {
		r, err := client.Get("http://" + inner.Addr().String() + path)
		if err != nil {
			t.Error(err)
			return
		}
		defer r.Body.Close()
		if _, err := io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
	}
	done := make(chan bool)
	go func() { get("/long"); close(done) }()
	<-begun
	get("/other")
	goOn <- true
	if d := <-left; d < 30*time.Minute {
		t.Errorf("%v of the hour are left", d)
	}
	<-done
}
