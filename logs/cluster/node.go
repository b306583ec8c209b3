package cluster

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/views"
)

// Options are the options of a Node.
type Options struct {
	// Bucket is what the nodes share. It must have passed [bucket.Probe]. Required.
	Bucket bucket.Bucket
	// Store is this node's own, and Log its log. Required.
	Store *kvstore.Store
	Log   *logs.Log
	// Origin is the name of the log. A bucket that has another one is refused. Required.
	Origin string
	// URL is where the other nodes reach this one.
	URL string
	// Bootstraps says that the node has the log's key, so that a bucket which has no log gets this one.
	Bootstraps bool
	// Dictionaries has the node store the deltas between the versions of a file that the bucket has.
	Dictionaries bool
	// CommitTimeout is how long an Update waits for the bucket to confirm a commit. Default 10 s.
	CommitTimeout time.Duration
	// Rest is how long a node waits before it tries again, or looks for the next commit. Default 250 ms.
	Rest time.Duration
	// Beat is how often the node that writes says that it lives. Another takes its place when it has
	// missed three. Default 2 s.
	Beat time.Duration
	// Logger gets what happens. Required.
	Logger *slog.Logger
}

// A Node has a store of the log that a bucket's commits make. It is safe for concurrent use.
type Node struct {
	Options

	catching sync.Mutex // held by the one that applies commits
	showing  sync.Mutex // held by the one that changes public/
	forming  sync.Mutex // held by the one that takes over codings

	mu     sync.Mutex
	leads  *lead  // nil where another node writes, or none
	writer string // the URL of the node that writes, as far as is known
	latest int64  // the latest epoch that is known
	since  time.Time
	status Status

	// bootstrap is there while the store has a log which the bucket does not have yet, or not all of: the
	// first Lead puts it there.
	bootstrap atomic.Pointer[bootstrap]
	confirmed atomic.Bool // that the bucket is the one which the store has followed
	whole     atomic.Bool // the bucket is known to have all commits that the store has applied
}

// A lead is the state of a node while it is the leader.
type lead struct {
	machine machine
	at      logs.Checkpoint // what the commits make; guarded by the log's Update, like machine
	pending bool            // a commit is unconfirmed; guarded by Node.mu
}

// A NotWriterError says that the log grows at another node.
type NotWriterError struct {
	Writer string // its URL, "" if none is known
}

// Error returns which node publishes, if that is known.
func (e *NotWriterError) Error() string {
	if e.Writer == "" {
		return "no node of the cluster publishes at the moment; one takes over within seconds: try again"
	}
	return "this node does not publish; the one at " + e.Writer + " does"
}

// A BehindError says that a bucket lacks a commit that the store has applied. What is published into it
// from there on would be another log than the one that was signed.
type BehindError struct {
	Bucket  string
	Commit  int64
	Entries int64 // that the store has
}

// Error returns what the bucket lacks, and what the operator does.
func (e *BehindError) Error() string {
	return fmt.Sprintf("%s lacks commit %d, which this node has applied: the bucket is behind, as after an old copy of it was restored, and nothing may be published into it. Stop all nodes, and start them with a new, empty --bucket, first the node that has the most entries (this one has %d; larder log list tells on the others): it brings the log there", e.Bucket, e.Commit, e.Entries)
}

// ErrUnavailable says that nothing can be published for the moment: the bucket does not respond. What
// gets it has not happened.
var ErrUnavailable = errors.New("nothing can be published while the bucket does not answer; try again")

// The rows of a node, in [kvstore.Meta].
var (
	stateKey      = kvstore.Key("cluster", "state")
	bucketKey     = kvstore.Key("cluster", "bucket") // the id of the bucket that was followed
	contentPrefix = kvstore.Prefix("cluster", "content")
)

// A state is how far a store has applied commits.
type state struct {
	number int64 // of the next commit
	epoch  int64 // of the last one
}

// Open returns the node of a store. From now on the log takes entries only from the bucket's commits, until the node leads. If the store has followed
// no bucket, Open reads which log the bucket has, and claims the bucket for this log if it has none; otherwise the first CatchUp or Lead does that.
func Open(ctx context.Context, o Options) (*Node, error) {
	o.CommitTimeout = cmp.Or(o.CommitTimeout, 10*time.Second)
	o.Rest = cmp.Or(o.Rest, 250*time.Millisecond)
	o.Beat = cmp.Or(o.Beat, 2*time.Second)
	n := &Node{Options: o}
	if _, err := n.readState(); err != nil {
		return nil, err
	}
	if joined, err := Joined(o.Store); err != nil {
		return nil, err
	} else if !joined {
		if err := n.attachBucket(ctx); err != nil {
			return nil, err
		}
	}
	o.Log.Share(n.commitGrowth)
	return n, nil
}

// Joined reports whether a store is that of a node of a cluster, so that its log must not grow without the bucket.
func Joined(store kvstore.Reader) (bool, error) {
	_, err := store.Get(kvstore.Meta, bucketKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// attachBucket checks, until it has succeeded once, whether the bucket is the one that the store follows, and claims one that has no log yet. If it
// is another one, the store follows that from now on, or n.bootstrap is set, with which the leader brings the store's log there.
func (n *Node) attachBucket(ctx context.Context) error {
	if n.confirmed.Load() {
		return nil
	}
	id, err := n.claimBucket(ctx)
	if err != nil {
		return err
	}
	known, err := n.Store.Get(kvstore.Meta, bucketKey)
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		return err
	}
	var f *bootstrap
	if string(known) != id {
		if f, err = n.compareWithBucket(ctx, id); err != nil {
			return err
		}
	}
	n.bootstrap.Store(f)
	n.confirmed.Store(true)
	return nil
}

// A Status is the state of a node.
type Status struct {
	// Leads says that it writes. Writer is the URL of the node that does, as far as is known, and Epoch and
	// Since are since when.
	Leads  bool
	Writer string
	Epoch  int64
	Since  time.Time
	// Current is when all was here that the bucket had; zero where it has yet to be.
	Current time.Time
	// Problem says why no more is taken over, or the heartbeat could not be written.
	Problem string
}

// Status returns the state of the node, and what it knows about the leader.
func (n *Node) Status() Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.status
	s.Leads, s.Writer, s.Epoch, s.Since = n.leads != nil, n.writer, n.latest, n.since
	return s
}

// recordResult records in the status that the node could follow or write the bucket just now, or the error why not. It ignores a canceled context.
func (n *Node) recordResult(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err == nil {
		n.status.Current, n.status.Problem = time.Now(), ""
	} else if !errors.Is(err, context.Canceled) {
		n.status.Problem = err.Error()
	}
}

// Bootstrapping reports whether the store has log entries that the bucket, a new one, lacks. The node that becomes the leader commits them. It is
// false until the node has read the bucket.
func (n *Node) Bootstrapping() bool { return n.bootstrap.Load() != nil }

// readState returns up to which commit the store has applied the bucket's commits; the zero value before the first.
func (n *Node) readState() (s state, err error) {
	err = n.readNumbers(stateKey, &s.number, &s.epoch)
	return s, err
}

// readNumbers sets numbers to those in a row of [kvstore.Meta] with this key, which has 8 bytes for each. If the row does not exist, it leaves them
// as they are.
func (n *Node) readNumbers(key []byte, numbers ...*int64) error {
	row, err := n.Store.Get(kvstore.Meta, key)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case len(row) != 8*len(numbers):
		return fmt.Errorf("the row %q about the cluster is malformed: %x", key, row)
	}
	for i := range numbers {
		*numbers[i] = int64(binary.BigEndian.Uint64(row[8*i:]))
	}
	return nil
}

// encode returns the value of the row that stores the state.
func (s state) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, uint64(s.number)), uint64(s.epoch))
}

// packedContentKey returns the key of the row that says that a pack in the bucket has a content, so that no later commit packs it.
func packedContentKey(h kvstore.Hash) []byte { return slices.Concat(contentPrefix, h[:]) }

// setMeta sets a row of [kvstore.Meta], durably.
func (n *Node) setMeta(key, value []byte) error {
	b := n.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, key, value)
	return b.Commit()
}

// NextCommit returns the number of the first commit that the store has not applied.
func (n *Node) NextCommit() (int64, error) {
	s, err := n.readState()
	return s.number, err
}

// CatchUp applies the commits in the bucket that the store lacks, and returns how many, also with an error. While the store has entries that a new
// bucket lacks, it applies none. If the bucket lacks the last commit that the store has applied, the error is a [BehindError].
func (n *Node) CatchUp(ctx context.Context) (applied int, err error) {
	n.catching.Lock()
	defer n.catching.Unlock()
	if err := n.attachBucket(ctx); err != nil {
		return 0, err
	}
	if f := n.bootstrap.Load(); f != nil {
		if err := f.readCommits(ctx); err != nil || !f.isDone() {
			return 0, err
		}
		if err := f.finish(); err != nil {
			return 0, err
		}
	}
	for {
		s, err := n.readState()
		if err != nil {
			return applied, err
		}
		c, err := n.readCommit(ctx, s.number)
		if errors.Is(err, bucket.ErrNotFound) {
			return applied, n.checkComplete(ctx, s.number)
		}
		if err == nil {
			err = n.applyCommit(ctx, s, c)
		}
		if errors.Is(err, errAppliedMeanwhile) {
			continue
		}
		if err != nil {
			return applied, err
		}
		applied++
		n.whole.Store(true)
	}
}

// checkComplete returns a [BehindError] if the bucket lacks the commit before the number next. It queries the bucket only if it is not known to be
// complete.
func (n *Node) checkComplete(ctx context.Context, next int64) error {
	if n.whole.Load() {
		return nil
	}
	err := n.requireCommit(ctx, next-1)
	n.whole.Store(err == nil)
	return err
}

// requireCommit returns a [BehindError] if the bucket lacks the commit with this number, or the error with which it cannot be read. It returns nil
// for a negative number.
func (n *Node) requireCommit(ctx context.Context, number int64) error {
	if number < 0 {
		return nil
	}
	_, err := n.readCommit(ctx, number)
	if errors.Is(err, bucket.ErrNotFound) {
		return &BehindError{n.Bucket.String(), number, n.Log.Checkpoint().Size}
	}
	return err
}

// errAppliedMeanwhile says that an Update of this node has written what a commit says.
var errAppliedMeanwhile = errors.New("the commit is applied already")

// readCommit reads the commit with a number from the bucket and checks its form. It returns [bucket.ErrNotFound] if the bucket does not have it.
func (n *Node) readCommit(ctx context.Context, number int64) (Commit, error) {
	data, _, err := n.Bucket.Get(ctx, commitKey(number), maxCommit)
	if err != nil {
		return Commit{}, err
	}
	c, err := decodeCommit(number, data)
	if err != nil {
		return Commit{}, fmt.Errorf("%s: %w", n.Bucket, err)
	}
	return c, nil
}

// applyCommit applies a commit that was read from the bucket to the store, which is in state s: it stores the contents, then in one batch the entries
// that the store lacks with their views, and that the commit is applied. It queues contents that are not in their best encodings for recompression. A
// commit that does not continue the log, or whose entries make another root, is an error; the contents stay then. If the state has changed, the error
// is errAppliedMeanwhile: an Update of the leader has recorded its own commit itself.
func (n *Node) applyCommit(ctx context.Context, s state, c Commit) error {
	pins := n.Store.Pin()
	defer pins.Release()
	var brought, rough []kvstore.Hash
	for _, name := range c.Packs {
		hashes, quick, err := n.storePack(ctx, pins, name)
		if err != nil {
			return fmt.Errorf("%s: commit %d: %s: %w", n.Bucket, c.Number, name.Key, err)
		}
		brought, rough = append(brought, hashes...), append(rough, quick...)
	}
	return n.Log.Adopt(func(tx *logs.Tx) error {
		if now, err := n.readState(); err != nil {
			return err
		} else if now != s {
			return errAppliedMeanwhile
		}
		before, err := tx.Checkpoint()
		if err != nil {
			return err
		}
		if here := before.Size - c.Before.Size; 0 < here && here < int64(len(c.Entries)) { // see bootstrap
			if before, err = n.checkpointOf(c.Before.Size); err != nil {
				return err
			}
			c.Entries = c.Entries[here:]
		}
		if err := c.checkFollows(before, s.epoch); err != nil {
			return fmt.Errorf("%s: %w", n.Bucket, err)
		}
		if err := n.appendEntries(tx, c.Entries); err != nil {
			return fmt.Errorf("%s: commit %d: %w", n.Bucket, c.Number, err)
		}
		after, err := tx.Checkpoint()
		if err != nil {
			return err
		}
		if after != c.After {
			return fmt.Errorf("%s: commit %d says that its entries make the root %s, and they make %s", n.Bucket, c.Number, shortRoot(c.After.Root), shortRoot(after.Root))
		}
		c.recordApplied(tx.Batch, brought)
		for _, h := range rough {
			tx.Batch.Set(kvstore.Queue, recompressionKey(h), nil)
		}
		return nil
	})
}

// appendEntries appends the encoded entries of a commit to the log, and adds to the batch of tx the rows of the views and the changes of the log's key
// that follow from them.
func (n *Node) appendEntries(tx *logs.Tx, entries [][]byte) error {
	var keyChanges []int64
	for _, raw := range entries {
		e, err := tx.AppendRaw(raw)
		if err != nil {
			return err
		}
		if e.Kind == logs.KeyChanged {
			keyChanges = append(keyChanges, e.Index)
		}
		if err := n.addViews(tx, e); err != nil {
			return err
		}
	}
	return signing.AddKeyChanges(tx.Batch, n.Store, keyChanges...)
}

// addViews adds to the batch of tx the rows of the views, the tables derived from the log, that follow from an entry. It also
// adds the removal of those contents that the entry erases and that the store has.
func (n *Node) addViews(tx *logs.Tx, e logs.Indexed) error {
	change, err := views.Load(n.Store, e)
	if err != nil {
		return err
	}
	if change.Erasure != nil {
		for _, h := range change.Erasure.Contents {
			if _, err := n.Store.Content(h); errors.Is(err, kvstore.ErrNotFound) {
				continue
			}
			tx.Batch.Remove(h)
			tx.Batch.Delete(kvstore.Meta, packedContentKey(h))
		}
	}
	return views.Apply(tx.Batch, change)
}

// recordApplied adds to a batch the rows that say that the commit is applied, that its packs are in use, and that packs in the bucket have the
// contents packed.
func (c *Commit) recordApplied(b *kvstore.Batch, packed []kvstore.Hash) {
	b.Set(kvstore.Meta, stateKey, state{c.Number + 1, c.Epoch}.encode())
	for _, p := range c.Packs {
		b.Set(kvstore.Meta, packRow(p.Key), nil)
	}
	for _, h := range packed {
		b.Set(kvstore.Meta, packedContentKey(h), nil)
	}
}

// storePack reads a pack from the bucket, verifies its hash and encodings, pins and stores its contents, and stores its deltas. It returns the
// contents' hashes, and in rough those of contents that are not in their best encodings. The caller releases the pins. What was stored before an
// error stays.
func (n *Node) storePack(ctx context.Context, pins *kvstore.Pins, name PackName) (hashes, rough []kvstore.Hash, err error) {
	pack, _, err := n.Bucket.Get(ctx, name.Key, name.Size)
	if err != nil {
		return nil, nil, err
	}
	if kvstore.Sum(pack) != name.Hash {
		return nil, nil, fmt.Errorf("its bytes do not have the hash %s", name.Hash)
	}
	err = unpack(pack, func(c packContent, coded []kvstore.Coded) error {
		hashes = append(hashes, c.Hash)
		if !c.Squeezed {
			rough = append(rough, c.Hash)
		}
		if _, err := pins.Has(c.Hash); err != nil {
			return err
		}
		return n.Store.PutContent(c.Hash, c.Size, c.Squeezed, coded)
	}, n.storeDelta)
	return hashes, rough, err
}
