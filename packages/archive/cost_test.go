package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/cost"
)

// TestCost has archives of many files whose names are the lines of a text.
func TestCost(t *testing.T) {
	names := func(text string) []string {
		return strings.Split(strings.ReplaceAll(text, "\x00", ""), "\n")
	}
	walk := func(data []byte) {
		if src, err := Open(bytes.NewReader(data), int64(len(data))); err == nil {
			_ = Walk(context.Background(), src.StripRoot(), DefaultLimits, func(_ Entry, r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return err
			})
		}
	}
	words := []string{"package/a.js\n", "a", "/", "\n", "a/", "../", "./", "b\n", "é", "A\n", "\xff", "\\", "a\nA\n", strings.Repeat("d/", 50), " "}
	cost.Check(t,
		cost.Parser{Name: "tar.gz", Parse: walk, Seeds: []string{"package/a.js\npackage/b/c.css\n"}, Words: words, Size: 4 << 10, Wrap: func(text string) []byte {
			var b bytes.Buffer
			packed, _ := gzip.NewWriterLevel(&b, gzip.NoCompression) // which is quick
			w := tar.NewWriter(packed)
			for _, name := range names(text) {
				if w.WriteHeader(&tar.Header{Name: name, Size: 1, Mode: 0o644, Format: tar.FormatPAX}) == nil {
					_, _ = w.Write([]byte("1"))
				}
			}
			_ = w.Close()
			_ = packed.Close()
			return b.Bytes()
		}, MaxMilliseconds: 60, MaxKiB: 10_000},
		cost.Parser{Name: "zip", Parse: walk, Seeds: []string{"package/a.js\npackage/b/c.css\n"}, Words: words, Size: 4 << 10, Wrap: func(text string) []byte {
			var b bytes.Buffer
			w := zip.NewWriter(&b)
			for _, name := range names(text) {
				if f, err := w.CreateHeader(&zip.FileHeader{Name: name}); err == nil {
					_, _ = f.Write([]byte("1"))
				}
			}
			_ = w.Close()
			return b.Bytes()
		}, MaxMilliseconds: 60, MaxKiB: 10_000},
		cost.Parser{Name: "tar, as it is", Parse: func(data []byte) {
			_ = Walk(context.Background(), open(t, tarball(t, entry{name: "a", body: string(data), kind: tar.TypeReg})), DefaultLimits, func(_ Entry, r io.Reader) error {
				_, err := io.Copy(io.Discard, r)
				return err
			})
		}, Seeds: []string{"a"}, Words: words, MaxMilliseconds: 20, MaxKiB: 2000},
	)
}
