package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/maypok86/otter/v2"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// While a file can still become smaller its asset is read again each minute, so
// that what is hot is not served from the first, quick codings for ever.
func TestAssetIsRecheckedUntilSqueezed(t *testing.T) {
	r, store := rowsOfNothing(t)
	data := []byte("identity is as small as this gets")
	release := testkit.Release{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.txt": data}}
	if err := testkit.Publish(store, []testkit.Release{release}); err != nil {
		t.Fatal(err)
	}
	hot := 0
	r.o.Hot = func(kvstore.Hash) { hot++ }
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	find := func() *asset {
		t.Helper()
		target, err := parseTarget(Prefix + "lib/1.0.0/a.txt")
		if err != nil {
			t.Fatal(err)
		}
		f, ok := r.getCached(target, now)
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

// TestAssetGetsNewDeltas tests that a cached asset whose encodings are the smallest is read again once a delta is stored.
func TestAssetGetsNewDeltas(t *testing.T) {
	r, store := rowsOfNothing(t)
	r.o.Dictionaries = true
	old, data := []byte(testkit.VersionedScript("1")), []byte(testkit.VersionedScript("2"))
	if err := testkit.Publish(store, []testkit.Release{
		{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.js": old}}, {Package: "lib", Version: "2.0.0", Files: map[string][]byte{"a.js": data}},
	}); err != nil {
		t.Fatal(err)
	}
	h := kvstore.Sum(data)
	brotli, err := coding.Encode(coding.Brotli, coding.Best, data)
	if err == nil {
		err = store.PutContent(h, int64(len(data)), true, []kvstore.Coded{{Coding: coding.Brotli, Bytes: brotli}})
	}
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(0, 0)
	r.now = func() time.Time { return now }
	deltas := func() int {
		t.Helper()
		target, err := parseTarget(Prefix + "lib/2.0.0/a.js")
		if err != nil {
			t.Fatal(err)
		}
		f, ok := r.getCached(target, now)
		if !ok {
			f, err = r.load(target, f)
		}
		if err != nil {
			t.Fatal(err)
		}
		return len(f.deltas)
	}
	if n := deltas(); n != 0 {
		t.Fatalf("%d deltas", n)
	}
	delta, err := coding.EncodeDelta(old, data)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := store.PutDelta(h, delta); err != nil || !stored {
		t.Fatal(stored, err)
	}
	now = now.Add(recheck)
	if n := deltas(); n != 1 {
		t.Errorf("a minute after a delta was stored the asset has %d", n)
	}
}

// rowsOfNothing are the rows of an empty store.
func rowsOfNothing(t *testing.T) (*rows, *kvstore.Store) {
	t.Helper()
	store, err := kvstore.Open("data", kvstore.Options{FS: vfs.NewMem(), MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	r, err := newRows(&Options{Store: store}, 1<<20, newMetrics().rows)
	if err != nil {
		t.Fatal(err)
	}
	return r, store
}

// However a look at the store and a publication interleave, the look finds a file of the release, or does not know its version
// yet: for a missing file of a version that it knows, Larder asks no other origin.
func TestFileIsThereWithItsVersion(t *testing.T) {
	r, store := rowsOfNothing(t)
	for n := range 200 {
		version := fmt.Sprintf("1.0.%d", n)
		target, err := parseTarget(Prefix + "lib/" + version + "/a.txt")
		if err != nil {
			t.Fatal(err)
		}
		var looking sync.WaitGroup
		for range 2 {
			looking.Go(func() {
				for {
					_, err := r.read(target)
					if err == nil {
						return
					}
					if err != errUnknown {
						t.Errorf("%s: %v", version, err)
						return
					}
				}
			})
		}
		err = testkit.Publish(store, []testkit.Release{{Package: "lib", Version: version, Files: map[string][]byte{"a.txt": []byte("a")}}})
		if err != nil {
			t.Fatal(err)
		}
		looking.Wait()
	}
}

// A request that comes after a publication does not get what an earlier one found.
func TestAbsenceIsNotShared(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, store := rowsOfNothing(t)
		target, err := parseTarget(Prefix + "lib/1.0.0/a.txt")
		if err != nil {
			t.Fatal(err)
		}
		end := make(chan struct{})
		go assetCache(r).Get(t.Context(), target.key, otter.LoaderFunc[string, *asset](func(context.Context, string) (*asset, error) {
			_, err := r.read(target)
			<-end
			return nil, err
		}))
		synctest.Wait()
		if err := testkit.Publish(store, []testkit.Release{{Package: "lib", Version: "1.0.0", Files: map[string][]byte{"a.txt": []byte("a")}}}); err != nil {
			t.Fatal(err)
		}
		found := make(chan error, 1)
		go func() {
			_, err := r.load(target, nil)
			found <- err
		}()
		synctest.Wait()
		close(end)
		if err := <-found; err != nil {
			t.Errorf("a file that was published: %v", err)
		}
	})
}
