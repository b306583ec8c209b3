package gitlog

import (
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// An entry is a file or a folder in the tree of the last commit.
type entry struct {
	mode    filemode.FileMode // Regular or Dir
	hash    plumbing.Hash     // zero for one that has not been written
	entries map[string]*entry // of a folder, by name; nil for one that is not in memory
}

// maxDepthInMemory is how deep folders stay in memory: those of packages are many.
const maxDepthInMemory = 2

// addToEntry adds a change's text to the file whose path from the entry e consists of parts: to the end of e itself if there are none,
// or else to a file in the folder e. It creates missing folders and files, and sets the hashes of the changed ones. The new objects are
// pending until the next flush. depth is that of e: the entries of deep folders do not stay in memory.
func (r *Repository) addToEntry(e *entry, parts []string, c Change, depth int) (err error) {
	switch {
	case len(parts) == 0 && e.mode == filemode.Dir:
		return errors.New("there is a folder of that name")
	case len(parts) == 0:
		e.hash, err = r.appendToFile(e.hash, c)
		return err
	case e.mode != filemode.Dir:
		return errors.New("one of its folders is a file there")
	}
	if err := r.readFolder(e); err != nil {
		return err
	}
	child := e.entries[parts[0]]
	if child == nil {
		child = &entry{mode: filemode.Dir}
		if len(parts) == 1 {
			child.mode = filemode.Regular
		}
	}
	if err := r.addToEntry(child, parts[1:], c, depth+1); err != nil {
		return err
	}
	e.entries[parts[0]] = child
	tree := new(object.Tree)
	for name, child := range e.entries {
		tree.Entries = append(tree.Entries, object.TreeEntry{Name: name, Mode: child.mode, Hash: child.hash})
	}
	sort.Sort(object.TreeEntrySorter(tree.Entries))
	if e.hash, err = r.putObject(tree); err != nil {
		return err
	}
	if depth > maxDepthInMemory {
		e.entries = nil
	}
	return nil
}

// readFolder reads the entries of a folder into e.entries, unless they are in memory. A new folder has none. With an error, e is
// unchanged.
func (r *Repository) readFolder(e *entry) error {
	if e.entries != nil {
		return nil
	}
	tree := new(object.Tree)
	if e.hash != plumbing.ZeroHash {
		o, err := r.getObject(plumbing.TreeObject, e.hash)
		if err != nil {
			return err
		}
		if err := tree.Decode(o); err != nil {
			return err
		}
	}
	entries := make(map[string]*entry, len(tree.Entries))
	for _, child := range tree.Entries {
		if child.Mode != filemode.Dir && child.Mode != filemode.Regular {
			return fmt.Errorf("%s is neither a file nor a folder", child.Name)
		}
		entries[child.Name] = &entry{mode: child.Mode, hash: child.Hash}
	}
	e.entries = entries
	return nil
}

// appendToFile adds a change's text to the content of a file, given by its hash (zero for a new file), as a new pending
// object, and returns its hash.
func (r *Repository) appendToFile(file plumbing.Hash, c Change) (plumbing.Hash, error) {
	var before []byte
	if file != plumbing.ZeroHash {
		o, err := r.getObject(plumbing.BlobObject, file)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		reader, err := o.Reader()
		if err != nil {
			return plumbing.ZeroHash, err
		}
		before, err = io.ReadAll(reader)
		if err = errors.Join(err, reader.Close()); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	o := new(plumbing.MemoryObject)
	o.SetType(plumbing.BlobObject)
	if _, err := o.Write(c.Append(before)); err != nil {
		return plumbing.ZeroHash, err
	}
	return r.putEncoded(o)
}
