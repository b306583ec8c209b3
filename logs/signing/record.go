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

// A Record is the key folder of a process that follows a log and cannot sign it. It has the log's verifier key and the last signed
// checkpoint of which the store has everything, for [ReadFolder]. So a store from an old backup, which has less, is detected as that of
// a signer is. A signer cannot start in such a folder.
type Record struct {
	folder *folder
	store  *kvstore.Store
	own    string // the verifier key of the folder's private key; "" if it has none
	close  func() error
}

// OpenRecord opens and locks the key folder of a follower, and creates it if necessary. A folder with a private key, also
// one that is not in use yet, is an error.
func OpenRecord(dir string, store *kvstore.Store) (*Record, error) {
	return openRecord(dir, store, func(r *Record) error {
		for _, name := range []string{keyFile, nextKeyFile} {
			data, err := r.folder.read(name)
			if err == nil && data != nil {
				err = fmt.Errorf("%s signs a log of its own: a process that follows another log needs a key folder without a key, which --keys names", r.folder.path(name))
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// OpenCandidate opens a key folder as [OpenRecord] does, for a process that may sign the followed log later. The folder may
// have that log's private key, whose verifier key [Record.OwnKey] then returns. One that cannot be parsed is an error.
func OpenCandidate(dir string, store *kvstore.Store) (*Record, error) {
	return openRecord(dir, store, func(r *Record) error {
		data, err := r.folder.read(keyFile)
		if err != nil || data == nil {
			return err
		}
		k, err := parseKey(data)
		if err != nil {
			return fmt.Errorf("couldn't read %s: %w; put a good copy of it there", r.folder.path(keyFile), err)
		}
		r.own = k.public
		return nil
	})
}

// openRecord opens and locks a key folder, and calls readKeys to look at the private keys in it. If readKeys fails, openRecord unlocks the
// folder and returns that error.
func openRecord(dir string, store *kvstore.Store, readKeys func(*Record) error) (*Record, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	f, err := openFolder(vfs.Default, dir)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	r := &Record{folder: f, store: store, close: sync.OnceValue(f.unlock)}
	if err := readKeys(r); err != nil {
		return nil, errors.Join(fmt.Errorf("signing: %w", err), f.unlock())
	}
	return r, nil
}

// OwnKey returns the verifier key of the private key that the folder has, with which this process may sign the followed log
// later; "" if it has none.
func (r *Record) OwnKey() string { return r.own }

// Store stores a signed checkpoint, of which the store has everything, as the last one, in the folder and in the store. key
// is a verifier key that signed it, which Store verifies and stores, too. If the folder has a private key of its own, another key
// is an error. After an error the folder may be ahead of the store.
func (r *Record) Store(key string, signed Signed) error {
	if r.own != "" && key != r.own {
		return fmt.Errorf("signing: the key in %s was changed at another node; copy log.key and log.pub from there", r.folder.dir)
	}
	v, err := note.NewVerifier(key)
	if err == nil {
		_, _, err = openNote(signed.Note, v.Name(), note.VerifierList(v))
	}
	if err == nil {
		err = r.folder.write(checkpointFile, signed.Note, false)
	}
	if err == nil {
		err = r.folder.write(publicFile, []byte(publicFileText(v, key)), false)
	}
	if err != nil {
		return fmt.Errorf("signing: couldn't store the checkpoint of the followed log: %w", err)
	}
	b := r.store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, logs.SignedRow, signed.Note)
	b.Set(kvstore.LogState, signedByKey, []byte(key))
	if err := b.Commit(); err != nil {
		return fmt.Errorf("signing: couldn't store the signed checkpoint: %w", err)
	}
	return nil
}

// Last returns the last checkpoint that was stored, with the verifier key that signed it, if the log with the checkpoint c
// contains it. If not, it returns an empty Signed with the key; if the folder is new or cannot be read, an empty Signed and
// "". The error says that the store's tree could not be read.
func (r *Record) Last(c logs.Checkpoint) (Signed, string, error) {
	signed, key, err := ReadFolder(r.folder.dir)
	if key == "" || err != nil {
		return Signed{}, "", nil //nolint:nilerr // the follower gets it from the source again
	}
	contained, err := Contains(r.store, c, signed.Checkpoint)
	if err != nil || !contained {
		return Signed{}, key, err
	}
	return signed, key, nil
}

// Close unlocks the folder. It may be called again.
func (r *Record) Close() error { return r.close() }

// ReadNote verifies a signed checkpoint with any of several verifier keys, and parses it. One signature is enough; by is the
// last of the keys that has signed it. It tries the keys from the last one on; an invalid key, or a note that is malformed
// or has a wrong signature by the key, ends that with an error.
func ReadNote(data []byte, keys []string) (_ Signed, by string, err error) {
	for _, k := range slices.Backward(keys) {
		v, err := note.NewVerifier(k)
		if err != nil {
			return Signed{}, "", fmt.Errorf("signing: %w", err)
		}
		signed, _, err := openNote(data, v.Name(), note.VerifierList(v))
		if err == nil {
			return signed, k, nil
		}
		if !errors.As(err, new(*note.UnverifiedNoteError)) {
			return Signed{}, "", fmt.Errorf("signing: %w", err)
		}
	}
	return Signed{}, "", errors.New("signing: it is not signed with the log's key")
}
