package signing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/larder-cdn/larder/logs"
)

// The files that keep what disputes this log: an [Evidence] where there is one. Else they have
// the other checkpoint, an empty line, and the last one from here, both as signed notes.
const (
	disputeFile    = "dispute-%08x" // by the hash of the witness's key
	disputePattern = "dispute-*"
)

// A dispute is a checkpoint that is signed with this log's key, of a tree that this log
// does not contain. What is signed here is on the disk before a client or a witness sees it,
// so another process signs with the key, or store and key folder are both from an old
// backup.
type dispute struct{ what string }

func (e *dispute) Error() string { return e.what }

// examine looks for the proof of what a witness claims: the checkpoint that it cosigned
// last. One that this log contains is taken over where it is newer than the last one here,
// as it is where the key folder is from an old backup.
func (s *Signer) examine(ctx context.Context, w *witness, unproven error) error {
	w.seen = 0 // the claim need not have come from the witness
	data, err := w.latest(ctx, s.origin)
	if err != nil {
		return unproven
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	theirs, _, err := open(data, s.origin, s.keys.verifiers())
	if err != nil {
		return unproven
	}
	is, err := s.inLog(theirs.Checkpoint)
	switch {
	case err != nil:
		return err
	case is && theirs.Size <= s.last.Size:
		return unproven
	case is:
		if err := s.keep(theirs.Checkpoint, s.keys.cosignedAt(theirs.Note)); err != nil {
			return err
		}
		return fmt.Errorf("it has cosigned %d entries, which is more than the key folder knew of", theirs.Size)
	}
	file := fmt.Sprintf(disputeFile, w.Verifier.KeyHash())
	if err := s.keepDispute(file, theirs, s.disputes[file] != ""); err != nil {
		return err
	}
	err = s.dispute(file, theirs)
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		s.refuse(refused)
	}
	return err
}

// keepDispute writes the file of a dispute. If there is one already, that stays until it can
// be proven: a proof needs a checkpoint from here that is no smaller than theirs.
func (s *Signer) keepDispute(file string, theirs Signed, kept bool) error {
	if s.proven[file] {
		return nil
	}
	evidence, err := s.evidence(theirs)
	switch {
	case err == nil:
		s.proven[file] = true
		return s.folder.write(file, evidence, false)
	case kept:
		return nil
	}
	return s.folder.write(file, slices.Concat(theirs.Note, []byte("\n"), s.last.Note), false)
}

// evidence proves that theirs is no part of what was signed last. The error says why it
// cannot be proven.
func (s *Signer) evidence(theirs Signed) ([]byte, error) {
	if theirs.Size > s.last.Size {
		return nil, fmt.Errorf("the hashes of a tree of %d entries are not here", theirs.Size)
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return nil, err
	}
	err = errors.New("there is no key")
	for _, key := range s.keys { // an old key leads to the present one, and not the other way round
		var e *Evidence
		if e, err = NewEvidence(key.public, changes, theirs.Note, s.last.Note, logs.Hashes(s.options.Store)); err == nil {
			return e.Encode()
		}
	}
	return nil, err
}

// parseDispute returns the checkpoint that disputes this log, of a file that was read.
func (s *Signer) parseDispute(file string, data []byte) (theirs Signed, err error) {
	var notes [][]byte
	if e, err := DecodeEvidence(data); err == nil {
		s.proven[file] = true
		notes = [][]byte{[]byte(e.Heads[0]), []byte(e.Heads[1])}
	} else {
		text, rest, _ := bytes.Cut(data, []byte("\n\n"))
		signatures, _, _ := bytes.Cut(rest, []byte("\n\n"))
		notes = [][]byte{slices.Concat(text, []byte("\n\n"), signatures, []byte("\n"))}
	}
	for _, data := range notes {
		if theirs, _, err = open(data, s.origin, s.keys.verifiers()); err != nil {
			return Signed{}, err
		}
		if is, err := s.inLog(theirs.Checkpoint); err == nil && !is {
			break
		}
	}
	return theirs, nil
}

// inLog reports whether the log begins with the tree of c.
func (s *Signer) inLog(c logs.Checkpoint) (bool, error) {
	return Contains(s.options.Store, s.options.Log.Checkpoint(), c)
}

// dispute tells of a checkpoint that disputes the log, and returns a [*RefusedError] where
// it has the cosignatures that the policy asks for, because then clients take it for this
// log's. Else signing goes on for as long as enough of the other witnesses know this log.
func (s *Signer) dispute(file string, theirs Signed) error {
	what := fmt.Sprintf("a checkpoint of %d entries is signed with this log's key and is not part of this log, as %s in the key folder proves", theirs.Size, file)
	if s.disputes[file] == "" {
		s.logger.Error("the log is disputed", "err", what, "keys", s.folder.dir)
		s.disputes[file] = what
		s.metrics.disputed(len(s.disputes))
	}
	if !s.policy.met(func(i int) bool { return signedWith(theirs.Note, s.policy.witnesses[i].Verifier) }) {
		return &dispute{what}
	}
	return &RefusedError{Reason: what + "; either the store and the key folder are both from an old backup: bring newer ones; " +
		"or another process signs with the same key: end that, find out which, and move the file away to go on"}
}

// loadDisputes reads what has disputed this log before, and does so still.
func (s *Signer) loadDisputes() error {
	files, err := s.folder.list(disputePattern)
	if err != nil {
		return err
	}
	var refused error
	for _, file := range files {
		data, err := s.folder.read(file)
		if err != nil {
			return err
		}
		theirs, err := s.parseDispute(file, data)
		if err != nil {
			s.logger.Warn("a file of the key folder proves nothing", "file", s.folder.path(file), "err", err)
			continue
		}
		if is, err := s.inLog(theirs.Checkpoint); err != nil || is {
			continue // what is wrong with the tree is told by others
		}
		if err := s.keepDispute(file, theirs, true); err != nil {
			return err
		}
		if err := s.dispute(file, theirs); errors.As(err, new(*RefusedError)) {
			refused = err
		}
	}
	return refused
}

// Disputes returns what disputes this log: each is a checkpoint, signed with its key, that
// it does not contain.
func (s *Signer) Disputes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.disputes))
}
