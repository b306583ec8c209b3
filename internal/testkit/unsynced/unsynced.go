// Package unsynced is the real file system without its slowest call: files and folders are not synced to the disk. A process
// that is killed loses nothing by it, only a machine that loses power does. It also puts the temporary folders of tests into memory.
//
// It is for tests whose subject is not durability.
package unsynced

import (
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// FS is the file system.
var FS vfs.FS = fs{vfs.Default}

type fs struct{ vfs.FS }

// Unwrap is for [vfs.Root].
func (f fs) Unwrap() vfs.FS { return f.FS }

func (f fs) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrap(f.FS.Create(name, c))
}

func (f fs) ReuseForWrite(oldname, newname string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return wrap(f.FS.ReuseForWrite(oldname, newname, c))
}

func (f fs) OpenReadWrite(name string, c vfs.DiskWriteCategory, o ...vfs.OpenOption) (vfs.File, error) {
	return wrap(f.FS.OpenReadWrite(name, c, o...))
}

func (f fs) OpenDir(name string) (vfs.File, error) { return wrap(f.FS.OpenDir(name)) }

type file struct{ vfs.File }

func wrap(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return file{f}, nil
}

func (file) Sync() error                { return nil }
func (file) SyncData() error            { return nil }
func (file) SyncTo(int64) (bool, error) { return false, nil }

// UseMemory makes this process and its children create temporary folders in memory. It does nothing if the user has chosen a folder
// by TMPDIR or GOTMPDIR, or if the system has no folder in memory with enough space. A TestMain calls it.
//
// It is for tests that create and remove thousands of small files, such as git's objects: ext4 without a journal examines each
// recently removed file before it creates one. Tests that open many stores take longer with it, because Pebble reserves space
// for its files, and the kernel clears reserved memory.
func UseMemory() {
	const (
		folder = "/dev/shm"
		enough = 4 << 30
	)
	if os.Getenv("TMPDIR") != "" || os.Getenv("GOTMPDIR") != "" {
		return
	}
	usage, err := vfs.Default.GetDiskUsage(folder)
	if err != nil || usage.AvailBytes < enough {
		return
	}
	own, err := os.MkdirTemp(folder, "larder-test-")
	if err != nil {
		return
	}
	_ = os.Remove(own)              // it was made only to find out whether that is possible
	_ = os.Setenv("TMPDIR", folder) // fails only for names that no variable can have
}
