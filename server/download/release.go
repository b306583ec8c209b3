package download

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A release is the content of an archive.
type release struct {
	top      string // the folder that holds everything
	modified time.Time
	files    []logs.File // in the byte order of their paths
}

// readRelease returns the list of files from which the archive t is made, by the manifest of the version v. It checks that the
// store has the content of each file, so that a missing one does not end the archive in the middle. It returns kvstore.ErrCorrupt
// if the manifest is of another release, has an unsafe or repeated path, or differs from a content's size.
func (h *Handler) readRelease(t target, v views.Version) (release, error) {
	m, err := logs.ReadManifest(h.o.Store, v.Manifest)
	if err != nil {
		return release{}, fmt.Errorf("download: %w", err)
	}
	if m.Package != t.pkg || m.Version != t.version {
		return release{}, fmt.Errorf("download: %w: manifest %s is of %q %q", kvstore.ErrCorrupt, v.Manifest, m.Package, m.Version)
	}
	slices.SortFunc(m.Files, func(a, b logs.File) int { return cmp.Compare(a.Path, b.Path) })
	for i, f := range m.Files {
		if !isExtractable(f.Path) || i > 0 && f.Path == m.Files[i-1].Path {
			return release{}, fmt.Errorf("download: %w: manifest %s has the path %q, which is unsafe or there twice", kvstore.ErrCorrupt, v.Manifest, f.Path)
		}
		content, err := h.o.Store.Content(f.SHA256)
		if err != nil {
			return release{}, fmt.Errorf("download: %s: %w", f.Path, err)
		}
		if content.Size != f.Size {
			return release{}, fmt.Errorf("download: %w: %s has %d bytes by manifest %s, and its content %s has %d", kvstore.ErrCorrupt, f.Path, f.Size, v.Manifest, f.SHA256, content.Size)
		}
	}
	return release{top: t.rootFolder(), modified: fileTime(m.Released), files: m.Files}, nil
}

// isExtractable reports whether path is relative and stays below the archive's folder on every system that extracts it. The bot
// publishes no other paths; this second check protects users' disks.
func isExtractable(path string) bool {
	return path != "." && fs.ValidPath(path) && !strings.ContainsAny(path, "\\\x00")
}

// The range of times that both formats can store: zip archives begin with 1980, and their field with seconds ends in 2106.
var (
	earliest = time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Unix(1<<32-1, 0).UTC()
)

// fileTime returns the modification time of an archive's files for a release of the given time: in whole seconds, and within what
// both formats can store. It is 1980-01-01 if the release has no time.
func fileTime(released time.Time) time.Time {
	switch at := released.UTC().Truncate(time.Second); {
	case at.Before(earliest):
		return earliest
	case at.After(latest):
		return latest
	default:
		return at
	}
}

// A content is a file's bytes in the coding that is cheapest to undo.
type content struct {
	file   logs.File
	coding coding.Coding
	coded  []byte
}

// openContent reads the stored bytes of a file, without decoding them, in the encoding that is cheapest to decode; in the next one
// if that is damaged or missing. If all are damaged or missing, the error is that of the last one, kvstore.ErrCorrupt or
// kvstore.ErrNotFound. It returns any other error at once.
func (h *Handler) openContent(f logs.File) (content, error) {
	kept, err := h.o.Store.Content(f.SHA256)
	if err != nil {
		return content{}, fmt.Errorf("download: %s: %w", f.Path, err)
	}
	codings := kept.Representations
	// Gzip takes a third of Brotli's time, and a window of 32 KiB.
	cost := map[coding.Coding]int{coding.Identity: 0, coding.Gzip: 1, coding.Brotli: 2}
	slices.SortFunc(codings, func(a, b kvstore.Representation) int { return cost[a.Coding] - cost[b.Coding] })
	for _, r := range codings {
		var coded []byte
		if _, coded, err = h.o.Store.Coded(f.SHA256, r.Coding); err == nil {
			return content{file: f, coding: r.Coding, coded: coded}, nil
		}
		if !errors.Is(err, kvstore.ErrCorrupt) && !errors.Is(err, kvstore.ErrNotFound) {
			break
		}
	}
	return content{}, fmt.Errorf("download: %s: %w", f.Path, err)
}

// writeVerified decodes the content to w. It returns kvstore.ErrCorrupt if decoding fails, or if the bytes are not those of the
// file in the manifest, and errors of w unchanged. Damaged bytes may have been written to w by then. buffer is used for copying.
func (c content) writeVerified(w io.Writer, buffer []byte) error {
	r, err := coding.NewReader(c.coding, bytes.NewReader(c.coded))
	if err != nil {
		return c.newCorruptError(err)
	}
	defer r.Close()
	sum := sha256.New()
	for n := int64(0); ; {
		read, err := r.Read(buffer)
		sum.Write(buffer[:read])
		if n += int64(read); n > c.file.Size {
			return c.newCorruptError(errors.New("it decodes to more bytes"))
		}
		if _, err := w.Write(buffer[:read]); err != nil {
			return err
		}
		switch {
		case err == io.EOF && (n != c.file.Size || kvstore.Hash(sum.Sum(nil)) != c.file.SHA256):
			return c.newCorruptError(errors.New("it decodes to other bytes"))
		case err == io.EOF:
			return nil
		case err != nil:
			return c.newCorruptError(err)
		}
	}
}

// newCorruptError returns the error, a kvstore.ErrCorrupt, for a content that does not decode to the file in the manifest,
// because of err.
func (c content) newCorruptError(err error) error {
	return fmt.Errorf("download: %s: %w: content %s in %v: %w", c.file.Path, kvstore.ErrCorrupt, c.file.SHA256, c.coding, err)
}

// archiveForm is a part of every archive's entity tag. Increase it with every change that gives any release other bytes, also if a
// library causes the change: the tag is strong, and clients and caches would keep the old bytes.
// TestArchivesAreTheSame fails if it was forgotten.
const archiveForm = "1"

// level is that of the compression, of both formats. On a tar of npm 11.19.1 (13.8
// MB, much of it source code), on one core:
//
//	level   MB/s   size
//	1        266   26.9 %
//	5        162   23.1 %
//	6        143   22.7 %
//	7         70   22.3 %
//	9         20   21.8 %
//
// So 6 is the last one that is nearly free: the next takes twice the time for 2 %.
const level = 6

// A format is one of those that archives come in. Zero is none.
type format int

const (
	tarGzip format = iota + 1
	zipped
)

var formats = [...]format{tarGzip, zipped}

// suffix returns the end of an archive's file name, such as ".zip"; "" for no format.
func (f format) suffix() string { return [...]string{"", ".tar.gz", ".zip"}[f] }

// contentType returns the media type of an archive; "" for no format.
func (f format) contentType() string {
	return [...]string{"", "application/gzip", "application/zip"}[f]
}

// String returns the format as the value of the metrics' label; "none" for no format.
func (f format) String() string { return [...]string{"none", "tar.gz", "zip"}[f] }

// An archiver writes an archive, file by file.
type archiver interface {
	// add writes the file c under name, with the modification time, to the archive. buffer is used for copying.
	add(name string, modified time.Time, c content, buffer []byte) error
	// Close writes the archive's end and what is buffered. It does not close the underlying writer.
	Close() error
}

// newArchiver returns an archiver that writes an archive of the format f to w.
func newArchiver(f format, w io.Writer) archiver {
	if f == zipped {
		compressor, _ := flate.NewWriter(nil, level) // the level is valid
		z := zip.NewWriter(w)
		// One compressor will do: a file ends before the next begins.
		z.RegisterCompressor(zip.Deflate, func(to io.Writer) (io.WriteCloser, error) {
			compressor.Reset(to)
			return compressor, nil
		})
		return zipArchiver{z}
	}
	compressed, _ := gzip.NewWriterLevel(w, level)
	compressed.ModTime = time.Unix(0, 0) // none: this writer makes 2042 of a zero Time
	return tarArchiver{tar.NewWriter(compressed), compressed}
}

// makeArchive writes the archive of the release r in the format f to w. It reads one content at a time from the store. It returns
// the error of ctx if that ends before a file. After an error the archive in w is incomplete.
func (h *Handler) makeArchive(ctx context.Context, w io.Writer, f format, r release) error {
	a := newArchiver(f, w)
	buffer := make([]byte, 32<<10)
	for _, file := range r.files {
		// For a client that is gone compressing ends at the next write; this spares the reading.
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := h.openContent(file)
		if err != nil {
			return err
		}
		if err := a.add(r.top+"/"+file.Path, r.modified, c, buffer); err != nil {
			return fmt.Errorf("download: couldn't add %s to the archive: %w", file.Path, err)
		}
	}
	if err := a.Close(); err != nil {
		return fmt.Errorf("download: couldn't end the archive: %w", err)
	}
	return nil
}

// mode is every file's: a release does not say which are programs.
const mode = 0o644

// A tarArchiver writes USTAR, with a PAX record where a path is too long for it or
// is not ASCII.
type tarArchiver struct {
	tar  *tar.Writer
	gzip *gzip.Writer
}

// add implements archiver: it writes a file to the tar archive.
func (a tarArchiver) add(name string, modified time.Time, c content, buffer []byte) error {
	err := a.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: c.file.Size, Mode: mode, ModTime: modified})
	if err != nil {
		return err
	}
	return c.writeVerified(a.tar, buffer)
}

// Close implements archiver: it ends the tar archive and its gzip stream.
func (a tarArchiver) Close() error {
	if err := a.tar.Close(); err != nil {
		return err // without its end the stream shows that it is incomplete
	}
	return a.gzip.Close()
}

// A zipArchiver writes a zip archive. Files whose names say that they are compressed
// already are stored as they are.
type zipArchiver struct{ *zip.Writer }

const (
	zipUTF8    = 1 << 11 // a flag: the name is UTF-8
	zipVersion = 20      // that a reader must have: 2.0
)

// add implements archiver: it writes a file to the zip archive, compressed unless its name says that it is compressed already.
func (a zipArchiver) add(name string, modified time.Time, c content, buffer []byte) error {
	header := &zip.FileHeader{Name: name, Flags: zipUTF8, Method: zip.Deflate, ReaderVersion: zipVersion, CreatorVersion: zipVersion}
	header.SetMode(mode) // which makes the creator Unix
	//lint:ignore SA1019 CreateRaw does not look at Modified, and both ways must give the same
	header.ModifiedDate, header.ModifiedTime = dosTime(modified)
	header.Extra = extendedTime(modified)
	if c.file.Size > 0 && !isCompressed(c.file) {
		w, err := a.CreateHeader(header)
		if err != nil {
			return err
		}
		return c.writeVerified(w, buffer)
	}
	// A reader that cannot seek does not find the end of a stored file whose length and checksum follow it. So the content is read
	// twice: first for the checksum.
	sum := crc32.NewIEEE()
	if err := c.writeVerified(sum, buffer); err != nil {
		return err
	}
	header.Method, header.CRC32 = zip.Store, sum.Sum32()
	header.UncompressedSize64, header.CompressedSize64 = uint64(c.file.Size), uint64(c.file.Size)
	w, err := a.CreateRaw(header)
	if err != nil {
		return err
	}
	return c.writeVerified(w, buffer)
}

// dosTime returns date and time of t, in its time zone, as zip archives store them: in steps of two seconds and without a zone. t
// is in UTC, and of 1980 or later.
func dosTime(t time.Time) (date, clock uint16) {
	return uint16(t.Day() + int(t.Month())<<5 + (t.Year()-1980)<<9), uint16(t.Second()/2 + t.Minute()<<5 + t.Hour()<<11)
}

// extendedTime returns the extra field "UT" of Info-ZIP for a file in a zip archive, with its modification time in UTC to the
// second. Every common reader supports it.
func extendedTime(t time.Time) []byte {
	const modification = 1 // a flag: that time follows, and no other
	field := append(make([]byte, 0, 9), 'U', 'T', 5, 0, modification)
	return binary.LittleEndian.AppendUint32(field, uint32(t.Unix()))
}

// compressedExtensions are those of files that deflate hardly makes smaller.
//
// It would be more exact to ask whether the store has a content in identity encoding only. But recompression may change that
// later, and the archive's bytes would change with it.
var compressedExtensions = map[string]bool{
	".png": true, ".apng": true, ".jpg": true, ".jpeg": true, ".gif": true, ".webp": true, ".avif": true, ".jxl": true,
	".woff": true, ".woff2": true,
	".mp3": true, ".ogg": true, ".oga": true, ".ogv": true, ".opus": true, ".m4a": true, ".aac": true, ".flac": true, ".weba": true,
	".mp4": true, ".m4v": true, ".webm": true, ".mov": true,
	".zip": true, ".gz": true, ".tgz": true, ".br": true, ".zst": true, ".bz2": true, ".xz": true, ".7z": true,
}

// isCompressed reports whether a file's extension is that of a compressed format, such as .png.
func isCompressed(f logs.File) bool {
	return compressedExtensions[strings.ToLower(path.Ext(f.Path))]
}
