package lane_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server/lane"
)

// A handler answers with what it was asked, slowly where that says so, and leaves /else to
// others.
type handler struct{}

func (handler) Answer(x *lane.Exchange) bool {
	target := strings.Clone(x.Target)
	switch target {
	case "/else":
		return false
	case "/slow":
		time.Sleep(time.Second)
	case "/panic":
		panic("no")
	case "/short":
		x.Writer().Header().Set("Content-Length", "10")
		x.Writer().WriteHeader(http.StatusOK)
		io.WriteString(x.Writer(), "five!")
		return true
	}
	length := answers.Field{Name: "Content-Length", Value: string(rune('0' + len(target)))}
	x.Send(lane.NewHead(http.StatusOK, length), []byte(target), nil)
	return true
}

type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// inBubble runs a test with a lane and a way to connect to it, where time passes at once.
func inBubble(t *testing.T, test func(t *testing.T, l *lane.Listener, connect func() net.Conn)) {
	bubble.Test(t, func(t *testing.T) {
		inner := make(pipes)
		l := lane.New(inner, lane.Options{
			Handler: handler{}, Logger: slog.New(slog.DiscardHandler),
			HeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, IdleAtEnd: time.Second, WriteTimeout: 30 * time.Second, StallTimeout: 30 * time.Second,
		})
		test(t, l, func() net.Conn {
			ours, theirs := net.Pipe()
			inner <- theirs
			return ours
		})
		l.Abort()
		close(inner)
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

func get(t *testing.T, c net.Conn, target string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r.Body); err != nil || string(body) != target {
		t.Fatalf("%s is answered with %q and %v", target, body, err)
	}
	return r
}

// wantEnd checks after which time a connection is closed.
func wantEnd(t *testing.T, c net.Conn, want time.Duration) {
	t.Helper()
	start := time.Now()
	if n, err := io.Copy(io.Discard, c); n > 0 || err != nil || time.Since(start) != want {
		t.Errorf("%d bytes and %v after %v, want the end after %v", n, err, time.Since(start), want)
	}
}

func TestSilence(t *testing.T) {
	for name, test := range map[string]struct {
		asks string
		want time.Duration
	}{
		"at first":         {"", 10 * time.Second},
		"within a request": {"GET / HTTP/1.1\r\nHost", 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
				c := connect()
				if test.asks != "" {
					io.WriteString(c, test.asks)
				}
				wantEnd(t, c, test.want)
			})
		})
	}
	t.Run("after answers", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
			c := connect()
			get(t, c, "/a")
			time.Sleep(time.Minute)
			get(t, c, "/b")
			wantEnd(t, c, 2*time.Minute)
		})
	})
	t.Run("after an answer that took long", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
			c := connect()
			get(t, c, "/slow")
			wantEnd(t, c, 2*time.Minute)
		})
	})
	t.Run("within a later request", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
			c := connect()
			get(t, c, "/a")
			time.Sleep(time.Minute)
			io.WriteString(c, "GET / HTTP/1.1\r\nHost")
			wantEnd(t, c, 10*time.Second)
		})
	})
	t.Run("that does not read", func(t *testing.T) {
		inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
			c := connect()
			io.WriteString(c, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
			time.Sleep(31 * time.Second)
			wantEnd(t, c, 0)
		})
	})
}

func TestStopEndsWhatWaitsAndFinishesTheRest(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
		fresh, asking, idle, working := connect(), connect(), connect(), connect()
		get(t, idle, "/a")
		time.AfterFunc(500*time.Millisecond, func() {
			if open, working := l.Counts(); open != 4 || working != 1 {
				t.Errorf("%d connections are open and %d of them at work, want 4 and 1", open, working)
			}
			l.Stop()
		})
		get(t, working, "/slow") // of which the head was ready before Stop
		time.Sleep(time.Second / 4)
		get(t, asking, "/a") // what was asked before the client could know
		wantEnd(t, asking, 0)
		get(t, idle, "/b")
		wantEnd(t, idle, 0)
		wantEnd(t, fresh, 10*time.Second-5*time.Second/4) // since it connected
		wantEnd(t, working, 0)
		if err := l.Wait(context.Background()); err != nil || l.Len() != 0 {
			t.Errorf("%d are open, and waiting ends with %v", l.Len(), err)
		}
		l.Close()
		if _, err := l.Accept(); err != net.ErrClosed {
			t.Errorf("Accept's error is %v, want %v", err, net.ErrClosed)
		}
	})
}

// The caller of Wait may then close what the handler uses, so nothing begins after it.
func TestAcceptedWhenItHasStopped(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		inner := make(pipes)
		l := lane.New(inner, lane.Options{Handler: handler{}, TLS: new(tls.Config), HeaderTimeout: 10 * time.Second})
		l.Stop()
		time.Sleep(time.Second)
		synctest.Wait()
		ours, theirs := net.Pipe()
		inner <- theirs
		wantEnd(t, ours, 0)
		if err := l.Wait(context.Background()); err != nil || l.Len() != 0 {
			t.Errorf("%d are open, and waiting ends with %v", l.Len(), err)
		}
		close(inner)
	})
}

func TestHandOver(t *testing.T) {
	inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
		c := connect()
		get(t, c, "/a")
		const rest = "GET /else HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\n"
		go io.WriteString(c, "GET /b HTTP/1.1\r\nHost: x\r\n\r\n"+rest)
		r, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || r.ContentLength != 2 {
			t.Fatalf("%v and %v", r, err)
		}
		io.Copy(io.Discard, r.Body)
		handed, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(rest))
		if _, err := io.ReadFull(handed, got); err != nil || string(got) != rest {
			t.Errorf("%q and %v are handed over, want %q", got, err, rest)
		}
		go io.WriteString(c, "more")
		if n, err := handed.Read(got); err != nil || string(got[:n]) != "more" {
			t.Errorf("then %q and %v", got[:n], err)
		}
		if l.Len() != 0 {
			t.Error("it is still the lane's")
		}
		time.Sleep(time.Hour) // no deadline is left
		go io.WriteString(c, "late")
		if n, err := handed.Read(got); err != nil || string(got[:n]) != "late" {
			t.Errorf("later %q and %v", got[:n], err)
		}
		handed.Close()
	})
}

// A client must not take the next answer for the rest of one that ended early.
func TestAnswerThatEndsEarlyEndsTheConnection(t *testing.T) {
	for _, target := range []string{"/short", "/panic"} {
		inBubble(t, func(t *testing.T, l *lane.Listener, connect func() net.Conn) {
			c := connect()
			go io.WriteString(c, "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\n")
			if all, err := io.ReadAll(c); err != nil || strings.Contains(string(all), "/a") || target == "/short" && !strings.HasSuffix(string(all), "five!") {
				t.Errorf("%s is answered with %q and %v", target, all, err)
			}
		})
	}
}

// large is more than any socket takes at once.
var large = bytes.Repeat([]byte("0123456789abcdef"), 4<<20)

// plainAndTLS runs a test with connections that have TLS, and with some that have none.
func plainAndTLS(t *testing.T, test func(t *testing.T, secure *tls.Config)) {
	t.Run("plain", func(t *testing.T) { test(t, nil) })
	t.Run("TLS", func(t *testing.T) { test(t, certificate(t)) })
}

// certificate is for both ends.
func certificate(t *testing.T) *tls.Config {
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	trusted := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	return &tls.Config{Certificates: s.TLS.Certificates, RootCAs: trusted, ServerName: "example.com"}
}
