package archive

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

// Folder gives the files below a folder, hidden ones included, sorted by name. Links are reported, not
// followed, also where they are swapped in during the walk: everything is opened relative to the
// folder's own descriptor, and what was opened must be what was listed.
func Folder(name string) Source {
	return Source{walk: func(w *walker) error {
		root, err := os.OpenRoot(name)
		if err != nil {
			return w.fail(fmt.Errorf("couldn't open the folder: %w", err))
		}
		defer root.Close()
		return walkFolder(w, root, ".")
	}}
}

func walkFolder(w *walker, root *os.Root, dir string) error {
	entries, err := list(root, dir)
	if err != nil {
		return w.fail(fmt.Errorf("couldn't read the folder: %w", err))
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if entry.IsDir() {
			if err := w.folder(name); err != nil {
				return err
			}
			if err := walkFolder(w, root, name); err != nil {
				return err
			}
			continue
		}
		if err := walkFolderEntry(w, root, name, entry.Type()); err != nil {
			return err
		}
	}
	return nil
}

// list reads one folder, sorted by name. A link in its place is not followed.
func list(root *os.Root, dir string) ([]fs.DirEntry, error) {
	before, err := root.Lstat(dir)
	if err != nil {
		return nil, err
	}
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := same(before, f); err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

func walkFolderEntry(w *walker, root *os.Root, name string, mode fs.FileMode) error {
	switch {
	case mode&fs.ModeSymlink != 0:
		return w.skip(name, "symbolic link")
	case mode&fs.ModeNamedPipe != 0:
		return w.skip(name, "named pipe")
	case mode&fs.ModeSocket != 0:
		return w.skip(name, "socket")
	case !mode.IsRegular():
		return w.skip(name, "device")
	}
	info, err := root.Lstat(name)
	if err != nil {
		return w.fail(fmt.Errorf("couldn't read the folder: %w", err))
	}
	if !info.Mode().IsRegular() {
		return w.fail(fmt.Errorf("couldn't read the folder: %s: %w", name, errChanged))
	}
	var f *os.File
	defer func() {
		if f != nil {
			f.Close()
		}
	}()
	return w.file(name, info.Size(), "", false, func() (io.Reader, error) {
		var err error
		// O_NONBLOCK: opening must not hang where a pipe has taken the file's place.
		f, err = root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			err = same(info, f)
		}
		if err != nil {
			return nil, w.fail(fmt.Errorf("couldn't read the folder: %w", err))
		}
		// A file that grows meanwhile is read up to the size it had.
		return io.LimitReader(&sourceReader{w: w, r: f}, info.Size()), nil
	})
}

var errChanged = errors.New("changed while it was read")

// same makes sure that f is what was listed as info.
func same(info fs.FileInfo, f *os.File) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, opened) {
		return fmt.Errorf("%s: %w", strings.TrimPrefix(f.Name(), "./"), errChanged)
	}
	return nil
}
