package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A folder's files, by name.
type folder map[string][]byte

func readFolder(t *testing.T, fs vfs.FS) folder {
	t.Helper()
	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	files := make(folder)
	for _, name := range names {
		f, err := fs.Open(fs.PathJoin("store", name))
		if errors.Is(err, os.ErrNotExist) {
			continue // an open store has just deleted it
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[name], err = io.ReadAll(f); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	return files
}

// disk returns a file system with the folder, and a mark, unless that is nil.
func (f folder) disk(t *testing.T, marked []byte) *vfs.MemFS {
	t.Helper()
	mem := vfs.NewMem()
	for _, dir := range []string{"store", "keys"} {
		if err := mem.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range f {
		writeTestFile(t, mem, "store/"+name, content)
	}
	if marked != nil {
		writeTestFile(t, mem, "keys/mark", marked)
	}
	return mem
}

func writeTestFile(t *testing.T, fs vfs.FS, path string, content []byte) {
	t.Helper()
	f, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	// Under the race detector, MemFS scribbles over what it was given.
	_, err = f.Write(bytes.Clone(content))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func (f folder) with(name string, content []byte) folder {
	changed := maps.Clone(f)
	if changed[name] = content; content == nil {
		delete(changed, name)
	}
	return changed
}

// of returns the names of the files of a kind, as a suffix or a prefix. The MANIFEST before
// and the logs that are done with are left out, unless the sweep is to be whole.
func (f folder) of(kind string) []string {
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(f)), func(name string) bool {
		return !strings.HasPrefix(name, kind) && !strings.HasSuffix(name, kind)
	})
	if !sweeps && (isManifest(kind) || kind == ".log") {
		return names[len(names)-1:]
	}
	return names
}

func marked(fs vfs.FS) Options {
	o := small(fs)
	o.MemTableBytes = 256 << 10
	o.Mark = "keys/mark"
	return o
}

// A store after a life of some starts, flushes and compactions, closed, with as much as
// possible in its write-ahead log; itself after an earlier life, and in the middle of the last
// one; and its mark.
type sample struct {
	now, earlier, midway folder
	mark                 []byte
	releases             int
}

func newSample(t *testing.T) sample {
	t.Helper()
	mem := vfs.NewMem()
	if err := mem.MkdirAll("keys", 0o700); err != nil {
		t.Fatal(err)
	}
	o := marked(mem)
	var got sample
	for life := range 3 {
		if life == 2 { // so that much stays in its log
			o.MemTableBytes = 2 << 20
		}
		s, err := Open("store", o)
		if err != nil {
			t.Fatal(err)
		}
		for range 11 {
			if err := shelve(s, got.releases); err != nil {
				t.Fatal(err)
			}
			got.releases++
			if got.releases%4 == 0 && (life == 1 || life == 2 && got.releases < 34) {
				if err := pebbleOf(s).Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if life == 1 { // so that blob files are rewritten, too
			b := s.NewBatch()
			for i := range filesOf(7) {
				b.Remove(Sum(fileOf(7, i)))
			}
			if err := b.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := shelve(s, 7); err != nil {
				t.Fatal(err)
			}
			if err := pebbleOf(s).Compact(t.Context(), []byte{0}, []byte{255}, false); err != nil {
				t.Fatal(err)
			}
		}
		got.midway = readFolder(t, mem)
		for range 3 {
			if err := shelve(s, got.releases); err != nil {
				t.Fatal(err)
			}
			got.releases++
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if life < 2 {
			got.earlier = readFolder(t, mem)
		}
	}
	got.now = readFolder(t, mem)
	var err error
	if got.mark, err = readAll(mem, "keys/mark"); err != nil {
		t.Fatal(err)
	}
	return got
}

// shelve publishes release n. The files of every second one are in two codings.
func shelve(s *Store, n int) error {
	if err := publish(s, n); err != nil {
		return err
	}
	for i := 0; n%2 == 1 && i < filesOf(n); i++ {
		identity := fileOf(n, i)
		gzip, err := coding.Encode(coding.Gzip, coding.Quick, identity)
		if err != nil {
			return err
		}
		if err := s.PutContent(Sum(identity), int64(len(identity)), true, []Coded{{coding.Gzip, gzip}}); err != nil {
			return err
		}
	}
	return nil
}

func readAll(fs vfs.FS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// survey reads every release. It says what is there, what is damaged and says so, and what
// is silently missing or wrong.
func survey(s *Store, releases int) (right, corrupt int, silent []string) {
	for n := range releases {
		_, err := s.Get(Versions, []byte(release(n)))
		for i := 0; err == nil && i < filesOf(n); i++ {
			var h, identity []byte
			if h, err = s.Get(Files, Key(release(n), fmt.Sprint(i))); err == nil {
				identity, err = s.Identity(Hash(h))
			}
			if err == nil && !bytes.Equal(identity, fileOf(n, i)) {
				err = errors.New("other bytes")
			}
		}
		switch {
		case err == nil:
			right++
		case errors.Is(err, ErrCorrupt):
			corrupt++
		default:
			silent = append(silent, fmt.Sprintf("%s: %v", release(n), err))
		}
	}
	rows := 0
	for _, err := range s.Scan(Versions, Range{}) {
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				silent = append(silent, err.Error())
			}
			return right, corrupt + 1, silent
		}
		rows++
	}
	if rows < right+corrupt {
		silent = append(silent, fmt.Sprintf("a scan finds %d releases", rows))
	}
	return right, corrupt, silent
}

// write changes a file in place, below those that have it open.
func write(t *testing.T, mem *vfs.MemFS, name string, at int, content []byte) {
	t.Helper()
	f, err := mem.OpenReadWrite("store/"+name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Error(err)
		return
	}
	_, err = f.WriteAt(bytes.Clone(content), int64(at))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Error(err)
	}
}

func flip(content []byte, at int, bit uint) []byte {
	changed := bytes.Clone(content)
	changed[at] ^= 1 << bit
	return changed
}

// pick returns a file of a kind, the larger the likelier.
func (of sample) pick(rng *rand.Rand, kind string) string {
	names := slices.DeleteFunc(of.now.of(kind), func(name string) bool { return len(of.now[name]) == 0 })
	total := 0
	for _, name := range names {
		total += len(of.now[name])
	}
	at := rng.IntN(total)
	for _, name := range names {
		if at -= len(of.now[name]); at < 0 {
			return name
		}
	}
	panic("unreachable")
}
