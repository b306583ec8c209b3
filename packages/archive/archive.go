// Package archive reads untrusted archives: .tar.gz, .tar, .zip, plain folders, and lists of files whose contents come
// separately.
//
// It guarantees for any bytes:
//
//   - Nothing is ever written to disk, and no link is ever followed.
//   - Every name that it returns is a clean relative path: UTF-8, slashes only, no empty, "." or ".."
//     component, no control character, no name twice, no name that is a file and a folder at once.
//   - An archive that breaks a rule is refused with a [RefusedError]: absolute names, "..",
//     backslashes or NUL in a name, a name given twice, too many bytes or entries, a compression bomb,
//     sparse files, encrypted, truncated or corrupt data.
//   - Links, devices and other special files, and files whose names cannot be in a URL or a log (not UTF-8,
//     control characters), are skipped and reported with [Entry].Skipped.
//   - Memory is bounded by [Limits], never by what an archive claims.
//
// The limits count the bytes that are really unpacked, also of entries that a caller does not read. When [Walk] returns nil,
// the complete archive has been read and is valid. Before that, its entries are only candidates, so a caller that must not
// act on half of an invalid archive walks it twice.
//
// The package must not know what a release or a package is, nor where archives come from.
package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/klauspost/compress/flate"

	"github.com/larder-cdn/larder/internal/text"
)

// Entry is one file of an archive, or an entry that is skipped.
type Entry struct {
	// Name is the entry's clean path. For a skipped entry it is for display only: bytes that are not
	// UTF-8 are replaced.
	Name string
	// Size is the file's length in bytes, 0 for skipped entries.
	Size int64
	// Modified is when the file was last changed; zero for one that is not in a [Folder].
	Modified time.Time
	// Skipped says why the entry is skipped ("symbolic link", "hard link", "device"…). It is empty for a file.
	Skipped string
}

// Limits limit the cost of an archive. A zero field means its default.
type Limits struct {
	// Unpacked limits the bytes of all files together; default 1 GiB.
	Unpacked int64
	// Entries limits the entries of any kind, and the folders; default 50,000.
	Entries int
	// NameLength limits a name, in bytes; default 1024.
	NameLength int
	// Ratio limits how many times larger than its compressed form an archive of over 16 MiB may be; default 200. Text reaches
	// 20, a bomb 1000.
	Ratio int64
}

// DefaultLimits are the limits for archives from strangers.
var DefaultLimits = Limits{Unpacked: 1 << 30, Entries: 50_000, NameLength: 1024, Ratio: 200}

const (
	// ratioFrom is the size below which a high ratio is not refused.
	ratioFrom = 16 << 20
	// maxDepth limits the components of a name, and with them the folders that one entry adds.
	maxDepth = 100
	// entryOverhead is the bytes of a tar that may be headers and padding for each entry.
	entryOverhead = 4096
)

// withDefaults returns the limits with the default in place of each zero.
func (l Limits) withDefaults() Limits {
	l.Unpacked = cmp.Or(l.Unpacked, DefaultLimits.Unpacked)
	l.Entries = cmp.Or(l.Entries, DefaultLimits.Entries)
	l.NameLength = cmp.Or(l.NameLength, DefaultLimits.NameLength)
	l.Ratio = cmp.Or(l.Ratio, DefaultLimits.Ratio)
	return l
}

// RefusedError says that an archive breaks a rule and must not be used at all. Trying again does not
// help: the same bytes will be refused again.
type RefusedError struct {
	// Entry is the name as the archive has it, or empty if the error concerns the archive itself.
	Entry string
	// Reason is for people: "the same name twice", "absolute name"….
	Reason string
}

// Error returns the reason and, if the error concerns one, the name of the entry.
func (e *RefusedError) Error() string {
	if e.Entry == "" {
		return "archive refused: " + e.Reason
	}
	return fmt.Sprintf("archive refused: entry %s: %s", quoteName(e.Entry), e.Reason)
}

// quoteName returns a stranger's name in a form that is safe and short enough for a log line.
func quoteName(name string) string { return strconv.Quote(text.Short(name, 200)) }

// Walk reads src from beginning to end and calls fn for each file and each skipped entry, in the order of the archive, or sorted by name
// in a folder. It does not report folders. The reader returns the bytes of a file, none for a skipped entry. It is valid until fn returns.
// fn need not read it: Walk reads the rest itself, so that limits and checksums cover all of it. Only unread files of a [Folder], a [List]
// and a [SingleFile] stay unread. An error from fn ends the walk and is returned unchanged, except [fs.SkipAll], which ends the walk
// without an error and leaves the rest of the archive unchecked. Other errors are a *[RefusedError], the error of ctx, or a read error of
// the source.
func Walk(ctx context.Context, src Source, limits Limits, fn func(Entry, io.Reader) error) error {
	if src.walk == nil {
		return errors.New("archive: walking a Source that nothing was opened for")
	}
	w := &walker{
		ctx:    ctx,
		limits: limits.withDefaults(),
		fn:     fn,
		strip:  src.strip,
		below:  src.below,
		leave:  src.leave,
		names:  make(map[string]kind),
	}
	err := src.walk(w)
	if errors.Is(err, fs.SkipAll) {
		return nil
	}
	return err
}

// outside is where names without a top folder are booked while top folders are stripped: nothing else
// can be there, since ".." is never admitted from an archive.
const outside = "../"

// cleanName checks and cleans the name of an entry, and reserves it for the entry. It returns "" for the archive's own top: "./", or the
// top folder where that is stripped. odd says why a file of that name must be skipped.
func (w *walker) cleanName(raw string, k kind) (name, odd string, err error) {
	switch {
	case raw == "":
		return "", "", w.refuse("", "an entry without a name")
	case len(raw) > w.limits.NameLength:
		return "", "", w.refuse(raw, "name of %d bytes, more than %d", len(raw), w.limits.NameLength)
	case strings.IndexByte(raw, 0) >= 0:
		return "", "", w.refuse(raw, "NUL in the name")
	case strings.IndexByte(raw, '\\') >= 0:
		return "", "", w.refuse(raw, "backslash in the name")
	case raw[0] == '/', hasDrive(raw):
		return "", "", w.refuse(raw, "absolute name")
	}
	parts := make([]string, 0, 8)
	for part := range strings.SplitSeq(raw, "/") {
		switch part {
		case "", ".":
		case "..":
			return "", "", w.refuse(raw, `".." in the name`)
		default:
			parts = append(parts, part)
		}
	}
	switch {
	case len(parts) == 0 && k == folder:
		return "", "", nil
	case len(parts) == 0:
		return "", "", w.refuse(raw, "a file without a name")
	case len(parts) > maxDepth:
		return "", "", w.refuse(raw, "more than %d folders deep", maxDepth)
	case !utf8.ValidString(raw):
		odd = "name is not UTF-8"
	case strings.ContainsFunc(raw, unicode.IsControl):
		odd = "control character in the name"
	}
	if w.strip && len(parts) == 1 {
		if k == folder {
			return "", "", nil // the top folder itself
		}
		return parts[0], "outside the top folder", w.claimName(raw, outside+parts[0], k)
	}
	if w.strip {
		parts = parts[1:]
	}
	name = strings.Join(parts, "/")
	return name, odd, w.claimName(raw, name, k)
}

// hasDrive reports whether a name is an absolute path on systems with drive letters.
func hasDrive(name string) bool {
	return len(name) >= 3 && name[1] == ':' && name[2] == '/' &&
		('a' <= name[0]|0x20 && name[0]|0x20 <= 'z')
}

// walkTar walks a tar of any dialect. Package archive/tar handles long names and PAX records.
func walkTar(w *walker, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		header, err := tr.Next()
		if err == io.EOF {
			return w.err
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // insecure names get our own reasons
			return w.refuseCorrupt("", err)
		}
		if err := walkTarEntry(w, tr, header); err != nil {
			return err
		}
	}
}

// walkTarEntry checks one entry of a tar, and passes it to the walk's function.
func walkTarEntry(w *walker, tr *tar.Reader, header *tar.Header) error {
	if isSparse(header) {
		return w.refuse(header.Name, "a sparse file")
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont:
		return w.addFile(header.Name, header.Size, "", true, func() (io.Reader, error) { return tr, nil })
	case tar.TypeDir:
		return w.addFolder(header.Name)
	case tar.TypeXGlobalHeader:
		return w.countEntry() // a forge's comment, for instance
	case tar.TypeSymlink:
		return w.skipEntry(header.Name, "symbolic link")
	case tar.TypeLink:
		return w.skipEntry(header.Name, "hard link")
	case tar.TypeChar, tar.TypeBlock:
		return w.skipEntry(header.Name, "device")
	case tar.TypeFifo:
		return w.skipEntry(header.Name, "named pipe")
	}
	return w.skipEntry(header.Name, "unknown kind of entry")
}

// isSparse reports whether a file of a tar has holes, which archive/tar fills: gigabytes from a few hundred bytes. No program that packs
// releases writes such files. Without them a tar is at least as large as its content, so only the compression around it needs a limit.
func isSparse(header *tar.Header) bool {
	if header.Typeflag == tar.TypeGNUSparse {
		return true
	}
	for key := range header.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// isTar reports whether head, the first 512 bytes of a file, starts like a tar. Old tars have no magic number, so archive/tar
// verifies the checksum of the first header.
func isTar(head []byte) bool {
	_, err := tar.NewReader(bytes.NewReader(head)).Next()
	return len(head) == 512 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrInsecurePath))
}

// directoryBytes is how much of a zip may be read for its list of entries, for each entry that the
// limits allow. It bounds the memory for the list, which archive/zip builds whole.
const directoryBytes = 512

// walkZip walks a zip by its central directory, as other readers do.
func walkZip(w *walker, r io.ReaderAt, size int64) error {
	source := &sourceReaderAt{w: w, r: r, size: size, left: int64(w.limits.Entries)*directoryBytes + 128<<10}
	zr, err := zip.NewReader(source, size)
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // insecure names get our own reasons
		return w.refuseCorrupt("", err)
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

// walkZipEntry checks one entry of a zip, and passes it to the walk's function. size is the size of the zip, and total the
// unpacked bytes of its entries so far.
func walkZipEntry(w *walker, f *zip.File, size int64, total *int64) error {
	const encrypted = 0x1
	mode := f.Mode()
	switch {
	case f.Flags&encrypted != 0:
		return w.refuse(f.Name, "encrypted")
	case mode.IsDir():
		return w.addFolder(f.Name)
	case !mode.IsRegular():
		return w.skipEntry(f.Name, skipReason(mode))
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
	return w.addFile(f.Name, int64(f.UncompressedSize64), "", true, func() (io.Reader, error) { return f.Open() })
}

// skipReason returns why an entry with this mode, which is neither a file nor a folder, is skipped.
func skipReason(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeSymlink != 0:
		return "symbolic link"
	case mode&fs.ModeNamedPipe != 0:
		return "named pipe"
	case mode&fs.ModeSocket != 0:
		return "socket"
	}
	return "device"
}

// A sourceReaderAt reads a zip archive, which is not read in order. It ends the walk on errors, and limits how much of the archive's
// list of entries is read.
type sourceReaderAt struct {
	w    *walker
	r    io.ReaderAt
	size int64
	left int64 // bytes that may still be read, -1 for any number
}

// ReadAt implements [io.ReaderAt]: it reads from the archive. If the context has ended, reading fails or the list of entries
// is too long, it ends the walk with that error.
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
