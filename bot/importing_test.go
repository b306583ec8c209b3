package bot_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/ingest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages/archive"
)

// importPath imports a folder or an archive.
func (r *rig) importPath(name, version, path string) error {
	r.Helper()
	source, err := archive.OpenFile(path)
	if err != nil {
		return err
	}
	return ingest.SendRelease(r.Context(), r.bot, name, version, "", source)
}

func importFile(path, data string) ingest.ImportFile {
	return ingest.ImportFile{Path: path, Size: int64(len(data)), SHA256: kvstore.Sum([]byte(data))}
}

// noTrace fails the test if an import that failed left something behind.
func (r *rig) noTrace(test, name, version string) {
	r.Helper()
	if _, err := views.LookupState(r.store, name, version); !errors.Is(err, kvstore.ErrNotFound) {
		r.Errorf("%s: the version has a state, %v", test, err)
	}
	if strings.Contains(r.kinds(), version) {
		r.Errorf("%s: the version is in the log:\n%s", test, r.kinds())
	}
	left, err := filepath.Glob(filepath.Join(r.data, "tmp", "import-*"))
	if err != nil || len(left) > 0 {
		r.Errorf("%s: the temporary folder has %v, %v", test, left, err)
	}
}

// What a client sends is refused with the reason, whatever it is, and leaves nothing behind.
func TestImportOfHostileRequests(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	r.open()
	good := importFile("a.js", "a")
	hashes := func(files ...ingest.ImportFile) (all []kvstore.Hash) {
		for _, f := range files {
			all = append(all, f.SHA256)
		}
		return all
	}
	tooMany := make([]ingest.ImportFile, archive.DefaultLimits.Entries+1)
	for i := range tooMany {
		tooMany[i] = good
		tooMany[i].Path = "f" + strings.Repeat("x", i%10) + string(rune('a'+i%26)) + "/" + kvstore.Sum([]byte{byte(i), byte(i >> 8), byte(i >> 16)}).String()
	}
	wrongSize := good
	wrongSize.Size = 2
	for _, test := range []struct {
		name     string
		files    []ingest.ImportFile
		contents []kvstore.Hash
		data     string
		want     string
	}{
		{"a path out of the release", []ingest.ImportFile{importFile("../a.js", "a")}, hashes(good), "a", `".." in the name`},
		{"an absolute path", []ingest.ImportFile{importFile("/a.js", "a")}, hashes(good), "a", "absolute name"},
		{"a drive", []ingest.ImportFile{importFile("C:/a.js", "a")}, hashes(good), "a", "absolute name"},
		{"a backslash", []ingest.ImportFile{importFile(`x\a.js`, "a")}, hashes(good), "a", "backslash"},
		{"no path", []ingest.ImportFile{importFile("", "a")}, hashes(good), "a", "without a name"},
		{"a control character", []ingest.ImportFile{importFile("a\n.js", "a")}, hashes(good), "a", "control character"},
		{"no UTF-8", []ingest.ImportFile{importFile("a\xff.js", "a")}, hashes(good), "a", "not UTF-8"},
		{"a long path", []ingest.ImportFile{importFile(strings.Repeat("a", 2000), "a")}, hashes(good), "a", "name of 2000 bytes"},
		{"the same path twice", []ingest.ImportFile{good, good}, hashes(good), "a", "the same name twice"},
		{"the same path written differently", []ingest.ImportFile{good, importFile("./a.js", "b")}, hashes(good), "a", "the same name twice"},
		{"a file and a folder", []ingest.ImportFile{good, importFile("a.js/b.js", "a")}, hashes(good), "a", "which is a file"},
		{"paths that differ in case", []ingest.ImportFile{good, importFile("A.js", "a")}, hashes(good), "a", "differ only in case"},
		{"a link", []ingest.ImportFile{good, {Path: "b.js", Skipped: "symbolic link"}}, hashes(good), "a", `"b.js" is selected and cannot be published: symbolic link`},
		{"too many files", tooMany, hashes(good), "a", "more than 50000 entries"},
		{"too many bytes", []ingest.ImportFile{{Path: "a.js", Size: 1<<30 + 1}}, nil, "", "over 1073741824 bytes"},
		{"a negative size", []ingest.ImportFile{{Path: "a.js", Size: -1}}, nil, "", "over 1073741824 bytes"},
		{"no files", nil, nil, "", "no files"},
		{"two sizes of one content", []ingest.ImportFile{good, {Path: "b.js", Size: 7, SHA256: good.SHA256}}, hashes(good), "a", "two sizes"},
		{"other bytes", []ingest.ImportFile{good}, hashes(good), "b", `the bytes sent for "a.js" have the SHA-256`},
		{"a wrong size", []ingest.ImportFile{wrongSize}, hashes(good), "aa", `the bytes sent for "a.js" have the SHA-256`},
		{"a content that never arrives", []ingest.ImportFile{good}, nil, "", `the content of "a.js" was not sent`},
		{"half of a content", []ingest.ImportFile{importFile("a.js", "abc")}, hashes(importFile("a.js", "abc")), "a", `couldn't receive the bytes of "a.js", after 1 of 3: unexpected EOF`},
		{"more bytes than contents", []ingest.ImportFile{good}, hashes(good), "ab", "more bytes than the contents"},
		{"a content of no file", []ingest.ImportFile{good}, hashes(importFile("b.js", "b")), "b", "does not need"},
		{"a content twice", []ingest.ImportFile{good}, hashes(good, good), "aa", "needs only once"},
	} {
		const version = "6.6.6"
		err := r.bot.Import(t.Context(), ingest.ImportRequest{Package: "a", Version: version, Files: test.files, Contents: test.contents}, strings.NewReader(test.data))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "a 6.6.6 was not imported: ") {
			t.Errorf("%s: %.300v, want %q", test.name, err, test.want)
		}
		r.noTrace(test.name, "a", version)
	}

	// An upload that is interrupted.
	broken := errors.New("the connection is lost")
	file := importFile("a.js", strings.Repeat("a", 100))
	contents := io.MultiReader(strings.NewReader("aaa"), &failingReader{broken})
	err := r.bot.Import(t.Context(), ingest.ImportRequest{Package: "a", Version: "6.6.6", Files: []ingest.ImportFile{file}, Contents: hashes(file)}, contents)
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "run the same command again") {
		t.Errorf("an interrupted upload: %v", err)
	}
	r.noTrace("an interrupted upload", "a", "6.6.6")

	// The version can still be imported.
	if err := r.bot.Import(t.Context(), ingest.ImportRequest{Package: "a", Version: "6.6.6", Files: []ingest.ImportFile{good}, Contents: hashes(good)}, strings.NewReader("a")); err != nil {
		t.Error(err)
	}
	r.sound()
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

// recordingImporter records what is asked of a bot.
type recordingImporter struct {
	*bot.Bot
	sent   int    // bytes
	listed func() // runs after the source was listed, before its contents are read; may be nil
}

func (i *recordingImporter) MissingContents(ctx context.Context, r ingest.ImportRequest) ([]kvstore.Hash, error) {
	if i.listed != nil {
		i.listed()
	}
	return i.Bot.MissingContents(ctx, r)
}

func (i *recordingImporter) Import(ctx context.Context, r ingest.ImportRequest, contents io.Reader) error {
	data, err := io.ReadAll(contents)
	if err != nil {
		return err
	}
	i.sent = len(data)
	return i.Bot.Import(ctx, r, bytes.NewReader(data))
}

// Only contents are sent that the release needs and the store does not have, each once.
func TestImportSendsMissingContentsOnly(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	r.register("b", fromNpm("b", "dist/*.js"))
	r.open()
	first := treeOf(t, map[string]string{"a.txt": "first", "again.txt": "first", "empty.txt": ""})
	second := treeOf(t, map[string]string{"a.txt": "first", "b.txt": "second"})
	selected := treeOf(t, map[string]string{"dist/b.js": "selected", "README.md": "described", "large.bin": strings.Repeat("not selected", 1000)})
	for _, test := range []struct {
		pkg, version, folder string
		sent                 int
	}{
		{"a", "1.0.0", first, len("first")},
		{"a", "1.1.0", second, len("second")},
		{"a", "1.2.0", second, 0},
		{"b", "1.0.0", selected, len("selected" + "described")},
	} {
		to := &recordingImporter{Bot: r.bot}
		if err := ingest.SendRelease(t.Context(), to, test.pkg, test.version, "", archive.Folder(test.folder)); err != nil {
			t.Fatal(err)
		}
		if to.sent != test.sent {
			t.Errorf("%s %s sent %d bytes, want %d", test.pkg, test.version, to.sent, test.sent)
		}
	}
	if got := r.file("a", "1.2.0", "b.txt"); got != "second" {
		t.Errorf("b.txt is %q", got)
	}
	if about := r.manifest("b", "1.0.0").About; about == nil || about.Readme != "described" {
		t.Errorf("the release describes itself with %+v", about)
	}
	r.sound()
}

// Files that change between the list and their contents are not published.
func TestImportOfFilesThatChange(t *testing.T) {
	r := newRig(t)
	r.register("a", "")
	r.open()
	for name, change := range map[string]func(file string) error{
		"other bytes": func(file string) error { return os.WriteFile(file, []byte("wrong"), 0o600) },
		"shorter":     func(file string) error { return os.WriteFile(file, nil, 0o600) },
		"removed":     os.Remove,
	} {
		folder := treeOf(t, map[string]string{"a.txt": "right"})
		to := &recordingImporter{Bot: r.bot, listed: func() {
			if err := change(filepath.Join(folder, "a.txt")); err != nil {
				t.Fatal(err)
			}
		}}
		err := ingest.SendRelease(t.Context(), to, "a", "6.6.6", "", archive.Folder(folder))
		if err == nil || !strings.Contains(err.Error(), "run the same command again") {
			t.Errorf("%s: %v", name, err)
		}
		r.noTrace(name, "a", "6.6.6")
	}
}

// Names that are not UTF-8 are longer in the list of files, and may look like others. Neither keeps the release from being imported.
func TestImportWithStrangeNames(t *testing.T) {
	r := newRig(t)
	r.register("a", fromNpm("a", "*.js"))
	r.register("b", "")
	r.open()
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	for _, name := range []string{"a.js", "x/" + strings.Repeat("\xff", 600), "x/" + strings.Repeat("\xff", 601), "x/b\xff", "x/b\xfe", "x/b\ufffd"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 1, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := errors.Join(w.Close(), os.WriteFile(path, data.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := r.importPath("a", "1.0.0", path); err != nil {
		t.Errorf("%.300v", err)
	}
	if err := r.importPath("b", "1.0.0", path); err == nil || !strings.Contains(err.Error(), "is selected and cannot be published: name is not UTF-8") {
		t.Errorf("all names are selected: %.300v", err)
	}
}
