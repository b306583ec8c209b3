package logs_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// liveRig is a log whose releases come and go.
type liveRig struct {
	*testing.T
	store *kvstore.Store
	log   *logs.Log
	next  int
	live  []int
}

func newLiveRig(t *testing.T) *liveRig {
	t.Helper()
	store := openStore(t)
	l, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	return &liveRig{T: t, store: store, log: l}
}

func entryOf(kind logs.Kind, n int) logs.Entry {
	return logs.Entry{Kind: kind, Time: noon, Actor: "bot", Package: "vue", Version: fmt.Sprint(n), Manifest: kvstore.Sum(fmt.Append(nil, n))}
}

// update publishes releases, and withdraws one, in one write.
func (r *liveRig) update(publish int, withdraw bool) {
	r.Helper()
	err := r.log.Update(func(tx *logs.Tx) error {
		for range publish {
			if _, err := tx.Append(entryOf(logs.Published, r.next)); err != nil {
				return err
			}
			r.live = append(r.live, r.next)
			r.next++
		}
		if withdraw {
			last := len(r.live) - 1
			if _, err := tx.Append(entryOf(logs.Withdrawn, r.live[last])); err != nil {
				return err
			}
			r.live = r.live[:last]
		}
		_, err := tx.Append(entryOf(logs.Detected, -1))
		return err
	})
	if err != nil {
		r.Fatal(err)
	}
}

// sign notes a size as signed, as a signer does.
func (r *liveRig) sign(size int64) {
	r.Helper()
	b := r.store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, kvstore.Key("signed"), fmt.Appendf(nil, "origin\n%d\nhash\n\n— origin x\n", size))
	if err := b.Commit(); err != nil {
		r.Fatal(err)
	}
}

// replayed compares the root in every entry with the map that the entries make, and returns
// the map after each.
func (r *liveRig) replayed() *logs.LiveMap {
	r.Helper()
	m := logs.NewLiveMap()
	for e, err := range logs.Entries(r.store, 0) {
		if err != nil {
			r.Fatal(err)
		}
		if err := logs.ApplyLive(m, e.Index, e.Entry); err != nil {
			r.Fatal(err)
		}
		if m.Root() != e.Live {
			r.Fatalf("entry %d has the root %s, want %s", e.Index, e.Live, m.Root())
		}
	}
	return m
}

func (r *liveRig) rows() (n int) {
	r.Helper()
	for _, err := range r.store.Scan(kvstore.LogLive, kvstore.Range{}) {
		if err != nil {
			r.Fatal(err)
		}
		n++
	}
	return n
}

func TestEachEntryHasTheRootOfWhatIsLive(t *testing.T) {
	r := newLiveRig(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 200 {
		r.update(random.IntN(4), len(r.live) > 0 && random.IntN(3) == 0)
		if i%20 == 0 { // a log that was opened again goes on
			l, err := logs.Open(r.store)
			if err != nil {
				t.Fatal(err)
			}
			r.log = l
		}
	}
	if m := r.replayed(); m.Len() != len(r.live) {
		t.Errorf("%d releases are live, want %d", m.Len(), len(r.live))
	}
}

// TestProofsForWhatIsSigned has the log grow far beyond what is signed and shown, before and
// after a start.
func TestProofsForWhatIsSigned(t *testing.T) {
	r := newLiveRig(t)
	r.update(50, false)
	shown := r.log.Checkpoint().Size
	r.sign(shown)
	lives := len(r.live)
	check := func() {
		t.Helper()
		m, err := logs.ReadLiveMap(r.store, shown)
		if err != nil {
			t.Fatal(err)
		}
		for n := range r.next {
			release, err := m.Get(logs.LiveKey("vue", fmt.Sprint(n)))
			if err != nil {
				t.Fatal(err)
			}
			if (release != nil) != (n < lives) {
				t.Fatalf("after %d entries, release %d is %+v", shown, n, release)
			}
		}
	}
	for i := range 300 {
		r.update(20, i%2 == 0) // over 4096 entries in all
		if i == 100 {
			l, err := logs.Open(r.store)
			if err != nil {
				t.Fatal(err)
			}
			r.log = l
		}
		if i == 200 {
			r.sign(r.log.Checkpoint().Size) // signed, and not shown yet
		}
	}
	check()
}

// TestWhatWasReplacedGoes compares how much is stored with what a map takes.
func TestWhatWasReplacedGoes(t *testing.T) {
	for _, signed := range []bool{false, true} {
		r := newLiveRig(t)
		var sizes []int64
		write := func() {
			r.update(8, len(sizes) > 20)
			if sizes = append(sizes, r.log.Checkpoint().Size); signed && len(sizes)%7 == 0 {
				r.sign(sizes[len(sizes)-1])
			}
		}
		for range 600 {
			write()
		}
		before := r.rows()
		for range 300 {
			write()
		}
		// A release more takes two rows. If what was replaced stayed, there would be some
		// 27,000 rows more.
		if after := r.rows(); after > before+12_000 {
			t.Errorf("signed %v: %d rows, and after some more writes %d", signed, before, after)
		}
		if _, err := logs.ReadLiveMap(r.store, sizes[len(sizes)-400]); err != nil {
			t.Errorf("signed %v: of 4000 entries before: %v", signed, err)
		}
		if _, err := logs.ReadLiveMap(r.store, sizes[10]); err == nil {
			t.Errorf("signed %v: the first maps are still there", signed)
		}
		r.replayed()
	}
}

func TestEntriesOfAnotherStoreNeedTheRightRoot(t *testing.T) {
	r := newLiveRig(t)
	r.update(3, true)
	r.replayed()
	for e, err := range logs.Entries(r.store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if wrong := strings.Replace(string(e.Raw), `"live":"`, `"alive":"`, 1); wrong == string(e.Raw) {
			t.Errorf("entry %d has no root: %s", e.Index, e.Raw)
		} else if _, err := logs.ParseEntry(e.Index, []byte(wrong)); err == nil {
			t.Errorf("entry %d without a root is read", e.Index)
		}
	}
}

// TestFileTree proves every file of manifests of several sizes.
func TestFileTree(t *testing.T) {
	for _, n := range []int{1, 2, 3, 8, 100} {
		var files []logs.File
		for i := range n {
			files = append(files, logs.File{Path: fmt.Sprint("dist/", i), Size: int64(i), SHA256: kvstore.Sum(fmt.Append(nil, i)), SRI: logs.SumSRI(fmt.Append(nil, i))})
		}
		tree := logs.NewFileTree(files)
		for i, f := range files {
			proof, err := tree.Prove(int64(i))
			if err != nil {
				t.Fatal(err)
			}
			place := logs.FilePlace{Index: int64(i), Of: tree.Size(), Proof: proof}
			if err := place.Check(tree.Root(), f); err != nil {
				t.Errorf("file %d of %d: %v", i, n, err)
			}
			for what, other := range map[string]logs.File{
				"path": {Path: f.Path + "x", Size: f.Size, SHA256: f.SHA256, SRI: f.SRI}, "size": {Path: f.Path, Size: f.Size + 1, SHA256: f.SHA256, SRI: f.SRI},
				"SHA-256": {Path: f.Path, Size: f.Size, SRI: f.SRI}, "integrity": {Path: f.Path, Size: f.Size, SHA256: f.SHA256},
			} {
				if place.Check(tree.Root(), other) == nil {
					t.Errorf("file %d of %d with another %s is in the tree", i, n, what)
				}
			}
		}
		if _, err := tree.Prove(int64(n)); err == nil {
			t.Errorf("of %d files there is one more", n)
		}
	}
	if root := (&logs.Manifest{}).Root(); root != kvstore.Sum(nil) {
		t.Errorf("without files the root is %s", root)
	}
}
