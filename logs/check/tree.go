package check

import (
	"bytes"
	"context"
	"math/bits"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A tree finds, among everything that a scan has found in the place of the log's entries and tree hashes, what belongs to the
// tree that was signed. It goes from the root down: two hashes are right if together they make the one above. A hash that
// is lost is computed from what is below it.
type tree struct {
	scan     *kvstore.FileScan
	size     int64
	leaves   []tlog.Hash           // of the entries; zero if it is not known
	computed map[int64][]tlog.Hash // what a subtree may have as its hash, by the number of its stored hash
}

// maxVersions bounds how many hashes are considered for a subtree. Two stores in one folder have two.
const maxVersions = 4

// readTree finds, among the rows of a scan, the hashes of the entries of a checkpoint's tree, with any gaps; first those that its root proves, then
// stored ones that nothing proves. For a checkpoint without entries it returns an empty tree.
func readTree(ctx context.Context, scan *kvstore.FileScan, c logs.Checkpoint) (*tree, error) {
	t := &tree{scan: scan, size: c.Size, leaves: make([]tlog.Hash, c.Size), computed: make(map[int64][]tlog.Hash)}
	if c.Size == 0 {
		return t, nil
	}
	err := t.resolveRange(ctx, 0, c.Size, c.Root)
	t.believeStoredHashes()
	return t, err
}

// resolveRange sets in t.leaves the hashes of the entries in a range whose tree has the root want, as far as rows of the scan prove them. It splits
// the range as RFC 6962 does. Gaps are no error; only ctx ends it.
func (t *tree) resolveRange(ctx context.Context, from, to int64, want tlog.Hash) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	n := to - from
	if n == 1 {
		t.leaves[from] = want
		return nil
	}
	half := splitSize(n)
	for _, compute := range []bool{false, true} {
		for _, left := range t.hashVersions(from, from+half, compute) {
			for _, right := range t.hashVersions(from+half, to, compute) {
				if tlog.NodeHash(left, right) != want {
					continue
				}
				if err := t.resolveRange(ctx, from, from+half, left); err != nil {
					return err
				}
				return t.resolveRange(ctx, from+half, to, right)
			}
		}
	}
	return nil // the entries below cannot be proven
}

// splitSize returns how many of n entries, of two or more, the left subtree has: the largest power of two below n.
func splitSize(n int64) int64 { return 1 << (bits.Len64(uint64(n-1)) - 1) }

// hashVersions returns the hashes, up to maxVersions, that the tree over a range of entries may have: those that were stored, and if compute is set
// also those that follow from the hashes below. It caches the latter for complete subtrees.
func (t *tree) hashVersions(from, to int64, compute bool) (all []tlog.Hash) {
	n := to - from
	add := func(h tlog.Hash) {
		if len(all) < maxVersions && !slices.Contains(all, h) {
			all = append(all, h)
		}
	}
	stored := n&(n-1) == 0 // a complete subtree has a hash of its own
	number := int64(-1)
	if stored {
		level := bits.TrailingZeros64(uint64(n))
		number = tlog.StoredHashIndex(level, from>>level)
		if known, ok := t.computed[number]; ok {
			return known
		}
		for h := range logs.HashVersions(t.scan, number) {
			add(h)
		}
	}
	if stored && !compute {
		return all
	}
	if n == 1 {
		for raw := range logs.EntryVersions(t.scan, from) {
			add(tlog.RecordHash(raw))
		}
	} else {
		half := splitSize(n)
		for _, left := range t.hashVersions(from, from+half, compute) {
			for _, right := range t.hashVersions(from+half, to, compute) {
				add(tlog.NodeHash(left, right))
			}
		}
	}
	if stored {
		t.computed[number] = all
	}
	return all
}

// entry returns the bytes of an entry of the tree, nil if they are lost.
func (t *tree) entry(index int64) []byte {
	if index >= t.size || t.leaves[index] == (tlog.Hash{}) {
		return nil
	}
	for raw := range logs.EntryVersions(t.scan, index) {
		if tlog.RecordHash(raw) == t.leaves[index] {
			return bytes.Clone(raw)
		}
	}
	return nil
}

// hasEntryAt reports whether raw has the hash of the entry of the tree at an index; false if that is not known.
func (t *tree) hasEntryAt(index int64, raw []byte) bool {
	return index < t.size && t.leaves[index] == tlog.RecordHash(raw)
}

// believeStoredHashes sets in t.leaves the hash of each entry that no root proves, because too much of the tree is lost: one that is stored, if
// possible that of bytes that were found; without a stored one, that of the bytes. The root of the new log proves them after other sources have
// supplied what is lost.
func (t *tree) believeStoredHashes() {
	for index := range t.size {
		if t.leaves[index] != (tlog.Hash{}) {
			continue
		}
		var stored []tlog.Hash
		for h := range logs.HashVersions(t.scan, tlog.StoredHashIndex(0, index)) {
			stored = append(stored, h)
		}
		for raw := range logs.EntryVersions(t.scan, index) {
			if h := tlog.RecordHash(raw); stored == nil || slices.Contains(stored, h) {
				t.leaves[index] = h
				break
			}
		}
		if t.leaves[index] == (tlog.Hash{}) && len(stored) > 0 {
			t.leaves[index] = stored[0]
		}
	}
}
