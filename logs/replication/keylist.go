package replication

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/logs/signing"
)

// readKeyList reads the signed list of the log's keys from the key folder, and stores it in the file of known logs, [KnownFile], unless that has the
// same or a newer one. It does nothing if no root key is trusted or the list does not exist. A list that the root key has not signed is an error. An
// operator may put a newer one there than the source sends: after a theft of a key, the source may be the thief's.
func (f *Follower) readKeyList() error {
	if f.Trust.Root == "" {
		return nil
	}
	signed, err := signing.ReadKeyList(f.Keys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = f.known.StoreKeyList(f.Trust.Root, signed)
	}
	if err != nil {
		return fmt.Errorf("couldn't read the list of the log's keys in the key folder: %w", err)
	}
	return nil
}

// writeKeyList writes the newest known signed list of the log's keys to the key folder, from which this mirror serves it, unless that has it already
// or none is known.
func (f *Follower) writeKeyList() error {
	newest := f.known.KeyList(f.Trust.Root)
	if newest == nil {
		return nil
	}
	before, err := signing.ReadKeyList(f.Keys)
	if err == nil && bytes.Equal(before, newest) {
		return nil
	}
	if err := disk.Replace(filepath.Join(f.Keys, signing.KeyListFile), newest, 0o644); err != nil {
		return fmt.Errorf("couldn't write the list of the log's keys: %w", err)
	}
	return nil
}
