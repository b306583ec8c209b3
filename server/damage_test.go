package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server"
)

// damaged returns a store in which 13 files lack a coding, and what each file is. Every
// third has also an identity, which is the one that is damaged then.
func damaged(t *testing.T, o kvstore.Options) (*kvstore.Store, map[string][]byte) {
	t.Helper()
	store, err := kvstore.Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for i := range 13 {
		files[fmt.Sprintf("%d.js", i)] = bytes.Repeat(fmt.Appendf(nil, "a line of file %d\n", i), 300)
	}
	if err := testkit.Publish(store, []testkit.Release{{Package: "lib", Version: "1.0.0", Files: files}}); err != nil {
		t.Fatal(err)
	}
	b := store.NewBatch()
	defer b.Close()
	for i := range 13 {
		data := files[fmt.Sprintf("%d.js", i)]
		h, c := kvstore.Sum(data), []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}[i%3]
		if c == coding.Identity {
			if err := store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: c, Bytes: data}}); err != nil {
				t.Fatal(err)
			}
		}
		_, coded, err := store.Coded(h, c)
		if err != nil {
			t.Fatal(err)
		}
		coded[len(coded)/2] ^= 4
		b.Set(kvstore.Blobs, append(h[:], byte(c)), coded)
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store, files
}

// Damaged codings of contents that are otherwise intact are sent to no client, and every
// client gets the file all the same. The store mends them meanwhile, and says so once.
func TestDamagedCodingsHeal(t *testing.T) {
	eachWay(t, func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string)) {
		logger, lines := logged()
		o := inMemory()
		o.Logger = logger
		store, files := damaged(t, o)
		registry := prometheus.NewRegistry()
		registry.MustRegister(store.Collector())
		_, url := start(t, server.Options{Store: store, Logger: logger, Registerer: registry}, server.HTTPOptions{})
		everyFile := func() {
			for path, data := range files {
				for _, accept := range []string{"br", "gzip", "identity", "br, gzip;q=0.5", "identity;q=0, br, gzip"} {
					wantFile(t, url+"/ajax/libs/lib/1.0.0/"+path, accept, data)
				}
			}
		}
		for range 3 {
			everyFile()
		}
		deadline := time.Now().Add(2 * time.Minute)
		for counter(t, registry, "larder_store_contents_repaired_total", "", "") < 13 && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		everyFile()
		if n := strings.Count(lines.String(), "\n"); n != 13 || strings.Count(lines.String(), "level=WARN msg=\"repaired a damaged content\"") != 13 {
			t.Errorf("logged in %d lines, want one for each of 13 contents:\n%s", n, lines)
		}
		for _, data := range files {
			h := kvstore.Sum(data)
			content, err := store.Content(h)
			if err != nil || content.Squeezed {
				t.Errorf("%+v, %v", content, err)
			}
			for _, r := range content.Representations {
				if _, _, err := store.Coded(h, r.Coding); err != nil {
					t.Error(err)
				}
			}
			if _, err := store.Get(kvstore.Queue, append(bytes.Clone(kvstore.Repaired), h[:]...)); err != nil {
				t.Errorf("it is not queued to be squeezed: %v", err)
			}
		}
		for name, want := range map[string]float64{"larder_store_contents_repaired_total": 13, "larder_store_contents_damaged": 0, "larder_assets_errors_total": 0} {
			if got := counter(t, registry, name, "", ""); got != want {
				t.Errorf("%s is %v, want %v", name, got, want)
			}
		}
	})
}

// A store that is open read-only is not mended, and clients get the codings that are sound.
func TestDamagedCodingsOfAReadOnlyStore(t *testing.T) {
	o := inMemory()
	store, files := damaged(t, o)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	o.ReadOnly = true
	store, err := kvstore.Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	_, url := startLane(t, server.Options{Store: store}, server.HTTPOptions{})
	for range 2 {
		for path, data := range files {
			for _, accept := range []string{"br", "gzip", "identity"} {
				wantFile(t, url+"/ajax/libs/lib/1.0.0/"+path, accept, data)
			}
		}
	}
	// The first file has Brotli no more, nor may it be sent as it is.
	r, err := http.DefaultTransport.RoundTrip(request(t, url+"/ajax/libs/lib/1.0.0/0.js", "br, identity;q=0"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	wantStatus(t, r, 503)
}

// A content that no coding gives is 503, and told and counted once by the store.
func TestContentDamagedInEveryCoding(t *testing.T) {
	logger, lines := logged()
	o := inMemory()
	o.Logger = logger
	store, err := kvstore.Open("data", o)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if err := testkit.Publish(store, []testkit.Release{release("1.0.0", "a.js", text)}); err != nil {
		t.Fatal(err)
	}
	damage(t, store, kvstore.Blobs)
	registry := prometheus.NewRegistry()
	registry.MustRegister(store.Collector())
	a := newAssets(t, server.Options{Store: store})
	for range 20 {
		wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js", "Accept-Encoding", "br"), 503)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for counter(t, registry, "larder_store_contents_damaged", "", "") < 1 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	wantStatus(t, get(a, "GET", "/ajax/libs/lib/1.0.0/a.js", "Accept-Encoding", "gzip"), 503)
	if n := strings.Count(lines.String(), "level=ERROR"); n != 1 || !strings.Contains(lines.String(), kvstore.Sum(text).String()) {
		t.Errorf("told %d times:\n%s", n, lines)
	}
	if err := store.RestoreContent(kvstore.Sum(text), text); err != nil {
		t.Fatal(err)
	}
	if got := counter(t, registry, "larder_store_contents_damaged", "", ""); got != 0 {
		t.Errorf("after it was healed %v contents count as damaged", got)
	}
	wantStatus(t, get(newAssets(t, server.Options{Store: store}), "GET", "/ajax/libs/lib/1.0.0/a.js"), 200)
}

func request(t *testing.T, url, accept string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", accept)
	return r
}

// wantFile fails unless an answer has the file, in a coding that the client takes.
func wantFile(t *testing.T, url, accept string, want []byte) {
	t.Helper()
	r, err := http.DefaultTransport.RoundTrip(request(t, url, accept))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	coded, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != 200 {
		t.Errorf("%s in %s: %s, %v", url, accept, r.Status, err)
		return
	}
	c := coding.Identity
	if name := r.Header.Get("Content-Encoding"); name != "" {
		c, _ = coding.Parse(name)
		if !strings.Contains(accept, name) {
			t.Errorf("%s in %s: the answer is in %s", url, accept, name)
		}
	}
	if got, err := coding.Decode(c, coded, int64(len(want))); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s in %s: other bytes: %v", url, accept, err)
	}
}
