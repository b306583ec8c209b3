package server_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/larder-cdn/larder/internal/settings"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/lane"
)

// release returns a small release with one file.
func release(version, path string, data []byte) testkit.Release {
	return testkit.Release{Package: "lib", Version: version, Files: map[string][]byte{path: data}}
}

var text = []byte(strings.Repeat("a line of text that compresses well, number after number\n", 100))

func newAssets(tb testing.TB, o server.Options) *server.Assets {
	tb.Helper()
	a, err := server.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

var get, body, wantStatus = testkit.Ask, testkit.Body, testkit.WantStatus

func TestOptions(t *testing.T) {
	store := openStore(t, nil)
	for name, o := range map[string]server.Options{
		"tiny cache":     {Store: store, CacheBytes: 10},
		"negative bytes": {Store: store, SendBytes: -1},
	} {
		if _, err := server.New(o); err == nil {
			t.Errorf("%s: there is no error", name)
		}
	}
	registry := prometheus.NewRegistry()
	newAssets(t, server.Options{Store: store, Registerer: registry})
	if _, err := server.New(server.Options{Store: store, Registerer: registry}); err == nil {
		t.Error("the same metrics twice are no error")
	}
}

func TestLastModifiedIsUpstreams(t *testing.T) {
	a := newAssets(t, server.Options{Store: openStore(t, []testkit.Release{release("1.0.0", "a.js", text)})})
	r := get(a, "GET", "/ajax/libs/lib/1.0.0/a.js")
	if got, want := r.Header.Get("Last-Modified"), "Thu, 29 Feb 2024 12:30:45 GMT"; got != want {
		t.Errorf("Last-Modified is %s, want %s", got, want)
	}
	for date, want := range map[string]int{
		"Thu, 29 Feb 2024 12:30:45 GMT":    304,
		"Thu, 29 Feb 2024 12:30:44 GMT":    200,
		"Thursday, 29-Feb-24 12:30:45 GMT": 304, // the obsolete forms of RFC 9110 §5.6.7
		"Thu Feb 29 12:30:45 2024":         304,
	} {
		wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js", "If-Modified-Since", date), want)
	}
}

// squeeze replaces the file's Brotli by a smaller one, as the bot does later.
func squeeze(t *testing.T, store *kvstore.Store, data []byte) {
	t.Helper()
	var all []kvstore.Coded
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
		b, err := coding.Encode(c, coding.Best, data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, kvstore.Coded{Coding: c, Bytes: b})
	}
	before, err := store.Content(kvstore.Sum(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.PutContent(kvstore.Sum(data), int64(len(data)), true, all); err != nil {
		t.Fatal(err)
	}
	after, _ := store.Content(kvstore.Sum(data))
	b, _ := before.Find(coding.Brotli)
	if a, _ := after.Find(coding.Brotli); a.Length >= b.Length {
		t.Fatalf("the best Brotli has %d bytes, the quick one %d; the test needs another text", a.Length, b.Length)
	}
}

// mixed compresses better with more effort.
func mixed() []byte {
	var b strings.Builder
	for i := range 300 {
		fmt.Fprintf(&b, "export const name%d = (value) => value * %d + %q;\n", i*7919%1000, i*i%977, strings.Repeat("xy", i%5))
	}
	return []byte(b.String())
}

func TestReplacedCoding(t *testing.T) {
	data := mixed()
	store := openStore(t, []testkit.Release{release("1.0.0", "a.js", data)})
	const target = "/ajax/libs/lib/1.0.0/a.js"
	var hot []kvstore.Hash
	a := newAssets(t, server.Options{Store: store, Hot: func(h kvstore.Hash) { hot = append(hot, h) }})

	// The asset is known now, the bytes are not in memory.
	old := get(a, "HEAD", target, "Accept-Encoding", "br").Header.Get("Etag")
	if len(hot) != 1 || hot[0] != kvstore.Sum(data) {
		t.Errorf("Hot was called for %v, want the file once", hot)
	}
	squeeze(t, store, data)

	r := get(a, "GET", target, "Accept-Encoding", "br")
	wantStatus(t, r, 200)
	coded := body(t, r)
	if got, err := coding.Decode(coding.Brotli, coded, int64(len(data))); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the body is not the file (%v)", err)
	}
	now := r.Header.Get("Etag")
	if now == old {
		t.Error("other bytes have the same tag")
	}
	if r.Header.Get("Content-Length") != fmt.Sprint(len(coded)) {
		t.Errorf("Content-Length is %s, want %d", r.Header.Get("Content-Length"), len(coded))
	}
	if len(hot) != 1 {
		t.Errorf("Hot was called %d times, want once: the file is squeezed", len(hot))
	}

	// Who has the old form has the file (RFC 9111 §4.3.4)…
	r = get(a, "GET", target, "Accept-Encoding", "br", "If-None-Match", old)
	wantStatus(t, r, 304)
	if got := r.Header.Get("Etag"); got != old {
		t.Errorf("the 304 carries %s, want the client's %s", got, old)
	}
	// … but not a part of the new one.
	wantStatus(t, get(a, "GET", target, "Accept-Encoding", "br", "If-Match", old), 412)
	wantStatus(t, get(a, "GET", target, "Accept-Encoding", "br", "Range", "bytes=0-9", "If-Range", old), 200)
	wantStatus(t, get(a, "GET", target, "Accept-Encoding", "br", "Range", "bytes=0-9", "If-Range", now), 206)
	wantStatus(t, get(a, "GET", target, "Accept-Encoding", "gzip", "If-None-Match", old), 200)

	// Another node with the same store says the same.
	if other := get(newAssets(t, server.Options{Store: store}), "HEAD", target, "Accept-Encoding", "br").Header.Get("Etag"); other != now {
		t.Errorf("one server says %s, another %s", now, other)
	}
}

func TestForget(t *testing.T) {
	lost, kept := release("1.0.0", "a.js", text), release("2.0.0", "a.js", text)
	store := openStore(t, []testkit.Release{lost, kept})
	a := newAssets(t, server.Options{Store: store})
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js"), 200)
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	// Requests that never stop asking must not keep it alive.
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				get(a, "GET", "/ajax/libs/lib/1.0.0/a.js")
			}
		})
	}
	lost.Withdrawn = "the author asked for it"
	if err := testkit.Withdraw(store, log, lost); err != nil {
		t.Fatal(err)
	}
	a.Forget("lib", "1.0.0")
	r := get(a, "GET", "/ajax/libs/lib/1.0.0/a.js")
	cancel()
	wg.Wait()
	wantStatus(t, r, 410)
	if b := body(t, r); !strings.Contains(string(b), "log entry 2") || !strings.Contains(string(b), lost.Withdrawn) {
		t.Errorf("the body does not say why: %s", b)
	}
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js"), 410)
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/2.0.0/a.js"), 200)
}

func TestPublishedFileIsThereAtOnce(t *testing.T) {
	store := openStore(t, nil)
	a := newAssets(t, server.Options{Store: store})
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js"), 404)
	if err := testkit.Publish(store, []testkit.Release{release("1.0.0", "a.js", text)}); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js"), 200)
}

// damage changes every value in a namespace.
func damage(t *testing.T, store *kvstore.Store, ns kvstore.Namespace) {
	t.Helper()
	b := store.NewBatch()
	defer b.Close()
	n := 0
	for item, err := range store.Scan(ns, kvstore.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		value := bytes.Clone(item.Value)
		value[len(value)/2] ^= 1
		value[0] ^= 0x80
		b.Set(ns, bytes.Clone(item.Key), value)
		n++
	}
	if err := b.Commit(); err != nil || n == 0 {
		t.Fatalf("%d values damaged: %v", n, err)
	}
}

func TestDamagedStore(t *testing.T) {
	// Where the file is found, its URL is known to have codings.
	vary := map[kvstore.Namespace]string{kvstore.Blobs: "Accept-Encoding, Accept", kvstore.Contents: "Accept", kvstore.Files: "Accept"}
	for _, ns := range []kvstore.Namespace{kvstore.Blobs, kvstore.Contents, kvstore.Files} {
		for _, coding := range []string{"br", "gzip", "identity"} {
			t.Run(fmt.Sprintf("%c %s", ns, coding), func(t *testing.T) {
				store := openStore(t, []testkit.Release{release("1.0.0", "a.js", text)})
				_, lines := logged()
				logger := settings.New().NewLogger(lines, slog.LevelInfo) // it bounds what repeats
				registry := prometheus.NewRegistry()
				a := newAssets(t, server.Options{Store: store, Logger: logger, Registerer: registry})
				damage(t, store, ns)
				if ns == kvstore.Contents { // the row alone would be mended
					damage(t, store, kvstore.Blobs)
				}
				for range 5 {
					r := get(a, "GET", "/ajax/libs/lib/1.0.0/a.js", "Accept-Encoding", coding)
					wantStatus(t, r, 503)
					for name, want := range map[string]string{"Retry-After": "5", "Cache-Control": "no-store", "Access-Control-Allow-Origin": "*", "Etag": "", "Content-Encoding": "", "Last-Modified": "", "Vary": vary[ns]} {
						if got := r.Header.Get(name); got != want {
							t.Errorf("%s is %q, want %q", name, got, want)
						}
					}
				}
				if n := strings.Count(lines.String(), "\n"); n != 1 {
					t.Errorf("five failures are logged in %d lines:\n%s", n, lines)
				}
				if !strings.Contains(lines.String(), "lib/1.0.0/a.js") {
					t.Errorf("the log does not name the file: %s", lines)
				}
				if n := counter(t, registry, "larder_assets_requests_total", "status", "503"); n != 5 {
					t.Errorf("%v answers with 503 were counted, want 5", n)
				}
			})
		}
	}
}

// A large identity is inflated while it is sent. Where that fails the connection
// ends before the promised length.
func TestDamageWhileInflating(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		data := bytes.Repeat(text, 150)
		coded, err := coding.Encode(coding.Gzip, coding.Quick, data[:len(data)/2])
		if err != nil {
			t.Fatal(err)
		}
		store := openStore(t, []testkit.Release{release("1.0.0", "a.js", data)})
		b := store.NewBatch()
		defer b.Close()
		h := kvstore.Sum(data)
		b.Delete(kvstore.Contents, h[:])
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := store.PutContent(h, int64(len(data)), true, []kvstore.Coded{{Coding: coding.Gzip, Bytes: coded}}); err != nil {
			t.Fatal(err)
		}
		logger, lines := logged()
		_, url := start(t, server.Options{Store: store, Logger: logger}, server.HTTPOptions{})
		r, err := (&http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}).Get(url + "/ajax/libs/lib/1.0.0/a.js")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if n, err := io.Copy(io.Discard, r.Body); err != io.ErrUnexpectedEOF {
			t.Errorf("%d bytes arrived, then %v; want %v", n, err, io.ErrUnexpectedEOF)
		}
		if !strings.Contains(lines.String(), "damaged") {
			t.Errorf("the log does not say so: %s", lines)
		}
	})
}

func TestMetrics(t *testing.T) {
	requests := [][2]string{{"GET", "a.js"}, {"GET", "a.js"}, {"GET", "a.js"}, {"GET", "b.js"}, {"HEAD", "a.js"}}
	for name, ask := range map[string]func(*server.Assets){
		"over net/http": func(a *server.Assets) {
			for _, r := range requests {
				get(a, r[0], "/ajax/libs/lib/1.0.0/"+r[1], "Accept-Encoding", "gzip")
			}
		},
		"on the lane": func(a *server.Assets) {
			var pieces [][]byte
			for _, r := range requests {
				pieces = append(pieces, fmt.Appendf(nil, "%s /ajax/libs/lib/1.0.0/%s HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n", r[0], r[1]))
			}
			conn, listener := newScript(pieces), make(pipes, 1)
			listener <- conn
			front := lane.New(listener, lane.Options{Handler: a, HeaderTimeout: 1e12, IdleTimeout: 1e12, WriteTimeout: 1e12, StallTimeout: 1e12})
			<-conn.closed
			front.Abort()
			close(listener)
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := openStore(t, []testkit.Release{release("1.0.0", "a.js", text)})
			size := get(newAssets(t, server.Options{Store: store}), "HEAD", "/ajax/libs/lib/1.0.0/a.js", "Accept-Encoding", "gzip").ContentLength
			registry := prometheus.NewRegistry()
			ask(newAssets(t, server.Options{Store: store, Registerer: registry}))
			for _, test := range []struct {
				name, label, value string
				want               float64
			}{
				{"larder_assets_requests_total", "coding", "gzip", 4},
				{"larder_assets_requests_total", "status", "404", 1},
				{"larder_assets_sent_bytes_total", "coding", "gzip", float64(3 * size)},
				{"larder_assets_cache_hits_total", "cache", "rows", 3},
				{"larder_assets_cache_misses_total", "cache", "rows", 2},
				{"larder_assets_cache_hits_total", "cache", "bodies", 2},
				{"larder_assets_cache_misses_total", "cache", "bodies", 1},
				{"larder_assets_cache_load_seconds", "cache", "bodies", 1},
				{"larder_assets_in_flight_requests", "", "", 0},
				{"larder_assets_sending_bytes", "", "", 0},
			} {
				if got := counter(t, registry, test.name, test.label, test.value); got != test.want {
					t.Errorf("%s{%s=%q} is %v, want %v", test.name, test.label, test.value, got, test.want)
				}
			}
			if got := counter(t, registry, "larder_assets_cache_bytes", "cache", "bodies"); got < float64(size) {
				t.Errorf("the cache has %v bytes, want at least %d", got, size)
			}
		})
	}
}

// counter sums up the samples of a metric that have that label.
func counter(t *testing.T, g prometheus.Gatherer, name, label, value string) (sum float64) {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	has := func(m *dto.Metric) bool {
		for _, pair := range m.GetLabel() {
			if pair.GetName() == label && pair.GetValue() == value {
				return true
			}
		}
		return label == ""
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			if has(m) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
