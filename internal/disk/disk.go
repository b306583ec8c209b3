// Package disk changes folders and whole files so that the change survives a power failure.
//
// After a function has returned without an error, its change is on the disk. Whatever happens
// before, a file is there as a whole, the old one or the new one. The package must not know
// what the files hold.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SyncFolder writes to the disk which files are in a folder. What they hold is synced with
// the files.
func SyncFolder(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MakeFolder makes a folder for its owner alone, and the folders above it. A folder that is
// there already stays as it is.
func MakeFolder(fs vfs.FS, dir string) error {
	var above []string
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := fs.Stat(d); err == nil || d == filepath.Dir(d) {
			break
		}
		above = append(above, filepath.Dir(d))
	}
	if len(above) == 0 {
		return nil
	}
	if err := fs.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range above {
		if err := SyncFolder(fs, d); err != nil {
			return err
		}
	}
	// The last one may have just been made, too, by another.
	if err := SyncFolder(fs, filepath.Dir(above[len(above)-1])); !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// Create writes a file that is not there yet. Where there is one already, the error is
// [fs.ErrExist] and nothing is changed.
func Create(path string, data []byte, mode fs.FileMode) error {
	fresh, err := writeBeside(path, data, mode)
	if err != nil {
		return err
	}
	defer os.Remove(fresh)
	// Unlike a rename, a link never takes the place of another file.
	if err := os.Link(fresh, path); err != nil {
		return err
	}
	return SyncFolder(vfs.Default, filepath.Dir(path))
}

// Replace writes a file, in the place of the one that is there, if any.
func Replace(path string, data []byte, mode fs.FileMode) error {
	fresh, err := writeBeside(path, data, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return SyncFolder(vfs.Default, filepath.Dir(path))
}

// writeBeside writes a hidden file in the folder of path.
func writeBeside(path string, data []byte, mode fs.FileMode) (fresh string, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}
