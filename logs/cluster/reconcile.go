package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// Contents and key files of public/ are put and removed without a condition, so a late write of a leader that was paused
// may still land. And a pack whose commit never came stays. So the leader reconciles public/ periodically.

// A Reconciled counts the differences that were removed.
type Reconciled struct {
	Added   int // objects that were not there, or had other bytes
	Removed int // contents that only withdrawn releases have
	// Partial are old partial tiles that were removed, whose full tiles are there; clients take those (C2SP tlog-tiles,
	// "Partial Tiles").
	Partial int
}

// Reconcile compares the objects below public/ in the bucket with the log, as far as [Node.UpdatePublic] has published it. It puts those that are
// missing or differ, and deletes contents that only withdrawn releases have and partial tiles that full ones have replaced. It returns how many,
// also with an error. It compares tiles of hashes and contents by their sizes, the files with keys by their bytes, and of bundles of entries only
// whether they exist: a client verifies what it reads. If this node does not lead, it changes nothing, and the error is a [NotWriterError].
func (n *Node) Reconcile(ctx context.Context) (Reconciled, error) {
	m := &reconciliation{node: n, publication: publication{PublicCopy: n.publicCopy(), ctx: ctx}}
	err := m.reconcileTiles()
	if err == nil {
		err = m.reconcileKeys()
	}
	if err == nil {
		err = m.reconcileContents(reconciledAtOnce)
	}
	return m.done, err
}

type reconciliation struct {
	node *Node
	publication
	done Reconciled
}

// runExclusively calls do while no UpdatePublic runs, if this node leads, because what that puts may be newer than what do knows. Otherwise it
// returns a [NotWriterError].
func (m *reconciliation) runExclusively(do func() error) error {
	m.node.showing.Lock()
	defer m.node.showing.Unlock()
	if !m.node.Leads() {
		return m.node.notLeaderError()
	}
	return do()
}

// putMissing puts what a Larder serves at a path of the log into public/ in the bucket, and counts that.
func (m *reconciliation) putMissing(path string) error {
	err := m.putLog(m.ctx, path)
	if err == nil {
		m.done.Added++
	}
	return err
}

// mostPartial bounds the partial tiles that are removed at once; the next Reconcile goes on.
const mostPartial = 10_000

// reconcileTiles puts those tiles of the published log, and bundles of its entries, that are missing in public/, and tiles of another size. It
// deletes up to 10,000 partial tiles that full ones have replaced.
func (m *reconciliation) reconcileTiles() error {
	shown, err := m.node.publishedSize()
	if err != nil {
		return err
	}
	missing := map[string]int64{} // to their sizes, 0 if that is not known
	for _, t := range tlog.NewTiles(tileHeight, 0, shown) {
		for i, path := range tilePaths(t) {
			missing[path] = 0
			if i == 0 {
				missing[path] = int64(t.W) * tlog.HashSize
			}
		}
	}
	there := map[string]struct{}{}
	var old []string
	for o, err := range m.Bucket.List(m.ctx, publicPrefix+tiles.Prefix+"tile/", "") {
		if err != nil {
			return err
		}
		path := strings.TrimPrefix(o.Key, publicPrefix)
		if size, ok := missing[path]; ok && (size == 0 || size == o.Size) {
			delete(missing, path)
			there[path] = struct{}{}
		}
		full, _, partial := strings.Cut(path, ".p/")
		if _, replaced := there[full]; partial && replaced && len(old) < mostPartial { // it comes after the full one
			old = append(old, o.Key)
		}
	}
	for path := range missing {
		if err := m.runExclusively(func() error { return m.putMissing(path) }); err != nil {
			return err
		}
	}
	for _, key := range old {
		if err := m.runExclusively(func() error { return m.Bucket.Delete(m.ctx, key) }); err != nil {
			return err
		}
		m.done.Partial++
	}
	return nil
}

// reconcileKeys puts the files with the log's keys into public/ if those there differ.
func (m *reconciliation) reconcileKeys() error {
	for _, path := range keyPaths {
		err := m.runExclusively(func() error {
			want, err := tiles.ReadLog(m.Store, path)
			if err != nil {
				return err
			}
			have, _, err := m.Bucket.Get(m.ctx, publicPrefix+path, maxNote)
			if err == nil && bytes.Equal(have, want) || err != nil && !errors.Is(err, bucket.ErrNotFound) && !errors.Is(err, bucket.ErrTooLarge) {
				return err
			}
			return m.putMissing(path)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reconciledAtOnce is how many listed contents are held against the store at once.
const reconciledAtOnce = 1000

// reconcileContents compares the contents in public/ with those in the store in the order of their hashes, atOnce at a time, and puts or deletes
// those that are wrong there.
func (m *reconciliation) reconcileContents(atOnce int) error {
	listed := map[kvstore.Hash]int64{}
	var from []byte
	for o, err := range m.Bucket.List(m.ctx, publicPrefix+contentPath, "") {
		if err != nil {
			return err
		}
		h, err := kvstore.ParseHash(strings.TrimPrefix(o.Key, publicPrefix+contentPath))
		if err != nil || contentKey(h) != o.Key {
			continue // none of ours
		}
		listed[h] = o.Size
		if len(listed) < atOnce {
			continue
		}
		to := append(h[:], 0)
		if err := m.compareContents(listed, kvstore.Range{From: from, To: to}); err != nil {
			return err
		}
		from = to
		clear(listed)
	}
	return m.compareContents(listed, kvstore.Range{From: from})
}

// compareContents compares the contents listed, which public/ has, with their sizes, with those in a range of the store, and puts or deletes those
// that are wrong there. It consumes listed.
func (m *reconciliation) compareContents(listed map[kvstore.Hash]int64, r kvstore.Range) error {
	var wrong []kvstore.Hash
	check := func(h kvstore.Hash) error {
		size, there := listed[h]
		delete(listed, h)
		ok, err := m.isPublishedRight(h, size, there)
		if !ok {
			wrong = append(wrong, h)
		}
		return err
	}
	for item, err := range m.Store.Scan(kvstore.Contents, r) {
		if err == nil {
			err = m.ctx.Err()
		}
		if err == nil {
			err = check(kvstore.Hash(item.Key))
		}
		if err != nil {
			return err
		}
	}
	for h := range listed { // not in the store
		if err := check(h); err != nil {
			return err
		}
	}
	for _, h := range wrong {
		if err := m.runExclusively(func() error { return m.correctContent(h) }); err != nil {
			return err
		}
	}
	return nil
}

// isPublishedRight reports whether public/ has a content as it should: there says whether it is there, size how many bytes it has. A content that
// nothing names is right, because it may be newer than this node knows. So is a named one that the store lacks, which fsck reports.
func (m *reconciliation) isPublishedRight(h kvstore.Hash, size int64, there bool) (bool, error) {
	standing, err := views.StandingOf(m.Store, h)
	switch {
	case err != nil || standing == views.Unnamed:
		return true, err
	case standing == views.NamedOnce:
		return !there, nil
	}
	content, err := m.Store.Content(h)
	if errors.Is(err, kvstore.ErrNotFound) {
		return true, nil // fsck reports it
	}
	return there && size == content.Size, err
}

// correctContent puts a content into public/, or deletes it there if only withdrawn releases name it, and counts that.
func (m *reconciliation) correctContent(h kvstore.Hash) error {
	deleted, err := m.updateContent(h)
	if err == nil && deleted {
		m.done.Removed++
	} else if err == nil {
		m.done.Added++
	}
	return err
}

// Rows of [kvstore.Meta] about packs.
var (
	// packsKey is there where every pack that a commit of the bucket names has a row.
	packsKey  = kvstore.Key("cluster", "packs")
	packNames = kvstore.Prefix("cluster", "pack")
)

// packRow returns the key of the row that says that a commit names the pack with this key in the bucket.
func packRow(key string) []byte { return append(packNames[:len(packNames):len(packNames)], key...) }

// CollectPacks deletes from the bucket the packs of earlier epochs that no commit names, and returns how many and their bytes. Nodes of these epochs
// cannot commit any more, and this node has applied all that they committed. If this node does not lead, the error is a [NotWriterError].
func (n *Node) CollectPacks(ctx context.Context) (packs int, size int64, err error) {
	epoch, leads := n.leadingEpoch()
	if !leads {
		return 0, 0, n.notLeaderError()
	}
	if _, err := n.Store.Get(kvstore.Meta, packsKey); err != nil {
		return 0, 0, fmt.Errorf("which packs are in use is not known here: %w", err)
	}
	for o, err := range n.Bucket.List(ctx, "pack/", "") {
		if err != nil {
			return packs, size, err
		}
		of, err := packEpoch(o.Key)
		if err != nil || of >= epoch {
			continue // none of ours, or of a node that may yet commit it
		}
		_, err = n.Store.Get(kvstore.Meta, packRow(o.Key))
		if err == nil {
			continue
		}
		if errors.Is(err, kvstore.ErrNotFound) {
			err = n.Bucket.Delete(ctx, o.Key)
		}
		if err != nil {
			return packs, size, err
		}
		packs, size = packs+1, size+o.Size
	}
	return packs, size, nil
}

// packEpoch returns the epoch in the key of a pack in the bucket, and an error for another key.
func packEpoch(key string) (int64, error) {
	text, _, _ := strings.Cut(strings.TrimPrefix(key, "pack/"), "/")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err == nil && !strings.HasPrefix(key, packPrefix(epoch)) {
		err = fs.ErrInvalid
	}
	return epoch, err
}
