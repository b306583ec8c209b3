package tiles

import (
	"encoding/binary"
	"errors"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
)

// read returns a tile, a bundle of entries or a content.
func (h *handler) read(t target) ([]byte, error) {
	switch t.kind {
	case content:
		return h.readContent(t)
	case hashes:
		return tlog.ReadTileData(tlog.Tile{H: height, L: t.level, N: t.n, W: t.width}, logs.Hashes(h.Store))
	}
	raw, err := logs.RawEntries(h.Store, t.n<<height, t.width)
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

// prove holds what was read against a signed tree. A store of which nothing is signed any
// more may have other entries than those that were.
func (h *handler) prove(t target, data []byte, signed logs.Checkpoint) error {
	level, first := 0, t.n<<height
	var got []tlog.Hash
	switch t.kind {
	case hashes:
		level = height * t.level
		for hash := range slices.Chunk(data, tlog.HashSize) {
			got = append(got, tlog.Hash(hash))
		}
	case entries:
		for len(data) > 0 {
			end := 2 + int(binary.BigEndian.Uint16(data))
			got = append(got, tlog.RecordHash(data[2:end]))
			data = data[end:]
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

func (stored) Height() int { return height }

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
