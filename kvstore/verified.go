package kvstore

import (
	"errors"
	"io"
	"os"

	"github.com/larder-cdn/larder/internal/disk"
)

// verifiedFile is in the store's folder beside the files of Pebble, which ignores it. A copy of the rows does not have it, because the
// bytes of the copy have not been read yet; neither does a store that a repair builds.
const verifiedFile = "VERIFIED"

// maxVerified bounds the file, which may be damaged.
const maxVerified = 4 << 10

// ReadVerified returns the record of the last check of this store, nil without one. A store that is [Behind] is older than
// the record may be, so it has none.
func (s *Store) ReadVerified() ([]byte, error) {
	if s.Behind() != nil {
		return nil, nil
	}
	f, err := s.opts.FS.Open(s.opts.FS.PathJoin(s.dir, verifiedFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxVerified))
}

// WriteVerified replaces the record of the last check. A store that was opened read-only has such a record too, unless its file
// system cannot be written to.
func (s *Store) WriteVerified(record []byte) error {
	return replaceFile(s.opts.FS, s.opts.FS.PathJoin(s.dir, verifiedFile), record)
}

// RemoveVerified removes the record of the last check, if there is one. A crash does not bring it back.
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
