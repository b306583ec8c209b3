package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/lane"
	"github.com/larder-cdn/larder/server/usage"
)

// browser is what a browser asks with, but for the first line.
const browser = "Host: cdn.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"sec-ch-ua: \"Chromium\";v=\"130\", \"Google Chrome\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n" +
	"sec-ch-ua-mobile: ?0\r\n" +
	"sec-ch-ua-platform: \"Linux\"\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n" +
	"Accept: */*\r\n" +
	"Sec-Fetch-Site: cross-site\r\n" +
	"Sec-Fetch-Mode: no-cors\r\n" +
	"Sec-Fetch-Dest: script\r\n" +
	"Referer: https://www.example.com/\r\n" +
	"Accept-Encoding: gzip, deflate, br, zstd\r\n" +
	"Accept-Language: en-GB,en-US;q=0.9,en;q=0.8\r\n"

// What is common must not be handed over: the connection stays where it is slow.
func TestWhatBrowsersAskStaysOnTheLane(t *testing.T) {
	assets := newAssets(t, server.Options{Store: fixture(t)})
	address := serveOn(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("net/http is asked %s %s", r.Method, r.RequestURI)
	}), server.HTTPOptions{Lane: assets})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	for _, test := range []struct {
		method, path, field string
		status              int
	}{
		{"GET", "demo.js", "", 200},
		{"GET", "noise.bin", "", 200},
		{"GET", "odd/100%25.js?v=1", "", 200},
		{"HEAD", "demo.js", "", 200},
		{"GET", "demo.js", "If-None-Match: *\r\n", 304},
		{"GET", "demo.js", "If-None-Match: \"x\"\r\nIf-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\nCache-Control: max-age=0\r\n", 200},
		{"GET", "demo.js", "If-Match: \"x\"\r\n", 412},
		{"GET", "demo.js", "Origin: https://www.example.com\r\nPriority: u=1\r\nDNT: 1\r\nCookie: a=b; c=d\r\nX-Forwarded-For: 192.0.2.1\r\n", 200},
		{"GET", "nothing.js", "", 404},
		{"HEAD", "nothing.js", "", 404},
		{"GET", "../0.9.0/demo.js", "", 400},
	} {
		fmt.Fprintf(conn, "%s /ajax/libs/demo/1.0.0/%s HTTP/1.1\r\n%s%s\r\n", test.method, test.path, browser, test.field)
		r, err := http.ReadResponse(answers, &http.Request{Method: test.method})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, r.Body); err != nil || r.StatusCode != test.status {
			t.Errorf("%s %s is answered with %s and %v, want %d", test.method, test.path, r.Status, err, test.status)
		}
	}
}

// An answer on its way costs no memory beside what the connection has.
func TestLaneAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("with the race detector a sync.Pool forgets at random")
	}
	t.Run("as it is", func(t *testing.T) { laneAllocatesNothing(t, nil) })
	t.Run("with an access log", func(t *testing.T) { laneAllocatesNothing(t, accessLog(t)) })
}

// accessLog returns one that nobody reads.
func accessLog(t testing.TB) *server.AccessLog {
	t.Helper()
	log, err := server.OpenAccessLog(server.AccessLogOptions{File: os.DevNull})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	return log
}

func laneAllocatesNothing(t *testing.T, log *server.AccessLog) {
	store := fixture(t)
	assets := newAssets(t, server.Options{Store: store, Usage: usage.Open(usage.Options{Store: store}), AccessLog: log})
	deltas := openDeltas(t)
	withDeltas := newAssets(t, server.Options{Store: deltas, Usage: usage.Open(usage.Options{Store: deltas}), AccessLog: log, Dictionaries: true})
	for _, test := range []struct{ name, request string }{
		{"hit", "GET /ajax/libs/demo/1.0.0/demo.js HTTP/1.1\r\n" + browser},
		{"identity", "GET /ajax/libs/demo/1.0.0/font.woff2 HTTP/1.1\r\n" + browser},
		{"large", "GET /ajax/libs/demo/1.0.0/noise.bin HTTP/1.1\r\n" + browser},
		{"HEAD", "HEAD /ajax/libs/demo/1.0.0/demo.js HTTP/1.1\r\n" + browser},
		{"304", "GET /ajax/libs/demo/1.0.0/demo.js HTTP/1.1\r\n" + browser + "If-None-Match: *\r\n"},
		{"delta", "GET /ajax/libs/lib/1.0.1/a+b.js HTTP/1.1\r\n" + strings.Replace(browser, "zstd", "zstd, dcb, dcz", 1) + "Available-Dictionary: " + available(olderText) + "\r\n"},
		{"document", "GET /ajax/libs/demo/1.0.0/active/page.html HTTP/1.1\r\n" + browser},
		{"304 of a document", "GET /ajax/libs/demo/1.0.0/active/page.html HTTP/1.1\r\n" + browser + "If-None-Match: *\r\n"},
		{"304 by date", "GET /ajax/libs/demo/1.0.0/demo.js HTTP/1.1\r\n" + browser + "If-Modified-Since: Thu, 29 Feb 2024 12:30:45 GMT\r\n"},
	} {
		allocatesNothing := func(t *testing.T, client net.Conn, listener net.Listener) {
			defer client.Close()
			handler := assets
			if test.name == "delta" {
				handler = withDeltas
			}
			front := lane.New(listener, lane.Options{Handler: apart.Lane(handler), HeaderTimeout: 1e12, IdleTimeout: 1e12, WriteTimeout: 1e12, StallTimeout: 1e12})
			defer front.Abort()
			request := []byte(test.request + "\r\n")
			if _, err := client.Write(request); err != nil {
				t.Fatal(err)
			}
			r, err := http.ReadResponse(bufio.NewReaderSize(client, 16), &http.Request{Method: strings.Fields(test.request)[0]})
			if err != nil {
				t.Fatal(err)
			}
			n, _ := io.Copy(io.Discard, r.Body)
			size := int(n + headBytes(r))
			buffer := make([]byte, 64<<10)
			allocated := testing.AllocsPerRun(1000, func() {
				if _, err := client.Write(request); err != nil {
					t.Fatal(err)
				}
				for left := size; left > 0; {
					n, err := client.Read(buffer[:min(left, len(buffer))])
					if err != nil {
						t.Fatal(err)
					}
					left -= n
				}
			})
			if allocated != 0 {
				t.Errorf("a request allocates %v times", allocated)
			}
		}
		t.Run(test.name, func(t *testing.T) {
			client, theirs := net.Pipe()
			listener := make(pipes, 1)
			listener <- theirs
			defer close(listener)
			allocatesNothing(t, client, listener)
		})
		if test.name == "large" {
			continue // a socket does not take it at once, and waiting allocates
		}
		t.Run(test.name+" over loopback", func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			client, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			allocatesNothing(t, client, listener)
		})
	}
}

// BenchmarkLane is one connection to the fast lane, without the system.
func BenchmarkLane(b *testing.B) {
	b.Run("as it is", func(b *testing.B) { benchmarkLane(b, nil) })
	b.Run("with an access log", func(b *testing.B) { benchmarkLane(b, accessLog(b)) })
}

func benchmarkLane(b *testing.B, log *server.AccessLog) {
	store := fixture(b)
	assets := newAssets(b, server.Options{Store: store, Usage: usage.Open(usage.Options{Store: store}), AccessLog: log})
	for _, hit := range hits {
		if hit.header == "Range" {
			continue
		}
		b.Run(hit.name, func(b *testing.B) {
			request := []byte("GET " + hit.target + " HTTP/1.1\r\n" + browser + "\r\n")
			if hit.header == "If-None-Match" {
				request = []byte("GET " + hit.target + " HTTP/1.1\r\n" + browser + "If-None-Match: *\r\n\r\n")
			}
			conn := &repeated{request: request, left: 1, closed: make(chan struct{})}
			b.ReportAllocs()
			b.ResetTimer()
			conn.left = b.N
			listener := make(pipes, 1)
			listener <- conn
			front := lane.New(listener, lane.Options{Handler: assets, HeaderTimeout: 1e12, IdleTimeout: 1e12, WriteTimeout: 1e12, StallTimeout: 1e12})
			<-conn.closed
			front.Abort()
			close(listener)
		})
	}
}

// BenchmarkAnswer is what the handler does for a request that was read, without the system.
func BenchmarkAnswer(b *testing.B) {
	assets := newAssets(b, server.Options{Store: fixture(b)})
	body := []byte("only this")
	head := lane.NewHead(http.StatusOK, answers.Field{Name: "Content-Length", Value: "9"})
	for _, test := range []struct {
		name, path, field string
		answer            answerFunc
	}{
		{"hit", "demo.js", "", assets.Answer},
		{"304", "demo.js", "If-None-Match: *\r\n", assets.Answer},
		{"sending", "demo.js", "", func(x *lane.Exchange) bool { x.Send(head, body, nil); return true }},
	} {
		b.Run(test.name, func(b *testing.B) {
			conn := &repeated{request: []byte("GET /ajax/libs/demo/1.0.0/" + test.path + " HTTP/1.1\r\n" + browser + test.field + "\r\n"), left: 1, closed: make(chan struct{})}
			listener := make(pipes, 1)
			b.ReportAllocs()
			front := lane.New(listener, lane.Options{Handler: answerFunc(func(x *lane.Exchange) bool {
				for b.Loop() {
					test.answer(x)
				}
				return true
			}), HeaderTimeout: 1e12, IdleTimeout: 1e12, WriteTimeout: 1e12, StallTimeout: 1e12})
			listener <- conn
			<-conn.closed
			front.Abort()
			close(listener)
		})
	}
}

// An answerFunc is a lane.Handler.
type answerFunc func(*lane.Exchange) bool

func (f answerFunc) Answer(x *lane.Exchange) bool { return f(x) }

// A repeated connection asks the same again and again, and throws the answers away.
type repeated struct {
	script
	request []byte
	left    int
	closed  chan struct{}
}

func (c *repeated) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	c.left--
	return copy(p, c.request), nil
}
func (c *repeated) Write(p []byte) (int, error) { return len(p), nil }
func (c *repeated) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// Stop counts clients on the lane, too.
func TestStopWithTheLane(t *testing.T) {
	store := fixture(t)
	for name, test := range map[string]struct {
		takes time.Duration // of the client
		want  int
	}{"in time": {10 * time.Second, 0}, "too late": {time.Minute, 1}} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				assets := newAssets(t, server.Options{Store: store})
				listener := make(pipes)
				s := server.NewHTTPServer(server.Route(assets, http.NotFoundHandler()), server.HTTPOptions{Lane: assets, WriteTimeout: time.Hour})
				go s.Serve(listener)
				waiting, waits := net.Pipe()
				listener <- waits
				busy, works := net.Pipe()
				listener <- works
				fmt.Fprint(busy, ask("GET", "/ajax/libs/demo/1.0.0/demo.js")+"\r\n")
				var client sync.WaitGroup
				client.Go(func() {
					time.Sleep(test.takes)
					io.Copy(io.Discard, busy)
				})
				synctest.Wait()
				begun := time.Now()
				cut, err := s.Stop(15 * time.Second)
				if cut != test.want || err != nil {
					t.Errorf("%d clients were cut off (%v), want %d", cut, err, test.want)
				}
				// The response has not told the client that the connection ends, so there may be a request more.
				if took := time.Since(begun); took != min(test.takes+time.Second, 15*time.Second) {
					t.Errorf("it took %v", took)
				}
				if n, err := waiting.Read(make([]byte, 1)); err != io.EOF {
					t.Errorf("a client that asked for nothing reads %d bytes and %v", n, err)
				}
				close(listener)
				client.Wait()
				synctest.Wait()
			})
		})
	}
}

// stuck is a handler that is never done.
type stuck chan struct{}

func (s stuck) Answer(*lane.Exchange) bool {
	<-s
	return false
}

// Stop tells how many are still being answered on the lane.
func TestStopTellsWhoIsLeftOnTheLane(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		answering := make(stuck)
		listener := make(pipes)
		s := server.NewHTTPServer(http.NotFoundHandler(), server.HTTPOptions{Lane: answering})
		go s.Serve(listener)
		ours, theirs := net.Pipe()
		listener <- theirs
		fmt.Fprint(ours, ask("GET", "/")+"\r\n")
		synctest.Wait()
		if cut, err := s.Stop(time.Second); cut != 1 || err == nil || !strings.Contains(err.Error(), " 1 requests are still being answered") {
			t.Errorf("%d clients were cut off, and the error is %v; want 1 and that one is still being answered", cut, err)
		}
		close(answering)
		close(listener)
		ours.Close()
		synctest.Wait()
	})
}

// The front closes before net/http knows, and still Serve ends as one that was stopped.
func TestServeWithTheLaneEndsAsStopped(t *testing.T) {
	assets := newAssets(t, server.Options{Store: fixture(t)})
	for range 100 {
		listener, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := server.NewHTTPServer(assets, server.HTTPOptions{Lane: assets})
		served := make(chan error)
		go func() { served <- s.Serve(listener) }()
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "GET /ajax/libs/demo/1.0.0/demo.js HTTP/1.1\r\nHost: example.com\r\n\r\n")
		if _, err := conn.Read(make([]byte, 1)); err != nil { // so that it serves
			t.Fatal(err)
		}
		conn.Close()
		if err := s.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-served; err != http.ErrServerClosed {
			t.Fatal(err)
		}
	}
}
