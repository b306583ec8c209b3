package tiles

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// manifests is a store that has manifests, and counts how often one is read.
type manifests struct {
	Store
	data  map[kvstore.Hash][]byte
	reads atomic.Int64
}

func (m *manifests) Identity(hash kvstore.Hash) ([]byte, error) {
	m.reads.Add(1)
	if data, ok := m.data[hash]; ok {
		return data, nil
	}
	return nil, kvstore.ErrNotFound
}

// TestFileTreesAreKept asks for trees of several releases in turn: each is made once, until those that are kept have too
// many files, and one that could not be made is made again.
func TestFileTreesAreKept(t *testing.T) {
	store := &manifests{data: make(map[kvstore.Hash][]byte)}
	var hashes []kvstore.Hash
	for n := range 3 {
		m := &logs.Manifest{Package: "a", Version: fmt.Sprint(n)}
		for i := range n + 1 {
			text := []byte(fmt.Sprint(n, i))
			m.Files = append(m.Files, logs.File{Path: fmt.Sprintf("f%d.js", i), Size: int64(len(text)), SHA256: kvstore.Sum(text), SRI: logs.SumSRI(text), Origin: logs.Upstream})
		}
		data, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, kvstore.Sum(data))
		store.data[hashes[n]] = data
	}
	var trees fileTrees
	var asking sync.WaitGroup
	for range 20 {
		for n, hash := range hashes {
			asking.Go(func() {
				if f, err := trees.get(store, hash); err != nil || len(f.files) != n+1 || f.tree.Size() != int64(n+1) {
					t.Errorf("release %d: %v", n, err)
				}
			})
		}
	}
	asking.Wait()
	if n := store.reads.Load(); n != 3 || len(trees.trees) != 3 {
		t.Errorf("3 manifests were read %d times, and %d trees are kept", n, len(trees.trees))
	}

	missing := kvstore.Sum([]byte("missing"))
	if _, err := trees.get(store, missing); err == nil {
		t.Error("a manifest that is not there has a tree")
	}
	store.data[missing] = store.data[hashes[0]]
	if _, err := trees.get(store, missing); err != nil {
		t.Errorf("after a failure: %v", err)
	}

	for _, f := range trees.trees {
		f.weight = maxTreeFiles/2 + 1
	}
	if _, err := trees.get(store, hashes[1]); err != nil || len(trees.trees) != 2 || trees.trees[1].manifest != hashes[1] {
		t.Errorf("%v; of trees with too many files %d are kept, want the last, and what fits beside it", err, len(trees.trees))
	}
}
