package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
)

// Roles of nodes.
const (
	Leader    = "leader"    // it publishes
	Candidate = "candidate" // it has the log's key, and takes the leader's place
	Follower  = "follower"  // it serves
	// Former is what [Node.Members] makes of a Leader whose claim has run out: another node has claimed the
	// place since, or it has been silent for too long.
	Former = "former leader"
)

// A Member is the state of a node that it reports to the operators of the cluster, and its JSON form. No node decides
// anything by it.
type Member struct {
	Name    string    `json:"name"`          // unique in the cluster
	URL     string    `json:"url,omitempty"` // for the other nodes
	Role    string    `json:"role"`
	Epoch   int64     `json:"epoch,omitempty"` // in which it writes
	Version string    `json:"version"`
	Entries int64     `json:"entries"`         // of its log
	Root    string    `json:"root"`            // of its log's tree, shortened
	Newest  time.Time `json:"newest,omitzero"` // the time of the last entry
	Lacks   int64     `json:"lacks"`           // known signed entries that are missing there
	Behind  float64   `json:"behind"`          // seconds since all was there that there was; -1 where it never was
	Since   time.Time `json:"since"`           // when it took up its role, by its own clock
	Heard   time.Time `json:"heard"`           // when it reported this, by its own clock
	Problem string    `json:"problem,omitempty"`
	// Settings are hashes of the settings that all nodes must have alike, by their names; nil from a node before 0.2.0.
	Settings map[string]string `json:"settings,omitempty"`
	// Evidence is the file there that proves that the log has forked.
	Evidence string `json:"evidence,omitempty"`
}

const (
	memberPrefix = "node/"
	maxMember    = 64 << 10
	maxMembers   = 1000
	forgotten    = 24 * time.Hour
	// silence is three times as long as the interval between two reports of a node.
	silence = 90 * time.Second
)

// Silent reports whether the last report of a node is older than 90 s at the time now: the node does not run, or does not reach the bucket.
func (m *Member) Silent(now time.Time) bool { return now.Sub(m.Heard) > silence }

// memberKey returns the key of the object in the bucket that has the report of the node with this name.
func memberKey(name string) string { return memberPrefix + kvstore.Sum([]byte(name)).String()[:32] }

// PutMember stores the report of this node in the bucket, with the root of its log and the epoch in which it leads, which it sets.
func (n *Node) PutMember(ctx context.Context, m Member) error {
	m.Root = shortRoot(n.Log.Checkpoint().Root)
	m.Epoch, _ = n.leadingEpoch()
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return n.Bucket.Put(ctx, memberKey(m.Name), data)
}

// readJSON reads an object of at most most bytes from a bucket, and decodes it as JSON. If it does not exist, the error is [bucket.ErrNotFound].
func readJSON[T any](ctx context.Context, b bucket.Bucket, key string, most int64) (value T, err error) {
	data, _, err := b.Get(ctx, key, most)
	if err == nil {
		if err = json.Unmarshal(data, &value); err != nil {
			err = fmt.Errorf("%s: %s is malformed: %w", b, key, err)
		}
	}
	return value, err
}

// DeleteMember deletes the report of the node with this name from the bucket, when the node stops.
func (n *Node) DeleteMember(ctx context.Context, name string) error {
	return n.Bucket.Delete(ctx, memberKey(name))
}

// Members reads from the bucket the reports of all nodes of the last day, at most 1,000, and returns them sorted, the leader first. A leader that is
// silent or replaced has the role [Former].
func (n *Node) Members(ctx context.Context) ([]Member, error) {
	now := time.Now()
	var all []Member
	for o, err := range n.Bucket.List(ctx, memberPrefix, "") {
		if err != nil {
			return nil, err
		}
		m, err := readJSON[Member](ctx, n.Bucket, o.Key, maxMember)
		if errors.Is(err, bucket.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if now.Sub(m.Heard) < forgotten {
			all = append(all, m)
		}
		if len(all) == maxMembers {
			break
		}
	}
	latest, err := n.latestEpoch(ctx)
	if err != nil {
		return nil, err
	}
	sortMembers(all, latest, now)
	return all, nil
}

// sortMembers sorts reports by role and name. A report of a leader that is silent at the time now, or whose epoch is not the latest, gets the role
// [Former].
func sortMembers(all []Member, latest int64, now time.Time) {
	for i := range all {
		if m := &all[i]; m.Role == Leader && (m.Epoch != latest || m.Silent(now)) {
			m.Role = Former
		}
	}
	rank := []string{Leader, Candidate, Follower, Former}
	slices.SortFunc(all, func(a, b Member) int {
		return cmp.Or(slices.Index(rank, a.Role)-slices.Index(rank, b.Role), strings.Compare(a.Name, b.Name))
	})
}
