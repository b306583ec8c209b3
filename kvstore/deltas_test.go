package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// encodeDelta returns the delta of one content against another.
func encodeDelta(t *testing.T, src, dictionary []byte) []byte {
	t.Helper()
	delta, err := coding.EncodeDelta(dictionary, src)
	if err != nil {
		t.Fatal(err)
	}
	return delta
}

// putDelta stores the delta of one content against another.
func putDelta(t *testing.T, s *Store, src, dictionary []byte) Delta {
	t.Helper()
	delta := encodeDelta(t, src, dictionary)
	if stored, err := s.PutDelta(Sum(src), delta); err != nil || !stored {
		t.Fatal(stored, err)
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
	slices.SortFunc(want, func(a, b Delta) int { return bytes.Compare(a.Dictionary[:], b.Dictionary[:]) })
	if got, err := s.Deltas(h); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("Deltas = %v, %v; want %v", got, err, want)
	}
	for n, d := range want {
		delta, err := s.ReadDelta(h, d.Sum)
		if err != nil {
			t.Fatal(err)
		}
		dictionary, err := s.Identity(d.Dictionary)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := coding.DecodeDelta(dictionary, delta, int64(len(version(5)))); err != nil || !bytes.Equal(got, version(5)) {
			t.Errorf("delta %d decodes to something else, or %v", n, err)
		}
	}
	for name, tt := range map[string]struct {
		of    Hash
		delta []byte
	}{
		"one more than there may be":       {h, encodeDelta(t, version(5), version(3))},
		"one that is stored":               {h, encodeDelta(t, version(5), version(0))},
		"one of a content that is missing": {Sum(version(6)), encodeDelta(t, version(6), version(0))},
		"one whose dictionary is missing":  {h, encodeDelta(t, version(5), version(6))},
		"one that saves little":            {Sum(version(4)), encodeDelta(t, version(4), []byte("nothing alike"))},
	} {
		put(t, s, []byte("nothing alike"))
		put(t, s, version(4))
		if name == "one that saves little" {
			coded, err := coding.Encode(coding.Brotli, coding.Quick, version(4))
			if err == nil {
				err = s.PutContent(tt.of, int64(len(version(4))), false, []Coded{{coding.Brotli, coded}})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if stored, err := s.PutDelta(tt.of, tt.delta); err != nil || stored {
			t.Errorf("%s: stored: %v, %v", name, stored, err)
		}
	}
	if got, err := s.Deltas(h); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("after deltas that are not stored: %v, %v; want %v", got, err, want)
	}
	if err := s.RequeueDelta(h, want[0].Dictionary); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, s, Queue, Range{Prefix: QueuedDeltas}); len(got) != 1 {
		t.Errorf("the queue has %d deltas to make again, want one", len(got))
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
	want := int64(len(version(0)) + len(version(1)))
	for _, n := range []int{0, 1, 3} {
		deltas, err := s.Deltas(Sum(version(n)))
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range deltas {
			if n != 3 || d.Dictionary != Sum(version(2)) {
				want += d.Length
			}
		}
	}
	s.pins.Lock()
	n, stale, err := s.removeContents(s.NewBatch(), []Hash{Sum(version(0)), Sum(version(1))}, true)
	s.pins.Unlock()
	if n != 2 || stale != want || err != nil {
		t.Errorf("removed %d contents of %d bytes, %v; want 2 of %d", n, stale, err, want)
	}
	deltas, err := s.Deltas(Sum(version(3)))
	if err != nil || len(deltas) != 1 || deltas[0].Dictionary != Sum(version(2)) {
		t.Errorf("the deltas that stay: %v, %v", deltas, err)
	}
	if got := rows(t, s, Deltas, Range{}); len(got) != 2 {
		t.Errorf("there are %d rows of deltas, want the two of one delta", len(got))
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
		{Deltas, string(deltaKey(ofContent, h, dictionary)), "\x01"},
		{Deltas, string(deltaKey(ofContent, h, dictionary)), "\x02 of the future"},
	} {
		s := inMemory(t)
		put(t, s, old)
		put(t, s, now)
		d := putDelta(t, s, now, old)
		set(t, s, row.ns, row.key, row.value)
		if got, err := s.ReadDelta(h, d.Sum); !errors.Is(err, ErrCorrupt) {
			t.Errorf("damaged %c: %d bytes, %v", row.ns, len(got), err)
		}
		if err := s.RequeueDelta(h, dictionary); err != nil {
			t.Error(err)
		}
		if got, err := s.Deltas(h); got != nil || err != nil {
			t.Errorf("after the damaged delta was deleted: %v, %v", got, err)
		}
	}
}

// TestDamagedBlobOfDelta tests that a delta whose bytes are damaged on the disk is made again. Pebble's own checksum fails first.
func TestDamagedBlobOfDelta(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "store", small(mem))
	old := text(1, 20_000)
	now := append(bytes.Clone(old), text(2, 20_000)...)
	put(t, s, old)
	put(t, s, now)
	d := putDelta(t, s, now, old)
	if err := pebbleOf(s).Flush(); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		damage(t, mem, "*.blob", float64(i)/40)
	}
	if got, err := s.ReadDelta(Sum(now), d.Sum); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if got, err := s.Deltas(Sum(now)); got != nil || err != nil {
		t.Errorf("the damaged delta is still listed: %v, %v", got, err)
	}
}

// TestErasureOfDamagedDeltas tests that no bytes of an erased content stay in a delta that a damaged or lost row does not list.
func TestErasureOfDamagedDeltas(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	h := Sum(now)
	for name, damage := range map[string]func(s *Store){
		"list": func(s *Store) { set(t, s, Deltas, string(deltaKey(ofContent, h, Sum(old))), "\x02 of the future") },
		"key":  func(s *Store) { set(t, s, Deltas, string(deltaPrefix(ofContent, h)), "\x01") },
		"content": func(s *Store) {
			if err := pebbleOf(s).Delete(Contents.physical(h[:]), nil); err != nil {
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
		if got := rows(t, s, Deltas, Range{Prefix: deltaPrefix(ofContent, h)}); len(got) != 0 {
			t.Errorf("%s: %d rows stay", name, len(got))
		}
	}
}

// TestErasureOfDictionary tests that a dictionary is erased, with the delta, although the block with the row of the delta is damaged.
func TestErasureOfDictionary(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	h, dictionary := Sum(now), Sum(old)
	mem := vfs.NewMem()
	s := open(t, "store", small(mem))
	put(t, s, old)
	put(t, s, now)
	putDelta(t, s, now, old)
	for n := range 2000 { // so that the two rows of the delta are in different blocks
		set(t, s, Deltas, string(deltaKey(ofContent, Sum(fmt.Append(nil, n)), dictionary)), string(encodeDeltaRow(Delta{dictionary, int64(n), h})))
	}
	if err := errors.Join(pebbleOf(s).Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	files := readFolder(t, mem)
	table := slices.MaxFunc(files.of(".sst"), func(a, b string) int { return len(files[a]) - len(files[b]) })
	row := deltaKey(ofContent, h, dictionary)
	for at := 0; at < len(files[table]); at += 1 << 10 {
		s, err := Open("store", small(files.with(table, flip(files[table], at, 3)).disk(t, nil)))
		if err != nil {
			continue
		}
		defer s.Close()
		if _, err := s.get(s.db, Deltas, row); !errors.Is(err, ErrCorrupt) {
			continue
		}
		if _, err := s.get(s.db, Deltas, deltaKey(ofDictionary, dictionary, h)); err != nil {
			continue
		}
		b := s.NewBatch()
		b.Remove(dictionary)
		if err := b.Commit(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Content(dictionary); !errors.Is(err, ErrNotFound) {
			t.Errorf("the dictionary: %v", err)
		}
		if got := rows(t, s, Blobs, Range{}); len(got) != 1 {
			t.Errorf("there are %d blobs, want the other content", len(got))
		}
		return
	}
	t.Fatal("no change of a bit damages only the block with the row")
}

// TestBadDeltas tests that no delta is stored that does not decode to its content.
func TestBadDeltas(t *testing.T) {
	s := inMemory(t)
	old, now, other := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501), bytes.Repeat([]byte("other text "), 502)
	for _, data := range [][]byte{old, now, other} {
		put(t, s, data)
	}
	sound := encodeDelta(t, now, old)
	sum := Sum(other)
	for name, delta := range map[string][]byte{
		"empty":                     nil,
		"no delta":                  now[:60],
		"cut off":                   sound[:len(sound)-1],
		"with more at its end":      append(bytes.Clone(sound), 0),
		"of another content":        encodeDelta(t, other, old),
		"naming another dictionary": slices.Concat(sound[:8], sum[:], sound[40:]),
	} {
		if stored, err := s.PutDelta(Sum(now), delta); stored || !errors.Is(err, ErrBadDelta) {
			t.Errorf("%s: stored: %v, %v", name, stored, err)
		}
	}
	if got := rows(t, s, Deltas, Range{}); len(got) != 0 {
		t.Errorf("there are %d rows of deltas", len(got))
	}
}

// TestDamagedDeltas tests that DamagedDeltas finds each kind of damage, and that RepairDelta removes it.
func TestDamagedDeltas(t *testing.T) {
	old, now := bytes.Repeat([]byte("dictionary "), 500), bytes.Repeat([]byte("dictionary "), 501)
	h, dictionary := Sum(now), Sum(old)
	remove := func(t *testing.T, s *Store, ns Namespace, key []byte) {
		t.Helper()
		if err := pebbleOf(s).Delete(ns.physical(key), nil); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		deep   bool // whether only decoding finds it
		damage func(t *testing.T, s *Store)
	}{
		{"no content", false, func(t *testing.T, s *Store) { remove(t, s, Contents, h[:]) }},
		{"no dictionary", false, func(t *testing.T, s *Store) { remove(t, s, Contents, dictionary[:]) }},
		{"no list", false, func(t *testing.T, s *Store) { remove(t, s, Deltas, deltaKey(ofContent, h, dictionary)) }},
		{"malformed list", false, func(t *testing.T, s *Store) {
			set(t, s, Deltas, string(deltaKey(ofContent, h, dictionary)), "\x02 of the future")
		}},
		{"no row of the dictionary", false, func(t *testing.T, s *Store) { remove(t, s, Deltas, deltaKey(ofDictionary, dictionary, h)) }},
		{"malformed key", false, func(t *testing.T, s *Store) { set(t, s, Deltas, "d of nothing", "") }},
		{"empty key", false, func(t *testing.T, s *Store) { set(t, s, Deltas, "", "") }},
		{"no bytes", true, func(t *testing.T, s *Store) { remove(t, s, Blobs, deltaBlobKey(h, dictionary)) }},
		{"other bytes", true, func(t *testing.T, s *Store) { set(t, s, Blobs, string(deltaBlobKey(h, dictionary)), "other bytes") }},
		{"wrong bytes", true, func(t *testing.T, s *Store) {
			wrong := encodeDelta(t, old, old)
			set(t, s, Blobs, string(deltaBlobKey(h, dictionary)), string(wrong))
			set(t, s, Deltas, string(deltaKey(ofContent, h, dictionary)), string(encodeDeltaRow(Delta{dictionary, int64(len(wrong)), Sum(wrong)})))
		}},
	} {
		s := inMemory(t)
		put(t, s, old)
		put(t, s, now)
		putDelta(t, s, now, old)
		find := func(deep bool) (damaged []DamagedDelta) {
			err := s.DamagedDeltas(t.Context(), deep, func(d DamagedDelta) error {
				damaged = append(damaged, d)
				return nil
			})
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			return damaged
		}
		if got := find(true); len(got) != 0 {
			t.Errorf("%s: before the damage: %v", tt.name, got)
		}
		tt.damage(t, s)
		if got := find(false); (len(got) > 0) == tt.deep {
			t.Errorf("%s: found without decoding: %v", tt.name, got)
		}
		got := find(true)
		if len(got) == 0 {
			t.Errorf("%s: not found", tt.name)
		}
		for _, d := range got {
			if err := s.RepairDelta(d); err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
		}
		if got := find(true); len(got) != 0 {
			t.Errorf("%s: found again after it was removed: %v", tt.name, got)
		}
	}
}
