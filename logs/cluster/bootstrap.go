package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// foundAtOnce is how many entries of a log that is there already go into one commit.
const foundAtOnce = 256

// A bootstrap brings a log that a store has, and a bucket lacks, into commits.
type bootstrap struct {
	*Node
	id   string          // of the bucket
	at   logs.Checkpoint // what the commits make so far
	next state
	// within says that the store's log ends within the next commit.
	within bool
	there  map[kvstore.Hash]bool // contents that the commits' packs have
	packs  []PackName            // that the commits name
}

// compareWithBucket compares the store's log with the commits in a bucket with this id, which the store has not followed before. If the commits have
// all of the log, it records that the store follows the bucket, and returns nil. Otherwise it returns the bootstrap with which the leader commits the
// rest. Commits of another log are an error.
func (n *Node) compareWithBucket(ctx context.Context, id string) (*bootstrap, error) {
	empty, err := tlog.TreeHash(0, nil)
	if err != nil {
		return nil, err
	}
	f := &bootstrap{Node: n, id: id, at: logs.Checkpoint{Root: empty}, there: map[kvstore.Hash]bool{}}
	if err := f.readCommits(ctx); err != nil || !f.isDone() {
		return f, err
	}
	return nil, f.finish()
}

// isDone reports whether the bucket's commits, as far as they were read, have all of the store's log.
func (f *bootstrap) isDone() bool { return f.within || f.at.Size >= f.Log.Checkpoint().Size }

// checkpointOf returns size and root of the first size entries of the store's log.
func (n *Node) checkpointOf(size int64) (logs.Checkpoint, error) {
	root, err := tlog.TreeHash(size, logs.Hashes(n.Store))
	return logs.Checkpoint{Size: size, Root: root}, err
}

// readCommits reads the bucket's commits from f.next on, and compares their entries with the store's log, up to the end of either. It advances f past
// each commit that the log has completely, and records its packs and contents in f. If the log ends within a commit, it sets f.within instead.
// Commits of another log are an error.
func (f *bootstrap) readCommits(ctx context.Context) error {
	size := f.Log.Checkpoint().Size
	for !f.isDone() {
		c, err := f.readCommit(ctx, f.next.number)
		if errors.Is(err, bucket.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		other := c.Before != f.at
		if has := min(c.After.Size, size); !other {
			raw, err := logs.RawEntries(f.Store, f.at.Size, int(has-f.at.Size))
			if err != nil {
				return err
			}
			other = !slices.EqualFunc(raw, c.Entries[:len(raw)], bytes.Equal)
			f.within = !other && c.After.Size > size
		}
		if other {
			return fmt.Errorf("the store has a log of %d entries that did not come from %s, which has another one; begin a node of a cluster with an empty data folder", size, f.Bucket)
		}
		if f.within {
			return nil
		}
		if err := f.recordContents(c.Before.Size, c.After.Size); err != nil {
			return err
		}
		f.at, f.next = c.After, state{c.Number + 1, c.Epoch}
		f.packs = append(f.packs, c.Packs...)
	}
	return nil
}

// entriesAndContents returns the store's entries from one index to another, exclusive, and the contents that they need and that no earlier commit has
// brought. It leaves out contents that the store lacks, such as those that were erased since.
func (f *bootstrap) entriesAndContents(from, to int64) (entries []logs.Indexed, wanted []kvstore.Hash, err error) {
	for e, err := range logs.Entries(f.Store, from) {
		if err != nil {
			return nil, nil, err
		}
		if e.Index >= to {
			break
		}
		entries = append(entries, e)
	}
	wanted, err = f.missingContents(entries, func(h kvstore.Hash) (bool, error) {
		if f.there[h] {
			return true, nil
		}
		_, err := f.Store.Content(h)
		if errors.Is(err, kvstore.ErrNotFound) {
			return true, nil
		}
		return false, err
	})
	return entries, wanted, err
}

// recordContents records in f.there which contents the entries between two indexes, those of a commit, have brought, and which they have erased.
func (f *bootstrap) recordContents(from, to int64) error {
	entries, wanted, err := f.entriesAndContents(from, to)
	if err != nil {
		return err
	}
	for _, h := range wanted {
		f.there[h] = true
	}
	for _, e := range entries {
		if e.Kind != logs.Erased {
			continue
		}
		change, err := views.Load(f.Store, e)
		if err != nil {
			return err
		}
		for _, h := range change.Erasure.Contents {
			delete(f.there, h)
		}
	}
	return nil
}

// runBootstrap commits to a new bucket those entries of the store's log that it lacks, if there are any, and has the store follow the bucket from
// there. m, which tracks this node's attempts to create commits, is that of a node that is about to lead. If another node takes over, the error is a
// [NotWriterError].
func (n *Node) runBootstrap(ctx context.Context, m *machine) error {
	n.catching.Lock()
	defer n.catching.Unlock()
	f := n.bootstrap.Load()
	if f == nil {
		return nil
	}
	size := n.Log.Checkpoint().Size
	for {
		if err := f.readCommits(ctx); err != nil {
			return err
		}
		if f.isDone() {
			break
		}
		if m.setNumber(f.next.number, f.next.epoch) == deposed {
			return n.notLeaderError()
		}
		if err := f.commitNext(ctx, m); err != nil {
			return err
		}
	}
	n.Logger.Info("the log that was here is in the bucket", "entries", size, "commits", f.next.number)
	return f.finish()
}

// commitNext creates a commit with the next entries of the store's log, at most foundAtOnce or up to one that erases contents, after packs with the
// contents that they need. It waits until it is known which commit the bucket has under the number: this one, or one of an earlier epoch, which is no
// error. f does not advance: readCommits reads either. If a later epoch's leader has the number, the error is a [NotWriterError].
func (f *bootstrap) commitNext(ctx context.Context, m *machine) error {
	to := f.at.Size
	c := Commit{Number: f.next.number, Epoch: m.epoch, Nonce: newNonce(), Before: f.at}
	for e, err := range logs.Entries(f.Store, f.at.Size) {
		if err != nil {
			return err
		}
		c.Entries, to = append(c.Entries, e.Raw), e.Index+1
		if len(c.Entries) == foundAtOnce || e.Kind == logs.Erased {
			break
		}
	}
	var err error
	if c.After, err = f.checkpointOf(to); err != nil {
		return err
	}
	_, wanted, err := f.entriesAndContents(f.at.Size, to)
	if err == nil {
		err = f.packContents(ctx, &c, wanted)
	}
	if err != nil {
		return err
	}
	data, err := c.encode()
	if err != nil {
		return err
	}
	m.startAttempt(c.Nonce)
	switch o, err := f.land(ctx, m, data); {
	case err != nil:
		return err
	case o != landed && o != overtaken:
		return f.notLeaderError()
	}
	return nil
}

// finish records in the store, in one batch, that it follows the bucket and has applied its commits, in place of what it recorded about an earlier
// bucket. It queues all deltas, because commits have none, and they may need dictionaries of any commit. Then it sets the node's bootstrap to nil.
func (f *bootstrap) finish() error {
	b := f.Store.NewBatch()
	defer b.Close()
	for _, prefix := range [][]byte{contentPrefix, packNames} { // of a bucket before
		for item, err := range f.Store.Scan(kvstore.Meta, kvstore.Range{Prefix: prefix}) {
			if err != nil {
				return err
			}
			b.Delete(kvstore.Meta, bytes.Clone(item.Key))
		}
	}
	for _, p := range f.packs {
		b.Set(kvstore.Meta, packRow(p.Key), nil)
	}
	b.Set(kvstore.Meta, packsKey, nil)
	b.Delete(kvstore.Meta, shownKey)
	b.Delete(kvstore.Meta, encodingsRow)
	b.Set(kvstore.Meta, bucketKey, []byte(f.id))
	b.Set(kvstore.Meta, stateKey, f.next.encode())
	for h := range f.there {
		b.Set(kvstore.Meta, packedContentKey(h), nil)
	}
	for item, err := range f.Store.Scan(kvstore.Deltas, kvstore.Range{}) {
		if err != nil {
			return err
		}
		if h, dictionary, ok := kvstore.ParseDeltaRow(item.Key); ok {
			b.Set(kvstore.Meta, deltaKey(h, dictionary), nil)
		}
	}
	if err := b.Commit(); err != nil {
		return err
	}
	f.bootstrap.Store(nil)
	return nil
}
