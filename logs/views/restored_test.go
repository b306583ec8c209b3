package views_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// again records another entry about the release that c published.
func (s *shelf) again(c views.Change, kind logs.Kind, reason string) {
	s.t.Helper()
	c.Kind, c.Reason = kind, reason
	s.record(c)
}

// erase records that contents of the release that c published are gone.
func (s *shelf) erase(c views.Change, contents ...string) {
	s.t.Helper()
	e := &logs.Erasure{Package: c.Package, Version: c.Version}
	for _, data := range contents {
		e.Contents = append(e.Contents, kvstore.Sum([]byte(data)))
	}
	encoded, err := e.Encode()
	if err != nil {
		s.t.Fatal(err)
	}
	s.record(views.Change{
		Entry: logs.Entry{
			Kind: logs.Erased, Time: noon, Actor: "operator", Package: c.Package, Version: c.Version,
			Manifest: c.Entry.Manifest, Erasure: s.keep(string(encoded)), Reason: "by order",
		},
		Erasure: e,
	})
}

// lose removes contents from the store.
func (s *shelf) lose(contents ...string) {
	s.t.Helper()
	for _, data := range contents {
		h := kvstore.Sum([]byte(data))
		s.change(kvstore.Contents, h[:], nil)
		s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), nil)
	}
}

func TestRestoredVersionIsAsItWas(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3", "d3.min.js", "3")
	rows := func() (all []string) {
		for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs} {
			for item, err := range s.store.Scan(ns, kvstore.Range{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, fmt.Sprintf("%c %q %x", ns, item.Key, item.Value))
			}
		}
		return all
	}
	before := rows()
	s.again(c, logs.Withdrawn, "malware")
	if got := rows(); len(got) != len(before)-4 {
		t.Fatalf("withdrawn: %d rows of %d", len(got), len(before))
	}
	s.again(c, logs.Restored, "a mistake")
	if got := rows(); !reflect.DeepEqual(got, before) {
		t.Errorf("restored:\n%q\nwant\n%q", got, before)
	}
	v, err := views.LookupVersion(s.store, "d3", "7.0.0")
	if err != nil || v.Withdrawn != nil || v.Entry != 8 {
		t.Errorf("version %+v, %v", v, err)
	}
	state, err := views.LookupState(s.store, "d3", "7.0.0")
	if err != nil || state.Kind != views.Published || state.Reason != "" {
		t.Errorf("state %+v, %v", state, err)
	}
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestEntriesThatChangeNoView(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "malware")
	rows := func() (all []string) {
		for _, ns := range []kvstore.Namespace{kvstore.Files, kvstore.SRIs, kvstore.Versions, kvstore.Packages, kvstore.States} {
			for item, err := range s.store.Scan(ns, kvstore.Range{}) {
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, fmt.Sprintf("%c %q %x", ns, item.Key, item.Value))
			}
		}
		return all
	}
	before := rows()
	s.erase(c, "d3")
	s.again(c, logs.Processed, "")
	s.record(views.Change{Entry: logs.Entry{
		Kind: logs.UpstreamChanged, Time: noon, Actor: "bot", Package: "vue", Version: "3.0.0",
		Reason: "gone", Upstream: logs.UpstreamChange{Old: "sha512-x"},
	}})
	s.record(views.Change{Entry: logs.Entry{Kind: logs.KeyChanged, Time: noon, Actor: "operator", Key: "a+b+c", KeySignature: "x"}})
	if got := rows(); !reflect.DeepEqual(got, before) {
		t.Errorf("rows\n%q\nwant\n%q", got, before)
	}
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}

func TestEveryKindIsApplied(t *testing.T) {
	s := newShelf(t)
	for _, kind := range logs.Kinds {
		b := s.store.NewBatch()
		m := &logs.Manifest{Package: "vue", Version: "3.0.0"}
		err := views.Apply(b, views.Change{Entry: logs.Entry{Kind: kind, Package: "vue", Version: "3.0.0"}, Manifest: m, Erasure: &logs.Erasure{}, PackageJSON: []byte("{}")})
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		b.Close()
	}
	b := s.store.NewBatch()
	defer b.Close()
	if err := views.Apply(b, views.Change{Entry: logs.Entry{Kind: "eaten"}}); err == nil {
		t.Error("an unknown kind was applied")
	}
}

func TestErasedContentsMayBeMissing(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3", "d3.min.js", "3", "shared.js", "v3")
	s.again(c, logs.Withdrawn, "by order")
	s.erase(c, "d3", "3")
	if _, found := s.check(true); len(found) > 0 {
		t.Errorf("erased and still there: found %v", found)
	}
	named := func(data string) bool {
		var all []kvstore.Hash
		if err := views.Contents(context.Background(), s.store, s.store, func(h kvstore.Hash) { all = append(all, h) }); err != nil {
			t.Fatal(err)
		}
		return slices.Contains(all, kvstore.Sum([]byte(data)))
	}
	for data, want := range map[string]bool{"d3": false, "3": false, "v3": true, "vue three": true} {
		if got := named(data); got != want {
			t.Errorf("content %q is needed: %v, want %v", data, got, want)
		}
	}
	s.lose("d3", "3")
	for _, deep := range []bool{false, true} {
		if _, found := s.check(deep); len(found) > 0 {
			t.Errorf("deep %v: found %v", deep, found)
		}
	}

	// Another release brings the same bytes: from then on they are needed again.
	c = s.publish("d3", "7.0.1", "d3.js", "d3")
	if _, found := s.check(true); len(found) > 0 || !named("d3") || named("3") {
		t.Errorf("published again: found %v, needed %v", found, named("d3"))
	}
	// And also once that one is withdrawn, for it can be restored.
	for _, what := range []string{"served", "evidence"} {
		s.lose("d3")
		if _, found := s.check(false); len(found) != 1 || found[0].What != "content" {
			t.Errorf("lost what is %s again: found %v", what, found)
		}
		s.keep("d3")
		if what == "served" {
			s.again(c, logs.Withdrawn, "by order too")
		}
	}
	if !named("d3") {
		t.Error("what could be restored is not needed")
	}
}

func TestErasureExcusesNothingElse(t *testing.T) {
	tests := []struct {
		name  string
		erase []string
		lose  string
	}{
		{"a content that the erasure does not list", []string{"d3"}, "3"},
		{"a content that a served release shares", []string{"d3", "v3"}, "v3"},
		{"a package JSON", []string{"d3", `{"name":"vue"}`}, `{"name":"vue"}`},
		{"a file that is a package JSON too", []string{"d3", `{"json":1}`}, `{"json":1}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := stocked(t)
			c := s.publish("d3", "7.0.0", "d3.js", "d3", "d3.min.js", "3", "shared.js", "v3", "package.json", `{"json":1}`)
			s.enrol(logs.PackageAdded, "json", `{"json":1}`)
			s.again(c, logs.Withdrawn, "by order")
			s.erase(c, tt.erase...)
			named := false
			if err := views.Contents(context.Background(), s.store, s.store, func(h kvstore.Hash) {
				named = named || h == kvstore.Sum([]byte(tt.lose))
			}); err != nil {
				t.Fatal(err)
			}
			if !named {
				t.Error("Contents does not name it")
			}
			s.lose(tt.lose)
			if _, found := s.check(false); len(found) == 0 {
				t.Error("found nothing")
			}
		})
	}
}

func TestCheckKnowsTheOrder(t *testing.T) {
	tests := []struct {
		name  string
		kinds []logs.Kind // after a publication
		wrong bool
	}{
		{"withdrawn", []logs.Kind{logs.Withdrawn}, false},
		{"back and forth", []logs.Kind{logs.Withdrawn, logs.Restored, logs.Withdrawn, logs.Restored}, false},
		{"withdrawn twice", []logs.Kind{logs.Withdrawn, logs.Withdrawn}, true},
		{"restored without being withdrawn", []logs.Kind{logs.Restored}, true},
		{"restored twice", []logs.Kind{logs.Withdrawn, logs.Restored, logs.Restored}, true},
		{"published twice", []logs.Kind{logs.Published}, true},
		{"published after a withdrawal", []logs.Kind{logs.Withdrawn, logs.Published}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newShelf(t)
			c := s.publish("d3", "7.0.0", "d3.js", "d3")
			for _, kind := range tt.kinds {
				s.again(c, kind, "so")
			}
			if _, found := s.check(false); len(found) > 0 != tt.wrong {
				t.Errorf("found %v", found)
			}
		})
	}
	s := newShelf(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.erase(c, "d3")
	if _, found := s.check(false); len(found) == 0 {
		t.Error("erased while it is served: found nothing")
	}
}

func TestCheckFindsADamagedErasure(t *testing.T) {
	s := stocked(t)
	c := s.publish("d3", "7.0.0", "d3.js", "d3")
	s.again(c, logs.Withdrawn, "by order")
	s.erase(c, "d3")
	s.lose("d3")
	e, err := logs.ReadEntry(s.store, s.log.Checkpoint().Size-1)
	if err != nil {
		t.Fatal(err)
	}
	s.change(kvstore.Contents, e.Erasure[:], nil)
	if _, found := s.check(false); len(found) < 2 {
		t.Errorf("found %v, want the erasure and the content that nothing excuses any more", found)
	}
	if err := views.Contents(context.Background(), s.store, s.store, func(kvstore.Hash) {}); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("Contents without the erasure: %v", err)
	}
}
