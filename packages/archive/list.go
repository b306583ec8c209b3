package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// List returns the source that consists of entries, in their order, under the rules and limits of an archive. It ignores their Modified.
// A walk calls open(i) for the bytes of entries[i], and closes the result, but only if its function reads them or [Source.LeaveOut] needs
// them. An error of open ends the walk. Entries with Skipped are passed on as skipped.
func List(entries []Entry, open func(i int) (io.ReadCloser, error)) Source {
	return Source{walk: func(w *walker) error {
		for i, e := range entries {
			if err := walkListEntry(w, e, func() (io.ReadCloser, error) { return open(i) }); err != nil {
				return err
			}
		}
		return w.err
	}}
}

// walkListEntry checks one entry of a list, and passes it to the walk's function.
func walkListEntry(w *walker, e Entry, open func() (io.ReadCloser, error)) error {
	if e.Skipped != "" {
		return w.skipEntry(e.Name, e.Skipped)
	}
	return w.addFile(e.Name, e.Size, "", false, func() (io.Reader, error) {
		opened, err := open()
		if err != nil {
			return nil, w.fail(fmt.Errorf("couldn't read the content of %s: %w", quoteName(e.Name), err))
		}
		return &sourceFile{sourceReader{w: w, r: opened}, opened}, nil
	})
}

// SingleFile returns the source that consists of the file at path, under the last component of path. Each walk opens the file, and follows
// links to it; the walk fails if the file cannot be opened or is not a regular one.
func SingleFile(path string) Source {
	return Source{walk: func(w *walker) error {
		return w.openFile(path, "file", func(f *os.File, info fs.FileInfo) error {
			if !info.Mode().IsRegular() {
				return w.fail(fmt.Errorf("couldn't open %s: not a regular file", path))
			}
			return w.addFile(filepath.Base(path), info.Size(), "", false, func() (io.Reader, error) {
				// A file that grows meanwhile is read up to the size it had.
				return &sourceFile{sourceReader{w: w, r: io.LimitReader(f, info.Size())}, f}, nil
			})
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

// newFormError returns the error for a file that is not an archive and has these first bytes.
func newFormError(head []byte) error {
	for _, other := range otherForms {
		if bytes.HasPrefix(head, []byte(other.begins)) {
			return fmt.Errorf("a file compressed with %s; a .tar.gz, a .tar or a .zip is expected", other.name)
		}
	}
	return ErrNotArchive
}
