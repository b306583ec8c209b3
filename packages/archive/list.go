package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// List gives the entries of a list, in its order, with the rules and limits of an archive. It reads an entry's bytes through
// open, and only where the walk's fn reads them. The bytes of entries[i] are open(i).
func List(entries []Entry, open func(i int) (io.ReadCloser, error)) Source {
	return Source{walk: func(w *walker) error {
		for i, e := range entries {
			if err := walkListed(w, e, func() (io.ReadCloser, error) { return open(i) }); err != nil {
				return err
			}
		}
		return w.err
	}}
}

func walkListed(w *walker, e Entry, open func() (io.ReadCloser, error)) error {
	if e.Skipped != "" {
		return w.skip(e.Name, e.Skipped)
	}
	var opened io.ReadCloser
	defer func() {
		if opened != nil {
			opened.Close()
		}
	}()
	return w.file(e.Name, e.Size, "", false, func() (r io.Reader, err error) {
		if opened, err = open(); err != nil {
			return nil, w.fail(fmt.Errorf("couldn't read the content of %s: %w", quote(e.Name), err))
		}
		return &sourceReader{w: w, r: opened}, nil
	})
}

// SingleFile gives the one file at path, under the last component of path.
func SingleFile(path string) Source {
	return Source{walk: func(w *walker) error {
		f, err := os.Open(path)
		if err != nil {
			return w.fail(fmt.Errorf("couldn't open the file: %w", err))
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return w.fail(fmt.Errorf("couldn't open the file: %w", err))
		}
		if !info.Mode().IsRegular() {
			return w.fail(fmt.Errorf("couldn't open %s: not a regular file", path))
		}
		return w.file(filepath.Base(path), info.Size(), "", false, func() (io.Reader, error) {
			// A file that grows meanwhile is read up to the size it had.
			return io.LimitReader(&sourceReader{w: w, r: f}, info.Size()), nil
		})
	}}
}

// ErrNotArchive says that a file has none of the forms of an archive.
var ErrNotArchive = errors.New("neither a .tar.gz, a .tar nor a .zip")

// otherForms are the first bytes of archives and compressed files that this package cannot read. A caller that accepts single
// files must not take one of these for a file.
var otherForms = []struct{ begins, name string }{
	{"\xfd7zXZ\x00", "xz"},
	{"BZh", "bzip2"},
	{"\x28\xb5\x2f\xfd", "zstd"},
	{"7z\xbc\xaf\x27\x1c", "7z"},
	{"Rar!\x1a\x07", "rar"},
}

// unknownForm returns the error for a file with these first bytes.
func unknownForm(head []byte) error {
	for _, other := range otherForms {
		if bytes.HasPrefix(head, []byte(other.begins)) {
			return fmt.Errorf("a file compressed with %s; a .tar.gz, a .tar or a .zip is expected", other.name)
		}
	}
	return ErrNotArchive
}
