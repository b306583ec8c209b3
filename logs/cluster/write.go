package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
)

// AnyEpoch has [Node.Lead] take the place of whichever node writes.
const AnyEpoch = -1

// Lead makes this node the leader in the place of the one of the epoch after ([AnyEpoch] for whichever): it claims the next epoch, applies what is
// committed, and creates a commit of its own, after which no earlier leader can commit. If another node was faster, the error is a [NotWriterError].
func (n *Node) Lead(ctx context.Context, after int64) error {
	if err := n.attachBucket(ctx); err != nil {
		return err
	}
	epoch, err := n.claimEpoch(ctx, after)
	if err != nil {
		return err
	}
	n.whole.Store(false) // it is queried again
	l := &lead{machine: machine{epoch: epoch}}
	if err := n.runBootstrap(ctx, &l.machine); err != nil {
		return err
	}
	for {
		if _, err := n.CatchUp(ctx); err != nil {
			return err
		}
		s, err := n.readState()
		if err != nil {
			return err
		}
		if l.machine.setNumber(s.number, s.epoch) == deposed {
			return n.notLeaderError()
		}
		at := n.Log.Checkpoint()
		fence := Commit{Number: s.number, Epoch: epoch, Nonce: newNonce(), Before: at, After: at}
		data, err := fence.encode()
		if err != nil {
			return err
		}
		l.machine.startAttempt(fence.Nonce)
		outcome, err := n.land(ctx, &l.machine, data)
		switch {
		case err != nil:
			return err
		case outcome == landed:
			if _, err := n.CatchUp(ctx); err != nil {
				return err
			}
			n.becomeLeader(l, epoch)
			return nil
		case outcome != overtaken:
			return n.notLeaderError()
		}
	}
}

// becomeLeader records that this node leads in an epoch, so that its own updates of the log become commits from now on.
func (n *Node) becomeLeader(l *lead, epoch int64) {
	l.at = n.Log.Checkpoint()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leads, n.writer, n.latest, n.since = l, n.URL, epoch, time.Now().UTC()
	n.Logger.Info("this node publishes from now on", "epoch", epoch, "entries", l.at.Size)
}

// StepDown makes this node no longer the leader. It stores nothing in the bucket; see [Node.Leave]. A commit that the bucket has not confirmed
// stays undecided: this node goes on to confirm it in the background, or a commit of another node decides.
func (n *Node) StepDown() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leads != nil {
		n.Logger.Info("this node does not publish any more", "epoch", n.leads.machine.epoch)
	}
	n.leads = nil
}

// Leads reports whether this node leads, as far as it knows: its next commit may find out that another does.
func (n *Node) Leads() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leads != nil
}

// leadingEpoch returns the epoch in which this node leads; leads is false if it does not. Another node may have claimed a later epoch already.
func (n *Node) leadingEpoch() (epoch int64, leads bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.leads == nil {
		return 0, false
	}
	return n.leads.machine.epoch, true
}

// notLeaderError returns the [NotWriterError] for an operation that only the leader can do, with the URL of the known leader.
func (n *Node) notLeaderError() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &NotWriterError{n.writer}
}

// commitGrowth publishes an update of the log as a commit in the bucket, and adds to the update's batch that it is applied. The log calls it under
// its lock before it writes the update; with an error nothing is written. If the packs cannot be put, the error is [ErrUnavailable]. If the bucket
// does not confirm the commit in time, the error is [logs.ErrUnconfirmed], and a goroutine continues; until that is done, other updates get
// [ErrUnavailable]. If this node does not lead, or finds that another does, which ends its lead, the error is a [NotWriterError].
func (n *Node) commitGrowth(g logs.Growth) error {
	n.mu.Lock()
	l := n.leads
	pending := l != nil && l.pending
	n.mu.Unlock()
	switch {
	case l == nil:
		return n.notLeaderError()
	case pending:
		return fmt.Errorf("the bucket has not confirmed an earlier publication: %w", ErrUnavailable)
	case g.Before != l.at: // an update was committed that this node could not write
		n.StepDown()
		return n.notLeaderError()
	}
	ctx, cancel := context.WithTimeout(context.Background(), n.CommitTimeout)
	defer cancel()
	c := Commit{Number: l.machine.number, Epoch: l.machine.epoch, Nonce: newNonce(), Before: g.Before, After: g.After}
	for _, e := range g.Entries {
		c.Entries = append(c.Entries, e.Raw)
	}
	packed, err := n.packEntries(ctx, &c, g.Entries)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	data, err := c.encode()
	if err != nil {
		return err
	}
	l.machine.startAttempt(c.Nonce)
	outcome, err := n.land(ctx, &l.machine, data)
	switch {
	case err != nil:
		n.Logger.Warn("the bucket has not confirmed a publication; it is put again until the bucket does", "commit", c.Number, "err", err)
		n.mu.Lock()
		l.pending = true
		n.mu.Unlock()
		go n.confirmPending(l, data)
		return fmt.Errorf("%w: %w", logs.ErrUnconfirmed, err)
	case outcome == landed:
		l.at = g.After
		c.recordApplied(g.Batch, packed)
		return nil
	}
	n.stopLeading(outcome, c.Number)
	return n.notLeaderError()
}

// confirmPending continues to create the commit data, for which no Update of the log waits any longer, until its outcome is known, even if this node
// no longer leads. If the commit is created, confirmPending applies it, trying every n.Rest until that succeeds, and lets other Updates commit again;
// otherwise it steps down. It runs in a goroutine that no context ends.
func (n *Node) confirmPending(l *lead, data []byte) {
	ctx := context.Background()
	number := l.machine.number
	outcome, _ := n.land(ctx, &l.machine, data) // without an end, there is no error
	for outcome == landed {
		_, err := n.CatchUp(ctx)
		if err == nil {
			break
		}
		n.Logger.Error("couldn't apply a commit of this node; trying again", "commit", number, "err", err)
		time.Sleep(n.Rest)
	}
	if outcome != landed {
		n.stopLeading(outcome, number)
		return
	}
	n.Logger.Info("the bucket has confirmed the publication", "commit", number)
	n.mu.Lock()
	defer n.mu.Unlock()
	l.at, l.pending = n.Log.Checkpoint(), false
}

// stopLeading logs why the number of this node's commit has another commit, and steps down.
func (n *Node) stopLeading(o outcome, number int64) {
	if o == deposed {
		n.Logger.Warn("another node publishes by now", "commit", number)
	} else {
		n.Logger.Error("the store has let a commit through that it must not; nothing is published by this node any more", "bucket", n.Bucket, "commit", number)
	}
	n.StepDown()
}

// land creates the commit whose encoded form is data, and which m has started, in the bucket, and returns what became of it. It repeats requests
// until that is known, or ctx ends, which is an error.
func (n *Node) land(ctx context.Context, m *machine, data []byte) (outcome, error) {
	for {
		o, err := n.stepOnce(ctx, m, data)
		if o != undecided {
			return o, nil
		}
		if err == nil {
			continue
		}
		if ended := retry.Sleep(ctx, n.Rest); ended != nil {
			return undecided, errors.Join(err, ended)
		}
	}
}

// stepOnce sends the one request that the machine needs next, to create the commit data or to read the commit that has its number, and returns what
// is known then. An error says why the machine knows no more than before.
func (n *Node) stepOnce(ctx context.Context, m *machine, data []byte) (outcome, error) {
	key := commitKey(m.number)
	if m.phase == putting {
		_, err := n.Bucket.Create(ctx, key, data)
		o := m.putDone(err == nil)
		if errors.Is(err, bucket.ErrExists) {
			err = nil
		}
		return o, err
	}
	c, err := n.readCommit(ctx, m.number)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return m.foundNothing(), nil
	case err != nil:
		return undecided, err
	}
	return m.foundCommit(c.Epoch, c.Nonce), nil
}

// packEntries puts the contents that entries name, and that no earlier commit has brought, into packs in the bucket, which it names in the commit c.
// It returns the contents' hashes.
func (n *Node) packEntries(ctx context.Context, c *Commit, entries []logs.Indexed) ([]kvstore.Hash, error) {
	wanted, err := n.missingContents(entries, func(h kvstore.Hash) (bool, error) {
		_, err := n.Store.Get(kvstore.Meta, packedContentKey(h))
		if errors.Is(err, kvstore.ErrNotFound) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return nil, err
	}
	return wanted, n.packContents(ctx, c, wanted)
}

// packContents puts the wanted contents into packs in the bucket, and names these in the commit c.
func (n *Node) packContents(ctx context.Context, c *Commit, wanted []kvstore.Hash) error {
	p := packer{store: n.Store, full: func(pack []byte) error {
		hash := kvstore.Sum(pack)
		name := PackName{packPrefix(c.Epoch) + hash.String(), hash, int64(len(pack))}
		if _, err := n.Bucket.Create(ctx, name.Key, pack); err != nil && !errors.Is(err, bucket.ErrExists) {
			return err
		}
		c.Packs = append(c.Packs, name)
		return nil
	}}
	for _, h := range wanted {
		if err := p.add(h); err != nil {
			return err
		}
	}
	return p.flush()
}

// missingContents returns the contents that entries name, and the files of the releases that they publish or restore, each once, for which there
// returns false. The store must have the manifests of these releases.
func (n *Node) missingContents(entries []logs.Indexed, there func(kvstore.Hash) (bool, error)) (wanted []kvstore.Hash, err error) {
	seen := map[kvstore.Hash]struct{}{}
	add := func(h kvstore.Hash) error {
		if _, ok := seen[h]; ok {
			return nil
		}
		seen[h] = struct{}{}
		has, err := there(h)
		if !has && err == nil {
			wanted = append(wanted, h)
		}
		return err
	}
	for _, e := range entries {
		for _, h := range e.Contents() {
			if err := add(h); err != nil {
				return nil, err
			}
		}
		if !e.Kind.Serves() {
			continue
		}
		change, err := views.Load(n.Store, e)
		if err != nil {
			return nil, err
		}
		for _, f := range change.Manifest.Files {
			if err := add(f.SHA256); err != nil {
				return nil, err
			}
		}
	}
	return wanted, nil
}

// An epochRecord says which node has claimed an epoch: it writes, or tries to. Numbers of epochs begin at 1.
type epochRecord struct {
	Format int       `json:"format"`
	Nonce  string    `json:"nonce"`
	URL    string    `json:"url"`
	Since  time.Time `json:"since"` // by that node's clock; for people
}

// epochKey returns the key of the object in the bucket by which a node claims an epoch.
func epochKey(epoch int64) string { return fmt.Sprintf("epoch/%020d", epoch) }

// claimEpoch claims the epoch after the one given as after, or with [AnyEpoch] after the latest, by creating an object in the bucket, and returns its
// number. If another node was faster, the error is a [NotWriterError].
func (n *Node) claimEpoch(ctx context.Context, after int64) (int64, error) {
	latest, err := n.latestEpoch(ctx)
	if err != nil {
		return 0, err
	}
	if after != AnyEpoch && latest != after {
		return 0, n.notLeaderError()
	}
	own := epochRecord{CommitFormat, newNonce(), n.URL, time.Now().UTC()}
	data, err := json.Marshal(own)
	if err != nil {
		return 0, err
	}
	_, err = n.Bucket.Create(ctx, epochKey(latest+1), data)
	if errors.Is(err, bucket.ErrExists) {
		return 0, n.notLeaderError()
	}
	return latest + 1, err
}

// latestEpoch reads from the bucket the number of the latest epoch, 0 before the first, and records in n which node has claimed it.
func (n *Node) latestEpoch(ctx context.Context) (int64, error) {
	n.mu.Lock()
	latest := n.latest
	n.mu.Unlock()
	for {
		record, err := readJSON[epochRecord](ctx, n.Bucket, epochKey(latest+1), maxEpochRecord)
		if errors.Is(err, bucket.ErrNotFound) {
			return latest, nil
		}
		if err != nil {
			return 0, err
		}
		latest++
		n.mu.Lock()
		if latest > n.latest {
			n.latest, n.writer, n.since = latest, record.URL, record.Since
		}
		n.mu.Unlock()
	}
}

// An identity says whose log a bucket has. Its id distinguishes the bucket from others with that log.
type identity struct {
	Format int    `json:"format"`
	Origin string `json:"origin"`
	ID     string `json:"id"`
}

const identityKey = "log"

// Origin returns the name of the log in a bucket, "" if the bucket has none.
func Origin(ctx context.Context, b bucket.Bucket) (string, error) {
	is, err := readIdentity(ctx, b)
	return is.Origin, err
}

// readIdentity reads from the bucket which log it has; the result is empty if it has none.
func readIdentity(ctx context.Context, b bucket.Bucket) (is identity, err error) {
	is, err = readJSON[identity](ctx, b, identityKey, maxEpochRecord)
	switch {
	case errors.Is(err, bucket.ErrNotFound):
		return identity{}, nil
	case err != nil:
		return identity{}, err
	case is.Format != CommitFormat:
		return identity{}, &FormatError{b.String(), is.Format}
	case is.Origin == "" || is.ID == "":
		return identity{}, fmt.Errorf("%s: %s, which says whose log it has, is malformed: %+v", b, identityKey, is)
	}
	return is, nil
}

// ForeignError returns the error for a bucket, by its name, that has the log has, while the keys of this node are those of the log want.
func ForeignError(bucket, has, want string) error {
	return fmt.Errorf("%s has the log %s, and this node's keys are those of %s; name the right bucket, or another prefix in it, with --bucket", bucket, has, want)
}

// claimBucket returns the bucket's id. If the bucket has no identity yet, it stores one, a new id and the name of this node's log, provided that this
// node has the log's key (Bootstraps). It stores no entries. A bucket of a log with another name is an error.
func (n *Node) claimBucket(ctx context.Context) (id string, err error) {
	is, err := readIdentity(ctx, n.Bucket)
	if err == nil && is.ID == "" && !n.Bootstraps {
		return "", fmt.Errorf("%s has no log yet, and this node has no key to begin one with; start the node first that has the log's key, or name the right bucket with --bucket", n.Bucket)
	}
	if err == nil && is.ID == "" {
		own := identity{CommitFormat, n.Origin, newNonce()}
		data, err := json.Marshal(own)
		if err != nil {
			return "", err
		}
		if _, err = n.Bucket.Create(ctx, identityKey, data); err == nil {
			return own.ID, nil
		} else if !errors.Is(err, bucket.ErrExists) {
			return "", err
		}
		if is, err = readIdentity(ctx, n.Bucket); err != nil {
			return "", err
		}
	}
	if err == nil && is.Origin != n.Origin {
		err = ForeignError(n.Bucket.String(), is.Origin, n.Origin)
	}
	return is.ID, err
}
