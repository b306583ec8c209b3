package logs

import (
	"fmt"

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
