package check_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

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
				published, err := logs.LastPublication(s.store, "many", "1.0.0")
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
			r.write(func(s *shelf) { testkit.CopyStore(t, s.store, filepath.Join(r.copied, "store")) })
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
