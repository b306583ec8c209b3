package cluster

import (
	"errors"
	"fmt"
	"github.com/larder-cdn/larder/logs/replication"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/signing"
)

// shows has a member that leads sign its log and show it, and returns what shows it again.
func shows(t *testing.T, m *member) (again func()) {
	t.Helper()
	signer, err := signing.Open(signing.Options{Dir: t.TempDir(), Origin: origin, Store: m.Shelf.Store, Log: m.Shelf.Log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	again = func() {
		t.Helper()
		if err := signer.Sign(); err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Checkpoint()
		if err == nil {
			err = m.UpdatePublic(t.Context(), signed)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	again()
	return again
}

// Whatever lands late in public/ is put right, and nothing else is touched.
func TestReconcile(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	for _, version := range []string{"1.0.0", "1.0.1", "1.0.2"} {
		if err := one.publish("a", version); err != nil {
			t.Fatal(err)
		}
	}
	one.Withdraw("a", "1.0.0", "malware")
	again := shows(t, one)
	source := &replication.Bucket{Bucket: b}
	hash := func(text string) kvstore.Hash { return kvstore.Sum([]byte(text)) }
	at := func(h kvstore.Hash) string { return publicPrefix + contentPath + h.String() }
	reconciled := func(want Reconciled) {
		t.Helper()
		if got, err := one.Reconcile(ctx); err != nil || got != want {
			t.Errorf("reconciled %+v, want %+v; %v", got, want, err)
		}
	}
	reconciled(Reconciled{})
	alien := hash("not of this log")
	var tile string
	for o, err := range b.List(ctx, "public/log/tile/entries/", "") {
		if err != nil {
			t.Fatal(err)
		}
		tile = o.Key
	}
	for name, do := range map[string]func() error{
		"a late put of a withdrawn content": func() error { return b.Put(ctx, at(hash("a1.0.0")), []byte("a1.0.0")) },
		"a late delete of a live one":       func() error { return b.Delete(ctx, at(hash("a1.0.1"))) },
		"a cut one":                         func() error { return b.Put(ctx, at(hash("a1.0.2")), []byte("a")) },
		"an older key":                      func() error { return b.Put(ctx, "public/log/keys", []byte("old")) },
		"a tile":                            func() error { return b.Delete(ctx, tile) },
		"what is not of the log":            func() error { return b.Put(ctx, at(alien), []byte("x")) },
	} {
		if err := do(); err != nil {
			t.Fatal(name, err)
		}
	}
	reconciled(Reconciled{Added: 4, Removed: 1})
	for _, live := range []string{"a1.0.1", "a1.0.2"} {
		if c, err := source.Content(ctx, replication.Wanted{Hash: hash(live), Limit: 1 << 10}); err != nil || string(c.Coded[0].Bytes) != live {
			t.Errorf("%s: %q, %v", live, c.Coded, err)
		}
	}
	if _, err := source.Content(ctx, replication.Wanted{Hash: hash("a1.0.0"), Limit: 1 << 10}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the withdrawn content is there: %v", err)
	}
	if _, err := source.Content(ctx, replication.Wanted{Hash: alien, Limit: 1 << 10}); err != nil {
		t.Errorf("what nothing names was removed: %v", err)
	}
	if data, err := source.Get(ctx, "/log/keys", 1<<20); err != nil || strings.HasPrefix(string(data), "old") {
		t.Errorf("the keys: %q, %v", data, err)
	}
	if _, err := source.Get(ctx, strings.TrimPrefix(tile, publicPrefix), 1<<20); err != nil {
		t.Error(err)
	}
	reconciled(Reconciled{})
	one.Restore("a", "1.0.0", "it was none")
	again()
	reconciled(Reconciled{})
	if err := b.Delete(ctx, at(hash("a1.0.1"))); err != nil {
		t.Fatal(err)
	}
	one.StepDown()
	if _, err := one.Reconcile(ctx); !errors.As(err, new(*NotWriterError)) {
		t.Errorf("a node that does not write any more mends: %v", err)
	}
}

// Whatever is missing, wherever the parts begin in which contents are compared.
func TestMendInParts(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	for i := range 12 {
		if err := one.publish("a", fmt.Sprint("1.0.", i)); err != nil {
			t.Fatal(err)
		}
	}
	shows(t, one)
	var keys []string
	for o, err := range b.List(ctx, publicPrefix+contentPath, "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, o.Key)
	}
	if len(keys) < 20 {
		t.Fatalf("%d contents are shown", len(keys))
	}
	for atOnce := 1; atOnce < 5; atOnce++ {
		for from := range 3 {
			want := 0
			for i := from; i < len(keys); i += 3 {
				want++
				if err := b.Delete(ctx, keys[i]); err != nil {
					t.Fatal(err)
				}
			}
			for _, want := range []int{want, 0} {
				m := &reconciliation{node: one.Node, publication: publication{PublicCopy: one.publicCopy(), ctx: ctx}}
				if err := m.reconcileContents(atOnce); err != nil || m.done != (Reconciled{Added: want}) {
					t.Errorf("%d at once: mended %+v, want %d; %v", atOnce, m.done, want, err)
				}
			}
		}
	}
}

// A node that takes over removes the packs that no commit names, of the nodes before and no other.
func TestCollectPacks(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	if err := one.publish("a", "1.0.0"); err != nil {
		t.Fatal(err)
	}
	orphan := func(epoch int64, text string) string {
		key := packPrefix(epoch) + kvstore.Sum([]byte(text)).String()
		if err := b.Put(ctx, key, []byte(text)); err != nil {
			t.Fatal(err)
		}
		return key
	}
	left := orphan(1, "left")
	if packs, _, err := one.CollectPacks(ctx); packs != 0 || err != nil { // its own may be under way
		t.Errorf("collected %d, %v", packs, err)
	}
	two := join(t, b, "two")
	if _, _, err := two.CollectPacks(ctx); !errors.As(err, new(*NotWriterError)) {
		t.Errorf("a node that does not write collects: %v", err)
	}
	two.lead(t)
	if err := two.publish("a", "1.0.1"); err != nil {
		t.Fatal(err)
	}
	own, later := orphan(2, "own"), orphan(3, "later")
	if packs, size, err := two.CollectPacks(ctx); packs != 1 || size != 4 || err != nil {
		t.Errorf("collected %d of %d bytes, %v", packs, size, err)
	}
	for key, stays := range map[string]bool{left: false, own: true, later: true} {
		if _, _, err := b.Get(ctx, key, 1<<10); (err == nil) != stays {
			t.Errorf("%s: %v", key, err)
		}
	}
	three := join(t, b, "three") // all that commits name is there
	three.catchUp(t)
	same(t, one.caughtUp(t), two, three)

	// A machine that brings its log into another bucket knows the packs of that.
	other, err := bucket.OpenFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	moved, err := Open(ctx, options(other, two.Shelf, "two"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // in the second epoch it looks at the packs of the first
		if err := moved.Lead(ctx, AnyEpoch); err != nil {
			t.Fatal(err)
		}
	}
	if packs, _, err := moved.CollectPacks(ctx); packs != 0 || err != nil {
		t.Errorf("collected %d that are in use, %v", packs, err)
	}
	four := join(t, other, "four")
	four.catchUp(t)
	same(t, four, two)
}

func (m *member) caughtUp(t *testing.T) *member {
	t.Helper()
	m.catchUp(t)
	return m
}

// Partial tiles stay until the full one is there, and go then; the log can be read through the bucket all the while.
func TestPartialTilesAreRemoved(t *testing.T) {
	ctx, b := t.Context(), folder(t)
	one := join(t, b, "one")
	one.lead(t)
	if err := one.publish("a", "0.0.1"); err != nil {
		t.Fatal(err)
	}
	again := shows(t, one)
	partial := func() (n int) {
		t.Helper()
		for o, err := range b.List(ctx, "public/log/tile/", "") {
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(o.Key, ".p/") {
				n++
			}
		}
		return n
	}
	reconciled := func(want Reconciled) {
		t.Helper()
		if got, err := one.Reconcile(ctx); err != nil || got != want {
			t.Errorf("reconciled %+v, want %+v; %v", got, want, err)
		}
	}
	grow := func(size int64) {
		t.Helper()
		for i := 0; one.Shelf.Log.Checkpoint().Size < size; i++ {
			if err := one.publish("a", fmt.Sprintf("%d.%d.0", size, i)); err != nil {
				t.Fatal(err)
			}
		}
		again()
	}
	grow(200)
	before := partial()
	reconciled(Reconciled{})
	if partial() != before {
		t.Error("partial tiles are gone that no full tile replaces")
	}
	grow(300)
	if err := b.Delete(ctx, "public/log/tile/0/000"); err != nil { // as where its put was lost
		t.Fatal(err)
	}
	entries := before / 2 // as many of hashes, which stay until their full tile is there
	reconciled(Reconciled{Added: 1, Partial: entries})
	reconciled(Reconciled{Partial: before - entries})
	reconciled(Reconciled{})
	source := &replication.Bucket{Bucket: b}
	for _, path := range []string{"/log/tile/0/000", "/log/tile/entries/000"} {
		if _, err := source.Get(ctx, path, 1<<20); err != nil {
			t.Error(err)
		}
	}
}
