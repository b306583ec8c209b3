package recompression

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/bot/worker"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// A file of a release is encoded against the same path in the releases before it, so that a client that has one of those
// downloads a delta. A release is queued when it is published. When all contents are recompressed, because deltas are compared
// with the best Brotli, its row is replaced by one for each pair of contents: by then the releases that were published at the
// same time are known, too. A file that does not change has a delta against itself, because its address changes. A delta that
// cannot be made is left out: nothing needs it.

// released is the prefix of the keys of rows that queue the deltas of a release. The time of the release follows, newest first,
// then the package, a zero byte and the version.
var released = []byte("n")

// timeLength is the length of the time in such a key.
const timeLength = 8

// releaseKey returns the key of the queue row that says that the deltas of a release are still to be queued one by one. at is when upstream released
// it, or when it was published here. Rows with a later time sort first.
func releaseKey(at time.Time, pkg, version string) []byte {
	key := binary.BigEndian.AppendUint64(slices.Clone(released), ^uint64(max(0, at.Unix())))
	return append(key, pkg+"\x00"+version...)
}

// maxSuccessors bounds the releases after a new one that get deltas against it.
const maxSuccessors = 8

// makeDeltas makes the queued deltas one after another and removes their rows from the queue. It returns when none is left, ctx
// ends (with its error), or a content waits for recompression, which goes first. It does nothing unless Options.Dictionaries is
// set.
func (r *Recompressor) makeDeltas(ctx context.Context) error {
	for r.options.Dictionaries && ctx.Err() == nil && r.Backlog() == 0 {
		key, err := firstKey(r.store, released)
		if err == nil && key != nil {
			err = r.queuePairs(key)
		} else if err == nil {
			if key, err = firstKey(r.store, kvstore.QueuedDeltas); err == nil && key == nil {
				return nil
			}
			if h, dictionary, ok := kvstore.ParseQueuedDeltaKey(key); err == nil && ok {
				err = r.makeDelta(ctx, h, dictionary)
			}
		}
		if err != nil {
			return err
		}
		batch := r.store.NewBatch()
		batch.Delete(kvstore.Queue, key)
		if err := errors.Join(batch.Commit(), batch.Close()); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// DeltasQueued reports whether deltas wait in the queue of a store, also those of releases that are not yet queued one by one.
func DeltasQueued(store *kvstore.Store) (bool, error) {
	release, err := firstKey(store, released)
	if err != nil || release != nil {
		return release != nil, err
	}
	delta, err := firstKey(store, kvstore.QueuedDeltas)
	return delta != nil, err
}

// releasesAtOnce bounds the rows in a batch of QueueReleases.
const releasesAtOnce = 1000

// QueueReleases queues the deltas of the releases that the log's entries from the index from on publish, those that were published last first,
// and has Run make them. A new leader of a cluster calls it for the releases whose deltas the leaders before it have not made. After an error
// some releases are queued.
func (r *Recompressor) QueueReleases(from int64) error {
	defer r.queue.wakeAll()
	for {
		batch, rows := r.store.NewBatch(), 0
		for e, err := range logs.Entries(r.store, from) {
			if err != nil {
				return errors.Join(err, batch.Close())
			}
			from = e.Index + 1
			if e.Kind != logs.Published {
				continue
			}
			batch.Set(kvstore.Queue, releaseKey(e.Time, e.Package, e.Version), nil)
			if rows++; rows == releasesAtOnce {
				break
			}
		}
		if err := errors.Join(batch.Commit(), batch.Close()); err != nil || rows < releasesAtOnce {
			return err
		}
	}
}

// firstKey returns the first key of the queue's rows in the store that begins with a prefix, nil if none exists.
func firstKey(store *kvstore.Store, prefix []byte) ([]byte, error) {
	for item, err := range store.Scan(kvstore.Queue, kvstore.Range{Prefix: prefix}) {
		if err != nil {
			return nil, fmt.Errorf("recompression: couldn't read the queue of deltas: %w", err)
		}
		return bytes.Clone(item.Key), nil
	}
	return nil, nil
}

// queuePairs reads package and version from the key of a release's row (see releaseKey) and queues the release's deltas with
// queuePairsOf. If a content that it needs is damaged or missing, it logs that and returns nil, and deltas are left out.
func (r *Recompressor) queuePairs(key []byte) error {
	pkg, version, _ := strings.Cut(string(key[min(len(key), len(released)+timeLength):]), "\x00")
	err := r.queuePairsOf(pkg, version)
	if errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, kvstore.ErrNotFound) {
		r.logger.Error("recompression: not all deltas of a release are made", "package", pkg, "version", version, "err", err)
		return nil
	}
	return err
}

// queuePairsOf queues the deltas of a release against each of its predecessors, and those of up to maxSuccessors later releases
// against it, which exist if it was published after them. It queues nothing if the release is withdrawn or unknown. After an
// error some deltas may be queued.
func (r *Recompressor) queuePairsOf(pkg, version string) error {
	versions, err := views.Versions(r.store, pkg)
	if err != nil {
		return err
	}
	var others []string
	var own *views.Version
	for i, v := range versions {
		switch {
		case v.Withdrawn != nil:
		case v.Version == version:
			own = &versions[i]
		default:
			others = append(others, v.Version)
		}
	}
	if own == nil {
		return nil // withdrawn meanwhile
	}
	m, err := logs.ReadManifest(r.store, own.Manifest)
	if err != nil {
		return err
	}
	for _, before := range packages.Predecessors(version, others) {
		if err := r.queuePairsWith(m, before, func(own, of kvstore.Hash) []byte { return kvstore.QueuedDeltaKey(m.Released, own, of) }); err != nil {
			return err
		}
	}
	successors := packages.Successors(version, others)
	for _, after := range successors[:min(len(successors), maxSuccessors)] {
		if err := r.queuePairsWith(m, after, func(own, of kvstore.Hash) []byte { return kvstore.QueuedDeltaKey(m.Released, of, own) }); err != nil {
			return err
		}
	}
	return nil
}

// queuePairsWith queues one delta for each path that both the release m and the package's other version have, also for equal
// contents, if both sizes suit a dictionary. key returns the queue row's key for two contents, that of the file in m and that in
// the other version, and so decides which of them is the dictionary.
func (r *Recompressor) queuePairsWith(m *logs.Manifest, other string, key func(own, of kvstore.Hash) []byte) error {
	batch := r.store.NewBatch()
	for _, f := range m.Files {
		of, err := views.LookupFile(r.store, m.Package, other, f.Path)
		if errors.Is(err, kvstore.ErrNotFound) {
			continue
		}
		if err != nil {
			return errors.Join(err, batch.Close())
		}
		if min(f.Size, of.Size) >= coding.MinDictionary && max(f.Size, of.Size) <= coding.MaxDictionary {
			batch.Set(kvstore.Queue, key(f.SHA256, of.Hash), nil)
		}
	}
	return errors.Join(batch.Commit(), batch.Close())
}

// makeDelta encodes the content h as a delta against the content dictionary in a child process, stores it if it saves enough
// bytes, and calls Options.DeltaStored. It waits for memory in the budget. It returns nil without a delta if one is stored
// already, either content is missing or damaged, h is not compressible, or the encoder fails. An error is one after which the
// recompressor cannot continue, or that of ctx.
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
	_, compressible := content.Find(coding.Brotli)
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
	if ctx.Err() != nil || sources.Stops(err) {
		return errors.Join(ctx.Err(), err)
	}
	if err != nil {
		logger.Warn("no delta was made", "err", err)
		return nil
	}
	// The store decodes it: the child is not trusted, because its input is from strangers.
	stored, err := r.store.PutDelta(h, delta)
	switch {
	case errors.Is(err, kvstore.ErrCorrupt), errors.Is(err, kvstore.ErrBadDelta):
		logger.Error("no delta was stored", "err", err)
		return nil
	case stored && err == nil && r.options.DeltaStored != nil:
		r.options.DeltaStored(h, dictionary)
	}
	return err
}
