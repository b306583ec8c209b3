// Package archive reads archives that come from strangers: .tar.gz, .tar, .zip, plain folders, and lists of files whose
// contents come separately.
//
// What it guarantees, whatever the bytes are:
//
//   - Nothing is ever written to disk, and no link is ever followed.
//   - Every name handed out is a clean relative path: UTF-8, slashes only, no empty, "." or ".."
//     component, no control character, no name twice, no name that is a file and a folder at once.
//   - An archive that breaks a rule is refused as a whole with a [RefusedError]: absolute names, "..",
//     backslashes or NUL in a name, a name given twice, too many bytes or entries, a compression bomb,
//     sparse files, encrypted, truncated or corrupt data.
//   - Links, devices and other special files, and files whose names cannot stand in a URL or a log (not UTF-8,
//     control characters), are left out and reported through [Entry].Skipped.
//   - Memory is bounded by [Limits], never by what an archive claims.
//
// The limits count the bytes that really come out, also of the entries a caller does not read. When
// [Walk] returns nil the whole archive has been read and was sound; before that its entries are only
// candidates, so a caller that must not act on half a bad archive walks it twice.
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

// Entry is one file of an archive, or one thing in it that is left out.
type Entry struct {
	// Name is the entry's clean path. For a skipped entry it is only good for showing to people:
	// bytes that are not UTF-8 are replaced.
	Name string
	// Size is the file's length in bytes, 0 for skipped entries.
	Size int64
	// Modified is when the file was last changed; zero for one that is not in a [Folder].
	Modified time.Time
	// Skipped says why the entry is left out ("symbolic link", "hard link", "device"…). It is empty
	// for a file to be used.
	Skipped string
}

// Limits bound what an archive may cost. A zero field means its default.
type Limits struct {
	// Unpacked is the most bytes that all files together may have; default 1 GiB.
	Unpacked int64
	// Entries is the most entries, of any kind, and also the most folders; default 50,000.
	Entries int
	// NameLength is the longest name in bytes; default 1024.
	NameLength int
	// Ratio is how many times larger than its compressed form an archive may be, once it is over
	// 16 MiB; default 200. Text reaches 20, a bomb 1000.
	Ratio int64
}

// DefaultLimits are the limits for archives from strangers.
var DefaultLimits = Limits{Unpacked: 1 << 30, Entries: 50_000, NameLength: 1024, Ratio: 200}

const (
	// ratioFrom is the size below which a high ratio is not refused.
	ratioFrom = 16 << 20
	// maxDepth bounds the components of a name, and with them the folders one entry can bring in.
	maxDepth = 100
	// entryOverhead is what a tar may spend on headers and padding for each entry.
	entryOverhead = 4096
)

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
	// Entry is the name as it stands in the archive, or empty where the whole archive is at fault.
	Entry string
	// Reason is for people: "the same name twice", "absolute name"….
	Reason string
}

func (e *RefusedError) Error() string {
	if e.Entry == "" {
		return "archive refused: " + e.Reason
	}
	return fmt.Sprintf("archive refused: entry %s: %s", quote(e.Entry), e.Reason)
}

// quote makes a stranger's name safe and short enough for a log line.
func quote(name string) string { return strconv.Quote(text.Short(name, 200)) }

// Walk reads src from beginning to end and calls fn for each file and each thing left out, in the
// archive's order (a folder's: sorted by name). Folders themselves are not reported.
//
// The reader gives the file's bytes; it is good until fn returns and gives nothing for skipped
// entries. fn need not read it. Walk reads the rest, so that the limits and checksums cover all of
// it; only a folder's unread files stay unread.
//
// An error from fn ends the walk and is returned as it is, except [fs.SkipAll], which ends it without
// one and leaves the rest of the archive unchecked. Other errors are a *[RefusedError], ctx's error,
// or the source's own read error.
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

// name checks the name of an entry, cleans it and claims it for the entry. It returns "" for the
// archive's own top ("./", or the top folder where that is stripped). odd says why a file of that
// name can only be left out.
func (w *walker) name(raw string, k kind) (name, odd string, err error) {
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
		return parts[0], "outside the top folder", w.claim(raw, outside+parts[0], k)
	}
	if w.strip {
		parts = parts[1:]
	}
	name = strings.Join(parts, "/")
	return name, odd, w.claim(raw, name, k)
}

// hasDrive reports whether a name is absolute where drives have letters.
func hasDrive(name string) bool {
	return len(name) >= 3 && name[1] == ':' && name[2] == '/' &&
		('a' <= name[0]|0x20 && name[0]|0x20 <= 'z')
}

// walkTar reads a tar in any of its dialects: long names and PAX records are archive/tar's business.
func walkTar(w *walker, r io.Reader) error {
	tr := tar.NewReader(r)
	for {
		header, err := tr.Next()
		if err == io.EOF {
			return w.err
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // insecure names get our own reasons
			return w.corrupt("", err)
		}
		if err := walkTarEntry(w, tr, header); err != nil {
			return err
		}
	}
}

func walkTarEntry(w *walker, tr *tar.Reader, header *tar.Header) error {
	if sparse(header) {
		return w.refuse(header.Name, "a sparse file")
	}
	switch header.Typeflag {
	case tar.TypeReg, tar.TypeCont:
		return w.file(header.Name, header.Size, "", true, func() (io.Reader, error) { return tr, nil })
	case tar.TypeDir:
		return w.folder(header.Name)
	case tar.TypeXGlobalHeader:
		return w.count() // a forge's comment, for instance
	case tar.TypeSymlink:
		return w.skip(header.Name, "symbolic link")
	case tar.TypeLink:
		return w.skip(header.Name, "hard link")
	case tar.TypeChar, tar.TypeBlock:
		return w.skip(header.Name, "device")
	case tar.TypeFifo:
		return w.skip(header.Name, "named pipe")
	}
	return w.skip(header.Name, "unknown kind of entry")
}

// sparse reports whether a file has holes, which archive/tar fills: gigabytes of a few hundred bytes.
// Nothing that packs releases writes such files. Without them, no more bytes come out of a tar than went
// in, so that only the compression around it needs a limit.
func sparse(header *tar.Header) bool {
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

// isTar reports whether head begins like a tar. A tar has no mark of its own before the ustar format,
// so archive/tar is asked: it verifies the first header's checksum.
func isTar(head []byte) bool {
	_, err := tar.NewReader(bytes.NewReader(head)).Next()
	return len(head) == 512 && (err == nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, tar.ErrInsecurePath))
}

// directoryBytes is how much of a zip may be read for its list of entries, for each entry that the
// limits allow. It bounds the memory for the list, which archive/zip builds whole.
const directoryBytes = 512

// walkZip reads a zip by its central directory, as other readers do.
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
