package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tarball writes a .tar.gz of the given entries.
func tarball(t testing.TB, headers ...entry) []byte {
	t.Helper()
	return gzipped(t, tarred(t, headers...))
}

// entry is a tar entry for tests: a file of body unless kind says otherwise.
type entry struct {
	name string
	body string
	kind byte
	link string
}

func tarred(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: 0o644, Size: int64(len(e.body))}
		if e.kind == 0 {
			h.Typeflag = tar.TypeReg
		}
		if e.kind == tar.TypeXGlobalHeader {
			h = &tar.Header{Typeflag: e.kind, PAXRecords: map[string]string{"comment": e.body}}
			e.body = ""
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatalf("%q: %v", e.name, err)
		}
		if _, err := io.WriteString(tw, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw, _ := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if _, err := zw.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zipped(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := zip.NewWriter(&buf)
	for _, e := range entries {
		h := &zip.FileHeader{Name: e.name, Method: zip.Deflate}
		switch e.kind {
		case tar.TypeSymlink:
			h.SetMode(fs.ModeSymlink | 0o777)
		case tar.TypeFifo:
			h.SetMode(fs.ModeNamedPipe | 0o644)
		case tar.TypeChar:
			h.SetMode(fs.ModeDevice | fs.ModeCharDevice | 0o644)
		}
		w, err := zw.CreateHeader(h)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(e.name, "/") {
			if _, err := io.WriteString(w, e.body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := zw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// show walks an archive and writes down what it hands out: "name=body" or "name (why it is skipped)".
func show(src Source, limits Limits) (string, error) {
	var lines []string
	err := Walk(context.Background(), src, limits, func(e Entry, r io.Reader) error {
		body, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if e.Skipped != "" {
			lines = append(lines, fmt.Sprintf("%s (%s)", e.Name, e.Skipped))
			return nil
		}
		if int64(len(body)) != e.Size {
			return fmt.Errorf("%s: %d bytes, size says %d", e.Name, len(body), e.Size)
		}
		lines = append(lines, e.Name+"="+string(body))
		return nil
	})
	return strings.Join(lines, "\n"), err
}

func open(t testing.TB, data []byte) Source {
	t.Helper()
	src, err := Open(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// rules hold for every form of archive: the same entries, the same outcome.
var rules = []struct {
	name    string
	entries []entry
	strip   bool
	want    string
	refused string // part of the refusal
}{
	{name: "files", entries: []entry{{name: "a", body: "1"}, {name: "b/c", body: "2"}, {name: "b/.d", body: ""}}, want: "a=1\nb/c=2\nb/.d="},
	{name: "cleaned", entries: []entry{{name: "./a", body: "1"}, {name: "b//./c", body: "2"}}, want: "a=1\nb/c=2"},
	{name: "folders", entries: []entry{{name: "./", kind: tar.TypeDir}, {name: "b/", kind: tar.TypeDir}, {name: "b/c", body: "2"}, {name: "b/", kind: tar.TypeDir}}, want: "b/c=2"},
	{name: "empty", entries: nil, want: ""},
	{name: "unicode", entries: []entry{{name: "ü/日本.js", body: "1"}}, want: "ü/日本.js=1"},
	{name: "dots", entries: []entry{{name: "..a/b..", body: "1"}, {name: "...", body: "2"}}, want: "..a/b..=1\n...=2"},
	{name: "long", entries: []entry{{name: strings.Repeat("long/", 60) + "x", body: "1"}}, want: strings.Repeat("long/", 60) + "x=1"},
	{name: "links", entries: []entry{{name: "a", kind: tar.TypeSymlink, link: "/etc/passwd"}, {name: "c", kind: tar.TypeFifo}, {name: "d", kind: tar.TypeChar}, {name: "e", body: "1"}},
		want: "a (symbolic link)\nc (named pipe)\nd (device)\ne=1"},
	{name: "odd names", entries: []entry{{name: "Icon\r", body: "1"}, {name: "b", body: "2"}}, want: "Icon\uFFFD (control character in the name)\nb=2"},

	{name: "stripped", strip: true, entries: []entry{{name: "package/", kind: tar.TypeDir}, {name: "package/a", body: "1"}, {name: "other/b/c", body: "2"}}, want: "a=1\nb/c=2"},
	{name: "stripped after ./", strip: true, entries: []entry{{name: "./package/a", body: "1"}}, want: "a=1"},
	{name: "beside the top", strip: true, entries: []entry{{name: "a", body: "1"}, {name: "package/a", body: "2"}}, want: "a (outside the top folder)\na=2"},
	{name: "twice once stripped", strip: true, entries: []entry{{name: "x/a", body: "1"}, {name: "y/a", body: "2"}}, want: "a=1", refused: `"y/a": the same name twice`},
	{name: "top is a link", strip: true, entries: []entry{{name: "package", kind: tar.TypeSymlink, link: "/"}, {name: "package/a", body: "2"}}, want: "package (symbolic link)\na=2"},

	{name: "absolute", entries: []entry{{name: "/etc/passwd", body: "1"}}, refused: `"/etc/passwd": absolute name`},
	{name: "drive", entries: []entry{{name: "C:/a", body: "1"}}, refused: `"C:/a": absolute name`},
	{name: "parent", entries: []entry{{name: "a/../../b", body: "1"}}, refused: `"a/../../b": ".." in the name`},
	{name: "harmless parent", entries: []entry{{name: "a/../b", body: "1"}}, refused: `".." in the name`},
	{name: "parent of a folder", entries: []entry{{name: "../", kind: tar.TypeDir}}, refused: `".." in the name`},
	{name: "parent of a link", entries: []entry{{name: "../x", kind: tar.TypeSymlink, link: "a"}}, refused: `".." in the name`},
	{name: "backslash", entries: []entry{{name: `a\b`, body: "1"}}, refused: "backslash"},
	{name: "twice", entries: []entry{{name: "a", body: "1"}, {name: "b", body: "2"}, {name: "a", body: "3"}}, want: "a=1\nb=2", refused: `"a": the same name twice`},
	{name: "twice once cleaned", entries: []entry{{name: "a/b", body: "1"}, {name: "a//./b", body: "3"}}, want: "a/b=1", refused: "the same name twice"},
	{name: "a link, then a file", entries: []entry{{name: "a", kind: tar.TypeSymlink, link: "b"}, {name: "a", body: "3"}}, want: "a (symbolic link)", refused: "the same name twice"},
	{name: "below a link", entries: []entry{{name: "a", kind: tar.TypeSymlink, link: "/etc"}, {name: "a/b/c", body: "3"}}, want: "a (symbolic link)", refused: `"a/b/c": it lies below "a"`},
	{name: "file, then folder", entries: []entry{{name: "a", body: "1"}, {name: "a/", kind: tar.TypeDir}}, want: "a=1", refused: "for a file and a folder"},
	{name: "folder, then file", entries: []entry{{name: "a/b", body: "1"}, {name: "a", body: "2"}}, want: "a/b=1", refused: "for a file and a folder"},
	{name: "no name", entries: []entry{{name: "./.", body: "1"}}, refused: "a file without a name"},
	{name: "endless name", entries: []entry{{name: strings.Repeat("a", 1025), body: "1"}}, refused: "name of 1025 bytes"},
	{name: "deep", entries: []entry{{name: strings.Repeat("a/", 100) + "b", body: "1"}}, refused: "more than 100 folders deep"},
}

func TestRules(t *testing.T) {
	forms := map[string]func(testing.TB, ...entry) []byte{"tar.gz": tarball, "tar": tarred, "zip": zipped}
	for _, test := range rules {
		for form, write := range forms {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				data := write(t, test.entries...)
				var src Source
				if len(test.entries) == 0 && form == "tar" {
					t.Skip("an empty tar is nothing but zeros")
				}
				src = open(t, data)
				if test.strip {
					src = src.StripRoot()
				}
				got, err := show(src, Limits{})
				checkRefused(t, err, test.refused)
				if got != test.want {
					t.Errorf("got\n%s\nwant\n%s", got, test.want)
				}
				again, _ := show(src, Limits{})
				if again != got {
					t.Errorf("a second walk gives\n%s\nafter\n%s", again, got)
				}
			})
		}
	}
}

func checkRefused(t *testing.T, err error, want string) {
	t.Helper()
	var refused *RefusedError
	switch {
	case want == "" && err != nil:
		t.Errorf("unexpected error: %v", err)
	case want != "" && !errors.As(err, &refused):
		t.Errorf("got error %v, want a refusal: …%s…", err, want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("refused with %q, want …%s…", err, want)
	}
}

func TestTarOnly(t *testing.T) {
	t.Run("hard link and global header", func(t *testing.T) {
		got, err := show(open(t, tarball(t,
			entry{kind: tar.TypeXGlobalHeader, body: "a commit"},
			entry{name: "a", body: "1"},
			entry{name: "b", kind: tar.TypeLink, link: "a"})), Limits{})
		checkRefused(t, err, "")
		if want := "a=1\nb (hard link)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("name not UTF-8", func(t *testing.T) {
		data := bytes.Replace(tarred(t, entry{name: "caf_.js", body: "1"}), []byte("caf_"), []byte("caf\xe9"), 1)
		fixChecksum(data)
		got, err := show(open(t, data), Limits{})
		checkRefused(t, err, "")
		if want := "caf\uFFFD.js (name is not UTF-8)"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("sparse", func(t *testing.T) {
		for name, data := range sparseTars(t) {
			for form, data := range map[string][]byte{"tar": data, "tar.gz": gzipped(t, data)} {
				_, err := show(open(t, data), Limits{})
				checkRefused(t, err, `"holes": a sparse file`)
				if err == nil {
					t.Errorf("%s in a %s", name, form)
				}
			}
		}
	})
	t.Run("bytes behind the gzip stream", func(t *testing.T) {
		got, err := show(open(t, append(tarball(t, entry{name: "a", body: "1"}), make([]byte, 700)...)), Limits{})
		checkRefused(t, err, "")
		if got != "a=1" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("truncated anywhere", func(t *testing.T) {
		data := tarball(t, entry{name: "a", body: strings.Repeat("some text ", 300)}, entry{name: "b", body: "2"})
		for n := 2; n < len(data); n++ {
			if _, err := show(tarGz(bytes.NewReader(data[:n])), Limits{}); err == nil {
				t.Fatalf("the first %d of %d bytes pass for an archive", n, len(data))
			}
		}
	})
	t.Run("wrong checksum", func(t *testing.T) {
		data := tarball(t, entry{name: "a", body: "1"})
		data[len(data)-8] ^= 1
		_, err := show(open(t, data), Limits{})
		checkRefused(t, err, "corrupt: gzip: invalid checksum")
	})
}

// sparseTars writes files of 24 MiB that are all hole, in each of GNU tar's notations.
func sparseTars(t *testing.T) map[string][]byte {
	t.Helper()
	const size = "25165824"
	// archive/tar does not write what it reads here, so the records are written as another
	// vendor's of the same length.
	pax := func(records map[string]string, body string) []byte {
		var buf bytes.Buffer
		tw := tar.NewWriter(&buf)
		h := &tar.Header{Name: "holes", Mode: 0o644, Size: int64(len(body)), Format: tar.FormatPAX, PAXRecords: map[string]string{}}
		for key, value := range records {
			h.PAXRecords["ABC.sparse."+key] = value
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, body)
		if err := tw.Close(); err != nil {
			t.Fatal(err)
		}
		return bytes.ReplaceAll(buf.Bytes(), []byte("ABC.sparse."), []byte("GNU.sparse."))
	}
	old := tarred(t, entry{name: "holes"})
	clear(old[345:500]) // ustar's prefix; GNU's headers have the map of data there
	copy(old[156:], "S")
	copy(old[257:], "ustar  \x00")
	copy(old[386:], "00140000000\x00"+"00000000000\x00") // no data, at the end
	copy(old[483:], "00140000000\x00")                   // with the holes
	fixChecksum(old)
	return map[string][]byte{
		"old GNU": old,
		"PAX 0.1": pax(map[string]string{"numblocks": "1", "map": size + ",0", "size": size}, ""),
		"PAX 1.0": pax(map[string]string{"major": "1", "minor": "0", "realsize": size}, "1\n"+size+"\n0\n"+strings.Repeat("\x00", 512-13)),
	}
}

// fixChecksum makes the first tar header's checksum right again.
func fixChecksum(data []byte) {
	copy(data[148:156], "        ")
	sum := 0
	for _, b := range data[:512] {
		sum += int(b)
	}
	copy(data[148:156], fmt.Sprintf("%06o\x00 ", sum))
}

func TestZipOnly(t *testing.T) {
	plain := zipped(t, entry{name: "a", body: "some text, some text, some text"})
	directory := bytes.LastIndex(plain, []byte("PK\x01\x02"))
	t.Run("encrypted", func(t *testing.T) {
		data := bytes.Clone(plain)
		data[directory+8] |= 1
		_, err := show(open(t, data), Limits{})
		checkRefused(t, err, `"a": encrypted`)
	})
	for _, size := range []int{-5, 5} {
		t.Run(fmt.Sprintf("size off by %d", size), func(t *testing.T) {
			data := bytes.Clone(plain)
			data[directory+24] += byte(size)
			_, err := show(open(t, data), Limits{})
			checkRefused(t, err, "archive refused")
			// Not reading the entry makes no difference.
			err = Walk(context.Background(), open(t, data), Limits{}, func(Entry, io.Reader) error { return nil })
			checkRefused(t, err, "archive refused")
		})
	}
	t.Run("NUL", func(t *testing.T) {
		_, err := show(open(t, zipped(t, entry{name: "a\x00b", body: "1"})), Limits{})
		checkRefused(t, err, "NUL in the name")
	})
	t.Run("unknown method", func(t *testing.T) {
		data := bytes.Clone(plain)
		data[directory+10] = 99
		_, err := show(open(t, data), Limits{})
		checkRefused(t, err, "unsupported compression algorithm")
	})
	t.Run("truncated anywhere", func(t *testing.T) {
		for n := 4; n < len(plain); n++ {
			if _, err := show(open(t, plain[:n]), Limits{}); err == nil {
				t.Fatalf("the first %d of %d bytes pass for an archive", n, len(plain))
			}
		}
	})
	t.Run("endless directory", func(t *testing.T) {
		var many []entry
		for i := range 3000 {
			many = append(many, entry{name: fmt.Sprintf("%0200d", i)})
		}
		_, err := show(open(t, zipped(t, many...)), Limits{Entries: 100})
		checkRefused(t, err, "more than 100 entries")
	})
}

func TestLimits(t *testing.T) {
	zeros := strings.Repeat("\x00", ratioFrom+1<<20)
	tests := []struct {
		name    string
		entries []entry
		limits  Limits
		refused string
	}{
		{"bytes", []entry{{name: "a", body: "12345"}, {name: "b", body: "12345"}}, Limits{Unpacked: 9}, "over 9 bytes"},
		{"just the bytes", []entry{{name: "a", body: "12345"}, {name: "b", body: "12345"}}, Limits{Unpacked: 10}, ""},
		{"entries", []entry{{name: "a"}, {name: "b"}, {name: "c"}}, Limits{Entries: 2}, "more than 2 entries"},
		{"links count", []entry{{name: "a"}, {name: "b"}, {name: "c", kind: tar.TypeSymlink, link: "a"}}, Limits{Entries: 2}, "more than 2 entries"},
		{"folders", []entry{{name: "a/b/c/d"}}, Limits{Entries: 2}, "more than 2 folders"},
		{"just the entries", []entry{{name: "a"}, {name: "b"}}, Limits{Entries: 2}, ""},
		{"bomb", []entry{{name: "a", body: zeros}}, Limits{}, "compression bomb"},
	}
	for _, test := range tests {
		for form, write := range map[string]func(testing.TB, ...entry) []byte{"tar.gz": tarball, "zip": zipped} {
			t.Run(test.name+"/"+form, func(t *testing.T) {
				// Nothing is read, and the limits hold all the same.
				err := Walk(context.Background(), open(t, write(t, test.entries...)), test.limits, func(Entry, io.Reader) error { return nil })
				checkRefused(t, err, test.refused)
			})
		}
	}
	t.Run("bomb of padding", func(t *testing.T) {
		data := gzipped(t, append(tarred(t, entry{name: "a", body: "1"}), make([]byte, ratioFrom+1<<20)...))
		_, err := show(open(t, data), Limits{})
		checkRefused(t, err, "compression bomb")
	})
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	for name, body := range map[string]string{"b.js": "1", ".hidden": "2", "a/z": "3", "a/b/c": "4"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"link": "b.js", "out": "/", "a/up": ".."} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	src, err := OpenFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := show(src, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	want := ".hidden=2\na/b/c=4\na/up (symbolic link)\na/z=3\nb.js=1\nlink (symbolic link)\nout (symbolic link)"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	_, err = show(src, Limits{Unpacked: 2})
	checkRefused(t, err, "over 2 bytes")

	// A link that takes a file's place during the walk is not followed.
	err = Walk(context.Background(), src, Limits{}, func(e Entry, r io.Reader) error {
		if e.Name == "b.js" {
			os.Remove(filepath.Join(dir, "b.js"))
			if err := os.Symlink(".hidden", filepath.Join(dir, "b.js")); err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(r)
			t.Logf("read %q, %v", body, err)
		}
		return nil
	})
	if !errors.Is(err, errChanged) {
		t.Errorf("got error %v, want %v", err, errChanged)
	}
}

func TestOpenFile(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"a.tgz":   tarball(t, entry{name: "x", body: "1"}),
		"b":       tarred(t, entry{name: "x", body: "1"}),
		"c.thing": zipped(t, entry{name: "x", body: "1"}),
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		src, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := show(src, Limits{}); got != "x=1" || err != nil {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	text := filepath.Join(dir, "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("text ", 500)), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(text); !errors.Is(err, ErrNotArchive) {
		t.Errorf("text: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// failing reads some bytes and then breaks, as a disk or a network does.
type failing struct{ io.Reader }

var errDisk = errors.New("the disk is on fire")

func (f failing) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if err == io.EOF {
		err = errDisk
	}
	return n, err
}

func TestErrors(t *testing.T) {
	data := tarball(t, entry{name: "a", body: "1"}, entry{name: "b", body: "2"}, entry{name: "a", body: "3"})
	none := func(Entry, io.Reader) error { return nil }

	broken := tarGz(failing{bytes.NewReader(data[:20])})
	if err := Walk(context.Background(), broken, Limits{}, none); !errors.Is(err, errDisk) {
		t.Errorf("broken source: got %v", err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Walk(ctx, open(t, data), Limits{}, none); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: got %v", err)
	}

	own := errors.New("own")
	if err := Walk(context.Background(), open(t, data), Limits{}, func(Entry, io.Reader) error { return own }); err != own {
		t.Errorf("fn's error: got %v", err)
	}
	if err := Walk(context.Background(), open(t, data), Limits{}, func(Entry, io.Reader) error { return fs.SkipAll }); err != nil {
		t.Errorf("SkipAll: got %v", err)
	}
	if err := Walk(context.Background(), Source{}, Limits{}, none); err == nil {
		t.Error("the zero Source can be walked")
	}

	// A caller that swallows its reader's error does not save the archive.
	damaged := gzipped(t, tarred(t, entry{name: "a", body: strings.Repeat("x", 5000)})[:2000])
	err := Walk(context.Background(), open(t, damaged), Limits{}, func(_ Entry, r io.Reader) error {
		io.Copy(io.Discard, r)
		return nil
	})
	checkRefused(t, err, "truncated")
}

// tarGz gives the .tar.gz that r has, for one walk.
func tarGz(r io.Reader) Source {
	return Source{walk: func(w *walker) error { return walkTarGz(w, r) }}
}
