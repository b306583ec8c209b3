//go:build unix

package bucket

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sys/unix"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/internal/retry"
)

// lockName is the file that is locked, beside the objects.
const lockName = ".lock"

// folder is a Bucket in a folder of the file system. An object is made by a link, which never takes
// the place of another, and replaced under a lock.
type folder struct{ dir string }

// OpenFolder returns a bucket in the folder dir, which it creates if necessary. Only processes of this machine may write there.
func OpenFolder(dir string) (Bucket, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("couldn't make the bucket's folder: %w", err)
	}
	return &folder{dir}, nil
}

// FolderAt returns a bucket in the folder dir, which is created with the first object. Only processes of this machine may write there.
// It does not look at the file system; the error is that dir cannot be made absolute.
func FolderAt(dir string) (Bucket, error) {
	dir, err := filepath.Abs(dir)
	return &folder{dir}, err
}

// decidedByKernel does nothing. That a bucket has it tells [Probe] that the kernel decides between writers, and no gateway, so that a few rounds are
// enough.
func (f *folder) decidedByKernel() {}

// String implements [Bucket]: it returns the folder as a file URL.
func (f *folder) String() string { return "file://" + f.dir }

// Create implements [Bucket]: it writes the file of a new object, durably, and returns its version, or [ErrExists]. The kernel decides between
// writers, by a link that never replaces a file.
func (f *folder) Create(ctx context.Context, key string, data []byte) (Version, error) {
	return f.writeWith(ctx, key, data, disk.Create)
}

// Replace implements [Bucket]: it replaces the object's file if the object has the version old, and otherwise returns [ErrChanged], also if there is
// no such object. Only one Replace at a time compares and writes, under a lock of the folder; Put and Delete take no lock, so a key that is replaced
// must not be written by them.
func (f *folder) Replace(ctx context.Context, key string, data []byte, old Version) (Version, error) {
	return f.writeWith(ctx, key, data, func(path string, data []byte, mode fs.FileMode) error {
		return f.withLock(ctx, func() error {
			have, err := f.read(ctx, key, math.MaxInt64-1)
			if errors.Is(err, ErrNotFound) || err == nil && versionOf(have) != old {
				return ErrChanged
			}
			if err != nil {
				return err
			}
			return disk.Replace(path, data, mode)
		})
	})
}

// Put implements [Bucket]: it creates or replaces the object's file, whatever its version.
func (f *folder) Put(ctx context.Context, key string, data []byte) error {
	_, err := f.writeWith(ctx, key, data, disk.Replace)
	return err
}

// writeWith writes the object with this key by calling how with the path of its file, creates its folder before, and returns the version that data
// has. fs.ErrExist from how becomes [ErrExists].
func (f *folder) writeWith(ctx context.Context, key string, data []byte, how func(path string, data []byte, mode fs.FileMode) error) (Version, error) {
	path, err := f.path(key), errors.Join(checkKey(key), ctx.Err())
	if err == nil {
		err = disk.MakeFolder(vfs.Default, filepath.Dir(path))
	}
	if err == nil {
		err = how(path, data, 0o600)
	}
	if errors.Is(err, fs.ErrExist) {
		err = ErrExists
	}
	if err != nil {
		return "", objectError(f, key, err)
	}
	return versionOf(data), nil
}

// lockRest is how long a writer waits before it looks at the lock again.
const lockRest = 5 * time.Millisecond

// withLock waits for the lock of the bucket's folder and returns the result of fn, which it calls while no other process, and no other
// goroutine, has the lock. If ctx ends first, it returns the error and does not call fn. If a
// process ends, the system releases its lock. The folder must exist.
func (f *folder) withLock(ctx context.Context, fn func() error) error {
	lock, err := os.OpenFile(filepath.Join(f.dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // which unlocks it
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return fn()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("couldn't lock the folder: %w", err)
		}
		if err := retry.Sleep(ctx, lockRest); err != nil {
			return err
		}
	}
}

// Get implements [Bucket]: it returns an object of up to most bytes and its version, or [ErrNotFound], or [ErrTooLarge].
func (f *folder) Get(ctx context.Context, key string, most int64) ([]byte, Version, error) {
	return f.GetOther(ctx, key, most, "")
}

// GetOther implements [Bucket]: it is Get, but returns nil for the bytes of an object that has the version known, with that version. It reads the
// object in any case, because its version is a hash.
func (f *folder) GetOther(ctx context.Context, key string, most int64, known Version) ([]byte, Version, error) {
	data, err := f.read(ctx, key, most)
	if err != nil {
		return nil, "", objectError(f, key, err)
	}
	v := versionOf(data)
	if v == known {
		return nil, v, nil
	}
	return data, v, nil
}

// read returns the bytes of an object of up to most bytes, or [ErrNotFound], or [ErrTooLarge].
func (f *folder) read(ctx context.Context, key string, most int64) ([]byte, error) {
	if err := errors.Join(checkKey(key), ctx.Err()); err != nil {
		return nil, err
	}
	file, err := os.Open(f.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return readUpTo(file, most)
}

// List implements [Bucket]: it iterates over the objects whose keys begin with prefix and come after the key after, in the order of the keys. It
// reads the names of all of them before it yields the first. If that fails, it yields those that it has read, and then the error.
func (f *folder) List(ctx context.Context, prefix, after string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		var all []Object
		begin := filepath.Join(f.dir, filepath.FromSlash(prefix[:strings.LastIndexByte(prefix, '/')+1]))
		err := filepath.WalkDir(begin, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err := errors.Join(err, ctx.Err()); err != nil || d.IsDir() || strings.HasPrefix(d.Name(), ".") {
				return err
			}
			key, err := filepath.Rel(f.dir, path)
			if key = filepath.ToSlash(key); err != nil || !strings.HasPrefix(key, prefix) || key <= after {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err == nil {
				all = append(all, Object{key, info.Size()})
			}
			return err
		})
		slices.SortFunc(all, func(a, b Object) int { return strings.Compare(a.Key, b.Key) })
		for _, o := range all {
			if !yield(o, nil) {
				return
			}
		}
		if err != nil {
			yield(Object{}, objectError(f, prefix, err))
		}
	}
}

// Delete implements [Bucket]: it removes the object's file, if it exists, whatever its version.
func (f *folder) Delete(ctx context.Context, key string) error {
	err := errors.Join(checkKey(key), ctx.Err())
	if err == nil {
		err = os.Remove(f.path(key))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return objectError(f, key, err)
}

// path returns the path of the file of an object. It does not check the key.
func (f *folder) path(key string) string { return filepath.Join(f.dir, filepath.FromSlash(key)) }

// versionOf returns the version of an object in a folder: the SHA-256 of its bytes.
func versionOf(data []byte) Version {
	sum := sha256.Sum256(data)
	return Version(hex.EncodeToString(sum[:]))
}
