package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// putDelta stores the delta of one content against another.
func putDelta(t *testing.T, s *Store, src, dictionary []byte) Delta {
	t.Helper()
	delta, err := coding.EncodeDelta(dictionary, src)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.PutDelta(Sum(src), Sum(dictionary), delta); err != nil {
		t.Fatal(err)
	}
	return Delta{Sum(dictionary), int64(len(delta)), Sum(delta)}
}

func TestDeltas(t *testing.T) {
	s := inMemory(t)
	version := func(n int) []byte { return append(bytes.Repeat([]byte("the same text; "), 500), fmt.Sprint(n)...) }
	for n := range 6 {
		put(t, s, version(n))
	}
	h := Sum(version(5))
	if got, err := s.Deltas(h); got != nil || err != nil {
		t.Errorf("of a content without deltas: %v, %v", got, err)
	}
	var want []Delta
	for n := range MaxDeltas {
		want = append(want, putDelta(t, s, version(5), version(n)))
	}
	if got, err := s.Deltas(h); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Deltas = %v, %v; want %v", got, err, want)
	}
	for n, d := range want {
		delta, err := s.ReadDelta(h, d.Sum)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := coding.DecodeDelta(version(n), delta, int64(len(version(5)))); err != nil || !bytes.Equal(got, version(5)) {
			t.Errorf("delta %d decodes to something else, or %v", n, err)
		}
	}
	if err := s.PutDelta(h, Sum(version(3)), []byte("one too many")); !errors.Is(err, ErrFull) {
		t.Errorf("one more delta than there may be: %v", err)
	}
	if err := s.PutDelta(h, want[0].Dictionary, make([]byte, want[0].Length)); err != nil {
		t.Error(err)
	}
	if _, err := s.ReadDelta(h, want[0].Sum); err != nil {
		t.Errorf("a delta was replaced by one that is not smaller: %v", err)
	}
	for _, pair := range [][2]Hash{{h, {}}, {{}, h}} {
		if err := s.PutDelta(pair[0], pair[1], []byte("x")); !errors.Is(err, ErrNotFound) {
			t.Errorf("a delta of or against a content that is not stored: %v", err)
		}
	}
	if err := s.DeleteDelta(h, want[0].Dictionary); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Deltas(h); err != nil || fmt.Sprint(got) != fmt.Sprint(want[1:]) {
		t.Errorf("after one is deleted: %v, %v", got, err)
	}
}

// TestDeltasGoWithTheirContents tests that a delta is removed with its content and with its dictionary, by erasure and by collection.
func TestDeltasGoWithTheirContents(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	for _, removed := range [][]byte{old, now} {
		for _, collected := range []bool{false, true} {
			s := inMemory(t)
			put(t, s, old)
			put(t, s, now)
			d := putDelta(t, s, now, old)
			if collected {
				_, bytes, err := s.CollectOrphans(t.Context(), func(h Hash) bool { return h != Sum(removed) })
				if want := int64(len(removed)) + d.Length; err != nil || bytes != want {
					t.Errorf("collected %d bytes, %v; want %d", bytes, err, want)
				}
			} else {
				b := s.NewBatch()
				b.Remove(Sum(removed))
				if err := b.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			for _, ns := range []Namespace{Deltas, Blobs} {
				most := 0
				if ns == Blobs {
					most = 1 // the other content
				}
				if got := rows(t, s, ns, Range{}); len(got) != most {
					t.Errorf("the namespace %c has %d rows, want %d", ns, len(got), most)
				}
			}
		}
	}
}

// TestDeltasOfContentsRemovedTogether tests that a batch that removes several contents leaves the deltas of the others, and no row of those.
func TestDeltasOfContentsRemovedTogether(t *testing.T) {
	s := inMemory(t)
	version := func(n int) []byte { return append(bytes.Repeat([]byte("the same text; "), 500), fmt.Sprint(n)...) }
	for n := range 4 {
		put(t, s, version(n))
	}
	for _, pair := range [][2]int{{3, 0}, {3, 1}, {3, 2}, {1, 0}, {1, 1}, {0, 2}} {
		putDelta(t, s, version(pair[0]), version(pair[1]))
	}
	b := s.NewBatch()
	b.Remove(Sum(version(0)))
	b.Remove(Sum(version(1)))
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	deltas, err := s.Deltas(Sum(version(3)))
	if err != nil || len(deltas) != 1 || deltas[0].Dictionary != Sum(version(2)) {
		t.Errorf("the deltas that stay: %v, %v", deltas, err)
	}
	if got := rows(t, s, Deltas, Range{}); len(got) != 2 {
		t.Errorf("there are %d rows of deltas, want the list and its dictionary", len(got))
	}
	if got := rows(t, s, Blobs, Range{}); len(got) != 3 {
		t.Errorf("there are %d blobs, want two contents and a delta", len(got))
	}
}

// TestDamagedDelta tests that a delta is not returned if its bytes or its row are damaged.
func TestDamagedDelta(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	h, dictionary := Sum(now), Sum(old)
	for _, row := range []struct {
		ns         Namespace
		key, value string
	}{
		{Blobs, string(deltaBlobKey(h, dictionary)), "other bytes"},
		{Deltas, string(deltasKey(h)), "\x01"},
		{Deltas, string(deltasKey(h)), "\x02 of the future"},
	} {
		s := inMemory(t)
		put(t, s, old)
		put(t, s, now)
		d := putDelta(t, s, now, old)
		set(t, s, row.ns, row.key, row.value)
		if got, err := s.ReadDelta(h, d.Sum); !errors.Is(err, ErrCorrupt) {
			t.Errorf("damaged %c: %d bytes, %v", row.ns, len(got), err)
		}
		if err := s.DeleteDelta(h, dictionary); err != nil {
			t.Error(err)
		}
		if got, err := s.Deltas(h); got != nil || err != nil {
			t.Errorf("after the damaged delta was deleted: %v, %v", got, err)
		}
	}
}

// TestErasureOfDamagedDeltas tests that no bytes of an erased content stay in a delta that a damaged or lost row does not list.
func TestErasureOfDamagedDeltas(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	h := Sum(now)
	for name, damage := range map[string]func(s *Store){
		"list": func(s *Store) { set(t, s, Deltas, string(deltasKey(h)), "\x02 of the future") },
		"content": func(s *Store) {
			if err := database(s).Delete(Contents.physical(h[:]), nil); err != nil {
				t.Fatal(err)
			}
		},
	} {
		s := inMemory(t)
		put(t, s, old)
		put(t, s, now)
		putDelta(t, s, now, old)
		damage(s)
		b := s.NewBatch()
		b.Remove(h)
		if err := b.Commit(); err != nil {
			t.Fatal(name, err)
		}
		if got := rows(t, s, Blobs, Range{Prefix: blobKey(h, coding.DCZ)}); len(got) != 0 {
			t.Errorf("%s: %d deltas stay", name, len(got))
		}
	}
}
