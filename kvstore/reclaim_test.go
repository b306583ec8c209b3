package kvstore

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// Every coding is replaced, in two processes. Afterwards only what was replaced
// last is still referred to.
func TestReplacedBlobsAreReclaimed(t *testing.T) {
	o := small(vfs.NewMem())
	o.reclaimBytes = 8 << 20
	const contents, first, second = 200, 60_000, 50_000
	putAll := func(s *Store, from, to, n int) {
		for i := from; i < to; i++ {
			if err := s.PutContent(Hash{byte(i)}, 100_000, false, []Coded{{coding.Brotli, noise(uint64(i), n)}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := open(t, "store", o)
	putAll(s, 0, contents, first)
	s.reclaim.wait.Wait()
	if s.reclaim.stale != 0 {
		t.Errorf("%d bytes are stale before anything was replaced", s.reclaim.stale)
	}
	putAll(s, 0, contents/2, second)
	stale := s.reclaim.stale
	if stale != contents/2*first {
		t.Errorf("%d bytes are stale", stale)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, "store", o)
	if s.reclaim.stale != stale {
		t.Errorf("after the restart %d bytes are stale, not %d", s.reclaim.stale, stale)
	}
	putAll(s, contents/2, contents, second)
	s.reclaim.wait.Wait()
	blobs := readMetrics(s).BlobFiles
	if s.reclaim.stale >= o.reclaimBytes {
		t.Errorf("%d bytes are still stale", s.reclaim.stale)
	}
	if live := int64(contents * second); int64(blobs.ReferencedValueSize) > live+s.reclaim.stale {
		t.Errorf("%d bytes are referred to; %d are live, and %d are stale", blobs.ReferencedValueSize, live, s.reclaim.stale)
	}
	for i := range contents {
		if r, _, err := s.Coded(Hash{byte(i)}, coding.Brotli); err != nil || r.Length != second {
			t.Errorf("content %d: %d bytes, %v", i, r.Length, err)
		}
	}
}

// TestErasuresDuringACompaction tests that the space of a content that is erased during a compaction is reclaimed after it, although an erasure that
// frees nothing follows.
func TestErasuresDuringACompaction(t *testing.T) {
	s := inMemory(t)
	if err := s.PutContent(Hash{1}, 100_000, false, []Coded{{coding.Brotli, noise(1, 50_000)}}); err != nil {
		t.Fatal(err)
	}
	s.contents.Lock()
	s.reclaim.busy = true
	s.contents.Unlock()
	for _, h := range []Hash{{1}, {2}} {
		b := s.NewBatch()
		b.Remove(h)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	s.compactBlobs()
	if s.reclaim.stale != 0 || s.reclaim.busy {
		t.Errorf("%d bytes are stale after the compaction", s.reclaim.stale)
	}
}
