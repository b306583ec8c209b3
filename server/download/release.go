package download

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A release is what goes into an archive.
type release struct {
	top      string // the folder that holds everything
	modified time.Time
	files    []logs.File // in the byte order of their paths
}

// readRelease reads what a version's archive is made of. It sees that every content
// is there, so that what can be known beforehand does not end an archive in the
// middle.
func (h *Handler) readRelease(t target, v views.Version) (release, error) {
	m, err := logs.ReadManifest(h.store, v.Manifest)
	if err != nil {
		return release{}, fmt.Errorf("download: %w", err)
	}
	if m.Package != t.pkg || m.Version != t.version {
		return release{}, fmt.Errorf("download: %w: manifest %s is of %q %q", kvstore.ErrCorrupt, v.Manifest, m.Package, m.Version)
	}
	slices.SortFunc(m.Files, func(a, b logs.File) int { return cmp.Compare(a.Path, b.Path) })
	for i, f := range m.Files {
		if !extractable(f.Path) || i > 0 && f.Path == m.Files[i-1].Path {
			return release{}, fmt.Errorf("download: %w: manifest %s has the path %q, which is unsafe or there twice", kvstore.ErrCorrupt, v.Manifest, f.Path)
		}
		content, err := h.store.Content(f.SHA256)
		if err != nil {
			return release{}, fmt.Errorf("download: %s: %w", f.Path, err)
		}
		if content.Size != f.Size {
			return release{}, fmt.Errorf("download: %w: %s has %d bytes by manifest %s, and its content %s has %d", kvstore.ErrCorrupt, f.Path, f.Size, v.Manifest, f.SHA256, content.Size)
		}
	}
	return release{top: t.top(), modified: modified(m.Released), files: m.Files}, nil
}

// extractable reports whether a path stays in the archive's folder wherever it is
// extracted. Nothing else is ever published; but what an archive does to somebody's
// disk should not hang on that alone.
func extractable(path string) bool {
	return path != "." && fs.ValidPath(path) && !strings.ContainsAny(path, "\\\x00")
}

// The times that both formats hold: a zip archive's begin with 1980, and the field that
// has them in seconds ends in 2106.
var (
	earliest = time.Date(1980, time.January, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Unix(1<<32-1, 0).UTC()
)

// modified is the time that an archive's files have, to the second. A release
// without a time has the earliest.
func modified(released time.Time) time.Time {
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

// open reads a content, in one of the codings that it is stored in. The bytes are
// those that were stored, or the error is kvstore.ErrCorrupt.
func (h *Handler) open(f logs.File) (content, error) {
	kept, err := h.store.Content(f.SHA256)
	if err != nil {
		return content{}, fmt.Errorf("download: %s: %w", f.Path, err)
	}
	chosen := kept.Representations[0].Coding
	// Gzip takes a third of Brotli's time, and a window of 32 KiB.
	for _, c := range []coding.Coding{coding.Gzip, coding.Identity} {
		if _, ok := kept.Find(c); ok {
			chosen = c
		}
	}
	_, coded, err := h.store.Coded(f.SHA256, chosen)
	if err != nil {
		return content{}, fmt.Errorf("download: %s: %w", f.Path, err)
	}
	return content{file: f, coding: chosen, coded: coded}, nil
}

// writeTo writes the identity, and then says whether it was the file that the
// manifest names. The buffer is for copying.
func (c content) writeTo(w io.Writer, buffer []byte) error {
	r, err := coding.NewReader(c.coding, bytes.NewReader(c.coded))
	if err != nil {
		return c.corrupt(err)
	}
	defer r.Close()
	sum := sha256.New()
	for n := int64(0); ; {
		read, err := r.Read(buffer)
		sum.Write(buffer[:read])
		if n += int64(read); n > c.file.Size {
			return c.corrupt(errors.New("it decodes to more bytes"))
		}
		if _, err := w.Write(buffer[:read]); err != nil {
			return err
		}
		switch {
		case err == io.EOF && (n != c.file.Size || kvstore.Hash(sum.Sum(nil)) != c.file.SHA256):
			return c.corrupt(errors.New("it decodes to other bytes"))
		case err == io.EOF:
			return nil
		case err != nil:
			return c.corrupt(err)
		}
	}
}

func (c content) corrupt(err error) error {
	return fmt.Errorf("download: %s: %w: content %s in %v: %w", c.file.Path, kvstore.ErrCorrupt, c.file.SHA256, c.coding, err)
}
