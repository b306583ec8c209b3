// Package unsynced is the real file system without its slowest call: files and folders are not synced to the disk. A process
// that is killed loses nothing by it, only a machine that loses power does.
//
// It is for tests whose subject is not durability.
package unsynced

import "github.com/cockroachdb/pebble/v2/vfs"

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
