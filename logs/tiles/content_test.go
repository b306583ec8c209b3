package tiles_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

func (r *rig) keep(text string) kvstore.Hash {
	r.Helper()
	h := kvstore.Sum([]byte(text))
	if err := r.store.PutContent(h, int64(len(text)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: []byte(text)}}); err != nil {
		r.Fatal(err)
	}
	return h
}

// TestContents asks for what entries name, and for what they do not.
func TestContents(t *testing.T) {
	r := newRig(t)
	r.grow(3)
	manifest, diff, file := r.keep(`{"manifest":"of three files"}`), r.keep(strings.Repeat("+ a line\n", 500)), r.keep("alert(1)")
	err := r.log.Update(func(tx *logs.Tx) error {
		_, err := tx.Append(logs.Entry{Kind: logs.Published, Actor: "bot", Package: "vue", Version: "3.0.0", Manifest: manifest, Diff: diff})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	named := tiles.ContentPath(3, manifest)
	if response, _ := r.ask(r.server, http.MethodGet, named); response.StatusCode != http.StatusNotFound {
		t.Errorf("before its entry is signed: %d", response.StatusCode)
	}
	r.grow(5)
	for _, tt := range []struct {
		path   string
		status int
		body   string
	}{
		{named, 200, "of three files"},
		{tiles.ContentPath(3, diff), 200, "+ a line\n"},
		{tiles.ContentPath(3, file), 404, "Entry 3 names no such content"},
		{tiles.ContentPath(2, manifest), 404, "Entry 2 names no such content"},
		{tiles.ContentPath(3, kvstore.Hash{}), 404, "Entry 3 names no such content"},
		{tiles.ContentPath(5, manifest), 404, "The log has 5 entries"},
		{"/log/content/03/" + manifest.String(), 404, "no such path"},
		{"/log/content/3/" + strings.ToUpper(manifest.String()), 404, "no such path"},
		{"/log/content/" + manifest.String(), 404, "no such path"},
	} {
		response, body := r.ask(r.server, http.MethodGet, tt.path)
		cached := response.Header.Get("Cache-Control")
		if response.StatusCode != tt.status || !strings.Contains(string(body), tt.body) || strings.Contains(cached, "immutable") != (tt.status == 200) {
			t.Errorf("%s: %d, Cache-Control: %s, %s", tt.path, response.StatusCode, cached, body)
		}
	}
	if response, body := r.ask(r.server, http.MethodGet, tiles.ContentPath(3, diff), "Accept-Encoding: gzip"); response.Header.Get("Content-Encoding") != "gzip" || len(body) > 200 {
		t.Errorf("Content-Encoding: %q, %d bytes", response.Header.Get("Content-Encoding"), len(body))
	}
}
