package archive

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
)

// Source is an archive or a folder that can be walked any number of times.
type Source struct {
	walk  func(*walker) error
	strip bool
	below int64 // leave decides about files smaller than that, in bytes
	leave func(data []byte) (reason string)
}

// StripRoot returns the source without the first component of every name. npm's tarballs have all files below "package/", those of git
// hosts below "name-commit/". A file beside the top folder is skipped.
func (s Source) StripRoot() Source {
	s.strip = true
	return s
}

// LeaveOut returns the source without the files for whose content why returns a reason. They are skipped with that reason. It calls why
// only for files smaller than below, in bytes, because they are held in memory for that.
func (s Source) LeaveOut(below int64, why func(data []byte) (reason string)) Source {
	s.below, s.leave = below, why
	return s
}

// OpenFile opens the archive or folder at path. The content, not the name, decides whether it is a folder, a .tar.gz, a .tar
// or a .zip. The error for any other file is [ErrNotArchive], or one that names its form, such as xz. Every walk opens the
// file again.
func OpenFile(path string) (Source, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Source{}, fmt.Errorf("couldn't open the archive: %w", err)
	}
	if info.IsDir() {
		return Folder(path), nil
	}
	if !info.Mode().IsRegular() {
		return Source{}, fmt.Errorf("couldn't open %s: neither a file nor a folder", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return Source{}, fmt.Errorf("couldn't open the archive: %w", err)
	}
	defer f.Close()
	form, err := detectForm(f, info.Size())
	if err != nil {
		return Source{}, fmt.Errorf("couldn't open %s: %w", path, err)
	}
	return Source{walk: func(w *walker) error {
		return w.openFile(path, "archive", func(f *os.File, info fs.FileInfo) error { return form(w, f, info.Size()) })
	}}, nil
}

// openFile opens the file at path for do, and closes it after that. what names the file in errors.
func (w *walker) openFile(path, what string, do func(f *os.File, info fs.FileInfo) error) error {
	f, err := os.Open(path)
	if err != nil {
		return w.fail(fmt.Errorf("couldn't open the %s: %w", what, err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return w.fail(fmt.Errorf("couldn't open the %s: %w", what, err))
	}
	return do(f, info)
}

// Open opens the archive (.tar.gz, .tar or .zip) in the first size bytes of r, which must stay readable while the source is
// walked. Errors are those of [OpenFile].
func Open(r io.ReaderAt, size int64) (Source, error) {
	form, err := detectForm(r, size)
	if err != nil {
		return Source{}, fmt.Errorf("couldn't open the archive: %w", err)
	}
	return Source{walk: func(w *walker) error { return form(w, r, size) }}, nil
}

// OpenDownload opens the archive in a file that was just written and must stay open while the source is walked.
func OpenDownload(f *os.File) (Source, error) {
	info, err := f.Stat()
	if err != nil {
		return Source{}, fmt.Errorf("couldn't open the archive: %w", err)
	}
	return Open(f, info.Size())
}

// form is one way an archive is written down.
type form func(w *walker, r io.ReaderAt, size int64) error

// detectForm detects the form of an archive by its first bytes, and returns the function that walks it.
func detectForm(r io.ReaderAt, size int64) (form, error) {
	head := make([]byte, min(size, 512))
	if _, err := r.ReadAt(head, 0); err != nil && err != io.EOF {
		return nil, err
	}
	switch s := string(head); {
	case strings.HasPrefix(s, "\x1f\x8b"):
		return func(w *walker, r io.ReaderAt, size int64) error { return walkTarGz(w, io.NewSectionReader(r, 0, size)) }, nil
	case strings.HasPrefix(s, "PK\x03\x04"), strings.HasPrefix(s, "PK\x05\x06"):
		return walkZip, nil
	case isTar(head):
		return func(w *walker, r io.ReaderAt, size int64) error {
			return walkTar(w, &sourceReader{w: w, r: io.NewSectionReader(r, 0, size)})
		}, nil
	}
	return nil, newFormError(head)
}

// sourceReader reads a walk's source and records what goes wrong below the decoders, so that a broken
// disk or a cancelled walk is never taken for a corrupt archive.
type sourceReader struct {
	w    *walker
	r    io.Reader
	read int64
}

// A sourceFile is a file that is read as a source, or as a part of one.
type sourceFile struct {
	sourceReader
	io.Closer
}

// Read reads from the source, counts the bytes, and ends the walk with the error if the context has ended or reading fails.
func (s *sourceReader) Read(p []byte) (int, error) {
	if err := s.w.ctx.Err(); err != nil {
		return 0, s.w.fail(err)
	}
	n, err := s.r.Read(p)
	s.read += int64(n)
	if err != nil && err != io.EOF {
		return n, s.w.fail(fmt.Errorf("couldn't read the archive: %w", err))
	}
	return n, err
}

// unpacked bounds the bytes that come out of a decompressor, for every reader: the total,
// and how they compare to the bytes that went in.
type unpacked struct {
	w      *walker
	r      io.Reader
	source *sourceReader
	read   int64
	most   int64
}

// Read returns decompressed bytes. It refuses the archive if there are too many in all, or too many for the compressed bytes
// that were read.
func (u *unpacked) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	u.read += int64(n)
	if u.read > u.most {
		return 0, u.w.refuse("", "over %d bytes unpacked", u.w.limits.Unpacked)
	}
	if err := u.w.checkRatio(u.read, u.source.read); err != nil {
		return 0, err
	}
	return n, err
}

// checkRatio refuses the archive if it has unpacked to over 16 MiB and to too many bytes for so many packed ones.
func (w *walker) checkRatio(unpacked, packed int64) error {
	if unpacked > ratioFrom && unpacked/w.limits.Ratio > packed {
		return w.refuse("", "a compression bomb: %d bytes became more than %d", packed, unpacked)
	}
	return nil
}

// walkTarGz walks a tar that is compressed with gzip, and reads it to the end of the gzip data, so that its checksum is verified.
func walkTarGz(w *walker, r io.Reader) error {
	source := &sourceReader{w: w, r: r}
	// The buffer is a gzip.Reader's own, only larger: fewer reads of the file below.
	unzip, err := gzip.NewReader(bufio.NewReaderSize(source, 64<<10))
	if err != nil {
		return w.refuseCorrupt("", err)
	}
	defer unzip.Close()
	out := &unpacked{w: w, r: unzip, source: source}
	out.most = w.limits.Unpacked + int64(w.limits.Entries)*entryOverhead
	if err := walkTar(w, out); err != nil {
		return err
	}
	// The gzip checksum comes after the padding at the tar's end, so the padding is read. Bytes after the last gzip stream
	// are not part of the archive: gzip ignores them too.
	if _, err := io.Copy(io.Discard, out); err != nil && !errors.Is(err, gzip.ErrHeader) {
		return w.refuseCorrupt("", err)
	}
	return w.err
}

// Folder returns the source that consists of the files below a folder, sorted by name, hidden ones included. Links are skipped, not
// followed, also if one replaces a file during the walk: everything is opened relative to the descriptor of the folder, and an opened file
// must be the listed one.
func Folder(name string) Source {
	return folderSource(func() (*os.Root, error) { return os.OpenRoot(name) })
}

// FolderIn is like Folder, for the folder name below root. It opens nothing outside of root, which must stay open for the walks.
func FolderIn(root *os.Root, name string) Source {
	return folderSource(func() (*os.Root, error) { return root.OpenRoot(name) })
}

// folderSource returns the source of the folder that open opens.
func folderSource(open func() (*os.Root, error)) Source {
	return Source{walk: func(w *walker) error {
		root, err := open()
		if err != nil {
			return w.fail(fmt.Errorf("couldn't open the folder: %w", err))
		}
		defer root.Close()
		return walkFolder(w, root, ".")
	}}
}

// walkFolder walks the files below a folder of root.
func walkFolder(w *walker, root *os.Root, dir string) error {
	entries, err := listFolder(root, dir)
	if err != nil {
		return w.fail(fmt.Errorf("couldn't read the folder: %w", err))
	}
	for _, entry := range entries {
		name := path.Join(dir, entry.Name())
		if entry.IsDir() {
			if err := w.addFolder(name); err != nil {
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

// listFolder returns the entries of one folder, sorted by name. It does not follow a link in place of the folder.
func listFolder(root *os.Root, dir string) ([]fs.DirEntry, error) {
	before, err := root.Lstat(dir)
	if err != nil {
		return nil, err
	}
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := checkSame(before, f); err != nil {
		return nil, err
	}
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// walkFolderEntry checks one entry of a folder, and passes it to the walk's function.
func walkFolderEntry(w *walker, root *os.Root, name string, mode fs.FileMode) error {
	if !mode.IsRegular() {
		return w.skipEntry(name, skipReason(mode))
	}
	info, err := root.Lstat(name)
	if err != nil {
		return w.fail(fmt.Errorf("couldn't read the folder: %w", err))
	}
	if !info.Mode().IsRegular() {
		return w.fail(fmt.Errorf("couldn't read the folder: %s: %w", name, errChanged))
	}
	w.modified = info.ModTime()
	return w.addFile(name, info.Size(), "", false, func() (io.Reader, error) {
		// O_NONBLOCK: opening must not hang where a pipe has taken the file's place.
		f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			if err = checkSame(info, f); err != nil {
				f.Close()
			}
		}
		if err != nil {
			return nil, w.fail(fmt.Errorf("couldn't read the folder: %w", err))
		}
		// A file that grows meanwhile is read up to the size it had.
		return &sourceFile{sourceReader{w: w, r: io.LimitReader(f, info.Size())}, f}, nil
	})
}

var errChanged = errors.New("changed while it was read")

// checkSame returns an error unless f is the file that was listed as info.
func checkSame(info fs.FileInfo, f *os.File) error {
	opened, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, opened) {
		return fmt.Errorf("%s: %w", strings.TrimPrefix(f.Name(), "./"), errChanged)
	}
	return nil
}
