package cluster

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// What one node squeezes, all get, once and never larger; whatever is in the bucket, no content changes by it.
func TestForms(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	text := strings.Repeat("let it be squeezed; ", 500)
	one.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": text, "b.js": "gone"})
	two.catchUp(t)
	h := kvstore.Sum([]byte(text))
	queued := func(m *member) (n int) {
		t.Helper()
		for _, err := range m.Shelf.Store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.Repaired}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
		return n
	}
	rough := queued(two)
	if rough == 0 {
		t.Error("a node that may have to squeeze one day does not know what")
	}
	length := func(m *member) int64 {
		t.Helper()
		c, err := m.Shelf.Store.Content(h)
		if err != nil {
			t.Fatal(err)
		}
		return c.Representations[0].Length
	}
	before := length(two)
	small, err := coding.Encode(coding.Brotli, coding.Best, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(m *member) {
		t.Helper()
		err := m.Shelf.Store.ImproveContent(h, int64(len(text)), true, []kvstore.Coded{{Coding: coding.Brotli, Bytes: small}})
		if err == nil {
			err = m.QueueEncodings(h)
		}
		if err == nil {
			err = m.QueueEncodings(kvstore.Sum([]byte("never stored")))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	share := func(m *member, want int) {
		t.Helper()
		if shared, err := m.ShareEncodings(ctx); shared != want || err != nil {
			t.Errorf("shared %d, want %d; %v", shared, want, err)
		}
	}
	take := func(m *member, want int64) {
		t.Helper()
		if next, err := m.ApplyEncodings(ctx); next != want || err != nil {
			t.Errorf("the next codings are %d, want %d; %v", next, want, err)
		}
	}
	take(two, 0)
	squeeze(one)
	share(one, 2)
	share(one, 0)
	take(two, 1)
	if got := length(two); got != int64(len(small)) || got >= before {
		t.Errorf("the other node has %d bytes; it had %d, and the best is %d", got, before, len(small))
	}
	if got := queued(two); got != rough-1 {
		t.Errorf("%d contents wait to be squeezed, want %d", got, rough-1)
	}
	squeeze(two) // two nodes find the same
	share(two, 2)
	take(one, 2)
	three := join(t, b, "three") // an empty node takes codings of what it has yet to follow
	take(three, 2)
	if got := length(three); got != int64(len(small)) {
		t.Errorf("an empty node has %d bytes", got)
	}
	same(t, one, two, three)

	// Codings of other bytes are left out.
	p := packer{store: one.Shelf.Store, full: func(pack []byte) error {
		pack[len(pack)-1] ^= 1
		_, err := b.Create(ctx, encodingsKey(2), pack)
		return err
	}}
	if err := p.add(h); err != nil {
		t.Fatal(err)
	}
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	take(two, 3)
	same(t, one, two, three)
}

// forms returns how many packs of smaller codings a bucket has.
func forms(t *testing.T, b bucket.Bucket) (packs int) {
	t.Helper()
	for _, err := range b.List(t.Context(), "forms/", "") {
		if err != nil {
			t.Fatal(err)
		}
		packs++
	}
	return packs
}

// TestSharedDeltas tests that all nodes get the deltas that one has made, also an empty node and one whose bucket is new, and that none stores a wrong one.
func TestSharedDeltas(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	old, now := testkit.VersionedScript("1.0.0"), testkit.VersionedScript("1.0.1")
	one.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": old})
	one.Publish("a", "1.0.1", "a.js", map[string]string{"a.js": now})
	two.catchUp(t)
	h := kvstore.Sum([]byte(now))
	delta, err := coding.EncodeDelta([]byte(old), []byte(now))
	if err != nil {
		t.Fatal(err)
	}
	if stored, err := one.Shelf.Store.PutDelta(h, delta); err != nil || !stored {
		t.Fatal(stored, err)
	}
	wrong, err := coding.EncodeDelta([]byte(old), []byte(old))
	if err != nil {
		t.Fatal(err)
	}
	p := packer{store: one.Shelf.Store, full: func(pack []byte) error {
		_, err := b.Create(ctx, encodingsKey(0), pack)
		return err
	}}
	p.index.Deltas, p.deltas = []packDelta{{h, int64(len(wrong))}}, wrong
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	stored := func(m *member, want int) {
		t.Helper()
		if _, err := m.ApplyEncodings(ctx); err != nil {
			t.Fatal(err)
		}
		deltas, err := m.Shelf.Store.Deltas(h)
		if err != nil || len(deltas) != want {
			t.Errorf("%s has the deltas %v, want %d; %v", m.URL, deltas, want, err)
		}
	}
	stored(two, 0)
	share := func(m *member, want int) {
		t.Helper()
		if shared, err := m.ShareEncodings(ctx); shared != want || err != nil {
			t.Errorf("%s shares %d, want %d; %v", m.URL, shared, want, err)
		}
	}
	if err := one.QueueDelta(h, kvstore.Sum([]byte(old))); err != nil {
		t.Fatal(err)
	}
	share(one, 1)
	pack, _, err := b.Get(ctx, encodingsKey(1), maxPack)
	if err != nil || len(pack) > len(delta)+200 {
		t.Errorf("the pack of a delta of %d bytes has %d; %v", len(delta), len(pack), err)
	}
	stored(two, 1)
	stored(join(t, b, "three"), 1)

	// Nodes that are moved to a new bucket share their deltas with each other, once.
	moved := folder(t)
	again := func(m *member, name string) *member {
		t.Helper()
		n, err := Open(ctx, options(moved, m.Shelf, name))
		if err != nil {
			t.Fatal(err)
		}
		return &member{n, m.Shelf}
	}
	one, two = again(one, "one"), again(two, "two")
	one.lead(t)
	share(one, 1)
	two.catchUp(t)
	share(two, 0)
	stored(join(t, moved, "four"), 1)
	off := options(moved, testkit.NewShelf(t), "off")
	off.Dictionaries = false
	n, err := Open(ctx, off)
	if err != nil {
		t.Fatal(err)
	}
	stored(&member{n, &testkit.Shelf{Store: off.Store}}, 0)
	if got := forms(t, moved); got != 1 {
		t.Errorf("the new bucket has %d packs", got)
	}
}

// TestMadeDeltasAreRecorded tests that the size up to which deltas are made is recorded only if the bucket has all deltas.
func TestMadeDeltasAreRecorded(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	made := func(want int64) {
		t.Helper()
		if size, err := two.MadeDeltas(ctx); size != want || err != nil {
			t.Errorf("the bucket has the size %d, %v; want %d", size, err, want)
		}
	}
	record := func(size int64, want bool) {
		t.Helper()
		if recorded, err := one.RecordMadeDeltas(ctx, size); recorded != want || err != nil {
			t.Errorf("size %d recorded: %t, %v; want %t", size, recorded, err, want)
		}
	}
	made(0)
	record(3, true)
	made(3)
	if err := one.QueueDelta(kvstore.Sum([]byte("new")), kvstore.Sum([]byte("old"))); err != nil {
		t.Fatal(err)
	}
	record(5, false)
	made(3)
	if _, err := one.ShareEncodings(ctx); err != nil {
		t.Fatal(err)
	}
	record(5, true)
	made(5)
	if err := b.Put(ctx, madeDeltasKey, []byte("five")); err != nil {
		t.Fatal(err)
	}
	if size, err := two.MadeDeltas(ctx); err == nil {
		t.Errorf("a record that is no number is the size %d", size)
	}
}

// TestTooManyDeltas tests that a pack is refused that has more deltas of a content than a store takes.
func TestTooManyDeltas(t *testing.T) {
	var pack []byte
	p := packer{full: func(packed []byte) error { pack = packed; return nil }}
	for range kvstore.MaxDeltas + 1 {
		p.index.Deltas = append(p.index.Deltas, packDelta{})
	}
	if err := p.flush(); err != nil {
		t.Fatal(err)
	}
	taken := 0
	err := unpack(pack, nil, func(kvstore.Hash, []byte) error { taken++; return nil })
	if err == nil || taken != kvstore.MaxDeltas {
		t.Errorf("%d deltas were taken; %v", taken, err)
	}
}

// putNoise stores four contents that note smaller codings, two to a pack, and returns them in their order.
func (m *member) putNoise(t *testing.T) (all []kvstore.Hash) {
	t.Helper()
	for i := range byte(4) {
		noise := make([]byte, fullPack/2-1000)
		rand.NewChaCha8([32]byte{i}).Read(noise) //nolint:errcheck // it never fails
		h := kvstore.Sum(noise)
		err := put(m.Shelf.Store, string(noise))
		if err == nil {
			err = m.QueueEncodings(h)
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	slices.SortFunc(all, func(a, b kvstore.Hash) int { return bytes.Compare(a[:], b[:]) })
	return all
}

// A damaged content is left out; the others go into the bucket once.
func TestFormsOfDamagedContents(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	all := one.putNoise(t)
	batch := one.Shelf.Store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Contents, all[3][:], []byte{255})
	if err := batch.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{4, 0} {
		if shared, err := one.ShareEncodings(ctx); shared != want || err != nil {
			t.Errorf("shared %d, want %d; %v", shared, want, err)
		}
	}
	if got := forms(t, b); got != 2 {
		t.Errorf("the bucket has %d packs", got)
	}
}

// A refusing bucket refuses to create some objects.
type refusing struct {
	bucket.Bucket
	refuse func(key string) bool
}

var errRefused = errors.New("refused")

func (b *refusing) Create(ctx context.Context, key string, data []byte) (bucket.Version, error) {
	if b.refuse != nil && b.refuse(key) {
		return "", errRefused
	}
	return b.Bucket.Create(ctx, key, data)
}

// A pack that is in the bucket is not put there again because a later one could not be.
func TestFormsAfterFailure(t *testing.T) {
	ctx := t.Context()
	b := &refusing{Bucket: folder(t)}
	one := join(t, b, "one")
	one.lead(t)
	one.putNoise(t)
	b.refuse = func(key string) bool { return key == encodingsKey(1) }
	if shared, err := one.ShareEncodings(ctx); !errors.Is(err, errRefused) {
		t.Errorf("shared %d, %v", shared, err)
	}
	b.refuse = nil
	if shared, err := one.ShareEncodings(ctx); shared != 2 || err != nil {
		t.Errorf("shared %d, %v", shared, err)
	}
	if got := forms(t, b); got != 2 {
		t.Errorf("the bucket has %d packs", got)
	}
}

// A node that has yet to bring its log into a bucket shares nothing, and does not wait for it.
func TestFormsWhileFounding(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, folder(t), "one")
	one.lead(t)
	if err := one.publish("a", "1.0.0"); err != nil {
		t.Fatal(err)
	}
	if err := one.QueueEncodings(kvstore.Sum([]byte("own.js"))); err != nil {
		t.Fatal(err)
	}
	moved, err := Open(ctx, options(b, one.Shelf, "one"))
	if err != nil {
		t.Fatal(err)
	}
	if shared, err := moved.ShareEncodings(ctx); shared != 0 || err != nil || !moved.Bootstrapping() {
		t.Errorf("shared %d, %v", shared, err)
	}
	if got := forms(t, b); got != 0 {
		t.Errorf("the bucket has %d packs", got)
	}
}

// What a node has squeezed for the one that writes is taken if it decodes to that content, and not else.
func TestSqueezedElsewhere(t *testing.T) {
	b := folder(t)
	one, two := join(t, b, "one"), join(t, b, "two")
	one.lead(t)
	text := strings.Repeat("let it be squeezed; ", 500)
	one.Publish("a", "1.0.0", "a.js", map[string]string{"a.js": text})
	two.catchUp(t)
	h := kvstore.Sum([]byte(text))
	small, err := coding.Encode(coding.Brotli, coding.Best, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := two.Shelf.Store.ImproveContent(h, int64(len(text)), true, []kvstore.Coded{{Coding: coding.Brotli, Bytes: small}}); err != nil {
		t.Fatal(err)
	}
	packed, err := two.PackContent(h)
	if err != nil {
		t.Fatal(err)
	}
	taken := 0
	take := func(got kvstore.Hash, size int64, coded []kvstore.Coded) error {
		taken++
		if got != h || size != int64(len(text)) || !bytes.Equal(coded[0].Bytes, small) {
			t.Errorf("it takes %v of %d bytes: %v", got, size, coded)
		}
		return nil
	}
	if err := one.UnpackContents(packed, take); err != nil || taken != 1 {
		t.Errorf("%d taken: %v", taken, err)
	}
	for i := len(packed) - len(small); i < len(packed); i++ {
		wrong := bytes.Clone(packed)
		wrong[i] ^= 1
		if err := one.UnpackContents(wrong, take); err == nil {
			t.Errorf("taken with byte %d changed", i)
		}
	}
}
