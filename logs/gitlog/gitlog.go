// Package gitlog writes the log into git repositories, one commit for each entry, for people and tools that read histories with git:
// into a local bare repository ([Repository]), or into a branch on GitHub ([Pusher]).
//
// The last commit of a repository says which entries it has, so each run continues where the last one ended, also after a kill. A
// repository is a copy for reading and proves nothing by itself; each commit names the hash of its entry in the log's tree. [Change]
// alone defines the path, content and message of a commit, so both kinds have the same commits. Names from outside become git objects,
// and never local files.
//
// The package must not know what the repository is used for, nor the token that may write to it.
package gitlog

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/storer"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/larder-cdn/larder/internal/baregit"
)

// A Repository is open for one writer.
type Repository struct {
	store    storer.Storer
	head     plumbing.Hash // of the last commit that was flushed
	last     plumbing.Hash // of the last commit
	position Position
	root     entry // of the last commit

	pending *memory.Storage // objects that have not been flushed
	changes int             // in pending
	bytes   int
}

// Flush is called when either is reached: it bounds memory.
const (
	changesPerFlush = 2000
	bytesPerFlush   = 64 << 20
)

// Open opens the bare repository in dir, or creates it if dir is empty or does not exist. The last commit of the branch tells
// the position; if it was not made by an export, that is an error.
func Open(dir string) (*Repository, error) {
	if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
		return nil, fmt.Errorf("%s is a repository with files checked out, which an export would leave behind; give a bare one (git clone --bare), or a new folder", dir)
	}
	store, err := baregit.Open(dir)
	if errors.Is(err, baregit.ErrNone) {
		have, errHave := os.ReadDir(dir)
		switch {
		case errHave != nil && !os.IsNotExist(errHave):
			return nil, fmt.Errorf("couldn't make a repository in %s: %w", dir, errHave)
		case len(have) > 0:
			return nil, fmt.Errorf("%s is neither empty nor a bare git repository; give a new folder", dir)
		}
		store, err = baregit.Init(dir, Branch)
	}
	if err != nil {
		return nil, fmt.Errorf("couldn't open the git repository in %s: %w", dir, err)
	}
	r := &Repository{store: store, position: Position{Index: -1}, root: entry{mode: filemode.Dir}}
	r.resetPending()
	ref, err := storer.ResolveReference(store, plumbing.NewBranchReferenceName(Branch))
	switch {
	case errors.Is(err, plumbing.ErrReferenceNotFound):
		return r, nil
	case err != nil:
		return nil, fmt.Errorf("couldn't read the branch %s of %s: %w", Branch, dir, err)
	}
	r.head, r.last = ref.Hash(), ref.Hash()
	commit, err := object.GetCommit(r.store, r.head)
	if err != nil {
		return nil, fmt.Errorf("couldn't read the last commit of %s: %w", dir, err)
	}
	if r.position, err = ParseMessage(commit.Message); err != nil {
		return nil, fmt.Errorf("the last commit of %s (%s) was not made by an export: %w; give another folder", dir, r.head, err)
	}
	r.root.hash = commit.TreeHash
	return r, nil
}

// Position returns the position of the last change that was added, flushed or not.
func (r *Repository) Position() Position { return r.position }

// resetPending drops the pending objects, which were flushed, and their counts.
func (r *Repository) resetPending() { r.pending, r.changes, r.bytes = memory.NewStorage(), 0, 0 }

// Add adds a commit with a change. Flush writes it, which Add calls when many changes are pending. A change that
// [Change.Check] refuses is an error, and changes nothing. After another error, the repository must not be used any more.
func (r *Repository) Add(c Change) error {
	if err := c.Check(r.position); err != nil {
		return err
	}
	if err := r.addToEntry(&r.root, strings.Split(c.Path, "/"), c, 0); err != nil {
		return fmt.Errorf("gitlog: couldn't add to %s: %w", c.Path, err)
	}
	who := object.Signature{Name: AuthorName, Email: AuthorEmail, When: c.Time.UTC()}
	commit := &object.Commit{Author: who, Committer: who, TreeHash: r.root.hash, Message: c.Message()}
	if r.last != plumbing.ZeroHash {
		commit.ParentHashes = []plumbing.Hash{r.last}
	}
	var err error
	if r.last, err = r.putObject(commit); err != nil {
		return fmt.Errorf("gitlog: couldn't commit entry %d: %w", c.Index, err)
	}
	r.position = c.Position()
	r.changes++
	r.bytes += len(c.Text)
	if r.changes >= changesPerFlush || r.bytes >= bytesPerFlush {
		return r.Flush()
	}
	return nil
}

// Flush writes the pending commits as a pack and moves the branch to the last one. Without pending commits it does nothing.
// If the branch had commits, it fails if another writer has moved it since.
func (r *Repository) Flush() error {
	if r.changes == 0 {
		return nil
	}
	writer, err := r.store.(storer.PackfileWriter).PackfileWriter()
	if err != nil {
		return fmt.Errorf("gitlog: couldn't write a pack: %w", err)
	}
	hashes := slices.SortedFunc(maps.Keys(r.pending.Objects), func(a, b plumbing.Hash) int { return bytes.Compare(a[:], b[:]) })
	const window = 10 // git's own
	_, err = packfile.NewEncoder(writer, r.pending, false).Encode(hashes, window)
	if err = errors.Join(err, writer.Close()); err != nil {
		return fmt.Errorf("gitlog: couldn't write a pack: %w", err)
	}
	name := plumbing.NewBranchReferenceName(Branch)
	var before *plumbing.Reference
	if r.head != plumbing.ZeroHash {
		before = plumbing.NewHashReference(name, r.head)
	}
	if err := r.store.CheckAndSetReference(plumbing.NewHashReference(name, r.last), before); err != nil {
		return fmt.Errorf("gitlog: couldn't move the branch %s: %w", Branch, err)
	}
	r.head = r.last
	r.resetPending()
	return nil
}

// putObject adds a commit or a tree to the pending objects, unless the repository has it, and returns its hash.
func (r *Repository) putObject(e interface {
	Encode(plumbing.EncodedObject) error
}) (plumbing.Hash, error) {
	o := r.pending.NewEncodedObject()
	if err := e.Encode(o); err != nil {
		return plumbing.ZeroHash, err
	}
	return r.putEncoded(o)
}

// putEncoded adds an encoded object to the pending ones, unless the repository has it, and returns its hash.
func (r *Repository) putEncoded(o plumbing.EncodedObject) (plumbing.Hash, error) {
	if r.store.HasEncodedObject(o.Hash()) == nil {
		return o.Hash(), nil
	}
	return r.pending.SetEncodedObject(o)
}

// getObject returns an object that is pending or was flushed.
func (r *Repository) getObject(kind plumbing.ObjectType, h plumbing.Hash) (plumbing.EncodedObject, error) {
	if o, err := r.pending.EncodedObject(kind, h); err == nil {
		return o, nil
	}
	return r.store.EncodedObject(kind, h)
}
