package server

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// While a file can still become smaller its asset is read again each minute, so
// that what is hot is not served from the first, quick codings for ever.
func TestAssetIsRecheckedUntilSqueezed(t *testing.T) {
	store, err := kvstore.Open("data", kvstore.Options{FS: vfs.NewMem(), MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	data := []byte("identity is as small as this gets")
	release := testkit.Release{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.txt": data}}
	if err := testkit.Publish(store, []testkit.Release{release}); err != nil {
		t.Fatal(err)
	}
	hot := 0
	r, err := newRows(store, 1<<20, func(kvstore.Hash) { hot++ }, nil, newMetrics().rows)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	find := func() *asset {
		t.Helper()
		target, err := parseTarget(Prefix + "lib/1.0.0/a.txt")
		if err != nil {
			t.Fatal(err)
		}
		f, ok := r.cached(target, now)
		if !ok {
			f, err = r.load(target, f)
		}
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	first := find()
	now = now.Add(recheck - 1)
	if find() != first || hot != 1 {
		t.Errorf("read again within the minute; %d calls of Hot", hot)
	}
	now = now.Add(1)
	second := find()
	if second == first || hot != 2 {
		t.Errorf("not read again after a minute; %d calls of Hot", hot)
	}
	if err := store.PutContent(kvstore.Sum(data), int64(len(data)), true, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(recheck)
	third := find()
	now = now.Add(1000 * time.Hour)
	if third == second || find() != third || hot != 2 {
		t.Errorf("a squeezed asset is read again; %d calls of Hot", hot)
	}
	r.generation.Add(1)
	if find() == third {
		t.Error("not read again after a version was forgotten")
	}
}
