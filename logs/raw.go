package logs

import (
	"fmt"
	"iter"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
)

// Hashes returns the tree hashes stored in r, for proofs and tiles. They are
// numbered as package tlog numbers them.
func Hashes(r kvstore.Reader) tlog.HashReader {
	return tlog.HashReaderFunc(func(indexes []int64) ([]tlog.Hash, error) {
		out := make([]tlog.Hash, len(indexes))
		for i, index := range indexes {
			var err error
			if out[i], err = readHash(r, index); err != nil {
				return nil, err
			}
		}
		return out, nil
	})
}

// RawEntries returns the bytes of the n entries from index on, without looking
// into them: they may be in a format that only a newer Larder knows.
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

// ParseEntry reads what RawEntries returns.
func ParseEntry(index int64, raw []byte) (Indexed, error) { return indexed(index, raw) }

// AppendRaw adds an entry as its bytes are, those that another store of the same log has,
// so that the tree comes out the same. The caller compares that with what was signed.
func (tx *Tx) AppendRaw(raw []byte) (Indexed, error) {
	if len(raw) > MaxEntry {
		return Indexed{}, fmt.Errorf("logs: entry %d has %d bytes, over the limit of %d", tx.size, len(raw), MaxEntry)
	}
	e, err := decodeEntry(raw)
	if err != nil {
		return Indexed{}, fmt.Errorf("logs: entry %d: %w", tx.size, err)
	}
	if err := tx.checkLive(e); err != nil {
		return Indexed{}, err
	}
	return tx.add(e, raw)
}

// RawEntry returns the bytes of one entry, which is found also where a scan ends at damage
// before it, or kvstore.ErrNotFound.
func RawEntry(r kvstore.Getter, index int64) ([]byte, error) {
	data, err := r.Get(kvstore.LogEntries, indexKey(index))
	if err != nil {
		return nil, fmt.Errorf("logs: entry %d: %w", index, err)
	}
	return data, nil
}

// Belongs reports whether an entry is the one over which the tree in r was hashed.
func Belongs(r kvstore.Getter, index int64, raw []byte) bool {
	h, err := readHash(r, tlog.StoredHashIndex(0, index))
	return err == nil && h == tlog.RecordHash(raw)
}

// EntryVersions yields everything that a scan of a damaged store's files has found in the place of an entry.
func EntryVersions(s *kvstore.FileScan, index int64) iter.Seq[[]byte] {
	return s.Values(kvstore.LogEntries, indexKey(index))
}

// HashVersions yields everything that a scan of a damaged store's files has found in the place of a tree hash.
func HashVersions(s *kvstore.FileScan, index int64) iter.Seq[tlog.Hash] {
	return func(yield func(tlog.Hash) bool) {
		for value := range s.Values(kvstore.LogHashes, indexKey(index)) {
			if len(value) == tlog.HashSize && !yield(tlog.Hash(value)) {
				return
			}
		}
	}
}
