package server_test

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/usage"
)

// discard is a ResponseWriter that costs nothing, so that what is measured is the
// handler alone.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

var hits = []struct{ name, target, header, value string }{
	{"br", "/ajax/libs/demo/1.0.0/demo.js", "Accept-Encoding", "gzip, deflate, br, zstd"},
	{"identity", "/ajax/libs/demo/1.0.0/demo.js", "Accept-Encoding", "identity"},
	{"304", "/ajax/libs/demo/1.0.0/demo.js", "If-None-Match", "*"},
	{"range", "/ajax/libs/demo/1.0.0/noise.bin", "Range", "bytes=1000-1999"},
	{"300KB", "/ajax/libs/demo/1.0.0/noise.bin", "Accept", "*/*"},
	{"404", "/ajax/libs/demo/1.0.0/nothing.js", "Accept", "*/*"},
}

func BenchmarkHandler(b *testing.B) {
	store := fixture(b)
	a := newAssets(b, server.Options{Store: store, Usage: usage.Open(usage.Options{Store: store})})
	for _, hit := range hits {
		b.Run(hit.name, func(b *testing.B) {
			r := httptest.NewRequest("GET", hit.target, nil)
			r.Header.Set(hit.header, hit.value)
			w := &discard{make(http.Header)}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				a.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkLoopback is one connection, one request after the other, client
// included; the client only counts bytes.
func BenchmarkLoopback(b *testing.B) {
	_, url := start(b, server.Options{Store: fixture(b)}, server.HTTPOptions{})
	for _, hit := range hits {
		b.Run(hit.name, func(b *testing.B) {
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			request := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: x\r\n%s: %s\r\n\r\n", hit.target, hit.header, hit.value)
			reader := bufio.NewReader(conn)
			var size int64
			exchange := func() {
				if _, err := io.WriteString(conn, request); err != nil {
					b.Fatal(err)
				}
				if size > 0 {
					if _, err := io.CopyN(io.Discard, reader, size); err != nil {
						b.Fatal(err)
					}
					return
				}
				r, err := http.ReadResponse(reader, nil)
				if err != nil {
					b.Fatal(err)
				}
				n, _ := io.Copy(io.Discard, r.Body)
				size = headBytes(r) + n
			}
			exchange()
			b.ReportAllocs()
			for b.Loop() {
				exchange()
			}
		})
	}
}

// BenchmarkServing is the ratio of what an asset costs to what net/http alone
// costs with the same header fields and bytes, request by request in turn, client
// included: what is left for the fast lane to win is below net/http, not above.
func BenchmarkServing(b *testing.B) {
	_, url := start(b, server.Options{Store: fixture(b)}, server.HTTPOptions{})
	for _, hit := range hits {
		b.Run(hit.name, func(b *testing.B) {
			get := func(base string) (*http.Response, []byte) {
				request, err := http.NewRequest("GET", base+hit.target, nil)
				if err != nil {
					b.Fatal(err)
				}
				request.Header.Set("Accept-Encoding", "identity")
				request.Header.Set(hit.header, hit.value)
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					b.Fatal(err)
				}
				defer answer.Body.Close()
				body, err := io.ReadAll(answer.Body)
				if err != nil {
					b.Fatal(err)
				}
				return answer, body
			}
			answer, body := get(url)
			bare := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				maps.Copy(w.Header(), answer.Header)
				w.WriteHeader(answer.StatusCode)
				_, _ = w.Write(body)
			}))
			defer bare.Close()
			var ours, theirs time.Duration
			n := 0
			for b.Loop() {
				start := time.Now()
				get(url)
				middle := time.Now()
				get(bare.URL)
				ours += middle.Sub(start)
				theirs += time.Since(middle)
				n++
			}
			b.ReportMetric(float64(ours.Microseconds())/float64(n), "µs/asset")
			b.ReportMetric(float64(theirs.Microseconds())/float64(n), "µs/bare")
			b.ReportMetric(float64(ours)/float64(theirs), "ratio")
		})
	}
}

// headBytes is how many bytes the head of an answer takes on the wire.
func headBytes(r *http.Response) int64 {
	n := len("HTTP/1.1 ") + len(r.Status) + len("\r\n\r\n")
	for name, lines := range r.Header {
		for _, line := range lines {
			n += len(name) + len(": ") + len(line) + len("\r\n")
		}
	}
	return int64(n)
}
