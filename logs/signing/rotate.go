package signing

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/internal/disk"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// A KeyChange is a key that took over, and why one may believe that.
type KeyChange struct {
	Index     int64  `json:"index"`     // of the entry that says so
	Key       string `json:"key"`       // the new verifier key
	Signature string `json:"signature"` // by the key before, as in [logs.Entry.KeySignature]
}

// By reports whether the key behind v has handed over to the new one.
func (c KeyChange) By(v note.Verifier) bool {
	_, err := note.Open([]byte(c.Key+"\n\n"+c.Signature+"\n"), note.VerifierList(v))
	return err == nil
}

// Follow returns the keys to which changes, oldest first, lead from the one that
// a client trusts: that one and then its successors. It stops at the first change
// that is not theirs to make.
func Follow(trusted note.Verifier, changes []KeyChange) []note.Verifier {
	chain := []note.Verifier{trusted}
	for _, c := range changes {
		last := chain[len(chain)-1]
		if !c.By(last) {
			continue // of the time before trusted, or nothing to go by
		}
		if next, err := note.NewVerifier(c.Key); err == nil && next.Name() == trusted.Name() {
			chain = append(chain, next)
		}
	}
	return chain
}

// changesKey is the row of LogState that lists the KeyChanged entries.
var changesKey = kvstore.Key("key-changes")

// KeyChanges reads which keys have taken over in the log in r, oldest first.
func KeyChanges(r kvstore.Reader) ([]KeyChange, error) {
	indexes, err := r.Get(kvstore.LogState, changesKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("signing: couldn't read which keys have taken over: %w", err)
	}
	var changes []KeyChange
	for ; len(indexes) >= 8; indexes = indexes[8:] {
		e, err := logs.ReadEntry(r, int64(binary.BigEndian.Uint64(indexes)))
		if err != nil {
			return nil, fmt.Errorf("signing: %w", err)
		}
		changes = append(changes, KeyChange{e.Index, e.Key, e.KeySignature})
	}
	return changes, nil
}

// KeyChanges returns which keys have taken over, oldest first.
func (s *Signer) KeyChanges() ([]KeyChange, error) { return KeyChanges(s.options.Store) }

// Rotate makes a new key that takes over. The log says so, in an entry that the
// present key signs. That key goes on signing beside the new one, so that who has
// pinned it has time, for as long as its file stays in the key folder.
//
// It comes in steps of which any may be the last before a crash: the new key is on
// the disk before the log names it, and in its place after that. [Open] does what
// is left.
func (s *Signer) Rotate(now time.Time) (KeyChange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.maySign(); err != nil {
		return KeyChange{}, fmt.Errorf("signing: %w", err)
	}
	change, err := s.rotate(now)
	if err != nil {
		return KeyChange{}, fmt.Errorf("signing: couldn't change the key: %w", err)
	}
	return change, nil
}

func (s *Signer) rotate(now time.Time) (KeyChange, error) {
	if s.stuck != nil { // what is in the folder is no longer what is in memory
		return KeyChange{}, s.stuck
	}
	if err := s.signNow(); err != nil { // before anything is added to a log that is to be refused
		return KeyChange{}, err
	}
	next, err := newKey(s.origin)
	if err != nil {
		return KeyChange{}, err
	}
	if err := s.folder.write(nextKeyFile, []byte(next.private+"\n"), true); err != nil {
		return KeyChange{}, err
	}
	change, err := s.announce(next, now)
	if err != nil {
		return KeyChange{}, errors.Join(err, s.folder.remove(nextKeyFile))
	}
	if err := s.install(next); err != nil {
		s.stuck = fmt.Errorf("entry %d announces a new key, but it could not be put in place; the next start does that: %w", change.Index, err)
		return KeyChange{}, s.stuck
	}
	if err := s.signNow(); err != nil {
		return KeyChange{}, err
	}
	// What is shown has the new key's signature before clients learn of that key.
	signed, cosignatures, err := s.renew(s.shown.Load().signed.Note)
	if err == nil {
		err = s.show(Signed{signed.Checkpoint, append(signed.Note, cosignatures...)})
	}
	return change, errors.Join(err, s.publish(), s.writePublic(), s.noteSigner())
}

// announce appends the entry that names the next key.
func (s *Signer) announce(next *key, now time.Time) (KeyChange, error) {
	change := KeyChange{Key: next.public}
	signed, err := note.Sign(&note.Note{Text: next.public + "\n"}, s.keys[0].signer)
	if err != nil {
		return KeyChange{}, err
	}
	_, line, _ := bytes.Cut(signed, []byte("\n\n"))
	change.Signature = strings.TrimSuffix(string(line), "\n")
	err = s.options.Log.Update(func(tx *logs.Tx) error {
		e, err := tx.Append(logs.Entry{Kind: logs.KeyChanged, Time: now, Actor: "operator", Key: change.Key, KeySignature: change.Signature})
		if err != nil {
			return err
		}
		change.Index = e.Index
		return NoteChange(tx.Batch, s.options.Store, e.Index)
	})
	return change, err
}

// install puts the next key in the place of the present one.
func (s *Signer) install(next *key) error {
	present := s.keys[0]
	if err := s.folder.write("old-"+present.id()+".key", []byte(present.private+"\n"), true); err != nil {
		return err
	}
	if err := s.folder.rename(nextKeyFile, keyFile); err != nil {
		return err
	}
	s.keys = append(keyring{next}, s.keys...)
	s.logger.Info("another key signs the log from now on; who has pinned the old one can follow", "key", next.public, "old", present.public)
	return nil
}

// settle finishes a change of keys that was cut short.
func (s *Signer) settle() error {
	data, err := s.folder.read(nextKeyFile)
	if err != nil || data == nil {
		return err
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return err
	}
	next, err := parseKey(data)
	if err != nil {
		return fmt.Errorf("couldn't read %s: %w", s.folder.path(nextKeyFile), err)
	}
	if len(changes) == 0 || changes[len(changes)-1].Key != next.public {
		return s.folder.remove(nextKeyFile) // no client has seen it
	}
	return s.install(next)
}

// loadOldKeys adds the keys that sign beside the present one.
func (s *Signer) loadOldKeys() error {
	names, err := s.folder.list(oldKeyPattern)
	if err != nil {
		return err
	}
	for _, name := range names {
		data, err := s.folder.read(name)
		if err != nil {
			return err
		}
		old, err := parseKey(data)
		if err == nil && old.signer.Name() != s.keys[0].signer.Name() {
			err = fmt.Errorf("it is that of the log %q", old.signer.Name())
		}
		if err != nil {
			return fmt.Errorf("couldn't read %s: %w; remove it, or put a good copy of it there", s.folder.path(name), err)
		}
		if old.id() != s.keys[0].id() { // else a change of keys was cut short before the new one was in place
			s.keys = append(s.keys, old)
		}
	}
	return nil
}

// Replay writes the row that lists the changes of keys in the log of store, as it follows
// from the entries.
func Replay(store *kvstore.Store) error {
	var indexes []byte
	for e, err := range logs.Entries(store, 0) {
		if err != nil {
			return err
		}
		if e.Kind == logs.KeyChanged {
			indexes = binary.BigEndian.AppendUint64(indexes, uint64(e.Index))
		}
	}
	if indexes == nil {
		return nil
	}
	b := store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, changesKey, indexes)
	return b.Commit()
}

// NoteChange adds to a batch that an entry changes the key, as [KeyChanges] reads it.
func NoteChange(b *kvstore.Batch, r kvstore.Reader, index int64) error {
	indexes, err := r.Get(kvstore.LogState, changesKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("signing: couldn't read which keys have taken over: %w", err)
	}
	b.Set(kvstore.LogState, changesKey, binary.BigEndian.AppendUint64(indexes, uint64(index)))
	return nil
}

// Carries reports whether a row of LogState is one that says who signed what. The others
// follow from the log.
func Carries(key []byte) bool { return bytes.Equal(key, signedKey) || bytes.Equal(key, signedByKey) }

// A Succession tells which log goes on in the place of one that has lost signed entries.
type Succession struct {
	Former string     `json:"former"` // the origin of the log before
	Lost   logs.Range `json:"lost"`   // its entries that are lost
	Origin string     `json:"origin"`
	Key    string     `json:"key"`            // the verifier key, to be pinned
	Kept   string     `json:"kept,omitempty"` // where the key folder's files of the log before are
}

// Succeed has the log in o.Store go on under a new origin and with a new key, because the
// end of what was signed is lost for good. The next entry says so. The files of the log
// before are kept in a folder of their own in the key folder. Of a Succeed that was
// interrupted, the next one does what is left.
func Succeed(o Options, now time.Time) (Succession, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	signed, key, err := ReadFolder(o.Dir)
	if err != nil {
		return Succession{}, err
	}
	next := Succession{Lost: logs.Range{From: o.Log.Checkpoint().Size, To: signed.Size}}
	next.Former, _, _ = strings.Cut(key, "+")
	stamp := now.UTC().Format("20060102-150405")
	base, _, _ := strings.Cut(next.Former, "/after-")
	if o.Origin = base + "/after-" + stamp; o.Origin == next.Former {
		return next, errors.New("signing: the log was succeeded a second ago")
	}
	if err := CheckOrigin(o.Origin); err != nil {
		o.Origin = someOrigin()
	}
	f, err := openFolder(o.FS, o.Dir)
	if err != nil {
		return next, fmt.Errorf("signing: %w", err)
	}
	err = announceLoss(o, &next, signed, now)
	if err == nil {
		next.Kept, err = f.putAside("former-" + stamp)
	}
	if err := errors.Join(err, f.close()); err != nil {
		return next, fmt.Errorf("signing: couldn't begin a new log: %w", err)
	}
	s, err := Open(o)
	if err != nil {
		return next, err
	}
	next.Origin, next.Key = s.Origin(), s.Key()
	return next, s.Close()
}

// announceLoss appends the entry that names what is lost, unless that is there. In the same
// batch goes what the store has of the log before.
func announceLoss(o Options, next *Succession, signed Signed, now time.Time) error {
	if size := next.Lost.From; size > 0 {
		last, err := logs.ReadEntry(o.Store, size-1)
		if err != nil {
			return err
		}
		if last.Kind == logs.LossAccepted && last.Former == string(signed.Note) {
			next.Lost = last.Lost
			return nil
		}
	}
	return o.Log.Update(func(tx *logs.Tx) error {
		for _, key := range [][]byte{signedKey, signedByKey, changesKey} {
			tx.Batch.Delete(kvstore.LogState, key)
		}
		_, err := tx.Append(logs.Entry{Kind: logs.LossAccepted, Time: now, Actor: "operator", Former: string(signed.Note), Lost: next.Lost})
		return err
	})
}

// putAside moves the files of a log into a folder of the key folder. Those that say what was
// signed come last, so that whatever a crash leaves is not signed.
func (f *folder) putAside(name string) (string, error) {
	aside := f.path(name)
	if err := disk.MakeFolder(f.fs, aside); err != nil {
		return "", err
	}
	names, err := f.list(oldKeyPattern)
	if err != nil {
		return "", err
	}
	disputes, err := f.list(disputePattern)
	if err != nil {
		return "", err
	}
	for _, file := range append(append(names, disputes...), publishedFile, nextKeyFile, keyFile, checkpointFile, publicFile) {
		if data, err := f.read(file); err != nil {
			return "", err
		} else if data == nil {
			continue
		}
		if err := f.fs.Rename(f.path(file), filepath.Join(aside, file)); err != nil {
			return "", err
		}
	}
	return aside, errors.Join(disk.SyncFolder(f.fs, aside), disk.SyncFolder(f.fs, f.dir))
}
