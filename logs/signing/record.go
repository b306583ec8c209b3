package signing

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
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
	own    string // the verifier key of the key that is there to sign with; "" where there is none
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
	return &Record{folder: f, store: store, close: sync.OnceValue(f.close)}, nil
}

// OpenCandidate opens a key folder as [OpenRecord] does, also one that has a key: that of the log that is
// followed, for a process that may sign it later. What is kept is what it must continue then.
func OpenCandidate(dir string, store *kvstore.Store) (*Record, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(vfs.Default, dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	r := &Record{folder: f, store: store, close: sync.OnceValue(f.close)}
	data, err := f.read(keyFile)
	if err == nil && data != nil {
		var k *key
		if k, err = parseKey(data); err != nil {
			err = fmt.Errorf("couldn't read %s: %w; put a good copy of it there", f.path(keyFile), err)
		} else {
			r.own = k.public
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("signing: %w", err), f.close())
	}
	return r, nil
}

// Own is the verifier key of the key that is there to sign with, "" where there is none.
func (r *Record) Own() string { return r.own }

// Keep has a signed checkpoint, of which the store has everything, be the last one, on the
// disk when it returns. key is a verifier key that signed it.
func (r *Record) Keep(key string, signed Signed) error {
	if r.own != "" && key != r.own {
		return fmt.Errorf("signing: the key in %s was changed at another node; copy log.key and log.pub from there", r.folder.dir)
	}
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

// ReadNote reads a signed checkpoint, in which one of the verifier keys must have had a hand. It returns
// the last of them that had.
func ReadNote(data []byte, keys []string) (_ Signed, by string, err error) {
	for _, k := range slices.Backward(keys) {
		v, err := note.NewVerifier(k)
		if err != nil {
			return Signed{}, "", fmt.Errorf("signing: %w", err)
		}
		signed, _, err := open(data, v.Name(), note.VerifierList(v))
		if err == nil {
			return signed, k, nil
		}
		if !errors.As(err, new(*note.UnverifiedNoteError)) {
			return Signed{}, "", fmt.Errorf("signing: %w", err)
		}
	}
	return Signed{}, "", errors.New("signing: it is not signed with the log's key")
}
