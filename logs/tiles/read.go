package tiles

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// read reads a tile, a bundle of entries or a content, whichever the target is. The error for a content that its entry does
// not name is an [answers.Failure].
func (h *handler) read(t target) ([]byte, error) {
	if t.kind == content {
		return h.readContent(t)
	}
	return readTile(h.Store, t)
}

// ReadLog returns what a Larder serves at a path of the log in a store: the signed checkpoint, the key, the key's changes,
// or a tile or a bundle of entries, signed or not. The error is [fs.ErrNotExist] if the store has nothing at the path, if a
// tile or bundle cannot be read, and for any other path. An unsigned log has changes with an empty key.
func ReadLog(store kvstore.Reader, path string) (data []byte, err error) {
	switch t := parsePath(path); t.kind {
	case checkpoint:
		data, err = signing.StoredNote(store)
	case key:
		var verifier string
		if verifier, err = signing.SignedBy(store); verifier != "" {
			data = []byte(verifier + "\n")
		}
	case keys:
		data, err = readKeys(store)
	case hashes, entries:
		if data, err = readTile(store, t); err != nil {
			err = fmt.Errorf("%w: %w", fs.ErrNotExist, err)
		}
	}
	if err == nil && len(data) == 0 {
		err = fs.ErrNotExist
	}
	return data, err
}

// readKeys returns the log's key, "" if none has signed it, and its changes in a store, as [Keys] in JSON.
func readKeys(store kvstore.Reader) ([]byte, error) {
	changes, err := signing.KeyChanges(store)
	if err != nil {
		return nil, err
	}
	key, err := signing.SignedBy(store)
	if err != nil {
		return nil, err
	}
	return encodeKeys(key, changes)
}

// readTile reads a tile of hashes or a bundle of entries, in which each entry follows its length in two bytes. It does not
// verify them.
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

// CutEntry returns the first entry of a bundle, without the two bytes of its length, and the rest of the bundle; both are
// parts of bundle. It reports false if the bundle ends before the entry does, or is empty.
func CutEntry(bundle []byte) (entry, rest []byte, ok bool) {
	if len(bundle) < 2 || len(bundle)-2 < int(binary.BigEndian.Uint16(bundle)) {
		return nil, nil, false
	}
	end := 2 + int(binary.BigEndian.Uint16(bundle))
	return bundle[2:end], bundle[end:], true
}

// compareWithTree returns an error unless data, read for t, belongs to a signed tree. Of a content, it compares the entry
// that names it. A store that lost signed entries may have others in their place.
func (h *handler) compareWithTree(t target, data []byte, signed logs.Checkpoint) error {
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
	case content: // its hash is that in the request, so the entry that names it must be proven
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

// Height returns the height of a tile; see [tlog.TileReader].
func (stored) Height() int { return Height }

// ReadTiles reads tiles from the stored hashes; see [tlog.TileReader].
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

// SaveTiles does nothing; see [tlog.TileReader].
func (stored) SaveTiles([]tlog.Tile, [][]byte) {}
