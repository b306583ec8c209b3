package check_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit/unsynced"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/check"
	"github.com/larder-cdn/larder/logs/views"
)

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

// A damage changes the files of a store, of one kind of which it names, and says what it did.
type damage struct {
	name string
	do   func(s *sweep, kind string) string
}

// A sweep damages a store again and again, without a backup.
type sweep struct {
	*rig
	seeded                           *rand.Rand
	pristine, keys, earlier, foreign string
	entries                          [][]byte          // of the log
	served                           map[string]string // what was served
}

func newSweep(t *testing.T) *sweep {
	r := newRig(t, 2)
	s := &sweep{rig: r, seeded: rand.New(rand.NewPCG(32, 2))}
	for _, dir := range []*string{&s.pristine, &s.keys, &s.earlier, &s.foreign} {
		*dir = filepath.Join(t.TempDir(), "files")
	}
	copyFolder(t, filepath.Join(r.data, "store"), s.earlier)
	r.memTable = 32 << 10 // so that there are tables and blob files
	for v := 2; v < 5; v++ {
		r.write(func(s *shelf) { s.publish(v, v+1) })
	}
	r.memTable = 0
	r.write(func(s *shelf) { s.publish(5, 7); s.carry() })
	copyFolder(t, filepath.Join(r.data, "store"), s.pristine)
	copyFolder(t, r.keys, s.keys)
	copyFolder(t, filepath.Join(newRig(t, 4).data, "store"), s.foreign)
	s.served = maps.Clone(r.urls)
	store, err := kvstore.Open(filepath.Join(r.data, "store"), kvstore.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			t.Fatal(err)
		}
		s.entries = append(s.entries, e.Raw)
	}
	return s
}

// reset brings the sound store back.
func (s *sweep) reset() {
	s.Helper()
	for from, to := range map[string]string{s.pristine: filepath.Join(s.data, "store"), s.keys: s.rig.keys} {
		if err := os.RemoveAll(to); err != nil {
			s.Fatal(err)
		}
		copyFolder(s, from, to)
	}
	for _, kept := range s.kept() {
		if err := os.RemoveAll(kept); err != nil {
			s.Fatal(err)
		}
	}
	if err := os.RemoveAll(filepath.Join(s.data, "store.repairing")); err != nil {
		s.Fatal(err)
	}
}

// file picks a file of a kind, and returns its content.
func (s *sweep) file(kind string) (path string, data []byte) {
	s.Helper()
	files := s.files(kind)
	if kind != "marker." {
		files = slices.DeleteFunc(files, func(path string) bool {
			info, err := os.Stat(path)
			return err != nil || info.Size() == 0
		})
	}
	path = files[s.seeded.IntN(len(files))]
	data, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	return path, data
}

// another returns the file with that name in another folder, or one of that kind.
func (s *sweep) another(dir, path, kind string) []byte {
	s.Helper()
	data, err := os.ReadFile(filepath.Join(dir, filepath.Base(path)))
	if err == nil {
		return data
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		s.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name.Name(), kind) || strings.HasPrefix(name.Name(), kind) {
			if data, err = os.ReadFile(filepath.Join(dir, name.Name())); err == nil {
				return data
			}
		}
	}
	return nil
}

func (s *sweep) damages() (all []damage) {
	for _, d := range damages {
		all = append(all, damage{d.name, func(s *sweep, kind string) string {
			path, data := s.file(kind)
			at := 0
			var damaged []byte
			if len(data) > 0 { // else it can only be missing
				at = s.seeded.IntN(len(data))
				damaged = d.do(data, at)
			}
			if damaged != nil {
				s.replace(path, damaged)
			} else if err := os.Remove(path); err != nil {
				s.Fatal(err)
			}
			return fmt.Sprintf("%s: %s at byte %d of %d", d.name, filepath.Base(path), at, len(data))
		}})
	}
	return append(all, damage{"swapped", func(s *sweep, kind string) string {
		one, first := s.file(kind)
		other, second := s.file([]string{".sst", ".blob", ".log"}[s.seeded.IntN(3)])
		s.replace(one, second)
		s.replace(other, first)
		return fmt.Sprintf("swapped: %s and %s", filepath.Base(one), filepath.Base(other))
	}}, damage{"an old copy", func(s *sweep, kind string) string {
		path, _ := s.file(kind)
		if old := s.another(s.earlier, path, kind); old != nil {
			s.replace(path, old)
		}
		return "an old copy of " + filepath.Base(path)
	}}, damage{"another store's", func(s *sweep, kind string) string {
		path, _ := s.file(kind)
		data := s.another(s.foreign, path, kind)
		if s.seeded.IntN(2) == 0 && kind != "marker." { // beside it, with a number of its own
			path = filepath.Join(filepath.Dir(path), strings.Replace("9"+filepath.Base(path), "9MANIFEST-", "MANIFEST-9", 1))
			path = strings.Replace(path, "9OPTIONS-", "OPTIONS-9", 1)
		} else if err := os.Remove(path); err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			s.Fatal(err)
		}
		return "another store's file as " + filepath.Base(path)
	}})
}

// indexOnly are the kinds of files whose loss loses nothing.
var indexOnly = []string{"marker.", "MANIFEST-", "OPTIONS-"}

// Whatever one file of the store suffers, without a backup: what is intact comes back, nothing wrong is ever served, and what is
// lost is listed one by one. LARDER_TEST_SWEEP says how often each kind of file suffers each kind of damage (make sweep).
func TestSweepRepair(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long in one goroutine, where the race detector has nothing to find")
	}
	rounds, err := strconv.Atoi(os.Getenv("LARDER_TEST_SWEEP"))
	long := err == nil
	if !long {
		rounds = 1
	}
	s := newSweep(t)
	for _, kind := range append(slices.Clone(indexOnly), ".log", ".sst", ".blob") {
		for i, damage := range s.damages() {
			if !long && i%3 != len(kind)%3 {
				continue // the short form takes a part
			}
			outcomes := map[string]int{}
			for range rounds {
				s.reset()
				what := damage.do(s, kind)
				outcomes[s.outcome(what, slices.Contains(indexOnly, kind))]++
				if t.Failed() {
					t.Fatalf("%s: %+v", what, s.findings)
				}
			}
			t.Logf("%-10s %-16s %v", kind, damage.name, outcomes)
		}
	}
}

// outcome repairs the store, checks what there is then, and says what came of it.
func (s *sweep) outcome(what string, losesNothing bool) string {
	s.Helper()
	result, err := check.Repair(s.Context(), s.options())
	var loss *check.LossError
	switch {
	case errors.As(err, &loss):
		if losesNothing {
			s.Fatalf("%s: %v", what, err)
		}
		s.wantListed(what, loss)
		return s.accept(what, loss)
	case err != nil:
		s.Fatalf("%s: %v\n%+v", what, err, s.findings)
	}
	if losesNothing && len(result.Lost) > 0 {
		s.Errorf("%s: %+v", what, result.Lost)
	}
	missing := s.wantServed(what, result.Lost)
	switch {
	case missing > 0:
		return "contents lost, and listed"
	case len(result.NotCarried) > 0:
		return "rows outside of the log may be lost, and are listed"
	case result.Damage != "":
		return "everything in a new store"
	case result.Repaired > 0:
		return "repaired in place"
	}
	return "unaffected"
}

// wantServed fails unless every file is served as it was, or its content is listed as lost.
func (s *sweep) wantServed(what string, lost []check.Lost) (missing int) {
	s.Helper()
	store, err := kvstore.Open(filepath.Join(s.data, "store"), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
	defer store.Close()
	for path, want := range s.served {
		got, err := store.Identity(kvstore.Sum([]byte(want)))
		if err == nil && string(got) == want {
			continue
		}
		missing++
		parts := strings.SplitN(path, "/", 3) // of a release whose manifest is lost, that is listed
		if !slices.ContainsFunc(lost, func(l check.Lost) bool {
			return l.Where == "/ajax/libs/"+path || strings.HasSuffix(l.Where, " "+parts[0]+" "+parts[1]+")")
		}) {
			s.Errorf("%s: %s is missing (%v), and not listed as lost", what, path, err)
		}
	}
	for index, want := range s.entries {
		if got, err := logs.RawEntry(store, int64(index)); err != nil || !bytes.Equal(got, want) {
			s.Errorf("%s: entry %d: %v", what, index, err)
		}
	}
	_, err = check.Run(s.Context(), store, check.Options{Keys: s.rig.keys, Temp: s.TempDir()}, func(f check.Finding) {
		if f.Kind != check.Content || len(lost) == 0 {
			s.Errorf("%s: fsck finds %+v", what, f)
		}
	})
	if err != nil {
		s.Errorf("%s: %v", what, err)
	}
	return missing
}

// wantListed fails unless each entry that is missing was reported, and nothing was replaced.
func (s *sweep) wantListed(what string, loss *check.LossError) {
	s.Helper()
	for _, lost := range loss.Entries {
		for index := lost.From; index < lost.To; index++ {
			where := fmt.Sprintf("entry %d", index)
			if !slices.ContainsFunc(s.findings, func(f check.Finding) bool { return f.Kind == check.Log && f.Where == where }) {
				s.Errorf("%s: %s is not reported", what, where)
			}
		}
	}
	if len(s.kept()) > 0 {
		s.Errorf("%s: the store was replaced", what)
	}
}

// accept goes on without what is lost. What is served then is what was published.
func (s *sweep) accept(what string, loss *check.LossError) string {
	s.Helper()
	o := s.options()
	o.AcceptLoss = true
	if _, err := check.Repair(s.Context(), o); err != nil {
		if strings.Contains(err.Error(), "nothing of the log") {
			return "the log is lost, and listed"
		}
		s.Fatalf("%s, accepted: %v\n%+v", what, err, s.findings)
	}
	store, err := kvstore.Open(filepath.Join(s.data, "store"), kvstore.Options{FS: unsynced.FS})
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
	defer store.Close()
	for f, err := range views.AllFiles(store) {
		if err != nil {
			s.Fatalf("%s: %v", what, err)
		}
		path := f.Package + "/" + f.Version + "/" + f.Path
		if data, err := store.Identity(f.Hash); err == nil && s.served[path] != string(data) {
			s.Errorf("%s: %s is served with other bytes", what, path)
		}
	}
	for index := range loss.Entries[0].From {
		if got, err := logs.RawEntry(store, index); err != nil || !bytes.Equal(got, s.entries[index]) {
			s.Errorf("%s, accepted: entry %d: %v", what, index, err)
		}
	}
	return "entries lost, and listed"
}

func copyFolder(t testing.TB, from, to string) {
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
