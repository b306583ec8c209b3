package views_test

import (
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

// record appends an entry and applies it.
func record(t *testing.T, s *testkit.Shelf, c views.Change) {
	t.Helper()
	c.Time, c.Actor = testkit.Released, "bot"
	if err := s.Log.Update(func(tx *logs.Tx) error { return views.Record(tx, c) }); err != nil {
		t.Fatal(err)
	}
}

// sound fails the test unless the views are what follows from the log.
func sound(t *testing.T, s *testkit.Shelf) {
	t.Helper()
	_, err := check.Run(t.Context(), s.Store, check.Options{Deep: true, Temp: t.TempDir()}, func(f check.Finding) { t.Errorf("found %+v", f) })
	if err != nil {
		t.Fatal(err)
	}
}

func stocked(t *testing.T) *testkit.Shelf {
	t.Helper()
	s := testkit.NewShelf(t)
	s.Register("vue", `{"name":"vue"}`)
	record(t, s, views.Change{Entry: logs.Entry{Kind: logs.Detected, Package: "vue", Version: "3.0.0"}})
	s.Publish("vue", "3.0.0", "vue.js", map[string]string{"vue.js": "vue three", "dist/vue.min.js": "v3"})
	s.Publish("vue", "3.1.0", "vue.js", map[string]string{"vue.js": "vue three point one", "dist/vue.min.js": "v3"})
	s.Refuse("vue", "9.0.0", "a bomb")
	s.Register("vue", `{"name":"vue","homepage":"https://example.com"}`)
	return s
}

func TestApply(t *testing.T) {
	s := stocked(t)
	f, err := views.LookupFile(s.Store, "vue", "3.1.0", "vue.js")
	if want := (views.File{Hash: kvstore.Sum([]byte("vue three point one")), Size: 19, Released: testkit.Released}); err != nil || f != want {
		t.Errorf("file %+v, %v, want %+v", f, err, want)
	}
	sri, err := views.LookupSRI(s.Store, "vue", "3.0.0", "dist/vue.min.js")
	if err != nil || sri != logs.SumSRI([]byte("v3")) {
		t.Errorf("integrity %v, %v", sri, err)
	}
	files, err := views.Files(s.Store, "vue", "3.0.0")
	if err != nil || len(files) != 2 || files[0].Path != "dist/vue.min.js" || files[1].Path != "vue.js" {
		t.Fatalf("files %+v, %v", files, err)
	}
	if got := files[0]; got.SRI != sri || got.Hash != kvstore.Sum([]byte("v3")) || got.Size != 2 {
		t.Errorf("file %+v", got)
	}
	v, err := views.LookupVersion(s.Store, "vue", "3.0.0")
	if err != nil || v.Files != 2 || v.Bytes != 11 || v.Default != "vue.js" || v.Withdrawn != nil || v.Entry != 2 {
		t.Errorf("version %+v, %v", v, err)
	}
	p, err := views.LookupPackage(s.Store, "vue")
	if err != nil || !strings.Contains(string(p.JSON), "homepage") || p.Entry != 5 {
		t.Errorf("package %+v, %v", p, err)
	}
	states, err := views.States(s.Store, "vue")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, st := range states {
		got = append(got, st.Version+" "+string(st.Kind))
	}
	if want := []string{"3.0.0 published", "3.1.0 published", "9.0.0 refused"}; !reflect.DeepEqual(got, want) {
		t.Errorf("states %q, want %q", got, want)
	}
	if of, err := views.StatesOf(s.Store, views.Refused); err != nil || len(of) != 1 || of[0] != states[2] {
		t.Errorf("refused %+v, %v, want %+v", of, err, states[2])
	}
	for _, lookup := range []func() error{
		func() error { _, err := views.LookupFile(s.Store, "vue", "3.0.0", "nope"); return err },
		func() error { _, err := views.LookupFile(s.Store, "vue", "3.0", "vue.js"); return err },
		func() error { _, err := views.LookupVersion(s.Store, "vu", "3.0.0"); return err },
		func() error { _, err := views.LookupPackage(s.Store, "vu"); return err },
		func() error { _, err := views.LookupState(s.Store, "vue", "1"); return err },
	} {
		if err := lookup(); !errors.Is(err, kvstore.ErrNotFound) {
			t.Errorf("unknown: %v", err)
		}
	}
}

func TestWithdrawnVersionHasNoFiles(t *testing.T) {
	s := stocked(t)
	s.Publish("d3", "7.0.0", "d3.js", map[string]string{"d3.js": "d3"})
	s.Withdraw("d3", "7.0.0", "malware")
	if _, err := views.LookupFile(s.Store, "d3", "7.0.0", "d3.js"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the file is still there: %v", err)
	}
	v, err := views.LookupVersion(s.Store, "d3", "7.0.0")
	if err != nil || v.Withdrawn == nil || v.Withdrawn.Reason != "malware" || v.Withdrawn.Entry != 7 {
		t.Errorf("version %+v, %v", v, err)
	}
	sound(t, s)
}

func TestForeignManifestIsNotApplied(t *testing.T) {
	s := testkit.NewShelf(t)
	b := s.Store.NewBatch()
	defer b.Close()
	err := views.Apply(b, views.Change{
		Entry:    logs.Entry{Kind: logs.Published, Package: "vue", Version: "3.0.0"},
		Manifest: &logs.Manifest{Package: "jquery", Version: "3.0.0"},
	})
	if err == nil || !strings.Contains(err.Error(), "jquery") {
		t.Errorf("got %v", err)
	}
}

func FuzzLookupFile(f *testing.F) {
	f.Add([]byte{1})
	f.Add(append([]byte{1}, make([]byte, 40)...))
	f.Fuzz(func(t *testing.T, row []byte) {
		file, err := views.LookupFile(oneRow(row), "p", "v", "f")
		if err == nil && file.Size < 0 {
			t.Errorf("%x decodes to %+v", row, file)
		}
	})
}

// oneRow is a store whose every row is the same.
type oneRow []byte

func (r oneRow) Get(kvstore.Namespace, []byte) ([]byte, error) { return r, nil }

func (r oneRow) Scan(kvstore.Namespace, kvstore.Range) iter.Seq2[kvstore.Item, error] {
	return func(func(kvstore.Item, error) bool) {}
}

// A package that the catalogue has no more keeps its row, with the mark; registered
// again it loses that.
func TestPackageRemoved(t *testing.T) {
	s := testkit.NewShelf(t)
	s.Register("vue", `{"name":"vue"}`)
	s.Remove("vue")
	p, err := views.LookupPackage(s.Store, "vue")
	if err != nil || !p.Removed || string(p.JSON) != `{"name":"vue"}` || p.Entry != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	record(t, s, views.Change{Entry: logs.Entry{Kind: logs.PackageAdded, Package: "vue", PackageJSON: kvstore.Sum([]byte(`{"name":"vue"}`))}, PackageJSON: []byte(`{"name":"vue"}`)})
	if p, err = views.LookupPackage(s.Store, "vue"); err != nil || p.Removed {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestRestoredVersionIsAsItWas(t *testing.T) {
	s := stocked(t)
	s.Publish("d3", "7.0.0", "d3.js", map[string]string{"d3.js": "d3", "d3.min.js": "3"})
	rows := func() (all []string) {
		for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs} {
			for item, err := range s.Store.Scan(ns, kvstore.Range{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, fmt.Sprintf("%c %q %x", ns, item.Key, item.Value))
			}
		}
		return all
	}
	before := rows()
	s.Withdraw("d3", "7.0.0", "malware")
	if got := rows(); len(got) != len(before)-4 {
		t.Fatalf("withdrawn: %d rows of %d", len(got), len(before))
	}
	s.Restore("d3", "7.0.0", "a mistake")
	if got := rows(); !reflect.DeepEqual(got, before) {
		t.Errorf("restored:\n%q\nwant\n%q", got, before)
	}
	v, err := views.LookupVersion(s.Store, "d3", "7.0.0")
	if err != nil || v.Withdrawn != nil || v.Entry != 8 {
		t.Errorf("version %+v, %v", v, err)
	}
	state, err := views.LookupState(s.Store, "d3", "7.0.0")
	if err != nil || state.Kind != views.Published || state.Reason != "" {
		t.Errorf("state %+v, %v", state, err)
	}
	sound(t, s)
}

// A refusal is that of an import only if it lacks an attestation, and not because it has something else to say of its provenance.
func TestRefusedImport(t *testing.T) {
	s := stocked(t)
	for i, tt := range []struct {
		provenance *logs.Provenance
		imported   bool
	}{
		{nil, false},
		{&logs.Provenance{Outcome: logs.AttestationMissing, Required: "https://github.com/vuejs/core"}, true},
		{&logs.Provenance{Outcome: logs.AttestationInvalid, Required: "https://github.com/vuejs/core", Reason: "it is about another archive"}, false},
		{&logs.Provenance{Outcome: logs.AttestationVerified, Required: "https://github.com/vuejs/core", Repository: "https://github.com/vuejs/fork"}, false},
	} {
		version := fmt.Sprintf("10.0.%d", i)
		record(t, s, views.Change{Entry: logs.Entry{Kind: logs.Refused, Package: "vue", Version: version, Reason: "no", Provenance: tt.provenance}})
		if state, err := views.LookupState(s.Store, "vue", version); err != nil || state.Imported != tt.imported {
			t.Errorf("%+v: state %+v, %v", tt.provenance, state, err)
		}
	}
	sound(t, s)
}

func TestEntriesThatChangeNoView(t *testing.T) {
	s := stocked(t)
	s.Publish("d3", "7.0.0", "d3.js", map[string]string{"d3.js": "d3"})
	s.Withdraw("d3", "7.0.0", "malware")
	rows := func() (all []string) {
		for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.Packages, kvstore.States} {
			for item, err := range s.Store.Scan(ns, kvstore.Range{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, fmt.Sprintf("%c %q %x", ns, item.Key, item.Value))
			}
		}
		return all
	}
	before := rows()
	v, err := views.LookupVersion(s.Store, "d3", "7.0.0")
	if err != nil {
		t.Fatal(err)
	}
	erasure := &logs.Erasure{Package: "d3", Version: "7.0.0", Contents: []kvstore.Hash{kvstore.Sum([]byte("d3"))}}
	encoded, err := erasure.Encode()
	if err != nil {
		t.Fatal(err)
	}
	h := kvstore.Sum(encoded)
	if err := s.Store.PutContent(h, int64(len(encoded)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: encoded}}); err != nil {
		t.Fatal(err)
	}
	e := logs.Entry{Kind: logs.Erased, Package: "d3", Version: "7.0.0", Manifest: v.Manifest, Erasure: h, Reason: "by order"}
	record(t, s, views.Change{Entry: e, Erasure: erasure})
	record(t, s, views.Change{Entry: logs.Entry{Kind: logs.Processed, Package: "d3", Version: "7.0.0", Manifest: v.Manifest}})
	record(t, s, views.Change{Entry: logs.Entry{
		Kind: logs.UpstreamChanged, Package: "vue", Version: "3.0.0",
		Reason: "gone", Upstream: logs.UpstreamChange{Old: "sha512-x"},
	}})
	record(t, s, views.Change{Entry: logs.Entry{Kind: logs.KeyChanged, Key: "a+b+c", KeySignature: "x"}})
	if got := rows(); !reflect.DeepEqual(got, before) {
		t.Errorf("rows\n%q\nwant\n%q", got, before)
	}
	sound(t, s)
}

func TestEveryKindIsApplied(t *testing.T) {
	s := testkit.NewShelf(t)
	for _, kind := range logs.Kinds {
		b := s.Store.NewBatch()
		m := &logs.Manifest{Package: "vue", Version: "3.0.0"}
		err := views.Apply(b, views.Change{Entry: logs.Entry{Kind: kind, Package: "vue", Version: "3.0.0"}, Manifest: m, Erasure: &logs.Erasure{}, PackageJSON: []byte("{}")})
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		b.Close()
	}
	b := s.Store.NewBatch()
	defer b.Close()
	if err := views.Apply(b, views.Change{Entry: logs.Entry{Kind: "eaten"}}); err == nil {
		t.Error("an unknown kind was applied")
	}
}
