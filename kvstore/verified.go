package kvstore

import (
	"errors"
	"os"

	"github.com/larder-cdn/larder/internal/disk"
)

// verifiedFile is in the store's folder beside the files of Pebble, which ignores it. A copy of the rows does not have it, because the
// bytes of the copy have not been read yet; neither does a store that a repair builds.
const verifiedFile = "VERIFIED"

// maxVerified bounds the file, which may be damaged.
const maxVerified = 4 << 10

// ReadVerified returns the record that the last check of the whole store left in its folder, at most 4 KiB of it; nil if none exists. For a store
// that is [Behind] it returns nil, because the record may be newer than the store.
func (s *Store) ReadVerified() ([]byte, error) {
	if s.Behind() != nil {
		return nil, nil
	}
	return readFile(s.opts.FS, s.opts.FS.PathJoin(s.dir, verifiedFile), maxVerified)
}

// WriteVerified replaces the record of the last check of the whole store, durably. It also does so in a store that was opened read-only, unless its
// file system cannot be written to.
func (s *Store) WriteVerified(record []byte) error {
	return replaceFile(s.opts.FS, s.opts.FS.PathJoin(s.dir, verifiedFile), record)
}

// RemoveVerified removes the record of the last check, if it exists, durably.
func (s *Store) RemoveVerified() error {
	err := s.opts.FS.Remove(s.opts.FS.PathJoin(s.dir, verifiedFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return disk.SyncFolder(s.opts.FS, s.dir)
}
