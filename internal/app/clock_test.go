package app

import (
	"context"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/server"
)

// With a clock that is decades behind or ahead, files, contents, log, API and search respond, and the log is signed.
func TestServesWithWrongClock(t *testing.T) {
	shelf, keys, quiet := testkit.NewShelf(t), t.TempDir(), slog.New(slog.DiscardHandler)
	shelf.Register("demo", `{"name": "demo", "description": "A demo.", "keywords": ["demo"], "filename": "demo.js", "license": "MIT",
		"repository": {"type": "git", "url": "https://example.com/demo.git"}}`)
	shelf.Publish("demo", "1.0.0", "demo.js", map[string]string{"demo.js": "demo"})
	open := func(now func() time.Time) *signing.Signer {
		t.Helper()
		signer, err := signing.Open(signing.Options{Dir: keys, Store: shelf.Store, Log: shelf.Log, Logger: quiet, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		return signer
	}
	if err := open(time.Now).Close(); err != nil { // signed with the right clock
		t.Fatal(err)
	}
	entry, err := logs.ReadEntry(shelf.Store, 1)
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, signer *signing.Signer) {
		t.Helper()
		index := library.New(library.Options{Store: shelf.Store, Log: shelf.Log})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- index.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		if err := index.Wait(t.Context(), shelf.Log.Checkpoint().Size); err != nil {
			t.Fatal(err)
		}
		assets, err := server.New(server.Options{Store: shelf.Store, Complete: true, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		contents, err := server.NewContents(server.ContentOptions{Store: shelf.Store, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		log, err := tiles.New(tiles.Options{Store: shelf.Store, Signer: signer, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		public := api.Public(api.PublicOptions{Library: index, AssetBase: "https://cdn.example.com", Logger: quiet})
		handler := server.Route(assets, server.RouteContents(contents, tiles.Route(log, public)))
		for _, path := range []string{
			"/ajax/libs/demo/1.0.0/demo.js", "/content/" + entry.Manifest.String(), "/log/checkpoint", "/log/tile/entries/000.p/2", "/libraries", "/libraries/demo", "/libraries?search=demo",
		} {
			if got := testkit.Ask(handler, http.MethodGet, path); got.StatusCode != http.StatusOK {
				t.Errorf("with the clock at %s, %s responds %s", time.Now().Format(time.DateOnly), path, got.Status)
			}
		}
		got := testkit.Ask(handler, http.MethodGet, "/ajax/libs/demo/1.0.0/demo.js", "If-Modified-Since", time.Now().UTC().Format(http.TimeFormat))
		if got.StatusCode != http.StatusOK && got.StatusCode != http.StatusNotModified {
			t.Errorf("with the clock at %s, a conditional request gets %s", time.Now().Format(time.DateOnly), got.Status)
		}
	}
	// The signer writes to the store, which was opened with the right clock, so it runs outside of the bubble of time.
	for _, later := range []time.Duration{0, 80 * 365 * 24 * time.Hour} {
		wrong := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(later)
		signer := open(func() time.Time { return wrong })
		bubble.Test(t, func(t *testing.T) { // which begins in the year 2000
			time.Sleep(later)
			check(t, signer)
		})
		if err := signer.Close(); err != nil {
			t.Error(err)
		}
	}
}
