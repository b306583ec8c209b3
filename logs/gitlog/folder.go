package gitlog

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
)

// A folder is a tree of the last commit, read when it is needed.
type folder struct {
	hash    plumbing.Hash // zero for one that has not been written
	entries map[string]*entry
}

type entry struct {
	file   plumbing.Hash // of a file
	folder *folder       // nil for a file
}

// maxDepthInMemory is how deep folders stay in memory: those of packages are many.
const maxDepthInMemory = 2

// addToTree adds a change's text to the end of its file in the tree f, and returns the tree's new hash. The new objects are
// pending until the next flush.
func (r *Repository) addToTree(f *folder, c Change) (plumbing.Hash, error) {
	parts, err := splitPath(c.Path)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return r.addToFolder(f, parts, c, 0)
}

// addToFolder adds a change's text to the file whose path from the folder f consists of parts, and returns the folder's new
// hash. It creates missing folders and files. depth is that of f: the entries of deep folders do not stay in memory.
func (r *Repository) addToFolder(f *folder, parts []string, c Change, depth int) (plumbing.Hash, error) {
	if err := r.readFolder(f); err != nil {
		return plumbing.ZeroHash, err
	}
	name := parts[0]
	e := f.entries[name]
	if len(parts) == 1 {
		if e == nil {
			e = new(entry)
		}
		if e.folder != nil {
			return plumbing.ZeroHash, errors.New("there is a folder of that name")
		}
		blob, err := r.appendToFile(e.file, c)
		if err != nil {
			return plumbing.ZeroHash, err
		}
		e.file = blob
	} else {
		if e == nil {
			e = &entry{folder: new(folder)}
		}
		if e.folder == nil {
			return plumbing.ZeroHash, fmt.Errorf("%s is a file", name)
		}
		if _, err := r.addToFolder(e.folder, parts[1:], c, depth+1); err != nil {
			return plumbing.ZeroHash, err
		}
	}
	f.entries[name] = e
	tree := new(object.Tree)
	for name, e := range f.entries {
		if e.folder != nil {
			tree.Entries = append(tree.Entries, object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: e.folder.hash})
		} else {
			tree.Entries = append(tree.Entries, object.TreeEntry{Name: name, Mode: filemode.Regular, Hash: e.file})
		}
	}
	slices.SortFunc(tree.Entries, func(a, b object.TreeEntry) int { return strings.Compare(sortName(a), sortName(b)) })
	hash, err := r.putObject(tree)
	if err != nil {
		return plumbing.ZeroHash, err
	}
	f.hash = hash
	if depth > maxDepthInMemory {
		f.entries = nil
	}
	return hash, nil
}

// sortName returns the name by which git sorts an entry of a tree.
func sortName(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}

// readFolder reads the entries of a folder into f.entries, unless they are in memory. A new folder has none.
func (r *Repository) readFolder(f *folder) error {
	if f.entries != nil {
		return nil
	}
	f.entries = map[string]*entry{}
	if f.hash == plumbing.ZeroHash {
		return nil
	}
	o, err := r.getObject(plumbing.TreeObject, f.hash)
	if err != nil {
		return err
	}
	tree := new(object.Tree)
	if err := tree.Decode(o); err != nil {
		return err
	}
	for _, e := range tree.Entries {
		switch e.Mode {
		case filemode.Dir:
			f.entries[e.Name] = &entry{folder: &folder{hash: e.Hash}}
		case filemode.Regular:
			f.entries[e.Name] = &entry{file: e.Hash}
		default:
			return fmt.Errorf("%s is neither a file nor a folder", e.Name)
		}
	}
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
	o := r.pending.NewEncodedObject()
	o.SetType(plumbing.BlobObject)
	w, err := o.Writer()
	if err == nil {
		_, err = w.Write(c.Append(before))
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		return plumbing.ZeroHash, err
	}
	return r.putEncoded(o)
}
