package replication

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
)

// A source publishes files in quick codings, and finds better ones within minutes or hours. So the files of a release that was
// young when it came are fetched again, twice, and the smaller coding stays.

const (
	young               = 24 * time.Hour // a release that is older has its best codings
	improvementInterval = 10 * time.Minute
	improvementPeriod   = 7 * 24 * time.Hour // after which what fails again and again is given up
	// mostFailed failures end one attempt, because the source may be unreachable.
	mostFailed = 10
)

// improvementDelays are how long after one another the files are fetched again.
var improvementDelays = []time.Duration{time.Hour, 24 * time.Hour}

// improvementPrefix begins the rows of [kvstore.Meta] that say so. The key has when a content is due, and its hash. The value is a byte that
// says how often the content was fetched again before. If the last attempt failed, the time follows at which it was due first.
var improvementPrefix = kvstore.Prefix("follow", "later")

// improvementKey returns the key of the row that says that a content is fetched again when it is due.
func improvementKey(due time.Time, h kvstore.Hash) []byte {
	key := binary.BigEndian.AppendUint64(improvementPrefix[:len(improvementPrefix):len(improvementPrefix)], uint64(max(0, due.Unix())))
	return append(key, h[:]...)
}

// queueImprovements adds rows to a batch that have the files of the release that e publishes or restores be fetched again in an hour, if e is younger
// than a day: the source may have smaller encodings by then. It does nothing if m, the release's manifest, is nil.
func (f *Follower) queueImprovements(b *kvstore.Batch, e logs.Indexed, m *logs.Manifest) {
	now := f.Now()
	if !e.Kind.Serves() || m == nil || now.Sub(e.Time) > young {
		return
	}
	for _, file := range m.Files {
		b.Set(kvstore.Meta, improvementKey(now.Add(improvementDelays[0]), file.SHA256), []byte{0})
	}
}

// An improvementRow is a row that says when a content is fetched again.
type improvementRow struct {
	hash  kvstore.Hash
	done  int   // how often it was fetched again before
	since int64 // the Unix time at which it was due first
}

// parseImprovementRow parses a row about a content that is fetched again; ok is false if its format is unknown.
func parseImprovementRow(row kvstore.Item) (r improvementRow, ok bool) {
	key := row.Key[min(len(improvementPrefix), len(row.Key)):]
	if len(key) != 8+len(r.hash) || len(row.Value) != 1 && len(row.Value) != 1+8 {
		return r, false
	}
	r = improvementRow{hash: kvstore.Hash(key[8:]), done: int(row.Value[0]), since: int64(binary.BigEndian.Uint64(key))}
	if len(row.Value) > 1 {
		r.since = int64(binary.BigEndian.Uint64(row.Value[1:]))
	}
	return r, true
}

// Improve fetches the smaller encodings that are due from the source, and then the queued deltas. It fetches encodings that become due meanwhile
// between deltas. It returns the first error.
func (f *Follower) Improve(ctx context.Context) error {
	failed := f.improveContents(ctx)
	for next := []byte(nil); ; {
		var err error
		next, err = f.fetchDeltas(ctx, next)
		if failed = cmp.Or(failed, err); next == nil || ctx.Err() != nil {
			return failed
		}
		if failed == nil {
			failed = f.improveContents(ctx)
		}
	}
}

// improveContents fetches the smaller encodings that are due from the source, and deletes their rows. A content that was fetched for the first time
// becomes due once more, a day later. One that cannot be fetched becomes due again ten minutes later, after those that are due now, for up to a week,
// and is then given up. improveContents stops after mostFailed failures, and returns the errors of all. It deletes a row of an unknown format.
func (f *Follower) improveContents(ctx context.Context) error {
	now := f.Now()
	due := kvstore.Range{Prefix: improvementPrefix, To: binary.BigEndian.AppendUint64(bytes.Clone(improvementPrefix), uint64(max(0, now.Unix()+1)))}
	var failed []error
	for len(failed) < mostFailed {
		item, ok, err := f.firstRow(kvstore.Meta, due)
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if !ok {
			break
		}
		due.From = append(item.Key, 0) // a scan from the start would step over all rows that were deleted
		b := f.Store.NewBatch()
		b.Delete(kvstore.Meta, item.Key)
		if row, known := parseImprovementRow(item); known {
			err := f.improveContent(ctx, row.hash)
			done := row.done + 1
			switch {
			case err == nil && done < len(improvementDelays):
				b.Set(kvstore.Meta, improvementKey(f.Now().Add(improvementDelays[done]), row.hash), []byte{byte(done)})
			case err != nil && now.Sub(time.Unix(row.since, 0)) < improvementPeriod:
				b.Set(kvstore.Meta, improvementKey(now.Add(improvementInterval), row.hash), binary.BigEndian.AppendUint64([]byte{byte(row.done)}, uint64(row.since)))
			}
			if err != nil {
				failed = append(failed, fmt.Errorf("content %s: %w", row.hash, err))
			}
		}
		if err := errors.Join(b.Commit(), b.Close()); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

// firstRow returns a copy of the first row of a range; ok reports whether there is one. Its scan ends at once: one that stayed open while contents
// are fetched would keep the store from reclaiming space.
func (f *Follower) firstRow(ns kvstore.Namespace, of kvstore.Range) (row kvstore.Item, ok bool, err error) {
	for item, err := range f.Store.Scan(ns, of) {
		return kvstore.Item{Key: bytes.Clone(item.Key), Value: bytes.Clone(item.Value)}, err == nil, err
	}
	return row, false, nil
}

// improveContent fetches a content again, verifies it, stores those of its encodings that are smaller, and queues the deltas that the store lacks. It
// ignores a content that the store or the source no longer has.
func (f *Follower) improveContent(ctx context.Context, h kvstore.Hash) error {
	content, err := f.Store.Content(h)
	if errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	err = f.fetch(ctx, Wanted{Hash: h, Limit: content.Size}, func(_ []byte, found Found) error {
		b := f.Store.NewBatch()
		defer b.Close()
		f.queueDeltas(b, f.Now(), h, found.Dictionaries)
		smaller := slices.DeleteFunc(found.Coded, func(c kvstore.Coded) bool { return c.Coding == coding.Identity })
		if len(smaller) > 0 {
			if err := f.Store.ImproveContent(h, content.Size, found.Squeezed, smaller); err != nil {
				return err
			}
		}
		return b.Commit()
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, kvstore.ErrNotFound) {
		return nil
	}
	return err
}

// improveRegularly calls improveAndLog every ten minutes until ctx ends, except before the store has caught up with the source once, because
// deltas need contents that may still be missing.
func (f *Follower) improveRegularly(ctx context.Context) {
	for retry.Sleep(ctx, improvementInterval) == nil {
		if f.State().Ready {
			f.improveAndLog(ctx)
		}
	}
}

// improveAndLog calls [Follower.Improve], which fetches the smaller encodings and deltas that are due, and logs its error.
func (f *Follower) improveAndLog(ctx context.Context) {
	if err := f.Improve(ctx); err != nil && ctx.Err() == nil {
		f.Logger.Warn("couldn't take over the smaller codings of the source; it is tried again", "source", f.Source.Name(), "err", err)
	}
}
