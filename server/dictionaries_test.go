package server_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server"
)

// Two versions of a file, of which the newer one has a delta against the older one.
var olderText, newerText = []byte(testkit.VersionedScript("1.0.0")), []byte(testkit.VersionedScript("1.0.1"))

// available returns the Available-Dictionary field of a client that has data.
func available(data []byte) string {
	sum := kvstore.Sum(data)
	return ":" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// openDeltas returns a store with lib 1.0.0, and lib 1.0.1 with a delta against it.
func openDeltas(tb testing.TB) *kvstore.Store {
	tb.Helper()
	store := openStore(tb, []testkit.Release{release("1.0.0", "a+b.js", olderText), release("1.0.1", "a+b.js", newerText)})
	delta, err := coding.EncodeDelta(olderText, newerText)
	if err != nil {
		tb.Fatal(err)
	}
	if stored, err := store.PutDelta(kvstore.Sum(newerText), delta); err != nil || !stored {
		tb.Fatal(stored, err)
	}
	return store
}

// TestDeltas tests the rules of RFC 9842 over net/http and over the fast lane, with HTTP/1.1 and HTTP/2.
func TestDeltas(t *testing.T) {
	store := openDeltas(t)
	o := server.Options{Store: store, Dictionaries: true}
	_, alone := start(t, o, server.HTTPOptions{})
	_, lane := startLane(t, o, server.HTTPOptions{H2C: true})
	var h2 http.Transport
	h2.Protocols = new(http.Protocols)
	h2.Protocols.SetUnencryptedHTTP2(true)
	for name, way := range map[string]struct {
		url       string
		transport *http.Transport
	}{"net/http": {alone, &http.Transport{DisableCompression: true}}, "lane": {lane, &http.Transport{DisableCompression: true}}, "HTTP/2": {lane, &h2}} {
		t.Run(name, func(t *testing.T) {
			defer way.transport.CloseIdleConnections()
			request := func(method, version string, fields ...string) (*http.Response, []byte) {
				r, err := http.NewRequest(method, way.url+"/ajax/libs/lib/"+version+"/a+b.js", nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := 0; i < len(fields); i += 2 {
					r.Header.Add(fields[i], fields[i+1])
				}
				response, err := way.transport.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer response.Body.Close()
				body, err := io.ReadAll(response.Body)
				if err != nil {
					t.Fatal(err)
				}
				return response, body
			}
			const accepted = "gzip, deflate, br, zstd, dcb, dcz"
			var tag string
			for _, tt := range []struct {
				version, accept, dictionary string
				more                        []string
				coding                      string
			}{
				{"1.0.1", accepted, available(olderText), nil, "dcz"},
				{"1.0.1", "dcz", available(olderText), nil, "dcz"},
				{"1.0.1", "br;q=0.5, dcz", available(olderText), nil, "dcz"},
				{"1.0.1", "identity;q=0, dcz;q=0.1", available(olderText), nil, "dcz"},
				{"1.0.1", "br, dcz;q=0.5", available(olderText), nil, "br"},
				{"1.0.1", "br, dcz;q=0", available(olderText), nil, "br"},
				{"1.0.1", "br, *", available(olderText), nil, "br"},
				{"1.0.1", "br", available(olderText), nil, "br"},
				{"1.0.1", accepted, "", nil, "br"},
				{"1.0.1", accepted, available(newerText), nil, "br"},
				{"1.0.1", accepted, "malformed", nil, "br"},
				{"1.0.1", accepted, available(olderText), []string{"Available-Dictionary", available(olderText)}, "br"},
				{"1.0.1", accepted, available(olderText), []string{"Range", "bytes=0-9"}, "br"},
				{"1.0.0", accepted, available(newerText), nil, "br"},
			} {
				fields := append([]string{"Accept-Encoding", tt.accept}, tt.more...)
				if tt.dictionary != "" {
					fields = append(fields, "Available-Dictionary", tt.dictionary)
				}
				r, body := request("GET", tt.version, fields...)
				h := r.Header
				if got := h.Get("Content-Encoding"); got != tt.coding {
					t.Errorf("%+v: Content-Encoding is %q", tt, got)
					continue
				}
				cache, vary := "public, max-age=30672000, immutable", "Accept-Encoding, Available-Dictionary"
				if tt.coding == "dcz" {
					cache, tag = "private, max-age=30672000, immutable", h.Get("Etag")
					if got, err := coding.DecodeDelta(olderText, body, int64(len(newerText))); err != nil || !bytes.Equal(got, newerText) {
						t.Errorf("%+v: the delta decodes to other bytes, or %v", tt, err)
					}
					if h.Get("Accept-Ranges") != "" {
						t.Errorf("%+v: ranges of a delta are offered", tt)
					}
				}
				if tt.version == "1.0.0" {
					vary = "Accept-Encoding"
				}
				if h.Get("Cache-Control") != cache || h.Get("Vary") != vary {
					t.Errorf("%+v: Cache-Control is %q, Vary %q", tt, h.Get("Cache-Control"), h.Get("Vary"))
				}
				if want := `match="/ajax/libs/lib/:version/a\\+b.js", id="` + tt.version + `"`; h.Get("Use-As-Dictionary") != want {
					t.Errorf("%+v: Use-As-Dictionary is %s, want %s", tt, h.Get("Use-As-Dictionary"), want)
				}
				if tt.more != nil {
					continue
				}
				head, _ := request("HEAD", tt.version, fields...)
				for _, name := range []string{"Content-Encoding", "Content-Length", "Etag", "Vary", "Cache-Control", "Use-As-Dictionary"} {
					if got, want := head.Header.Get(name), h.Get(name); got != want {
						t.Errorf("%+v: HEAD has %s: %s, GET %s", tt, name, got, want)
					}
				}
			}
			brotli, _ := request("GET", "1.0.1", "Accept-Encoding", "br")
			inBrotli := brotli.Header.Get("Etag")
			for _, tt := range []struct {
				field, value string
				status       int
				tag, coding  string
			}{
				{"If-None-Match", inBrotli, 304, inBrotli, ""}, // the client has the file, encoded differently
				{"If-None-Match", `"another"`, 200, tag, "dcz"},
				{"If-None-Match", inBrotli + ", " + tag, 304, tag, ""},
				{"If-Match", inBrotli, 200, inBrotli, "br"},
				{"If-Match", tag, 200, tag, "dcz"},
				{"If-Match", `"another"`, 412, "", ""},
			} {
				r, _ := request("GET", "1.0.1", "Accept-Encoding", accepted, "Available-Dictionary", available(olderText), tt.field, tt.value)
				if h := r.Header; r.StatusCode != tt.status || tt.tag != "" && h.Get("Etag") != tt.tag || tt.coding != "" && h.Get("Content-Encoding") != tt.coding {
					t.Errorf("%s: %s gets %d, %s in %q", tt.field, tt.value, r.StatusCode, h.Get("Etag"), h.Get("Content-Encoding"))
				}
			}
			r, _ := request("GET", "1.0.1", "Accept-Encoding", accepted, "Available-Dictionary", available(olderText), "If-None-Match", tag)
			if r.StatusCode != 304 || r.Header.Get("Etag") != tag || r.Header.Get("Cache-Control") != "private, max-age=30672000, immutable" ||
				r.Header.Get("Vary") != "Accept-Encoding, Available-Dictionary" {
				t.Errorf("a client that has the delta gets %d %v", r.StatusCode, r.Header)
			}
		})
	}
}

// TestDictionariesOff tests that without the option no file is a dictionary, and no delta is sent.
func TestDictionariesOff(t *testing.T) {
	a := newAssets(t, server.Options{Store: openDeltas(t)})
	r := get(a, "GET", "/ajax/libs/lib/1.0.1/a+b.js", "Accept-Encoding", "br, dcz", "Available-Dictionary", available(olderText))
	if h := r.Header; h.Get("Content-Encoding") != "br" || h.Get("Vary") != "Accept-Encoding" || h.Get("Use-As-Dictionary") != "" {
		t.Errorf("the header is %v", h)
	}
}

// TestDamagedDeltaFallsBack tests that a client gets Brotli if the delta is damaged or was deleted since the file was cached, and that deltas are counted.
func TestDamagedDeltaFallsBack(t *testing.T) {
	for name, damage := range map[string]func(*testing.T, *kvstore.Store){
		"damaged": func(t *testing.T, store *kvstore.Store) {
			newer, older := kvstore.Sum(newerText), kvstore.Sum(olderText)
			b := store.NewBatch()
			b.Set(kvstore.Blobs, fmt.Appendf(nil, "%s\x03%s", newer[:], older[:]), []byte("damaged"))
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(t *testing.T, store *kvstore.Store) {
			if err := store.RequeueDelta(kvstore.Sum(newerText), kvstore.Sum(olderText)); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := openDeltas(t)
			registry := prometheus.NewRegistry()
			a := newAssets(t, server.Options{Store: store, Dictionaries: true, Registerer: registry})
			ask := func(method string) string {
				r := get(a, method, "/ajax/libs/lib/1.0.1/a+b.js", "Accept-Encoding", "br, dcz", "Available-Dictionary", available(olderText))
				wantStatus(t, r, 200)
				return r.Header.Get("Content-Encoding")
			}
			if got := ask("HEAD"); got != "dcz" {
				t.Errorf("before the damage: %s", got)
			}
			damage(t, store)
			for range 2 {
				if got := ask("GET"); got != "br" {
					t.Errorf("after the damage: %s", got)
				}
			}
		})
	}
	registry := prometheus.NewRegistry()
	a := newAssets(t, server.Options{Store: openDeltas(t), Dictionaries: true, Registerer: registry})
	get(a, "GET", "/ajax/libs/lib/1.0.1/a+b.js", "Accept-Encoding", "br, dcz", "Available-Dictionary", available(olderText))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	saved := -1.0
	for _, f := range families {
		if strings.HasSuffix(f.GetName(), "dictionary_saved_bytes_total") {
			saved = f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	if saved <= 0 {
		t.Errorf("%v bytes are counted as saved", saved)
	}
}
