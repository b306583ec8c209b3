package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// What the bucket shows is what the writer serves, byte by byte, and a checkpoint never goes back.
func TestShow(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	signer, err := signing.Open(signing.Options{Dir: t.TempDir(), Origin: origin, Store: one.Shelf.Store, Log: one.Shelf.Log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	served, err := tiles.New(tiles.Options{Store: one.Shelf.Store, Signer: signer, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	show := func() signing.Signed {
		t.Helper()
		if err := signer.Sign(); err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Checkpoint()
		if err == nil {
			err = one.Show(ctx, served, signed)
		}
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	for _, version := range []string{"1.0.0", "1.0.1"} {
		if err := one.publish("a", version); err != nil {
			t.Fatal(err)
		}
	}
	first := show()
	for i := range 300 { // more than a full tile
		one.Refuse("a", "2.0."+string(rune('a'+i%26))+strings.Repeat("x", i/26), "no")
	}
	last := show()
	source := &Source{Bucket: b}
	seen := 0
	for o, err := range b.List(ctx, "public/log/", "") {
		if err != nil {
			t.Fatal(err)
		}
		path := strings.TrimPrefix(o.Key, "public")
		w := httptest.NewRecorder()
		served.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		got, err := source.Get(ctx, path, 1<<20)
		if err != nil || !bytes.Equal(got, w.Body.Bytes()) {
			t.Errorf("%s is not what is served: %v", path, err)
		}
		seen++
	}
	if seen < 8 {
		t.Errorf("the bucket shows %d paths of the log", seen)
	}
	for _, path := range []string{"/log/checkpoint", "/log/key", "/log/keys", "/log/tile/0/000", "/log/tile/0/001.p/46", "/log/tile/1/000.p/1", "/log/tile/entries/000", "/log/tile/entries/001.p/46"} {
		if _, err := source.Get(ctx, path, 1<<20); err != nil {
			t.Error(err)
		}
	}
	key, err := note.NewVerifier(signer.Key())
	if err != nil {
		t.Fatal(err)
	}
	shown, err := source.Get(ctx, "/log/checkpoint", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if signed, err := signing.OpenWith(shown, key, nil); err != nil || signed.Checkpoint != last.Checkpoint {
		t.Errorf("the bucket shows %v, %v", signed.Checkpoint, err)
	}
	if err := source.Await(ctx, first.Note); err != nil {
		t.Error(err)
	}
	if err := one.showCheckpoint(ctx, first); !errors.Is(err, ErrShown) {
		t.Errorf("an earlier checkpoint: %v", err)
	}
	own, shared := kvstore.Sum([]byte("a1.0.0")), kvstore.Sum([]byte("shared by a"))
	if c, err := source.Content(ctx, own, 1<<10); err != nil || kvstore.Sum(c.Bytes) != own {
		t.Error(err)
	}
	one.Withdraw("a", "1.0.0", "malware")
	show()
	if _, err := source.Content(ctx, own, 1<<10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what only a withdrawn release has: %v", err)
	}
	if _, err := source.Content(ctx, shared, 1<<10); err != nil {
		t.Errorf("what another release has too: %v", err)
	}
	one.Restore("a", "1.0.0", "it was none")
	show()
	if _, err := source.Content(ctx, own, 1<<10); err != nil {
		t.Errorf("what is served again: %v", err)
	}
}
