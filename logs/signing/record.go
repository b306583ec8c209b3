package signing

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A Record is the key folder of a process that follows a log and cannot sign it: it has the
// log's verifier key and the last signed checkpoint of which the store has everything, where
// [ReadFolder] finds them. So a store that has less, from an old backup, is noticed as that of
// a signer is. No signer begins in such a folder.
type Record struct {
	folder *folder
	store  *kvstore.Store
	close  func() error
}

// OpenRecord opens a key folder for a follower, and makes it where there is none. One that has
// a key to sign with is refused.
func OpenRecord(dir string, store *kvstore.Store) (*Record, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(vfs.Default, dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	for _, name := range []string{keyFile, nextKeyFile} {
		data, err := f.read(name)
		if err == nil && data != nil {
			err = fmt.Errorf("%s signs a log of its own: what follows another log needs a key folder without a key, which --keys names", f.path(name))
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("signing: %w", err), f.close())
		}
	}
	return &Record{f, store, sync.OnceValue(f.close)}, nil
}

// Keep has a signed checkpoint, of which the store has everything, be the last one, on the
// disk when it returns. key is a verifier key that signed it.
func (r *Record) Keep(key string, signed Signed) error {
	v, err := note.NewVerifier(key)
	if err == nil {
		_, _, err = open(signed.Note, v.Name(), note.VerifierList(v))
	}
	if err == nil {
		err = r.folder.write(checkpointFile, signed.Note, false)
	}
	if err == nil {
		err = r.folder.write(publicFile, []byte(written(v, key)), false)
	}
	if err != nil {
		return fmt.Errorf("signing: couldn't keep the checkpoint of the log that is followed: %w", err)
	}
	b := r.store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, signedKey, signed.Note)
	b.Set(kvstore.LogState, signedByKey, []byte(key))
	if err := b.Commit(); err != nil {
		return fmt.Errorf("signing: couldn't note in the store what is signed: %w", err)
	}
	return nil
}

// Last returns the last checkpoint that was kept and is that of the log in the store or of a
// beginning of it, with the key by which it counts. There is none in a new folder.
func (r *Record) Last(c logs.Checkpoint) (Signed, string, error) {
	signed, key, err := ReadFolder(r.folder.dir)
	if key == "" || err != nil {
		return Signed{}, "", nil //nolint:nilerr // it is had from the source again
	}
	contained, err := Contains(r.store, c, signed.Checkpoint)
	if err != nil || !contained {
		return Signed{}, key, err
	}
	return signed, key, nil
}

// Close lets others have the folder. It may be called again.
func (r *Record) Close() error { return r.close() }
