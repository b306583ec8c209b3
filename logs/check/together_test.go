package check_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// Nothing is given up while a source that does not answer may have it.
func TestAcceptLossBesideASilentSource(t *testing.T) {
	r := newRig(t, 2)
	r.write(func(s *shelf) { s.publish(2, 5) })
	signed := r.signed()
	cutLog(r)
	peer := r.peer()
	r.lies["/"] = func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	o := r.options(r.folderOnce(), peer)
	o.AcceptLoss = true
	result, err := check.Repair(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), "nothing is given up while a source may have it") || result.Succession != nil {
		t.Fatalf("beside a source that does not answer: %v, %+v", err, result.Succession)
	}
	if r.signed() != signed {
		t.Errorf("%d entries are signed, and were %d", r.signed(), signed)
	}
	o = r.options(r.folderOnce())
	o.AcceptLoss = true
	if result, err := check.Repair(t.Context(), o); err != nil || result.Succession == nil {
		t.Errorf("without it: %v, %+v", err, result.Succession)
	}
}

// Of two repairs at once, one does nothing.
func TestTwoRepairsAtOnce(t *testing.T) {
	r := newRig(t, 2)
	allCodings(r)
	o := r.options(r.folderOnce())
	tried := 0
	o.Progress = func(p check.RepairProgress) {
		if p.Step != "checking" || tried > 0 {
			return
		}
		tried++
		second := o
		second.Temp, second.Progress, second.Report = t.TempDir(), func(check.RepairProgress) {}, func(f check.Finding) { t.Errorf("the second one finds %+v", f) }
		if result, err := check.Repair(t.Context(), second); !errors.Is(err, kvstore.ErrLocked) || result.Findings > 0 {
			t.Errorf("the second one: %v, %+v", err, result)
		}
	}
	if _, err := check.Repair(t.Context(), o); err != nil || tried == 0 {
		t.Fatalf("%v, and %d others meanwhile", err, tried)
	}
	r.healed()
}

// What an interrupted repair has left is finished, or replaced, where nothing was ever signed, too.
func TestLeftoverWhereNothingWasSigned(t *testing.T) {
	for _, leftover := range []string{"its own", "another's"} {
		t.Run(leftover, func(t *testing.T) {
			r := newRig(t, 2)
			for _, key := range []string{"signed-by", "signed"} {
				r.row(kvstore.LogState, []byte(key), nil)
			}
			r.row(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil)
			building := filepath.Join(r.data, "store.repairing")
			o := r.options(r.folderOnce())
			o.Keys = t.TempDir()
			if leftover == "another's" {
				if err := errors.Join(os.MkdirAll(building, 0o700), os.WriteFile(filepath.Join(building, "CURRENT"), []byte("nonsense"), 0o600)); err != nil {
					t.Fatal(err)
				}
			} else {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				o.Progress = func(p check.RepairProgress) {
					if _, err := os.Stat(building); err == nil && p.Done > 0 {
						cancel()
					}
				}
				if _, err := check.Repair(ctx, o); !errors.Is(err, context.Canceled) || !check.RepairInterrupted(r.data) {
					t.Fatalf("the first one: %v, interrupted: %v", err, check.RepairInterrupted(r.data))
				}
				o.Progress = nil
			}
			result, err := check.Repair(t.Context(), o)
			if err != nil || len(result.Lost) > 0 || check.RepairInterrupted(r.data) {
				t.Fatalf("%v, %+v", err, result)
			}
			r.healed()
		})
	}
}

// What is published while the store is repaired in place stays, and the views follow from it.
func TestPublicationWhileHealingInPlace(t *testing.T) {
	r := newRig(t, 2)
	allCodings(r)
	r.row(kvstore.Versions, kvstore.Key("many", "1.1.0"), nil)
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log, err := logs.Open(store)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := signing.Open(signing.Options{Dir: r.keys, Origin: r.origin, Store: store, Log: log, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	published := make(chan error)
	begun := false
	o := r.options(r.folderOnce())
	o.Progress = func(p check.RepairProgress) {
		if begun || p.Step != "checking" {
			return
		}
		begun = true
		go func() {
			published <- log.Update(func(tx *logs.Tx) error {
				return views.Record(tx, views.Change{Entry: logs.Entry{Kind: logs.Refused, Time: testkit.Released, Actor: "bot", Package: "many", Version: "8.0.0", Reason: "meanwhile"}})
			})
		}()
	}
	if _, err := check.RepairInPlace(t.Context(), store, log, o); err != nil {
		t.Fatalf("%v\n%+v", err, r.findings)
	}
	if !begun {
		t.Fatal("nothing was published meanwhile")
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	if s, err := views.LookupState(store, "many", "8.0.0"); err != nil || s.Kind != views.Refused {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := views.LookupVersion(store, "many", "1.1.0"); err != nil {
		t.Errorf("it is not healed: %v", err)
	}
	if err := errors.Join(signer.Sign(), signer.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	r.healed()
}

// A release that was withdrawn is not served again because its manifest is lost.
func TestWithdrawalWhoseManifestIsLost(t *testing.T) {
	r := newRig(t, 2)
	old := filepath.Join(t.TempDir(), "old")
	var manifest kvstore.Hash
	forget := func(s *shelf) {
		b := s.store.NewBatch()
		defer b.Close()
		b.Remove(manifest)
		s.check(b.Commit())
	}
	r.write(func(s *shelf) {
		v, err := views.LookupVersion(s.store, "many", "1.1.0")
		s.check(err)
		manifest = v.Manifest
		testkit.CopyStore(t, s.store, old)
	})
	r.write(func(s *shelf) {
		m, err := logs.ReadManifest(s.store, manifest)
		s.check(err)
		s.check(s.log.Update(func(tx *logs.Tx) error {
			return views.Record(tx, views.Change{Manifest: m, Entry: logs.Entry{
				Kind: logs.Withdrawn, Time: testkit.Released, Actor: "operator", Package: "many", Version: "1.1.0", Manifest: manifest, Reason: "by order",
			}})
		}))
	})
	r.write(func(s *shelf) { // neither the source nor the store has the manifest
		forget(s)
		s.check(os.RemoveAll(filepath.Join(r.copied, "store")))
		testkit.CopyStore(t, s.store, filepath.Join(r.copied, "store"))
	})
	removeStore(r)
	if err := errors.Join(os.MkdirAll(r.data, 0o700), os.Rename(old, filepath.Join(r.data, "store"))); err != nil {
		t.Fatal(err)
	}
	before, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	forget(&shelf{TB: t, store: before})
	if _, err := views.LookupFile(before, "many", "1.1.0", "shared.js"); err != nil {
		t.Fatalf("it is not served to begin with: %v", err)
	}
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	// The bytes of the manifest may be in a file of the store all the same.
	if result, err := check.Repair(t.Context(), r.options(r.folder())); err != nil {
		t.Fatalf("%v, %+v", err, result)
	}
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if f, err := views.LookupFile(store, "many", "1.1.0", "shared.js"); !errors.Is(err, kvstore.ErrNotFound) {
		t.Errorf("it is served again: %+v, %v", f, err)
	}
	if _, err := views.LookupFile(store, "many", "1.0.0", "shared.js"); err != nil {
		t.Errorf("others are not: %v", err)
	}
}

// What was deleted after an interrupted repair has taken it over is not in the store that the next repair completes.
func TestDeletedAfterInterruptedRepair(t *testing.T) {
	r := newRig(t, 2)
	r.row(kvstore.LogEntries, []byte{0, 0, 0, 0, 0, 0, 0, 3}, nil)
	deleted := []kvstore.Item{
		{Key: []byte("a schedule"), Value: []byte("tomorrow")},
		{Key: kvstore.Key("many", "1.1.0"), Value: []byte{}},
	}
	r.row(kvstore.Absent, deleted[1].Key, deleted[1].Value)
	o := r.options(r.folderOnce())
	stop := errors.New("stopped by the test")
	o.Built = func(*kvstore.Store) error { return stop }
	if _, err := check.Repair(t.Context(), o); !errors.Is(err, stop) || !check.RepairInterrupted(r.data) {
		t.Fatalf("the first repair: %v, interrupted: %v", err, check.RepairInterrupted(r.data))
	}
	r.row(kvstore.Durable, deleted[0].Key, nil)
	r.row(kvstore.Absent, deleted[1].Key, nil)
	o.Built = func(store *kvstore.Store) error {
		if _, err := store.Get(kvstore.Durable, deleted[0].Key); !errors.Is(err, kvstore.ErrNotFound) {
			t.Errorf("the deleted schedule: %v", err)
		}
		if value, err := store.Get(kvstore.Meta, []byte("setting")); err != nil || string(value) != "on" {
			t.Errorf("the setting that is still there: %q, %v", value, err)
		}
		return nil
	}
	if _, err := check.Repair(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	r.healed()
}
