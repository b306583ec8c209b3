package check_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

func TestCheckFindsNothingWrong(t *testing.T) {
	s := stocked(t)
	for _, deep := range []bool{false, true} {
		sum, found := s.check(deep)
		if len(found) > 0 {
			t.Errorf("deep %v: found %v", deep, found)
		}
		// The JSON twice, two manifests, three distinct files.
		if sum.Entries != 6 || sum.Releases != 2 || sum.Files != 4 || sum.Contents != 7 || sum.Orphans != 0 || !sum.Sound || sum.Checkpoint != s.log.Checkpoint() {
			t.Errorf("deep %v: %+v", deep, sum)
		}
	}
	s.keep("left by an interrupted release")
	if sum, found := s.check(false); sum.Orphans != 1 || len(found) > 0 {
		t.Errorf("%d orphans, found %v; want 1 and nothing", sum.Orphans, found)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	row := func(ns kvstore.Namespace, key []byte) func(*logShelf) []byte {
		return func(s *logShelf) []byte {
			data, err := s.store.Get(ns, key)
			if err != nil {
				s.t.Fatal(err)
			}
			return append(data, ' ')
		}
	}
	hash := kvstore.Sum([]byte("v3"))
	file := kvstore.Key("vue", "3.0.0", "vue.js")
	tests := []struct {
		name  string
		ns    kvstore.Namespace
		key   []byte
		value func(*logShelf) []byte // nil deletes
		deep  bool
		kind  check.Kind
	}{
		{"a file is missing", kvstore.Files, file, nil, false, check.View},
		{"a file changed", kvstore.Files, file, row(kvstore.Files, file), false, check.View},
		{"a file too many", kvstore.Files, kvstore.Key("vue", "3.0.0", "x.js"), row(kvstore.Files, file), false, check.View},
		{"an integrity is missing", kvstore.SRIs, file, nil, false, check.View},
		{"a version is missing", kvstore.Versions, kvstore.Key("vue", "3.0.0"), nil, false, check.View},
		{"a package is missing", kvstore.Packages, kvstore.Key("vue"), nil, false, check.View},
		{"a state is missing", kvstore.States, kvstore.Key("vue", "3.0.0"), nil, false, check.State},
		{"a row of the index is missing", kvstore.LogIndex, append(kvstore.Prefix("p", "vue", "published"), 0, 0, 0, 0, 0, 0, 0, 3), nil, false, check.View},
		{"a version is published twice", kvstore.Meta, []byte("x"), func(s *logShelf) []byte {
			s.publish("vue", "3.0.0", "vue.js", "vue three", "dist/vue.min.js", "v3")
			return []byte("x")
		}, false, check.Log},
		{"an entry is malformed, and so is a file", kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 0}, func(s *logShelf) []byte {
			s.change(kvstore.Files, file, nil)
			return []byte("{")
		}, false, check.View},
		{"an entry is missing", kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil, false, check.Log},
		{"a content is missing", kvstore.Contents, hash[:], nil, false, check.Content},
		{"a blob is missing", kvstore.Blobs, append(hash[:], byte(coding.Identity)), nil, true, check.Content},
		{"a blob changed", kvstore.Blobs, append(hash[:], byte(coding.Identity)), func(*logShelf) []byte { return []byte("v4") }, true, check.Content},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stocked(t)
			var value []byte
			if tt.value != nil {
				value = tt.value(s)
			}
			s.change(tt.ns, tt.key, value)
			_, found := s.check(tt.deep)
			if len(found) == 0 {
				t.Fatal("found nothing")
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

func TestErasedContentsMayBeMissing(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3", "d3.min.js", "3", "shared.js", "v3")
	s.again(c, logs.Withdrawn, "by order")
	s.erase(c, "d3", "3")
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("erased and still there: found %v", found)
	}
	named := func(data string) bool {
		var all []kvstore.Hash
		if err := views.Contents(context.Background(), s.store, s.store, func(h kvstore.Hash) { all = append(all, h) }); err != nil {
			t.Fatal(err)
		}
		return slices.Contains(all, kvstore.Sum([]byte(data)))
	}
	for data, want := range map[string]bool{"d3": false, "3": false, "v3": true, "vue three": true} {
		if got := named(data); got != want {
			t.Errorf("content %q is needed: %v, want %v", data, got, want)
		}
	}
	s.lose("d3", "3")
	for _, deep := range []bool{false, true} {
		if _, found := s.check(deep); len(found) > 0 {
			t.Errorf("deep %v: found %v", deep, found)
		}
	}

	// Another release brings the same bytes: from then on they are needed again.
	c = s.publish("d3", "7.0.1", "d3.js", "d3")
	if _, found := s.check(true); len(found) > 0 || !named("d3") || named("3") {
		t.Errorf("published again: found %v, needed %v", found, named("d3"))
	}
	// And also once that one is withdrawn, for it can be restored.
	for _, what := range []string{"served", "evidence"} {
		s.lose("d3")
		if _, found := s.check(false); len(found) != 1 || found[0].Kind != check.Content {
			t.Errorf("lost what is %s again: found %v", what, found)
		}
		s.keep("d3")
		if what == "served" {
			s.again(c, logs.Withdrawn, "by order too")
		}
	}
	if !named("d3") {
		t.Error("what could be restored is not needed")
	}
}

func TestErasureExcusesNothingElse(t *testing.T) {
	tests := []struct {
		name  string
		erase []string
		lose  string
	}{
		{"a content that the erasure does not list", []string{"d3"}, "3"},
		{"a content that a served release shares", []string{"d3", "v3"}, "v3"},
		{"a package JSON", []string{"d3", `{"name":"vue"}`}, `{"name":"vue"}`},
		{"a file that is a package JSON too", []string{"d3", `{"json":1}`}, `{"json":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stocked(t)
			c := s.publish("d3", "7.0.0", "d3.js", "d3", "d3.min.js", "3", "shared.js", "v3", "package.json", `{"json":1}`)
			s.register(logs.PackageAdded, "json", `{"json":1}`)
			s.again(c, logs.Withdrawn, "by order")
			s.erase(c, tt.erase...)
			named := false
			if err := views.Contents(context.Background(), s.store, s.store, func(h kvstore.Hash) {
				named = named || h == kvstore.Sum([]byte(tt.lose))
			}); err != nil {
				t.Fatal(err)
			}
			if !named {
				t.Error("Contents does not name it")
			}
			s.lose(tt.lose)
			if _, found := s.check(false); len(found) == 0 {
				t.Error("found nothing")
			}
		})
	}
}

func TestCheckKnowsTheOrder(t *testing.T) {
	tests := []struct {
		name  string
		kinds []logs.Kind // after a publication
		wrong bool
	}{
		{"withdrawn", []logs.Kind{logs.Withdrawn}, false},
		{"back and forth", []logs.Kind{logs.Withdrawn, logs.Restored, logs.Withdrawn, logs.Restored}, false},
		{"withdrawn twice", []logs.Kind{logs.Withdrawn, logs.Withdrawn}, true},
		{"restored without being withdrawn", []logs.Kind{logs.Restored}, true},
		{"restored twice", []logs.Kind{logs.Withdrawn, logs.Restored, logs.Restored}, true},
		{"published twice", []logs.Kind{logs.Published}, true},
		{"published after a withdrawal", []logs.Kind{logs.Withdrawn, logs.Published}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShelf(t)
			c := s.publish("d3", "7.0.0", "d3.js", "d3")
			for _, kind := range tt.kinds {
				s.again(c, kind, "so")
			}
			if _, found := s.check(false); len(found) > 0 != tt.wrong {
				t.Errorf("found %v", found)
			}
		})
	}
	s := newShelf(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "withdrawn at its origin")
	c.Actor = "operator"
	s.again(c, logs.Withdrawn, "malware")
	if _, found := s.check(false); len(found) > 0 {
		t.Errorf("withdrawn by the operator too: found %v", found)
	}
	s = newShelf(t)
	c = s.publish("d3", "7.0.0", "d3.js", "d3")
	s.erase(c, "d3")
	if _, found := s.check(false); len(found) == 0 {
		t.Error("erased while it is served: found nothing")
	}
}

// TestOtherFilesAfterAWithdrawal reports what is wrong in the log itself.
func TestOtherFilesAfterAWithdrawal(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "malware")
	s.again(c, logs.Published, "") // the same files, which is no worse than to restore it
	s.again(c, logs.Withdrawn, "malware")
	if _, found := s.check(false); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	other := s.publish("d3", "7.0.0", "d3.js", "other")
	s.again(c, logs.Withdrawn, "malware")
	s.again(other, logs.Restored, "")
	_, found := s.check(false)
	if len(found) != 2 || found[0].Where != "entry 10" || found[1].Where != "entry 12" || !strings.Contains(found[1].Problem, "d3 7.0.0 is restored with other files than entry 6 published") {
		t.Errorf("found %v", found)
	}
}

func TestCheckFindsADamagedErasure(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "by order")
	s.erase(c, "d3")
	s.lose("d3")
	e, err := logs.ReadEntry(s.store, s.log.Checkpoint().Size-1)
	if err != nil {
		t.Fatal(err)
	}
	s.change(kvstore.Contents, e.Erasure[:], nil)
	if _, found := s.check(false); len(found) < 2 {
		t.Errorf("found %v, want the erasure and the content that nothing excuses any more", found)
	}
	if err := views.Contents(context.Background(), s.store, s.store, func(kvstore.Hash) {}); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("Contents without the erasure: %v", err)
	}
}

// Rows that no other check reads, such as those of durable objects, are read too.
func TestCheckFindsUnreadableRows(t *testing.T) {
	dir := t.TempDir()
	open := func() *kvstore.Store {
		store, err := kvstore.Open(dir, kvstore.Options{MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	store := open()
	noise := make([]byte, 100_000)
	rand.NewChaCha8([32]byte{}).Read(noise) //nolint:errcheck // it never fails
	for i := range 40 {                     // several memtables, so that most of it is in tables
		b := store.NewBatch()
		b.Set(kvstore.Durable, kvstore.Key("o", "class", fmt.Sprint(i)), noise)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		b.Close()
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || tables == nil {
		t.Fatalf("no tables, %v", err)
	}
	damaged := 0
	for _, path := range tables {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(data) < 3*len(noise) {
			continue // the row with the store's format may be in the same block
		}
		data[len(data)/2] ^= 1
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		damaged++
	}
	if damaged == 0 {
		t.Fatal("no table has three objects")
	}
	store = open()
	defer store.Close()
	var found []check.Finding
	_, err = check.Run(t.Context(), store, check.Options{Temp: t.TempDir()}, func(f check.Finding) { found = append(found, f) })
	if err != nil || len(found) != 1 || found[0].Kind != check.Store || found[0].Where != "durable objects" {
		t.Errorf("found %v, %v", found, err)
	}
}

// A log that was signed is compared with what was signed, wherever the keys are said to be.
// TestCheckTellsOfDamagedFiles has the store's write-ahead log damaged, of which a store that
// is opened read-only shows what comes before.
func TestCheckTellsOfDamagedFiles(t *testing.T) {
	dir := t.TempDir()
	store, err := kvstore.Open(dir, kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b := store.NewBatch()
	b.Set(kvstore.Meta, kvstore.Key("large"), make([]byte, 4096))
	if err := errors.Join(b.Commit(), b.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	last := logs[len(logs)-1]
	data, err := os.ReadFile(last)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(last, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kvstore.Open(dir, kvstore.Options{}); !errors.As(err, new(*kvstore.DamageError)) {
		t.Fatalf("opened for writing: %v", err)
	}
	if store, err = kvstore.Open(dir, kvstore.Options{ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	var found []check.Finding
	if _, err := check.Run(t.Context(), store, check.Options{Temp: t.TempDir()}, func(f check.Finding) { found = append(found, f) }); err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 || found[0].Kind != check.Store || found[0].Where != filepath.Base(last) || !strings.Contains(found[0].Problem, "a bit is flipped") {
		t.Errorf("found %v", found)
	}
}

func TestCheckComparesWithWhatWasSigned(t *testing.T) {
	s := stocked(t)
	keys := filepath.Join(t.TempDir(), "keys")
	signer, err := signing.Open(signing.Options{Dir: keys, Store: s.store, Log: s.log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := signer.Close(); err != nil {
		t.Fatal(err)
	}
	head := s.log.Checkpoint()
	longer := logs.Checkpoint{Size: head.Size + 1, Root: head.Root}
	other := logs.Checkpoint{Size: head.Size - 1, Root: head.Root}
	for _, tt := range []struct {
		name    string
		keys    string
		seen    logs.Checkpoint
		want    string // of the one problem; "" for none
		missing bool
	}{
		{"as it was signed", keys, logs.Checkpoint{}, "", false},
		{"and seen", keys, head, "", false},
		{"another folder", t.TempDir(), logs.Checkpoint{}, "no key is in the key folder", true},
		{"no folder", "", logs.Checkpoint{}, "no key is in the key folder", true},
		{"more was seen", keys, longer, "has 7 entries, the log 6", false},
		{"another log was seen", keys, other, "the first 5 entries are not those of", false},
	} {
		var found []check.Finding
		sum, err := check.Run(t.Context(), s.store, check.Options{Keys: tt.keys, Seen: tt.seen, Temp: t.TempDir()}, func(f check.Finding) { found = append(found, f) })
		if err != nil {
			t.Fatal(err)
		}
		if wrong := tt.want != ""; sum.Sound == wrong || sum.KeyMissing != tt.missing || len(found) > 0 != wrong {
			t.Errorf("%s: %+v, found %v", tt.name, sum, found)
		}
		if tt.want != "" && (len(found) != 1 || found[0].Kind != check.Checkpoint || !strings.Contains(found[0].Problem, tt.want)) {
			t.Errorf("%s: found %v", tt.name, found)
		}
		if tt.keys == keys && (sum.Signed != head.Size || !strings.HasPrefix(sum.Origin, "larder.local/")) {
			t.Errorf("%s: %+v", tt.name, sum)
		}
	}
}
