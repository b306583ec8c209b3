package server_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/server"
)

// wantRefusal checks that an answer has the shape of the API's errors.
func wantRefusal(t *testing.T, r *http.Response, status int, message string) {
	t.Helper()
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Error   bool
		Status  int
		Message string
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if r.StatusCode != status || !got.Error || got.Status != status || !strings.Contains(got.Message, message) {
		t.Errorf("the answer is %s with %s, want %d and %q", r.Status, body, status, message)
	}
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Content-Length": strconv.Itoa(len(body)), "Cache-Control": "no-store",
		"Access-Control-Allow-Origin": "*", "X-Content-Type-Options": "nosniff",
	} {
		if got := r.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if _, err := http.ParseTime(r.Header.Get("Date")); err != nil || !r.Close {
		t.Errorf("the date is %q, and the connection ends: %v", r.Header.Get("Date"), r.Close)
	}
}

func TestRefusals(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		_, url := start(t, server.Options{Store: fixture(t)}, server.HTTPOptions{})
		const before = "GET /ajax/libs/demo/1.0.0/tiny.txt HTTP/1.1\r\nHost: x\r\n"
		for _, test := range []struct {
			name, request string
			status        int
			message       string
		}{
			{"not HTTP", "hello\r\n\r\n", 400, "first line"},
			{"no version", "GET /\r\n\r\n", 400, "first line"},
			{"space in the target", "GET /libraries?search=a b HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"},
			{"NUL in the target", "GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"},
			{"percent", "GET /% HTTP/1.1\r\nHost: x\r\n\r\n", 404, "Endpoint not found"},
			{"percent in a library", "GET /libraries/%zz?a=%b HTTP/1.1\r\nHost: x\r\n\r\n", 404, "Library not found"},
			{"percent in a file", "GET /ajax/libs/demo/1.0.0/% HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"},
			{"percent and a bad header", "GET /libraries/demo HTTP/1.1\r\nHost: x\r\nReferer %\r\n\r\n", 400, "malformed"},
			{"method", "G(T / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "malformed"},
			{"no host", "GET / HTTP/1.1\r\n\r\n", 400, "missing required Host header"},
			{"two hosts", before + "Host: y\r\n\r\n", 400, "malformed"},
			{"odd host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, "malformed Host header"},
			{"header without a colon", before + "nothing\r\n\r\n", 400, "malformed"},
			{"header name", before + "a b: c\r\n\r\n", 400, "malformed"},
			{"header value", before + "a: \x01\r\n\r\n", 400, "malformed"},
			{"length", before + "Content-Length: x\r\n\r\n", 400, "malformed"},
			{"coding", before + "Transfer-Encoding: gzip\r\n\r\n", 501, "Transfer-Encoding"},
			{"version", "GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505, "version"},
			{"expectation", before + "Expect: miracles\r\n\r\n", 417, "Expect"},
			{"long header", before + "A: " + strings.Repeat("x", 40<<10) + "\r\n\r\n", 431, "too large"},
			{"many headers", before + strings.Repeat("A: b\r\n", 10<<10) + "\r\n", 431, "too large"},
		} {
			t.Run(test.name, func(t *testing.T) {
				r, err := http.ReadResponse(dial(t, url, test.request), nil)
				if err != nil {
					t.Fatal(err)
				}
				wantRefusal(t, r, test.status, test.message)
			})
		}
		t.Run("head", func(t *testing.T) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			answers := bufio.NewReader(conn)
			// While it sends the first answer, net/http waits for the next request with a read of one byte.
			for _, want := range []struct {
				target string
				status int
			}{{"/ajax/libs/demo/1.0.0/tiny.txt?a", 200}, {"/libraries/%", 404}} {
				if _, err := fmt.Fprintf(conn, "HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n", want.target); err != nil {
					t.Fatal(err)
				}
				r, err := http.ReadResponse(answers, &http.Request{Method: http.MethodHead})
				if err != nil || r.StatusCode != want.status || r.ContentLength <= 0 {
					t.Fatalf("%s: %+v, %v", want.target, r, err)
				}
			}
			if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
				t.Errorf("the answer to HEAD has a body: %q, %v", rest, err)
			}
		})
		t.Run("after answers", func(t *testing.T) {
			answers := dial(t, url, before+"\r\n"+before+"\r\nhello\r\n\r\n")
			for range 2 {
				r, err := http.ReadResponse(answers, nil)
				if err != nil {
					t.Fatal(err)
				}
				if body, _ := io.ReadAll(r.Body); r.StatusCode != 200 || string(body) != "0123456789" {
					t.Errorf("%s with %q", r.Status, body)
				}
			}
			r, err := http.ReadResponse(answers, nil)
			if err != nil {
				t.Fatal(err)
			}
			wantRefusal(t, r, 400, "malformed")
			if rest, err := io.ReadAll(answers); err != nil || len(rest) > 0 {
				t.Errorf("then %q and %v", rest, err)
			}
		})
	})
}

// Whoever is refused for sending too much is still sending when the answer is
// written, and must see it all the same.
func TestClientThatSendsTooMuchSeesTheAnswer(t *testing.T) {
	socket, err := server.OpenSocket(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := server.LimitConnections(100, socket)[0]
	s := server.NewHTTPServer(http.NotFoundHandler(), server.HTTPOptions{})
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
	address := listener.Addr().String()
	query := url.QueryEscape(strings.Repeat("query ", 1<<20/6))
	target := "/libraries?search=" + query

	t.Run("client", func(t *testing.T) {
		r, err := client(t, &http.Transport{}).Get("http://" + address + target)
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, 431, "URL")
	})
	t.Run("sends all before it reads", func(t *testing.T) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// A short queue makes it wait for the server to read.
		if err := conn.(*net.TCPConn).SetWriteBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, ask("GET", target)+"\r\n"); err != nil {
			t.Fatal(err)
		}
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, 431, "URL")
	})
}

func TestRefusedClientIsNotKeptForLong(t *testing.T) {
	for name, test := range map[string]struct {
		sends time.Duration // a byte, as often as that
		want  time.Duration
	}{
		"silent":   {0, time.Second},
		"trickles": {500 * time.Millisecond, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				onPipe(http.NotFoundHandler(), func(conn net.Conn) {
					begun := time.Now()
					var sending sync.WaitGroup
					defer sending.Wait()
					defer conn.Close()
					sending.Go(func() {
						_, err := io.WriteString(conn, "hello, is anybody there?\r\n\r\n")
						for err == nil && test.sends > 0 {
							time.Sleep(test.sends)
							_, err = conn.Write([]byte("x"))
						}
					})
					answer, err := io.ReadAll(conn)
					if took := time.Since(begun); err != nil || took != test.want || !bytes.HasPrefix(answer, []byte("HTTP/1.1 400 ")) {
						t.Errorf("%q and %v after %v, want a 400 and the end after %v", answer, err, took, test.want)
					}
				})
			})
		})
	}
}

// A file may hold anything, and a Write may begin anywhere in it.
func TestFileThatLooksLikeARefusal(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		const refusal = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request"
		data := append(testkit.Releases()[0].Files["noise.bin"][:128<<10], refusal...)
		store := openStore(t, []testkit.Release{release("1.0.0", "odd.bin", data)})
		h2c := new(http.Protocols)
		h2c.SetUnencryptedHTTP2(true)
		for name, protocols := range map[string]*http.Protocols{"HTTP/1.1": nil, "HTTP/2.0": h2c} {
			t.Run(name, func(t *testing.T) {
				_, base := start(t, server.Options{Store: store}, server.HTTPOptions{H2C: true})
				c := client(t, &http.Transport{Protocols: protocols, DisableCompression: true})
				for range 3 { // over one connection
					r, err := c.Get(base + "/ajax/libs/lib/1.0.0/odd.bin")
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(r.Body)
					r.Body.Close()
					if err != nil || r.Proto != name || !bytes.Equal(got, data) {
						t.Errorf("%d of %d bytes over %s, then %v", len(got), len(data), r.Proto, err)
					}
				}
			})
		}
	})
}

// A handler's answers are its own, whatever their status.
func TestFailureOfAHandlerIsNotARefusal(t *testing.T) {
	listener, err := server.OpenSocket(context.Background(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := server.NewHTTPServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.URL.Path[1:])
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Connection", "close")
		w.WriteHeader(status)
		fmt.Fprint(w, "mine")
	}), server.HTTPOptions{})
	go s.Serve(listener)
	t.Cleanup(func() { s.Close() })
	for _, status := range []int{400, 404, 431, 500, 501, 505} {
		r, err := client(t, &http.Transport{}).Get(fmt.Sprintf("http://%s/%d", listener.Addr(), status))
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != status || string(body) != "mine" {
			t.Errorf("%s with %q, want %d as the handler wrote it", r.Status, body, status)
		}
	}
}

// Over TLS, HTTP/1.1 is refused in the same shape.
func TestRefusalOverTLS(t *testing.T) {
	config, roots := selfSigned(t)
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		_, url := start(t, server.Options{Store: fixture(t)}, server.HTTPOptions{TLS: config})
		conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), &tls.Config{RootCAs: roots})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprint(conn, "GET /ajax/libs/demo/1.0.0/tiny.txt HTTP/1.1\r\n\r\n")
		r, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		wantRefusal(t, r, 400, "missing required Host header")
	})
}
