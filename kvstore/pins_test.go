package kvstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

func TestCollectOrphans(t *testing.T) {
	s := inMemory(t)
	live := put(t, s, noise(1, 1000))
	orphan := put(t, s, noise(2, 5000))
	if err := s.PutContent(orphan, 5000, false, []Coded{{coding.Brotli, noise(3, 300)}}); err != nil {
		t.Fatal(err)
	}
	pinned, released := put(t, s, noise(4, 1000)), put(t, s, noise(5, 1000))
	pins := s.Pin()
	for _, h := range []Hash{pinned, pinned, released} {
		if ok, err := pins.Has(h); !ok || err != nil {
			t.Fatalf("Has = %v, %v", ok, err)
		}
	}
	if ok, err := pins.Has(Hash{}); ok || err != nil {
		t.Errorf("Has of what isn't there = %v, %v", ok, err)
	}
	other := s.Pin()
	if _, err := other.Has(released); err != nil {
		t.Fatal(err)
	}
	other.Release()

	isLive := func(h Hash) bool { return h == live }
	n, bytes, err := s.CollectOrphans(t.Context(), isLive)
	if n != 1 || bytes != 5300 || err != nil {
		t.Errorf("collected %d contents, %d bytes, %v", n, bytes, err)
	}
	for h, want := range map[Hash]bool{live: true, orphan: false, pinned: true, released: true} {
		if _, err := s.Identity(h); errors.Is(err, ErrNotFound) == want {
			t.Errorf("%s: %v", h, err)
		}
	}
	if blobs := rows(t, s, Blobs, Range{}); len(blobs) != 3 {
		t.Errorf("%d blobs are left", len(blobs))
	}
	pins.Release()
	pins.Release()
	if n, _, err := s.CollectOrphans(t.Context(), isLive); n != 2 || err != nil {
		t.Errorf("after the release: collected %d, %v", n, err)
	}
	put(t, s, noise(2, 5000))
	if _, err := s.Identity(orphan); err != nil {
		t.Errorf("put again: %v", err)
	}
}

// What is pinned after the collection has begun, even where it is no longer,
// may be named by something that live doesn't know.
func TestCollectOrphansSparesWhatWasPinnedMeanwhile(t *testing.T) {
	s := inMemory(t)
	h := put(t, s, noise(1, 1000))
	n, _, err := s.CollectOrphans(t.Context(), func(Hash) bool {
		pins := s.Pin()
		defer pins.Release()
		if ok, err := pins.Has(h); !ok || err != nil {
			t.Errorf("Has = %v, %v", ok, err)
		}
		return false
	})
	if n != 0 || err != nil {
		t.Errorf("collected %d, %v", n, err)
	}
	if n, _, err := s.CollectOrphans(t.Context(), func(Hash) bool { return false }); n != 1 || err != nil {
		t.Errorf("the next collection: %d, %v", n, err)
	}
}

func TestCollectOrphansStops(t *testing.T) {
	s := inMemory(t)
	put(t, s, noise(1, 1000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, _, err := s.CollectOrphans(ctx, func(Hash) bool { return false }); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("collected %d, %v", n, err)
	}
}

// Releases that share contents are published and removed while the collector
// runs, the squeezer replaces codings and readers read.
func TestCollectorBesideWriters(t *testing.T) {
	s := open(t, "store", small(vfs.NewMem()))
	contents := make([][]byte, 12)
	for i := range contents {
		contents[i] = noise(uint64(i), 500+i)
	}
	var work, background sync.WaitGroup
	stop := make(chan struct{})
	forever := func(f func()) {
		background.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					f()
				}
			}
		})
	}
	for writer := range 3 {
		rng := rand.New(rand.NewPCG(uint64(writer), 0))
		work.Go(func() {
			for i := range 60 {
				identity := contents[rng.IntN(len(contents))]
				h := Sum(identity)
				name := Key(fmt.Sprint(writer), fmt.Sprint(i))
				if err := publishOne(s, h, identity, name); err != nil {
					t.Error(err)
					return
				}
				if _, err := s.Identity(h); err != nil {
					t.Errorf("published, but: %v", err)
				}
				b := s.NewBatch()
				b.Delete(Files, name)
				if err := errors.Join(b.Commit(), b.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	forever(func() {
		named := map[Hash]bool(nil)
		_, _, err := s.CollectOrphans(t.Context(), func(h Hash) bool {
			if named == nil {
				named = make(map[Hash]bool)
				for item, err := range s.Scan(Files, Range{}) {
					if err != nil {
						t.Error(err)
					}
					named[Hash(item.Value)] = true
				}
			}
			return named[h]
		})
		if err != nil {
			t.Error(err)
		}
	})
	forever(func() {
		for _, identity := range contents {
			pins := s.Pin()
			h := Sum(identity)
			ok, err := pins.Has(h)
			if ok {
				err = s.PutContent(h, int64(len(identity)), true, []Coded{{coding.Gzip, noise(1, 400)}})
			}
			if pins.Release(); err != nil {
				t.Error(err)
			}
		}
	})
	work.Wait()
	close(stop)
	background.Wait()
	if _, _, err := s.CollectOrphans(t.Context(), func(Hash) bool { return false }); err != nil {
		t.Error(err)
	}
	if left := len(rows(t, s, Contents, Range{})) + len(rows(t, s, Blobs, Range{})); left > 0 {
		t.Errorf("%d rows are left of contents that nothing names", left)
	}
}

func publishOne(s *Store, h Hash, identity, name []byte) error {
	pins := s.Pin()
	defer pins.Release()
	ok, err := pins.Has(h)
	if err != nil {
		return err
	}
	if !ok {
		if err := s.PutContent(h, int64(len(identity)), false, []Coded{{coding.Identity, identity}}); err != nil {
			return err
		}
	}
	b := s.NewBatch()
	defer b.Close()
	b.Set(Files, name, h[:])
	return b.Commit()
}
