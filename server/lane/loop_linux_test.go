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
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane"
)

// A gate answers as a handler does, but a request for /held only once the test has released it.
type gate struct {
	handler
	held chan chan struct{} // receives a channel for each held request; sending on that channel releases the request
}

func (g *gate) Answer(x *lane.Exchange) bool {
	switch strings.Clone(x.Target) {
	case "/held":
		x.MayBlock()
		release := make(chan struct{})
		g.held <- release
		<-release
	case "/large":
		length := answers.Field{Name: "Content-Length", Value: strconv.Itoa(len(large))}
		x.Send(lane.NewHead(http.StatusOK, length), large, nil)
		return true
	}
	return g.handler.Answer(x)
}

// A client is one end of a connection, with TLS or without.
type client interface {
	net.Conn
	CloseWrite() error
}

// connect gives a lane that has loops, with two connections for each at least.
func connect(t *testing.T, o lane.Options) (l *lane.Listener, conns []client) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.Logger = slog.New(slog.DiscardHandler)
	o.WriteTimeout, o.StallTimeout = time.Minute, time.Minute
	l = lane.New(inner, o)
	t.Cleanup(func() {
		l.Abort()
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for range 2 * runtime.GOMAXPROCS(0) {
		c := dial(t, inner.Addr().String(), o.TLS)
		t.Cleanup(func() { c.Close() })
		conns = append(conns, c)
	}
	return l, conns
}

func dial(t *testing.T, address string, secure *tls.Config) client {
	t.Helper()
	if secure != nil {
		c, err := tls.Dial("tcp", address, secure)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

func patient(h lane.Handler, secure *tls.Config) lane.Options {
	return lane.Options{Handler: h, TLS: secure, HeaderTimeout: time.Minute, IdleTimeout: time.Minute, IdleAtEnd: time.Second}
}

// One client that makes a loop wait must not make others wait.
func TestLoopWaitsForNoClient(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		g := &gate{held: make(chan chan struct{})}
		_, conns := connect(t, patient(g, secure))
		half := len(conns) / 2
		var releases []chan struct{} // of the held requests, by connection
		ask := func(c net.Conn, what string) {
			t.Helper()
			if _, err := io.WriteString(c, what); err != nil {
				t.Fatal(err)
			}
		}
		for name, begin := range map[string]func(c net.Conn){
			"a handler that waits": func(c net.Conn) {
				ask(c, "GET /held HTTP/1.1\r\nHost: x\r\n\r\n")
				releases = append(releases, <-g.held)
			},
			"one that reads nothing": func(c net.Conn) { ask(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n") },
			"half a request":         func(c net.Conn) { ask(c, "GET /a HTTP/1.1\r\nHo") },
		} {
			for _, c := range conns[:half] {
				begin(c)
			}
			for _, c := range conns[half:] {
				for range 3 {
					get(t, c, "/b")
				}
			}
			for i, c := range conns[:half] {
				switch name {
				case "a handler that waits":
					releases[i] <- struct{}{}
					answered(t, bufio.NewReader(c), "/held")
				case "one that reads nothing":
					answered(t, bufio.NewReader(c), string(large))
				default:
					ask(c, "st: x\r\n\r\n")
					answered(t, bufio.NewReader(c), "/a")
				}
				get(t, c, "/c") // it waits on the loop again
			}
		}
	})
}

func answered(t *testing.T, from *bufio.Reader, want string) {
	t.Helper()
	r, err := http.ReadResponse(from, nil)
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(r.Body); err != nil || string(body) != want {
		t.Fatalf("answered with %d bytes and %v, want %d", len(body), err, len(want))
	}
}

// What comes together, or with the end of the connection, is answered to the last request.
func TestLoopAnswersAllThatComes(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		_, conns := connect(t, patient(&gate{}, secure))
		var all sync.WaitGroup
		for i, c := range conns {
			all.Go(func() {
				const n = 500 // of more than one read, and with TLS of more than one record
				go func() {
					io.WriteString(c, strings.Repeat("GET /a HTTP/1.1\r\nHost: x\r\nX-Padding: "+strings.Repeat("x", i)+"\r\n\r\n", n))
					c.CloseWrite()
				}()
				from := bufio.NewReader(c)
				for range n {
					r, err := http.ReadResponse(from, nil)
					if err != nil {
						t.Error(err)
						return
					}
					io.Copy(io.Discard, r.Body)
				}
				if rest, err := io.ReadAll(from); err != nil || len(rest) > 0 {
					t.Errorf("then %q and %v", rest, err)
				}
			})
		}
		all.Wait()
	})
}

// TestLoopSendsBodiesInTurn has clients request large bodies and small ones, in turn and before they read. Each receives all bytes,
// whatever a client has taken when the next response begins.
func TestLoopSendsBodiesInTurn(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		_, conns := connect(t, patient(&gate{}, secure))
		var all sync.WaitGroup
		for _, c := range conns {
			all.Go(func() {
				paths := []string{"/large", "/a", "/large", "/large"}
				go func() {
					for _, path := range paths {
						io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
					}
					c.CloseWrite()
				}()
				from := bufio.NewReader(c)
				for _, path := range paths {
					r, err := http.ReadResponse(from, nil)
					if err != nil {
						t.Error(err)
						return
					}
					if body, err := io.ReadAll(r.Body); err != nil || path != "/a" && !bytes.Equal(body, large) {
						t.Errorf("%s: %d bytes of %d, or others, and %v", path, len(body), len(large), err)
					}
				}
			})
		}
		all.Wait()
	})
}

func TestLoopHandsOver(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		l, conns := connect(t, patient(&gate{}, secure))
		for _, c := range conns {
			get(t, c, "/a")
			const rest = "GET /else HTTP/1.1\r\nHost: x\r\n\r\n"
			io.WriteString(c, rest)
			handed, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			if handed.RemoteAddr().String() != c.LocalAddr().String() {
				t.Errorf("it comes from %v, want %v", handed.RemoteAddr(), c.LocalAddr())
			}
			io.WriteString(c, "more")
			got := make([]byte, len(rest)+len("more"))
			if _, err := io.ReadFull(handed, got); err != nil || string(got) != rest+"more" {
				t.Errorf("%q and %v", got, err)
			}
			go handed.Write(large)
			if _, err := io.ReadFull(c, make([]byte, len(large))); err != nil {
				t.Error(err)
			}
			handed.Close()
		}
		if l.Len() != 0 {
			t.Errorf("%d are still the lane's", l.Len())
		}
	})
}

func TestLoopClosesSilentConnections(t *testing.T) {
	const short = 50 * time.Millisecond // of one phase, so that the connection is not closed in another one before
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		t.Run("at first", func(t *testing.T) {
			o := patient(&gate{}, secure)
			o.SetDeadline(lane.Unanswered, short)
			_, conns := connect(t, o)
			for _, c := range conns {
				wantClosed(t, c)
			}
		})
		t.Run("later", func(t *testing.T) {
			o := patient(&gate{}, secure)
			o.SetDeadline(lane.Idle, short)
			_, conns := connect(t, o)
			for _, c := range conns {
				get(t, c, "/a")
				wantClosed(t, c)
			}
		})
		t.Run("within a request", func(t *testing.T) {
			o := patient(&gate{}, secure)
			o.SetDeadline(lane.Unanswered, time.Minute)
			o.HeaderTimeout = short
			_, conns := connect(t, o)
			for _, c := range conns {
				get(t, c, "/a")
				io.WriteString(c, "GET /a HT")
				wantClosed(t, c)
			}
		})
		t.Run("when it stops", func(t *testing.T) {
			o := patient(&gate{}, secure)
			o.IdleAtEnd = short
			l, conns := connect(t, o)
			for _, c := range conns {
				get(t, c, "/a")
			}
			l.Stop()
			for _, c := range conns {
				wantClosed(t, c)
			}
		})
		t.Run("when others need room", func(t *testing.T) {
			l, conns := connect(t, patient(&gate{}, secure))
			for _, c := range conns {
				get(t, c, "/a")
			}
			for range conns {
				for !l.CloseIdle(time.Now()) { // until the loop has seen that the last one waits
					runtime.Gosched()
				}
			}
			for _, c := range conns {
				wantClosed(t, c)
			}
		})
	})
}

// Abort waits for no client, whatever it is at.
func TestAbortCutsAnswers(t *testing.T) {
	plainAndTLS(t, func(t *testing.T, secure *tls.Config) {
		l, conns := connect(t, patient(&gate{}, secure))
		for i, c := range conns {
			switch i % 2 {
			case 0:
				io.WriteString(c, "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
				io.ReadFull(c, make([]byte, 1000))
			case 1:
				io.WriteString(c, "GET /a HTTP/1.1\r\nHo")
			}
		}
		for working := 0; working < len(conns); _, working = l.Counts() {
			runtime.Gosched()
		}
		l.Abort()
		if err := l.Wait(context.Background()); err != nil {
			t.Error(err)
		}
		for _, c := range conns {
			if n, _ := io.Copy(io.Discard, c); n >= int64(len(large)) {
				t.Errorf("%d bytes were still sent", n)
			}
		}
	})
}

// wantClosed waits for the end of a connection.
func wantClosed(t *testing.T, c net.Conn) {
	t.Helper()
	if n, err := io.Copy(io.Discard, c); n > 0 || err != nil {
		t.Errorf("%d bytes and %v, want the end", n, err)
	}
}
