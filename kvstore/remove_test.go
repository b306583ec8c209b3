package kvstore

import (
	"errors"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

func TestRemove(t *testing.T) {
	s := inMemory(t)
	kept, removed := put(t, s, noise(1, 1000)), put(t, s, noise(2, 5000))
	if err := s.PutContent(removed, 5000, false, []Coded{{coding.Brotli, noise(3, 300)}}); err != nil {
		t.Fatal(err)
	}
	erase := func(hashes ...Hash) error {
		b := s.NewBatch()
		defer b.Close()
		b.Set(Meta, []byte("why"), []byte("because"))
		for _, h := range hashes {
			b.Remove(h)
		}
		return b.Commit()
	}

	pins := s.Pin()
	if ok, err := pins.Has(removed); !ok || err != nil {
		t.Fatalf("Has = %v, %v", ok, err)
	}
	var pinned *PinnedError
	if err := erase(kept, removed); !errors.As(err, &pinned) || len(pinned.Hashes) != 1 || pinned.Hashes[0] != removed {
		t.Errorf("pinned: %v", err)
	}
	if _, err := s.Get(Meta, []byte("why")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a refused batch left a row: %v", err)
	}
	if _, err := s.Identity(kept); err != nil {
		t.Errorf("a refused batch removed something: %v", err)
	}
	pins.Release()

	if err := erase(removed, Hash{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Content(removed); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed, but: %v", err)
	}
	if _, err := s.Get(Meta, []byte("why")); err != nil {
		t.Error(err)
	}
	if blobs := rows(t, s, Blobs, Range{}); len(blobs) != 1 {
		t.Errorf("%d blobs are left", len(blobs))
	}
	err := s.ImproveContent(removed, 5000, true, []Coded{{coding.Gzip, noise(4, 200)}})
	if !errors.Is(err, ErrNotFound) || len(rows(t, s, Blobs, Range{})) != 1 {
		t.Errorf("improved what is gone: %v", err)
	}
	put(t, s, noise(2, 5000))
	if err := s.ImproveContent(removed, 5000, true, []Coded{{coding.Gzip, noise(4, 200)}}); err != nil {
		t.Error(err)
	}
	if c, err := s.Content(removed); err != nil || !c.Squeezed || len(c.Representations) != 2 {
		t.Errorf("put again: %+v, %v", c, err)
	}
}

// The space of what was erased is not left to whenever much else is stale.
func TestRemoveCompacts(t *testing.T) {
	o := small(vfs.NewMem())
	o.reclaimBytes = 1 << 40
	s := open(t, "store", o)
	h := put(t, s, noise(1, 100_000))
	b := s.NewBatch()
	defer b.Close()
	b.Remove(h)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	s.reclaim.wait.Wait()
	if m := readMetrics(s); m.BlobFiles.ReferencedValueSize > 0 || s.reclaim.stale != 0 {
		t.Errorf("%d bytes are referred to, %d are stale", m.BlobFiles.ReferencedValueSize, s.reclaim.stale)
	}
}

// Whoever pins a content that is being erased has it as long: the pin came first
// and the erasure is refused, or the content is stored anew.
func TestRemoveBesideWriters(t *testing.T) {
	s := inMemory(t)
	identity := noise(1, 500)
	h := Sum(identity)
	stop := make(chan struct{})
	var background sync.WaitGroup
	background.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			b := s.NewBatch()
			b.Remove(h)
			var pinned *PinnedError
			if err := b.Commit(); err != nil && !errors.As(err, &pinned) {
				t.Error(err)
			}
			b.Close()
		}
	})
	for range 300 {
		pins := s.Pin()
		ok, err := pins.Has(h)
		if err == nil && !ok {
			err = s.PutContent(h, int64(len(identity)), false, []Coded{{coding.Identity, identity}})
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Identity(h); err != nil {
			t.Fatalf("pinned, but: %v", err)
		}
		pins.Release()
	}
	close(stop)
	background.Wait()
}
