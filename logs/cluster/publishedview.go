package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
)

// A PublishedView is what a node that does not write has of the log's signature: the bucket's newest checkpoint
// of which the store has everything. It believes nothing that is not signed with the key and of the log
// that the commits make, and never goes back to a smaller one.
type PublishedView struct {
	node *Node
	key  string // the verifier key that is trusted; later ones follow from the log
	keep func(key string, signed signing.Signed) error
	fork func(*signing.Evidence) string

	mu       sync.Mutex
	signed   signing.Signed
	by       string // the verifier key that signed it
	of       int64  // entries of the bucket's newest checkpoint
	readAt   time.Time
	evidence string // the file that proves a fork
}

// NewPublishedView returns the view that a node which does not lead has of the log's signature in the bucket. last is the checkpoint that was served
// before; key is the trusted verifier key, or "" to trust the one that the bucket names first. keep stores a checkpoint, and the key that signed it,
// for the next start; fork writes the evidence of a fork of the log into a file and returns its path.
func NewPublishedView(n *Node, key string, last signing.Signed, keep func(string, signing.Signed) error, fork func(*signing.Evidence) string) *PublishedView {
	s := &PublishedView{node: n, key: key, keep: keep, fork: fork, signed: last, of: last.Size}
	if last.Note != nil {
		s.by = key
	}
	return s
}

// A ForkError says that the bucket shows a signed checkpoint that is not one of the log that its commits make.
type ForkError struct {
	Why      string
	Evidence string // the file that proves it; "" where one checkpoint alone does not
}

// Error returns what contradicts the log, and which file proves it.
func (e *ForkError) Error() string {
	text := e.Why + "; it is not shown here, and what is here goes on being served"
	if e.Evidence != "" {
		text += "; " + e.Evidence + " proves it to anyone (larder verify --evidence)"
	}
	return text
}

// rereadInterval is how often the checkpoint of an unchanged log is read, which is cosigned every hour.
const rereadInterval = 5 * time.Minute

// UpToDate reports whether the served checkpoint covers all entries in the store and was read from the bucket less than five minutes before now.
func (s *PublishedView) UpToDate(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed.Checkpoint == s.node.Log.Checkpoint() && now.Sub(s.readAt) < rereadInterval
}

// Refresh reads the bucket's checkpoint, verifies its signature and that it belongs to the log in the store, and serves it from now on if the store
// has everything that it covers and it is not smaller than the last one. It calls keep with a new one before. A checkpoint of another log is a
// [ForkError]. Without a checkpoint in the bucket it returns nil.
func (s *PublishedView) Refresh(ctx context.Context) error {
	const key = publicPrefix + checkpointPath
	b := s.node.Bucket
	data, _, err := b.Get(ctx, key, maxNote) // whatever its version: see [bucket.Bucket]
	if errors.Is(err, bucket.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	chain, err := s.keyChain(ctx)
	if err != nil {
		return err
	}
	signed, by, err := signing.ReadNote(data, chain)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", b, key, err)
	}
	s.mu.Lock()
	last := s.signed
	s.of, s.readAt = max(s.of, signed.Size), time.Now()
	s.mu.Unlock()
	here := s.node.Log.Checkpoint()
	if signed.Size > here.Size {
		return nil // it is read again when more entries are here
	}
	contained, err := signing.Contains(s.node.Store, here, signed.Checkpoint)
	if err != nil {
		return err
	}
	if !contained {
		return s.recordFork(last, signed)
	}
	if signed.Size < last.Size {
		return nil // a late one of a node that wrote before
	}
	if !bytes.Equal(signed.Note, last.Note) {
		if err := s.keep(by, signed); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signed, s.by, s.evidence = signed, by, ""
	return nil
}

// recordFork returns a [ForkError] for the checkpoint signed, which is not one of the log in the store. If it and the checkpoint last prove that to
// anyone, it has that evidence written into a file, whose path it records.
func (s *PublishedView) recordFork(last, signed signing.Signed) error {
	fork := &ForkError{Why: fmt.Sprintf("%s shows a signed checkpoint of %d entries with root %s, which is not that of the log that its commits make", s.node.Bucket, signed.Size, shortRoot(signed.Root))}
	changes, err := s.KeyChanges()
	if err != nil {
		return err
	}
	if last.Note != nil {
		if e, err := signing.NewEvidence([]string{s.key}, changes, last.Note, signed.Note, logs.Hashes(s.node.Store)); err == nil {
			fork.Evidence = s.fork(e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evidence = fork.Evidence
	return fork
}

// keyChain returns the verifier keys whose signatures count: the trusted one, and those to which it was rotated. If none is trusted yet, it trusts
// the one that the bucket names, and logs that.
func (s *PublishedView) keyChain(ctx context.Context) ([]string, error) {
	if s.key == "" {
		data, _, err := s.node.Bucket.Get(ctx, publicPrefix+tiles.Prefix+"key", maxEpochRecord)
		if err != nil {
			return nil, fmt.Errorf("couldn't get the log's key: %w", err)
		}
		key := strings.TrimSpace(string(data))
		v, err := note.NewVerifier(key)
		if err != nil || v.Name() != s.node.Origin {
			return nil, fmt.Errorf("%s names a key that is not that of the log %s", s.node.Bucket, s.node.Origin)
		}
		s.node.Logger.Warn("trusting the log's key that the bucket names, which nothing else has confirmed; compare it with that of the node that publishes", "key", key)
		s.mu.Lock()
		s.key = key
		s.mu.Unlock()
	}
	trusted, err := note.NewVerifier(s.key)
	if err != nil {
		return nil, err
	}
	changes, err := s.KeyChanges()
	if err != nil {
		return nil, err
	}
	chain := []string{s.key}
	for _, c := range signing.FollowedChanges(trusted, changes) {
		chain = append(chain, c.Key)
	}
	return chain, nil
}

// MissingEntries returns how many signed entries of the bucket are missing in the store, and the path of the file that proves a fork of the log, ""
// if there was no fork.
func (s *PublishedView) MissingEntries() (entries int64, evidence string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.of-s.node.Log.Checkpoint().Size), s.evidence
}

// Served returns the signed checkpoint that this node serves, the zero value before the first.
func (s *PublishedView) Served() signing.Signed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed
}

// Checkpoint returns the signed checkpoint that this node serves. Before the first, the error is a [signing.RefusedError].
func (s *PublishedView) Checkpoint() (signing.Signed, error) {
	if signed := s.Served(); signed.Note != nil {
		return signed, nil
	}
	return signing.Signed{}, &signing.RefusedError{Reason: "this node of a cluster has yet to catch up with the others for the first time"}
}

// SignedInStore returns size and root of the checkpoint that this node serves, the zero value before the first.
func (s *PublishedView) SignedInStore() logs.Checkpoint { return s.Served().Checkpoint }

// Key returns the verifier key of the served checkpoint, "" before there is one.
func (s *PublishedView) Key() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by
}

// KeyChanges returns the rotations of the log's key that the store's log records, oldest first.
func (s *PublishedView) KeyChanges() ([]signing.KeyChange, error) {
	return signing.KeyChanges(s.node.Store)
}

// RecordPublished records in the store, if it does not know that yet, that public/ in the bucket has everything about the first size entries, so that
// this node puts only what is missing when it becomes the leader.
func (n *Node) RecordPublished(size int64) error {
	shown, err := n.publishedSize()
	if err != nil || shown >= size {
		return err
	}
	return n.setPublishedSize(size)
}
