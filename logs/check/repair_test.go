package check_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
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

// queued counts the contents that are to be squeezed.
func (r *rig) queued() (n int) {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer store.Close()
	for _, err := range store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.Mended}) {
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

// A backup that is older than what was signed is no dead end, wherever the end is had from.
func TestTheLogsEnd(t *testing.T) {
	for _, lost := range []string{"a backup", "the write-ahead log", "everything"} {
		for _, source := range []string{"folder", "peer"} {
			t.Run(lost+" "+source, func(t *testing.T) {
				r := newRig(t, 2)
				old := filepath.Join(t.TempDir(), "old")
				r.write(func(s *shelf) { s.check2(s.store.Backup(t.Context(), old, nil)) })
				r.write(func(s *shelf) {
					s.publish(2, 5)
					s.check(os.RemoveAll(filepath.Join(r.copied, "store")))
					s.check2(s.store.Backup(t.Context(), filepath.Join(r.copied, "store"), nil))
				})
				switch lost {
				case "a backup":
					removeStore(r)
					if err := errors.Join(os.MkdirAll(r.data, 0o700), os.Rename(old, filepath.Join(r.data, "store"))); err != nil {
						t.Fatal(err)
					}
				case "the write-ahead log":
					cutLog(r)
				case "everything":
					removeStore(r)
				}
				_, err := check.Repair(t.Context(), r.options())
				var loss *check.LossError
				if lost != "everything" && (!errors.As(err, &loss) || loss.Size != r.signed()) {
					t.Errorf("without a source: %v", err)
				}
				var sources []check.Source
				if lost != "a backup" { // which is one that is too old
					older, err := replication.OpenFolder(old, nil)
					if err != nil {
						t.Fatal(err)
					}
					defer older.Close()
					sources = append(sources, older)
				}
				if source == "folder" {
					sources = append(sources, r.folder())
				} else {
					sources = append(sources, r.peer())
				}
				result := r.repair(sources...)
				if len(result.Lost) > 0 && (lost != "everything" || source != "peer") {
					t.Errorf("lost %+v", result.Lost)
				}
				r.healed()
			})
		}
	}
}

func (r *rig) signed() int64 {
	r.Helper()
	text, err := os.ReadFile(filepath.Join(r.keys, "checkpoint"))
	if err != nil {
		r.Fatal(err)
	}
	var n int64
	for _, d := range strings.Split(string(text), "\n")[1] {
		n = 10*n + int64(d-'0')
	}
	return n
}

// What a source says is never believed.
func TestLyingSources(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		chunk := make([]byte, 64<<10)
		for {
			if _, err := w.Write(chunk); err != nil {
				return
			}
		}
	}
	other := func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("other bytes")) }
	broken := func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }
	for name, lie := range map[string]http.HandlerFunc{"other bytes": other, "endless": endless, "broken": broken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits a lot
			r := newRig(t, 3)
			allCodings(r)
			r.lies["/content/"] = lie
			result := r.repair(r.peer())
			if len(result.Lost) != 1 || result.Lost[0].Where != "/ajax/libs/many/1.1.0/dist/part3.js" || !strings.Contains(result.Lost[0].Problem, "http://") {
				t.Errorf("lost %+v", result.Lost)
			}
			result = r.repair(r.peerAgain(), r.folder())
			if len(result.Lost) > 0 {
				t.Errorf("with an honest one too: lost %+v", result.Lost)
			}
		})
	}
	for name, lie := range map[string]http.HandlerFunc{"other entries": other, "endless entries": endless, "no entries": broken} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits a lot
			r := newRig(t, 3)
			removeStore(r)
			r.lies["/log/tile/entries/"] = lie
			_, err := check.Repair(t.Context(), r.options(r.peer()))
			var loss *check.LossError
			if !errors.As(err, &loss) || loss.Entries[0].From != 0 {
				t.Errorf("%v", err)
			}
			if _, err := os.Stat(filepath.Join(r.data, "store")); err == nil {
				t.Error("there is a store")
			}
			r.repair(r.peerAgain(), r.folder())
			r.healed()
		})
	}
}

// Entries that are right one by one, in an order that was not signed.
func TestOtherEntriesThanThoseSigned(t *testing.T) {
	r := newRig(t, 3)
	s := newRig(t, 4) // another log
	removeStore(r)
	liar := s.folder()
	honest := r.folder()
	_, err := check.Repair(t.Context(), r.options(liar))
	if err == nil || !strings.Contains(err.Error(), "are not") && !strings.Contains(err.Error(), "signed") {
		t.Errorf("%v", err)
	}
	result := r.repair(liar, honest)
	for _, u := range result.Sources {
		if u.Name == liar.Name() && u.Entries > 0 {
			t.Errorf("%+v", result.Sources)
		}
	}
	r.healed()
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

// Nothing is replaced where it is not known what was signed.
func TestNoKeys(t *testing.T) {
	r := newRig(t, 2)
	r.flip(r.files(".sst")[0], 0.4)
	o := r.options(r.folder())
	o.Keys = t.TempDir()
	if _, err := check.Repair(t.Context(), o); err == nil {
		t.Error("repaired without knowing what was signed")
	}
	removeStore(r)
	if _, err := check.Repair(t.Context(), o); err == nil {
		t.Error("built without knowing what was signed")
	}
}

// folderOnce is the copy, for one repair; the test's end closes it.
func (r *rig) folderOnce() check.Source {
	r.Helper()
	if r.copyOpen == nil {
		r.copyOpen = r.folder()
	}
	return r.copyOpen
}

// peerAgain is the same neighbour, by another client.
func (r *rig) peerAgain() check.Source {
	return peer(r.url)
}

// Where the end of the log is nowhere, it goes on as another one, on the operator's word only.
func TestAcceptLoss(t *testing.T) {
	for _, tt := range []struct {
		name   string
		damage func(*rig)
		left   int64 // entries
	}{
		{"the write-ahead log", cutLog, 6},
		{"everything", removeStore, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 2) // of 6 entries, which the copy has
			before := r.urls
			r.write(func(s *shelf) { s.publish(2, 5) })
			lost := r.signed()
			tt.damage(r)
			_, err := check.Repair(t.Context(), r.options(r.folderOnce()))
			var loss *check.LossError
			if !errors.As(err, &loss) {
				t.Fatalf("without the operator's word: %v", err)
			}
			o := r.options(r.folderOnce())
			o.AcceptLoss = true
			result, err := check.Repair(t.Context(), o)
			if err != nil {
				t.Fatalf("%v\n%+v", err, r.findings)
			}
			next := result.Succession
			if next == nil || next.Former != origin || !strings.HasPrefix(next.Origin, origin+"/after-") || next.Lost.To != lost || next.Lost.From < tt.left {
				t.Fatalf("%+v", next)
			}
			for _, name := range []string{"log.key", "log.pub", "checkpoint"} {
				if _, err := os.Stat(filepath.Join(next.Kept, name)); err != nil {
					t.Error(err)
				}
			}
			e := r.entry(next.Lost.From)
			if e.Kind != logs.LossAccepted || e.Lost != next.Lost || !strings.HasPrefix(e.Former, origin+"\n") {
				t.Errorf("%+v", e.Entry)
			}
			r.origin = next.Origin
			r.urls = nil
			r.write(func(*shelf) {}) // which reads what is served
			for path, data := range before {
				if r.urls[path] != data {
					t.Errorf("%s is lost", path)
				}
			}
			r.healed()
			if again := r.repair(); again.Succession != nil || again.Findings > 0 {
				t.Errorf("the next one: %+v", again)
			}
		})
	}
	r := newRig(t, 2)
	removeStore(r)
	o := r.options()
	o.AcceptLoss = true
	if _, err := check.Repair(t.Context(), o); err == nil || !strings.Contains(err.Error(), "nothing of the log") {
		t.Errorf("with nothing at all: %v", err)
	}
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

// A log that was never signed is compared with its own tree.
func TestNeverSigned(t *testing.T) {
	r := newRig(t, 2)
	b := []byte("signed-by")
	for _, key := range [][]byte{b, []byte("signed")} {
		r.row(kvstore.LogState, key, nil)
	}
	r.row(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil)
	o := r.options()
	o.Keys = t.TempDir()
	// The entry was removed, and its bytes are in the files all the same.
	result, err := check.Repair(t.Context(), o)
	if err != nil || result.Damage == "" || len(result.Lost) > 0 {
		t.Fatalf("%v, %+v", err, result)
	}
	r.healed()
}

// TestMissingPublishAttestation: a mirror of version 0.1.0 does not copy the registry's attestation of a publication, which its
// entries name. After an update it is reported as missing, and repaired from the source.
func TestMissingPublishAttestation(t *testing.T) {
	bundle := []byte(`{"publish":"attestation"}`)
	hash := kvstore.Sum(bundle)
	for _, source := range []string{"folder", "peer"} {
		t.Run(source, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			r.write(func(s *shelf) {
				s.check(s.store.PutContent(hash, int64(len(bundle)), true, []kvstore.Coded{{Coding: coding.Identity, Bytes: bundle}}))
				published, err := logs.Publication(s.store, "many", "1.0.0")
				s.check(err)
				published.Provenance = &logs.Provenance{Outcome: logs.AttestationMissing, Publish: logs.Publish{Outcome: logs.AttestationVerified, Bundle: hash}}
				m, err := logs.ReadManifest(s.store, published.Manifest)
				s.check(err)
				again := *m
				again.Version = "2.0.0"
				data, err := again.Encode()
				s.check(err)
				published.Version, published.Manifest = "2.0.0", kvstore.Sum(data)
				s.check(s.store.PutContent(published.Manifest, int64(len(data)), true, []kvstore.Coded{{Coding: coding.Identity, Bytes: data}}))
				s.check(s.log.Update(func(tx *logs.Tx) error {
					return views.Record(tx, views.Change{Entry: published.Entry, Manifest: &again})
				}))
			})
			if err := os.RemoveAll(filepath.Join(r.copied, "store")); err != nil {
				t.Fatal(err)
			}
			r.write(func(s *shelf) { s.check2(s.store.Backup(t.Context(), filepath.Join(r.copied, "store"), nil)) })
			r.row(kvstore.Contents, hash[:], nil)
			if found := r.damaged(); len(found) != 1 || !strings.Contains(found[0].Problem, hash.String()+": not found") {
				t.Fatalf("fsck finds %+v", found)
			}
			from := r.folder
			if source == "peer" {
				from = r.peer
			}
			if result, err := check.Repair(t.Context(), r.options(from())); err != nil || result.Damage != "" || len(result.Lost) > 0 {
				t.Errorf("%+v, %v", result, err)
			}
			r.healed()
		})
	}
}

// damaged returns what a deep check finds.
func (r *rig) damaged() (found []check.Finding) {
	r.Helper()
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		r.Fatal(err)
	}
	defer store.Close()
	if _, err := check.Run(r.Context(), store, check.Options{Deep: true, Keys: r.keys, Temp: r.TempDir()}, func(f check.Finding) { found = append(found, f) }); err != nil {
		r.Fatal(err)
	}
	return found
}
