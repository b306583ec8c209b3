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

// NewPublishedView returns what shows the checkpoints of a node's bucket. last is what was shown before, key
// the verifier key that is trusted; where it is "", the one counts that the bucket names first. keep puts a
// checkpoint where the next start finds it, and fork the evidence of a fork into a file, whose name it returns.
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

func (e *ForkError) Error() string {
	text := e.Why + "; it is not shown here, and what is here goes on being served"
	if e.Evidence != "" {
		text += "; " + e.Evidence + " proves it to anyone (larder verify --evidence)"
	}
	return text
}

// rereadInterval is how often the checkpoint of an unchanged log is read, which is cosigned every hour.
const rereadInterval = 5 * time.Minute

// UpToDate reports whether the checkpoint of all entries that are here is shown, and was read from the bucket a short time ago.
func (s *PublishedView) UpToDate(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed.Checkpoint == s.node.Log.Checkpoint() && now.Sub(s.readAt) < rereadInterval
}

// Refresh reads the bucket's checkpoint, and shows it if everything is here that it is of.
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
	chain, err := s.chain(ctx)
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
		return s.forked(last, signed)
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

func (s *PublishedView) forked(last, signed signing.Signed) error {
	fork := &ForkError{Why: fmt.Sprintf("%s shows a signed checkpoint of %d entries with root %s, which is not that of the log that its commits make", s.node.Bucket, signed.Size, root(signed.Root))}
	changes, err := s.KeyChanges()
	if err != nil {
		return err
	}
	if last.Note != nil {
		if e, err := signing.NewEvidence(s.key, changes, last.Note, signed.Note, logs.Hashes(s.node.Store)); err == nil {
			fork.Evidence = s.fork(e)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evidence = fork.Evidence
	return fork
}

// chain returns the verifier keys that count, the trusted one first.
func (s *PublishedView) chain(ctx context.Context) ([]string, error) {
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
	for _, v := range signing.Follow(trusted, changes)[1:] {
		for _, c := range changes {
			if next, err := note.NewVerifier(c.Key); err == nil && next.KeyHash() == v.KeyHash() {
				chain = append(chain, c.Key)
				break
			}
		}
	}
	return chain, nil
}

// Lacks returns how many signed entries the bucket was seen to have that are not here, and the file that
// proves a fork, "" where none was seen.
func (s *PublishedView) Lacks() (entries int64, evidence string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.of-s.node.Log.Checkpoint().Size), s.evidence
}

// Shown returns the checkpoint that is shown.
func (s *PublishedView) Shown() signing.Signed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.signed
}

// Checkpoint returns the checkpoint that is shown.
func (s *PublishedView) Checkpoint() (signing.Signed, error) {
	if signed := s.Shown(); signed.Note != nil {
		return signed, nil
	}
	return signing.Signed{}, &signing.RefusedError{Reason: "this node of a cluster has yet to catch up with the others for the first time"}
}

// Held is the checkpoint of the entries that are here and signed.
func (s *PublishedView) Held() logs.Checkpoint { return s.Shown().Checkpoint }

// Origin is what the log is called.
func (s *PublishedView) Origin() string { return s.node.Origin }

// Key is the verifier key by which the shown checkpoint counts, "" where none is shown.
func (s *PublishedView) Key() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.by
}

// KeyChanges are the keys that have taken over, as the log says.
func (s *PublishedView) KeyChanges() ([]signing.KeyChange, error) {
	return signing.KeyChanges(s.node.Store)
}

// RecordPublished says that public/ has everything that a checkpoint is of which it shows, so that a node that
// begins to write puts there what is missing only.
func (n *Node) RecordPublished(size int64) error {
	shown, err := n.shown()
	if err != nil || shown >= size {
		return err
	}
	return n.recordPublished(size)
}
