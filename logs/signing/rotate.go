package signing

import (
	"bytes"
	"cmp"
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

// A KeyChange says that a new key takes over, with the proof of that.
type KeyChange struct {
	Index     int64  `json:"index"`     // of the entry that says so
	Key       string `json:"key"`       // the new verifier key
	Signature string `json:"signature"` // by the key before, as in [logs.Entry.KeySignature]
}

// IsBy reports whether the key that v verifies has signed this change, so that this key hands over to the new one.
func (c KeyChange) IsBy(v note.Verifier) bool {
	return isSignedBy([]byte(c.Key+"\n\n"+c.Signature+"\n"), v)
}

// FollowedChanges returns those of the changes, oldest first, that lead from the trusted key to the present one. The others
// are not signed with the key before, or precede the trusted key.
func FollowedChanges(trusted note.Verifier, changes []KeyChange) (followed []KeyChange) {
	last := trusted
	for _, c := range changes {
		if !c.IsBy(last) {
			continue
		}
		if next, err := note.NewVerifier(c.Key); err == nil && next.Name() == trusted.Name() {
			last, followed = next, append(followed, c)
		}
	}
	return followed
}

// Follow returns the trusted key and then the keys to which changes lead from it, in the order of the changes.
func Follow(trusted note.Verifier, changes []KeyChange) []note.Verifier {
	all := []note.Verifier{trusted}
	for _, c := range FollowedChanges(trusted, changes) {
		if v, err := note.NewVerifier(c.Key); err == nil {
			all = append(all, v)
		}
	}
	return all
}

// changesKey is the row of LogState that lists the KeyChanged entries.
var changesKey = kvstore.Key("key-changes")

// KeyChanges returns the changes of keys in the log in the store r, oldest first, nil if there are none. It reads them by
// the store's list of them, and does not verify them, which [Follow] does. An entry that cannot be read is an error.
func KeyChanges(r kvstore.Reader) ([]KeyChange, error) {
	indexes, err := readRow(r, changesKey, "the changes of the log's keys")
	if err != nil {
		return nil, err
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

// KeyChanges returns the changes of the log's keys, oldest first.
func (s *Signer) KeyChanges() ([]KeyChange, error) { return KeyChanges(s.options.Store) }

// Rotate creates a new key that takes over from the present one. It appends an entry that announces the new key and is
// signed with the present one. As long as the file of the old key stays in the key folder, that key goes on signing too, so
// that clients that have pinned it have time. Each step may be the last before a crash: the new key is on the disk before
// the log names it, and becomes the present key after that. If the log names it, [Open] does the remaining steps; if not, Open
// removes the new key, and nothing has changed. So after an error, the new key may sign already.
func (s *Signer) Rotate(now time.Time) (KeyChange, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkMaySign(); err != nil {
		return KeyChange{}, fmt.Errorf("signing: %w", err)
	}
	change, err := s.rotate(now)
	if err != nil {
		return KeyChange{}, fmt.Errorf("signing: couldn't change the key: %w", err)
	}
	return change, nil
}

// rotate does the steps of Rotate, with s.mu held. An error does not say that nothing changed. After [logs.ErrUnconfirmed], the next
// signing finishes the change if the log announces the key by then. The new key may sign already and only
// publishing it failed (then the change may be returned, too); or the log announces the new key, but it could not be installed: then
// the next start does that, and later rotations of this process return the same error, while the old key still signs.
func (s *Signer) rotate(now time.Time) (KeyChange, error) {
	if s.rotationErr != nil { // what is in the folder is no longer what is in memory
		return KeyChange{}, s.rotationErr
	}
	if err := s.signIfNeeded(); err != nil { // before anything is added to a log that it must refuse
		return KeyChange{}, err
	}
	if s.unconfirmed {
		return KeyChange{}, errors.New("a change of the key before is not confirmed yet; try again in a moment")
	}
	next, err := newKey(s.origin)
	if err != nil {
		return KeyChange{}, err
	}
	if err := s.folder.write(nextKeyFile, []byte(next.private+"\n"), true); err != nil {
		return KeyChange{}, err
	}
	change, err := s.announceKey(next, now)
	if errors.Is(err, logs.ErrUnconfirmed) { // the log may announce the key, so it stays
		s.unconfirmed = true
		return KeyChange{}, err
	}
	if err != nil {
		return KeyChange{}, errors.Join(err, s.folder.remove(nextKeyFile))
	}
	return change, s.takeOver(next, change.Index)
}

// takeOver makes the next key, which the entry with this index announces, the present one, signs the log and the published checkpoint
// with it, and publishes both.
func (s *Signer) takeOver(next *key, index int64) error {
	if err := s.installKey(next); err != nil {
		s.rotationErr = fmt.Errorf("entry %d announces a new key, but it could not be put in place; the next start does that: %w", index, err)
		return s.rotationErr
	}
	if err := s.signIfNeeded(); err != nil {
		return err
	}
	// The published checkpoint has the new key's signature before clients see that key.
	signed, cosignatures, err := s.renewSignatures(s.published.Load().signed.Note)
	if err == nil {
		err = s.publishCheckpoint(Signed{signed.Checkpoint, append(signed.Note, cosignatures...)})
	}
	return errors.Join(err, s.publishIfMet(), s.writePublic(), s.storeSigner())
}

// finishAnnounced finishes a change of the key whose commit was not confirmed, if the log announces the key by now, and reports whether
// it does. If the commit has failed, the log is no longer this node's to sign, and [Open] removes the key.
func (s *Signer) finishAnnounced() (done bool, err error) {
	next, by, err := s.readNextKey()
	if err != nil || by == nil {
		return false, err
	}
	s.unconfirmed = false
	return true, s.takeOver(next, by.Index)
}

// readNextKey reads the new key that is not in use yet from the folder, nil for none. by is the log's last change of keys if that announces
// this key, else nil.
func (s *Signer) readNextKey() (next *key, by *KeyChange, err error) {
	data, err := s.folder.read(nextKeyFile)
	if err != nil || data == nil {
		return nil, nil, err
	}
	if next, err = parseKey(data); err != nil {
		return nil, nil, fmt.Errorf("couldn't read %s: %w", s.folder.path(nextKeyFile), err)
	}
	changes, err := s.KeyChanges()
	if n := len(changes); n > 0 && changes[n-1].Key == next.public {
		by = &changes[n-1]
	}
	return next, by, err
}

// announceKey appends the entry that announces the next key, signed with the present key, to the log, and adds it to the
// store's list of key changes. It returns the change. It writes nothing to the key folder.
func (s *Signer) announceKey(next *key, now time.Time) (KeyChange, error) {
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
		return AddKeyChanges(tx.Batch, s.options.Store, e.Index)
	})
	return change, err
}

// installKey makes the next key, which the log announces, the present one, in the folder and in memory. The key before
// becomes an old key, which signs too.
func (s *Signer) installKey(next *key) error {
	present := s.keys[0]
	if err := s.folder.write("old-"+present.hashText()+".key", []byte(present.private+"\n"), true); err != nil {
		return err
	}
	if err := s.folder.rename(nextKeyFile, keyFile); err != nil {
		return err
	}
	s.keys = append(keyring{next}, s.keys...)
	s.logger.Info("another key signs the log from now on; clients that have pinned the old one follow the change", "key", next.public, "old", present.public)
	return nil
}

// finishRotation finishes a change of keys that was interrupted: it installs the new key in the folder if the last change of
// keys in the log announces it, and else removes it. It does nothing if there is no new key.
func (s *Signer) finishRotation() error {
	next, by, err := s.readNextKey()
	switch {
	case err != nil || next == nil:
		return err
	case by == nil:
		return s.folder.remove(nextKeyFile) // no client has seen it
	}
	return s.installKey(next)
}

// loadOldKeys reads the old keys in the folder, which sign beside the present one, and adds them to s.keys, except the
// present one. An old key that cannot be read, or is that of another log, is an error.
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
		if old.hashText() != s.keys[0].hashText() { // else a change of keys was cut short before the new one was in place
			s.keys = append(s.keys, old)
		}
	}
	return nil
}

// RebuildKeyChanges writes the store's list of key changes, which has the indexes of the entries that announce them, from
// the log's entries, all of which it reads. It does not verify that a change is signed with the key before. If there are no
// changes, it writes nothing, and a list that the store has stays.
func RebuildKeyChanges(store *kvstore.Store) error {
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
	return setRow(store, changesKey, indexes)
}

// AddKeyChanges adds to a batch that the entries with these indexes, in ascending order, change the key, for [KeyChanges]. It reads
// the changes before from r, so it is called once for a batch. Without indexes it does nothing.
func AddKeyChanges(b *kvstore.Batch, r kvstore.Reader, indexes ...int64) error {
	if len(indexes) == 0 {
		return nil
	}
	changes, err := readRow(r, changesKey, "the changes of the log's keys")
	if err != nil {
		return err
	}
	for _, index := range indexes {
		changes = binary.BigEndian.AppendUint64(changes, uint64(index))
	}
	b.Set(kvstore.LogState, changesKey, changes)
	return nil
}

// IsSignatureRow reports whether a row of LogState, by its key, says who signed what. All other rows follow from the log.
func IsSignatureRow(key []byte) bool {
	return bytes.Equal(key, logs.SignedRow) || bytes.Equal(key, signedByKey)
}

// A Succession says which log is the successor of one that has lost signed entries.
type Succession struct {
	Former string     `json:"former"` // the origin of the log before
	Lost   logs.Range `json:"lost"`   // its lost entries
	Origin string     `json:"origin"`
	Key    string     `json:"key"`            // the verifier key, for clients to pin
	Kept   string     `json:"kept,omitempty"` // the folder with the key folder's files of the log before
}

// StartSuccessor starts a successor of the log in o.Store, with a new origin and a new key, because signed entries at its end
// are lost for good. The next entry says so. The files of the old log are moved into a folder in the key folder. After an
// interruption, calling it again does the remaining steps.
func StartSuccessor(o Options, now time.Time) (Succession, error) {
	o.FS = cmp.Or(o.FS, vfs.Default)
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
		o.Origin = randomOrigin()
	}
	f, err := openFolder(o.FS, o.Dir)
	if err != nil {
		return next, fmt.Errorf("signing: %w", err)
	}
	err = announceLoss(o, &next, signed, now)
	if err == nil {
		next.Kept, err = f.archiveFiles("former-" + stamp)
	}
	if err := errors.Join(err, f.unlock()); err != nil {
		return next, fmt.Errorf("signing: couldn't start a new log: %w", err)
	}
	s, err := Open(o)
	if err != nil {
		return next, err
	}
	next.Origin, next.Key = s.Origin(), s.Key()
	return next, s.Close()
}

// announceLoss appends the entry that names the lost entries in next.Lost, and deletes in the same batch what the store has
// of the old log's signatures, and the list of its key changes. If that entry is the log's last one already, it only sets
// next.Lost to what the entry says. signed is the last signed checkpoint of the old log.
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
		for _, key := range [][]byte{logs.SignedRow, signedByKey, changesKey} {
			tx.Batch.Delete(kvstore.LogState, key)
		}
		_, err := tx.Append(logs.Entry{Kind: logs.LossAccepted, Time: now, Actor: "operator", Former: string(signed.Note), Lost: next.Lost})
		return err
	})
}

// archiveFiles moves the keys, checkpoints and disputes of the folder's log into a subfolder of that name, and returns its
// path. The private keys are moved before the checkpoint, so a crash never leaves a key without the checkpoint that it has
// signed. After a crash, it may be called again.
func (f *folder) archiveFiles(subfolder string) (path string, err error) {
	folder := f.path(subfolder)
	if err := disk.MakeFolder(f.fs, folder); err != nil {
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
		if err := f.fs.Rename(f.path(file), filepath.Join(folder, file)); err != nil {
			return "", err
		}
	}
	return folder, errors.Join(disk.SyncFolder(f.fs, folder), disk.SyncFolder(f.fs, f.dir))
}
