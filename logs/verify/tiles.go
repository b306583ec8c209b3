package verify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
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

// A tileReader fetches tiles for one verification. Package tlog verifies each tile against the tree before it uses it.
type tileReader struct {
	ctx    context.Context
	remote *remote
	cache  map[tlog.Tile][]byte // of tiles that are proven
	err    error                // of the last ReadTiles; nil for none
}

// newHashReader returns a reader of the hashes of a tree, each of which is proven to be in it. It takes tiles from cache or the
// remote, and caches those that are proven to be of the tree. Reading fails with a [Difference] for tiles of another tree, or with too
// few hashes, and with the error of the request for tiles that cannot be fetched.
func newHashReader(ctx context.Context, remote *remote, tree tlog.Tree, cache map[tlog.Tile][]byte) tlog.HashReader {
	t := &tileReader{ctx: ctx, remote: remote, cache: cache}
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

// Height implements [tlog.TileReader]: it returns the height of a tile in levels of the tree, which is the same for all logs.
func (t *tileReader) Height() int { return height }

// ReadTiles returns the hashes in tiles, in their order, from the cache or the server, at most 8 of which it requests at
// once. It does not verify them, nor add them to the cache. It also stores the error, or nil, in t.err; see
// [tlog.TileReader].
func (t *tileReader) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	group, ctx := errgroup.WithContext(t.ctx)
	group.SetLimit(maxParallel)
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

// readTile fetches a tile of the log's tree from the server and returns its tile.W hashes, which it does not verify. A tile
// with too few hashes is a [Difference].
func (t *tileReader) readTile(ctx context.Context, tile tlog.Tile) ([]byte, error) {
	data, err := t.remote.getTile(ctx, tile, tiles.TilePath(tile), tlog.HashSize)
	if err != nil {
		return nil, err
	}
	want := tile.W * tlog.HashSize
	if len(data) < want {
		return nil, differs("%s/log/tile/… of level %d, number %d has %d bytes, not %d", t.remote.base, tile.L, tile.N, len(data), want)
	}
	return data[:want], nil // of a full tile in the place of a partial one
}

// SaveTiles adds verified tiles to the cache, which it clears first if it has over 1,024; see [tlog.TileReader].
func (t *tileReader) SaveTiles(tiles []tlog.Tile, data [][]byte) {
	const most = 1024 // tiles, 8 KiB each
	if len(t.cache) > most {
		clear(t.cache)
	}
	for i, tile := range tiles {
		t.cache[tile] = data[i]
	}
}

// getTile returns the content of the tile under a path, unverified. If the server does not have a partial tile, it returns
// that of the full tile, which is longer. maxElement bounds an element of the tile, in bytes; a longer content is an error.
// The error for a missing tile is [fs.ErrNotExist].
func (r *remote) getTile(ctx context.Context, tile tlog.Tile, path string, maxElement int64) ([]byte, error) {
	data, err := r.get(ctx, path, int64(tile.W)*maxElement)
	if tile.W < fullWidth && errors.Is(err, fs.ErrNotExist) {
		full, _, _ := strings.Cut(path, ".p/")
		return r.get(ctx, full, fullWidth*maxElement)
	}
	return data, err
}

// fetchBundle returns the encoded bundle n of the log, which has 256 entries or is the last one, as the server sends it,
// unverified. In the place of the last one, the server may send a longer bundle.
func (l *Log) fetchBundle(ctx context.Context, n int64) ([]byte, error) {
	tile := tlog.Tile{H: height, L: 0, N: n, W: int(min(fullWidth, l.Tree.N-n<<height))} // of the hashes of its entries
	return l.remote.getTile(ctx, tile, tiles.EntriesPath(n, tile.W), 2+logs.MaxEntry)
}

// readBundles fetches the bundles with the numbers from n up to, but not including, end, all at once, and returns their
// entries in order. Each entry is proven to be in the tree. Entries or tiles that are not are a [Difference]; with any
// error, it returns no entries.
func (l *Log) readBundles(ctx context.Context, n, end int64) ([]logs.Indexed, error) {
	data := make([][]byte, end-n)
	group, fetching := errgroup.WithContext(ctx)
	for i := range data {
		group.Go(func() (err error) {
			data[i], err = l.fetchBundle(fetching, n+int64(i))
			return err
		})
	}
	first, last := n<<height, min(end<<height, l.Tree.N)
	indexes := make([]int64, last-first)
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(0, first+int64(i))
	}
	hashes, err := l.hashReader(ctx).ReadHashes(indexes)
	if failed := group.Wait(); failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	entries := make([]logs.Indexed, 0, len(hashes))
	for i, bundle := range data {
		if entries, err = appendBundle(entries, bundle, n+int64(i), hashes[i<<height:min(len(hashes), (i+1)<<height)]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// appendBundle parses the entries of bundle number n in data, as many as there are hashes, verifies that they have these
// hashes, and returns entries with them appended. It ignores what follows them. Another hash, or a bundle that ends before,
// is a [Difference]; an entry that this program cannot parse is another error.
func appendBundle(entries []logs.Indexed, data []byte, n int64, hashes []tlog.Hash) ([]logs.Indexed, error) {
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

// bundlesAtOnce is how many bundles, of at most 4 MiB each, are read together.
const bundlesAtOnce = 4

// Entries returns entries that are proven to be in the log, in order from the one with this index on, which must not be
// negative: at most 1,024, and at least one unless the index is beyond the last entry. Then it returns nil without an
// error.
func (l *Log) Entries(ctx context.Context, index int64) ([]logs.Indexed, error) {
	if index >= l.Tree.N {
		return nil, nil
	}
	first := index >> height
	entries, err := l.readBundles(ctx, first, min(first+bundlesAtOnce, (l.Tree.N+fullWidth-1)>>height))
	if err != nil {
		return nil, err
	}
	return entries[index-first<<height:], nil
}

// EntriesFrom yields the entries from an index on, to the end of the log, each of which is proven to be in it. It fetches
// them while it yields. An error comes last, with a zero entry.
func (l *Log) EntriesFrom(ctx context.Context, index int64) iter.Seq2[logs.Indexed, error] {
	return func(yield func(logs.Indexed, error) bool) {
		for index < l.Tree.N {
			entries, err := l.Entries(ctx, index)
			if err != nil {
				yield(logs.Indexed{}, err)
				return
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
			}
			index += int64(len(entries))
		}
	}
}

// CheckContains returns nil if the log begins with the tree of a checkpoint, and a [Difference] if it does not, is smaller,
// or the server's tiles are not of its tree. Any other error proves nothing. Every log contains a checkpoint of no entries.
// The caller must know that the checkpoint was signed.
func (l *Log) CheckContains(ctx context.Context, before logs.Checkpoint) error {
	if before.Size > l.Tree.N {
		return differs("the log has %d entries, and not %d", l.Tree.N, before.Size)
	}
	contained, err := contains(l.signedCheckpoint().Checkpoint, before, l.hashReader(ctx))
	if err == nil && !contained {
		err = differs("the log's first %d entries are others", before.Size)
	}
	return err
}

// Entry returns the entry at an index, which is proven to be in the log. It caches the entry's bundle in l, in the place of
// the last one, so that the entries near it need no request. An index outside the log is an error, but no [Difference].
func (l *Log) Entry(ctx context.Context, index int64) (logs.Indexed, error) {
	if index < 0 || index >= l.Tree.N {
		return logs.Indexed{}, fmt.Errorf("the signed log has %d entries, and entry %d is not among them", l.Tree.N, index)
	}
	n := index >> height
	if len(l.last) == 0 || l.last[0].Index != n<<height {
		entries, err := l.readBundles(ctx, n, n+1)
		if err != nil {
			return logs.Indexed{}, err
		}
		l.last = entries
	}
	return l.last[index&(fullWidth-1)], nil
}
