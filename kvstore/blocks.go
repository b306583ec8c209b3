package kvstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// errBlobFile says that a blob file is missing or damaged. Pebble 2.1 panics where it finds
// that itself, while it opens one or rewrites one (cockroachdb/pebble issue 5127). So a guardFS
// looks first, and what it finds is to Pebble an error of the disk. To callers it is
// [ErrCorrupt].
var errBlobFile = errors.New("a file of large values is damaged")

// blobFooter is the length of the end of a blob file, which begins with its own checksum.
const blobFooter = 38

// checkedFile is a table or blob file that is open for reading. Where a block of a table does not have its checksum, Pebble tries every
// bit of up to 40 KB of it for the one that may be flipped. For a block of an index that takes seconds, at each request that reads it.
// So a guardFS looks first here too.
type checkedFile struct {
	vfs.File
	name  string
	size  int64
	kind  error // which the error of a damaged block wraps
	guard *guard
}

// openImmutable returns the opened table or blob file f, wrapped so that the checksum of each block is checked when it is read. If the file is
// missing, or after closing it if it does not have the expected size or a blob file's footer is damaged, the error wraps
// [pebble.ErrCorruption] for a table: Pebble would end the process, or look for values in the wrong files. For a blob file it wraps
// errBlobFile. f and err are the results of opening it.
func (g *guard) openImmutable(name string, f vfs.File, err error) (vfs.File, error) {
	kind := pebble.ErrCorruption
	if isBlobFile(name) {
		kind = errBlobFile
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s is missing", kind, name)
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if want := g.expectedSize(name); want > 0 && info.Size() != want {
			err = fmt.Errorf("%w: %s has %d bytes, and had %d", kind, name, info.Size(), want)
		} else if isBlobFile(name) {
			err = checkBlobFooter(name, f, info.Size())
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return checkedFile{f, name, info.Size(), kind, g}, nil
}

// checkBlobFooter returns errBlobFile if the end of a blob file of size bytes does not have its checksum.
func checkBlobFooter(name string, f vfs.File, size int64) error {
	footer := make([]byte, blobFooter)
	if size >= blobFooter {
		if _, err := f.ReadAt(footer, size-blobFooter); err != nil {
			return err
		}
	}
	if binary.LittleEndian.Uint32(footer) != maskChecksum(checksum(footer[4:])) {
		return fmt.Errorf("%w: %s does not have its end", errBlobFile, name)
	}
	return nil
}

// isBlobFile reports whether the name of a file is that of a blob file, which has large values such as the bytes of contents.
func isBlobFile(name string) bool { return strings.HasSuffix(name, ".blob") }

// ReadAt implements [vfs.File]. It returns an error if p, a block that Pebble reads as a whole, does not have its checksum; the footer at the end of
// the file is not a block. An error other than [io.EOF] is recorded as damage of the store, and stops the calling goroutine for good if that rewrites
// blob files.
func (c checkedFile) ReadAt(p []byte, offset int64) (int, error) {
	n, err := c.File.ReadAt(p, offset)
	if err == nil && offset+int64(n) < c.size && !isBlock(p[:n]) {
		n, err = 0, fmt.Errorf("%w: %s, byte %d: a block does not have its checksum", c.kind, c.name, offset)
	}
	return n, c.guard.checkRead(err)
}

// checkRead returns err, the error of reading a block of a file. Unless err is nil or [io.EOF], it also records that the store is damaged: from then
// on Pebble begins to rewrite no blob file until the next start, so what is replaced takes space for longer.
//
// If Pebble meets such an error while it rewrites a blob file to reclaim space, it panics. So checkRead logs the error and stops the goroutine that
// rewrites for good.
func (g *guard) checkRead(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	g.unsound.Store(true)
	if isRewriting() {
		g.opts.Logger.Error("a file cannot be rewritten because it is damaged: no more space is given back until the next start", "dir", g.dir, "err", err)
		g.stuck.Store(true)
		select {}
	}
	return err
}

// isRewriting reports whether the calling goroutine is one of Pebble's that rewrite blob files, by the functions on its stack.
func isRewriting() bool {
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasSuffix(frame.Function, ".runBlobFileRewriteLocked") {
			return true
		}
		if !more {
			return false
		}
	}
}

// isBlock reports whether the last four bytes of p are the checksum of the others, as at the end of a block of Pebble. Four bytes or fewer pass, too.
func isBlock(p []byte) bool {
	return len(p) <= 4 || binary.LittleEndian.Uint32(p[len(p)-4:]) == maskChecksum(checksum(p[:len(p)-4]))
}
