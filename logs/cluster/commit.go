package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
)

// CommitFormat is the version of the commits' JSON schema that this package writes.
const CommitFormat = 1

// Limits of what a bucket is read for.
const (
	maxCommit      = 64 << 20
	maxPacks       = 1 << 16
	maxEpochRecord = 4 << 10
)

// A Commit adds entries to the log. Numbers begin at 0 and have no gaps; so do the entries.
type Commit struct {
	Format int   `json:"format"`
	Number int64 `json:"number"`
	// Epoch is that of the node that has made the commit. It never falls.
	Epoch int64 `json:"epoch"`
	// Nonce distinguishes the commit from others that were tried under its number.
	Nonce string `json:"nonce"`
	// Before and After are the log without and with Entries, of which there are none in the commit
	// with which an epoch begins.
	Before  logs.Checkpoint `json:"before"`
	After   logs.Checkpoint `json:"after"`
	Entries [][]byte        `json:"entries,omitempty"`
	// Packs have the contents that the entries need and no commit before this one has brought.
	Packs []PackName `json:"packs,omitempty"`
}

// A PackName says where a pack is, and what its bytes are.
type PackName struct {
	Key  string       `json:"key"`
	Hash kvstore.Hash `json:"hash"`
	Size int64        `json:"size"`
}

// A FormatError says that the bucket has what only a newer Larder can read.
type FormatError struct {
	What   string
	Format int
}

// Error returns what has the unknown format, and that the node must be updated.
func (e *FormatError) Error() string {
	return fmt.Sprintf("%s has format %d, which this release of Larder does not know: update this node; it serves what it has until then", e.What, e.Format)
}

// newNonce returns a random text that no other commit, epoch or bucket has.
func newNonce() string { return rand.Text() }

// commitKey returns the key of the object in the bucket that has the commit with a number.
func commitKey(number int64) string { return fmt.Sprintf("commit/%020d", number) }

// encode sets the commit's format and returns the commit in JSON. A commit that is too large is an error.
func (c *Commit) encode() ([]byte, error) {
	c.Format = CommitFormat
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	if len(data) > maxCommit {
		return nil, fmt.Errorf("a commit of %d entries has %d bytes, over the limit of %d", len(c.Entries), len(data), maxCommit)
	}
	return data, nil
}

// decodeCommit parses the commit with a number, and checks that it is consistent in itself. Whether its entries make the tree that it says is checked
// when it is applied. An unknown format is a [FormatError].
func decodeCommit(number int64, data []byte) (Commit, error) {
	var c Commit
	err := json.Unmarshal(data, &c)
	// The format comes first, so it is known even if the fields of a later one have other types.
	if c.Format != CommitFormat && (c.Format != 0 || err == nil) {
		return Commit{}, &FormatError{fmt.Sprintf("commit %d", number), c.Format}
	}
	if err == nil {
		err = c.validate(number)
	}
	if err != nil {
		return Commit{}, fmt.Errorf("commit %d is malformed: %w", number, err)
	}
	return c, nil
}

// validate returns an error unless the commit is consistent in itself, within the limits, and has this number. It cannot check that the entries make
// the tree of After.
func (c *Commit) validate(number int64) error {
	switch {
	case c.Number != number:
		return fmt.Errorf("it says that it is number %d", c.Number)
	case c.Epoch < 1 || c.Nonce == "":
		return errors.New("it has no epoch or no nonce")
	case c.Before.Size < 0 || c.After.Size-c.Before.Size != int64(len(c.Entries)):
		return fmt.Errorf("it has %d entries between sizes %d and %d", len(c.Entries), c.Before.Size, c.After.Size)
	case len(c.Entries) == 0 && c.Before != c.After:
		return errors.New("it has no entries and changes the tree")
	case len(c.Packs) > maxPacks:
		return fmt.Errorf("it names %d packs, and %d is the most", len(c.Packs), maxPacks)
	}
	for _, e := range c.Entries {
		if len(e) > logs.MaxEntry {
			return fmt.Errorf("an entry has %d bytes, over the limit of %d", len(e), logs.MaxEntry)
		}
	}
	for _, p := range c.Packs {
		if !strings.HasPrefix(p.Key, packPrefix(c.Epoch)) || p.Size < 0 || p.Size > maxPack {
			return fmt.Errorf("it names the pack %q of %d bytes", p.Key, p.Size)
		}
	}
	return nil
}

// checkFollows returns an error unless the commit continues a log whose checkpoint is before, and whose last commit has the given epoch.
func (c *Commit) checkFollows(before logs.Checkpoint, epoch int64) error {
	switch {
	case c.Before != before:
		return fmt.Errorf("commit %d is made for a log of %d entries with root %s, and the commits before it make %d with root %s", c.Number, c.Before.Size, shortRoot(c.Before.Root), before.Size, shortRoot(before.Root))
	case c.Epoch < epoch:
		return fmt.Errorf("commit %d is of epoch %d, after one of epoch %d: the store has broken its word", c.Number, c.Epoch, epoch)
	}
	return nil
}

// shortRoot returns the first digits of a root, for messages.
func shortRoot(h tlog.Hash) string { return kvstore.Hash(h).String()[:16] }
