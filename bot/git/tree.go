package git

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages/archive"
)

const (
	maxFolders    = 100 // in each other
	maxSubmodules = 20  // that are told of by name
)

// readCommit finds a commit, through the tags that name it.
func readCommit(get objects, hash plumbing.Hash) (*object.Commit, error) {
	const most = 10 // tags of tags
	for range most {
		o, err := get(hash)
		if err != nil {
			return nil, fmt.Errorf("object %s: %w", hash, err)
		}
		if o.Type() != plumbing.TagObject {
			var c object.Commit
			if err := c.Decode(o); err != nil {
				return nil, refuse("%s is no commit: %.200v", hash, err)
			}
			return &c, nil
		}
		var t object.Tag
		if err := t.Decode(o); err != nil {
			return nil, refuse("%s is no tag: %.200v", hash, err)
		}
		hash = t.Target
	}
	return nil, refuse("%s is a tag of a tag of a tag, and so on", hash)
}

// export writes the files of a tree to dst, as an archive.
type export struct {
	ctx        context.Context
	get        objects
	tar        *tar.Writer
	left       int64 // bytes
	entries    int
	submodules int
	notes      []string
}

// exportTree writes the files of a tree to dst. Names are written as they are, because whoever reads the
// archive has the rules for them.
func exportTree(ctx context.Context, get objects, tree plumbing.Hash, dst *os.File) (notes []string, err error) {
	out := bufio.NewWriterSize(fetch.LocalWriter(dst), 64<<10)
	e := &export{ctx: ctx, get: get, tar: tar.NewWriter(out), left: archive.DefaultLimits.Unpacked}
	if err := e.folder(tree, "", 0); err != nil {
		return nil, err
	}
	if err := errors.Join(e.tar.Close(), out.Flush()); err != nil {
		return nil, err
	}
	if more := e.submodules - maxSubmodules; more > 0 {
		e.notes = append(e.notes, fmt.Sprintf("%d more submodules were left out", more))
	}
	return e.notes, nil
}

func (e *export) folder(hash plumbing.Hash, path string, depth int) error {
	if depth > maxFolders {
		return refuse("folders are more than %d deep in each other", maxFolders)
	}
	if err := e.ctx.Err(); err != nil {
		return context.Cause(e.ctx)
	}
	data, err := content(e.get, hash, plumbing.TreeObject)
	if err != nil {
		return err
	}
	for len(data) > 0 {
		var entry object.TreeEntry
		if entry, data, err = treeEntry(data); err != nil {
			return refuse("the folder %.200q: %v", path, err)
		}
		// Folders count as well: a few of them that name each other many times are endless.
		if e.entries++; e.entries > 2*archive.DefaultLimits.Entries {
			return refuse("the commit has more than %d files and folders", 2*archive.DefaultLimits.Entries)
		}
		name := path + entry.Name
		switch entry.Mode {
		case filemode.Dir:
			err = e.folder(entry.Hash, name+"/", depth+1)
		case filemode.Submodule:
			if e.submodules++; e.submodules <= maxSubmodules {
				e.notes = append(e.notes, fmt.Sprintf("the submodule %.200q was left out: it is another repository", name))
			}
		case filemode.Symlink:
			err = e.write(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: "-", Mode: 0o777}, nil)
		case filemode.Regular, filemode.Executable, filemode.Deprecated:
			err = e.file(entry.Hash, name)
		default:
			err = refuse("%.200q has the mode %s, which is none of git's", name, entry.Mode)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *export) file(hash plumbing.Hash, name string) error {
	data, err := content(e.get, hash, plumbing.BlobObject)
	if err != nil {
		return err
	}
	if e.left -= int64(len(data)); e.left < 0 {
		return refuse("the files of the commit have over %d bytes", archive.DefaultLimits.Unpacked)
	}
	return e.write(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644}, data)
}

func (e *export) write(h *tar.Header, data []byte) error {
	h.Format, h.ModTime = tar.FormatPAX, time.Unix(0, 0)
	err := e.tar.WriteHeader(h)
	if err == nil {
		_, err = e.tar.Write(data)
	}
	if errors.Is(err, tar.ErrHeader) {
		return refuse("%.200q is no name for a file", h.Name)
	}
	return err
}

// treeEntry reads the first entry of a tree: mode, space, name, NUL and the bytes of a hash. go-git's own
// reader cleans names and refuses some, which is for the archive's rules.
func treeEntry(data []byte) (entry object.TreeEntry, rest []byte, err error) {
	space := indexByte(data, ' ', 7)
	if space < 0 {
		return entry, nil, errors.New("an entry without a mode")
	}
	if entry.Mode, err = filemode.New(string(data[:space])); err != nil {
		return entry, nil, fmt.Errorf("an entry of the mode %q", data[:space])
	}
	data = data[space+1:]
	end := indexByte(data, 0, 4096)
	switch {
	case end < 0:
		return entry, nil, errors.New("an entry whose name has no end")
	case end == 0:
		return entry, nil, errors.New("an entry without a name")
	case len(data)-end-1 < len(entry.Hash):
		return entry, nil, errors.New("an entry without a hash")
	}
	entry.Name = string(data[:end])
	data = data[end+1:]
	n := copy(entry.Hash[:], data)
	return entry, data[n:], nil
}

// indexByte is where c is in the first bytes, up to most of them; -1 where it is not.
func indexByte(data []byte, c byte, most int) int {
	for i, b := range data[:min(len(data), most)] {
		if b == c {
			return i
		}
	}
	return -1
}
