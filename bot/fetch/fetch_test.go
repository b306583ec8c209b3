package fetch

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/bubble"
)

// client makes a client that does not wait, trusts the servers' certificates, and allows their hosts.
func client(t *testing.T, o Options, servers ...*httptest.Server) *Client {
	t.Helper()
	o.RootCAs = x509.NewCertPool()
	for _, server := range servers {
		if server.TLS != nil {
			o.RootCAs.AddCert(server.Certificate())
		}
		o.Allow = append(o.Allow, server.Listener.Addr().String())
	}
	if o.Sleep == nil {
		o.Sleep = func(context.Context, time.Duration) error { return nil }
	}
	if o.Proxy == nil {
		o.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func plain(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

func secure(t *testing.T, h http.HandlerFunc) *httptest.Server {
	s := httptest.NewTLSServer(h)
	t.Cleanup(s.Close)
	return s
}

// text gets a whole body.
func text(c *Client, r Request) (string, error) {
	var got []byte
	err := c.Get(context.Background(), r, func(response *Response) (err error) {
		got, err = io.ReadAll(response.Body)
		return err
	})
	return string(got), err
}

// temporary reports whether err is a failure that may pass.
func temporary(err error) bool {
	var failure *Error
	return errors.As(err, &failure) && failure.Temporary
}

func TestGet(t *testing.T) {
	s := secure(t, func(w http.ResponseWriter, r *http.Request) {
		if r.UserAgent() != "larder/1.2" {
			t.Errorf("User-Agent %q", r.UserAgent())
		}
		if r.Header.Get("Accept-Encoding") == "gzip" {
			w.Header().Set("Content-Encoding", "gzip")
			zw := gzip.NewWriter(w)
			defer zw.Close()
			fmt.Fprint(zw, "hello")
			return
		}
		fmt.Fprint(w, "plain")
	})
	c := client(t, Options{UserAgent: "larder/1.2"}, s)
	if got, err := text(c, Request{URL: s.URL + "/x"}); got != "hello" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	got, err := text(c, Request{URL: s.URL, Header: http.Header{"Accept-Encoding": {"identity"}}})
	if got != "plain" || err != nil {
		t.Errorf("as it is: got %q, %v", got, err)
	}
}

func TestRetries(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name    string
		fail    int // how many answers fail
		status  int
		length  int    // of the body
		after   string // Retry-After
		calls   int64  // requests made
		pauses  string
		want    error // nil: some error iff the last answer failed
		retryAt time.Time
	}{
		{name: "no failure", calls: 1, pauses: "[]"},
		{name: "503 twice", fail: 2, status: 503, calls: 3, pauses: "[500ms 1s]"},
		{name: "for ever", fail: 99, status: 500, calls: 4, pauses: "[500ms 1s 2s]"},
		{name: "429 with seconds", fail: 1, status: 429, after: "7", calls: 2, pauses: "[7.5s]"},
		{name: "503 with date", fail: 1, status: 503, after: now.Add(9 * time.Second).Format(http.TimeFormat), calls: 2, pauses: "[9.5s]"},
		{name: "date in the past", fail: 1, status: 503, after: now.Add(-time.Hour).Format(http.TimeFormat), calls: 2, pauses: "[500ms]"},
		{name: "nonsense", fail: 1, status: 503, after: "soon", calls: 2, pauses: "[500ms]"},
		{name: "a long wait is the caller's", fail: 99, status: 429, after: "3600", calls: 1, pauses: "[]", retryAt: now.Add(time.Hour)},
		{name: "just a day", fail: 99, status: 429, after: "86400", calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "over a day", fail: 99, status: 429, after: "86401", calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "136 years", fail: 99, status: 503, after: "4294967295", calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "longer than a Duration", fail: 99, status: 503, after: "18446744073709551615", calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "no number of bits", fail: 99, status: 503, after: strings.Repeat("9", 100), calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "next century", fail: 99, status: 503, after: "Sat, 01 Jan 2099 00:00:00 GMT", calls: 1, pauses: "[]", retryAt: now.Add(24 * time.Hour)},
		{name: "negative", fail: 1, status: 503, after: "-5", calls: 2, pauses: "[500ms]"},
		{name: "not found", fail: 99, status: 404, calls: 1, pauses: "[]", want: ErrNotFound},
		{name: "not found, with a long page", fail: 99, status: 404, length: 2 << 10, calls: 1, pauses: "[]", want: ErrNotFound},
		{name: "503 with a long page", fail: 99, status: 503, length: 2 << 10, after: "3600", calls: 1, pauses: "[]", retryAt: now.Add(time.Hour)},
		{name: "gone", fail: 99, status: 410, calls: 1, pauses: "[]", want: ErrNotFound},
		{name: "unauthorised", fail: 99, status: 401, calls: 1, pauses: "[]"},
		{name: "teapot", fail: 99, status: 418, calls: 1, pauses: "[]"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var calls atomic.Int64
			s := plain(t, func(w http.ResponseWriter, r *http.Request) {
				if calls.Add(1) <= int64(test.fail) {
					w.Header().Set("Retry-After", test.after)
					w.Header().Set("Content-Length", strconv.Itoa(test.length))
					w.WriteHeader(test.status)
					w.Write(make([]byte, test.length))
				}
			})
			pauses := []time.Duration{}
			c := client(t, Options{
				Now:    func() time.Time { return now },
				Random: func() float64 { return 0.5 },
				Sleep: func(_ context.Context, d time.Duration) error {
					pauses = append(pauses, d)
					return nil
				},
			}, s)
			_, err := text(c, Request{URL: s.URL, Limit: 1 << 10})
			if calls.Load() != test.calls || fmt.Sprint(pauses) != test.pauses {
				t.Errorf("%d requests, pauses %v; want %d, %s", calls.Load(), pauses, test.calls, test.pauses)
			}
			if failed := int64(test.fail) >= test.calls; failed != (err != nil) || test.want != nil && !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
			if want := test.status == 429 || test.status >= 500; err != nil && temporary(err) != want {
				t.Errorf("%v: temporary %v, want %v", err, !want, want)
			}
			if at, _ := RetryAt(err); !at.Equal(test.retryAt) {
				t.Errorf("retry at %v, want %v", at, test.retryAt)
			}
		})
	}
}

func TestBrokenBody(t *testing.T) {
	var calls atomic.Int64
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		if calls.Add(1) == 1 {
			fmt.Fprint(w, "01234") // and breaks off
			return
		}
		fmt.Fprint(w, "0123456789")
	})
	c := client(t, Options{}, s)
	if got, err := text(c, Request{URL: s.URL}); got != "0123456789" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	// A reader's own error is returned as it is.
	own := errors.New("own")
	calls.Store(1)
	if err := c.Get(context.Background(), Request{URL: s.URL}, func(*Response) error { return own }); err != own || calls.Load() != 2 {
		t.Errorf("got %v after %d requests", err, calls.Load()-1)
	}
}

func TestLimit(t *testing.T) {
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/unknown" {
			w.(http.Flusher).Flush() // no Content-Length
		}
		if r.URL.Path == "/packed" {
			w.Header().Set("Content-Encoding", "gzip")
			zw := gzip.NewWriter(w)
			defer zw.Close()
			zw.Write(make([]byte, 1000))
			return
		}
		fmt.Fprint(w, "0123456789")
	})
	c := client(t, Options{}, s)
	for path, limit := range map[string]int64{"/": 9, "/unknown": 9, "/packed": 999} {
		if _, err := text(c, Request{URL: s.URL + path, Limit: limit}); !errors.Is(err, ErrTooLarge) || temporary(err) {
			t.Errorf("%s: over the limit: %v", path, err)
		}
		if _, err := text(c, Request{URL: s.URL + path, Limit: limit + 1}); err != nil {
			t.Errorf("%s: just the limit: %v", path, err)
		}
	}
}

func TestStall(t *testing.T) {
	quit := make(chan struct{})
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			fmt.Fprint(w, "some")
			w.(http.Flusher).Flush()
		}
		<-quit
	})
	t.Cleanup(func() { close(quit) })
	c := client(t, Options{Stall: 20 * time.Millisecond, Tries: 2}, s)
	for _, path := range []string{"/header", "/body"} {
		if _, err := text(c, Request{URL: s.URL + path}); !errors.Is(err, errSlow) || !temporary(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := c.Get(ctx, Request{URL: s.URL}, func(*Response) error { return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// pipeClient returns a client that tries once, and whose connections to pipe.example are pipes: they work in a bubble. The other end of each reads a
// request and has respond write the response. wait waits until all responses are written.
func pipeClient(t *testing.T, respond func(io.Writer)) (c *Client, wait func()) {
	t.Helper()
	var served sync.WaitGroup
	c = client(t, Options{Tries: 1, Allow: []string{"pipe.example"}})
	c.trusted.DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		served.Go(func() {
			defer theirs.Close()
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
				t.Error(err)
			}
			respond(theirs)
		})
		return ours, nil
	}
	return c, served.Wait
}

// TestRate sends a body in pieces, with the clock of a bubble.
func TestRate(t *testing.T) {
	for _, test := range []struct {
		name    string
		piece   int           // bytes
		every   time.Duration // the pause before each piece but the first
		pieces  int
		want    error
		elapsed time.Duration
	}{
		{"steady", 5 << 10, time.Second, 3600, nil, 3599 * time.Second},
		{"in bursts", 1 << 20, 59 * time.Second, 10, nil, 9 * 59 * time.Second},
		{"short and slow", 1 << 10, 10 * time.Second, 5, nil, 40 * time.Second},
		{"too slow", 3 << 10, time.Second, 3600, errSlow, time.Minute},
		{"trickle", 1 << 10, 59 * time.Second, 3600, errSlow, time.Minute},
		{"pause", 1 << 20, 61 * time.Second, 2, errSlow, time.Minute},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c, wait := pipeClient(t, func(w io.Writer) {
					fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n", test.piece*test.pieces)
					for i := range test.pieces {
						if i > 0 {
							time.Sleep(test.every)
						}
						if _, err := w.Write(make([]byte, test.piece)); err != nil {
							return // the client has had enough
						}
					}
				})
				defer wait()
				start := time.Now()
				got, err := text(c, Request{URL: "http://pipe.example/"})
				if !errors.Is(err, test.want) || err == nil && len(got) != test.piece*test.pieces || err != nil && !temporary(err) {
					t.Errorf("%d bytes, %v; want %v", len(got), err, test.want)
				}
				if elapsed := time.Since(start); elapsed != test.elapsed {
					t.Errorf("it took %v, want %v", elapsed, test.elapsed)
				}
			})
		})
	}
}

func TestConcurrency(t *testing.T) {
	var now, most atomic.Int64
	s := plain(t, func(w http.ResponseWriter, r *http.Request) {
		for n := now.Add(1); ; {
			if m := most.Load(); n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		fmt.Fprint(w, "x")
		now.Add(-1)
	})
	c := client(t, Options{Concurrency: 3}, s)
	done := make(chan error)
	for range 20 {
		go func() {
			_, err := text(c, Request{URL: s.URL})
			done <- err
		}()
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if most.Load() > 3 {
		t.Errorf("%d requests at once", most.Load())
	}
}

func TestCredentials(t *testing.T) {
	type visit struct{ path, authorization, referer string }
	var seen []visit
	var other *httptest.Server
	home := plain(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, visit{"home" + r.URL.Path, r.Header.Get("Authorization"), r.Referer()})
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, other.URL+"/back", http.StatusFound)
		case "/inside":
			http.Redirect(w, r, "/end?secret=1", http.StatusMovedPermanently)
		}
	})
	other = plain(t, func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, visit{"other" + r.URL.Path, r.Header.Get("Authorization"), r.Referer()})
		http.Redirect(w, r, home.URL+"/end", http.StatusTemporaryRedirect)
	})
	c := client(t, Options{}, home, other)
	authorization := func(u *url.URL) string { return "Bearer for " + u.Path }
	for path, want := range map[string]string{
		"/inside": "[{home/inside Bearer for /inside } {home/end Bearer for /end }]",
		// Not even back home: another origin chose where to.
		"/away": "[{home/away Bearer for /away } {other/back  } {home/end  }]",
	} {
		seen = nil
		if _, err := text(c, Request{URL: home.URL + path, Authorization: authorization}); err != nil {
			t.Error(err)
		}
		if got := fmt.Sprint(seen); got != want {
			t.Errorf("%s: saw %s, want %s", path, got, want)
		}
	}
}

func TestRedirects(t *testing.T) {
	quit := make(chan struct{})
	s := secure(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/there":
			fmt.Fprint(w, "there")
		case "/long":
			w.Header().Set("Location", "/there")
			w.Header().Set("Content-Length", "2000")
			w.WriteHeader(http.StatusFound)
			w.Write(make([]byte, 2000))
		case "/slow":
			w.Header().Set("Location", "/there")
			w.WriteHeader(http.StatusFound)
			w.(http.Flusher).Flush()
			<-quit
		case "/300", "/305", "/306":
			status, _ := strconv.Atoi(r.URL.Path[1:])
			w.WriteHeader(status)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/nowhere":
			w.WriteHeader(http.StatusFound)
		case "/file":
			http.Redirect(w, r, "file:///etc/passwd", http.StatusFound)
		case "/private":
			http.Redirect(w, r, "https://10.0.0.1/", http.StatusFound)
		case "/plain":
			http.Redirect(w, r, "http://example.invalid/", http.StatusFound)
		case "/userinfo":
			http.Redirect(w, r, "https://u:secret@example.invalid/", http.StatusFound)
		}
	})
	c := client(t, Options{}, s)
	for path, want := range map[string]error{
		"/loop": errRedirect, "/nowhere": errRedirect,
		"/file": ErrForbidden, "/private": ErrForbidden, "/plain": ErrForbidden, "/userinfo": ErrForbidden,
	} {
		_, err := text(c, Request{URL: s.URL + path})
		if !errors.Is(err, want) || temporary(err) {
			t.Errorf("%s: got %v, want %v", path, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v tells a secret", path, err)
		}
	}
	for _, status := range []int{300, 305, 306} { // which say nothing that a client could follow
		_, err := text(c, Request{URL: fmt.Sprintf("%s/%d", s.URL, status)})
		if failure, ok := errors.AsType[*Error](err); !ok || failure.Status != status || failure.Temporary {
			t.Errorf("%d: got %#v", status, err)
		}
	}
	if got, err := text(c, Request{URL: s.URL + "/long", Limit: 1000}); got != "there" || err != nil {
		t.Errorf("a redirect longer than the limit: got %q, %v", got, err)
	}
	// The client does not wait for the end of a redirect's body.
	waits := time.AfterFunc(20*time.Second, func() { close(quit) })
	got, err := text(c, Request{URL: s.URL + "/slow"})
	if got != "there" || err != nil {
		t.Errorf("a redirect without end: got %q, %v", got, err)
	}
	if waits.Stop() {
		close(quit)
	} else {
		t.Error("the client waited for the end of a redirect's body")
	}
}

// TestSlowRedirects has a server that is slow to redirect, with the clock of a bubble: all redirects together are limited.
func TestSlowRedirects(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c, wait := pipeClient(t, func(w io.Writer) {
			time.Sleep(25 * time.Second)
			fmt.Fprint(w, "HTTP/1.1 302 Found\r\nConnection: close\r\nLocation: /\r\nContent-Length: 0\r\n\r\n")
		})
		defer wait()
		start := time.Now()
		_, err := text(c, Request{URL: "http://pipe.example/"})
		if elapsed := time.Since(start); !errors.Is(err, errSlow) || !temporary(err) || elapsed != time.Minute {
			t.Errorf("%v after %v", err, elapsed)
		}
	})
}

func TestErrorsTellNoSecrets(t *testing.T) {
	s := plain(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(404) })
	c := client(t, Options{Tries: 1}, s)
	for _, target := range []string{
		s.URL + "/a?token=secret#secret",
		"http://user:secret@" + s.Listener.Addr().String() + "/",
		"https://user:secret@exa mple/", "https://[secret", "secret:secret@x", "%secret",
	} {
		_, err := text(c, Request{URL: target})
		if err == nil || strings.Contains(err.Error(), "secret@") || strings.Contains(err.Error(), "=secret") || strings.Contains(err.Error(), ":secret") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// TestWith makes sure that clients made of one another share their bound, and reach hosts in their own ways.
func TestWith(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") }))
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	c, err := New(Options{Concurrency: 1, Tries: 1, Allow: []string{"127.0.0.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	derived := c.With(Network{RootCAs: roots})
	nothing := func(*Response) error { return nil }
	if err := c.Get(t.Context(), Request{URL: s.URL}, nothing); err == nil {
		t.Error("the first client knows the certificate")
	}
	err = derived.Get(t.Context(), Request{URL: s.URL}, func(*Response) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if err := c.Get(ctx, Request{URL: s.URL}, nothing); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second request is under way: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
