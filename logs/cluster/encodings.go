package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// Smaller encodings of contents, and deltas between versions, are made long after the contents were published. forms/N is a pack of them,
// created once, by the node that made them. Only what is smaller replaces, so it does no harm if two nodes make the same.

// encodingsKey returns the key of the object in the bucket that has the pack of smaller encodings with a number.
func encodingsKey(number int64) string { return fmt.Sprintf("forms/%020d", number) }

// Rows of [kvstore.Meta] about smaller codings.
var (
	encodingsRow = kvstore.Key("cluster", "forms") // the number of the next forms to take over
	foundPrefix  = kvstore.Prefix("cluster", "found")
	deltaPrefix  = kvstore.Prefix("cluster", "delta")
)

// encodingsAtOnce bounds how many contents and deltas are shared at once, together.
const encodingsAtOnce = 1000

// QueueEncodings records in the store that it has smaller encodings of a content, so that [Node.ShareEncodings] sends them to the other nodes.
func (n *Node) QueueEncodings(h kvstore.Hash) error {
	return n.setMeta(slices.Concat(foundPrefix, h[:]), nil)
}

// QueueDelta records in the store that it has a delta of the content h against a dictionary, so that [Node.ShareEncodings] sends it to the other
// nodes.
func (n *Node) QueueDelta(h, dictionary kvstore.Hash) error {
	return n.setMeta(deltaKey(h, dictionary), nil)
}

// deltaKey returns the key of the row that queues the delta of the content h against a dictionary for [Node.ShareEncodings].
func deltaKey(h, dictionary kvstore.Hash) []byte {
	return slices.Concat(deltaPrefix, h[:], dictionary[:])
}

// ShareEncodings puts up to 1,000 of the queued encodings and deltas into the bucket for the other nodes, removes them from the queue and returns how
// many. Those that the store lacks by now, or has damaged, are removed and counted, too. It first applies those of the other nodes. While the log is
// being brought to a new bucket, it does nothing. With an error it returns 0, although some may be in the bucket already.
func (n *Node) ShareEncodings(ctx context.Context) (shared int, err error) {
	if err := n.attachBucket(ctx); err != nil || n.Bootstrapping() { // a new bucket has yet to get the contents
		return 0, err
	}
	if _, err := n.ApplyEncodings(ctx); err != nil { // deltas that the bucket has are not shared again
		return 0, err
	}
	var done [][]byte // rows of what is in the bucket, or cannot be shared
	unqueue := func() error {
		b := n.Store.NewBatch()
		defer b.Close()
		for _, key := range done {
			b.Delete(kvstore.Meta, key)
		}
		done = nil
		return b.Commit()
	}
	var failed error
	p := packer{store: n.Store, full: func(pack []byte) error {
		if failed = n.createEncodings(ctx, pack); failed == nil {
			failed = unqueue() // at once: a later pack may fail, and this one must not be created again
		}
		return failed
	}}
	for _, queued := range []struct {
		prefix []byte
		add    func(key []byte) error
	}{
		{foundPrefix, func(key []byte) error { return p.add(kvstore.Hash(key)) }},
		{deltaPrefix, func(key []byte) error { return p.addDelta(kvstore.Hash(key), kvstore.Hash(key[len(kvstore.Hash{}):])) }},
	} {
		for item, err := range n.Store.Scan(kvstore.Meta, kvstore.Range{Prefix: queued.prefix}) {
			if err != nil {
				return 0, err
			}
			if shared == encodingsAtOnce {
				break
			}
			err := queued.add(item.Key[len(queued.prefix):])
			gone := errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrCorrupt) // erased meanwhile, or damaged, which fsck reports
			if failed != nil || err != nil && !gone {
				return 0, err
			}
			done = append(done, bytes.Clone(item.Key))
			shared++
		}
	}
	if err := p.flush(); err != nil {
		return 0, err
	}
	return shared, unqueue()
}

// madeDeltasKey is the key of the object in the bucket that [Node.RecordMadeDeltas] writes: a decimal number.
const madeDeltasKey = "deltas"

// maxMadeDeltas bounds that object, in bytes.
const maxMadeDeltas = 20

// RecordMadeDeltas records in the bucket that the deltas of all releases among the first size entries of the log are made. Only the leader calls it,
// and only if size has grown. It records nothing, and returns false, while the bucket may lack some of them: deltas are queued for
// [Node.ShareEncodings].
func (n *Node) RecordMadeDeltas(ctx context.Context, size int64) (recorded bool, err error) {
	for _, err := range n.Store.Scan(kvstore.Meta, kvstore.Range{Prefix: deltaPrefix}) {
		return false, err
	}
	err = n.Bucket.Put(ctx, madeDeltasKey, strconv.AppendInt(nil, size, 10))
	return err == nil, err
}

// MadeDeltas returns the size of the log that a leader has recorded with [Node.RecordMadeDeltas], 0 if none has.
func (n *Node) MadeDeltas(ctx context.Context) (size int64, err error) {
	data, _, err := n.Bucket.Get(ctx, madeDeltasKey, maxMadeDeltas)
	if errors.Is(err, bucket.ErrNotFound) {
		return 0, nil
	}
	if err == nil {
		size, err = strconv.ParseInt(string(data), 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: couldn't read %s, the size of the log whose deltas are made: %w", n.Bucket, madeDeltasKey, err)
	}
	return max(0, size), nil
}

// createEncodings creates an object in the bucket with a pack of encodings, under the next free number; it applies those that other nodes have
// created before.
func (n *Node) createEncodings(ctx context.Context, pack []byte) error {
	for {
		next, err := n.ApplyEncodings(ctx)
		if err != nil {
			return err
		}
		if _, err = n.Bucket.Create(ctx, encodingsKey(next), pack); !errors.Is(err, bucket.ErrExists) {
			return err
		}
	}
}

// ApplyEncodings stores the smaller encodings and deltas that other nodes have put into the bucket since the last call, after the commits that bring
// their contents. It returns the number of the next such pack, which the bucket does not have yet. While the log is being brought to a new bucket, it
// does nothing and returns 0.
func (n *Node) ApplyEncodings(ctx context.Context) (next int64, err error) {
	n.forming.Lock()
	defer n.forming.Unlock()
	if err := n.attachBucket(ctx); err != nil || n.Bootstrapping() { // a new bucket has none yet
		return 0, err
	}
	if err := n.readNumbers(encodingsRow, &next); err != nil {
		return 0, err
	}
	for ; ; next++ {
		pack, _, err := n.Bucket.Get(ctx, encodingsKey(next), maxPack)
		if errors.Is(err, bucket.ErrNotFound) {
			return next, nil
		}
		if err == nil { // the node that found them had the contents, so a commit has them by now
			_, err = n.CatchUp(ctx)
		}
		if err == nil {
			err = n.storeEncodings(pack, next)
		}
		if err != nil {
			return next, fmt.Errorf("%s: %s: %w", n.Bucket, encodingsKey(next), err)
		}
	}
}

// storeEncodings stores those encodings of a pack that are new or smaller than the store's, and, if n.Dictionaries is set, its deltas, and records
// that the pack with this number is applied. It removes the pack's contents from the queue kvstore.Repaired, and from the queue of ShareEncodings the
// deltas that the store has exactly so. It skips erased contents. It logs a malformed pack and skips the rest of it. A pack of an unknown format is a
// [FormatError], and is not recorded as applied.
func (n *Node) storeEncodings(pack []byte, number int64) error {
	b := n.Store.NewBatch()
	defer b.Close()
	var failed error
	err := unpack(pack, func(c packContent, coded []kvstore.Coded) error {
		b.Delete(kvstore.Queue, recompressionKey(c.Hash))
		if err := n.Store.ImproveContent(c.Hash, c.Size, c.Squeezed, coded); !errors.Is(err, kvstore.ErrNotFound) {
			failed = err
		}
		return failed
	}, func(h kvstore.Hash, delta []byte) error {
		if failed = n.storeDelta(h, delta); failed == nil {
			failed = n.unqueueDelta(b, h, delta)
		}
		return failed
	})
	switch {
	case failed != nil || errors.As(err, new(*FormatError)):
		return err
	case err != nil: // what is here already stays as it is
		n.Logger.Warn("smaller codings in the bucket are not what they say, and are left out", "object", encodingsKey(number), "err", err)
	}
	b.Set(kvstore.Meta, encodingsRow, binary.BigEndian.AppendUint64(nil, uint64(number+1)))
	return b.Commit()
}

// unqueueDelta adds to a batch the removal of a delta of the content h from the queue of [Node.ShareEncodings], if the store has exactly this delta:
// the bucket has it.
func (n *Node) unqueueDelta(b *kvstore.Batch, h kvstore.Hash, delta []byte) error {
	deltas, err := n.Store.Deltas(h)
	if errors.Is(err, kvstore.ErrCorrupt) {
		return nil
	}
	for _, d := range deltas {
		if d.Sum == kvstore.Sum(delta) {
			b.Delete(kvstore.Meta, deltaKey(h, d.Dictionary))
		}
	}
	return err
}

// PackContent returns a pack with the content h in the encodings of this store, which has recompressed it for the leader.
func (n *Node) PackContent(h kvstore.Hash) (packed []byte, err error) {
	p := packer{store: n.Store, full: func(pack []byte) error {
		packed = pack
		return nil
	}}
	if err := p.add(h); err != nil {
		return nil, err
	}
	err = p.flush() // sets packed
	return packed, err
}

// UnpackContents calls take with the hash, size and encodings of each content in a pack. The encodings were decoded and have the hash. It ignores
// deltas.
func (n *Node) UnpackContents(packed []byte, take func(h kvstore.Hash, size int64, coded []kvstore.Coded) error) error {
	return unpack(packed, func(c packContent, coded []kvstore.Coded) error { return take(c.Hash, c.Size, coded) }, nil)
}

// recompressionKey returns the key of the row below kvstore.Repaired that queues a content for recompression, which this node does if it
// becomes the leader.
func recompressionKey(h kvstore.Hash) []byte { return slices.Concat(kvstore.Repaired, h[:]) }
