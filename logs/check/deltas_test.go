package check_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/check"
)

// TestDeltasAreRepaired tests that a repair removes a damaged delta, and that deltas which it removes, or which a new store does not have, are queued to be
// made or fetched again.
func TestDeltasAreRepaired(t *testing.T) {
	older, newer := testkit.VersionedScript("1.0.0"), testkit.VersionedScript("1.0.1")
	h, dictionary := kvstore.Sum([]byte(newer)), kvstore.Sum([]byte(older))
	delta, err := coding.EncodeDelta([]byte(older), []byte(newer))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name    string
		damage  func(*rig)
		source  func(*rig) check.Source
		rebuilt bool
		queued  int
	}{
		{"the delta", func(r *rig) {
			r.row(kvstore.Blobs, append(append(h[:], byte(coding.DCZ)), dictionary[:]...), []byte("damaged"))
		}, nil, false, 1},
		{"its row", func(r *rig) {
			r.row(kvstore.Deltas, slices.Concat([]byte{'c'}, h[:], dictionary[:]), []byte("damaged"))
		}, nil, false, 1},
		{"the log", func(r *rig) { r.row(kvstore.LogHashes, []byte{0, 0, 0, 0, 0, 0, 0, 3}, []byte("no hash")) }, nil, true, 1},
		{"the store, of which there is a copy", removeStore, (*rig).folder, true, 1},
		{"the store, which a server has", removeStore, (*rig).peer, true, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1)
			os.RemoveAll(filepath.Join(r.copied, "store"))
			r.write(func(s *shelf) {
				for version, text := range map[string]string{"1.0.0": older, "1.0.1": newer} {
					s.check(testkit.Publish(s.store, []testkit.Release{{Package: "lib", Version: version, Files: map[string][]byte{"lib.js": []byte(text)}}}))
				}
				if stored, err := s.store.PutDelta(h, delta); err != nil || !stored {
					t.Fatal(stored, err)
				}
				carried := 0
				for row, err := range check.CarriedRows(s.store) {
					s.check(err)
					if of, against, ok := kvstore.ParseQueuedDeltaKey(row.Key); row.Namespace == kvstore.Queue && ok && of == h && against == dictionary {
						carried++
					}
				}
				if carried != 1 {
					t.Errorf("a backup has %d deltas to make again, want one", carried)
				}
				testkit.CopyStore(t, s.store, filepath.Join(r.copied, "store"))
			})
			var sources []check.Source
			if tt.source != nil {
				sources = []check.Source{tt.source(r)}
			}
			tt.damage(r)
			result := r.repair(sources...)
			if (result.Damage != "") != tt.rebuilt || !tt.rebuilt && (result.Findings == 0 || result.Findings != result.Repaired) {
				t.Errorf("the result is %+v", result)
			}
			store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			defer store.Close()
			if got, err := store.Deltas(h); err != nil || len(got) != 0 {
				t.Errorf("the store has the deltas %v, %v", got, err)
			}
			queued := 0
			for item, err := range store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.QueuedDeltas}) {
				if err != nil {
					t.Fatal(err)
				}
				if of, against, ok := kvstore.ParseQueuedDeltaKey(item.Key); !ok || of != h || against != dictionary {
					t.Errorf("queued: %x", item.Key)
				}
				queued++
			}
			if queued != tt.queued {
				t.Errorf("%d deltas are queued, want %d", queued, tt.queued)
			}
			_, err = check.Run(t.Context(), store, check.Options{Deep: true, Keys: r.keys, Temp: t.TempDir()}, func(f check.Finding) {
				if !strings.Contains(f.Where, "demo/0.9.0") { // it was withdrawn, so servers do not send it
					t.Errorf("fsck finds %+v", f)
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
