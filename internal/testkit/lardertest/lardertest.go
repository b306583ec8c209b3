// Package lardertest is a Larder on loopback, for tests of what asks one: its log is signed as it grows, and served with
// files and contents. It can be made to lie.
package lardertest

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/server"
)

// Origin is what its log is called.
const Origin = "cdn.example.com/log"

// A Larder serves a shelf.
type Larder struct {
	*testkit.Shelf
	*httptest.Server
	Signer *signing.Signer

	mu   sync.Mutex
	lies map[string]string
}

// New returns a Larder with an empty shelf, which ends with the test.
func New(tb testing.TB) *Larder {
	tb.Helper()
	return Serve(tb, testkit.NewShelf(tb), tb.TempDir())
}

// Serve returns the Larder that serves a shelf and signs its log with what is in a key folder. All that the log has by now
// is signed when it returns.
func Serve(tb testing.TB, shelf *testkit.Shelf, keys string) *Larder {
	tb.Helper()
	l := &Larder{Shelf: shelf, lies: map[string]string{}}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if l.Signer, err = signing.Open(signing.Options{Dir: keys, Origin: Origin, Store: l.Store, Log: l.Log, Logger: quiet}); err != nil {
		tb.Fatal(err)
	}
	if l.Log.Checkpoint().Size > 0 {
		if err := l.Signer.Sign(); err != nil {
			tb.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.Signer.Run(ctx) })
	tb.Cleanup(func() { cancel(); running.Wait(); l.Signer.Close() })
	log, err := tiles.New(tiles.Options{Store: l.Store, Signer: l.Signer, Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	contents, err := server.NewContents(server.ContentOptions{Store: l.Store, Logger: quiet})
	if err != nil {
		tb.Fatal(err)
	}
	assets, err := server.New(server.Options{Store: l.Store})
	if err != nil {
		tb.Fatal(err)
	}
	withdrawals := assets.Follow(l.Log)
	running.Go(func() { withdrawals.Run(ctx) })
	honest := server.RouteContents(contents, server.Route(assets, tiles.Route(log, http.NotFoundHandler())))
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		lie, lies := l.lies[r.URL.Path]
		l.mu.Unlock()
		if lies {
			io.WriteString(w, lie) //nolint:errcheck // the client went away
			return
		}
		honest.ServeHTTP(w, r)
	}))
	tb.Cleanup(l.Server.Close)
	return l
}

// Lie has a path be answered with something else.
func (l *Larder) Lie(path, instead string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lies[path] = instead
}
