package kvstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// text returns bytes that every coding makes smaller, but not so small that they are kept in
// a table.
func text(seed uint64, n int) []byte {
	return []byte(fmt.Sprintf("%x", noise(seed, n/2)))
}

func TestRepair(t *testing.T) {
	identity := text(1, 20_000)
	h := Sum(identity)
	br, gz, raw := encode(t, coding.Brotli, coding.Quick, identity), encode(t, coding.Gzip, coding.Quick, identity), Coded{coding.Identity, identity}
	other := encode(t, coding.Brotli, coding.Quick, text(2, 20_000))
	flipped := func(c Coded) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			set(t, s, Blobs, string(blobKey(h, c.Coding)), string(flip(c.Bytes, len(c.Bytes)/2, 3)))
		}
	}
	gone := func(c Coded) func(*testing.T, *Store) {
		return func(t *testing.T, s *Store) {
			if err := pebbleOf(s).Delete(Blobs.physical(blobKey(h, c.Coding)), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
	}
	badRow := func(t *testing.T, s *Store) { set(t, s, Contents, string(h[:]), "\x01\x00") }
	type damages []func(*testing.T, *Store)
	for _, test := range []struct {
		name   string
		stored []Coded
		damage damages
		want   []coding.Coding // dropped
		left   []coding.Coding
	}{
		{"nothing", []Coded{br, gz}, nil, nil, []coding.Coding{coding.Brotli, coding.Gzip}},
		{"one of two", []Coded{br, gz}, damages{flipped(br)}, []coding.Coding{coding.Brotli}, []coding.Coding{coding.Gzip}},
		{"the other, gone", []Coded{br, gz}, damages{gone(gz)}, []coding.Coding{coding.Gzip}, []coding.Coding{coding.Brotli}},
		{"identity", []Coded{br, gz, raw}, damages{flipped(raw)}, []coding.Coding{coding.Identity}, []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}},
		{"all but identity", []Coded{br, gz, raw}, damages{flipped(br), gone(gz)}, []coding.Coding{coding.Brotli, coding.Gzip}, []coding.Coding{coding.Identity}},
		{"another content's bytes", []Coded{other, gz}, nil, []coding.Coding{coding.Brotli}, []coding.Coding{coding.Gzip}},
		{"the row", []Coded{br, gz}, damages{badRow}, nil, []coding.Coding{coding.Brotli, coding.Gzip}},
		{"the row and a coding", []Coded{br, gz}, damages{badRow, flipped(br)}, []coding.Coding{coding.Brotli}, []coding.Coding{coding.Gzip}},
		{"everything", []Coded{br, gz, raw}, damages{flipped(br), gone(gz), flipped(raw)}, []coding.Coding{coding.Brotli, coding.Gzip, coding.Identity}, nil},
		{"everything and the row", []Coded{br, raw}, damages{flipped(br), flipped(raw), badRow}, []coding.Coding{coding.Brotli, coding.Identity}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			damaged := func() *Store {
				s := inMemory(t)
				if err := s.PutContent(h, int64(len(identity)), true, test.stored); err != nil {
					t.Fatal(err)
				}
				for _, damage := range test.damage {
					damage(t, s)
				}
				return s
			}
			s := damaged()
			before := slices.Concat(rows(t, s, Contents, Range{}), rows(t, s, Blobs, Range{}))
			dropped, err := s.RepairContent(h)
			slices.Sort(dropped)
			if test.left == nil {
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), h.String()) || dropped != nil {
					t.Errorf("RepairContent: %v, %v", dropped, err)
				}
				if after := slices.Concat(rows(t, s, Contents, Range{}), rows(t, s, Blobs, Range{})); !slices.Equal(before, after) {
					t.Error("what cannot be repaired was changed")
				}
			} else {
				if err != nil || !slices.Equal(dropped, test.want) {
					t.Errorf("RepairContent: %v, %v, want %v", dropped, err, test.want)
				}
				wantSound(t, s, identity, test.left...)
				if c, _ := s.Content(h); c.Squeezed != (test.name == "nothing") {
					t.Errorf("squeezed: %v", c.Squeezed)
				}
				// The squeezer's codings take the place of what was dropped.
				if err := s.ImproveContent(h, int64(len(identity)), true, []Coded{br, gz}); err != nil {
					t.Error(err)
				}
				if _, _, err := s.Coded(h, coding.Brotli); err != nil {
					t.Error(err)
				}
			}
			s = damaged()
			if err := s.RestoreContent(h, identity[1:]); err == nil || !strings.Contains(err.Error(), "another one") {
				t.Errorf("RestoreContent with another content: %v", err)
			}
			if err := s.RestoreContent(h, identity); err != nil {
				t.Errorf("RestoreContent: %v", err)
			}
			left := append(slices.DeleteFunc(slices.Clone(test.left), func(c coding.Coding) bool { return c == coding.Identity }), coding.Identity)
			wantSound(t, s, identity, left...)
			if c, _ := s.Content(h); c.Squeezed {
				t.Error("it counts as squeezed")
			}
		})
	}
	s := inMemory(t)
	if _, err := s.RepairContent(h); !errors.Is(err, ErrNotFound) {
		t.Errorf("RepairContent of a content that is not there: %v", err)
	}
	for _, identity := range [][]byte{identity, nil} {
		if err := s.RestoreContent(Sum(identity), identity); err != nil {
			t.Error(err)
		}
		wantSound(t, s, identity, coding.Identity)
	}
}

// wantSound fails unless a content is stored in these codings, all of them right, and no
// blob beside them.
func wantSound(t *testing.T, s *Store, identity []byte, codings ...coding.Coding) {
	t.Helper()
	h := Sum(identity)
	content, err := s.Content(h)
	if err != nil {
		t.Error(err)
		return
	}
	var have []coding.Coding
	for _, r := range content.Representations {
		have = append(have, r.Coding)
		_, coded, err := s.Coded(h, r.Coding)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := coding.Decode(r.Coding, coded, content.Size); err != nil || !bytes.Equal(got, identity) {
			t.Errorf("in %s it has other bytes: %v", r.Coding, err)
		}
	}
	if !slices.Equal(have, codings) {
		t.Errorf("content %s is stored in %v, want %v", h, have, codings)
	}
	if blobs := rows(t, s, Blobs, Range{Prefix: h[:]}); len(blobs) != len(codings) {
		t.Errorf("content %s has %d blobs, want %d", h, len(blobs), len(codings))
	}
}

// A store whose contents are in blob files, and which has not read them.
func unread(t *testing.T, contents int) (s *Store, mem *vfs.MemFS, identities [][]byte) {
	t.Helper()
	mem = vfs.NewMem()
	s = open(t, "store", small(mem))
	for i := range contents {
		identity := text(uint64(i), 20_000+1000*i)
		coded := []Coded{encode(t, coding.Brotli, coding.Quick, identity), encode(t, coding.Gzip, coding.Quick, identity)}
		if i%4 == 0 {
			coded = []Coded{{coding.Identity, identity}}
		}
		if err := s.PutContent(Sum(identity), int64(len(identity)), true, coded); err != nil {
			t.Fatal(err)
		}
		identities = append(identities, identity)
	}
	if err := pebbleOf(s).Flush(); err != nil {
		t.Fatal(err)
	}
	return s, mem, identities
}

// repairAll repairs what can be repaired, and restores the rest.
func repairAll(t *testing.T, s *Store, identities [][]byte) (repaired, restored int) {
	t.Helper()
	for _, identity := range identities {
		dropped, err := s.RepairContent(Sum(identity))
		if errors.Is(err, ErrCorrupt) {
			restored++
			err = s.RestoreContent(Sum(identity), identity)
		} else if len(dropped) > 0 {
			repaired++
		}
		if err != nil {
			t.Error(err)
		}
		if got, err := s.Identity(Sum(identity)); err != nil || !bytes.Equal(got, identity) {
			t.Errorf("after that: %v", err)
		}
	}
	return repaired, restored
}

// Blob files are damaged on the disk of a running store. Once each content is repaired or
// restored, no table names what is damaged, and a compaction of everything succeeds.
func TestRepairBlobFiles(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func(t *testing.T, mem *vfs.MemFS)
	}{
		{"a bit", func(t *testing.T, mem *vfs.MemFS) { damage(t, mem, "*.blob", 0.3) }},
		{"bits", func(t *testing.T, mem *vfs.MemFS) {
			for i := range 20 {
				damage(t, mem, "*.blob", float64(i)/20)
			}
		}},
		{"the end", func(t *testing.T, mem *vfs.MemFS) { damage(t, mem, "*.blob", 0.99999) }},
		{"missing", func(t *testing.T, mem *vfs.MemFS) {
			names, err := mem.List("store")
			for _, name := range names {
				if strings.HasSuffix(name, ".blob") {
					err = errors.Join(err, mem.Remove("store/"+name))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, mem, identities := unread(t, 16)
			test.damage(t, mem)
			repaired, restored := repairAll(t, s, identities)
			t.Logf("%d repaired, %d restored", repaired, restored)
			if repaired+restored == 0 {
				t.Error("nothing was damaged")
			}
			if err := pebbleOf(s).Compact(t.Context(), []byte{0}, []byte{255}, false); err != nil {
				t.Errorf("compaction: %v", err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, "store", small(mem))
			if repaired, restored := repairAll(t, s, identities); repaired+restored > 0 {
				t.Errorf("after a restart %d contents are damaged", repaired+restored)
			}
		})
	}
}

// Where a table is damaged, what is written again can be read, by its key. The table goes on
// being damaged, and Pebble tries for ever to compact it, until the whole store is written anew.
func TestRestoreAboveADamagedTable(t *testing.T) {
	s, mem, identities := unread(t, 16)
	damage(t, mem, "*.sst", 0.1)
	_, restored := repairAll(t, s, identities)
	if restored == 0 {
		t.Error("nothing was damaged")
	}
	compacting, end := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer end()
	if err := pebbleOf(s).Compact(compacting, []byte{0}, []byte{255}, false); err == nil {
		t.Error("the damaged table was compacted")
	}
}

// What a reader finds damaged is repaired, or counts as lost until it is restored or removed.
func TestMetDamage(t *testing.T) {
	s, mem, identities := unread(t, 16)
	for i := range 20 {
		damage(t, mem, "*.blob", float64(i)/20)
	}
	for range 3 {
		for _, identity := range identities {
			if got, err := s.Identity(Sum(identity)); !errors.Is(err, ErrCorrupt) && (err != nil || !bytes.Equal(got, identity)) {
				t.Error(err)
			}
		}
		s.repairer.done.Wait()
	}
	repaired, lost := s.repairer.counts()
	if repaired == 0 || lost < 2 {
		t.Fatalf("%d contents were repaired, and %d are lost", repaired, lost)
	}
	for _, identity := range identities {
		h := Sum(identity)
		if _, err := s.Identity(h); err == nil {
			continue
		}
		if lost%2 == 0 {
			if err := s.RestoreContent(h, identity); err != nil {
				t.Error(err)
			}
		} else {
			b := s.NewBatch()
			b.Remove(h)
			if err := b.Commit(); err != nil {
				t.Error(err)
			}
		}
		lost--
		if _, now := s.repairer.counts(); now != lost {
			t.Errorf("%d contents count as lost, want %d", now, lost)
		}
	}
}

// TestWaitingRepairs tests that a bounded number of contents waits for repair, and that a later reader of another one tries again.
func TestWaitingRepairs(t *testing.T) {
	s := inMemory(t)
	m := &s.repairer
	content := func(n int) Hash { return Sum(fmt.Append(nil, n)) }
	wantKnown := func(when string, want int) {
		t.Helper()
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.known) != want {
			t.Errorf("%s %d contents are being repaired, want %d", when, len(m.known), want)
		}
	}
	m.repairing.Lock()
	for n := range maxWaiting + 1 {
		s.repairLater(content(n))
		s.repairLater(content(n))
	}
	wantKnown("while all wait", maxWaiting)
	m.repairing.Unlock()
	m.done.Wait()
	wantKnown("afterwards", 0) // the store has none of them
	m.repairing.Lock()
	s.repairLater(content(maxWaiting))
	wantKnown("after the next read", 1)
	m.repairing.Unlock()
	m.done.Wait()
}

// Readers, the squeezer and the eraser go on while contents are repaired and restored.
func TestRepairBesideOthers(t *testing.T) {
	s, mem, identities := unread(t, 12)
	damage(t, mem, "*.blob", 0.3)
	damage(t, mem, "*.blob", 0.7)
	best := make([][]Coded, len(identities))
	for i, identity := range identities {
		best[i] = []Coded{encode(t, coding.Brotli, coding.Best, identity), encode(t, coding.Gzip, coding.Best, identity)}
	}
	var others sync.WaitGroup
	each := func(do func(i int, h Hash, identity []byte) error) {
		others.Go(func() {
			for range 5 {
				for i, identity := range identities {
					if err := do(i, Sum(identity), identity); err != nil {
						t.Errorf("content %d: %v", i, err)
					}
				}
			}
		})
	}
	each(func(i int, h Hash, identity []byte) error {
		got, err := s.Identity(h)
		if err == nil && !bytes.Equal(got, identity) {
			return errors.New("other bytes")
		}
		if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
	each(func(i int, h Hash, identity []byte) error {
		err := s.ImproveContent(h, int64(len(identity)), true, best[i])
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
	for range 2 {
		each(func(i int, h Hash, identity []byte) error {
			_, err := s.RepairContent(h)
			if errors.Is(err, ErrCorrupt) && i%3 > 0 {
				return s.RestoreContent(h, identity)
			}
			if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) {
				return nil
			}
			return err
		})
	}
	each(func(i int, h Hash, _ []byte) error {
		if i%3 > 0 {
			return nil
		}
		b := s.NewBatch()
		defer b.Close()
		b.Remove(h)
		return b.Commit()
	})
	others.Wait()
	for i, identity := range identities {
		got, err := s.Identity(Sum(identity))
		if i%3 == 0 {
			if !errors.Is(err, ErrNotFound) {
				t.Errorf("content %d was erased, and then: %v", i, err)
			}
		} else if err != nil || !bytes.Equal(got, identity) {
			t.Errorf("content %d: %v", i, err)
		}
	}
	if err := pebbleOf(s).Compact(t.Context(), []byte{0}, []byte{255}, false); err != nil {
		t.Errorf("compaction: %v", err)
	}
}

// Pebble panics where it cannot read what it rewrites.
func TestRewriteOfADamagedBlobFile(t *testing.T) {
	mem := vfs.NewMem()
	o := small(mem)
	o.rewriteAge = time.Nanosecond
	o.reclaimBytes = 1 << 10
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	const contents = 60
	identity := func(i int) []byte { return noise(uint64(i), 30_000) }
	for i := range contents {
		put(t, s, identity(i))
	}
	if err := pebbleOf(s).Flush(); err != nil {
		t.Fatal(err)
	}
	for _, part := range []float64{0.2, 0.5, 0.9} {
		damage(t, mem, "*.blob", part)
	}
	b := s.NewBatch()
	for i := range contents {
		if i%2 == 0 {
			b.Remove(Sum(identity(i)))
		}
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(2 * time.Minute); !s.guard.stuck.Load() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if !s.guard.stuck.Load() {
		t.Fatal("nothing was rewritten")
	}
	for i := 1; i < contents; i += 2 {
		if err := s.RestoreContent(Sum(identity(i)), identity(i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, "store", o)
	for i := 1; i < contents; i += 2 {
		if got, err := s.Identity(Sum(identity(i))); err != nil || !bytes.Equal(got, identity(i)) {
			t.Errorf("content %d: %v", i, err)
		}
	}
	if err := pebbleOf(s).Compact(t.Context(), []byte{0}, []byte{255}, false); err != nil {
		t.Error(err)
	}
}
