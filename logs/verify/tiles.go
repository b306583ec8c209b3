package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/tiles"
)

// The tiles are those of https://c2sp.org/tlog-tiles.
const (
	height    = tiles.Height
	fullWidth = tiles.Width
)

// tileReader fetches tiles for one verification. Package tlog holds each of them
// against the tree before it goes by it.
type tileReader struct {
	ctx    context.Context
	remote *remote
	cache  map[tlog.Tile][]byte // of tiles that are proven
	err    error                // of fetching
}

// of reads the hashes of a tree, each of which is proven.
func (t *tileReader) of(tree tlog.Tree) tlog.HashReader {
	proven := tlog.TileHashReader(tree, t)
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		hashes, err := proven.ReadHashes(indexes)
		switch {
		case t.err != nil:
			return nil, t.err
		case err != nil:
			return nil, differs("the log's tiles do not belong to the tree of %d entries that is signed: %v", tree.N, err)
		}
		return hashes, nil
	})
}

func (t *tileReader) Height() int { return height }

func (t *tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	group, ctx := errgroup.WithContext(t.ctx)
	group.SetLimit(parallel)
	for i, tile := range tiles {
		var ok bool
		if data[i], ok = t.cache[tile]; ok {
			continue
		}
		group.Go(func() (err error) {
			data[i], err = t.readTile(ctx, tile)
			return err
		})
	}
	t.err = group.Wait()
	return data, t.err
}

func (t *tileReader) readTile(ctx context.Context, tile tlog.Tile) ([]byte, error) {
	data, err := t.remote.tile(ctx, tile, tiles.TilePath(tile), tlog.HashSize)
	if err != nil {
		return nil, err
	}
	want := tile.W * tlog.HashSize
	if len(data) < want {
		return nil, differs("%s/log/tile/… of level %d, number %d has %d bytes, not %d", t.remote.base, tile.L, tile.N, len(data), want)
	}
	return data[:want], nil // of a full tile in the place of a partial one
}

func (t *tileReader) SaveTiles(tiles []tlog.Tile, data [][]byte) {
	const most = 1024 // tiles, 8 KiB each
	if len(t.cache) > most {
		clear(t.cache)
	}
	for i, tile := range tiles {
		t.cache[tile] = data[i]
	}
}

// tile returns what a partial tile has, or the full one that has taken its place. An
// element has most bytes.
func (r *remote) tile(ctx context.Context, tile tlog.Tile, path string, most int64) ([]byte, error) {
	data, err := r.get(ctx, path, int64(tile.W)*most)
	if tile.W < fullWidth && errors.Is(err, fs.ErrNotExist) {
		full, _, _ := strings.Cut(path, ".p/")
		return r.get(ctx, full, fullWidth*most)
	}
	return data, err
}

// entryTile is the tile of level 0 over the entries of bundle n.
func (l *Log) entryTile(n int64) tlog.Tile {
	return tlog.Tile{H: height, L: 0, N: n, W: int(min(fullWidth, l.tree.N-n<<height))}
}

// fetchBundle returns the entries under a tile of level 0, of which nothing is proven.
func (l *Log) fetchBundle(ctx context.Context, n int64) ([]byte, error) {
	tile := l.entryTile(n)
	return l.remote.tile(ctx, tile, tiles.EntriesPath(n, tile.W), 2+logs.MaxEntry)
}

// bundles returns the entries of the bundles from n until end, each of which is proven to
// be in the tree.
func (l *Log) bundles(ctx context.Context, n, end int64) ([]logs.Indexed, error) {
	data := make([][]byte, end-n)
	group, fetching := errgroup.WithContext(ctx)
	for i := range data {
		group.Go(func() (err error) {
			data[i], err = l.fetchBundle(fetching, n+int64(i))
			return err
		})
	}
	first, last := n<<height, min(end<<height, l.tree.N)
	indexes := make([]int64, last-first)
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(0, first+int64(i))
	}
	hashes, err := l.hashes(ctx).ReadHashes(indexes)
	if failed := group.Wait(); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	entries := make([]logs.Indexed, 0, len(hashes))
	for i, bundle := range data {
		if entries, err = unpack(entries, bundle, n+int64(i), hashes[i<<height:min(len(hashes), (i+1)<<height)]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// unpack appends the entries of a bundle, which have these hashes.
func unpack(entries []logs.Indexed, data []byte, n int64, hashes []tlog.Hash) ([]logs.Indexed, error) {
	for i, hash := range hashes {
		index := n<<height + int64(i)
		raw, rest, ok := tiles.CutEntry(data)
		if !ok {
			return nil, differs("the bundle of entries %d ends before entry %d", n, index)
		}
		data = rest
		if tlog.RecordHash(raw) != hash {
			return nil, differs("entry %d is not the one in the signed tree", index)
		}
		e, err := logs.ParseEntry(index, raw)
		if err != nil {
			return nil, fmt.Errorf("%w; a newer larder may know it", err)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// bundlesAtOnce bounds what Entries returns, in bundles.
const bundlesAtOnce = 4

// Entries returns entries from index on that are proven to be in the log, oldest first: up to
// some hundreds, and none only where the log has none.
func (l *Log) Entries(ctx context.Context, index int64) ([]logs.Indexed, error) {
	if index >= l.tree.N {
		return nil, nil
	}
	first := index >> height
	entries, err := l.bundles(ctx, first, min(first+bundlesAtOnce, (l.tree.N+fullWidth-1)>>height))
	if err != nil {
		return nil, err
	}
	return entries[index-first<<height:], nil
}

// Contains returns nil where the log begins with a tree, and a [Difference] where it does not.
// What is signed of that is the caller's to know.
func (l *Log) Contains(ctx context.Context, before logs.Checkpoint) error {
	if before.Size > l.tree.N {
		return differs("the log has %d entries, and not %d", l.tree.N, before.Size)
	}
	if before.Size == 0 {
		return nil
	}
	root := l.tree.Hash
	if before.Size < l.tree.N {
		var err error
		if root, err = tlog.TreeHash(before.Size, l.hashes(ctx)); err != nil {
			return err
		}
	}
	if root != before.Root {
		return differs("the log's first %d entries are others", before.Size)
	}
	return nil
}

// Entry returns an entry that is proven to be in the log.
func (l *Log) Entry(ctx context.Context, index int64) (logs.Indexed, error) {
	if index < 0 || index >= l.tree.N {
		return logs.Indexed{}, fmt.Errorf("the signed log has %d entries, and entry %d is not among them", l.tree.N, index)
	}
	n := index >> height
	if l.last.entries == nil || l.last.n != n {
		entries, err := l.bundles(ctx, n, n+1)
		if err != nil {
			return logs.Indexed{}, err
		}
		l.last.n, l.last.entries = n, entries
	}
	return l.last.entries[index&(fullWidth-1)], nil
}
