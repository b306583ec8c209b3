package verify

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
)

// maxKept bounds the checkpoints that are kept of a log.
const maxKept = 16

// follow compares the log with the checkpoints of it that were seen before. It returns a
// [ForkError] if they contradict each other. If the log is smaller than one of them, it is
// stale. It keeps those that it cannot compare yet.
func (l *Log) follow(ctx context.Context) error {
	known, ok := l.remembered()
	if !ok {
		return nil
	}
	if l.keyList == nil { // else a former key counts only if the list has it
		l.trusted = append(slices.Clone(known.Former), l.trusted...)
	}
	if known.Checkpoint != "" {
		seen, err := l.openSeen(known.Checkpoint)
		if err != nil {
			return fmt.Errorf("couldn't read the checkpoint that was seen before: %w", err)
		}
		l.seen = seen.Size
		if seen.Size > l.tree.N {
			err = l.markStale(ctx, seen)
		} else if err = l.contains(ctx, seen); err != nil && OutcomeOf(err) != Forked {
			err = fmt.Errorf("couldn't prove that the log contains what was seen before: %w", err)
		}
		if err != nil {
			return err
		}
	}
	for _, head := range known.Kept {
		kept, err := l.openSeen(head)
		if err != nil {
			continue // it can prove nothing
		}
		if kept.Size > l.tree.N {
			l.keep(head)
			continue
		}
		switch err := l.contains(ctx, kept); {
		case err == nil:
			l.settled = append(l.settled, head)
		case OutcomeOf(err) == Forked || ctx.Err() != nil:
			return err
		default:
			l.keep(head)
		}
	}
	return nil
}

// remembered returns what is remembered of the log, by whichever of its keys.
func (l *Log) remembered() (KnownLog, bool) {
	if l.options.Known == nil {
		return KnownLog{}, false
	}
	if l.keyList != nil {
		return l.rememberedByList()
	}
	if known, ok := l.options.Known(l.key); ok {
		return known, true
	}
	return l.options.Known(l.options.Trust.Key)
}

// olderKey verifies a checkpoint by a key that has handed over since. That counts only
// where it is smaller than what was seen, so that the log is stale: such a key may have been
// stolen.
func (l *Log) olderKey(signed []byte) (checkpoint, string, bool) {
	if l.options.Known == nil {
		return checkpoint{}, "", false
	}
	known, _ := l.options.Known(l.options.Trust.Key)
	for _, former := range known.Former {
		trust := l.options.Trust
		trust.Key = former
		c, key, _, err := trust.open(signed, nil)
		if err != nil {
			continue
		}
		origin, _, _ := strings.Cut(key, "+")
		if seen, err := parseSeen([]byte(known.Checkpoint), origin); err == nil && c.N < seen.N {
			return c, key, true
		}
	}
	return checkpoint{}, "", false
}

// openSeen verifies a checkpoint that was verified when it was seen, because the file that
// remembers it may have been changed.
func (l *Log) openSeen(head string) (signing.Signed, error) {
	return signing.OpenWithAny([]byte(head), l.trusted, l.changes)
}

// shown is the log's checkpoint.
func (l *Log) shown() signing.Signed {
	return signing.Signed{Checkpoint: logs.Checkpoint{Size: l.tree.N, Root: l.tree.Hash}, Note: l.note}
}

// contains returns nil where the log contains what was seen.
func (l *Log) contains(ctx context.Context, seen signing.Signed) error {
	return l.compare(seen, l.shown(), l.hashes(ctx))
}

// markStale records that the log is smaller than what was seen. The server may not have the tiles of the larger one, so the
// comparison may have to wait.
func (l *Log) markStale(ctx context.Context, seen signing.Signed) error {
	l.unverified = &UnverifiedError{Stale, fmt.Sprintf("the server shows a log of %d entries, and one of %d was signed and seen before", l.tree.N, seen.Size)}
	larger := l.tiles(ctx, map[tlog.Tile][]byte{}).of(tlog.Tree{N: seen.Size, Hash: seen.Root})
	switch err := l.compare(l.shown(), seen, larger); {
	case err == nil:
		l.unverified.Problem += ", which contains it"
	case OutcomeOf(err) == Forked || ctx.Err() != nil:
		return err
	default:
		l.unverified.Problem += "; it is kept, and compared with that as soon as the tiles can be had"
		l.keep(string(l.note))
	}
	return nil
}

// compare returns nil where the larger of two signed checkpoints contains the smaller one,
// and a [ForkError] where it is proven that it does not. Any other error proves nothing.
// hashes are those of the larger one's tree.
func (l *Log) compare(smaller, larger signing.Signed, hashes tlog.HashReader) error {
	if smaller.Size == 0 {
		return nil
	}
	root := larger.Root
	if smaller.Size < larger.Size {
		var err error
		if root, err = tlog.TreeHash(smaller.Size, hashes); err != nil {
			return err
		}
	}
	if root == smaller.Root {
		return nil
	}
	for _, key := range l.trusted {
		evidence, err := signing.NewEvidence(key, l.changes, smaller.Note, larger.Note, hashes)
		if err != nil {
			continue // another key may have signed both
		}
		fork, err := evidence.Check(key)
		if err != nil {
			return err
		}
		return &ForkError{Evidence: evidence, Fork: fork}
	}
	return differs("the log's first %d entries are not those that were signed and seen before; the keys do not lead to each other, so nothing proves that to others", smaller.Size)
}

// keep keeps a checkpoint that cannot be compared yet.
func (l *Log) keep(head string) {
	if !slices.Contains(l.kept, head) && len(l.kept) < maxKept {
		l.kept = append(l.kept, head)
	}
}
