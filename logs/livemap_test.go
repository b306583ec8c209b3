package logs_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

func release(n int) logs.LiveRelease {
	return logs.LiveRelease{Manifest: kvstore.Sum(fmt.Append(nil, n)), Entry: int64(n)}
}

func set(t testing.TB, m *logs.LiveMap, pkg, version string, r logs.LiveRelease) {
	t.Helper()
	if err := m.Set(logs.LiveKey(pkg, version), r); err != nil {
		t.Fatal(err)
	}
}

// TestGoldenRoots keeps the format: what is signed cannot be hashed in another way later. The
// roots were computed by another program, from the doc comment of LiveMap.
func TestGoldenRoots(t *testing.T) {
	m := logs.NewLiveMap()
	want := func(root string) {
		t.Helper()
		if got := m.Root().String(); got != root {
			t.Errorf("with %d releases the root is %s, want %s", m.Len(), got, root)
		}
	}
	want("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
	set(t, m, "vue", "3.0.0", release(2))
	want("27bf91c2da5f5ae3cab8edf754bbff54c90c0d5a0bcfdd9c146c379a068ccc10")
	set(t, m, "@vue/core", "3.1.0", release(5))
	want("9023334972c54747d9f13fe10bb9de3f585eec5fe2f74db7d64aed6ea6bd2e06")
	for i := range 100 {
		set(t, m, "jquery", fmt.Sprint(i), release(10+i))
	}
	want("6ef6c28cf2acb6b87b06cbb21532b289fc1f96f4b255d90b6a92ae9f29b0062c")
}

// TestKeysAreUnambiguous has names whose texts are the same when put together.
func TestKeysAreUnambiguous(t *testing.T) {
	if logs.LiveKey("ab", "c") == logs.LiveKey("a", "bc") || logs.LiveKey("a", "") == logs.LiveKey("", "a") {
		t.Error("two releases have one key")
	}
}

// rows are those of a map that is stored.
type rows map[string][]byte

func (r rows) get(row []byte) ([]byte, error) {
	value, ok := r[string(row)]
	if !ok {
		return nil, errors.New("it is missing")
	}
	return value, nil
}

// root finds the row of the root of the map after an entry.
func (r rows) root(entry int64) []byte {
	from, to := logs.LiveRootRows(entry)
	for _, row := range slices.Sorted(maps.Keys(r)) {
		if row >= string(from) && row < string(to) {
			return []byte(row)
		}
	}
	return nil
}

// model compares a stored map with a plain one, step by step.
type model struct {
	testing.TB
	plain map[string]logs.LiveRelease
	rows  rows
	entry int64
	roots []kvstore.Hash            // after each entry
	gone  map[int64]map[string]bool // rows that an entry replaced
}

func newModel(tb testing.TB) *model {
	return &model{TB: tb, plain: map[string]logs.LiveRelease{}, rows: rows{}, gone: map[int64]map[string]bool{}}
}

// write makes changes, names with a release or none, and writes them as those of one entry.
func (m *model) write(changes map[string]*logs.LiveRelease, trimmed *logs.LiveMap) *logs.LiveMap {
	m.Helper()
	stored := trimmed
	if stored == nil {
		var err error
		root := logs.EmptyLiveMap
		if len(m.roots) > 0 {
			root = m.roots[len(m.roots)-1]
		}
		if stored, err = logs.OpenLiveMap(root, m.rows.root(m.entry-1), m.rows.get); err != nil {
			m.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(changes)) {
		var err error
		if r := changes[name]; r != nil {
			m.plain[name] = *r
			err = stored.Set(logs.LiveKey(name, "1"), *r)
		} else {
			delete(m.plain, name)
			err = stored.Delete(logs.LiveKey(name, "1"))
		}
		if err != nil {
			m.Fatal(err)
		}
	}
	m.gone[m.entry] = map[string]bool{}
	for _, row := range stored.Write(m.entry, func(row, value []byte) { m.rows[string(row)] = value }) {
		if m.rows[string(row)] == nil {
			m.Errorf("row %x is replaced and was not stored", row)
		}
		m.gone[m.entry][string(row)] = true
	}
	m.roots = append(m.roots, stored.Root())
	m.entry++
	stored.Trim()
	return stored
}

// prune deletes what the entries before one have replaced.
func (m *model) prune(before int64) {
	for entry, gone := range m.gone {
		if entry < before {
			for row := range gone {
				delete(m.rows, row)
			}
			delete(m.gone, entry)
		}
	}
}

// check compares the newest map with one that is made in another order, and proves each name.
func (m *model) check(names []string) {
	m.Helper()
	again := logs.NewLiveMap()
	for name, r := range m.plain {
		set(m, again, name, "1", r)
	}
	root := m.roots[len(m.roots)-1]
	if again.Root() != root || again.Len() != len(m.plain) {
		m.Fatalf("the stored root is %s, that of the same %d releases %s", root, again.Len(), again.Root())
	}
	wrong := 0
	right := again.Compare(m.rows.root(m.entry-1), m.rows.get, func([]byte, error) { wrong++ })
	kept := 0
	for _, gone := range m.gone {
		kept += len(gone)
	}
	if wrong > 0 || right+int64(kept) != int64(len(m.rows)) {
		m.Fatalf("%d rows are wrong, %d right, %d are replaced, of %d", wrong, right, kept, len(m.rows))
	}
	for _, name := range names {
		m.prove(root, m.entry-1, name, m.plain)
	}
}

func (m *model) prove(root kvstore.Hash, entry int64, name string, plain map[string]logs.LiveRelease) {
	m.Helper()
	stored, err := logs.OpenLiveMap(root, m.rows.root(entry), m.rows.get)
	if err != nil {
		m.Fatal(err)
	}
	p, err := stored.Prove(logs.LiveKey(name, "1"))
	if err != nil {
		m.Fatal(err)
	}
	if err := p.Check(root, name, "1"); err != nil {
		m.Fatalf("%s: %v", name, err)
	}
	if want, live := plain[name]; live != (p.Live != nil) || live && *p.Live != want {
		m.Fatalf("%s: the proof says %+v, want %+v", name, p.Live, want)
	}
}

func TestMapIsAPlainOne(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	m := newModel(t)
	names := make([]string, 60)
	for i := range names {
		names[i] = fmt.Sprintf("package%d", i)
	}
	var live *logs.LiveMap
	for step := range 400 {
		changes := map[string]*logs.LiveRelease{}
		for range 1 + r.IntN(3) {
			name := names[r.IntN(len(names))]
			if changes[name] = nil; r.IntN(5) > step/100 { // so that it grows, and then shrinks to nothing
				changes[name] = new(release(r.IntN(1000)))
			}
		}
		live = m.write(changes, live)
		if r.IntN(4) == 0 {
			live = nil // read again
		}
		m.prune(m.entry - 10)
		m.check(names)
	}
	clear(m.plain)
	all := map[string]*logs.LiveRelease{}
	for _, name := range names {
		all[name] = nil
	}
	m.write(all, nil)
	m.check(names)
	if root := m.roots[len(m.roots)-1]; root != logs.EmptyLiveMap {
		t.Errorf("without releases the root is %s", root)
	}
	m.prune(m.entry)
	if len(m.rows) != 1 {
		t.Errorf("an empty map has %d rows", len(m.rows))
	}
}

// TestEarlierMapsStay proves from each map whose rows were not deleted.
func TestEarlierMapsStay(t *testing.T) {
	m := newModel(t)
	var before []map[string]logs.LiveRelease
	for n := range 50 {
		m.write(map[string]*logs.LiveRelease{fmt.Sprint("a", n): new(release(n)), fmt.Sprint("a", n/2): nil}, nil)
		before = append(before, maps.Clone(m.plain))
	}
	m.prune(20)
	for entry := 20; entry < 50; entry++ {
		for n := range 50 {
			m.prove(m.roots[entry], int64(entry), fmt.Sprint("a", n), before[entry])
		}
	}
}

func TestDamagedRowsAreFound(t *testing.T) {
	m := newModel(t)
	changes := map[string]*logs.LiveRelease{}
	for n := range 20 {
		changes[fmt.Sprint("a", n)] = new(release(n))
	}
	m.write(changes, nil)
	want := logs.NewLiveMap()
	for name, r := range m.plain {
		set(t, want, name, "1", r)
	}
	for row, value := range m.rows {
		for i := range value {
			changed := slices.Clone(value)
			changed[i] ^= 4
			m.rows[row] = changed
			wrong := 0
			want.Compare(m.rows.root(0), m.rows.get, func([]byte, error) { wrong++ })
			if wrong == 0 {
				t.Errorf("byte %d of the row %x may be changed", i, row)
			}
		}
		delete(m.rows, row)
		wrong := 0
		want.Compare(m.rows.root(0), m.rows.get, func([]byte, error) { wrong++ })
		if wrong != 1 {
			t.Errorf("without the row %x, %d are wrong", row, wrong)
		}
		m.rows[row] = value
	}
}

// TestProofsAreOfOneThing changes each part of proofs.
func TestProofsAreOfOneThing(t *testing.T) {
	m := logs.NewLiveMap()
	for n := range 200 {
		set(t, m, "vue", fmt.Sprint(n), release(n))
	}
	root := m.Root()
	for n := range 220 {
		version := fmt.Sprint(n)
		p, err := m.Prove(logs.LiveKey("vue", version))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Check(root, "vue", version); err != nil {
			t.Fatal(err)
		}
		wrong := map[string]logs.LiveMapProof{
			"a longer path":  {Live: p.Live, Other: p.Other, Path: append([]kvstore.Hash{logs.EmptyLiveMap}, p.Path...)},
			"a shorter path": {Live: p.Live, Other: p.Other, Path: p.Path[1:]},
			"a long path":    {Live: p.Live, Other: p.Other, Path: make([]kvstore.Hash, 257)},
			"two releases":   {Live: new(release(n)), Other: &logs.OtherRelease{Key: logs.LiveKey("vue", "0")}, Path: p.Path},
		}
		if p.Live != nil {
			wrong["nothing"] = logs.LiveMapProof{Path: p.Path}
			wrong["another manifest"] = logs.LiveMapProof{Live: &logs.LiveRelease{Entry: p.Live.Entry}, Path: p.Path}
			wrong["another entry"] = logs.LiveMapProof{Live: &logs.LiveRelease{Manifest: p.Live.Manifest, Entry: 9999}, Path: p.Path}
			wrong["itself as another"] = logs.LiveMapProof{Other: &logs.OtherRelease{Key: logs.LiveKey("vue", version), LiveRelease: *p.Live}, Path: p.Path}
			other := (n + 1) % 200
			wrong["another's place"] = logs.LiveMapProof{
				Other: &logs.OtherRelease{Key: logs.LiveKey("vue", fmt.Sprint(other)), LiveRelease: release(other)},
				Path:  p.Path,
			}
		} else {
			wrong["a release"] = logs.LiveMapProof{Live: new(release(n)), Path: p.Path}
		}
		for what, p := range wrong {
			if p.Check(root, "vue", version) == nil {
				t.Errorf("%s: a proof with %s is right", version, what)
			}
		}
		if err := p.Check(root, "vue", version+"x"); err == nil && p.Live != nil {
			t.Errorf("%s: the proof is one of another release", version)
		}
	}
}

// FuzzMap has sets and deletes of keys that begin alike.
func FuzzMap(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 0x80, 0x81, 1})
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 64 {
			return
		}
		m, plain := logs.NewLiveMap(), map[kvstore.Hash]logs.LiveRelease{}
		key := func(step byte) (k kvstore.Hash) {
			k[step&3*10] = step & 0x7c // far down, so that they share much of the way
			return k
		}
		for n, step := range steps {
			var err error
			if step&0x80 == 0 {
				plain[key(step)] = release(n)
				err = m.Set(key(step), release(n))
			} else {
				delete(plain, key(step))
				err = m.Delete(key(step))
			}
			if err != nil {
				t.Fatal(err)
			}
			again := logs.NewLiveMap()
			for k, r := range plain {
				if err := again.Set(k, r); err != nil {
					t.Fatal(err)
				}
				if got, err := m.Get(k); err != nil || got == nil || *got != r {
					t.Fatalf("%v, %v, want %v", got, err, r)
				}
			}
			if m.Root() != again.Root() || m.Len() != len(plain) {
				t.Fatal("the root depends on the order")
			}
		}
	})
}

// FuzzRows reads rows that were damaged.
func FuzzRows(f *testing.F) {
	f.Add([]byte{0})
	f.Add(append([]byte{1}, make([]byte, 65)...))
	f.Add(append([]byte{5}, make([]byte, 33)...))
	f.Fuzz(func(t *testing.T, row []byte) {
		root, _ := logs.LiveRootRows(0)
		m, err := logs.OpenLiveMap(kvstore.Sum(row), root, func([]byte) ([]byte, error) { return row, nil })
		if err == nil {
			if _, err = m.Prove(logs.LiveKey("vue", "1")); err == nil {
				t.Error("a row has a hash of its own choice")
			}
		}
	})
}
