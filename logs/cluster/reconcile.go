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

// Reconcile compares public/ with the log, as far as [Node.Show] has brought it, and removes the differences. Contents are compared by their sizes: a client that reads one checks its hash.
func (n *Node) Reconcile(ctx context.Context) (Reconciled, error) {
	m := &reconciliation{show: show{Node: n, ctx: ctx}}
	err := m.tiles()
	if err == nil {
		err = m.keys()
	}
	if err == nil {
		err = m.contents(reconciledAtOnce)
	}
	return m.done, err
}

type reconciliation struct {
	show
	done Reconciled
}

// alone does what changes an object while no Show runs, whose changes may be newer.
func (m *reconciliation) alone(do func() error) error {
	m.showing.Lock()
	defer m.showing.Unlock()
	if !m.Leads() {
		return m.notWriter()
	}
	return do()
}

func (m *reconciliation) add(path string, read func() ([]byte, error)) error {
	data, err := read()
	if err == nil {
		err = m.Bucket.Put(m.ctx, publicPrefix+path, data)
	}
	if err == nil {
		m.done.Added++
	}
	return err
}

// mostPartial bounds the partial tiles that are removed at once; the next Reconcile goes on.
const mostPartial = 10_000

// tiles adds those that the shown log lacks, and removes partial ones that full ones have replaced. They are the same whichever
// node puts them.
func (m *reconciliation) tiles() error {
	shown, err := m.shown()
	if err != nil {
		return err
	}
	missing := map[string]int64{} // to their sizes, 0 where that is not known
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
		if err := m.alone(func() error { return m.add(path, func() ([]byte, error) { return m.read(path) }) }); err != nil {
			return err
		}
	}
	for _, key := range old {
		if err := m.alone(func() error { return m.Bucket.Delete(m.ctx, key) }); err != nil {
			return err
		}
		m.done.Partial++
	}
	return nil
}

// keys puts the files of the log's keys as they are.
func (m *reconciliation) keys() error {
	for _, path := range keyPaths {
		err := m.alone(func() error {
			want, err := m.read(path)
			if err != nil {
				return err
			}
			have, _, err := m.Bucket.Get(m.ctx, publicPrefix+path, maxNote)
			if err == nil && bytes.Equal(have, want) || err != nil && !errors.Is(err, bucket.ErrNotFound) && !errors.Is(err, bucket.ErrTooLarge) {
				return err
			}
			return m.add(path, func() ([]byte, error) { return want, nil })
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reconciledAtOnce is how many listed contents are held against the store at once.
const reconciledAtOnce = 1000

// contents goes over both sides in the order of their hashes, so many at once.
func (m *reconciliation) contents(atOnce int) error {
	listed := map[kvstore.Hash]int64{}
	var from []byte
	for o, err := range m.Bucket.List(m.ctx, publicPrefix+contentPath, "") {
		if err != nil {
			return err
		}
		h, err := kvstore.ParseHash(strings.TrimPrefix(o.Key, publicPrefix+contentPath))
		if err != nil || publicPrefix+contentPath+h.String() != o.Key {
			continue // none of ours
		}
		listed[h] = o.Size
		if len(listed) < atOnce {
			continue
		}
		to := append(h[:], 0)
		if err := m.compare(listed, kvstore.Range{From: from, To: to}); err != nil {
			return err
		}
		from = to
		clear(listed)
	}
	return m.compare(listed, kvstore.Range{From: from})
}

// compare holds listed contents, and their sizes, against those that the store has in a range.
func (m *reconciliation) compare(listed map[kvstore.Hash]int64, r kvstore.Range) error {
	var wrong []kvstore.Hash
	for item, err := range m.Store.Scan(kvstore.Contents, r) {
		if err != nil {
			return err
		}
		if m.ctx.Err() != nil {
			return m.ctx.Err()
		}
		h := kvstore.Hash(item.Key)
		size, there := listed[h]
		delete(listed, h)
		if ok, err := m.right(h, size, there); err != nil {
			return err
		} else if !ok {
			wrong = append(wrong, h)
		}
	}
	for h, size := range listed { // not in the store
		if ok, err := m.right(h, size, true); err != nil {
			return err
		} else if !ok {
			wrong = append(wrong, h)
		}
	}
	for _, h := range wrong {
		if err := m.alone(func() error { return m.correct(h) }); err != nil {
			return err
		}
	}
	return nil
}

// right reports whether public/ has a content as it should. What nothing names may be newer than this node knows.
func (m *reconciliation) right(h kvstore.Hash, size int64, there bool) (bool, error) {
	standing, err := views.StandingOf(m.Store, h)
	switch {
	case err != nil || standing == views.Unnamed:
		return true, err
	case standing == views.NamedOnce:
		return !there, nil
	}
	content, err := m.Store.Content(h)
	if errors.Is(err, kvstore.ErrNotFound) {
		return true, nil // fsck tells
	}
	return there && size == content.Size, err
}

// correct has public/ have a content as it should by now.
func (m *reconciliation) correct(h kvstore.Hash) error {
	standing, err := views.StandingOf(m.Store, h)
	switch {
	case err != nil:
		return err
	case standing == views.NamedLive:
		return m.add(contentPath+h.String(), func() ([]byte, error) { return m.Store.Identity(h) })
	case standing == views.NamedOnce:
		m.done.Removed++
		return m.Bucket.Delete(m.ctx, publicPrefix+contentPath+h.String())
	}
	return nil
}

// Rows of [kvstore.Meta] about packs.
var (
	// packsKey is there where every pack that a commit of the bucket names has a row.
	packsKey  = kvstore.Key("cluster", "packs")
	packNames = kvstore.Prefix("cluster", "pack")
)

func packRow(key string) []byte { return append(packNames[:len(packNames):len(packNames)], key...) }

// CollectPacks removes the packs of earlier epochs that no commit names, and returns how many there were and their bytes.
// This node's first commit keeps those epochs' nodes from landing any more, and it has applied all that they did land.
func (n *Node) CollectPacks(ctx context.Context) (packs int, size int64, err error) {
	epoch, leads := n.epoch()
	if !leads {
		return 0, 0, n.notWriter()
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

// packEpoch returns the epoch in a pack's key.
func packEpoch(key string) (int64, error) {
	text, _, _ := strings.Cut(strings.TrimPrefix(key, "pack/"), "/")
	epoch, err := strconv.ParseInt(text, 10, 64)
	if err == nil && !strings.HasPrefix(key, packPrefix(epoch)) {
		err = fs.ErrInvalid
	}
	return epoch, err
}
