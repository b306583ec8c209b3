package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// maxDeferred bounds the checkpoints of a log that are stored to be compared later.
const maxDeferred = 16

// compareWithSeen compares the log with the checkpoints of it that earlier runs have stored, if any. It returns a
// [ForkError] if they contradict the log, and a [Difference] or another error if the log cannot be proven to contain the
// largest one. It marks the log as stale if it is smaller than that, and defers comparisons that are not possible yet. It
// sets l.seen and l.seenAt, adds to l.resolved the deferred checkpoints that the log contains, and, unless a root key's
// list counts, adds the former keys to l.trusted.
func (l *Log) compareWithSeen(ctx context.Context) error {
	known, ok := l.knownLog()
	if !ok {
		return nil
	}
	if l.keyList == nil { // else a former key counts only if the list has it
		l.trusted = append(slices.Clone(known.Former), l.trusted...)
	}
	if known.Checkpoint != "" {
		seen, err := l.openSeenCheckpoint(known.Checkpoint)
		if err != nil {
			return fmt.Errorf("couldn't read the checkpoint that was seen before: %w", err)
		}
		l.seen, l.seenAt = seen.Size, known.Seen
		switch err := l.compareWithCheckpoint(ctx, seen); {
		case OutcomeOf(err) == Forked:
			return err
		case err != nil:
			return fmt.Errorf("couldn't prove that the log contains what was seen before: %w", err)
		}
	}
	for _, note := range known.Deferred {
		seen, err := l.openSeenCheckpoint(note)
		if err != nil {
			continue // it can prove nothing
		}
		if seen.Size > l.Tree.N {
			l.deferComparison(note)
			continue
		}
		switch err := l.compareWithCheckpoint(ctx, seen); {
		case err == nil:
			l.resolved = append(l.resolved, note)
		case OutcomeOf(err) == Forked || ctx.Err() != nil:
			return err
		default:
			l.deferComparison(note)
		}
	}
	return nil
}

// knownLog returns what earlier runs stored about the log, and reports whether they stored anything. It finds that by any
// key in the list of keys or, without a list, by the present or the trusted key. It leaves out a checkpoint that a former
// key signed after its end in the list.
func (l *Log) knownLog() (KnownLog, bool) {
	if l.options.Known == nil {
		return KnownLog{}, false
	}
	keys := []string{l.key, l.options.Trust.Key}
	if l.keyList != nil {
		keys = l.keyList.All()
	}
	for _, key := range keys {
		if known, ok := l.options.Known(key); ok {
			return l.withoutEndedCheckpoint(known), true
		}
	}
	return KnownLog{}, false
}

// openWithFormerKey verifies a checkpoint with a key that another one has replaced, and reports whether it succeeded. Such a key
// may have been stolen, so it succeeds only for a checkpoint that is smaller than the one that was seen before, by which the
// caller then finds that the log is stale.
func (l *Log) openWithFormerKey(signed []byte) (_ checkpoint, ok bool) {
	if l.options.Known == nil {
		return checkpoint{}, false
	}
	known, _ := l.options.Known(l.options.Trust.Key)
	for _, former := range known.Former {
		c, err := l.options.Trust.openCheckpoint(former, signed, nil)
		if err != nil {
			continue
		}
		if size, err := logs.CheckpointSize([]byte(known.Checkpoint)); err == nil && c.N < size {
			return c, true
		}
	}
	return checkpoint{}, false
}

// openSeenCheckpoint verifies the signature of a checkpoint that an earlier run or an auditor has seen, with any of the
// keys in l.trusted or those that l.changes lead to. It does not compare the checkpoint with the log.
func (l *Log) openSeenCheckpoint(note string) (signing.Signed, error) {
	return signing.OpenWithAny([]byte(note), l.trusted, l.changes)
}

// signedCheckpoint returns the log's verified checkpoint, with its signed note, in the type that package signing uses.
func (l *Log) signedCheckpoint() signing.Signed {
	return signing.Signed{Checkpoint: logs.Checkpoint{Size: l.Tree.N, Root: l.Tree.Hash}, Note: l.note}
}

// compareWithCheckpoint returns nil if the log contains a checkpoint, and a [ForkError] if it provably does not. It returns a
// [Difference] if the proof would convince only this client, or if the server's tiles are not of the signed tree. Any other
// error proves nothing. If the log is smaller than the checkpoint, it marks the log as stale, see [Log.markStale].
func (l *Log) compareWithCheckpoint(ctx context.Context, seen signing.Signed) error {
	if seen.Size > l.Tree.N {
		return l.markStale(ctx, seen)
	}
	return l.compareCheckpoints(seen, l.signedCheckpoint(), l.hashReader(ctx))
}

// markStale sets l.unverified to [Stale], because the log is smaller than a checkpoint that was seen before. It then
// compares the two, and adds the result to the problem that users see. If the comparison fails without a proof of a fork,
// as when the server does not have the tiles of the larger one, it defers that to a later run. An error is a [ForkError],
// or says that ctx has ended.
func (l *Log) markStale(ctx context.Context, seen signing.Signed) error {
	l.unverified = &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, and one of %d was signed and seen before", l.Tree.N, seen.Size)}
	larger := newHashReader(ctx, l.remote, tlog.Tree{N: seen.Size, Hash: seen.Root}, map[tlog.Tile][]byte{})
	switch err := l.compareCheckpoints(l.signedCheckpoint(), seen, larger); {
	case err == nil:
		l.unverified.Problem += ", which contains it"
	case OutcomeOf(err) == Forked || ctx.Err() != nil:
		return err
	default:
		l.unverified.Problem += "; a later run compares the two, as soon as the server has the tiles"
		l.deferComparison(string(l.note))
	}
	return nil
}

// compareCheckpoints returns nil if the larger of two signed checkpoints contains the smaller one, and a [ForkError] if it
// provably does not. If no key in l.trusted proves the fork, because the keys that signed them do not lead to each other,
// that is a [Difference]. An error of hashes, which reads the hashes of the larger tree, is returned as it is, also one while
// the evidence is made. A checkpoint of no entries is in every one.
func (l *Log) compareCheckpoints(smaller, larger signing.Signed, hashes tlog.HashReader) error {
	contained, err := contains(larger.Checkpoint, smaller.Checkpoint, hashes)
	if err != nil || contained {
		return err
	}
	evidence, err := signing.NewEvidence(l.trusted, l.changes, smaller.Note, larger.Note, hashes)
	if errors.Is(err, signing.ErrUnrelatedKeys) {
		return differs("the log's first %d entries are not those that were signed and seen before; the keys do not lead to each other, so nothing proves that to others", smaller.Size)
	}
	if err != nil {
		return err
	}
	fork, err := evidence.Check(evidence.Key)
	if err != nil {
		return err
	}
	return &ForkError{Evidence: evidence, Fork: fork}
}

// contains reports whether a tree, whose hashes are read from hashes, begins with the tree of before, which must not be larger. Every
// tree contains one of no entries.
func contains(tree, before logs.Checkpoint, hashes tlog.HashReader) (bool, error) {
	switch before.Size {
	case 0:
		return true, nil
	case tree.Size:
		return tree.Root == before.Root, nil
	}
	root, err := tlog.TreeHash(before.Size, hashes)
	return root == before.Root, err
}

// deferComparison records in l.deferred, once, a signed checkpoint that a later run has to compare with the log. It ignores
// any beyond maxDeferred. [Known.RecordLog] stores them.
func (l *Log) deferComparison(note string) {
	if !slices.Contains(l.deferred, note) && len(l.deferred) < maxDeferred {
		l.deferred = append(l.deferred, note)
	}
}
