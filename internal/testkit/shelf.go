package testkit

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// A Shelf is a store with its log. Its methods end the test where they fail.
type Shelf struct {
	// Source is where published releases come from. Default: they are imported.
	Source logs.Source
	tb     testing.TB
	Store  *kvstore.Store
	Log    *logs.Log
}

// NewShelf returns an empty shelf in a folder that goes with the test.
func NewShelf(tb testing.TB) *Shelf {
	tb.Helper()
	store, err := kvstore.Open(tb.TempDir(), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		tb.Fatal(err)
	}
	return NewShelfOver(tb, store)
}

// NewShelfOver returns a shelf over a store that the test has opened, which is closed with the test.
func NewShelfOver(tb testing.TB, store *kvstore.Store) *Shelf {
	tb.Helper()
	tb.Cleanup(func() { store.Close() })
	log, err := logs.Open(store)
	if err != nil {
		tb.Fatal(err)
	}
	return &Shelf{tb: tb, Store: store, Log: log}
}

// Index returns a running index over the shelf, which has read all of it. It stops with
// the test.
func (s *Shelf) Index(o library.Options) *library.Index {
	s.tb.Helper()
	o.Store, o.Log = s.Store, s.Log
	x := library.New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := x.Run(ctx); err != nil {
			s.tb.Error(err)
		}
	}()
	s.tb.Cleanup(func() { cancel(); <-done })
	Await(s.tb, x, s.Log)
	return x
}

// Await returns when the index knows all that the log has now.
func Await(tb testing.TB, x *library.Index, log *logs.Log) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := x.Wait(ctx, log.Checkpoint().Size); err != nil {
		tb.Fatal(err)
	}
}

// Register adds a package, or changes one that is there. Its name must be the one in
// packageJSON.
func (s *Shelf) Register(name, packageJSON string) {
	s.tb.Helper()
	kind := logs.PackageAdded
	if _, err := views.LookupPackage(s.Store, name); err == nil {
		kind = logs.PackageChanged
	}
	s.record(views.Change{
		Entry:       logs.Entry{Kind: kind, Package: name, PackageJSON: s.keep([]byte(packageJSON))},
		PackageJSON: []byte(packageJSON),
	})
}

// Remove takes a package out of the catalogue.
func (s *Shelf) Remove(name string) {
	s.tb.Helper()
	p, err := views.LookupPackage(s.Store, name)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.record(views.Change{
		Entry:       logs.Entry{Kind: logs.PackageRemoved, Package: name, PackageJSON: s.keep(p.JSON)},
		PackageJSON: p.JSON,
	})
}

// Publish publishes a release with these files by path, of which main, unless it
// is "", is the default one.
func (s *Shelf) Publish(name, version, main string, files map[string]string) {
	s.tb.Helper()
	s.PublishAbout(name, version, main, files, nil)
}

// PublishAbout is Publish of a release of which upstream says more.
func (s *Shelf) PublishAbout(name, version, main string, files map[string]string, about *logs.About) {
	s.tb.Helper()
	m := &logs.Manifest{
		Package: name, Version: version, Released: Released, Default: main, About: about,
		Source: s.Source,
	}
	if m.Source.Type == "" {
		m.Source = logs.Source{Type: "import", Name: name}
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		data := []byte(files[path])
		m.Files = append(m.Files, logs.File{Path: path, Size: int64(len(data)), SHA256: s.keep(data), SRI: logs.SumSRI(data), Origin: logs.Upstream})
	}
	encoded, err := m.Encode()
	if err != nil {
		s.tb.Fatal(err)
	}
	s.record(views.Change{
		Entry:    logs.Entry{Kind: logs.Published, Package: name, Version: version, Released: Released, Manifest: s.keep(encoded)},
		Manifest: m,
	})
}

// Withdraw withdraws a published release.
func (s *Shelf) Withdraw(name, version, reason string) {
	s.tb.Helper()
	s.change(logs.Withdrawn, name, version, reason)
}

// Restore serves a withdrawn release again.
func (s *Shelf) Restore(name, version, reason string) {
	s.tb.Helper()
	s.change(logs.Restored, name, version, reason)
}

func (s *Shelf) change(kind logs.Kind, name, version, reason string) {
	s.tb.Helper()
	v, err := views.LookupVersion(s.Store, name, version)
	if err != nil {
		s.tb.Fatal(err)
	}
	m, err := logs.ReadManifest(s.Store, v.Manifest)
	if err != nil {
		s.tb.Fatal(err)
	}
	s.record(views.Change{
		Entry:    logs.Entry{Kind: kind, Package: name, Version: version, Manifest: v.Manifest, Reason: reason},
		Manifest: m,
	})
}

// Refuse records that a version will not be published.
func (s *Shelf) Refuse(name, version, reason string) {
	s.tb.Helper()
	s.record(views.Change{Entry: logs.Entry{Kind: logs.Refused, Package: name, Version: version, Released: Released, Reason: reason}})
}

// SetState sets a state that no entry of the log is about: failed or processing.
func (s *Shelf) SetState(state views.State) {
	s.tb.Helper()
	if err := s.Log.Update(func(tx *logs.Tx) error { return views.SetState(tx.Batch, state) }); err != nil {
		s.tb.Fatal(err)
	}
}

func (s *Shelf) record(c views.Change) {
	s.tb.Helper()
	c.Time, c.Actor = Released, "bot"
	if err := s.Log.Update(func(tx *logs.Tx) error { return views.Record(tx, c) }); err != nil {
		s.tb.Fatal(err)
	}
}

// keep stores a content in the quick codings that are worthwhile.
func (s *Shelf) keep(data []byte) kvstore.Hash {
	s.tb.Helper()
	h := kvstore.Sum(data)
	if _, err := s.Store.Content(h); err == nil {
		return h
	}
	var coded []kvstore.Coded
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
		b, err := coding.Encode(c, coding.Quick, data)
		if err != nil {
			s.tb.Fatal(err)
		}
		if coding.Worthwhile(len(data), len(b)) {
			coded = append(coded, kvstore.Coded{Coding: c, Bytes: b})
		}
	}
	if coded == nil {
		coded = []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}
	}
	if err := s.Store.PutContent(h, int64(len(data)), false, coded); err != nil {
		s.tb.Fatal(err)
	}
	return h
}

// CopyStore makes a store in dir with the rows of another, which may be open to be written.
func CopyStore(tb testing.TB, from *kvstore.Store, dir string) {
	tb.Helper()
	to, err := kvstore.Open(dir, kvstore.Options{FS: unsynced.FS})
	if err != nil {
		tb.Fatal(err)
	}
	for ns := kvstore.Namespace('a'); ns <= 'z'; ns++ {
		b := to.NewBatch()
		for row, err := range from.Scan(ns, kvstore.Range{}) {
			if err != nil {
				tb.Fatal(err)
			}
			b.Set(ns, row.Key, row.Value)
		}
		if err := b.Commit(); err != nil {
			tb.Fatal(err)
		}
		b.Close()
	}
	if err := to.Close(); err != nil {
		tb.Fatal(err)
	}
}
