package app

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/server"
)

func TestStopTellsWhoWasCutOff(t *testing.T) {
	var log strings.Builder
	logger := slog.New(slog.NewTextHandler(&log, nil))
	begun := make(chan struct{})
	s := server.NewHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}), server.HTTPOptions{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	<-begun
	stopServer(s, 0, logger)
	if got, want := log.String(), `msg="cut off clients that were still being sent to" clients=1 after=0s`; !strings.Contains(got, want) {
		t.Errorf("the log is %q, want %s in it", got, want)
	}
}
