// Package disk changes folders and whole files so that the change survives a power failure.
//
// After a function has returned without an error, its change is on the disk. Whatever happens before, the old file or the new one is complete.
// The package must not know the content of the files.
package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// SyncFolder writes the list of a folder's files to the disk. It does not sync the contents of the files.
func SyncFolder(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// MakeFolder creates a folder that only its owner may use, and the folders above it, and syncs the lists that have the new ones. It does not
// change a folder that exists. It also syncs the list that has the nearest folder that existed, unless it may not open that list.
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
	// Another process may have just created the topmost one.
	if err := SyncFolder(fs, filepath.Dir(above[len(above)-1])); !errors.Is(err, os.ErrPermission) {
		return err
	}
	return nil
}

// Create writes a new file with these permissions (the umask has no effect). Its folder must exist. If there is a file with that path, it
// changes nothing and returns an error that is [fs.ErrExist].
func Create(path string, data []byte, mode fs.FileMode) error {
	fresh, err := writeTemporary(path, data, mode)
	if err != nil {
		return err
	}
	defer os.Remove(fresh)
	// Unlike a rename, a link never replaces another file.
	if err := os.Link(fresh, path); err != nil {
		return err
	}
	return SyncFolder(vfs.Default, filepath.Dir(path))
}

// Replace writes a file with these permissions (the umask has no effect), and replaces the one that has that path, if any; of a symbolic link,
// the link itself. Its folder must exist.
func Replace(path string, data []byte, mode fs.FileMode) error {
	fresh, err := writeTemporary(path, data, mode)
	if err != nil {
		return err
	}
	if err := os.Rename(fresh, path); err != nil {
		return errors.Join(err, os.Remove(fresh))
	}
	return SyncFolder(vfs.Default, filepath.Dir(path))
}

// writeTemporary writes and syncs a hidden temporary file in the folder of path, and returns its path. After an error it has removed
// the file.
func writeTemporary(path string, data []byte, mode fs.FileMode) (fresh string, err error) {
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
