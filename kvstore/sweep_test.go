package kvstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// LARDER_TEST_SWEEP makes the long tests whole, as `make sweep` has them: at so many positions
// of each kind of file, or for so many rounds.
var (
	positions, _ = strconv.Atoi(os.Getenv("LARDER_TEST_SWEEP"))
	sweeps       = positions > 0
)

// outcomes counts what came of damaged stores.
type outcomes struct{ unaffected, refused, restored, reported, silent int }

func (o *outcomes) table(t *testing.T, what string) {
	t.Helper()
	t.Logf("%-60s %6d unaffected %6d refused %6d restored %6d reported %6d silent", what, o.unaffected, o.refused, o.restored, o.reported, o.silent)
}

// try opens a damaged store and reads it. What is damaged it repairs or restores.
func (o *outcomes) try(t *testing.T, what string, damaged folder, of sample, withMark bool) {
	t.Helper()
	mark := of.mark
	if !withMark {
		mark = nil
	}
	mem := damaged.disk(t, mark)
	s, err := Open("store", marked(mem))
	if errors.As(err, new(*DamageError)) {
		o.refused++
		if !maps.EqualFunc(readFolder(t, mem), damaged.with("LOCK", []byte{}), bytes.Equal) {
			t.Errorf("%s: the refused store was changed", what)
		}
		wantRefusedWell(t, what, mem, err, of.releases)
		return
	}
	if errors.Is(err, ErrCorrupt) { // a table that has to be read for that
		o.reported++
		return
	}
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	behind := s.Behind() != nil
	if behind {
		left := readFolder(t, mem)
		compacted := pebbleOf(s).Metrics().Compact.Count > 0 // which replaces tables in the background
		for name := range damaged {
			if left[name] == nil && isImmutable(name) && of.now[name] != nil && !compacted {
				t.Errorf("%s: opening deleted %s", what, name)
			}
		}
	}
	right, corrupt, silent := survey(s, of.releases)
	restored := corrupt > 0 && restoreAll(t, what, s, of.releases)
	if err := s.Close(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if restored {
		wantHealed(t, what, mem, of.releases)
	}
	o.count(t, what, right, corrupt, silent, restored, behind)
}

func (o *outcomes) count(t *testing.T, what string, right, corrupt int, silent []string, restored, behind bool) {
	t.Helper()
	switch {
	case behind && !slices.ContainsFunc(silent, func(problem string) bool { return strings.Contains(problem, "other bytes") }):
		o.reported++
	case len(silent) > 0:
		o.silent++
		t.Errorf("%s: %d releases are right, %d damaged; silently: %s", what, right, corrupt, silent)
	case restored:
		o.restored++
	case corrupt > 0:
		o.reported++
	default:
		o.unaffected++
	}
}

// wantRefusedWell fails unless a store was refused with a message for the operator, and can
// be read as far as it is there.
func wantRefusedWell(t *testing.T, what string, mem vfs.FS, refusal error, releases int) {
	t.Helper()
	if !strings.Contains(refusal.Error(), "nothing was changed") || strings.Contains(refusal.Error(), "\n") {
		t.Errorf("%s: %v", what, refusal)
	}
	o := marked(mem)
	o.ReadOnly = true
	s, err := Open("store", o)
	if err != nil {
		// Without the file that names the MANIFEST, or with that gone, there is nothing.
		if !strings.Contains(refusal.Error(), "marker.") && !strings.Contains(refusal.Error(), "MANIFEST-") {
			t.Errorf("%s: %v; and read-only: %v", what, refusal, err)
		}
		if !errors.As(err, new(*DamageError)) {
			t.Errorf("%s: read-only: %v, want the damage", what, err)
		}
		return
	}
	_, _, wrong := survey(s, releases)
	for _, problem := range wrong {
		if strings.Contains(problem, "other bytes") {
			t.Errorf("%s: read-only: %s", what, problem)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// restoreAll repairs or restores every file that cannot be read, and says whether all is right then. It
// is not where rows of others are damaged, in tables.
func restoreAll(t *testing.T, what string, s *Store, releases int) bool {
	t.Helper()
	for n := range releases {
		for i := range filesOf(n) {
			identity := fileOf(n, i)
			h := Sum(identity)
			_, err := s.RepairContent(h)
			if errors.Is(err, ErrCorrupt) {
				err = s.RestoreContent(h, identity)
			}
			if err != nil {
				t.Errorf("%s: content %s: %v", what, h, err)
			}
			if got, err := s.Identity(h); err != nil || !bytes.Equal(got, identity) {
				t.Errorf("%s: content %s after it was restored: %v", what, h, err)
			}
		}
	}
	right, corrupt, silent := survey(s, releases)
	if len(silent) > 0 {
		t.Errorf("%s: after it was restored: %s", what, silent)
	}
	return right == releases && corrupt == 0
}

// wantHealed fails unless all is right after a restart. Where blob files only were damaged, it
// is so after a compaction of everything, too.
func wantHealed(t *testing.T, what string, mem vfs.FS, releases int) {
	t.Helper()
	s, err := Open("store", marked(mem))
	if err != nil {
		t.Errorf("%s: opened again after it was restored: %v", what, err)
		return
	}
	defer s.Close()
	if right, _, silent := survey(s, releases); right != releases || len(silent) > 0 {
		t.Errorf("%s: after it was restored and opened again, %d releases are right; %s", what, right, silent)
	}
	if !strings.Contains(what, ".blob") {
		return
	}
	ctx, end := context.WithTimeout(t.Context(), 2*time.Minute)
	defer end()
	if err := pebbleOf(s).Compact(ctx, []byte{0}, []byte{255}, false); err != nil {
		t.Errorf("%s: compaction after it was restored: %v", what, err)
	}
	if right, _, silent := survey(s, releases); right != releases || len(silent) > 0 {
		t.Errorf("%s: after it was restored and compacted, %d releases are right; %s", what, right, silent)
	}
}

// tryRunning damages a file while the store is open, read and written, reads it, restores what can
// be restored, and opens the store once more.
func (o *outcomes) tryRunning(t *testing.T, rng *rand.Rand, kind string, of sample, change func(t *testing.T, mem *vfs.MemFS, name string, content []byte) (what string)) {
	t.Helper()
	mem := of.now.disk(t, of.mark)
	options := marked(mem)
	options.MemTableBytes = 2 << 20 // so that the log is needed in the end
	s, err := Open("store", options)
	if err != nil {
		t.Error(err)
		return
	}
	releases := of.releases
	for range 3 {
		if err := shelve(s, releases); err != nil {
			t.Error(err)
		}
		releases++
	}
	if rng.IntN(2) == 0 { // what was read before is still in memory
		survey(s, releases)
	}
	live := sample{now: readFolder(t, mem)}
	if kind == ".log" { // the one that is being written, as far as it is
		live.now = s.written(live.now)
	}
	name := live.pick(rng, kind)
	reading := make(chan []string)
	go func() {
		_, _, silent := survey(s, of.releases)
		reading <- silent
	}()
	what := "while it runs: " + change(t, mem, name, live.now[name])
	silent := <-reading
	right, corrupt, more := survey(s, releases)
	silent = append(silent, more...)
	switch err := shelve(s, releases); {
	case err == nil:
		releases++
	case !errors.Is(err, ErrCorrupt): // it has to look whether a content is there
		t.Errorf("%s: publishing: %v", what, err)
	}
	restored := corrupt > 0 && restoreAll(t, what, s, releases)
	if err := s.Close(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	s, err = Open("store", marked(mem))
	switch {
	case errors.As(err, new(*DamageError)):
		wantRefusedWell(t, what, mem, err, releases)
		if len(silent) == 0 {
			o.refused++
			return
		}
	case errors.Is(err, ErrCorrupt):
		corrupt, restored = corrupt+1, false
	case err != nil:
		t.Errorf("%s: opened again: %v", what, err)
	default:
		again, damaged, more := survey(s, releases)
		silent = append(silent, more...)
		if damaged > 0 { // it was in memory before
			corrupt, restored = damaged, restoreAll(t, what, s, releases)
		} else if again < releases && s.Behind() == nil {
			t.Errorf("%s: opened again, %d releases are right", what, again)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	o.count(t, what, right, corrupt, silent, restored, err == nil && s.Behind() != nil)
}

// written returns the logs of a running store that are in use, up to where they are written.
func (s *Store) written(files folder) folder {
	s.guard.disk.mu.Lock()
	defer s.guard.disk.mu.Unlock()
	logs := make(folder)
	for name, extent := range s.guard.disk.files {
		if n := min(extent.written.Load(), int64(len(files[name]))); strings.HasSuffix(name, ".log") && n > 0 {
			logs[name] = files[name][:n:n]
		}
	}
	return logs
}

// Whatever happens to a store's files, stopped or while it runs, it is unaffected, is not
// opened for writing and left as it is, is restored, or says so when it is opened or where the
// damage is read. Without a mark, single bits are found all the same.
func TestSweepDamage(t *testing.T) {
	of := newSample(t)
	for name, content := range of.now {
		t.Logf("%7d bytes: %s", len(content), name)
	}
	positions, running := positions, positions
	if !sweeps {
		positions, running = 12, 2
	}
	seed := uint64(0)
	sweep := func(what string, do func(t *testing.T, rng *rand.Rand, o *outcomes)) {
		seed++
		rng := rand.New(rand.NewPCG(14, seed))
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var o outcomes
			do(t, rng, &o)
			o.table(t, what)
		})
	}
	kinds := []string{"MANIFEST-", "OPTIONS-", ".log", ".sst", ".blob"}

	for _, withMark := range []bool{true, false} {
		for _, kind := range kinds[:2] {
			step := 16
			if !sweeps && (!withMark || kind == "OPTIONS-") {
				step = 128
			}
			sweep(fmt.Sprintf("a bit in each %d bytes of %s, mark: %v", step, kind, withMark), func(t *testing.T, rng *rand.Rand, o *outcomes) {
				for _, name := range of.now.of(kind) {
					for at := rng.IntN(step); at < len(of.now[name]); at += step {
						bit := rng.UintN(8)
						o.try(t, fmt.Sprintf("%s, bit %d of byte %d", name, bit, at), of.now.with(name, flip(of.now[name], at, bit)), of, withMark)
					}
				}
			})
		}
		for _, kind := range kinds[2:] {
			sweep(fmt.Sprintf("a bit at %d positions of %s, mark: %v", positions, kind, withMark), func(t *testing.T, rng *rand.Rand, o *outcomes) {
				for range positions {
					name := of.pick(rng, kind)
					at, bit := rng.IntN(len(of.now[name])), rng.UintN(8)
					o.try(t, fmt.Sprintf("%s, bit %d of byte %d", name, bit, at), of.now.with(name, flip(of.now[name], at, bit)), of, withMark)
				}
			})
		}
	}
	for _, kind := range kinds {
		sweep("cut short: "+kind, func(t *testing.T, rng *rand.Rand, o *outcomes) {
			for range max(4, positions/4) {
				name := of.pick(rng, kind)
				length := rng.IntN(len(of.now[name]))
				o.try(t, fmt.Sprintf("%s, cut at %d", name, length), of.now.with(name, of.now[name][:length:length]), of, true)
			}
		})
		sweep("a page is zero: "+kind, func(t *testing.T, rng *rand.Rand, o *outcomes) {
			for range max(4, positions/4) {
				name := of.pick(rng, kind)
				page := rng.IntN(len(of.now[name])) &^ 4095
				changed := bytes.Clone(of.now[name])
				clear(changed[page:min(page+4096, len(changed))])
				o.try(t, fmt.Sprintf("%s, page at %d zeroed", name, page), of.now.with(name, changed), of, true)
			}
		})
	}
	sweep("a file is missing", func(t *testing.T, _ *rand.Rand, o *outcomes) {
		for _, name := range slices.Sorted(maps.Keys(of.now)) {
			if name != "LOCK" {
				o.try(t, name+" is missing", of.now.with(name, nil), of, true)
			}
		}
	})
	sweep("a file of an older copy", func(t *testing.T, _ *rand.Rand, o *outcomes) {
		for _, copied := range []folder{of.earlier, of.midway} {
			for _, name := range slices.Sorted(maps.Keys(copied)) {
				if content, ok := of.now[name]; !ok {
					o.try(t, name+" has come back", of.now.with(name, copied[name]), of, true)
				} else if !bytes.Equal(content, copied[name]) {
					o.try(t, name+" is an older one", of.now.with(name, copied[name]), of, true)
				}
			}
		}
	})
	sweep("all files of an older copy", func(t *testing.T, _ *rand.Rand, o *outcomes) {
		o.try(t, "all is older", of.earlier, of, true)
		o.try(t, "all is a little older", of.midway, of, true)
	})

	for _, kind := range kinds {
		each := func(what string, n int, change func(t *testing.T, rng *rand.Rand, mem *vfs.MemFS, name string, content []byte) string) {
			sweep("while it runs, "+what+": "+kind, func(t *testing.T, rng *rand.Rand, o *outcomes) {
				for range n {
					o.tryRunning(t, rng, kind, of, func(t *testing.T, mem *vfs.MemFS, name string, content []byte) string {
						return change(t, rng, mem, name, content)
					})
				}
			})
		}
		each("a bit", running, func(t *testing.T, rng *rand.Rand, mem *vfs.MemFS, name string, content []byte) string {
			at, bit := rng.IntN(len(content)), rng.UintN(8)
			write(t, mem, name, at, []byte{content[at] ^ 1<<bit})
			return fmt.Sprintf("%s, bit %d of byte %d", name, bit, at)
		})
		each("a page is zero", max(1, running/4), func(t *testing.T, rng *rand.Rand, mem *vfs.MemFS, name string, content []byte) string {
			page := rng.IntN(len(content)) &^ 4095
			write(t, mem, name, page, make([]byte, min(4096, len(content)-page)))
			return fmt.Sprintf("%s, page at %d zeroed", name, page)
		})
		each("cut short", max(1, running/4), func(t *testing.T, rng *rand.Rand, mem *vfs.MemFS, name string, content []byte) string {
			length := rng.IntN(len(content))
			writeTestFile(t, mem, "store/"+name, content[:length])
			return fmt.Sprintf("%s, another one of %d bytes in its place", name, length)
		})
		each("missing", max(1, running/20), func(t *testing.T, _ *rand.Rand, mem *vfs.MemFS, name string, _ []byte) string {
			if err := mem.Remove("store/" + name); err != nil {
				t.Error(err)
			}
			return name + " is removed"
		})
		each("of an older copy", max(1, running/20), func(t *testing.T, rng *rand.Rand, mem *vfs.MemFS, name string, _ []byte) string {
			older := sample{now: of.earlier}
			from := older.pick(rng, kind)
			writeTestFile(t, mem, "store/"+name, of.earlier[from])
			return fmt.Sprintf("%s, the older %s in its place", name, from)
		})
	}
}
