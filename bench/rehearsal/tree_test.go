package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs/tiles"
)

// hashes are those of a log in memory, by their index.
type hashes []tlog.Hash

func (h hashes) ReadHashes(indexes []int64) (read []tlog.Hash, err error) {
	for _, i := range indexes {
		read = append(read, h[i])
	}
	return read, nil
}

// The head of an earlier log is what that was, and tiles that do not belong to the present tree are refused.
func TestHeadBefore(t *testing.T) {
	const size = 300
	var stored hashes
	heads := make([]logHead, size+1)
	served := map[string][]byte{}
	for n := range int64(size) {
		added, err := tlog.StoredHashes(n, fmt.Appendf(nil, "entry %d", n), stored)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, added...)
		root, err := tlog.TreeHash(n+1, stored)
		if err != nil {
			t.Fatal(err)
		}
		heads[n+1] = logHead{n + 1, root.String()}
	}
	for _, tile := range tlog.NewTiles(tiles.Height, 0, size) {
		data, err := tlog.ReadTileData(tile, stored)
		if err != nil {
			t.Fatal(err)
		}
		served[tiles.TilePath(tile)] = data
	}
	checkpoint := fmt.Sprintf("log.example.com\n%d\n%s\n\n", size, heads[size].Root)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if data, ok := served[r.URL.Path]; ok {
			_, _ = w.Write(data)
		} else if strings.HasSuffix(r.URL.Path, "/checkpoint") {
			_, _ = w.Write([]byte(checkpoint))
		} else {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer s.Close()
	p, a := &play{}, &actor{name: "a node", address: strings.TrimPrefix(s.URL, "http://")}
	for _, n := range []int64{1, 7, 256, 299, 300} {
		if got, err := p.headBefore(t.Context(), a, n); err != nil || got != heads[n] {
			t.Errorf("%d entries: %v, %v", n, got, err)
		}
	}
	for _, n := range []int64{0, size + 1} {
		if got, err := headOfTree(heads[size], n, &servedTiles{}); err == nil {
			t.Errorf("%d entries of %d: %v", n, size, got)
		}
	}
	for _, data := range served {
		data[0] ^= 1
	}
	if got, err := p.headBefore(t.Context(), a, 7); err == nil {
		t.Errorf("from tiles of another tree: %v", got)
	}
}
