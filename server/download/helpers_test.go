package download_test

import (
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/download"
)

// openStore returns a store that has published the releases. Nothing in it is left
// to be flushed and all its files are open, because Pebble opens files when they are
// first read, with channels that must not be made in a synctest bubble.
func openStore(tb testing.TB, releases ...testkit.Release) *kvstore.Store {
	tb.Helper()
	o := kvstore.Options{FS: vfs.NewMem(), MemTableBytes: 8 << 20, CacheBytes: 1 << 20, MinFreeBytes: -1}
	store, err := kvstore.Open("data", o)
	if err != nil {
		tb.Fatal(err)
	}
	if err := testkit.Publish(store, releases); err != nil {
		tb.Fatal(err)
	}
	if err := store.Close(); err != nil {
		tb.Fatal(err)
	}
	if store, err = kvstore.Open("data", o); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { store.Close() })
	for item, err := range store.Scan(kvstore.Contents, kvstore.Range{}) {
		if err != nil {
			tb.Fatal(err)
		}
		if _, err := store.Identity(kvstore.Hash(item.Key)); err != nil {
			tb.Fatal(err)
		}
	}
	return store
}

func newHandler(tb testing.TB, o download.Options) *download.Handler {
	tb.Helper()
	h, err := download.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return h
}

var get, body, wantStatus, logged = testkit.Ask, testkit.Body, testkit.WantStatus, testkit.Logged

// count returns the counter of requests with that format and outcome.
func count(tb testing.TB, g prometheus.Gatherer, format, outcome string) float64 {
	tb.Helper()
	families, err := g.Gather()
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "larder_downloads_requests_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if l := m.GetLabel(); l[0].GetValue() == format && l[1].GetValue() == outcome {
				return m.GetCounter().GetValue()
			}
		}
	}
	tb.Fatalf("there is no counter of format %q and outcome %q", format, outcome)
	return 0
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

// onPipes serves h to clients, each of which runs on its own and dials once, in a
// synctest bubble.
func onPipes(h http.Handler, clients ...func(dial func() net.Conn)) {
	listener := make(pipes)
	s := server.NewHTTPServer(h, server.HTTPOptions{H2C: true})
	var serving, asking sync.WaitGroup
	serving.Go(func() { s.Serve(listener) })
	for _, client := range clients {
		asking.Go(func() {
			ours, theirs := net.Pipe()
			defer ours.Close()
			client(func() net.Conn {
				listener <- theirs
				return ours
			})
		})
	}
	asking.Wait()
	close(listener)
	serving.Wait()
	s.Close()
	synctest.Wait()
}

func ask(target string) string { return "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n" }
