package download_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server/download"
)

// big has an archive of 8 MiB, more than what lies between a server and a client.
func big() testkit.Release {
	return testkit.Release{Package: "big", Version: "1.0.0", Files: map[string][]byte{"a.bin": noise(8 << 20)}}
}

const bigTarGzip = "/download/big/1.0.0.tar.gz"

// client returns an HTTP client that has that one connection.
func client(conn net.Conn, protocol string) *http.Client {
	t := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }}
	if protocol == "HTTP/2.0" {
		t.Protocols = new(http.Protocols)
		t.Protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Client{Transport: t}
}

// A taker takes that many bytes of an archive at a time, with a pause before each.
type taker struct {
	bytes int64
	pause time.Duration
}

// take returns how many bytes came and how it ended.
func (k taker) take(from io.Reader) (n int64, err error) {
	for err == nil {
		time.Sleep(k.pause)
		var m int64
		m, err = io.CopyN(io.Discard, from, k.bytes)
		n += m
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

func TestSlowClients(t *testing.T) {
	store := openStore(t, big())
	for name, test := range map[string]struct {
		atOnce int
		taker  taker
		whole  bool
	}{
		"steady, no client waits":     {2, taker{32 << 10, 4 * time.Second}, true},
		"steady, others wait":         {1, taker{32 << 10, 4 * time.Second}, false},
		"fast enough, others wait":    {1, taker{32 << 10, 200 * time.Millisecond}, true},
		"stalling, no client waits":   {2, taker{1 << 20, 20 * time.Minute}, false},
		"stalling, others would wait": {1, taker{1 << 20, 20 * time.Minute}, false},
	} {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+protocol, func(t *testing.T) {
				bubble.Test(t, func(t *testing.T) {
					registry := prometheus.NewRegistry()
					h := newHandler(t, download.Options{Store: store, AtOnce: test.atOnce, Registerer: registry})
					onPipes(h, func(dial func() net.Conn) {
						c := client(dial(), protocol)
						defer c.CloseIdleConnections()
						r, err := c.Get("http://x" + bigTarGzip)
						if err != nil {
							t.Error(err)
							return
						}
						defer r.Body.Close()
						if r.Proto != protocol {
							t.Errorf("the protocol is %s", r.Proto)
						}
						n, err := test.taker.take(r.Body)
						if (err == nil) != test.whole {
							t.Errorf("%d bytes came, then %v; want all of them: %v", n, err, test.whole)
						}
					})
					outcome := "left"
					if test.whole {
						outcome = "sent"
					}
					if n := count(t, registry, "tar.gz", outcome); n != 1 {
						t.Errorf("%v requests were %s, want 1", n, outcome)
					}
				})
			})
		}
	}
}

// A client that comes too many waits for a second, and gets in when the one before has
// gone: at its end, or because it left or does not take what it asked for.
func TestTurns(t *testing.T) {
	store := openStore(t, big())
	for name, test := range map[string]struct {
		first func(*testing.T, net.Conn, *http.Response)
		asks  time.Duration // when the second asks
		want  int
		at    time.Duration // when it is answered, roughly
	}{
		"busy": {func(t *testing.T, _ net.Conn, r *http.Response) {
			time.Sleep(10 * time.Second)
			io.Copy(io.Discard, r.Body)
		}, time.Second, 503, 2 * time.Second},
		"in time": {func(t *testing.T, _ net.Conn, r *http.Response) {
			time.Sleep(1500 * time.Millisecond)
			io.Copy(io.Discard, r.Body)
		}, time.Second, 200, 1500 * time.Millisecond},
		"the end":  {func(t *testing.T, _ net.Conn, r *http.Response) { io.Copy(io.Discard, r.Body) }, time.Second, 200, time.Second},
		"has left": {func(t *testing.T, c net.Conn, _ *http.Response) { c.Close() }, time.Second, 200, time.Second},
		"stalls":   {func(t *testing.T, _ net.Conn, r *http.Response) { time.Sleep(time.Minute) }, 35 * time.Second, 200, 35 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				h := newHandler(t, download.Options{Store: store, AtOnce: 1})
				start := time.Now()
				onPipes(h, func(dial func() net.Conn) {
					conn := dial()
					fmt.Fprint(conn, ask(bigTarGzip))
					r, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if err != nil {
						t.Error(err)
						return
					}
					wantStatus(t, r, 200)
					test.first(t, conn, r)
				}, func(dial func() net.Conn) {
					time.Sleep(test.asks)
					conn := dial()
					// What needs no archive needs no turn.
					for _, request := range []string{"HEAD " + bigTarGzip + " HTTP/1.1\r\nHost: x\r\n\r\n", "GET " + bigTarGzip + " HTTP/1.1\r\nHost: x\r\nIf-None-Match: *\r\n\r\n"} {
						fmt.Fprint(conn, request)
						if r, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: "HEAD"}); err != nil || r.StatusCode == 503 || time.Since(start) != test.asks {
							t.Errorf("without an archive: %+v, %v after %v", r, err, time.Since(start))
						}
					}
					fmt.Fprint(conn, ask(bigTarGzip))
					r, err := http.ReadResponse(bufio.NewReader(conn), nil)
					if err != nil {
						t.Error(err)
						return
					}
					if took := time.Since(start); took.Round(100*time.Millisecond) != test.at {
						t.Errorf("it is answered after %v, want %v", took, test.at)
					}
					wantStatus(t, r, test.want)
					if test.want == 200 {
						if n, err := io.Copy(io.Discard, r.Body); err != nil || n < 8<<20 {
							t.Errorf("%d bytes, then %v", n, err)
						}
						return
					}
					if r.Header.Get("Retry-After") != "5" || r.Header.Get("Cache-Control") != "no-store" {
						t.Errorf("the headers of the 503 are %v", r.Header)
					}
					checkError(t, body(t, r), 503, "Try again later.")
				})
			})
		})
	}
}

// A hook is a ResponseWriter that calls write before each write.
type hook struct {
	header http.Header
	write  func(p []byte) error
}

func (h *hook) Header() http.Header { return h.header }
func (h *hook) WriteHeader(int)     {}
func (h *hook) Write(p []byte) (int, error) {
	if err := h.write(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// serve asks h and reports how the handler ended.
func serve(h http.Handler, r *http.Request, write func(p []byte) error) (ended any) {
	defer func() { ended = recover() }()
	h.ServeHTTP(&hook{http.Header{}, write}, r)
	return nil
}

func TestWithdrawnInTheMiddle(t *testing.T) {
	r := big()
	for suffix, read := range readers {
		t.Run(suffix, func(t *testing.T) {
			store := openStore(t, r)
			h := newHandler(t, download.Options{Store: store})
			log, err := logs.Open(store)
			if err != nil {
				t.Fatal(err)
			}
			target := "/download/big/1.0.0" + suffix
			var archive bytes.Buffer
			ended := serve(h, httptest.NewRequest("GET", target, nil), func(p []byte) error {
				if archive.Len() == 0 {
					withdrawn := r
					withdrawn.Withdrawn = "a reason"
					if err := testkit.Withdraw(store, log, withdrawn); err != nil {
						t.Error(err)
					}
					wantStatus(t, get(h, "GET", target), 410)
				}
				archive.Write(p)
				return nil
			})
			if ended != nil {
				t.Errorf("the handler ended with %v", ended)
			}
			if e := read(t, archive.Bytes()); len(e) != 1 || !bytes.Equal(e[0].data, r.Files["a.bin"]) {
				t.Error("the archive that was begun is not whole")
			}
			for _, header := range [][]string{nil, {"If-None-Match", "*"}} {
				wantStatus(t, get(h, "GET", target, header...), 410)
				wantStatus(t, get(h, "HEAD", target, header...), 410)
			}
		})
	}
}

// What a client does not take is not made.
func TestClientLeaves(t *testing.T) {
	registry := prometheus.NewRegistry()
	logger, lines := logged()
	h := newHandler(t, download.Options{Store: openStore(t, big()), AtOnce: 1, Logger: logger, Registerer: registry})
	gone := errors.New("gone")
	for range 2 {
		writes := 0
		ended := serve(h, httptest.NewRequest("GET", bigTarGzip, nil), func([]byte) error {
			if writes++; writes > 2 {
				return gone
			}
			return nil
		})
		if ended != http.ErrAbortHandler || writes != 3 {
			t.Errorf("the handler ended with %v after %d writes, want %v and 3", ended, writes, http.ErrAbortHandler)
		}
	}
	// One that has left before its turn, too.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if ended := serve(h, httptest.NewRequest("GET", bigTarGzip, nil).WithContext(ctx), func([]byte) error { return gone }); ended != http.ErrAbortHandler {
		t.Errorf("the handler ended with %v, want %v", ended, http.ErrAbortHandler)
	}
	if n := count(t, registry, "tar.gz", "left"); n != 3 {
		t.Errorf("%v requests were left, want 3", n)
	}
	if lines.String() != "" {
		t.Errorf("clients that leave are logged: %s", lines)
	}
}

// Memory is that of the largest file, however large the release.
func TestMemoryIsBounded(t *testing.T) {
	const files, size = 8, 4 << 20
	r := testkit.Release{Package: "many", Version: "1.0.0", Files: make(map[string][]byte)}
	for i := range files {
		data := noise(size)
		copy(data, fmt.Sprint(i)) // each its own content
		r.Files[fmt.Sprintf("%02d.bin", i)] = data
	}
	// Text inflates from next to nothing.
	r.Files["text.js"] = bytes.Repeat(text, 8<<20/len(text))
	store := openStore(t, r)
	r.Files = nil
	h := newHandler(t, download.Options{Store: store})
	for suffix := range readers {
		t.Run(suffix, func(t *testing.T) {
			live := func() int64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return int64(m.HeapAlloc)
			}
			live() // twice, because a sync.Pool forgets at the second time
			base := live()
			var sent, measured, peak int64
			ended := serve(h, httptest.NewRequest("GET", "/download/many/1.0.0"+suffix, nil), func(p []byte) error {
				if sent += int64(len(p)); sent-measured > 1<<20 {
					measured = sent
					peak = max(peak, live()-base)
				}
				return nil
			})
			if ended != nil || sent < files*size {
				t.Fatalf("%d bytes were sent, and the handler ended with %v", sent, ended)
			}
			if limit := int64(2 * size); peak > limit || peak < size {
				t.Errorf("up to %d bytes are held, want no more than %d, and at least a file", peak, limit)
			}
			t.Logf("%d MiB sent, up to %.1f MiB held", sent>>20, float64(peak)/(1<<20))
		})
	}
}

// A process that is about to end finishes the archives that it makes, and begins no more. What needs no archive is answered.
func TestLeaving(t *testing.T) {
	store := openStore(t, big())
	leaving := make(chan struct{})
	h := newHandler(t, download.Options{Store: store, Leaving: leaving})
	server := httptest.NewServer(h)
	defer server.Close()
	first, err := http.Get(server.URL + bigTarGzip)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Body.Close()
	wantStatus(t, first, 200)
	close(leaving)
	r := get(h, "GET", bigTarGzip)
	wantStatus(t, r, 503)
	if r.Header.Get("Retry-After") != "2" || r.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("the headers of the 503 are %v", r.Header)
	}
	checkError(t, body(t, r), 503, "about to restart")
	wantStatus(t, get(h, "HEAD", bigTarGzip), 200)
	wantStatus(t, get(h, "GET", bigTarGzip, "If-None-Match", first.Header.Get("Etag")), 304)
	if n, err := io.Copy(io.Discard, first.Body); err != nil || n < 8<<20 {
		t.Errorf("the archive that was being made: %d bytes, then %v", n, err)
	}
}
