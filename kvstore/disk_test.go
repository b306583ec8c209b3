package kvstore

import (
	"bytes"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A disk that fails once it is told to.
type badDisk struct {
	vfs.FS
	failing atomic.Bool
	cause   error
	kinds   []errorfs.OpKind // which operations fail
	files   []string         // of which files, as patterns
	failed  chan struct{}    // tells of each failure, where there is room
}

func newBadDisk(cause error, files []string, kinds ...errorfs.OpKind) (*badDisk, *vfs.MemFS) {
	mem := vfs.NewCrashableMem()
	d := &badDisk{cause: cause, files: files, kinds: kinds, failed: make(chan struct{}, 1)}
	d.FS = errorfs.Wrap(mem, errorfs.InjectorFunc(d.fault))
	return d, mem
}

// fault returns the error that op meets.
func (d *badDisk) fault(op errorfs.Op) error {
	if !d.failing.Load() || !slices.Contains(d.kinds, op.Kind) {
		return nil
	}
	for _, pattern := range d.files {
		if ok, _ := filepath.Match(pattern, filepath.Base(op.Path)); ok {
			select {
			case d.failed <- struct{}{}:
			default:
			}
			return d.cause
		}
	}
	return nil
}

// ReuseForWrite implements vfs.FS. That of errorfs returns a file that never fails, which a
// log becomes as soon as it is recycled.
func (d *badDisk) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(oldname, newname, c)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, errorfs.InjectorFunc(func(op errorfs.Op) error {
		op.Path = newname
		return d.fault(op)
	})), nil
}

func TestRefusesWritesBeforeTheDiskIsFull(t *testing.T) {
	mem := vfs.NewMem()
	o := small(mem)
	s := open(t, "store", o)
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
	if err := publish(s, 0); err != nil {
		t.Fatal(err)
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 255 << 20, TotalBytes: 1 << 30})
	h := Sum([]byte("x"))
	b := s.NewBatch()
	b.Set(Files, []byte("a"), nil)
	for _, err := range []error{b.Commit(), s.PutContent(h, 1, false, []Coded{{coding.Identity, []byte("x")}})} {
		if !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "the disk that holds store has 255 MiB left and 256 are needed") {
			t.Errorf("got %v", err)
		}
	}
	if _, err := s.Content(h); !errors.Is(err, ErrNotFound) {
		t.Errorf("what was refused is there: %v", err)
	}
	wantReleases(t, s, 0, 0)
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
	if err := publish(s, 1); err != nil {
		t.Errorf("once there is space again: %v", err)
	}
}

// Whatever file of Pebble's can't be written, the process lives, reads go on,
// and the next start shows every commit that succeeded.
func TestDiskFails(t *testing.T) {
	write := []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite, errorfs.OpFileWrite, errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}
	for _, test := range []struct {
		name  string
		cause error
		files []string
		kinds []errorfs.OpKind
		want  error
	}{
		{"full, log", syscall.ENOSPC, []string{"*.log"}, write, ErrDiskFull},
		{"full, new log", syscall.ENOSPC, []string{"*.log"}, []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}, ErrDiskFull},
		{"full, sync of the log", syscall.ENOSPC, []string{"*.log"}, write[3:], ErrDiskFull},
		{"over quota, log", syscall.EDQUOT, []string{"*.log"}, write, ErrDiskFull},
		{"full, manifest", syscall.ENOSPC, []string{"MANIFEST-*", "marker.*"}, write, ErrDiskFull},
		{"full", syscall.ENOSPC, []string{"*"}, write, ErrDiskFull},
		{"broken, log", syscall.EIO, []string{"*.log"}, write, syscall.EIO},
		{"broken, manifest", syscall.EIO, []string{"MANIFEST-*", "marker.*"}, write, syscall.EIO},
		{"broken, folder", syscall.EIO, []string{"store"}, write, syscall.EIO},
		{"broken", syscall.EIO, []string{"*"}, write, syscall.EIO},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			disk, mem := newBadDisk(test.cause, test.files, test.kinds...)
			o := small(disk)
			o.MemTableBytes = 256 << 10
			o.fullDiskTimeout = time.Millisecond
			s, err := Open("store", o)
			if err != nil {
				t.Fatal(err)
			}
			last := 9
			for n := range last + 1 {
				if err := publish(s, n); err != nil {
					t.Fatal(err)
				}
			}
			disk.failing.Store(true)
			for err == nil && last < 200 {
				if err = publish(s, last+1); err == nil {
					last++
				}
			}
			if !errors.Is(err, test.want) || !strings.Contains(err.Error(), "store") {
				t.Fatalf("after release %d: %v", last, err)
			}
			t.Logf("release %d: %v", last+1, err)
			wantReleases(t, s, last, last+1)
			if again := publish(s, last+2); again == nil || again.Error() != err.Error() {
				t.Errorf("another write: %v", again)
			}
			if err := s.Snapshot().Close(); err != nil {
				t.Error(err)
			}
			if got := scrape(t, s); got["larder_store_failed"] != 1 {
				t.Errorf("metrics: %v", got)
			}
			if closed := s.Close(); closed == nil || closed.Error() != err.Error() {
				t.Errorf("Close: %v", closed)
			}
			// The process ends, and finds what reached the disk.
			o.FS = mem.CrashClone(vfs.CrashCloneCfg{})
			s = open(t, "store", o)
			wantReleases(t, s, last, last+1)
			if err := publish(s, last+1); err != nil {
				t.Error(err)
			}
		})
	}
}

// Tables and blob files can wait: what is in them is in the log too.
func TestFullDiskHoldsTablesUp(t *testing.T) {
	disk, _ := newBadDisk(syscall.ENOSPC, []string{"*.sst", "*.blob"}, errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSync)
	o := small(disk)
	o.fullDiskTimeout = time.Millisecond
	s := open(t, "store", o)
	disk.failing.Store(true)
	for n := range 10 {
		if err := publish(s, n); err != nil {
			t.Fatal(err)
		}
	}
	flushed, err := pebbleOf(s).AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	<-disk.failed
	<-disk.failed // again
	disk.failing.Store(false)
	<-flushed
	wantReleases(t, s, 9, 9)
}

// A write that finds the disk full waits a little, and goes on if it can.
func TestWriteWaitsForSpace(t *testing.T) {
	disk, mem := newBadDisk(syscall.ENOSPC, []string{"*.log"}, errorfs.OpFileWrite)
	o := small(disk)
	o.fullDiskTimeout = time.Second
	o.MinFreeBytes = -1
	s := open(t, "store", o)
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 0, TotalBytes: 1 << 30})
	disk.failing.Store(true)
	done := make(chan error)
	go func() { done <- publish(s, 0) }()
	<-disk.failed
	disk.failing.Store(false)
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantReleases(t, s, 0, 0)
}

func TestOpenOnAFullDisk(t *testing.T) {
	disk, _ := newBadDisk(syscall.ENOSPC, []string{"*"}, errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSync)
	s, err := Open("store", small(disk))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(publish(s, 0), s.Close()); err != nil {
		t.Fatal(err)
	}
	disk.failing.Store(true)
	if _, err := Open("store", small(disk)); !errors.Is(err, ErrDiskFull) || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("Open: %v", err)
	}
	disk.failing.Store(false)
	wantReleases(t, open(t, "store", small(disk)), 0, 0)
}

// Bits flip on the disk, below Pebble.
func TestDamagedFiles(t *testing.T) {
	for _, pattern := range []string{"*.blob", "*.sst"} {
		t.Run(pattern, func(t *testing.T) {
			mem := vfs.NewMem()
			s := open(t, "store", small(mem))
			h := put(t, s, noise(1, 50_000))
			if err := pebbleOf(s).Flush(); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			damage(t, mem, pattern, 0.1)
			var log bytes.Buffer
			o := small(mem)
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			s, err := Open("store", o)
			if err == nil {
				_, err = s.Identity(h)
				if err := s.Close(); err != nil { // after which nothing is repaired, or logged
					t.Error(err)
				}
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("got %v", err)
			}
			if err != nil && strings.Contains(err.Error(), "carrier") {
				t.Errorf("the error has Pebble's marker in it: %v", err)
			}
			if text := log.String(); pattern == "*.sst" && !strings.Contains(text, "a block does not have its checksum") || strings.Contains(text, "stack trace") {
				t.Errorf("logged:\n%s", text)
			}
		})
	}
}

// Pebble takes what is damaged near the end of a log for what a crash left there. The inspection
// before it finds that a bit was flipped.
func TestDamagedLog(t *testing.T) {
	const last = 4 // all of which is in one log
	for _, at := range []float64{0.1, 0.5, 0.999} {
		mem := vfs.NewMem()
		o := small(mem)
		s := open(t, "store", o)
		for n := range last + 1 {
			if err := publish(s, n); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		damage(t, mem, "*.log", at)
		if _, err := Open("store", o); !errors.Is(err, ErrCorrupt) || !errors.As(err, new(*DamageError)) {
			t.Errorf("damaged at %v of the log: %v", at, err)
		}
		// What comes before the damage can be read.
		o.ReadOnly = true
		sound := -1
		if at > 0.9 {
			sound = last - 1
		}
		wantReleases(t, open(t, "store", o), sound, last)
	}
}

// damage flips a bit in each file in the store that fits, at that part of its length.
func damage(t *testing.T, fs vfs.FS, pattern string, part float64) {
	t.Helper()
	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, name := range names {
		if ok, _ := filepath.Match(pattern, name); !ok {
			continue
		}
		found = true
		f, err := fs.OpenReadWrite(fs.PathJoin("store", name), vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 1)
		if info.Size() == 0 {
			continue
		}
		at := int64(float64(info.Size()) * part)
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if !found {
		t.Fatalf("no file is called %s", pattern)
	}
}
