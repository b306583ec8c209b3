package recompression

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/larder-cdn/larder/bot/events"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A file of a release is encoded against the same path in the releases before it, so that a client that has one of those downloads a delta. Rows of the
// queue name pairs of contents, and are written with the release. Deltas are made when all contents are recompressed, because they are
// compared with the best Brotli. A file that does not change has one against itself, because its address changes. A delta that cannot be made is left out: nothing needs it.

// pairs begins the keys of rows that queue deltas; the time of the release follows, newest first, then the hashes of the content and the dictionary.
var pairs = []byte("d")

// pairKey returns the key of the row that queues the delta of a content against a dictionary.
func pairKey(released time.Time, h, dictionary kvstore.Hash) []byte {
	key := binary.BigEndian.AppendUint64(slices.Clone(pairs), ^uint64(max(0, released.Unix())))
	return append(append(key, h[:]...), dictionary[:]...)
}

// maxSuccessors bounds the releases after a new one that get deltas against it.
const maxSuccessors = 8

// enqueueDeltas adds to a batch the deltas of a release's files against those of the releases before it. If it was published after later ones, it also adds
// theirs against it.
func (r *Recompressor) enqueueDeltas(batch *kvstore.Batch, m *logs.Manifest) error {
	versions, err := views.Versions(r.store, m.Package)
	if err != nil {
		return err
	}
	var others []string
	for _, v := range versions {
		if v.Withdrawn == nil && v.Version != m.Version {
			others = append(others, v.Version)
		}
	}
	add := func(other string, pair func(own, of kvstore.Hash) []byte) error {
		for _, f := range m.Files {
			of, err := views.LookupFile(r.store, m.Package, other, f.Path)
			if errors.Is(err, kvstore.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if min(f.Size, of.Size) >= coding.MinDictionary && max(f.Size, of.Size) <= coding.MaxDictionary {
				batch.Set(kvstore.Queue, pair(f.SHA256, of.Hash), nil)
			}
		}
		return nil
	}
	for _, before := range packages.Predecessors(m.Version, others) {
		if err := add(before, func(own, of kvstore.Hash) []byte { return pairKey(m.Released, own, of) }); err != nil {
			return err
		}
	}
	successors := packages.Successors(m.Version, others)
	for _, after := range successors[:min(len(successors), maxSuccessors)] {
		if err := add(after, func(own, of kvstore.Hash) []byte { return pairKey(m.Released, of, own) }); err != nil {
			return err
		}
	}
	return nil
}

// makeDeltas makes the deltas that are queued, until none is left or a content is queued, which goes first.
func (r *Recompressor) makeDeltas(ctx context.Context) error {
	for r.options.Dictionaries && ctx.Err() == nil && r.Backlog() == 0 {
		var key []byte
		for item, err := range r.store.Scan(kvstore.Queue, kvstore.Range{Prefix: pairs}) {
			if err != nil {
				return fmt.Errorf("recompression: couldn't read the queue of deltas: %w", err)
			}
			key = bytes.Clone(item.Key)
			break
		}
		if key == nil {
			return nil
		}
		const hashes = 1 + 8 // after the prefix and the time
		var h kvstore.Hash
		if len(key) == hashes+2*len(h) {
			h = kvstore.Hash(key[hashes:])
			if err := r.makeDelta(ctx, h, kvstore.Hash(key[hashes+len(h):])); err != nil {
				return err
			}
		}
		batch := r.store.NewBatch()
		batch.Delete(kvstore.Queue, key)
		if err := errors.Join(batch.Commit(), batch.Close()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// makeDelta stores the delta of a content against a dictionary if it is worthwhile. An error is one after which the recompressor cannot continue.
func (r *Recompressor) makeDelta(ctx context.Context, h, dictionary kvstore.Hash) error {
	logger := r.logger.With("content", h, "dictionary", dictionary)
	if deltas, err := r.store.Deltas(h); err == nil && slices.ContainsFunc(deltas, func(d kvstore.Delta) bool { return d.Dictionary == dictionary }) {
		return nil // another release has the same two files
	}
	content, err := r.store.Content(h)
	var src, base []byte
	if err == nil {
		src, err = r.store.Identity(h)
	}
	if err == nil {
		base, err = r.store.Identity(dictionary)
	}
	brotli, compressible := content.Find(coding.Brotli)
	switch {
	case errors.Is(err, kvstore.ErrNotFound), err == nil && !compressible: // erased meanwhile, or stored as it is
		return nil
	case errors.Is(err, kvstore.ErrCorrupt):
		logger.Error("no delta was made", "err", err)
		return nil
	case err != nil:
		return err
	}
	leave, err := r.options.Budget.AcquireDelta(ctx, h.String(), int64(len(base)), content.Size)
	if err != nil {
		return err
	}
	delta, err := r.squeezers.Do(ctx, h.String(), worker.EncodeDelta, worker.JoinDelta(base, src))
	leave()
	if ctx.Err() != nil || events.Stops(err) {
		return errors.Join(ctx.Err(), err)
	}
	if err != nil {
		logger.Warn("no delta was made", "err", err)
		return nil
	}
	// The child is not trusted: what it was given are strangers' bytes.
	if back, err := coding.DecodeDelta(base, delta, content.Size); err != nil || !bytes.Equal(back, src) {
		logger.Error("no delta was made: it decodes to other bytes", "err", err)
		return nil
	}
	if !coding.DeltaWorthwhile(brotli.Length, int64(len(delta))) {
		return nil
	}
	err = r.store.PutDelta(h, dictionary, delta)
	if errors.Is(err, kvstore.ErrCorrupt) {
		logger.Error("no delta was stored", "err", err)
		return nil
	}
	if errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrFull) {
		return nil
	}
	if err == nil && r.options.Squeezed != nil {
		r.options.Squeezed(h)
	}
	return err
}
