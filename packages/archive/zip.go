package archive

import (
	"archive/zip"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/klauspost/compress/flate"
)

// directoryBytes is how much of a zip may be read for its list of entries, for each entry that the
// limits allow. It bounds the memory for the list, which archive/zip builds whole.
const directoryBytes = 512

// walkZip reads a zip by its central directory, as every reader does that can be told apart from it.
func walkZip(w *walker, r io.ReaderAt, size int64) error {
	source := &sourceReaderAt{w: w, r: r, size: size, left: int64(w.limits.Entries)*directoryBytes + 128<<10}
	zr, err := zip.NewReader(source, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // insecure names get our own reasons
		return w.corrupt("", err)
	}
	source.left = -1
	zr.RegisterDecompressor(zip.Deflate, func(r io.Reader) io.ReadCloser { return flate.NewReader(r) })
	var total int64
	for _, f := range zr.File {
		if err := walkZipEntry(w, f, size, &total); err != nil {
			return err
		}
	}
	return w.err
}

func walkZipEntry(w *walker, f *zip.File, size int64, total *int64) error {
	const encrypted = 0x1
	mode := f.Mode()
	switch {
	case f.Flags&encrypted != 0:
		return w.refuse(f.Name, "encrypted")
	case mode.IsDir():
		return w.folder(f.Name)
	case mode&fs.ModeSymlink != 0:
		return w.skip(f.Name, "symbolic link")
	case mode&fs.ModeNamedPipe != 0:
		return w.skip(f.Name, "named pipe")
	case !mode.IsRegular():
		return w.skip(f.Name, "device")
	case f.UncompressedSize64 > uint64(w.limits.Unpacked):
		return w.refuse("", "over %d bytes unpacked", w.limits.Unpacked)
	}
	// Entries may overlap, so the whole file is what the unpacked bytes are compared with, and each
	// entry with its own part.
	*total += int64(f.UncompressedSize64)
	if err := w.checkRatio(*total, size); err != nil {
		return err
	}
	if err := w.checkRatio(int64(f.UncompressedSize64), int64(min(f.CompressedSize64, uint64(size)))); err != nil {
		return err
	}
	var opened io.ReadCloser
	defer func() {
		if opened != nil {
			opened.Close()
		}
	}()
	return w.file(f.Name, int64(f.UncompressedSize64), "", true, func() (io.Reader, error) {
		var err error
		opened, err = f.Open()
		return opened, err
	})
}

// sourceReaderAt is sourceReader's counterpart for archives that are not read in order.
type sourceReaderAt struct {
	w    *walker
	r    io.ReaderAt
	size int64
	left int64 // bytes that may still be read, -1 for any number
}

func (s *sourceReaderAt) ReadAt(p []byte, offset int64) (int, error) {
	if err := s.w.ctx.Err(); err != nil {
		return 0, s.w.fail(err)
	}
	if offset < 0 || offset > s.size { // where a corrupt list of entries points
		return 0, io.ErrUnexpectedEOF
	}
	if s.left >= 0 {
		if s.left -= int64(len(p)); s.left < 0 {
			return 0, s.w.refuse("", "more than %d entries", s.w.limits.Entries)
		}
	}
	n, err := s.r.ReadAt(p, offset)
	if err != nil && err != io.EOF {
		return n, s.w.fail(fmt.Errorf("couldn't read the archive: %w", err))
	}
	return n, err
}
