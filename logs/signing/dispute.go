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

// The files of disputes. Each has an [Evidence], or, if none could be made, the other checkpoint, an empty line, and the last one from
// here, both as signed notes.
const (
	disputeFile    = "dispute-%08x" // by the hash of the witness's key
	disputePattern = "dispute-*"
)

// A dispute is a checkpoint that is signed with this log's key, of a tree that this log does not contain. Since a checkpoint is on the
// disk before a client or a witness sees it, another process signs with the key, or store and key folder are both from an old backup.
type dispute struct{ what string }

// Error returns what disputes the log, and which file proves it.
func (e *dispute) Error() string { return e.what }

// investigateClaim looks for the proof of what the witness w claims, in the checkpoint that it cosigned last, which it
// requests. It never returns nil, and resets w.seen. If that is a checkpoint of another tree, it stores the proof and
// returns a dispute, or a [*RefusedError] if signing ends. If the log contains that checkpoint, and it is larger than the
// last signed one because the key folder is from an old backup, it becomes the last signed one, and the error says so.
// Without any proof it returns the error unproven. The caller does not hold s.mu.
func (s *Signer) investigateClaim(ctx context.Context, w *witness, unproven error) error {
	w.seen = 0 // the claim need not have come from the witness
	data, err := w.latestCosigned(ctx, s.origin)
	if err != nil {
		return unproven
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	theirs, _, err := openNote(data, s.origin, s.keys.verifiers())
	if err != nil {
		return unproven
	}
	is, err := s.logContains(theirs.Checkpoint)
	switch {
	case err != nil:
		return err
	case is && theirs.Size <= s.last.Size:
		return unproven
	case is:
		if err := s.signAndStore(theirs.Checkpoint, s.keys.cosignedAt(theirs.Note)); err != nil {
			return err
		}
		return fmt.Errorf("it has cosigned %d entries, which is more than the key folder knew of", theirs.Size)
	}
	file := fmt.Sprintf(disputeFile, w.Verifier.KeyHash())
	if err := s.storeDispute(file, theirs, s.disputes[file] != ""); err != nil {
		return err
	}
	err = s.recordDispute(file, theirs)
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		s.refuseSigning(refused)
	}
	return err
}

// storeDispute writes the file of a dispute with the checkpoint theirs; it does nothing if the file has a proof already.
// kept says that the file exists: then only a proof replaces it, which needs a checkpoint from here that is not smaller than
// theirs. The error is about writing.
func (s *Signer) storeDispute(file string, theirs Signed, kept bool) error {
	if s.proven[file] {
		return nil
	}
	evidence, err := s.disputeEvidence(theirs)
	switch {
	case err == nil:
		s.proven[file] = true
		return s.folder.write(file, evidence, false)
	case kept:
		return nil
	}
	return s.folder.write(file, slices.Concat(theirs.Note, []byte("\n"), s.last.Note), false)
}

// disputeEvidence returns the encoded evidence that the tree of theirs is not part of the last signed one. The error says why
// that cannot be proven.
func (s *Signer) disputeEvidence(theirs Signed) ([]byte, error) {
	if theirs.Size > s.last.Size {
		return nil, fmt.Errorf("the hashes of a tree of %d entries are not here", theirs.Size)
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return nil, err
	}
	var keys []string // an old key leads to the present one, and not the other way round
	for _, key := range s.keys {
		keys = append(keys, key.public)
	}
	e, err := NewEvidence(keys, changes, theirs.Note, s.last.Note, logs.Hashes(s.options.Store))
	if err != nil {
		return nil, err
	}
	return e.Encode()
}

// parseDispute parses the content of a dispute's file, and returns the checkpoint in it that is signed with this log's key
// and that the log does not contain; if there is none, any in it, so the caller must verify that. If the file has a proof,
// s.proven records that.
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
		if theirs, _, err = openNote(data, s.origin, s.keys.verifiers()); err != nil {
			return Signed{}, err
		}
		if is, err := s.logContains(theirs.Checkpoint); err == nil && !is {
			break
		}
	}
	return theirs, nil
}

// logContains reports whether the log begins with the tree of c. The error says that the log's tree could not be read.
func (s *Signer) logContains(c logs.Checkpoint) (bool, error) {
	return Contains(s.options.Store, s.options.Log.Checkpoint(), c)
}

// recordDispute records a checkpoint that disputes the log by its file, and logs and counts it the first time. It never
// returns nil. The error is a [*RefusedError], with which the caller must end signing, if the checkpoint has the
// cosignatures that the policy requires, because clients then accept it as this log's; otherwise a dispute, and signing
// continues with the other witnesses.
func (s *Signer) recordDispute(file string, theirs Signed) error {
	what := fmt.Sprintf("a checkpoint of %d entries is signed with this log's key and is not part of this log, as %s in the key folder proves", theirs.Size, file)
	if s.disputes[file] == "" {
		s.logger.Error("the log is disputed", "err", what, "keys", s.folder.dir)
		s.disputes[file] = what
		s.metrics.disputes.Set(float64(len(s.disputes)))
	}
	if !s.policy.isMet(func(i int) bool { return isSignedBy(theirs.Note, s.policy.witnesses[i].Verifier) }) {
		return &dispute{what}
	}
	return &RefusedError{Reason: what + "; either the store and the key folder are both from an old backup: bring newer ones; " +
		"or another process signs with the same key: end that, find out which, and move the file away to go on"}
}

// loadDisputes reads the files of disputes and records those that still dispute this log. It replaces such a file by a proof
// if that can be made now, and logs a file that proves nothing. It returns a [*RefusedError] if one of the disputes ends
// signing.
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
		if is, err := s.logContains(theirs.Checkpoint); err != nil || is {
			continue // checkExtendsLast reports a damaged tree
		}
		if err := s.storeDispute(file, theirs, true); err != nil {
			return err
		}
		if err := s.recordDispute(file, theirs); errors.As(err, new(*RefusedError)) {
			refused = err
		}
	}
	return refused
}

// Disputes returns a sentence for each checkpoint that is signed with this log's key and is not part of the log, of those
// that were found so far, in byte order.
func (s *Signer) Disputes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Values(s.disputes))
}
