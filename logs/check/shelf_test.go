package check_test

import (
	"testing"
	"time"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

// noon has more digits than the log keeps, as real clocks do.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 123456789, time.UTC)

// A logShelf is a store with its log.
type logShelf struct {
	t     *testing.T
	store *kvstore.Store
	log   *logs.Log
}

func newShelf(t *testing.T) *logShelf {
	t.Helper()
	store, err := kvstore.Open(t.TempDir(), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	return &logShelf{t, store, log}
}

func (s *logShelf) keep(data string) kvstore.Hash {
	s.t.Helper()
	h := kvstore.Sum([]byte(data))
	if err := s.store.PutContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: []byte(data)}}); err != nil {
		s.t.Fatal(err)
	}
	return h
}

func (s *logShelf) record(c views.Change) {
	s.t.Helper()
	err := s.log.Update(func(tx *logs.Tx) error { return views.Record(tx, c) })
	if err != nil {
		s.t.Fatal(err)
	}
}

// publish publishes a release with the given files, path and content in turn.
func (s *logShelf) publish(pkg, version string, files ...string) views.Change {
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

func (s *logShelf) register(kind logs.Kind, name, json string) {
	s.t.Helper()
	s.record(views.Change{
		Entry:       logs.Entry{Kind: kind, Time: noon, Actor: "bot", Package: name, PackageJSON: s.keep(json)},
		PackageJSON: []byte(json),
	})
}

func (s *logShelf) check(deep bool) (check.Summary, []check.Finding) {
	s.t.Helper()
	var found []check.Finding
	sum, err := check.Run(s.t.Context(), s.store, check.Options{Deep: deep, Temp: s.t.TempDir()}, func(f check.Finding) { found = append(found, f) })
	if err != nil {
		s.t.Fatal(err)
	}
	if sum.Findings != int64(len(found)) || sum.Repaired != 0 {
		s.t.Errorf("%+v counts other than what was reported: %v", sum, found)
	}
	return sum, found
}

func (s *logShelf) change(ns kvstore.Namespace, key, value []byte) {
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

func stocked(t *testing.T) *logShelf {
	s := newShelf(t)
	s.register(logs.PackageAdded, "vue", `{"name":"vue"}`)
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Detected, Time: noon, Package: "vue", Version: "3.0.0", Released: noon}})
	s.publish("vue", "3.0.0", "vue.js", "vue three", "dist/vue.min.js", "v3")
	s.publish("vue", "3.1.0", "vue.js", "vue three point one", "dist/vue.min.js", "v3")
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Refused, Time: noon, Package: "vue", Version: "9.0.0", Reason: "a bomb"}})
	s.register(logs.PackageChanged, "vue", `{"name":"vue","homepage":"https://example.com"}`)
	return s
}

// again records another entry about the release that c published.
func (s *logShelf) again(c views.Change, kind logs.Kind, reason string) {
	s.t.Helper()
	c.Kind, c.Reason = kind, reason
	s.record(c)
}

// erase records that contents of the release that c published are gone.
func (s *logShelf) erase(c views.Change, contents ...string) {
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
func (s *logShelf) lose(contents ...string) {
	s.t.Helper()
	for _, data := range contents {
		h := kvstore.Sum([]byte(data))
		s.change(kvstore.Contents, h[:], nil)
		s.change(kvstore.Blobs, append(h[:], byte(coding.Identity)), nil)
	}
}
