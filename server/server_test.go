package server_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server"
)

// openStore returns a store in memory with the releases.
func openStore(tb testing.TB, releases []testkit.Release) *kvstore.Store {
	tb.Helper()
	o := inMemory()
	store, err := kvstore.Open("data", o)
	if err != nil {
		tb.Fatal(err)
	}
	if err := testkit.Publish(store, releases); err != nil {
		tb.Fatal(err)
	}
	settled, err := settle(store, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { settled.Close() })
	return settled
}

// settle opens a store again, which leaves nothing to be flushed, and reads it
// all, so that every file is open already. Pebble opens files when they are first
// read, with channels that must not be made in a synctest bubble, because the store
// outlives it.
func settle(store *kvstore.Store, o kvstore.Options) (*kvstore.Store, error) {
	if err := store.Close(); err != nil {
		return nil, err
	}
	store, err := kvstore.Open("data", o)
	if err != nil {
		return nil, err
	}
	for item, err := range store.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			return nil, err
		}
		if _, err := store.Identity(kvstore.Hash(item.Key)); err != nil {
			return nil, err
		}
	}
	for item, err := range store.Scan(kvstore.Files, kvstore.Range{}) {
		if err != nil {
			return nil, err
		}
		if _, err := store.Get(kvstore.Files, item.Key); err != nil {
			return nil, err
		}
	}
	return store, nil
}

// fixture returns a store with testkit.Releases that all tests share. It is for
// reading only.
func fixture(tb testing.TB) *kvstore.Store {
	tb.Helper()
	store, err := openFixture()
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

// openFixture makes a store that lives as long as the tests do.
var openFixture = sync.OnceValues(func() (*kvstore.Store, error) {
	o := inMemory()
	store, err := kvstore.Open("data", o)
	if err != nil {
		return nil, err
	}
	if err := testkit.Publish(store, testkit.Releases()); err != nil {
		return nil, err
	}
	return settle(store, o)
})

func inMemory() kvstore.Options {
	return kvstore.Options{FS: vfs.NewMem(), MemTableBytes: 8 << 20, CacheBytes: 1 << 20, MinFreeBytes: -1}
}

// ways are the ways that a request can take over HTTP/1.1.
var ways = map[string]func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string){
	"lane":     startLane,
	"net-http": start,
}

// eachWay runs a test for each way.
func eachWay(t *testing.T, test func(t *testing.T, start func(testing.TB, server.Options, server.HTTPOptions) (*server.Assets, string))) {
	for name, start := range ways {
		t.Run(name, func(t *testing.T) { test(t, start) })
	}
}

// start serves assets over loopback, with net/http alone, and returns the address.
func start(tb testing.TB, o server.Options, h server.HTTPOptions) (*server.Assets, string) {
	tb.Helper()
	assets := newAssets(tb, o)
	return assets, listen(tb, assets, h)
}

// startLane does the same with the fast lane in front.
func startLane(tb testing.TB, o server.Options, h server.HTTPOptions) (*server.Assets, string) {
	tb.Helper()
	assets := newAssets(tb, o)
	h.Lane = assets
	return assets, listen(tb, assets, h)
}

func listen(tb testing.TB, assets *server.Assets, h server.HTTPOptions) string {
	tb.Helper()
	scheme := "http://"
	if h.TLS != nil {
		scheme = "https://"
	}
	return scheme + serveOn(tb, server.Route(assets, http.NotFoundHandler()), h)
}

// serveOn serves over loopback and returns the address.
func serveOn(tb testing.TB, handler http.Handler, h server.HTTPOptions) string {
	tb.Helper()
	listener, err := server.OpenSocket(context.Background(), "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	s := server.NewHTTPServer(handler, h)
	done := make(chan error)
	go func() { done <- s.Serve(listener) }()
	tb.Cleanup(func() {
		s.Close()
		if err := <-done; err != http.ErrServerClosed {
			tb.Error(err)
		}
	})
	return listener.Addr().String()
}

func TestScripts(t *testing.T) {
	store := fixture(t)
	scripts := os.DirFS("testdata")

	t.Run("HTTP1", func(t *testing.T) {
		_, url := start(t, server.Options{Store: store}, server.HTTPOptions{})
		testkit.Run(t, url, scripts)
	})
	t.Run("lane", func(t *testing.T) {
		_, url := startLane(t, server.Options{Store: store}, server.HTTPOptions{})
		testkit.Run(t, url, scripts)
	})
	t.Run("lane with TLS", func(t *testing.T) {
		config, roots := selfSigned(t)
		_, url := startLane(t, server.Options{Store: store}, server.HTTPOptions{TLS: config})
		client := client(t, &http.Transport{DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: roots}})
		wantProtocol(t, client, url, "HTTP/1.1")
		testkit.RunOver(t, testkit.Client(client, url), scripts)
	})
	t.Run("TLS", func(t *testing.T) {
		config, roots := selfSigned(t)
		_, url := startLane(t, server.Options{Store: store}, server.HTTPOptions{TLS: config})
		client := client(t, &http.Transport{ForceAttemptHTTP2: true, DisableCompression: true, TLSClientConfig: &tls.Config{RootCAs: roots}})
		wantProtocol(t, client, url, "HTTP/2.0")
		testkit.RunOver(t, testkit.Client(client, url), scripts)
	})
	t.Run("H2C", func(t *testing.T) {
		_, url := start(t, server.Options{Store: store}, server.HTTPOptions{H2C: true})
		protocols := new(http.Protocols)
		protocols.SetUnencryptedHTTP2(true)
		client := client(t, &http.Transport{Protocols: protocols, DisableCompression: true})
		wantProtocol(t, client, url, "HTTP/2.0")
	})
}

func client(t *testing.T, transport *http.Transport) *http.Client {
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func wantProtocol(t *testing.T, client *http.Client, url, want string) {
	t.Helper()
	r, err := client.Get(url + "/ajax/libs/demo/1.0.0/tiny.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, _ := io.ReadAll(r.Body)
	if r.Proto != want || string(body) != "0123456789" {
		t.Errorf("%s with the body %q, want %s", r.Proto, body, want)
	}
}

var logged = testkit.Logged
