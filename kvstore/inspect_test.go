package kvstore

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A flipped bit in the live MANIFEST makes Pebble read what comes before it only, and delete
// the files that the rest names.
func TestFlippedBitInManifest(t *testing.T) {
	mem := vfs.NewMem()
	o := small(mem)
	const releases = 8
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	for n := range releases {
		if err := errors.Join(publish(s, n), pebbleOf(s).Flush()); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	of := sample{now: readFolder(t, mem), releases: releases}
	manifest := of.now.of("MANIFEST-")[0]
	var got outcomes
	for at := 0; at < len(of.now[manifest]); at += 16 {
		for bit := range uint(8) {
			if !sweeps && bit != uint(at/16%8) {
				continue
			}
			what := fmt.Sprintf("%s, bit %d of byte %d", manifest, bit, at)
			got.try(t, what, of.now.with(manifest, flip(of.now[manifest], at, bit)), of, false)
		}
	}
	got.table(t, manifest)
	if got.unaffected+got.reported > 0 {
		t.Errorf("%+v: each byte of a MANIFEST counts", got)
	}
}

// The inspection decodes a MANIFEST by itself, and Pebble says what it should have read.
func TestVersion(t *testing.T) {
	of := newSample(t)
	mem := of.now.disk(t, nil)
	l, err := inspectFiles("store", marked(mem))
	if err != nil || l.damageError() != nil {
		t.Fatal(err, l.damageError())
	}
	o := marked(mem)
	o.ReadOnly = true
	s := open(t, "store", o)
	want := make(map[string]int64)
	current := pebbleOf(s).DebugCurrentVersion()
	for _, level := range current.Levels {
		for table := range level.All() {
			want[table.TableBacking.DiskFileNum.String()+".sst"] = int64(table.TableBacking.Size)
		}
	}
	for blob := range current.BlobFiles.All() {
		want[blob.Physical.FileNum.String()+".blob"] = int64(blob.Physical.Size)
	}
	if got := l.version.fileSizes(); !maps.Equal(got, want) || len(want) < 4 {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A folder in which a crash interrupted the making of a store is no damaged store.
func TestStoreThatWasHardlyMade(t *testing.T) {
	for files := range 4 {
		mem := vfs.NewMem()
		if err := mem.MkdirAll("store", 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"LOCK", "MANIFEST-000001", "000002.dbtmp"}[:files] {
			writeTestFile(t, mem, "store/"+name, nil)
		}
		if err := publish(open(t, "store", small(mem)), 0); err != nil {
			t.Error(err)
		}
	}
}

// What a start costs for a store of 70,000 files that was closed well, and for one whose
// process ended with a log of 32 MiB.
func BenchmarkLook(b *testing.B) {
	for _, put := range []int{0, 4000} {
		b.Run(fmt.Sprintf("log of %d MB", put*8>>10), func(b *testing.B) {
			dir := b.TempDir()
			o := Options{Mark: dir + "/mark"}
			o.setDefaults()
			s, err := Open(dir+"/store", o)
			if err != nil {
				b.Fatal(err)
			}
			fill(b, s, 70_000)
			if err := pebbleOf(s).Flush(); err != nil {
				b.Fatal(err)
			}
			for n := range put {
				identity := noise(uint64(n), 8<<10)
				if err := s.PutContent(Sum(identity), 8<<10, false, []Coded{{0, identity}}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if l, err := inspectFiles(dir+"/store", o); err != nil || l.findings != nil {
					b.Fatal(err, l.findings)
				}
			}
		})
	}
}
