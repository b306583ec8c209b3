package check_test

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// A signedShelf is a logShelf with a key folder. Its deep checks start where the last one ended.
type signedShelf struct {
	*logShelf
	dir, keys string
	files     vfs.FS
}

func newSignedShelf(t *testing.T) *signedShelf {
	t.Helper()
	s := &signedShelf{logShelf: &logShelf{t: t}, dir: filepath.Join(t.TempDir(), "store"), keys: filepath.Join(t.TempDir(), "keys"), files: unsynced.FS}
	s.reopen()
	t.Cleanup(func() { s.store.Close() })
	return s
}

// reopen opens the store with an empty cache.
func (s *signedShelf) reopen() {
	s.t.Helper()
	var err error
	if s.store != nil {
		err = s.store.Close()
	}
	if err == nil {
		s.store, err = kvstore.Open(s.dir, kvstore.Options{FS: s.files})
	}
	if err == nil {
		s.log, err = logs.Open(s.store)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *signedShelf) sign() {
	s.t.Helper()
	signer, err := signing.Open(signing.Options{Dir: s.keys, Store: s.store, Log: s.log, Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		err = signer.Close()
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *signedShelf) run(o check.Options) (check.Summary, []check.Finding) {
	s.t.Helper()
	o.Keys, o.Record, o.Temp = s.keys, true, s.t.TempDir()
	var found []check.Finding
	sum, err := check.Run(s.t.Context(), s.store, o, func(f check.Finding) { found = append(found, f) })
	if err != nil {
		s.t.Fatal(err)
	}
	return sum, found
}

// verify signs the log and checks it deeply, which finds nothing, from an entry on.
func (s *signedShelf) verify(since int64) {
	s.t.Helper()
	s.sign()
	sum, found := s.run(check.Options{Deep: true})
	size := s.log.Checkpoint().Size
	if len(found) > 0 || sum.Since != since || sum.Entries != size-since || sum.Verified != size || sum.Unrecorded != "" || !sum.Sound {
		s.t.Fatalf("a deep check of %d entries since %d: %+v, found %v", size, since, sum, found)
	}
}

// stock publishes releases of 3 files each.
func (s *signedShelf) stock(from, to int) {
	s.t.Helper()
	if from == 0 {
		s.register(logs.PackageAdded, "vue", `{"name":"vue"}`)
	}
	for n := from; n < to; n++ {
		text := make([]byte, 4096)                                  // which is not compressed
		rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(text) //nolint:errcheck // it never fails
		version := fmt.Sprintf("1.0.%d", n)
		s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: version, Released: noon}})
		s.publish("vue", version, "vue.js", string(text), "dist/vue.js", string(text[1:]), "LICENSE", "MIT")
	}
}

func TestDeepCheckStartsWhereTheLastEnded(t *testing.T) {
	t.Parallel()
	s := newSignedShelf(t)
	s.stock(0, 3)
	s.verify(0)
	s.verify(7)
	s.stock(3, 4)
	s.verify(7)

	// What changes an earlier release is compared with all that the log says of it.
	c := s.publish("d3", "1.0.0", "d3.js", "d3", "own.js", "own")
	s.verify(9)
	s.publish("d3", "1.0.0-beta", "d3.js", "beta")
	s.again(c, logs.Withdrawn, "by order")
	s.verify(10)
	s.erase(c, "d3", "own")
	s.lose("d3", "own")
	s.verify(12)
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Refused, Time: noon, Package: "vue", Version: "9.0.0", Reason: "a bomb"}})
	s.register(logs.PackageChanged, "vue", `{"name":"vue","homepage":"https://example.com"}`)
	s.verify(13)

	if sum, found := s.run(check.Options{Deep: true, All: true}); sum.Since != 0 || sum.Verified != 15 || len(found) > 0 {
		t.Errorf("a check of everything: %+v, found %v", sum, found)
	}
	if sum, _ := s.run(check.Options{}); sum.Since != 0 || sum.Verified != 0 {
		t.Errorf("a check that is not deep: %+v", sum)
	}
	// What is not signed is verified again.
	s.stock(4, 5)
	for range 2 {
		if sum, found := s.run(check.Options{Deep: true}); sum.Since != 15 || sum.Entries != 2 || sum.Verified != 15 || len(found) > 0 {
			t.Errorf("with two entries that are not signed: %+v, found %v", sum, found)
		}
	}
}

func TestDeepCheckFindsWhatIsWrongSince(t *testing.T) {
	t.Parallel()
	hash := kvstore.Sum([]byte("new"))
	file := kvstore.Key("d3", "2.0.0", "d3.js")
	for _, tt := range []struct {
		name  string
		ns    kvstore.Namespace
		key   []byte
		value []byte // nil deletes
		kind  check.Kind
	}{
		{"a file is missing", kvstore.Files, file, nil, check.View},
		{"a file changed", kvstore.Files, file, []byte("?"), check.View},
		{"a file too many", kvstore.Files, kvstore.Key("d3", "2.0.0", "x.js"), []byte("?"), check.View},
		{"a file of a withdrawn release", kvstore.Files, kvstore.Key("d3", "1.0.0", "d3.js"), []byte("?"), check.View},
		{"an integrity is missing", kvstore.SRIs, file, nil, check.View},
		{"a version is missing", kvstore.Versions, kvstore.Key("d3", "2.0.0"), nil, check.View},
		{"the package changed", kvstore.Packages, kvstore.Key("d3"), []byte("?"), check.View},
		{"a state is missing", kvstore.States, kvstore.Key("d3", "2.0.0"), nil, check.State},
		{"a row of the index is missing", kvstore.LogIndex, append(kvstore.Prefix("r", "d3", "2.0.0", "published"), 0, 0, 0, 0, 0, 0, 0, 3), nil, check.View},
		{"the map of live releases is lost", kvstore.LogLive, nil, nil, check.View},
		{"an entry is missing", kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil, check.Log},
		{"a content is missing", kvstore.Contents, hash[:], nil, check.Content},
		{"a blob changed", kvstore.Blobs, append(hash[:], byte(coding.Identity)), []byte("old"), check.Content},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newSignedShelf(t)
			s.register(logs.PackageAdded, "d3", `{"name":"d3"}`)
			old := s.publish("d3", "1.0.0", "d3.js", "d3")
			s.verify(0)
			s.again(old, logs.Withdrawn, "by order")
			s.publish("d3", "2.0.0", "d3.js", "new")
			s.register(logs.PackageChanged, "d3", `{"name":"d3","homepage":"https://example.com"}`)
			s.sign()
			if tt.key == nil {
				from, to := logs.LiveRootRows(s.log.Checkpoint().Size - 1)
				for row := range s.store.Scan(tt.ns, kvstore.Range{From: from, To: to}) {
					s.change(tt.ns, row.Key, nil)
				}
			} else {
				s.change(tt.ns, tt.key, tt.value)
			}
			sum, found := s.run(check.Options{Deep: true})
			if sum.Since != 2 || sum.Verified != 0 {
				t.Errorf("%+v", sum)
			}
			for _, f := range found {
				if f.Kind == tt.kind {
					return
				}
			}
			t.Errorf("found %v, nothing about the %s", found, tt.kind)
		})
	}
}

// A mirror fetches the files of a release that is restored: they are new although the publication has been verified.
func TestDeepCheckReadsTheFilesOfARestoredRelease(t *testing.T) {
	t.Parallel()
	s := newSignedShelf(t)
	c := s.publish("d3", "1.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "by order")
	s.verify(0)
	s.again(c, logs.Restored, "")
	s.sign()
	h := kvstore.Sum([]byte("d3"))
	s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), []byte("3d"))
	if sum, found := s.run(check.Options{Deep: true}); sum.Since != 2 || len(found) == 0 || found[0].Kind != check.Content {
		t.Errorf("%+v, found %v", sum, found)
	}
}

// Damage to what was verified before is found by a check of everything, and by every later one.
func TestCheckOfEverythingFindsLaterDamage(t *testing.T) {
	t.Parallel()
	s := newSignedShelf(t)
	s.register(logs.PackageAdded, "d3", `{"name":"d3"}`)
	s.publish("d3", "1.0.0", "d3.js", "d3")
	s.verify(0)
	h := kvstore.Sum([]byte("d3"))
	s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), []byte("3d"))
	s.verify(2) // it reads only what is new
	if _, err := s.store.Identity(h); err == nil {
		t.Error("damaged bytes are read without an error")
	}
	for _, o := range []check.Options{{Deep: true, All: true}, {Deep: true}} {
		if sum, found := s.run(o); len(found) != 1 || sum.Since != 0 || sum.Verified != 0 {
			t.Errorf("%+v: %+v, found %v", o, sum, found)
		}
	}
	s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), []byte("d3"))
	s.verify(0)

	// A check that is not deep finds a missing row, and removes the record too.
	s.lose("d3")
	if _, found := s.run(check.Options{}); len(found) != 1 {
		t.Errorf("found %v", found)
	}
	if sum, found := s.run(check.Options{Deep: true}); len(found) != 1 || sum.Since != 0 {
		t.Errorf("%+v, found %v", sum, found)
	}
}

// A record counts only for the log and for the store that it was made for.
func TestRecordOfAnotherStore(t *testing.T) {
	t.Parallel()
	s := newSignedShelf(t)
	s.stock(0, 2)
	s.verify(0)
	backup := filepath.Join(t.TempDir(), "backup")
	testkit.CopyStore(t, s.store, backup)
	s.stock(2, 3)
	s.verify(5)
	later, err := os.ReadFile(filepath.Join(s.dir, "VERIFIED"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	s.store = nil
	keys := s.keys
	s.dir = backup
	s.reopen()
	since := func(keys string, record []byte) int64 {
		t.Helper()
		s.keys = keys
		if record != nil {
			if err := os.WriteFile(filepath.Join(s.dir, "VERIFIED"), record, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		sum, _ := s.run(check.Options{Deep: true})
		return sum.Since
	}
	if n := since(keys, nil); n != 0 {
		t.Errorf("a backup has a record of %d entries", n)
	}
	if n := since(keys, later); n != 0 {
		t.Errorf("the record of a newer store counts for %d entries of an older copy", n)
	}

	other := newSignedShelf(t)
	other.stock(3, 6)
	other.sign()
	s.logShelf, s.dir = other.logShelf, other.dir
	for name, record := range map[string]string{
		"another log's": string(later), "a damaged one": strings.Replace(string(later), `"size":7`, `"size":6`, 1),
		"an empty one": "", "nonsense": "{]", "one of fewer checks": strings.Replace(string(later), `"checks":1`, `"checks":0`, 1),
	} {
		if n := since(other.keys, []byte(record)); n != 0 {
			t.Errorf("the record is %s, and counts for %d entries", name, n)
		}
	}
}

// A counter counts the bytes that are read of files.
type counter struct {
	vfs.FS
	bytes atomic.Int64
}

func (c *counter) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := c.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	return &countedFile{f, c}, nil
}

type countedFile struct {
	vfs.File
	counter *counter
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.counter.bytes.Add(int64(n))
	return n, err
}

func (f *countedFile) ReadAt(p []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(p, off)
	f.counter.bytes.Add(int64(n))
	return n, err
}

var _ io.ReaderAt = (*countedFile)(nil)

// The bytes that a second deep check reads do not depend on how much is stored.
func TestSecondDeepCheckReadsChangesOnly(t *testing.T) {
	t.Parallel()
	read := func(releases int) (all, unchanged, changed int64) {
		s := newSignedShelf(t)
		s.stock(0, releases)
		files := &counter{FS: unsynced.FS}
		s.files = files
		count := func(since int64) int64 {
			s.reopen()
			files.bytes.Store(0)
			s.verify(since)
			return files.bytes.Load()
		}
		s.sign()
		all = count(0)
		size := s.log.Checkpoint().Size
		unchanged = count(size)
		s.stock(releases, releases+1)
		changed = count(size)
		return all, unchanged, changed
	}
	all, unchanged, changed := read(40)
	more, still, later := read(400)
	t.Logf("40 releases: %d bytes, then %d, and %d with a new release; 400 releases: %d, %d and %d", all, unchanged, changed, more, still, later)
	if more < 5*all {
		t.Errorf("a first deep check reads %d bytes of 40 releases and %d of 400", all, more)
	}
	if still > 2*unchanged+100_000 || later > 2*changed+100_000 || later > more/5 {
		t.Errorf("a second deep check reads %d and %d bytes of 40 releases, and %d and %d of 400", unchanged, changed, still, later)
	}
}
