package check_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

// removeStore takes the whole store away.
func removeStore(r *rig) {
	if err := os.RemoveAll(r.data); err != nil {
		r.Fatal(err)
	}
}

// cutLog cuts the write-ahead log.
func cutLog(r *rig) {
	path := r.files(".log")[0]
	data, err := os.ReadFile(path)
	if err != nil {
		r.Fatal(err)
	}
	r.replace(path, data[:len(data)/2])
}

// row changes or removes a row, behind the back of everything.
func (r *rig) row(ns kvstore.Namespace, key, value []byte) {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{})
	if err != nil {
		r.Fatal(err)
	}
	b := store.NewBatch()
	defer b.Close()
	if value == nil {
		b.Delete(ns, key)
	} else {
		b.Set(ns, key, value)
	}
	if err := errors.Join(b.Commit(), store.Close()); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) hash(pkg, version, path string) kvstore.Hash {
	r.Helper()
	return kvstore.Sum([]byte(r.urls[pkg+"/"+version+"/"+path]))
}

// allCodings changes every coding of a file.
func allCodings(r *rig) {
	h := r.hash("many", "1.1.0", "dist/part3.js")
	for _, c := range []coding.Coding{coding.Brotli, coding.Gzip} {
		r.row(kvstore.Blobs, append(h[:], byte(c)), []byte("other bytes"))
	}
}

func TestDamageHeals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		damage  func(*rig)
		rebuilt bool
		alone   bool // it needs no source
	}{
		{"a table", func(r *rig) { r.flip(r.files(".sst")[0], 0.4) }, true, false},
		{"every table", func(r *rig) {
			for _, f := range r.files(".sst") {
				r.flip(f, 0.5)
			}
		}, true, false},
		{"the MANIFEST", func(r *rig) { r.flip(r.files("MANIFEST")[0], 0.5) }, true, false},
		{"a table is missing", func(r *rig) { os.Remove(r.files(".sst")[0]) }, true, false},
		{"a file of large values", func(r *rig) {
			for part := range 10 {
				r.flip(r.files(".blob")[0], float64(part)/10)
			}
		}, false, false},
		{"a file of large values is missing", func(r *rig) { os.Remove(r.files(".blob")[0]) }, true, false},
		{"all codings of a content", allCodings, false, false},
		{"one coding of a content", func(r *rig) {
			h := r.hash("many", "1.1.0", "dist/part3.js")
			r.row(kvstore.Blobs, append(h[:], byte(coding.Gzip)), []byte("other bytes"))
		}, false, true},
		{"rows of views", func(r *rig) { r.row(kvstore.Files, kvstore.Key("many", "1.1.0", "dist/part3.js"), nil) }, false, true},
		{"an entry changed", func(r *rig) { r.row(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 2}, []byte(`{"format":1}`)) }, true, false},
		{"a manifest", func(r *rig) {
			h := r.entry(6).Manifest
			r.row(kvstore.Contents, h[:], nil)
		}, false, false},
		{"the store is gone", removeStore, true, false},
	} {
		for _, source := range []string{"folder", "peer", "none"} {
			t.Run(tt.name+" "+source, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 6)
				tt.damage(r)
				var sources []check.Source
				switch source {
				case "folder":
					sources = append(sources, r.folder())
				case "peer":
					sources = append(sources, r.peer())
				case "none":
					if !tt.alone {
						return
					}
				}
				result, err := check.Repair(t.Context(), r.options(sources...))
				if err != nil {
					t.Fatal(err)
				}
				if (result.Damage != "") != tt.rebuilt {
					t.Errorf("rebuilt because of %q", result.Damage)
				}
				for _, l := range result.Lost {
					// Another Larder serves nothing of what was withdrawn.
					if !strings.HasPrefix(l.Where, "/ajax/libs/demo/0.9.0/") {
						t.Errorf("lost %+v", l)
					}
				}
				if n := r.queued(); source == "peer" && tt.name == "the store is gone" && n == 0 {
					t.Error("what came in one coding is not to be squeezed")
				}
				if len(result.Lost) > 0 && source == "peer" {
					return
				}
				r.healed()
			})
		}
	}
}

// TestLostIsListedDespiteFailure tests that a repair on a disk that becomes full, which cannot repair a delta, lists what is lost.
func TestLostIsListedDespiteFailure(t *testing.T) {
	r := newRig(t, 2)
	allCodings(r)
	r.row(kvstore.Deltas, []byte("malformed"), []byte("damaged"))
	disk := &limitedDisk{FS: unsynced.FS}
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	disk.full.Store(true)
	result, err := check.RepairInPlace(t.Context(), store, log, r.options())
	if !errors.Is(err, kvstore.ErrDiskFull) {
		t.Errorf("the repair ended with %v", err)
	}
	if len(result.Lost) != 1 || result.Lost[0].Where != "/ajax/libs/many/1.1.0/dist/part3.js" {
		t.Errorf("lost: %+v", result.Lost)
	}
}

// A limitedDisk has no space left while full is true.
type limitedDisk struct {
	vfs.FS
	full atomic.Bool
}

func (d *limitedDisk) Unwrap() vfs.FS { return d.FS }

func (d *limitedDisk) GetDiskUsage(path string) (vfs.DiskUsage, error) {
	if d.full.Load() {
		return vfs.DiskUsage{TotalBytes: 1 << 40}, nil
	}
	return d.FS.GetDiskUsage(path)
}

// queued counts the contents that are to be squeezed.
func (r *rig) queued() (n int) {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer store.Close()
	for _, err := range store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.Repaired}) {
		if err != nil {
			r.Fatal(err)
		}
		n++
	}
	return n
}

func (r *rig) entry(index int64) logs.Indexed {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer store.Close()
	e, err := logs.ReadEntry(store, index)
	if err != nil {
		r.Fatal(err)
	}
	return e
}

// The rows that are in no log are taken over.
func TestRowsAreCarried(t *testing.T) {
	r := newRig(t, 3)
	r.row(kvstore.LogHashes, []byte{0, 0, 0, 0, 0, 0, 0, 3}, []byte("no hash"))
	result := r.repair(r.folder())
	if result.Damage == "" || result.Kept == "" || len(result.NotCarried) > 0 {
		t.Errorf("%+v", result)
	}
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for ns, key := range map[kvstore.Namespace]string{kvstore.Durable: "a schedule", kvstore.Meta: "setting", kvstore.Upstreams: "many", kvstore.Queue: "work"} {
		if _, err := store.Get(ns, []byte(key)); err != nil {
			t.Errorf("%q: %v", key, err)
		}
	}
	if s, err := views.LookupState(store, "many", "9.9.9"); err != nil || s.Kind != views.Failed {
		t.Errorf("%+v, %v", s, err)
	}
}

// Of a node of a cluster nothing is said to be lost that is in the bucket.
func TestLostOfANode(t *testing.T) {
	for shared, want := range map[bool]string{false: "schedules, webhooks and waiting rooms", true: "waiting rooms"} {
		r := newRig(t, 2)
		removeStore(r)
		o := r.options(r.peer())
		o.Shared = shared
		got, err := check.Repair(t.Context(), o)
		if err != nil || !slices.Contains(got.NotCarried, want) {
			t.Errorf("shared %v: %q, %v", shared, got.NotCarried, err)
		}
	}
}

// A repair that was ended goes on from there.
func TestInterrupted(t *testing.T) {
	r := newRig(t, 12)
	removeStore(r)
	for step := 1; ; step++ {
		ctx, cancel := context.WithCancel(t.Context())
		o := r.options(r.folderOnce())
		told := 0
		o.Progress = func(check.RepairProgress) {
			if told++; told == step {
				cancel()
			}
		}
		_, err := check.Repair(ctx, o)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("step %d: %v", step, err)
		}
		if _, err := os.Stat(filepath.Join(r.data, "store")); err == nil {
			t.Fatalf("step %d: there is a store already", step)
		}
	}
	r.healed()
}

// The swap is two renames, and a crash may come between them or before both.
func TestInterruptedSwap(t *testing.T) {
	r := newRig(t, 2)
	store, ready := filepath.Join(r.data, "store"), filepath.Join(r.data, "store.repaired")
	if err := os.Rename(store, ready); err != nil {
		t.Fatal(err)
	}
	result := r.repair()
	if result.Finished == "" || result.Damage != "" {
		t.Errorf("%+v", result)
	}
	r.healed()
	if did, err := check.FinishRepair(r.data, ""); did != "" || err != nil {
		t.Errorf("%q, %v", did, err)
	}
	if err := os.CopyFS(ready, os.DirFS(store)); err != nil {
		t.Fatal(err)
	}
	if did, err := check.FinishRepair(r.data, ""); !strings.Contains(did, "before it replaced anything") || err != nil {
		t.Errorf("%q, %v", did, err)
	}
	r.healed()
}

// What was erased does not come back, though a backup has it.
func TestErasedStaysErased(t *testing.T) {
	for _, rebuilt := range []bool{false, true} {
		r := newRig(t, 2)
		h := r.hash("many", "1.1.0", "noise.bin")
		r.write(func(s *shelf) {
			v, err := views.LookupVersion(s.store, "many", "1.1.0")
			s.check(err)
			m, err := logs.ReadManifest(s.store, v.Manifest)
			s.check(err)
			list := &logs.Erasure{Package: "many", Version: "1.1.0", Contents: []kvstore.Hash{h}}
			data, err := list.Encode()
			s.check(err)
			s.check(s.store.PutContent(kvstore.Sum(data), int64(len(data)), false, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}))
			s.check(s.log.Update(func(tx *logs.Tx) error {
				e := logs.Entry{Kind: logs.Withdrawn, Time: testkit.Released, Actor: "operator", Package: "many", Version: "1.1.0", Manifest: v.Manifest, Reason: "by order"}
				if err := views.Record(tx, views.Change{Entry: e, Manifest: m}); err != nil {
					return err
				}
				e.Kind, e.Erasure = logs.Erased, kvstore.Sum(data)
				tx.Batch.Remove(h)
				return views.Record(tx, views.Change{Entry: e, Erasure: list})
			}))
		})
		if rebuilt {
			r.row(kvstore.LogHashes, []byte{0, 0, 0, 0, 0, 0, 0, 3}, []byte("no hash"))
		}
		if result := r.repair(r.folder()); len(result.Lost) > 0 || (result.Damage != "") != rebuilt {
			t.Errorf("%+v", result)
		}
		store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Content(h); !errors.Is(err, kvstore.ErrNotFound) {
			t.Errorf("rebuilt %v: the erased content is back (%v)", rebuilt, err)
		}
		store.Close()
		r.healed()
	}
}

// The store that a repair has replaced stays for a month.
func TestRemoveReplaced(t *testing.T) {
	data := t.TempDir()
	for _, name := range []string{"store", "store.damaged-20260101-120000", "store.damaged-20260101-120000-2", "store.damaged-20260301-120000", "store.damaged-mine", "store.damaged-20260101-120000-evidence", "other"} {
		if err := os.MkdirAll(filepath.Join(data, name, "folder"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := check.RemoveReplaced(data, time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC))
	if err != nil || len(removed) != 2 {
		t.Fatalf("%v, %v", removed, err)
	}
	left, err := filepath.Glob(filepath.Join(data, "*"))
	if err != nil || len(left) != 5 {
		t.Errorf("%v, %v", left, err)
	}
	if removed, err := check.RemoveReplaced(filepath.Join(data, "none"), time.Now()); err != nil || len(removed) > 0 {
		t.Errorf("%v, %v", removed, err)
	}
}
