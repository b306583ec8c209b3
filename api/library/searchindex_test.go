package library_test

import (
	"errors"
	"log/slog"
	"net/http"
	"testing"

	"github.com/larder-cdn/larder/api"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
)

// If the search index is damaged, only search responds 503, until an update builds a new one.
func TestDamagedSearchIndex(t *testing.T) {
	t.Parallel()
	shelf := testkit.NewShelf(t)
	shelf.Enrol("plain", plainJSON)
	shelf.Publish("plain", "1.0.0", "plain.js", map[string]string{"plain.js": "plain"})
	x := shelf.Index(library.Options{})
	public := api.Public(api.PublicOptions{Library: x, AssetBase: "https://cdn.example.com", Logger: slog.New(slog.DiscardHandler)})
	want := func(search int) {
		t.Helper()
		for target, status := range map[string]int{"/libraries?search=plain": search, "/libraries": 200, "/libraries/plain": 200, "/libraries/plain/1.0.0": 200, "/stats": 200} {
			if got := testkit.Ask(public, http.MethodGet, target); got.StatusCode != status || status == 503 && got.Header.Get("Retry-After") == "" {
				t.Errorf("%s: %d, want %d", target, got.StatusCode, status)
			}
		}
	}
	want(200)
	if err := x.Ready(); err != nil {
		t.Error(err)
	}
	x.BreakSearch()
	want(503)
	shelf.Publish("plain", "1.1.0", "plain.js", map[string]string{"plain.js": "plain 1.1"}) // which the index cannot take
	testkit.Await(t, x, shelf.Log)
	want(503)
	if err := x.Ready(); !errors.Is(err, library.ErrSearch) {
		t.Errorf("it is said to be ready: %v", err)
	}
	shelf.Enrol("Chart.js", chartJSON)
	testkit.Await(t, x, shelf.Log)
	want(200)
	if err := x.Ready(); err != nil {
		t.Error(err)
	}
	if found, err := x.Search(t.Context(), "chart", nil); err != nil || len(found) != 1 {
		t.Errorf("found %v, %v", names(found), err)
	}
}

// Nothing is ready before all libraries have been read.
func TestReadyAfterTheFirstReading(t *testing.T) {
	t.Parallel()
	shelf := testkit.NewShelf(t)
	x, err := library.New(library.Options{Store: shelf.Store, Log: shelf.Log}) // which does not run
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Ready(); !errors.Is(err, library.ErrNotReady) {
		t.Errorf("it is said to be ready: %v", err)
	}
	if err := shelf.Index(library.Options{}).Ready(); err != nil {
		t.Error(err)
	}
}
