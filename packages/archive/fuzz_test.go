package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzTarGz feeds tars, wrapped here in gzip (stored, which is quick) so that mutation gets past gzip's
// checksum.
func FuzzTarGz(f *testing.F) {
	for _, rule := range rules {
		f.Add(tarred(f, rule.entries...))
	}
	f.Add(tarred(f, entry{kind: tar.TypeXGlobalHeader, body: "c"}, entry{name: "b", kind: tar.TypeLink, link: "a"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var buf bytes.Buffer
		zw, _ := gzip.NewWriterLevel(&buf, gzip.NoCompression)
		zw.Write(data)
		zw.Close()
		checkInvariants(t, open(t, buf.Bytes()))
	})
}

// FuzzZip feeds zips, and gzip streams, as they are.
func FuzzZip(f *testing.F) {
	for _, rule := range rules {
		f.Add(zipped(f, rule.entries...))
	}
	f.Add(tarball(f, entry{name: "a", body: "1"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		src, err := Open(bytes.NewReader(data), int64(len(data)))
		if err == nil {
			checkInvariants(t, src)
		}
	})
}

// checkInvariants walks an archive of any bytes and checks what the package promises about them.
func checkInvariants(t *testing.T, src Source) {
	limits := Limits{Unpacked: 1 << 20, Entries: 200, NameLength: 300}
	for _, src := range []Source{src, src.StripRoot()} {
		names := make(map[string]bool)
		var total int64
		entries := 0
		err := Walk(context.Background(), src, limits, func(e Entry, r io.Reader) error {
			if entries++; entries > limits.Entries {
				t.Errorf("more than %d entries", limits.Entries)
			}
			n, err := io.Copy(io.Discard, r)
			if total += n; total > limits.Unpacked {
				t.Errorf("over %d bytes", limits.Unpacked)
			}
			if e.Skipped != "" {
				if n != 0 || e.Size != 0 {
					t.Errorf("%q is skipped, yet has %d bytes", e.Name, n)
				}
				if !utf8.ValidString(e.Name) {
					t.Errorf("%q cannot be shown", e.Name)
				}
				return err
			}
			if err == nil && n != e.Size {
				t.Errorf("%q: %d bytes, size says %d", e.Name, n, e.Size)
			}
			// fs.ValidPath: UTF-8, no empty, "." or ".." component, no slash at either end.
			if !fs.ValidPath(e.Name) || e.Name == "." || strings.ContainsAny(e.Name, "\\\x00\r\n") || names[e.Name] {
				t.Errorf("%q was handed out", e.Name)
			}
			names[e.Name] = true
			return err
		})
		for name := range names {
			for i := range name {
				if name[i] == '/' && names[name[:i]] {
					t.Errorf("%q is a file and a folder", name[:i])
				}
			}
		}
		var refused *RefusedError
		if err != nil && !errors.As(err, &refused) {
			t.Errorf("an archive in memory fails with %v", err)
		}
	}
}
