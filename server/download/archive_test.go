package download_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/server/download"
)

// An entry is what an archive says of a file.
type entry struct {
	name     string
	mode     fs.FileMode
	modified time.Time
	data     []byte
}

func readTarGzip(tb testing.TB, archive []byte) (entries []entry) {
	tb.Helper()
	in := bytes.NewReader(archive)
	compressed, err := gzip.NewReader(in)
	if err != nil {
		tb.Fatal(err)
	}
	if h := compressed.Header; h.Name != "" || !h.ModTime.IsZero() || h.OS != 255 {
		tb.Errorf("the gzip header says where and when the archive was made: %+v", h)
	}
	r := tar.NewReader(compressed)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			tb.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" || h.Typeflag != tar.TypeReg {
			tb.Errorf("%s has an owner, or is no file: %+v", h.Name, h)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			tb.Fatal(err)
		}
		entries = append(entries, entry{h.Name, fs.FileMode(h.Mode), h.ModTime.UTC(), data})
	}
	if _, err := io.Copy(io.Discard, compressed); err != nil || in.Len() > 0 {
		tb.Errorf("after the archive's end: %v, and %d bytes follow", err, in.Len())
	}
	return entries
}

func readZip(tb testing.TB, archive []byte) (entries []entry) {
	tb.Helper()
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			tb.Fatal(err)
		}
		data, err := io.ReadAll(in) // which checks the CRC
		if err != nil {
			tb.Fatal(err)
		}
		entries = append(entries, entry{f.Name, f.Mode(), f.Modified.UTC(), data})
	}
	return entries
}

var readers = map[string]func(testing.TB, []byte) []entry{".tar.gz": readTarGzip, ".zip": readZip}

func fetch(tb testing.TB, h *download.Handler, r testkit.Release, suffix string) []byte {
	tb.Helper()
	answer := get(h, "GET", download.Prefix+url.PathEscape(r.Package)+"/"+url.PathEscape(r.Version)+suffix)
	wantStatus(tb, answer, 200)
	return body(tb, answer)
}

// odd are releases that the bot would not publish under such names; a store may
// have them all the same.
func odd() []testkit.Release {
	long := strings.Repeat("folder/", 40) + strings.Repeat("n", 200) + ".js"
	return []testkit.Release{
		{Package: "lib", Version: "1.0.0.tar.gz", Files: map[string][]byte{"a.js": []byte("suffix")}},
		{Package: "lib", Version: ".zip", Files: map[string][]byte{"a.js": []byte("all suffix")}},
		{Package: "lib", Version: `v1 ü;"%41`, Files: map[string][]byte{"a.js": []byte("signs")}},
		{Package: "lib", Version: "empty", Files: map[string][]byte{}},
		{Package: "lib", Version: "2.0.0", Files: map[string][]byte{
			long: []byte("long"), "line\nfeed.js": []byte("control"), "b/a.js": nil, "b.js": nil, "b": []byte("same data"), "c": []byte("same data"),
			"PNG.PNG": bytes.Repeat([]byte("this compresses, whatever its name says"), 1000),
		}},
	}
}

func TestArchivesHaveTheRelease(t *testing.T) {
	releases := slices.DeleteFunc(append(testkit.Releases(), odd()...), func(r testkit.Release) bool { return r.Withdrawn != "" })
	h := newHandler(t, download.Options{Store: openStore(t, releases...)})
	for _, r := range releases {
		for suffix, read := range readers {
			t.Run(r.Package+" "+r.Version+suffix, func(t *testing.T) {
				entries := read(t, fetch(t, h, r, suffix))
				paths := slices.Sorted(maps.Keys(r.Files))
				if len(entries) != len(paths) {
					t.Fatalf("there are %d files, want %d", len(entries), len(paths))
				}
				for i, path := range paths {
					e := entries[i]
					if want := r.Package + "-" + r.Version + "/" + path; e.name != want {
						t.Errorf("file %d is %q, want %q", i, e.name, want)
					}
					if !bytes.Equal(e.data, r.Files[path]) {
						t.Errorf("%q has other bytes", path)
					}
					if e.mode != 0o644 || !e.modified.Equal(testkit.Released) {
						t.Errorf("%q has mode %v and time %v, want -rw-r--r-- and %v", path, e.mode, e.modified, testkit.Released)
					}
				}
			})
		}
	}
}

// What people have must read it too.
func TestExtractedByCommands(t *testing.T) {
	r := testkit.Releases()[0]
	r.Files["PNG.PNG"] = bytes.Repeat([]byte("stored"), 1000)
	r.Files[strings.Repeat("folder/", 20)+strings.Repeat("n", 150)+".js"] = []byte("long")
	h := newHandler(t, download.Options{Store: openStore(t, r)})
	for suffix, command := range map[string][]string{".tar.gz": {"tar", "-xzf"}, ".zip": {"unzip", "-q"}} {
		t.Run(command[0], func(t *testing.T) {
			program, err := exec.LookPath(command[0])
			if err != nil {
				t.Skip("it is not installed")
			}
			folder := t.TempDir()
			archive := filepath.Join(t.TempDir(), "archive"+suffix)
			if err := os.WriteFile(archive, fetch(t, h, r, suffix), 0o600); err != nil {
				t.Fatal(err)
			}
			run := exec.CommandContext(t.Context(), program, append(command[1:], archive)...)
			run.Dir = folder
			run.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "TZ=UTC")
			if out, err := run.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("%v: %s", err, out)
			}
			found := 0
			err = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
				if err != nil || d.IsDir() {
					return err
				}
				found++
				name, err := filepath.Rel(filepath.Join(folder, "demo-1.0.0"), path)
				if err != nil {
					return err
				}
				data, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				if want, ok := r.Files[filepath.ToSlash(name)]; !ok || !bytes.Equal(data, want) {
					t.Errorf("%q is not a file of the release, or has other bytes", name)
				}
				if info, err := d.Info(); err != nil || !info.ModTime().Equal(testkit.Released) {
					t.Errorf("%q has the time %v (%v), want %v", name, info.ModTime(), err, testkit.Released)
				}
				return nil
			})
			if err != nil || found != len(r.Files) {
				t.Errorf("%d files were extracted (%v), want %d", found, err, len(r.Files))
			}
		})
	}
}

// A reader that cannot seek finds the end of a stored file only if the length is in
// front of it.
func TestZipStoresWhatIsCompressed(t *testing.T) {
	r := odd()[4]
	archive := fetch(t, newHandler(t, download.Options{Store: openStore(t, r)}), r, ".zip")
	z, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range z.File {
		stored := f.UncompressedSize64 == 0 || strings.HasSuffix(f.Name, ".PNG")
		if (f.Method == zip.Store) != stored {
			t.Errorf("%q has method %d; want it stored: %v", f.Name, f.Method, stored)
		}
		const descriptor = 1 << 3
		if stored && f.Flags&descriptor != 0 {
			t.Errorf("%q is stored and its length is behind it", f.Name)
		}
	}
}

// golden has a bit of everything and comes from nothing that may change.
func golden() testkit.Release {
	var script strings.Builder
	state := uint32(1)
	for script.Len() < 200<<10 {
		state = state*1664525 + 1013904223
		fmt.Fprintf(&script, "const value%d = %d;\n", state>>20, state>>8)
	}
	noise := make([]byte, 70<<10)
	for i := range noise {
		state = state*1664525 + 1013904223
		noise[i] = byte(state >> 24)
	}
	return testkit.Release{Package: "golden", Version: "1.0.0", Files: map[string][]byte{
		"golden.js": []byte(script.String()), "noise.png": noise, "noise.bin": noise, "empty.txt": nil,
		"ünïcødé.txt": []byte("unicode"), strings.Repeat("long/", 60) + "x.txt": []byte("long"),
	}}
}

// Where this fails, archives have other bytes than those that clients and caches
// have under the same entity tag. If that is meant, or a new version of a library
// did it, raise archiveForm and put the new sums here.
func TestArchivesAreTheSame(t *testing.T) {
	const form = "1"
	r := golden()
	h := newHandler(t, download.Options{Store: openStore(t, r)})
	for suffix, want := range map[string]string{
		".tar.gz": "d991f15ad939626d51e61f4187324e445e3c550017cd097c0641324cb1de6282",
		".zip":    "457f4d3b2fa327b7119c04d7f4ae707838b1ea05cd783b0fa65df0e244993980",
	} {
		sum := sha256.Sum256(fetch(t, h, r, suffix))
		if got := hex.EncodeToString(sum[:]); got != want {
			t.Errorf("the archive %s has the SHA-256 %s, want %s", suffix, got, want)
		}
		tag := get(h, "HEAD", "/download/golden/1.0.0"+suffix).Header.Get("Etag")
		if !strings.HasSuffix(tag, suffix+"."+form+`"`) {
			t.Errorf("the entity tag %s is of another form than these sums, %s", tag, form)
		}
	}
}

// The codings in which contents are kept are no property of the release.
func TestSqueezingChangesNothing(t *testing.T) {
	r := golden()
	store := openStore(t, r)
	h := newHandler(t, download.Options{Store: store})
	for suffix := range readers {
		before := fetch(t, h, r, suffix)
		for _, data := range r.Files {
			var all []kvstore.Coded
			for _, c := range []coding.Coding{coding.Identity, coding.Gzip, coding.Brotli} {
				coded, err := coding.Encode(c, coding.Quick, data)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, kvstore.Coded{Coding: c, Bytes: coded})
				// Step by step: each is the one that is read for a while.
				if err := store.PutContent(kvstore.Sum(data), int64(len(data)), c == coding.Brotli, all); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(fetch(t, h, r, suffix), before) {
					t.Fatalf("the archive %s is another one after a content of %d bytes was stored in %v too", suffix, len(data), c)
				}
			}
		}
	}
}
