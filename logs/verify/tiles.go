package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// height is that of the tiles of https://c2sp.org/tlog-tiles, which have 256 hashes.
const (
	height    = 8
	fullWidth = 1 << height
)

// maxEntry is the largest entry that a bundle can have.
const maxEntry = 1<<16 - 1

// tileReader fetches tiles for one verification. Package tlog holds each of them
// against the tree before it goes by it.
type tileReader struct {
	ctx    context.Context
	remote *remote
	cache  map[tlog.Tile][]byte // of tiles that are proven
	err    error                // of fetching
}

func (t *tileReader) Height() int { return height }

func (t *tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data, err := t.readTiles(tiles)
	t.err = err
	return data, err
}

func (t *tileReader) readTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		var ok bool
		if data[i], ok = t.cache[tile]; ok {
			continue
		}
		var err error
		if data[i], err = t.fetch(tile, strings.TrimPrefix(tile.Path(), fmt.Sprintf("tile/%d/", height)), tlog.HashSize); err != nil {
			return nil, err
		}
		want := tile.W * tlog.HashSize
		if len(data[i]) < want {
			return nil, differs("%s/log/tile/… of level %d, number %d has %d bytes, not %d", t.remote.base, tile.L, tile.N, len(data[i]), want)
		}
		data[i] = data[i][:want] // of a full tile in the place of a partial one
	}
	return data, nil
}

func (t *tileReader) SaveTiles(tiles []tlog.Tile, data [][]byte) {
	const most = 4096 // tiles, 8 KiB each
	if len(t.cache) > most {
		clear(t.cache)
	}
	for i, tile := range tiles {
		t.cache[tile] = data[i]
	}
}

// fetch returns what a partial tile has, or the full one that has taken its place.
func (t *tileReader) fetch(tile tlog.Tile, path string, most int64) ([]byte, error) {
	data, err := t.remote.get(t.ctx, "/log/tile/"+path, int64(tile.W)*most)
	if tile.W < fullWidth && errors.Is(err, errNotThere) {
		full, _, _ := strings.Cut(path, ".p/")
		return t.remote.get(t.ctx, "/log/tile/"+full, fullWidth*most)
	}
	return data, err
}

// bundle returns the entries under a tile of level 0, each of which is proven to be
// in the tree.
func (l *Log) bundle(ctx context.Context, n int64) ([]logs.Indexed, error) {
	if l.last.entries != nil && l.last.n == n {
		return l.last.entries, nil
	}
	tile := tlog.Tile{H: height, L: 0, N: n, W: int(min(fullWidth, l.tree.N-n<<height))}
	_, number, _ := strings.Cut(strings.TrimPrefix(tile.Path(), "tile/"), "/") // without the height
	_, number, _ = strings.Cut(number, "/")                                    // without the level
	reader := l.tiles(ctx)
	data, err := reader.fetch(tile, "entries/"+number, 2+maxEntry)
	if err != nil {
		return nil, err
	}
	indexes := make([]int64, tile.W)
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(0, n<<height+int64(i))
	}
	hashes, err := l.hashes(ctx).ReadHashes(indexes)
	if err != nil {
		return nil, err
	}
	entries := make([]logs.Indexed, tile.W)
	for i := range entries {
		index := n<<height + int64(i)
		if len(data) < 2 || len(data)-2 < int(binary.BigEndian.Uint16(data)) {
			return nil, differs("the bundle of entries %d ends before entry %d", n, index)
		}
		raw := data[2 : 2+binary.BigEndian.Uint16(data)]
		data = data[2+len(raw):]
		if tlog.RecordHash(raw) != hashes[i] {
			return nil, differs("entry %d is not the one in the signed tree", index)
		}
		if entries[i], err = logs.ParseEntry(index, raw); err != nil {
			return nil, fmt.Errorf("%w; a newer larder may know it", err)
		}
	}
	l.last.n, l.last.entries = n, entries
	return entries, nil
}

// Entry returns an entry that is proven to be in the log.
func (l *Log) Entry(ctx context.Context, index int64) (logs.Indexed, error) {
	if index < 0 || index >= l.tree.N {
		return logs.Indexed{}, fmt.Errorf("the signed log has %d entries, and entry %d is not among them", l.tree.N, index)
	}
	entries, err := l.bundle(ctx, index>>height)
	if err != nil {
		return logs.Indexed{}, err
	}
	return entries[index&(fullWidth-1)], nil
}
