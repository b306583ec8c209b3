package views_test

import (
	"context"
	"errors"
	"iter"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// noon has more digits than the log keeps, as real clocks do.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456789, time.UTC)

// A shelf is a store with its log.
type shelf struct {
	t     *testing.T
	store *kvstore.Store
	log   *logs.Log
}

func newShelf(t *testing.T) *shelf {
	t.Helper()
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	return &shelf{t, store, log}
}

func (s *shelf) keep(data string) kvstore.Hash {
	s.t.Helper()
	h := kvstore.Sum([]byte(data))
	if err := s.store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: []byte(data)}}); err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *shelf) record(c views.Change) {
	s.t.Helper()
	err := s.log.Update(func(tx *logs.Tx) error { return views.Record(tx, c) })
	if err != nil {
		s.t.Fatal(err)
	}
}

// publish publishes a release with the given files, path and content in turn.
func (s *shelf) publish(pkg, version string, files ...string) views.Change {
	s.t.Helper()
	m := &logs.Manifest{Package: pkg, Version: version, Released: noon, Default: files[0]}
	for i := 0; i < len(files); i += 2 {
		data := files[i+1]
		m.Files = append(m.Files, logs.File{Path: files[i], Size: int64(len(data)), SHA256: s.keep(data), SRI: logs.SumSRI([]byte(data)), Origin: logs.Upstream})
	}
	encoded, err := m.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	c := views.Change{
		Entry:    logs.Entry{Kind: logs.Published, Time: noon, Actor: "bot", Package: pkg, Version: version, Manifest: s.keep(string(encoded))},
		Manifest: m,
	}
	s.record(c)
	return c
}

func (s *shelf) enrol(kind logs.Kind, name, json string) {
	s.t.Helper()
	s.record(views.Change{
		Entry:       logs.Entry{Kind: kind, Time: noon, Actor: "bot", Package: name, PackageJSON: s.keep(json)},
		PackageJSON: []byte(json),
	})
}

func (s *shelf) check(deep bool) (views.CheckSummary, []views.Finding) {
	s.t.Helper()
	var found []views.Finding
	sum, err := views.Check(context.Background(), s.store, views.CheckOptions{Deep: deep, Scratch: s.t.TempDir()}, func(f views.Finding) { found = append(found, f) })
	if err != nil {
		s.t.Fatal(err)
	}
	return sum, found
}

func (s *shelf) change(ns kvstore.Namespace, key, value []byte) {
	s.t.Helper()
	b := s.store.NewBatch()
	defer b.Close()
	if value == nil {
		b.Delete(ns, key)
	} else {
		b.Set(ns, key, value)
	}
	if err := b.Commit(); err != nil {
		s.t.Fatal(err)
	}
}

func stocked(t *testing.T) *shelf {
	s := newShelf(t)
	s.enrol(logs.PackageAdded, "vue", `{"name":"vue"}`)
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.0.0", Released: noon}})
	s.publish("vue", "3.0.0", "vue.js", "vue three", "dist/vue.min.js", "v3")
	s.publish("vue", "3.1.0", "vue.js", "vue three point one", "dist/vue.min.js", "v3")
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Refused, Time: noon, Package: "vue", Version: "9.0.0", Reason: "a bomb"}})
	s.enrol(logs.PackageChanged, "vue", `{"name":"vue","homepage":"https://example.com"}`)
	return s
}

func TestApply(t *testing.T) {
	s := stocked(t)
	f, err := views.LookupFile(s.store, "vue", "3.1.0", "vue.js")
	if want := (views.File{Hash: kvstore.Sum([]byte("vue three point one")), Size: 19, Released: noon.Truncate(time.Second)}); err != nil || f != want {
		t.Errorf("file %+v, %v, want %+v", f, err, want)
	}
	sri, err := views.LookupSRI(s.store, "vue", "3.0.0", "dist/vue.min.js")
	if err != nil || sri != logs.SumSRI([]byte("v3")) {
		t.Errorf("integrity %v, %v", sri, err)
	}
	files, err := views.Files(s.store, "vue", "3.0.0")
	if err != nil || len(files) != 2 || files[0].Path != "dist/vue.min.js" || files[1].Path != "vue.js" {
		t.Fatalf("files %+v, %v", files, err)
	}
	if got := files[0]; got.SRI != sri || got.Hash != kvstore.Sum([]byte("v3")) || got.Size != 2 {
		t.Errorf("file %+v", got)
	}
	v, err := views.LookupVersion(s.store, "vue", "3.0.0")
	if err != nil || v.Files != 2 || v.Bytes != 11 || v.Default != "vue.js" || v.Withdrawn != nil || v.Entry != 2 {
		t.Errorf("version %+v, %v", v, err)
	}
	p, err := views.LookupPackage(s.store, "vue")
	if err != nil || !strings.Contains(string(p.JSON), "homepage") || p.Entry != 5 {
		t.Errorf("package %+v, %v", p, err)
	}
	states, err := views.States(s.store, "vue")
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
	if of, err := views.StatesOf(s.store, views.Refused); err != nil || len(of) != 1 || of[0] != states[2] {
		t.Errorf("refused %+v, %v, want %+v", of, err, states[2])
	}
	for _, lookup := range []func() error{
		func() error { _, err := views.LookupFile(s.store, "vue", "3.0.0", "nope"); return err },
		func() error { _, err := views.LookupFile(s.store, "vue", "3.0", "vue.js"); return err },
		func() error { _, err := views.LookupVersion(s.store, "vu", "3.0.0"); return err },
		func() error { _, err := views.LookupPackage(s.store, "vu"); return err },
		func() error { _, err := views.LookupState(s.store, "vue", "1"); return err },
	} {
		if err := lookup(); !errors.Is(err, kvstore.ErrNotFound) {
			t.Errorf("unknown: %v", err)
		}
	}
}

func TestWithdrawnVersionHasNoFiles(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	c.Kind, c.Reason = logs.Withdrawn, "malware"
	s.record(c)
	if _, err := views.LookupFile(s.store, "d3", "7.0.0", "d3.js"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("the file is still there: %v", err)
	}
	v, err := views.LookupVersion(s.store, "d3", "7.0.0")
	if err != nil || v.Withdrawn == nil || v.Withdrawn.Reason != "malware" || v.Withdrawn.Entry != 7 {
		t.Errorf("version %+v, %v", v, err)
	}
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestForeignManifestIsNotApplied(t *testing.T) {
	s := newShelf(t)
	b := s.store.NewBatch()
	defer b.Close()
	err := views.Apply(b, views.Change{
		Entry:    logs.Entry{Kind: logs.Published, Package: "vue", Version: "3.0.0"},
		Manifest: &logs.Manifest{Package: "jquery", Version: "3.0.0"},
	})
	if err == nil || !strings.Contains(err.Error(), "jquery") {
		t.Errorf("got %v", err)
	}
}

func TestCheckFindsNothingWrong(t *testing.T) {
	s := stocked(t)
	for _, deep := range []bool{false, true} {
		sum, found := s.check(deep)
		if len(found) > 0 {
			t.Errorf("deep %v: found %v", deep, found)
		}
		// The JSON twice, two manifests, three distinct files.
		if want := (views.CheckSummary{Entries: 6, Releases: 2, Files: 4, Contents: 7}); sum != want {
			t.Errorf("deep %v: %+v, want %+v", deep, sum, want)
		}
	}
	s.keep("left by an interrupted release")
	if sum, found := s.check(false); sum.Orphans != 1 || len(found) > 0 {
		t.Errorf("%d orphans, found %v; want 1 and nothing", sum.Orphans, found)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	row := func(ns kvstore.Namespace, key []byte) func(*shelf) []byte {
		return func(s *shelf) []byte {
			data, err := s.store.Get(ns, key)
			if err != nil {
				s.t.Fatal(err)
			}
			return append(data, ' ')
		}
	}
	hash := kvstore.Sum([]byte("v3"))
	file := kvstore.Key("vue", "3.0.0", "vue.js")
	tests := []struct {
		name  string
		ns    kvstore.Namespace
		key   []byte
		value func(*shelf) []byte // nil deletes
		deep  bool
		what  string
	}{
		{"a file is missing", kvstore.Files, file, nil, false, "view"},
		{"a file changed", kvstore.Files, file, row(kvstore.Files, file), false, "view"},
		{"a file too many", kvstore.Files, kvstore.Key("vue", "3.0.0", "x.js"), row(kvstore.Files, file), false, "view"},
		{"an integrity is missing", kvstore.SRIs, file, nil, false, "view"},
		{"a version is missing", kvstore.Versions, kvstore.Key("vue", "3.0.0"), nil, false, "view"},
		{"a package is missing", kvstore.Packages, kvstore.Key("vue"), nil, false, "view"},
		{"a state is missing", kvstore.States, kvstore.Key("vue", "3.0.0"), nil, false, "state"},
		{"a row of the index is missing", kvstore.LogIndex, append(kvstore.Prefix("p", "vue", "published"), 0, 0, 0, 0, 0, 0, 0, 3), nil, false, "view"},
		{"a version is published twice", kvstore.Meta, []byte("x"), func(s *shelf) []byte {
			s.publish("vue", "3.0.0", "vue.js", "vue three", "dist/vue.min.js", "v3")
			return []byte("x")
		}, false, "log"},
		{"an entry is malformed, and so is a file", kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 0}, func(s *shelf) []byte {
			s.change(kvstore.Files, file, nil)
			return []byte("{")
		}, false, "view"},
		{"an entry is missing", kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil, false, "log"},
		{"a content is missing", kvstore.Contents, hash[:], nil, false, "content"},
		{"a blob is missing", kvstore.Blobs, append(hash[:], byte(coding.Identity)), nil, true, "content"},
		{"a blob changed", kvstore.Blobs, append(hash[:], byte(coding.Identity)), func(*shelf) []byte { return []byte("v4") }, true, "content"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stocked(t)
			var value []byte
			if tt.value != nil {
				value = tt.value(s)
			}
			s.change(tt.ns, tt.key, value)
			_, found := s.check(tt.deep)
			if len(found) == 0 {
				t.Fatal("found nothing")
			}
			for _, f := range found {
				if f.What == tt.what {
					return
				}
			}
			t.Errorf("found %v, nothing about the %s", found, tt.what)
		})
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

// A package that the catalogue has no more keeps its row, with the mark; enrolled
// again it loses that.
func TestPackageRemoved(t *testing.T) {
	s := newShelf(t)
	s.enrol(logs.PackageAdded, "vue", `{"name":"vue"}`)
	s.enrol(logs.PackageRemoved, "vue", `{"name":"vue"}`)
	p, err := views.LookupPackage(s.store, "vue")
	if err != nil || !p.Removed || string(p.JSON) != `{"name":"vue"}` || p.Entry != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	s.enrol(logs.PackageAdded, "vue", `{"name":"vue"}`)
	if p, err = views.LookupPackage(s.store, "vue"); err != nil || p.Removed {
		t.Errorf("%+v, %v", p, err)
	}
}
