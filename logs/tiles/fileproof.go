package tiles

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	tlogproof "github.com/transparency-dev/formats/proof"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// proofSuffix ends the paths of proofs, as https://c2sp.org/tlog-proof has it.
const proofSuffix = ".tlog-proof"

// parseProof parses the rest of a path after proof/: a package, a version and the path of a file, followed by proofSuffix. A
// malformed rest is the zero target.
func parseProof(rest string) target {
	rest, ok := strings.CutSuffix(rest, proofSuffix)
	f, fine := parseFile(rest)
	if !ok || !fine || f.path == "" {
		return target{}
	}
	return target{kind: proof, file: f}
}

// errNoFile is that the release has no such file.
var errNoFile = newFailure(http.StatusNotFound, "The release has no such file")

// proveLiveFile returns the proof that a file of a live release was published. The error for a release that is not live, such as a withdrawn one, is
// an [answers.Failure] with 410 if the log has an entry about it, because a proof would convince offline clients. For a release without an entry, or
// one without such a file, it has 404.
func (h *handler) proveLiveFile(f file, signed signing.Signed) ([]byte, error) {
	m, err := logs.ReadLiveMap(h.Store, signed.Size)
	if err != nil {
		return nil, err
	}
	found, err := m.Get(logs.LiveKey(f.pkg, f.version))
	if err != nil {
		return nil, err
	}
	if found != nil {
		return h.proveFile(f, *found, signed)
	}
	known, err := logs.HasEntry(h.Store, f.pkg, f.version)
	switch {
	case err != nil:
		return nil, err
	case known:
		return nil, newFailure(http.StatusGone, "The release is not live, so there are no proofs of its files")
	}
	return nil, newFailure(http.StatusNotFound, "The signed log has no such release")
}

// proveFile returns the proof that the signed log has a file of the release found, in the form of
// https://c2sp.org/tlog-proof. The error is errNoFile if the release has no such file. If the log's last publication of the
// release is not signed, or has another manifest, that is an error too.
func (h *handler) proveFile(f file, found logs.LiveRelease, signed signing.Signed) ([]byte, error) {
	e, err := logs.LastPublication(h.Store, f.pkg, f.version)
	if err != nil {
		return nil, err
	}
	if e.Index >= signed.Size || e.Manifest != found.Manifest {
		return nil, fmt.Errorf("entry %d, which publishes %s %s, is not the one that is signed", e.Index, f.pkg, f.version)
	}
	inTree, err := proveEntry(h.Store, signed.Checkpoint, e)
	if err != nil {
		return nil, err
	}
	extra := logs.FileProof{Format: logs.FileProofFormat, Entry: inTree.Entry, Path: f.path}
	if extra.FilePlace, err = h.trees.proveFile(h.Store, e, f.path); err != nil {
		return nil, err
	}
	p := tlogproof.TLogProof{Index: uint64(e.Index), Checkpoint: signed.Note}
	for _, hash := range inTree.Proof {
		p.Hashes = append(p.Hashes, hash)
	}
	if p.ExtraData, err = json.Marshal(extra); err != nil {
		return nil, err
	}
	return p.Marshal(), nil
}

// maxTreeFiles bounds the trees in memory by the number of their files, at some 300 bytes each.
const maxTreeFiles = 100_000

// minTreeWeight is added to the number of a tree's files, so that there are never many trees.
const minTreeWeight = 100

// fileTrees caches the trees of releases' files, because clients request the proofs of all files of a release. Different trees are
// built concurrently, as many as there are [Options.Turns].
type fileTrees struct {
	mu    sync.Mutex
	trees []*fileTree // in the order of their last requests
}

// A fileTree is the tree of a manifest's files, built once for all requests.
type fileTree struct {
	manifest kvstore.Hash
	made     func() error
	files    []logs.File // once made
	tree     *logs.FileTree
	weight   int // once made, of keptFiles; guarded by fileTrees.mu
}

// get returns the tree of a manifest's files, from memory if possible. Otherwise it builds the tree, once for all concurrent
// callers, and caches it. It drops the trees that were requested longest ago if all have too many files, and a tree that
// could not be built.
func (t *fileTrees) get(store Store, manifest kvstore.Hash) (*fileTree, error) {
	t.mu.Lock()
	var f *fileTree
	if i := slices.IndexFunc(t.trees, func(f *fileTree) bool { return f.manifest == manifest }); i >= 0 {
		f = t.trees[i]
		t.trees = slices.Delete(t.trees, i, i+1)
	} else {
		f = &fileTree{manifest: manifest}
		f.made = sync.OnceValue(func() error { return f.build(store) })
	}
	t.trees = append(t.trees, f)
	t.mu.Unlock()
	err := f.made()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil { // the next request may succeed
		t.trees = slices.DeleteFunc(t.trees, func(other *fileTree) bool { return other == f })
	}
	f.weight = len(f.files) + minTreeWeight
	weight := 0
	for i := len(t.trees) - 1; i >= 0; i-- {
		if weight += t.trees[i].weight; weight > maxTreeFiles && i < len(t.trees)-1 {
			t.trees = slices.Delete(t.trees, 0, i+1)
			break
		}
	}
	return f, err
}

// build reads the manifest from the store and sets the files and their tree.
func (f *fileTree) build(store Store) error {
	m, err := logs.ReadManifest(store, f.manifest)
	if err != nil {
		return err
	}
	f.files, f.tree = m.Files, logs.NewFileTree(m.Files)
	return nil
}

// proveFile returns the proof that the release which entry e publishes has a file, or errNoFile. It checks that the proof
// leads to the root of files that e states. It caches the tree of the release's files.
func (t *fileTrees) proveFile(store Store, e logs.Indexed, path string) (logs.FilePlace, error) {
	f, err := t.get(store, e.Manifest)
	if err != nil {
		return logs.FilePlace{}, err
	}
	index := slices.IndexFunc(f.files, func(f logs.File) bool { return f.Path == path })
	if index < 0 {
		return logs.FilePlace{}, errNoFile
	}
	proof, err := f.tree.Prove(int64(index))
	if err != nil {
		return logs.FilePlace{}, err
	}
	place := logs.FilePlace{Index: int64(index), Of: f.tree.Size(), Proof: proof}
	return place, place.Check(e.Files, f.files[index])
}
