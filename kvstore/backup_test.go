package kvstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// noLinks is a file system without hard links, or two.
func noLinks(fs vfs.FS) vfs.FS {
	return errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink {
			return syscall.EXDEV
		}
		return nil
	}))
}

// backup makes a backup that has to succeed.
func backup(t *testing.T, s *Store, dir string) BackupProgress {
	t.Helper()
	done, err := s.Backup(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

func list(t *testing.T, fs vfs.FS, dir, pattern string) []string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(names, func(name string) bool {
		ok, _ := filepath.Match(pattern, name)
		return !ok
	})
}

// What was committed before a backup is in it, and of what is written meanwhile
// nothing by halves.
func TestBackupWhileReleasesArrive(t *testing.T) {
	for _, test := range []struct {
		name string
		fs   vfs.FS
	}{
		{"links", vfs.Default},
		{"copies", noLinks(vfs.Default)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := small(test.fs)
			o.MemTableBytes = 256 << 10 // so that it flushes and compacts meanwhile
			o.reclaimBytes = 256 << 10
			dir := t.TempDir()
			s := open(t, filepath.Join(dir, "store"), o)
			const releases = 120
			backups := 6
			if testing.Short() {
				backups = 2
			}
			committed := make(chan int, releases)
			var writer sync.WaitGroup
			defer writer.Wait()
			writer.Go(func() {
				defer close(committed)
				for n := range releases {
					if err := publish(s, n); err != nil {
						t.Error(err)
						return
					}
					// Replaced by a smaller coding, as squeezing does.
					identity := fileOf(n, 0)
					if err := s.PutContent(Sum(identity), int64(len(identity)), true, []Coded{{coding.Gzip, identity[:len(identity)/2]}}); err != nil {
						t.Error(err)
					}
					committed <- n
				}
			})
			last := -1
			for i := range backups {
				for range releases / backups {
					last = <-committed
				}
				copied := filepath.Join(dir, fmt.Sprint("copy-", i))
				done := backup(t, s, copied)
				if done.Bytes == 0 || done.Of < done.Bytes || (done.Linked > 0) != (test.name == "links") {
					t.Errorf("done %+v", done)
				}
				if len(list(t, test.fs, copied, "*.blob")) == 0 {
					t.Errorf("no blob file is in %s, so nothing is learnt about them", copied)
				}
				wantReleases(t, open(t, copied, o), last, releases-1)
			}
		})
	}
}

// Neither store shows what becomes of the other.
func TestBackupIsApart(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		t.Run(fmt.Sprint("read only ", readOnly), func(t *testing.T) {
			dir := t.TempDir()
			o := small(vfs.Default)
			o.MemTableBytes = 128 << 10
			original, copied := filepath.Join(dir, "store"), filepath.Join(dir, "copy")
			s, err := Open(original, o)
			if err != nil {
				t.Fatal(err)
			}
			for n := range 30 {
				if err := publish(s, n); err != nil {
					t.Fatal(err)
				}
			}
			if readOnly {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				o.ReadOnly = true
				if s, err = Open(original, o); err != nil {
					t.Fatal(err)
				}
				o.ReadOnly = false
			}
			if done := backup(t, s, copied); done.Linked == 0 {
				t.Errorf("nothing was linked: %+v", done)
			}
			if readOnly {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				if s, err = Open(original, o); err != nil {
					t.Fatal(err)
				}
			}
			empty(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			c := open(t, copied, o)
			wantReleases(t, c, 29, 29)
			if err := publish(c, 30); err != nil {
				t.Fatal(err)
			}
			if got := rows(t, open(t, original, o), Versions, Range{}); len(got) > 0 {
				t.Errorf("the original has %d releases", len(got))
			}
			wantReleases(t, c, 30, 30)
		})
	}
}

// empty removes everything, down to the files.
func empty(t *testing.T, s *Store) {
	t.Helper()
	b := s.NewBatch()
	defer b.Close()
	for _, ns := range []Namespace{Files, Versions} {
		for item, err := range s.Scan(ns, Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			b.Delete(ns, item.Key)
		}
	}
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.CollectOrphans(t.Context(), func(Hash) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(database(s).Flush(), database(s).Compact(t.Context(), []byte{0}, []byte{0xff}, false)); err != nil {
		t.Fatal(err)
	}
}

// Pebble's log is copied while nobody writes to it.
func TestBackupHoldsWritersForTheLog(t *testing.T) {
	var s *Store
	copied := 0
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasPrefix(op.Path, "copy/") && strings.HasSuffix(op.Path, ".log") {
			copied++
			if s.writing.TryRLock() {
				t.Error("a writer would not have waited")
				s.writing.RUnlock()
			}
		}
		return nil
	}))
	s = open(t, "store", small(fs))
	if err := publish(s, 0); err != nil {
		t.Fatal(err)
	}
	backup(t, s, "copy")
	if copied == 0 {
		t.Error("no log was copied")
	}
	if err := publish(s, 1); err != nil {
		t.Error(err)
	}
}

// The power fails right after a backup.
func TestBackupIsOnTheDisk(t *testing.T) {
	for name, wrap := range map[string]func(vfs.FS) vfs.FS{"links": func(fs vfs.FS) vfs.FS { return fs }, "copies": noLinks} {
		for _, readOnly := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", read only ", readOnly), func(t *testing.T) {
				mem := vfs.NewCrashableMem()
				o := small(wrap(mem))
				o.MemTableBytes = 128 << 10
				s, err := Open("store", o)
				if err != nil {
					t.Fatal(err)
				}
				for n := range 20 {
					if err := publish(s, n); err != nil {
						t.Fatal(err)
					}
				}
				if readOnly {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					o.ReadOnly = true
					if s, err = Open("store", o); err != nil {
						t.Fatal(err)
					}
				}
				backup(t, s, "copy")
				crashed := mem.CrashClone(vfs.CrashCloneCfg{})
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				wantReleases(t, open(t, "copy", small(crashed)), 19, 19)
			})
		}
	}
}

// Whatever becomes of a backup, its store is none the worse, nothing is left, and
// another can be made.
func TestBackupFails(t *testing.T) {
	atOnce := func(string) bool { return true }
	of := func(suffix string) func(string) bool {
		return func(name string) bool { return strings.HasSuffix(name, suffix) }
	}
	for _, test := range []struct {
		name  string
		cause error
		files func(name string) bool
		kinds []errorfs.OpKind
		want  string
	}{
		{"full, tables", syscall.ENOSPC, of(".sst"), []errorfs.OpKind{errorfs.OpFileWrite}, "the disk is full"},
		{"full, blobs", syscall.ENOSPC, of(".blob"), []errorfs.OpKind{errorfs.OpCreate}, "the disk is full"},
		{"full, log", syscall.ENOSPC, of(".log"), []errorfs.OpKind{errorfs.OpFileWrite}, "the disk is full"},
		{"full, sync of the log", syscall.ENOSPC, of(".log"), []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData}, "the disk is full"},
		{"over quota", syscall.EDQUOT, atOnce, []errorfs.OpKind{errorfs.OpFileWrite}, "the disk is full"},
		{"full, folder", syscall.ENOSPC, atOnce, []errorfs.OpKind{errorfs.OpMkdirAll}, "the disk is full"},
		{"broken, manifest", syscall.EIO, func(name string) bool { return strings.Contains(name, "MANIFEST") }, []errorfs.OpKind{errorfs.OpFileWrite}, "input/output error"},
		{"broken, folder", syscall.EIO, of("copy"), []errorfs.OpKind{errorfs.OpOpenDir}, "input/output error"},
		{"no permission", syscall.EACCES, atOnce, []errorfs.OpKind{errorfs.OpMkdirAll}, "permission denied"},
	} {
		for _, readOnly := range []bool{false, true} {
			t.Run(fmt.Sprint(test.name, ", read only ", readOnly), func(t *testing.T) {
				t.Parallel()
				mem := vfs.NewMem()
				var failing atomic.Bool
				failing.Store(true)
				fs := errorfs.Wrap(noLinks(mem), errorfs.InjectorFunc(func(op errorfs.Op) error {
					if failing.Load() && (op.Path == "copy" || strings.HasPrefix(op.Path, "copy/")) && slices.Contains(test.kinds, op.Kind) && test.files(op.Path) {
						return test.cause
					}
					return nil
				}))
				o := small(fs)
				o.MemTableBytes = 128 << 10
				o.fullDiskTimeout = time.Hour // nobody waits for the backup's disk
				s, err := Open("store", o)
				if err != nil {
					t.Fatal(err)
				}
				for n := range 20 {
					if err := publish(s, n); err != nil {
						t.Fatal(err)
					}
				}
				if err := database(s).Flush(); err != nil {
					t.Fatal(err)
				}
				if readOnly {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					o.ReadOnly = true
					if s, err = Open("store", o); err != nil {
						t.Fatal(err)
					}
				}
				defer s.Close()
				if _, err := s.Backup(t.Context(), "copy", nil); err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "copy") {
					t.Errorf("got %v", err)
				}
				if _, err := mem.Stat("copy"); err == nil {
					t.Errorf("left: %q", list(t, mem, "copy", "*"))
				}
				failing.Store(false)
				last := 19
				if !readOnly {
					if err := publish(s, 20); err != nil {
						t.Fatal(err)
					}
					last++
				}
				backup(t, s, "copy")
				wantReleases(t, open(t, "copy", small(mem)), last, last)
			})
		}
	}
}

func TestBackupWithoutRoom(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "store", small(noLinks(mem)))
	for n := range 20 {
		if err := publish(s, n); err != nil {
			t.Fatal(err)
		}
	}
	if err := database(s).Flush(); err != nil {
		t.Fatal(err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 256 << 20, TotalBytes: 1 << 30}) // the reserve, and nothing above it
	_, err := s.Backup(t.Context(), "copy", nil)
	if !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "leaves 256 MiB free") {
		t.Errorf("got %v", err)
	}
	if _, err := mem.Stat("copy"); err == nil {
		t.Error("something is left")
	}
}

func TestBackupIsCanceled(t *testing.T) {
	for _, readOnly := range []bool{false, true} {
		mem := vfs.NewMem()
		o := small(noLinks(mem))
		s, err := Open("store", o)
		if err != nil {
			t.Fatal(err)
		}
		for n := range 20 {
			if err := publish(s, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := database(s).Flush(); err != nil {
			t.Fatal(err)
		}
		if readOnly {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			o.ReadOnly = true
			if s, err = Open("store", o); err != nil {
				t.Fatal(err)
			}
		}
		stop := errors.New("stop")
		ctx, cancel := context.WithCancelCause(t.Context())
		var told []BackupProgress
		_, err = s.Backup(ctx, "copy", func(done BackupProgress) {
			told = append(told, done)
			if done.Bytes > 50_000 {
				cancel(stop)
			}
			if _, err := s.Backup(ctx, "other", nil); err == nil || !strings.Contains(err.Error(), "another backup") {
				t.Errorf("a second backup meanwhile: %v", err)
			}
		})
		if !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
		if last := told[len(told)-1]; last.Bytes > 200_000 || last.Of < 200_000 {
			t.Errorf("canceled at 50 kB, it went on to %+v", last)
		}
		for i := range told[1:] {
			if told[i+1].Bytes < told[i].Bytes || told[i+1].Files < told[i].Files {
				t.Errorf("%+v follows %+v", told[i+1], told[i])
			}
		}
		if _, err := mem.Stat("copy"); err == nil {
			t.Error("something is left")
		}
		backup(t, s, "copy")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wantReleases(t, open(t, "copy", small(mem)), 19, 19)
	}
}

func TestBackupToAPlaceThatWillNotDo(t *testing.T) {
	s := inMemory(t)
	backup(t, s, "copy")
	for dir, want := range map[string]string{"copy": "exists already", "missing/copy": "missing"} {
		if _, err := s.Backup(t.Context(), dir, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Backup(t.Context(), "late", nil); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("of a closed store: %v", err)
	}
}

// A store that a failed disk made read-only says so instead of waiting for ever.
func TestBackupOfAFailedStore(t *testing.T) {
	disk, _ := newBadDisk(syscall.EIO, []string{"*.log"}, errorfs.OpFileWrite, errorfs.OpFileSync)
	o := small(disk)
	o.fullDiskTimeout = time.Millisecond
	s, err := Open("store", o)
	if err != nil {
		t.Fatal(err)
	}
	disk.failing.Store(true)
	failed := publish(s, 0)
	if failed == nil {
		t.Fatal("the disk did not fail")
	}
	if _, err := s.Backup(t.Context(), "copy", nil); err == nil || err.Error() != failed.Error() {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err == nil {
		t.Error("closing succeeded")
	}
}
