package server_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/lane"
)

// dial sends raw bytes and returns what can be read of the answers.
func dial(t *testing.T, url, request string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn)
}

func TestPipelining(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		_, url := start(t, server.Options{Store: fixture(t)}, server.HTTPOptions{})
		var request strings.Builder
		names := []string{"tiny.txt", "noise.bin", "nothing", "odd/a+b.js", "tiny.txt"}
		for _, name := range names {
			fmt.Fprintf(&request, "GET /ajax/libs/demo/1.0.0/%s HTTP/1.1\r\nHost: x\r\n\r\n", name)
		}
		answers := dial(t, url, request.String())
		for _, name := range names {
			r, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			if want, ok := testkit.Releases()[0].Files[name]; ok && !bytes.Equal(got, want) || !ok && r.StatusCode != 404 {
				t.Errorf("%s is answered with %s and %d bytes", name, r.Status, len(got))
			}
		}
	})
}

func TestOddRequests(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		_, url := start(t, server.Options{Store: openStore(t, []testkit.Release{release("1.0.0", "a.js", text)})}, server.HTTPOptions{})
		long := strings.Repeat("x", 9<<10)
		for _, test := range []struct {
			name, request string
			want          int
		}{
			{"HTTP/1.0", "GET /ajax/libs/lib/1.0.0/a.js HTTP/1.0\r\n\r\n", 200},
			{"absolute form", "GET http://elsewhere/ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 200},
			{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200}, // net/http answers
			{"slashes before", "GET //ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"prefix encoded", "GET /%61jax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"slash of the prefix encoded", "GET /ajax%2Flibs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"dots before", "GET /x/../ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"less than the prefix", "GET /ajax/libs HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"border encoded", "GET /ajax/libs/lib%2F1.0.0/a.js HTTP/1.1\r\nHost: x\r\n\r\n", 400},
			{"border encoded beside a raw quote", "GET /ajax/libs/lib%2F1.0.0/\"a.js HTTP/1.1\r\nHost: x\r\n\r\n", 400},
			{"long target", "GET /ajax/libs/lib/1.0.0/" + long + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
			{"long query", "GET /ajax/libs/lib/1.0.0/a.js?" + long + " HTTP/1.1\r\nHost: x\r\n\r\n", 414},
			{"long header", "GET /ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat(long, 5) + "\r\n\r\n", 431},
			{"NUL", "GET /ajax/libs/lib/1.0.0/a.js\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400},
			{"bad escape", "GET /ajax/libs/lib/1.0.0/%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400},
			{"cut escape", "GET /ajax/libs/lib/1.0.0/a.js% HTTP/1.1\r\nHost: x\r\n\r\n", 400},
			{"raw high bytes", "GET /ajax/libs/lib/1.0.0/\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", 404},
			{"a body", "GET /ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 200},
			{"no host", "GET /ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\n\r\n", 400},
			{"two lengths", "GET /ajax/libs/lib/1.0.0/a.js HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400},
			{"not HTTP", "hello\r\n\r\n", 400},
		} {
			t.Run(test.name, func(t *testing.T) {
				r, err := http.ReadResponse(dial(t, url, test.request), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer r.Body.Close()
				wantStatus(t, r, test.want)
				if code := r.StatusCode; code >= 400 {
					if r.Header.Get("Access-Control-Allow-Origin") != "*" || r.Header.Get("X-Content-Type-Options") != "nosniff" {
						t.Errorf("the %d lacks headers of assets' failures: %v", code, r.Header)
					}
				}
			})
		}
	})
}

// pipes is a listener whose connections are synchronous pipes: what the client
// does not read the server cannot write.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// onPipe serves a over a pipe, in a bubble where time passes at once, and then once more
// with the fast lane in front if it is Assets.
func onPipe(a http.Handler, client func(net.Conn)) {
	onOnePipe(a, nil, client)
	if assets, ok := a.(*server.Assets); ok {
		onOnePipe(a, assets, client)
	}
}

func onOnePipe(a http.Handler, l lane.Handler, client func(net.Conn)) {
	listener := make(pipes)
	s := server.NewHTTPServer(a, server.HTTPOptions{H2C: true, Lane: l})
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(listener) })
	ours, theirs := net.Pipe()
	listener <- theirs
	client(ours)
	ours.Close()
	close(listener)
	wg.Wait()
	s.Close()
	synctest.Wait()
}

func ask(method, target string) string { return method + " " + target + " HTTP/1.1\r\nHost: x\r\n" }

func TestSlowButSteadyClientGetsAll(t *testing.T) {
	data := bytes.Repeat(testkit.Releases()[0].Files["noise.bin"], 80) // 24 MiB
	store := openStore(t, []testkit.Release{release("1.0.0", "noise.bin", data)})
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for name, protocols := range map[string]*http.Protocols{"HTTP/1.1": nil, "HTTP/2.0": h2c} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
					transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
					defer transport.CloseIdleConnections()
					r, err := (&http.Client{Transport: transport}).Get("http://x/ajax/libs/lib/1.0.0/noise.bin")
					if err != nil {
						t.Fatal(err)
					}
					defer r.Body.Close()
					if r.Proto != name {
						t.Errorf("the protocol is %s, want %s", r.Proto, name)
					}
					start, n := time.Now(), int64(0)
					for err = nil; err == nil; {
						var m int64
						m, err = io.CopyN(io.Discard, r.Body, 16<<10)
						n += m
						time.Sleep(4 * time.Second)
					}
					if err != io.EOF || n != int64(len(data)) {
						t.Errorf("%d of %d bytes, then %v after %v", n, len(data), err, time.Since(start))
					}
					if took := time.Since(start); took < time.Hour {
						t.Errorf("it took %v; the client is not slow", took)
					}
				})
			})
		})
	}
}

func TestStalledClientIsClosed(t *testing.T) {
	store := fixture(t)
	for _, name := range []string{"noise.bin", "tiny.txt", "big.js"} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
					fmt.Fprint(conn, ask("GET", "/ajax/libs/demo/1.0.0/"+name)+"\r\n")
					time.Sleep(31 * time.Second)
					if n, err := io.Copy(io.Discard, conn); err != nil || n > 128<<10 {
						t.Errorf("%d bytes and %v after 31 seconds without reading, want few and the end", n, err)
					}
				})
			})
		})
	}
}

func TestSilentClientIsClosed(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		want    time.Duration
	}{
		"before the end of the headers": {ask("GET", "/ajax/libs/demo/1.0.0/tiny.txt"), 10 * time.Second},
		"before the body":               {ask("POST", "/ajax/libs/demo/1.0.0/tiny.txt") + "Content-Length: 10\r\n\r\n", 30 * time.Second},
		"after an answer":               {ask("OPTIONS", "/ajax/libs/demo/1.0.0/tiny.txt") + "\r\n", 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			store := fixture(t)
			bubble.Test(t, func(t *testing.T) {
				onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
					start := time.Now()
					go fmt.Fprint(conn, test.request)
					io.Copy(io.Discard, conn)
					// net/http lingers for half a second where it did not read all.
					if took := time.Since(start).Truncate(time.Second); took != test.want {
						t.Errorf("the connection lives %v, want %v", took, test.want)
					}
				})
			})
		})
	}
}

// The deadline is the body's, not that of what the handler does with it.
func TestHandlerMayTakeLongAfterTheBody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		onPipe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).SetWriteDeadline(time.Time{})
			body, err := io.ReadAll(r.Body)
			select {
			case <-r.Context().Done():
				t.Error("the request is cancelled while it is worked on")
			case <-time.After(time.Hour):
			}
			fmt.Fprintf(w, "%s %v", body, err)
		}), func(conn net.Conn) {
			go fmt.Fprint(conn, ask("POST", "/")+"Content-Length: 5\r\n\r\nhello")
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if got, _ := io.ReadAll(r.Body); string(got) != "hello <nil>" {
				t.Errorf("the answer is %q", got)
			}
		})
	})
}

func TestBodyOfGetIsNotWaitedFor(t *testing.T) {
	store := fixture(t)
	for _, method := range []string{"GET", "HEAD"} {
		t.Run(method, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				onPipe(newAssets(t, server.Options{Store: store}), func(conn net.Conn) {
					start := time.Now()
					go fmt.Fprint(conn, ask(method, "/ajax/libs/demo/1.0.0/tiny.txt")+"Content-Length: 10\r\n\r\n")
					r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
					if err != nil {
						t.Fatal(err)
					}
					wantStatus(t, r, 200)
					if took := time.Since(start); took != 0 || !r.Close {
						t.Errorf("the answer came after %v and Connection is to be closed: %v; want at once and true", took, r.Close)
					}
				})
			})
		})
	}
}

func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration // of the client
		want  int
	}{"in time": {10 * time.Second, 0}, "too late": {time.Minute, 1}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ended := false
				listener := make(pipes)
				s := server.NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					time.Sleep(time.Second)
					w.Write(make([]byte, 10_000)) // as long as the client takes
					time.Sleep(time.Second)
					ended = true
				}), server.HTTPOptions{WriteTimeout: -1})
				go s.Serve(listener)
				ours, theirs := net.Pipe()
				listener <- theirs
				synctest.Wait() // until it is accepted
				close(listener)
				fmt.Fprint(ours, ask("GET", "/")+"\r\n")
				var client sync.WaitGroup
				client.Go(func() {
					time.Sleep(test.takes)
					io.Copy(io.Discard, ours)
				})
				time.Sleep(time.Millisecond)
				cut, err := s.Stop(15 * time.Second)
				if cut != test.want || err != nil || !ended {
					t.Errorf("%d clients were cut off (%v), want %d; the handler ended: %v", cut, err, test.want, ended)
				}
				ours.Close()
				client.Wait()
				synctest.Wait()
			})
		})
	}
	t.Run("never", func(t *testing.T) {
		bubble.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			listener := make(pipes)
			s := server.NewHTTPServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }), server.HTTPOptions{})
			go s.Serve(listener)
			ours, theirs := net.Pipe()
			listener <- theirs
			synctest.Wait() // until it is accepted
			close(listener)
			fmt.Fprint(ours, ask("GET", "/")+"\r\n")
			synctest.Wait()
			if cut, err := s.Stop(time.Second); cut != 1 || err == nil {
				t.Errorf("%d clients were cut off, and the error is %v; want 1 and that a request is still being handled", cut, err)
			}
			close(release)
			ours.Close()
			synctest.Wait()
		})
	})
}

func TestMaxConnections(t *testing.T) {
	socket, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := server.LimitConnections(1, socket)[0]
	defer listener.Close()
	for range 2 {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("G")); err != nil { // Linux waits a second for that before it lets a connection be accepted
			t.Fatal(err)
		}
	}
	first, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan net.Conn)
	go func() {
		c, _ := listener.Accept()
		second <- c
	}()
	select {
	case <-second:
		t.Error("the second connection was accepted beside the first")
	default:
	}
	first.Close()
	if c := <-second; c == nil {
		t.Error("the second connection was not accepted after the first")
	} else {
		c.Close()
	}
}
