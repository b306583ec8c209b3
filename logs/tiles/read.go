package tiles

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// read returns a tile, a bundle of entries or a content.
func (h *handler) read(t target) ([]byte, error) {
	if t.kind == content {
		return h.readContent(t)
	}
	return readTile(h.Store, t)
}

// ReadTile returns the tile or the bundle of entries at a path of the log in a store, of which nothing need be signed.
func ReadTile(store kvstore.Reader, path string) ([]byte, error) {
	t := parse(path)
	if t.kind != hashes && t.kind != entries {
		return nil, errors.New("the log has no such tile")
	}
	return readTile(store, t)
}

func readTile(store kvstore.Reader, t target) ([]byte, error) {
	if t.kind == hashes {
		return tlog.ReadTileData(tlog.Tile{H: Height, L: t.level, N: t.n, W: t.width}, logs.Hashes(store))
	}
	raw, err := logs.RawEntries(store, t.n<<Height, t.width)
	if err != nil {
		return nil, err
	}
	var bundle []byte
	for _, entry := range raw {
		bundle = binary.BigEndian.AppendUint16(bundle, uint16(len(entry))) // logs.MaxEntry is less
		bundle = append(bundle, entry...)
	}
	return bundle, nil
}

// CutEntry returns the first entry of a bundle, and what follows it; ok is false if the bundle ends before the entry does.
func CutEntry(bundle []byte) (entry, rest []byte, ok bool) {
	if len(bundle) < 2 || len(bundle)-2 < int(binary.BigEndian.Uint16(bundle)) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(bundle))
	return bundle[2:end], bundle[end:], true
}

// prove holds what was read against a signed tree. A store of which nothing is signed any
// more may have other entries than those that were.
func (h *handler) prove(t target, data []byte, signed logs.Checkpoint) error {
	level, first := 0, t.n<<Height
	var got []tlog.Hash
	switch t.kind {
	case hashes:
		level = Height * t.level
		for hash := range slices.Chunk(data, tlog.HashSize) {
			got = append(got, tlog.Hash(hash))
		}
	case entries:
		for len(data) > 0 {
			var raw []byte
			if raw, data, _ = CutEntry(data); raw != nil {
				got = append(got, tlog.RecordHash(raw))
			}
		}
	case content: // it has the hash that it is asked by, so what counts is the entry that names it
		raw, err := logs.RawEntries(h.Store, t.n, 1)
		if err != nil {
			return err
		}
		first, got = t.n, []tlog.Hash{tlog.RecordHash(raw[0])}
	}
	indexes := make([]int64, len(got))
	for i := range indexes {
		indexes[i] = tlog.StoredHashIndex(level, first+int64(i))
	}
	tree := tlog.TileHashReader(tlog.Tree{N: signed.Size, Hash: signed.Root}, stored{logs.Hashes(h.Store)})
	want, err := tree.ReadHashes(indexes)
	if err == nil && !slices.Equal(got, want) {
		err = errors.New("it is not what was signed")
	}
	return err
}

// stored has the tiles of the tree, for a reader that proves their hashes.
type stored struct{ hashes tlog.HashReader }

func (stored) Height() int { return Height }

func (s stored) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	var all [][]byte
	for _, tile := range tiles {
		data, err := tlog.ReadTileData(tile, s.hashes)
		if err != nil {
			return nil, err
		}
		all = append(all, data)
	}
	return all, nil
}

func (stored) SaveTiles([]tlog.Tile, [][]byte) {}
