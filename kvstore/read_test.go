package kvstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A disk that can't be read for a while is not taken for a damaged store, and
// what it didn't give not for an empty row. Values in blob files are what Pebble
// reads last, apart from the keys.
func TestReadFails(t *testing.T) {
	for _, cause := range []error{syscall.EMFILE, syscall.EIO} {
		for _, kind := range []errorfs.OpKind{errorfs.OpOpen, errorfs.OpFileReadAt} {
			t.Run(fmt.Sprintf("%v, %d", cause, kind), func(t *testing.T) {
				disk, _ := newBadDisk(cause, []string{"*.blob"}, kind)
				s := open(t, "store", small(disk))
				body := noise(1, 50_000)
				h := put(t, s, body)
				row := string(noise(2, separateFrom))
				set(t, s, Blobs, "row", row)
				if err := errors.Join(pebbleOf(s).Flush(), s.Close()); err != nil {
					t.Fatal(err)
				}

				s = open(t, "store", small(disk)) // with nothing in memory
				snap := s.Snapshot()
				defer snap.Close()
				reads := map[string]func() ([]byte, error){
					"Store.Get":     func() ([]byte, error) { return s.Get(Blobs, []byte("row")) },
					"Snapshot.Get":  func() ([]byte, error) { return snap.Get(Blobs, []byte("row")) },
					"Store.Scan":    func() ([]byte, error) { return scanned(s) },
					"Snapshot.Scan": func() ([]byte, error) { return scanned(snap) },
					"Coded": func() ([]byte, error) {
						_, coded, err := s.Coded(h, coding.Identity)
						return coded, err
					},
					"Read": func() ([]byte, error) {
						return s.Read(h, Representation{coding.Identity, int64(len(body)), h})
					},
					"Identity": func() ([]byte, error) { return s.Identity(h) },
				}
				disk.failing.Store(true)
				for name, read := range reads {
					got, err := read()
					if !errors.Is(err, cause) || errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) || got != nil {
						t.Errorf("%s: %d bytes, %v", name, len(got), err)
					}
				}
				disk.failing.Store(false)
				for name, read := range reads {
					want := []byte(row)
					if name == "Coded" || name == "Read" || name == "Identity" {
						want = body
					}
					if got, err := read(); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s, once the disk is well: %d bytes, %v", name, len(got), err)
					}
				}
			})
		}
	}
}

// scanned returns the value of the only file.
func scanned(r Reader) (value []byte, err error) {
	for item, err := range r.Scan(Blobs, Range{Prefix: []byte("row")}) {
		if err != nil {
			return nil, err
		}
		value = bytes.Clone(item.Value)
	}
	return value, nil
}

// readOnlyDisk is a file system that is mounted read-only.
type readOnlyDisk struct{ vfs.FS }

func (readOnlyDisk) Create(string, vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, syscall.EROFS
}
func (readOnlyDisk) Lock(string) (io.Closer, error)     { return nil, syscall.EROFS }
func (readOnlyDisk) MkdirAll(string, os.FileMode) error { return syscall.EROFS }

func TestReadOnlyDisk(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "store", small(mem))
	set(t, s, Files, "row", "value")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	o := small(readOnlyDisk{mem})
	o.ReadOnly = true
	s = open(t, "store", o)
	if got, err := s.Get(Files, []byte("row")); err != nil || string(got) != "value" {
		t.Errorf("%q, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A store that kept rows in blob files is compacted once, so that a scan finds them without the MANIFEST.
func TestRowsMoveToTables(t *testing.T) {
	mem := vfs.NewMem()
	s := open(t, "store", small(mem))
	row := string(noise(3, 3*separateFrom))
	po := pebbleOptions(&Options{FS: mem})
	po.FS, po.Experimental.SpanPolicyFunc = mem, nil // as an older program
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open("store", po)
	if err == nil {
		err = errors.Join(db.Set(Meta.physical([]byte("large")), []byte(row), pebble.Sync), db.Delete(Meta.physical(rowsKey), pebble.Sync), db.Flush(), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	found := func() bool {
		scan, err := ScanFiles(t.Context(), "store", t.TempDir(), small(mem), scannedRows, func(_, _ int64) {})
		if err != nil {
			t.Fatal(err)
		}
		value, err := scan.Get(Meta, []byte("large"))
		if err := scan.Close(); err != nil {
			t.Error(err)
		}
		return err == nil && string(value) == row
	}
	if found() {
		t.Fatal("the row is in a table to begin with")
	}
	o := small(mem)
	o.MinFreeBytes = 1 << 20
	for _, free := range []uint64{1 << 20, 1<<20 + uint64(len(row))/2} { // the disk has no room for the new tables
		mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: free, TotalBytes: 1 << 30})
		s = open(t, "store", o)
		if err := s.UseNewestFormat(); err != nil {
			t.Fatal(err)
		}
		s.reclaim.wait.Wait()
		if _, err := s.Get(Meta, rowsKey); !errors.Is(err, ErrNotFound) {
			t.Errorf("with %d bytes free, the rows are moved: %v", free, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	mem.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 30, TotalBytes: 1 << 30})
	s = open(t, "store", o)
	if err := s.UseNewestFormat(); err != nil {
		t.Fatal(err)
	}
	s.reclaim.wait.Wait()
	if _, err := s.Get(Meta, rowsKey); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !found() {
		t.Error("a scan does not find the row")
	}
}
