package check_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/replication"
)

// A backup that is older than what was signed can be repaired, whichever source has the end.
func TestTheLogsEnd(t *testing.T) {
	for _, lost := range []string{"a backup", "the write-ahead log", "everything"} {
		for _, source := range []string{"folder", "peer"} {
			t.Run(lost+" "+source, func(t *testing.T) {
				r := newRig(t, 2)
				old := filepath.Join(t.TempDir(), "old")
				r.write(func(s *shelf) { testkit.CopyStore(t, s.store, old) })
				r.write(func(s *shelf) {
					s.publish(2, 5)
					s.check(os.RemoveAll(filepath.Join(r.copied, "store")))
					testkit.CopyStore(t, s.store, filepath.Join(r.copied, "store"))
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
