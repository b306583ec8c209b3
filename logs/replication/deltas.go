package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/kvstore"
)

// A source names the dictionaries of a content's deltas with the content ([Found]). The follower queues those deltas, where the bot of another Larder
// queues the ones that it makes, and fetches them when it fetches smaller encodings: by then it has the dictionaries.

// A deltaSource is a source that has deltas of contents.
type deltaSource interface {
	// Delta returns the delta of a content of at most size bytes against a dictionary, or [fs.ErrNotExist].
	Delta(ctx context.Context, h, dictionary kvstore.Hash, size int64) ([]byte, error)
}

// readDictionaries returns the hashes of the dictionaries against which a store has deltas of a content; none if they cannot be read.
func readDictionaries(from kvstore.Reader, h kvstore.Hash) (dictionaries []kvstore.Hash) {
	deltas, _ := kvstore.ReadDeltas(from, h)
	for _, d := range deltas {
		dictionaries = append(dictionaries, d.Dictionary)
	}
	return dictionaries
}

// queueDeltas adds rows to a batch that queue, for fetching, the deltas of a content against those of the dictionaries against which the store has
// none. Deltas of newer releases come first. It adds none if the follower or the source does not support deltas.
func (f *Follower) queueDeltas(b *kvstore.Batch, released time.Time, h kvstore.Hash, dictionaries []kvstore.Hash) {
	if _, ok := f.Source.(deltaSource); !ok || !f.Dictionaries || len(dictionaries) == 0 {
		return
	}
	have := readDictionaries(f.Store, h)
	for _, dictionary := range dictionaries {
		if !slices.Contains(have, dictionary) {
			b.Set(kvstore.Queue, kvstore.QueuedDeltaKey(released, h, dictionary), nil)
		}
	}
}

// Bounds of the deltas that are fetched at the same time.
const (
	deltasAtOnce = 32
	// deltaTries is how often the follower tries to fetch a delta before it leaves it out: nothing needs it.
	deltaTries = 5
)

// A queuedDelta is a row of the queue of deltas.
type queuedDelta struct {
	key    []byte
	failed byte  // how often it could not be fetched before
	err    error // of this attempt
}

// fetchDeltas fetches up to 32 queued deltas from the source, those with the first keys that are not below from, and stores them. It returns the key
// from which the next ones follow, nil if there are none. Those that fail stay in the queue, up to deltaTries times, and err has their errors. If the
// source does not respond, the error is that of another request, next is nil, and the queue stays as it is. If the follower or the source does not
// support deltas, it does nothing.
func (f *Follower) fetchDeltas(ctx context.Context, from []byte) (next []byte, err error) {
	source, ok := f.Source.(deltaSource)
	if !ok || !f.Dictionaries {
		return nil, nil
	}
	var rows []queuedDelta
	for item, err := range f.Store.Scan(kvstore.Queue, kvstore.Range{Prefix: kvstore.QueuedDeltas, From: from}) {
		if err != nil {
			return nil, err
		}
		row := queuedDelta{key: bytes.Clone(item.Key)}
		if len(item.Value) == 1 {
			row.failed = item.Value[0]
		}
		if rows = append(rows, row); len(rows) == deltasAtOnce {
			next = append(bytes.Clone(row.key), 0)
			break
		}
	}
	var group errgroup.Group
	group.SetLimit(filesAtOnce)
	for i := range rows {
		group.Go(func() error {
			rows[i].err = f.fetchQueuedDelta(ctx, source, rows[i].key)
			return nil
		})
	}
	group.Wait() //nolint:errcheck // the rows have the errors
	if slices.ContainsFunc(rows, func(row queuedDelta) bool { return row.err != nil }) {
		if _, err := f.Source.Get(ctx, checkpointPath, maxCheckpoint); err != nil {
			return nil, err
		}
	}
	return next, errors.Join(ctx.Err(), f.finishDeltas(rows))
}

// finishDeltas updates the queue after attempts to fetch the deltas of rows. It deletes the rows of deltas that are done, or were tried too often,
// which it logs, and counts the failures of the others. It returns the errors of the attempts and of the commit.
func (f *Follower) finishDeltas(rows []queuedDelta) error {
	var failed []error
	b := f.Store.NewBatch()
	defer b.Close()
	for _, row := range rows {
		if row.err == nil {
			b.Delete(kvstore.Queue, row.key)
			continue
		}
		if failed = append(failed, row.err); row.failed+1 < deltaTries {
			b.Set(kvstore.Queue, row.key, []byte{row.failed + 1})
			continue
		}
		b.Delete(kvstore.Queue, row.key)
		f.Logger.Warn("a delta between two versions of a file is left out, because the source does not send it", "source", f.Source.Name(), "err", row.err)
	}
	return errors.Join(append(failed, b.Commit())...)
}

// fetchQueuedDelta fetches the delta whose queue row has the key row, and stores it. It returns no error, and may log why, if another attempt would
// not help: the delta does not decode to the content, the source does not have it, or the store lacks the content or the dictionary.
func (f *Follower) fetchQueuedDelta(ctx context.Context, source deltaSource, row []byte) error {
	h, dictionary, ok := kvstore.ParseQueuedDeltaKey(row)
	if !ok {
		return nil
	}
	err := f.fetchDelta(ctx, source, h, dictionary)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, kvstore.ErrNotFound):
		return nil
	case errors.Is(err, kvstore.ErrBadDelta), errors.Is(err, kvstore.ErrCorrupt), errors.Is(err, ErrOther):
		f.Logger.Warn("refused a delta between two versions of a file", "source", f.Source.Name(), "content", h, "dictionary", dictionary, "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("delta of content %s: %w", h, err)
	}
	return nil
}

// fetchDelta fetches the delta of the content h against a dictionary, both of which the store must have, and stores it if it saves enough. The store
// verifies it: the error is [kvstore.ErrBadDelta] if it does not decode to the content.
func (f *Follower) fetchDelta(ctx context.Context, source deltaSource, h, dictionary kvstore.Hash) error {
	content, err := f.Store.Content(h)
	if err != nil {
		return err
	}
	base, err := f.Store.Content(dictionary)
	if err != nil {
		return err
	}
	release, err := f.memory.Take(ctx, Wanted{Limit: content.Size + base.Size})
	if err != nil {
		return err
	}
	defer release()
	delta, err := source.Delta(ctx, h, dictionary, content.Size)
	if err == nil {
		_, err = f.Store.PutDelta(h, delta)
	}
	return err
}
