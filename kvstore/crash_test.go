package kvstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// A release, for the tests: contents first, then a batch that names them.
func publish(s *Store, n int) error {
	b := s.NewBatch()
	defer b.Close()
	for i := range filesOf(n) {
		identity := fileOf(n, i)
		h := Sum(identity)
		if err := s.PutContent(h, int64(len(identity)), false, []Coded{{coding.Identity, identity}}); err != nil {
			return err
		}
		b.Set(Files, Key(release(n), fmt.Sprint(i)), h[:])
	}
	b.Set(Versions, []byte(release(n)), []byte{byte(filesOf(n))})
	return b.Commit()
}

func release(n int) string        { return fmt.Sprintf("release-%03d", n) }
func filesOf(n int) int           { return 1 + n%4 }
func fileOf(n, i int) (id []byte) { return noise(uint64(n*8+i), 100+(n*7919+i*104729)%30_000) }

// wantReleases fails unless the store holds releases 0 to committed whole,
// and of attempted, which was under way, all or nothing.
func wantReleases(t *testing.T, s *Store, committed, attempted int) {
	t.Helper()
	for n := range attempted + 1 {
		count, err := s.Get(Versions, []byte(release(n)))
		files := rows(t, s, Files, Range{Prefix: Prefix(release(n))})
		if errors.Is(err, ErrNotFound) && n > committed {
			if len(files) > 0 {
				t.Errorf("%s isn't there, but %d of its files are", release(n), len(files))
			}
			continue
		}
		if err != nil || len(files) != int(count[0]) || len(files) != filesOf(n) {
			t.Errorf("%s: %v, with %d files", release(n), err, len(files))
			continue
		}
		for i := range files {
			h, err := s.Get(Files, Key(release(n), fmt.Sprint(i)))
			if err == nil {
				_, err = s.Identity(Hash(h))
			}
			if err != nil {
				t.Errorf("%s, file %d: %v", release(n), i, err)
			}
		}
	}
}

// The power fails at a random moment. Of what was written and not synced, each
// block and directory entry survives or not.
func TestCrash(t *testing.T) {
	crashes := 20
	if testing.Short() {
		crashes = 5
	}
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 1))
			fs := vfs.NewCrashableMem()
			o := small(fs)
			o.MemTableBytes = 128 << 10 // so that it flushes and compacts meanwhile
			s, err := Open("store", o)
			if err != nil {
				t.Fatal(err)
			}
			last := rng.IntN(25)
			for n := range last + 1 {
				if err := publish(s, n); err != nil {
					t.Fatal(err)
				}
			}
			// Half of the next release is put, and none of it committed.
			for i := range filesOf(last + 1) {
				put(t, s, fileOf(last+1, i))
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: []int{0, 50, 100}[seed%3], RNG: rng})
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			o.FS = crashed
			s = open(t, "store", o)
			wantReleases(t, s, last, last+1)
			if err := publish(s, last+1); err != nil {
				t.Fatal(err)
			}
			wantReleases(t, s, last+1, last+1)
		})
	}
}

// The power fails while a commit is under way.
func TestCrashDuringCommit(t *testing.T) {
	crashes := 10
	if testing.Short() {
		crashes = 3
	}
	for seed := range uint64(crashes) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(seed, 2))
			fs := vfs.NewCrashableMem()
			o := small(fs)
			o.MemTableBytes = 128 << 10
			s, err := Open("store", o)
			if err != nil {
				t.Fatal(err)
			}
			const releases = 40
			committed := make(chan int, releases)
			go func() {
				defer close(committed)
				for n := range releases {
					if err := publish(s, n); err != nil {
						t.Error(err)
						return
					}
					committed <- n
				}
			}()
			last := -1
			for range rng.IntN(releases - 10) {
				last = <-committed
			}
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 50, RNG: rng})
			for range committed {
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			o.FS = crashed
			wantReleases(t, open(t, "store", o), last, releases-1)
		})
	}
}

// A store that has just been made must be found again by its path.
func TestPowerFailureRightAfterTheStoreIsMade(t *testing.T) {
	fs := vfs.NewCrashableMem()
	if err := fs.MkdirAll("/srv", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := disk.SyncFolder(fs, "/"); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll("/srv/data", 0o700); err != nil { // as a command does before it opens the store
		t.Fatal(err)
	}
	s, err := Open("/srv/data/store", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := publish(s, 1); err != nil {
		t.Fatal(err)
	}
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open("/srv/data/store", Options{FS: crashed})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Get(Versions, []byte(release(1))); err != nil {
		t.Errorf("what was committed is gone: %v", err)
	}
}
