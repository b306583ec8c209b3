package kvstore

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"
)

// lockFolder locks the folder of a store, or returns [ErrLocked] if a process, also this one, has it locked. Other errors are those of openError.
// With o.ReadOnly, the folder can be one to which this process cannot write; then the lock is one that readers share, and that no writer can have
// beside them. The caller closes the lock.
func lockFolder(dir string, o Options) (*pebble.Lock, error) {
	fs := o.FS
	if o.ReadOnly {
		fs = sharedLocks{fs}
	}
	lock, err := pebble.LockDirectory(dir, fs)
	if err != nil {
		return nil, lockError(dir, err)
	}
	return lock, nil
}

// IsLocked reports whether another process has the store in the folder dir open. It takes no lock itself. It returns false where the lock cannot be
// read. A process must not call it for a store that it has open itself: the result would be false, and the system would release the store's lock.
func IsLocked(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "LOCK"))
	if err != nil {
		return false
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK}
	return unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock) == nil && lock.Type != unix.F_UNLCK
}

// sharedLocks is a file system whose locks are shared where the process cannot write.
type sharedLocks struct{ vfs.FS }

// Lock implements vfs.FS. It takes an exclusive lock if it can. Where this process cannot write, it takes a shared lock on the existing file, or none
// on a read-only file system without the file.
func (s sharedLocks) Lock(name string) (io.Closer, error) {
	exclusive, err := s.FS.Lock(name)
	if !errors.Is(err, syscall.EROFS) && !isPermission(err) {
		return exclusive, err
	}
	f, missing := s.FS.Open(filepath.Clean(name))
	if missing != nil {
		if errors.Is(missing, fs.ErrNotExist) && errors.Is(err, syscall.EROFS) {
			return io.NopCloser(nil), nil // nothing can write here
		}
		return nil, err
	}
	if f.Fd() == vfs.InvalidFd {
		return f, nil // not a file of this system
	}
	if failed := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK}); failed != nil {
		return nil, errors.Join(failed, f.Close())
	}
	return f, nil
}

// isPermission reports whether err says that a file could not be opened for lack of permission. That another process has a lock is a bare EACCES, for
// which it is false.
func isPermission(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && errors.Is(err, fs.ErrPermission)
}
