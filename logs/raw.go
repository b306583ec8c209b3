package logs

import (
	"fmt"
	"iter"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
)

// Hashes returns a reader of the tree's hashes in r, for proofs and tiles. Package tlog defines their indexes.
func Hashes(r kvstore.Reader) tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		return readHashes(indexes, func(index int64) (tlog.Hash, error) { return readHash(r, index) })
	})
}

// readHashes calls read with each index, in their order, and returns the hashes. It ends at the first error and returns that.
func readHashes(indexes []int64, read func(index int64) (tlog.Hash, error)) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		var err error
		if hashes[i], err = read(index); err != nil {
			return nil, err
		}
	}
	return hashes, nil
}

// RawEntries returns the bytes of the n entries from an index on, without decoding them: they may have a format that only a
// newer Larder knows. It returns an error, and no entries, if one is missing.
func RawEntries(r kvstore.Reader, from int64, n int) ([][]byte, error) {
	out := make([][]byte, 0, n)
	for item, err := range r.Scan(kvstore.LogEntries, kvstore.Range{From: indexKey(from), To: indexKey(from + int64(n))}) {
		if err != nil {
			return nil, fmt.Errorf("logs: couldn't read the entries from %d on: %w", from, err)
		}
		index, err := parseIndexKey(item.Key)
		if err != nil {
			return nil, err
		}
		if index != from+int64(len(out)) {
			break
		}
		out = append(out, append([]byte(nil), item.Value...))
	}
	if len(out) < n {
		return nil, fmt.Errorf("logs: entry %d is missing", from+int64(len(out)))
	}
	return out, nil
}

// ParseEntry decodes the bytes of the entry at an index. It does not verify that the log has it.
func ParseEntry(index int64, raw []byte) (Indexed, error) {
	e, err := decodeEntry(raw)
	if err != nil {
		return Indexed{}, fmt.Errorf("logs: entry %d: %w", index, err)
	}
	return Indexed{Index: index, Entry: e, Raw: raw}, nil
}

// AppendRaw appends an entry with the bytes that another store of the same log has, so that the trees are equal. Bytes over
// [MaxEntry], or that are no entry of a known format, are an error. So is an entry that states another map of live releases,
// and then the whole Tx fails. The caller must compare the tree with a signed one.
func (tx *Tx) AppendRaw(raw []byte) (Indexed, error) {
	if len(raw) > MaxEntry {
		return Indexed{}, fmt.Errorf("logs: entry %d has %d bytes, over the limit of %d", tx.size, len(raw), MaxEntry)
	}
	e, err := ParseEntry(tx.size, raw)
	if err == nil {
		err = tx.checkLive(e.Entry)
	}
	if err != nil {
		return Indexed{}, err
	}
	return tx.addEncoded(e.Entry, raw)
}

// RawEntry returns the bytes of the entry at an index, or kvstore.ErrNotFound. It works also if a scan fails because of damage
// before the entry.
func RawEntry(r kvstore.Getter, index int64) ([]byte, error) {
	data, err := r.Get(kvstore.LogEntries, indexKey(index))
	if err != nil {
		return nil, fmt.Errorf("logs: entry %d: %w", index, err)
	}
	return data, nil
}

// MatchesTree reports whether raw are the bytes of the entry at an index over which the tree in r was hashed. It is false if
// the hash cannot be read.
func MatchesTree(r kvstore.Getter, index int64, raw []byte) bool {
	h, err := readHash(r, tlog.StoredHashIndex(0, index))
	return err == nil && h == tlog.RecordHash(raw)
}

// EntryVersions returns all values that a scan of a damaged store's files has found for the entry at an index.
func EntryVersions(s *kvstore.FileScan, index int64) iter.Seq[[]byte] {
	return s.Values(kvstore.LogEntries, indexKey(index))
}

// HashVersions returns all hashes that a scan of a damaged store's files has found for the tree hash with an index of
// package tlog. It skips values that are not as long as a hash.
func HashVersions(s *kvstore.FileScan, index int64) iter.Seq[tlog.Hash] {
	return func(yield func(tlog.Hash) bool) {
		for value := range s.Values(kvstore.LogHashes, indexKey(index)) {
			if len(value) == tlog.HashSize && !yield(tlog.Hash(value)) {
				return
			}
		}
	}
}
