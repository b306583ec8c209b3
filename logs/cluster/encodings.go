package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// Smaller codings of contents are found long after those were published. forms/N is a pack of them, created once, by
// whichever node has found them. Only what is smaller replaces, so it does no harm if two nodes find the same.

func encodingsKey(number int64) string { return fmt.Sprintf("forms/%020d", number) }

// Rows of [kvstore.Meta] about smaller codings.
var (
	encodingsRow = kvstore.Key("cluster", "forms") // the number of the next forms to take over
	foundPrefix  = kvstore.Prefix("cluster", "found")
)

// encodingsAtOnce bounds the contents whose codings are shared in one go.
const encodingsAtOnce = 1000

// QueueEncodings says that the store has smaller codings of a content by now, for [Node.ShareEncodings].
func (n *Node) QueueEncodings(h kvstore.Hash) error {
	b := n.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, append(foundPrefix[:len(foundPrefix):len(foundPrefix)], h[:]...), nil)
	return b.Commit()
}

// ShareEncodings puts the codings that were noted where the other nodes take them from, and returns of how many contents.
func (n *Node) ShareEncodings(ctx context.Context) (contents int, err error) {
	if err := n.confirm(ctx); err != nil || n.Bootstrapping() { // a new bucket has yet to get the contents
		return 0, err
	}
	var done [][]byte // notes of contents that are in the bucket, or cannot be shared
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
	for item, err := range n.Store.Scan(kvstore.Meta, kvstore.Range{Prefix: foundPrefix}) {
		if err != nil {
			return 0, err
		}
		if contents == encodingsAtOnce {
			break
		}
		err := p.add(kvstore.Hash(item.Key[len(foundPrefix):]))
		gone := errors.Is(err, kvstore.ErrNotFound) || errors.Is(err, kvstore.ErrCorrupt) // erased meanwhile, or damaged: fsck tells
		if failed != nil || err != nil && !gone {
			return 0, err
		}
		done = append(done, bytes.Clone(item.Key))
		contents++
	}
	if err := p.flush(); err != nil {
		return 0, err
	}
	return contents, unqueue()
}

// createEncodings puts a pack under the next number.
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

// ApplyEncodings takes over the smaller codings that other nodes have found, and returns the number of the next ones.
func (n *Node) ApplyEncodings(ctx context.Context) (next int64, err error) {
	n.forming.Lock()
	defer n.forming.Unlock()
	if err := n.confirm(ctx); err != nil || n.Bootstrapping() { // a new bucket has none yet
		return 0, err
	}
	row, err := n.Store.Get(kvstore.Meta, encodingsRow)
	switch {
	case err == nil && len(row) == 8:
		next = int64(binary.BigEndian.Uint64(row))
	case err == nil:
		return 0, fmt.Errorf("cluster: the row that says which codings were taken over is malformed: %x", row)
	case !errors.Is(err, kvstore.ErrNotFound):
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
			err = n.improve(pack, next)
		}
		if err != nil {
			return next, fmt.Errorf("%s: %s: %w", n.Bucket, encodingsKey(next), err)
		}
	}
}

// improve takes over what is smaller. What is not here was erased.
func (n *Node) improve(pack []byte, number int64) error {
	b := n.Store.NewBatch()
	defer b.Close()
	var failed error
	err := unpack(pack, func(c packContent, coded []kvstore.Coded) error {
		b.Delete(kvstore.Queue, roughKey(c.Hash))
		if err := n.Store.ImproveContent(c.Hash, c.Size, c.Squeezed, coded); !errors.Is(err, kvstore.ErrNotFound) {
			failed = err
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

// Squeezed returns a content in the codings that the store has, for the node that writes: this one was asked to squeeze it.
func (n *Node) Squeezed(h kvstore.Hash) (packed []byte, err error) {
	p := packer{store: n.Store, full: func(pack []byte) error {
		packed = pack
		return nil
	}}
	if err := p.add(h); err != nil {
		return nil, err
	}
	return packed, p.flush()
}

// TakeSqueezed calls take with each content that another node has squeezed, in codings that were decoded and have its hash.
func (n *Node) TakeSqueezed(packed []byte, take func(h kvstore.Hash, size int64, coded []kvstore.Coded) error) error {
	return unpack(packed, func(c packContent, coded []kvstore.Coded) error { return take(c.Hash, c.Size, coded) })
}

// roughKey queues a content that is in quick codings only, for the day when this node writes and squeezes.
func roughKey(h kvstore.Hash) []byte {
	return append(kvstore.Repaired[:len(kvstore.Repaired):len(kvstore.Repaired)], h[:]...)
}
