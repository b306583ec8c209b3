package tiles

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"

	tlogproof "github.com/transparency-dev/formats/proof"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/livemap"
	"github.com/larder-cdn/larder/logs/signing"
)

// proofSuffix ends the paths of proofs, as https://c2sp.org/tlog-proof has it.
const proofSuffix = ".tlog-proof"

func parseProof(rest string) target {
	rest, ok := strings.CutSuffix(rest, proofSuffix)
	f, fine := parseFile(rest)
	if !ok || !fine || f.path == "" {
		return target{}
	}
	return target{kind: proof, file: f}
}

// errNoFile is that the signed log has no such file.
var errNoFile = errors.New("there is no such file")

// sendFileProof sends the proof that a file of a live release was published. Of a release
// that was withdrawn there is none, because it would convince clients without a network.
func (h *handler) sendFileProof(w http.ResponseWriter, r *http.Request, f file, signed signing.Signed) int {
	m, err := logs.LiveMap(h.Store, signed.Size)
	if err != nil {
		return h.unreadable(w, r, err)
	}
	found, err := m.Get(livemap.Key(f.pkg, f.version))
	if err != nil {
		return h.unreadable(w, r, err)
	}
	if found == nil {
		known, err := logs.HasEntry(h.Store, f.pkg, f.version)
		if err != nil {
			return h.unreadable(w, r, err)
		}
		if known {
			return fail(w, r, http.StatusGone, "The release is not live, so there are no proofs of its files")
		}
		return fail(w, r, http.StatusNotFound, "The signed log has no such release")
	}
	data, err := h.proveFile(f, *found, signed)
	if errors.Is(err, errNoFile) {
		return fail(w, r, http.StatusNotFound, "The release has no such file")
	}
	if err != nil {
		return h.unreadable(w, r, err)
	}
	return send(w, answers.Plain, data)
}

func (h *handler) proveFile(f file, found livemap.Release, signed signing.Signed) ([]byte, error) {
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
	if extra.FilePlace, err = h.trees.place(h.Store, e, f.path); err != nil {
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

// keptFiles bounds of how many files together the trees are kept: some 300 bytes each.
const keptFiles = 100_000

// leastWeight is what a tree counts beside its files, so that there are never many.
const leastWeight = 100

// fileTrees makes the trees of releases' files, and keeps those that were asked for last: clients ask for the proofs of
// all files of a release. Different trees are made side by side, as many as there are [Options.Turns].
type fileTrees struct {
	mu   sync.Mutex
	kept []*fileTree // the one that was asked for last is the last
}

// A fileTree is that of one manifest, made once however many ask.
type fileTree struct {
	manifest kvstore.Hash
	made     func() error
	files    []logs.File // once made
	tree     *logs.FileTree
	weight   int // once made, of keptFiles; guarded by fileTrees.mu
}

// of returns the tree of a manifest's files.
func (t *fileTrees) of(store Store, manifest kvstore.Hash) (*fileTree, error) {
	t.mu.Lock()
	var f *fileTree
	if i := slices.IndexFunc(t.kept, func(f *fileTree) bool { return f.manifest == manifest }); i >= 0 {
		f = t.kept[i]
		t.kept = slices.Delete(t.kept, i, i+1)
	} else {
		f = &fileTree{manifest: manifest}
		f.made = sync.OnceValue(func() error { return f.make(store) })
	}
	t.kept = append(t.kept, f)
	t.mu.Unlock()
	err := f.made()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil { // the next may have more luck
		t.kept = slices.DeleteFunc(t.kept, func(other *fileTree) bool { return other == f })
	}
	f.weight = len(f.files) + leastWeight
	weight := 0
	for i := len(t.kept) - 1; i >= 0; i-- {
		if weight += t.kept[i].weight; weight > keptFiles && i < len(t.kept)-1 {
			t.kept = slices.Delete(t.kept, 0, i+1)
			break
		}
	}
	return f, err
}

func (f *fileTree) make(store Store) error {
	data, err := store.Identity(f.manifest)
	if err != nil {
		return err
	}
	m, err := logs.DecodeManifest(data)
	if err != nil {
		return err
	}
	f.files, f.tree = m.Files, logs.NewFileTree(m.Files)
	return nil
}

// place finds a file of a publication.
func (t *fileTrees) place(store Store, e logs.Indexed, path string) (logs.FilePlace, error) {
	f, err := t.of(store, e.Manifest)
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
