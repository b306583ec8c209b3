package signing

import (
	"bytes"
	"cmp"
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

// load reads the key folder for [Open], and publishes the checkpoint that was published before, or the last signed one if that has enough
// cosignatures. For a new log it creates the key and signs the first checkpoint. It signs no new entries of an existing log. A
// last checkpoint that is lost, unreadable or not in the log is no error, but the Signer refuses to sign. A key that cannot be read, or is
// missing beside a signed checkpoint, is an error.
func (s *Signer) load() error {
	fresh, err := s.loadKeys()
	if err != nil {
		return err
	}
	s.origin = s.keys[0].signer.Name()
	if err := s.policy.checkLog(s.origin); err != nil {
		return err
	}
	if !fresh {
		if err := s.finishRotation(); err != nil {
			return err
		}
	}
	var refused *RefusedError
	switch err := s.loadCheckpoints(fresh); {
	case errors.As(err, &refused):
		s.refuseSigning(refused)
		return nil
	case err != nil:
		return err
	}
	if fresh {
		// The first checkpoint is written before the key file has its final name. So the checkpoint of a key without one was lost.
		if err := s.signIfNeeded(); err != nil {
			return err
		}
		if err := s.folder.rename(nextKeyFile, keyFile); err != nil {
			return fmt.Errorf("couldn't put the new key in place: %w", err)
		}
		s.logger.Info("created the key that signs the log; clients that verify the log pin it", "origin", s.origin, "key", s.keys[0].public, "folder", s.folder.dir)
	}
	if s.last.Size == 0 {
		s.confirmed = true // an empty log needs no confirmation
	}
	shown := s.published.Load().signed
	if shown.Note == nil && s.last.Size == 0 {
		shown = s.last
	}
	// The published checkpoint stays, even if the policy requires more cosignatures from now on.
	return errors.Join(s.publishCheckpoint(shown), s.publishIfMet(), s.writePublic(), s.storeSigner())
}

// loadKeys reads the present key and the old ones into s.keys. Without a present key, it takes the next key in the folder,
// or creates one and writes it there as the next key; then fresh says that the key has not signed a checkpoint yet. A key of
// another log than Options.Origin, if that is set, is an error.
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
		if data, err = s.createKey(); err != nil {
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

// createKey creates the key of a new log, writes it to the file of the next key, and returns the content of that file. If
// the folder has a signed checkpoint, that is an error, because its key was lost.
func (s *Signer) createKey() ([]byte, error) {
	if data, err := s.folder.read(checkpointFile); err != nil || data != nil {
		return nil, errors.Join(err, fmt.Errorf("there is a signed checkpoint in %s, but no %s; put the key back, or choose an empty key folder to start a log with a new key",
			s.folder.dir, keyFile))
	}
	origin := cmp.Or(s.options.Origin, randomOrigin())
	if err := CheckOrigin(origin); err != nil {
		return nil, fmt.Errorf("the origin %q %w", origin, err)
	}
	k, err := newKey(origin)
	if err != nil {
		return nil, fmt.Errorf("couldn't generate a key: %w", err)
	}
	data := []byte(k.private + "\n")
	return data, s.folder.write(nextKeyFile, data, true)
}

// restoreCheckpoint says what to do about a lost checkpoint.
const restoreCheckpoint = "put the latest one into the key folder, from a backup of that or from a follower of the log"

// loadCheckpoints reads what was signed and published before, and verifies that the log contains it. If the key folder or the
// store does not have the newest one, it signs and stores that again. fresh says that the key is new, and need not have
// signed anything. The error is a [*RefusedError] if nothing may be signed; any other one ends the start.
func (s *Signer) loadCheckpoints(fresh bool) error {
	data, unreadable, err := s.readCheckpoints()
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
	if err := s.checkExtendsLast(s.options.Log.Checkpoint()); errors.As(err, new(*RefusedError)) {
		return err
	} else if err != nil {
		return &RefusedError{"the log's tree cannot be read; `larder fsck` reports what is damaged", err}
	}
	if bytes.Equal(s.last.Note, data) && s.inStore == s.last.Checkpoint {
		return nil
	}
	// The cosignature keeps its time, because witnesses may know of newer checkpoints.
	return s.signAndStore(s.last.Checkpoint, s.keys.cosignedAt(s.last.Note))
}

// readCheckpoints reads what was signed and published before, sets s.last to the newest signed checkpoint, s.inStore to that
// of the store, and s.confirmed, publishes in memory the newest one that clients have seen, and records which cosignatures
// of witnesses it has. It writes nothing. It returns the content of the key folder's checkpoint file, nil for a missing
// file; unreadable says why that cannot be verified, and err that a file or the store could not be read.
func (s *Signer) readCheckpoints() (data []byte, unreadable, err error) {
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
	s.confirmed = published == nil && len(s.witnesses) == 0
	held, _, _ := s.renewSignatures(stored) // that of another log, where the key folder is another one
	shown, cosignatures, err := s.renewSignatures(published)
	if published != nil && err != nil {
		s.logger.Error("the published checkpoint cannot be read; the last signed one is published", "file", s.folder.path(publishedFile), "err", err)
	}
	last, _, unreadable := s.renewSignatures(data)
	s.inStore = held.Checkpoint
	shown.Note = append(shown.Note, cosignatures...)
	for _, c := range []Signed{shown, last, held} { // the newest that clients have seen, else the newest of the rest
		if c.Note != nil {
			s.setPublished(c, nil)
			break
		}
	}
	for _, w := range s.witnesses {
		if n, err := note.Open(published, note.VerifierList(w.Verifier)); err == nil && shown.Note != nil {
			w.cosignedTree, w.lines = shown.Checkpoint, signatureLines(n.Sigs)
		}
	}
	if unreadable == nil || !isOfAnotherLog(data, s.keys) {
		for _, c := range []Signed{last, shown, held} {
			if s.last.Note == nil || c.Note != nil && c.Size > s.last.Size {
				s.last = c
			}
		}
	}
	return data, unreadable, nil
}

// isOfAnotherLog reports whether data is a checkpoint that none of the keys has signed, rather than a damaged one of theirs.
func isOfAnotherLog(data []byte, keys keyring) bool {
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

// renewSignatures verifies a checkpoint that was signed here and signs it with the present keys, which cosign it as of the
// time that it had. It stores nothing. It also returns the signature lines of other keys, which are not verified.
func (s *Signer) renewSignatures(data []byte) (Signed, []byte, error) {
	signed, n, err := openNote(data, s.origin, s.keys.verifiers())
	if err != nil {
		return Signed{}, nil, err
	}
	at, others := s.keys.splitCosignatures(n)
	signed, err = signCheckpoint(s.origin, signed.Checkpoint, s.keys, at)
	return signed, signatureLines(others), err
}

// signAndStore signs a checkpoint, cosigns it as of the time at, and stores it as the last signed one: first in the key
// folder, which must never know less than a client or a witness, and then in the store. If only the store fails, it returns
// that error, and the checkpoint is the last signed one all the same. It counts a failure of writing to the folder. After
// both writes it counts the signature and notifies waiters. It does not publish. The caller has verified that the log
// contains the checkpoint.
func (s *Signer) signAndStore(c logs.Checkpoint, at time.Time) error {
	signed, err := signCheckpoint(s.origin, c, s.keys, at)
	if err != nil {
		return err
	}
	if err := s.folder.write(checkpointFile, signed.Note, false); err != nil {
		s.metrics.failures.Inc()
		return fmt.Errorf("signing: %w", err)
	}
	s.last = signed
	if err := setRow(s.options.Store, logs.SignedRow, signed.Note); err != nil {
		return fmt.Errorf("signing: couldn't store the signed checkpoint: %w", err)
	}
	s.inStore = c
	s.notifyWaiters()
	s.metrics.signatures.Inc()
	return nil
}

// checkExtendsLast returns nil if the tree of c begins with the last signed checkpoint, and a [*RefusedError] if it
// certainly does not, as if nothing was signed yet. Any other error says that the tree could not be read.
func (s *Signer) checkExtendsLast(c logs.Checkpoint) error {
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

// Contains reports whether the tree of c, whose hashes are in r, begins with the tree of before. If the trees have different
// sizes, it verifies the hashes with a proof, as a client would. The error says that the hashes could not be read.
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

// writePublic writes the file with the verifier key, if it is not up to date.
func (s *Signer) writePublic() error {
	want := s.keys[0].public + "\n"
	data, err := s.folder.read(publicFile)
	if err != nil || string(data) == want {
		return err
	}
	return s.folder.write(publicFile, []byte(want), false)
}

// OpenFrozen opens and locks the key folder for a store that is damaged or lacks signed entries. The Signer publishes what
// was signed before, and signs and writes nothing; why is the reason that clients get. Of the options, it needs Dir, Store
// and Logger. If another process has the folder open, the error is [ErrInUse]. If the folder cannot be locked for another
// reason, the Signer uses it without a lock. If no key or checkpoint can be read, that is logged, and the Signer has none.
// The caller closes it.
func OpenFrozen(o Options, why string) (*Signer, error) {
	f, err := openFolder(vfs.Default, o.Dir)
	switch {
	case errors.Is(err, ErrInUse):
		return nil, fmt.Errorf("signing: %w", err)
	case err != nil: // nothing is written, so no lock is needed
		f = &folder{fs: vfs.Default, dir: o.Dir, lock: io.NopCloser(nil)}
	}
	refused := &RefusedError{Reason: why}
	s := &Signer{options: o, logger: o.Logger, changed: make(chan struct{}), folder: f}
	s.published.Store(&published{err: refused})
	s.metrics = newMetrics(s)
	if err := s.loadFrozen(refused); err != nil {
		s.logger.Error("couldn't read the signed checkpoint; it is not published", "keys", f.dir, "err", err)
	}
	return s, nil
}

// loadFrozen has a frozen Signer publish what its key folder has: the newest checkpoint that clients have seen, or the last
// signed one if no private key is usable. refused is why no newer one follows.
func (s *Signer) loadFrozen(refused *RefusedError) error {
	if key, err := s.folder.read(keyFile); err != nil || key == nil || CheckKey(s.folder.dir) != nil {
		signed, key, failed := ReadFolder(s.folder.dir)
		if failed == nil {
			s.origin, _, _ = strings.Cut(key, "+")
			s.published.Store(&published{signed: signed, key: key, err: refused})
		}
		return err
	}
	if _, err := s.loadKeys(); err != nil {
		return err
	}
	s.origin = s.keys[0].signer.Name()
	if _, _, err := s.readCheckpoints(); err != nil {
		return err
	}
	s.setPublished(s.published.Load().signed, refused)
	return nil
}

// signedByKey is the row of LogState that says which key signs the log in the store.
var signedByKey = kvstore.Key("signed-by")

// StoredNote returns the last signed checkpoint in a store, unverified, or nil.
func StoredNote(store kvstore.Getter) ([]byte, error) {
	return readRow(store, logs.SignedRow, "what was signed of the log in the store")
}

// setRow sets a row of LogState, and returns when that is on the disk.
func setRow(store *kvstore.Store, row, value []byte) error {
	b := store.NewBatch()
	defer b.Close()
	b.Set(kvstore.LogState, row, value)
	return b.Commit()
}

// readRow returns the value of a row of LogState, nil for a missing row. what describes the row in errors.
func readRow(store kvstore.Getter, row []byte, what string) ([]byte, error) {
	data, err := store.Get(kvstore.LogState, row)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return nil, fmt.Errorf("signing: couldn't read %s: %w", what, err)
	}
	return data, nil
}

// PublishedNote returns the last checkpoint that clients have seen of the log in a store, with the cosignatures in the key
// folder dir if these can be read, and the verifier key that signed it. It returns neither if no key has signed the log yet.
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

// SignedBy returns the verifier key that signed the log in the store last, "" if none has.
func SignedBy(store kvstore.Getter) (key string, err error) {
	data, err := readRow(store, signedByKey, "which key signed the log before")
	return string(data), err
}

// storeSigner stores in the store which key signs the log. It logs a warning if another key signed the log before and has not
// handed over: the operator may have forgotten to name its key folder, and clients that have pinned the other key reject this
// one.
func (s *Signer) storeSigner() error {
	present := s.keys[0]
	before, err := SignedBy(s.options.Store)
	if err != nil || before == present.public {
		return err
	}
	if before != "" && !s.leadsToPresent(before) {
		s.logger.Warn("another key signed this log before, and clients that have pinned it will not accept this one; if its key folder is still there, end this process and start with that",
			"before", before, "key", present.public, "keys", s.folder.dir)
	}
	if err := setRow(s.options.Store, signedByKey, []byte(present.public)); err != nil {
		return fmt.Errorf("couldn't write which key signs the log: %w", err)
	}
	return nil
}

// leadsToPresent reports whether changes of keys lead from the verifier key public to the present one. It is false if they
// cannot be read.
func (s *Signer) leadsToPresent(public string) bool {
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
