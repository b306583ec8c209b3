package logs

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
)

// Verify hashes every entry in r again and compares each tree hash and the stored checkpoint with the result. It returns the
// verified checkpoint, or an error that names the first difference. It verifies no signature. Memory does not depend on the
// size of the log.
func Verify(r kvstore.Reader) (Checkpoint, error) { return VerifyFrom(r, 0) }

// VerifyFrom verifies the entries from the index size on, as Verify does. The caller has compared the root of the tree
// before them with one that it trusts, so that the hashes of that tree need no other check.
func VerifyFrom(r kvstore.Reader, size int64) (Checkpoint, error) {
	want, err := ReadCheckpoint(r)
	if err != nil {
		return Checkpoint{}, err
	}
	// Hashes that a later one is computed from have been compared with the
	// entries before, so reading them back from the store proves as much as
	// keeping them in memory would.
	stored := Hashes(r)
	for e, err := range Entries(r, size) {
		if err != nil {
			return Checkpoint{}, err
		}
		if e.Index != size {
			return Checkpoint{}, fmt.Errorf("logs: entry %d is missing", size)
		}
		hashes, err := tlog.StoredHashes(e.Index, e.Raw, stored)
		if err != nil {
			return Checkpoint{}, err
		}
		first := tlog.StoredHashIndex(0, e.Index)
		for i, h := range hashes {
			got, err := readHash(r, first+int64(i))
			if err != nil {
				return Checkpoint{}, err
			}
			if got != h {
				return Checkpoint{}, fmt.Errorf("logs: tree hash %d does not follow from entry %d: stored %v, computed %v", first+int64(i), e.Index, got, h)
			}
		}
		size++
	}
	if size != want.Size {
		return Checkpoint{}, fmt.Errorf("logs: the checkpoint counts %d entries, the log has %d", want.Size, size)
	}
	root, err := tlog.TreeHash(size, stored)
	if err != nil {
		return Checkpoint{}, err
	}
	if root != want.Root {
		return Checkpoint{}, fmt.Errorf("logs: the checkpoint's root is %v, the tree's is %v", want.Root, root)
	}
	var extra int64
	for _, err := range r.Scan(kvstore.LogHashes, kvstore.Range{From: indexKey(tlog.StoredHashCount(size))}) {
		if err != nil {
			return Checkpoint{}, err
		}
		extra++
	}
	if extra > 0 {
		return Checkpoint{}, fmt.Errorf("logs: %d tree hashes belong to no entry", extra)
	}
	return want, nil
}
