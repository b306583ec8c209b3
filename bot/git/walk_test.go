package git

import (
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/larder-cdn/larder/packages/archive"
)

// A path that is longer than a file's may be is refused in its folder: the names of folders are repeated for all files below them.
func TestLongPaths(t *testing.T) {
	trees := map[plumbing.Hash]plumbing.EncodedObject{}
	add := func(mode, name string, of plumbing.Hash) plumbing.Hash {
		o := &plumbing.MemoryObject{}
		o.SetType(plumbing.TreeObject)
		if _, err := o.Write(append([]byte(mode+" "+name+"\x00"), of[:]...)); err != nil {
			t.Fatal(err)
		}
		trees[o.Hash()] = o
		return o.Hash()
	}
	get := func(h plumbing.Hash) (plumbing.EncodedObject, error) {
		if o := trees[h]; o != nil {
			return o, nil
		}
		return nil, plumbing.ErrObjectNotFound
	}
	for _, folders := range []int{2, 3} {
		hash := add("100644", "a.js", plumbing.NewHash(strings.Repeat("a", 40)))
		for range folders {
			hash = add("40000", strings.Repeat("x", archive.DefaultLimits.NameLength/3), hash)
		}
		visited := 0
		w := &treeWalk{ctx: t.Context(), get: get, visit: func(string, object.TreeEntry) error { visited++; return nil }}
		err := w.walkFolder(hash, "", 0)
		if refused := err != nil && strings.Contains(err.Error(), "over the limit of 1024"); refused != (folders == 3) || visited != 3-folders {
			t.Errorf("%d folders: %v, %d files", folders, err, visited)
		}
	}
}
