package signing

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// open reads the key folder, and brings it up to date.
func (s *Signer) open() error {
	fresh, err := s.loadKeys()
	if err != nil {
		return err
	}
	s.origin = s.keys[0].signer.Name()
	if err := s.policy.check(s.origin); err != nil {
		return err
	}
	if !fresh {
		if err := s.settle(); err != nil {
			return err
		}
	}
	var refused *RefusedError
	switch err := s.loadCheckpoints(fresh); {
	case errors.As(err, &refused):
		s.refuse(refused)
		return nil
	case err != nil:
		return err
	}
	if fresh {
		// The first checkpoint comes before the key has its name. So a key without
		// a checkpoint is one whose checkpoint was lost.
		if err := s.signNow(); err != nil {
			return err
		}
		if err := s.folder.rename(nextKeyFile, keyFile); err != nil {
			return fmt.Errorf("couldn't put the new key in place: %w", err)
		}
		s.logger.Info("made the key that signs the log; clients that verify the log pin it", "origin", s.origin, "key", s.keys[0].public, "folder", s.folder.dir)
	}
	if s.last.Size == 0 {
		s.sure = true // of an empty log there is nothing to confirm
	}
	shown := s.shown.Load().signed
	if shown.Note == nil && s.last.Size == 0 {
		shown = s.last
	}
	// What was shown stays, also where the policy asks for more from now on.
	return errors.Join(s.show(shown), s.publish(), s.writePublic(), s.noteSigner())
}

// loadKeys reads the keys, and tells whether the present one is not yet in use.
func (s *Signer) loadKeys() (fresh bool, err error) {
	data, err := s.folder.read(keyFile)
	if err != nil {
		return false, err
	}
	name := keyFile
	if data == nil {
		fresh, name = true, nextKeyFile
		if data, err = s.folder.read(nextKeyFile); err != nil {
			return false, err
		}
	}
	if data == nil {
		if data, err = s.makeKey(); err != nil {
			return false, err
		}
	}
	present, err := parseKey(data)
	if err != nil {
		return false, fmt.Errorf("couldn't read %s: %w; put a good copy of it there", s.folder.path(name), err)
	}
	if o := s.options.Origin; o != "" && o != present.signer.Name() {
		return false, fmt.Errorf("the key in %s is that of the log %q, not of %q; leave the origin to the key, or choose another key folder for another log",
			s.folder.dir, present.signer.Name(), o)
	}
	s.keys = keyring{present}
	return fresh, s.loadOldKeys()
}

// makeKey makes the key of a new log.
func (s *Signer) makeKey() ([]byte, error) {
	if data, err := s.folder.read(checkpointFile); err != nil || data != nil {
		return nil, errors.Join(err, fmt.Errorf("there is a signed checkpoint in %s, but no %s; put the key back, or choose an empty key folder to begin a log with a new key",
			s.folder.dir, keyFile))
	}
	origin := s.options.Origin
	if origin == "" {
		origin = someOrigin()
	}
	if err := CheckOrigin(origin); err != nil {
		return nil, fmt.Errorf("the origin %q %w", origin, err)
	}
	k, err := newKey(origin)
	if err != nil {
		return nil, fmt.Errorf("couldn't make a key: %w", err)
	}
	data := []byte(k.private + "\n")
	return data, s.folder.write(nextKeyFile, data, true)
}

// signedKey is the row of LogState with the last checkpoint that was signed of the log in
// the store. So it is known which of the entries were signed, even after the store was
// restored from a backup or the key folder was lost.
var signedKey = kvstore.Key("signed")

// restoreCheckpoint says what to do about a checkpoint that is lost.
const restoreCheckpoint = "put the latest one into the key folder, from a backup of that or from a follower of the log"

// loadCheckpoints reads what was signed and shown before, and holds the tree against it. Of
// a fresh key there need not be anything yet.
func (s *Signer) loadCheckpoints(fresh bool) error {
	data, unreadable, err := s.recall()
	switch {
	case err != nil:
		return err
	case data == nil && fresh:
		return nil
	case data == nil && s.last.Note == nil:
		return &RefusedError{Reason: "the last signed checkpoint is gone from the key folder and from the store, and without it no fork of the log could be detected; " + restoreCheckpoint}
	case data == nil || unreadable != nil && s.last.Note != nil:
		s.logger.Warn("the last signed checkpoint in the key folder is missing or damaged; the newest one that is known takes its place", "entries", s.last.Size, "err", unreadable, "keys", s.folder.dir)
	case unreadable != nil:
		return &RefusedError{"the last signed checkpoint in the key folder cannot be read; " + restoreCheckpoint, unreadable}
	}
	if err := s.loadDisputes(); err != nil {
		return err
	}
	if err := s.follows(s.options.Log.Checkpoint()); errors.As(err, new(*RefusedError)) {
		return err
	} else if err != nil {
		return &RefusedError{"the log's tree cannot be read; `larder fsck` tells what is damaged", err}
	}
	if bytes.Equal(s.last.Note, data) && s.held == s.last.Checkpoint {
		return nil
	}
	// The cosignature keeps its time: witnesses may know more of the log than is here.
	return s.keep(s.last.Checkpoint, s.keys.cosignedAt(s.last.Note))
}

// recall reads what was signed and shown before, and shows the newest that clients have seen.
// It returns the last signed checkpoint as it is in the key folder, nil for none, and why it
// cannot be read.
func (s *Signer) recall() (data []byte, unreadable, err error) {
	stored, err := StoredNote(s.options.Store)
	if err != nil {
		return nil, nil, err
	}
	published, err := s.folder.read(publishedFile)
	if err != nil {
		return nil, nil, err
	}
	if data, err = s.folder.read(checkpointFile); err != nil {
		return nil, nil, err
	}
	s.sure = published == nil && len(s.witnesses) == 0
	held, _, _ := s.renew(stored) // that of another log, where the key folder is another one
	shown, cosignatures, err := s.renew(published)
	if published != nil && err != nil {
		s.logger.Error("the checkpoint that was shown last cannot be read; what was signed last is shown", "file", s.folder.path(publishedFile), "err", err)
	}
	last, _, unreadable := s.renew(data)
	s.held = held.Checkpoint
	shown.Note = append(shown.Note, cosignatures...)
	for _, c := range []Signed{shown, last, held} { // the newest that clients have seen, else the newest of the rest
		if c.Note != nil {
			s.expose(c, nil)
			break
		}
	}
	for _, w := range s.witnesses {
		if n, err := note.Open(published, note.VerifierList(w.Verifier)); err == nil && shown.Note != nil {
			w.on, w.lines = shown.Checkpoint, signatureLines(n.Sigs)
		}
	}
	if unreadable == nil || !ofAnotherLog(data, s.keys) {
		for _, c := range []Signed{last, shown, held} {
			if s.last.Note == nil || c.Note != nil && c.Size > s.last.Size {
				s.last = c
			}
		}
	}
	return data, unreadable, nil
}

// ofAnotherLog reports whether a file holds a checkpoint that another key has signed, rather than a damaged one.
func ofAnotherLog(data []byte, keys keyring) bool {
	_, err := note.Open(data, keys.verifiers())
	var unknown *note.UnverifiedNoteError
	if !errors.As(err, &unknown) {
		return false
	}
	for _, signature := range unknown.Note.UnverifiedSigs {
		raw, err := base64.StdEncoding.DecodeString(signature.Base64)
		for _, k := range keys { // the name or the hash of the key may be what is damaged
			if err == nil && len(raw) > 4 && k.verifier.Verify([]byte(unknown.Note.Text), raw[4:]) {
				return false
			}
		}
	}
	return true
}

// renew reads a checkpoint that was signed here, and signs it again with the present keys,
// which also cosign it as of the time that it had. It returns the signatures by other keys as lines.
func (s *Signer) renew(data []byte) (Signed, []byte, error) {
	signed, n, err := open(data, s.origin, s.keys.verifiers())
	if err != nil {
		return Signed{}, nil, err
	}
	at, others := s.keys.splitCosignatures(n)
	signed, err = sign(s.origin, signed.Checkpoint, s.keys, at)
	return signed, signatureLines(others), err
}

// keep signs c, cosigns it as of a time, and has it on the disk as the last signed checkpoint:
// first in the key folder, which must never know less than a client or a witness.
func (s *Signer) keep(c logs.Checkpoint, at time.Time) error {
	signed, err := sign(s.origin, c, s.keys, at)
	if err != nil {
		return err
	}
	if err := s.folder.write(checkpointFile, signed.Note, false); err != nil {
		s.metrics.failed()
		return fmt.Errorf("signing: %w", err)
	}
	s.last = signed
	b := s.options.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, signedKey, signed.Note)
	if err := b.Commit(); err != nil {
		return fmt.Errorf("signing: couldn't note in the store what is signed: %w", err)
	}
	s.held = c
	s.notify()
	s.metrics.signed()
	return nil
}

// follows returns an error where the tree of c does not contain the last signed
// checkpoint.
func (s *Signer) follows(c logs.Checkpoint) error {
	const remedy = ", as after restoring an old backup or damage to the end of the store; bring a store that has those entries, from a newer backup or from a follower of the log, " +
		"or choose another key folder, which starts a log with a new key that every client has to pin"
	last := s.last.Checkpoint
	if c.Size < last.Size {
		return &RefusedError{Reason: fmt.Sprintf("the store has %d log entries, but a checkpoint of %d was signed before%s", c.Size, last.Size, remedy)}
	}
	contained, err := Contains(s.options.Store, c, last)
	if err != nil {
		return err
	}
	if !contained {
		return &RefusedError{Reason: fmt.Sprintf("the store's log is another one than that of which a checkpoint of %d entries was signed before%s", last.Size, remedy)}
	}
	return nil
}

// Contains reports whether the tree of c, in r, begins with the tree of before. It takes
// the stored hashes' word for nothing: what they say is checked as any client
// would check it.
func Contains(r kvstore.Reader, c, before logs.Checkpoint) (bool, error) {
	switch {
	case c.Size < before.Size:
		return false, nil
	case c.Size == before.Size:
		return c.Root == before.Root, nil
	case before.Size == 0:
		empty, err := tlog.TreeHash(0, nil)
		return before.Root == empty, err
	}
	proof, err := tlog.ProveTree(c.Size, before.Size, logs.Hashes(r))
	if err != nil {
		return false, fmt.Errorf("couldn't prove that the log of %d entries contains that of %d: %w", c.Size, before.Size, err)
	}
	return tlog.CheckTree(proof, c.Size, c.Root, before.Size, before.Root) == nil, nil
}

// writePublic writes the verifier key beside the private one.
func (s *Signer) writePublic() error {
	want := s.keys[0].public + "\n"
	data, err := s.folder.read(publicFile)
	if err != nil || string(data) == want {
		return err
	}
	return s.folder.write(publicFile, []byte(want), false)
}

// Frozen opens the key folder and returns a Signer that shows what was signed before, and signs
// and writes nothing: for a store that lacks what was signed, or is damaged. why is the reason
// that clients get. It needs Dir, Store and Logger, and has no key where none can be read.
func Frozen(o Options, why string) (*Signer, error) {
	f, err := openFolder(vfs.Default, o.Dir)
	switch {
	case errors.Is(err, ErrInUse):
		return nil, fmt.Errorf("signing: %w", err)
	case err != nil: // nothing is written, so a folder that cannot be locked will do
		f = &folder{fs: vfs.Default, dir: o.Dir, lock: io.NopCloser(nil)}
	}
	refused := &RefusedError{Reason: why}
	s := &Signer{options: o, logger: o.Logger, changed: make(chan struct{}), folder: f}
	s.shown.Store(&showing{err: refused})
	s.metrics = newMetrics(s, nil)
	if err := s.thaw(refused); err != nil {
		s.logger.Error("couldn't read what was signed; it is not shown", "keys", f.dir, "err", err)
	}
	return s, nil
}

// thaw has a frozen Signer show what its key folder has. If there is no key that can be used, that is the last signed checkpoint.
func (s *Signer) thaw(refused *RefusedError) error {
	if key, err := s.folder.read(keyFile); err != nil || key == nil || CheckKey(s.folder.dir) != nil {
		signed, key, failed := ReadFolder(s.folder.dir)
		if failed == nil {
			s.origin, _, _ = strings.Cut(key, "+")
			s.shown.Store(&showing{signed: signed, key: key, err: refused})
		}
		return err
	}
	if _, err := s.loadKeys(); err != nil {
		return err
	}
	s.origin = s.keys[0].signer.Name()
	if _, _, err := s.recall(); err != nil {
		return err
	}
	s.expose(s.shown.Load().signed, refused)
	return nil
}

// signedByKey is the row of LogState that says which key signs the log in the
// store.
var signedByKey = kvstore.Key("signed-by")

// StoredNote returns the last signed checkpoint that a store has of its log, nil for none. Nothing of it is verified.
func StoredNote(store kvstore.Getter) ([]byte, error) {
	data, err := store.Get(kvstore.LogState, signedKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, fmt.Errorf("signing: couldn't read what was signed of the log in the store: %w", err)
	}
	return data, nil
}

// PublishedNote returns the last signed checkpoint that clients have seen of the log in a store, and the key that signed it;
// neither if clients have seen none. It has the cosignatures that are in the key folder dir.
func PublishedNote(store kvstore.Reader, dir string) (note []byte, key string, err error) {
	if key, err = SignedBy(store); err != nil || key == "" {
		return nil, "", err
	}
	cosigned, err := os.ReadFile(filepath.Join(dir, publishedFile))
	if err == nil {
		if _, _, err := ReadNote(cosigned, []string{key}); err == nil {
			return cosigned, key, nil
		}
	}
	note, err = StoredNote(store)
	return note, key, err
}

// SignedBy returns the verifier key that signed the log in the store last, and
// "" where none has.
func SignedBy(store kvstore.Getter) (key string, err error) {
	data, err := store.Get(kvstore.LogState, signedByKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return "", fmt.Errorf("signing: couldn't read which key signed the log before: %w", err)
	}
	return string(data), nil
}

// noteSigner writes the present key into the store. Where another one signed the
// log before, and has not handed over, the operator may just have forgotten to say
// where the keys are: then every client that has pinned the other one is left behind.
func (s *Signer) noteSigner() error {
	present := s.keys[0]
	data, err := s.options.Store.Get(kvstore.LogState, signedByKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return fmt.Errorf("couldn't read which key signed the log before: %w", err)
	}
	if string(data) == present.public {
		return nil
	}
	if data != nil && !s.leadsHere(string(data)) {
		s.logger.Warn("another key signed this log before, and clients that have pinned it will not accept this one; if its key folder is still there, end this process and start with that",
			"before", string(data), "key", present.public, "keys", s.folder.dir)
	}
	b := s.options.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, signedByKey, []byte(present.public))
	if err := b.Commit(); err != nil {
		return fmt.Errorf("couldn't write which key signs the log: %w", err)
	}
	return nil
}

// leadsHere reports whether changes of keys lead from that key to the present one.
func (s *Signer) leadsHere(public string) bool {
	before, err := note.NewVerifier(public)
	if err != nil {
		return false
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return false
	}
	chain := Follow(before, changes)
	return chain[len(chain)-1].KeyHash() == s.keys[0].verifier.KeyHash()
}
