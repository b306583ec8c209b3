package repair_test

import (
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// Whatever one file of the store suffers, one command heals it, from a backup: the same bytes under the same URLs, and the same
// log goes on. LARDER_TEST_SWEEP says at how many positions of each kind of file (make sweep).
func TestSweepRepair(t *testing.T) {
	positions := 1
	if n, err := strconv.Atoi(os.Getenv("LARDER_TEST_SWEEP")); err == nil {
		positions = n
	} else if testing.Short() {
		t.Skip("repairs a store some times")
	}
	r := newRig(t, 2)
	pristine, keys, urls := filepath.Join(t.TempDir(), "store"), filepath.Join(t.TempDir(), "keys"), r.urls
	copyFolder(t, filepath.Join(r.data, "store"), pristine)
	copyFolder(t, r.keys, keys)
	backup := r.folder()
	seeded := rand.New(rand.NewPCG(14, 2))
	for _, kind := range []string{"MANIFEST-", "OPTIONS-", ".log", ".sst", ".blob"} {
		for _, damage := range damages {
			outcomes := map[string]int{}
			for range positions {
				for from, to := range map[string]string{pristine: filepath.Join(r.data, "store"), keys: r.keys} {
					if err := os.RemoveAll(to); err != nil {
						t.Fatal(err)
					}
					copyFolder(t, from, to)
				}
				r.urls = maps.Clone(urls)
				files := slices.DeleteFunc(r.files(kind), func(path string) bool {
					info, err := os.Stat(path)
					return err != nil || info.Size() == 0
				})
				if len(files) == 0 {
					continue
				}
				path := files[seeded.IntN(len(files))]
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				at := seeded.IntN(len(data))
				t.Logf("%s: %s at byte %d of %d", damage.name, filepath.Base(path), at, len(data))
				if damaged := damage.do(data, at); damaged == nil {
					err = os.Remove(path)
				} else {
					err = os.WriteFile(path, damaged, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
				result := r.repair(backup)
				switch {
				case len(result.Lost) > 0 || result.Err() != nil:
					t.Errorf("%s: %s at byte %d of %d: %+v", damage.name, filepath.Base(path), at, len(data), result)
				case result.Damage != "":
					outcomes["a new store"]++
				case result.Repaired > 0:
					outcomes["healed in place"]++
				default:
					outcomes["unaffected"]++
				}
				r.healed()
				if t.Failed() {
					t.Fatalf("%s: %s at byte %d of %d: %+v", damage.name, filepath.Base(path), at, len(data), r.findings)
				}
				for _, kept := range r.kept() {
					if err := os.RemoveAll(kept); err != nil {
						t.Fatal(err)
					}
				}
			}
			t.Logf("%-10s %-12s %v", kind, damage.name, outcomes)
		}
	}
}

// damages are what can become of a file's bytes; nil is that it is gone.
var damages = []struct {
	name string
	do   func(data []byte, at int) []byte
}{
	{"a bit", func(data []byte, at int) []byte { data[at] ^= 1 << (at % 8); return data }},
	{"zeroed page", func(data []byte, at int) []byte { clear(data[at&^4095 : min(len(data), at&^4095+4096)]); return data }},
	{"cut short", func(data []byte, at int) []byte { return data[:at] }},
	{"missing", func([]byte, int) []byte { return nil }},
}

func copyFolder(t *testing.T, from, to string) {
	t.Helper()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) kept() []string {
	r.Helper()
	kept, err := filepath.Glob(filepath.Join(r.data, "store.damaged-*"))
	if err != nil {
		r.Fatal(err)
	}
	return kept
}
