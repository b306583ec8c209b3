package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// faultFiles are the files of the release in which bits are flipped.
var faultFiles = map[string]string{
	"large.txt": strings.Repeat("a line that compresses well\n", 100),
	"small.txt": "too short for that",
	"again.txt": "too short for that", // the same content
}

const faultPackage = `{"name": "demo", "description": "A test.", "keywords": ["test"], "filename": "small.txt",
	"repository": {"type": "git", "url": "https://example.com/demo.git"},
	"autoupdate": {"source": "npm", "target": "demo", "fileMap": [{"basePath": "", "files": ["*.txt"]}]}}`

// filled makes a data folder, data in a folder of its own, with what the bot publishes.
func filled(t *testing.T) string {
	t.Helper()
	registry := npmtest.Start()
	t.Cleanup(registry.Close)
	registry.Add("demo", "1.0.0", time.Date(2024, 5, 17, 8, 30, 0, 0, time.UTC), faultFiles)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "demo.json"), []byte(faultPackage), 0o600); err != nil {
		t.Fatal(err)
	}
	bot := exec.Command("larder", "bot", "--once", "--catalogue", dir, "--private-listen", "off", "--data", filepath.Join(dir, "data"))
	bot.Env = registryEnviron(t, registry)
	if out, err := bot.CombinedOutput(); err != nil {
		t.Fatalf("bot: %v\n%s", err, out)
	}
	for _, args := range [][]string{{"squeeze"}, {"fsck"}} {
		if code, out := larder(t, dir, args...); code != exitDone {
			t.Fatalf("%s: exit code %d\n%s", args[0], code, out)
		}
	}
	return dir
}

// larder runs a command on the data folder in dir.
func larder(t *testing.T, dir string, args ...string) (code int, out string) {
	t.Helper()
	var both bytes.Buffer
	code = run(t.Context(), append(args, "--data", filepath.Join(dir, "data")), nil, &both, &both)
	return code, both.String()
}

// faulty is a store in which one bit is to be flipped.
type faulty struct {
	*testing.T
	dir   string
	store *kvstore.Store
}

func (f *faulty) flip(ns kvstore.Namespace, key []byte, bit int) {
	f.Helper()
	value, err := f.store.Get(ns, key)
	if err != nil {
		f.Fatal(err)
	}
	value = bytes.Clone(value)
	value[bit/8%len(value)] ^= 1 << (bit % 8)
	b := f.store.NewBatch()
	defer b.Close()
	b.Set(ns, key, value)
	if err := b.Commit(); err != nil {
		f.Fatal(err)
	}
}

// entry is the last one of a kind.
func (f *faulty) entry(kind logs.Kind) logs.Indexed {
	f.Helper()
	var last logs.Indexed
	for e, err := range logs.Entries(f.store, 0) {
		if err != nil {
			f.Fatal(err)
		}
		if e.Kind == kind {
			last = e
		}
	}
	return last
}

// blob flips a bit in a content's bytes in some codings, or in all that there are.
func (f *faulty) blob(h kvstore.Hash, codings ...coding.Coding) {
	f.Helper()
	content, err := f.store.Content(h)
	if err != nil {
		f.Fatal(err)
	}
	if codings == nil {
		for _, r := range content.Representations {
			codings = append(codings, r.Coding)
		}
	}
	for _, c := range codings {
		f.flip(kvstore.Blobs, append(h[:len(h):len(h)], byte(c)), 100)
	}
}

// file flips a bit where part begins in a file of the key folder.
func (f *faulty) file(name, part string) {
	f.Helper()
	path := filepath.Join(f.dir, "keys", name)
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	at := bytes.Index(data, []byte(part))
	if at < 0 {
		f.Fatalf("%s has no %q: %s", name, part, data)
	}
	data[at] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		f.Fatal(err)
	}
}

func index(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// TestFaults flips one bit in each kind of thing that is stored, which fsck finds and names.
func TestFaults(t *testing.T) {
	t.Parallel()
	large, small := kvstore.Sum([]byte(faultFiles["large.txt"])), kvstore.Sum([]byte(faultFiles["small.txt"]))
	release := []string{"demo", "1.0.0"}
	tests := []struct {
		name string
		flip func(*faulty)
		says []string // lines that begin so
	}{
		{"a file in Brotli", func(f *faulty) { f.blob(large, coding.Brotli) }, []string{"content " + large.String() + " (demo/1.0.0/large.txt): br: "}},
		{"a file in gzip", func(f *faulty) { f.blob(large, coding.Gzip) }, []string{"content " + large.String() + " (demo/1.0.0/large.txt): gzip: "}},
		{"two files of the same content", func(f *faulty) { f.blob(small, coding.Identity) }, []string{
			"content " + small.String() + " (demo/1.0.0/again.txt): identity: ",
			"content " + small.String() + " (demo/1.0.0/small.txt): it has the same content as (demo/1.0.0/again.txt)",
		}},
		{"how a file is kept: its size", func(f *faulty) { f.flip(kvstore.Contents, large[:], 16) }, []string{"content " + large.String() + " (demo/1.0.0/large.txt): "}},
		{"how a file is kept: a checksum", func(f *faulty) { f.flip(kvstore.Contents, large[:], 300) }, []string{"content " + large.String() + " (demo/1.0.0/large.txt): "}},
		{"the manifest", func(f *faulty) { f.blob(f.entry(logs.Published).Manifest) }, []string{"content entry 3: views: entry 3 (published demo 1.0.0): logs: couldn't read manifest "}},
		{"the manifest in one coding", func(f *faulty) { f.blob(f.entry(logs.Published).Manifest, coding.Gzip) }, []string{"content "}},
		{"the package JSON", func(f *faulty) { f.blob(f.entry(logs.PackageAdded).PackageJSON) }, []string{"content entry 0: "}},
		{"an entry", func(f *faulty) {
			f.flip(kvstore.LogEntries, index(1), 8*bytes.Index(f.entry(logs.Detected).Raw, []byte("1.0.0")))
		}, []string{"log tree: logs: tree hash 1 does not follow from entry 1"}},
		{"an entry that is no JSON any more", func(f *faulty) { f.flip(kvstore.LogEntries, index(1), 0) }, []string{"log tree: logs: entry 1: "}},
		{"a hash of an entry", func(f *faulty) { f.flip(kvstore.LogHashes, index(tlog.StoredHashIndex(0, 2)), 77) }, []string{"log tree: logs: tree hash 3 does not follow from entry 2"}},
		{"a hash of the tree", func(f *faulty) { f.flip(kvstore.LogHashes, index(tlog.StoredHashIndex(1, 0)), 0) }, []string{"log tree: logs: tree hash 2 does not follow from entry 1"}},
		{"the root in the state", func(f *faulty) { f.flip(kvstore.LogState, kvstore.Key("checkpoint"), 8*20) }, []string{"log tree: logs: the checkpoint's root is "}},
		{"the size in the state", func(f *faulty) { f.flip(kvstore.LogState, kvstore.Key("checkpoint"), 8*8) }, []string{"log tree: logs: the checkpoint counts 5 entries, the log has 4"}},
		{"a smaller size in the state", func(f *faulty) { f.flip(kvstore.LogState, kvstore.Key("checkpoint"), 8*8+2) }, []string{"log tree: logs: the checkpoint counts 0 entries, the log has 4"}},
		{"the state's format", func(f *faulty) { f.flip(kvstore.LogState, kvstore.Key("checkpoint"), 1) }, []string{"larder: logs: the checkpoint state is malformed"}},
		{"the signed checkpoint's root", func(f *faulty) { f.file("checkpoint", "=\n\n") }, []string{"checkpoint signed: "}},
		{"the signed checkpoint's size", func(f *faulty) { f.file("checkpoint", "\n4\n") }, []string{"checkpoint signed: "}},
		{"the signature", func(f *faulty) { f.file("checkpoint", "=\n") }, []string{"checkpoint signed: "}},
		{"the verifier key", func(f *faulty) { f.file("log.pub", "+") }, []string{"checkpoint signed: "}},
		{"which content a file is", func(f *faulty) { f.flip(kvstore.Files, kvstore.Key(append(release, "large.txt")...), 100) }, []string{"view files/demo/1.0.0/large.txt: the row differs"}},
		{"an integrity", func(f *faulty) { f.flip(kvstore.SRIs, kvstore.Key(append(release, "large.txt")...), 100) }, []string{"view sris/demo/1.0.0/large.txt: the row differs"}},
		{"a version", func(f *faulty) { f.flip(kvstore.Versions, kvstore.Key(release...), 100) }, []string{"view versions/demo/1.0.0: the row differs"}},
		{"a package", func(f *faulty) { f.flip(kvstore.Packages, kvstore.Key("demo"), 100) }, []string{"view packages/demo: the row differs"}},
		{"a state", func(f *faulty) { f.flip(kvstore.States, kvstore.Key(release...), 100) }, []string{"state states/demo/1.0.0: the "}},
	}
	original := filled(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &faulty{T: t, dir: t.TempDir()}
			for _, part := range []string{"data", "keys"} {
				if err := os.CopyFS(filepath.Join(f.dir, part), os.DirFS(filepath.Join(original, part))); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			if f.store, err = kvstore.Open(filepath.Join(f.dir, "data", "store"), kvstore.Options{}); err != nil {
				t.Fatal(err)
			}
			tt.flip(f)
			if err := f.store.Close(); err != nil {
				t.Fatal(err)
			}
			code, out := larder(t, f.dir, "fsck", "--all")
			if code != exitFailed {
				t.Errorf("exit code %d", code)
			}
			for _, line := range tt.says {
				if !strings.Contains("\n"+out, "\n"+line) {
					t.Errorf("it does not say %q, but\n%s", line, out)
				}
			}
		})
	}
	if code, out := larder(t, original, "fsck", "--all"); code != exitDone || !strings.Contains(out, "; 0 wrong.\nThe log is sound, and contains the 4 entries signed as larder.local/") {
		t.Errorf("without a fault: exit code %d\n%s", code, out)
	}
}
