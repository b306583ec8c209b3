package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/mod/sumdb/tlog"
	"golang.org/x/sync/errgroup"

	"github.com/larder-cdn/larder/internal/retry"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/bucket"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/replication"
	"github.com/larder-cdn/larder/logs/signing"
	"github.com/larder-cdn/larder/logs/tiles"
	"github.com/larder-cdn/larder/logs/views"
)

// What is below public/ has the paths at which a Larder serves it, so that the bucket behind any web
// server is a mirror. Nothing else of a bucket may be exposed.
const (
	publicPrefix   = tiles.PublicPrefix
	contentPath    = "/content/"
	checkpointPath = tiles.Prefix + "checkpoint"
	maxNote        = 64 << 10
	showAtOnce     = 16
	tileHeight     = tiles.Height
)

// keyPaths have the keys of the log.
var keyPaths = []string{tiles.Prefix + "key", tiles.Prefix + "keys"}

// shownKey is the row of [kvstore.Meta] that says of how many entries public/ has all.
var shownKey = kvstore.Key("cluster", "shown")

// ErrShown says that the bucket shows a newer checkpoint already.
var ErrShown = errors.New("the bucket shows a newer checkpoint")

// Show brings public/ up to a signed checkpoint: tiles and contents first, the checkpoint last. It deletes the contents that
// only withdrawn releases have by now.
func (n *Node) Show(ctx context.Context, signed signing.Signed) error {
	n.showing.Lock()
	defer n.showing.Unlock()
	shown, err := n.shown()
	if err != nil {
		return err
	}
	s := &show{Node: n, kept: map[kvstore.Hash]struct{}{}}
	s.group, s.ctx = errgroup.WithContext(ctx)
	s.group.SetLimit(showAtOnce)
	for _, t := range tlog.NewTiles(tileHeight, shown, signed.Size) {
		for _, path := range tilePaths(t) {
			s.put(path, func() ([]byte, error) { return s.read(path) })
		}
	}
	err = s.contents(shown, signed.Size)
	if err = errors.Join(err, s.group.Wait()); err != nil {
		return err
	}
	for _, path := range keyPaths {
		data, err := s.read(path)
		if err == nil {
			err = n.Bucket.Put(ctx, publicPrefix+path, data)
		}
		if err != nil {
			return err
		}
	}
	if err := n.showCheckpoint(ctx, signed); err != nil {
		return err
	}
	return n.recordPublished(signed.Size)
}

func (n *Node) recordPublished(size int64) error {
	b := n.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, shownKey, binary.BigEndian.AppendUint64(nil, uint64(size)))
	return b.Commit()
}

// shown returns of how many entries public/ has all, as far as this store knows.
func (n *Node) shown() (int64, error) {
	row, err := n.Store.Get(kvstore.Meta, shownKey)
	if errors.Is(err, kvstore.ErrNotFound) {
		return 0, nil
	}
	if err == nil && len(row) != 8 {
		err = fmt.Errorf("cluster: the row that says what the bucket shows is malformed: %x", row)
	}
	if err != nil {
		return 0, err
	}
	return int64(binary.BigEndian.Uint64(row)), nil
}

// showCheckpoint puts a checkpoint in the place of a smaller one. A writer that was paused comes too
// late: what it has read is another version by then.
func (n *Node) showCheckpoint(ctx context.Context, signed signing.Signed) error {
	const key = publicPrefix + checkpointPath
	for attempt := 1; ; attempt++ {
		have, version, err := n.Bucket.Get(ctx, key, maxNote)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			_, err = n.Bucket.Create(ctx, key, signed.Note)
		case err != nil:
			return err
		case bytes.Equal(have, signed.Note):
			return nil
		default:
			size, bad := replication.CheckpointSize(have)
			if bad != nil {
				return fmt.Errorf("%s: %s: %w", n.Bucket, key, bad)
			}
			if size > signed.Size {
				return ErrShown
			}
			_, err = n.Bucket.Replace(ctx, key, signed.Note, version)
		}
		if !errors.Is(err, bucket.ErrExists) && !errors.Is(err, bucket.ErrChanged) || attempt == tries {
			return err
		}
		if err := retry.Sleep(ctx, retry.After(attempt, firstPause, longPause)); err != nil {
			return err
		}
	}
}

// A show is one bringing up to date of public/.
type show struct {
	*Node
	group *errgroup.Group
	ctx   context.Context
	kept  map[kvstore.Hash]struct{} // contents that are put
}

// put puts what fn returns, beside the others.
func (s *show) put(path string, fn func() ([]byte, error)) {
	s.group.Go(func() error {
		data, err := fn()
		if err != nil {
			return err
		}
		return s.Bucket.Put(s.ctx, publicPrefix+path, data)
	})
}

// tilePaths are where a tile is and, after it, the entries whose hashes it has.
func tilePaths(t tlog.Tile) []string {
	paths := []string{tiles.TilePath(t)}
	if t.L == 0 {
		paths = append(paths, tiles.EntriesPath(t.N, t.W))
	}
	return paths
}

// read returns what a Larder with this node's store serves at a path of the log.
func (s *show) read(path string) ([]byte, error) {
	return replication.OfStore(s.Store, "the log of this node").Get(s.ctx, path, tiles.Width*(2+logs.MaxEntry))
}

// contents shows what entries name, and takes away what no release is served with by now.
func (s *show) contents(from, to int64) error {
	gone := map[kvstore.Hash]struct{}{}
	for e, err := range logs.Entries(s.Store, from) {
		if err != nil || e.Index >= to || s.ctx.Err() != nil {
			return errors.Join(err, s.hide(gone, err == nil))
		}
		for _, h := range e.Contents() {
			s.content(h)
		}
		change, err := views.Load(s.Store, e)
		if err != nil {
			return err
		}
		if change.Manifest == nil {
			continue
		}
		v, err := views.LookupVersion(s.Store, e.Package, e.Version)
		if err != nil {
			return err
		}
		for _, f := range change.Manifest.Files {
			if v.Withdrawn != nil {
				gone[f.SHA256] = struct{}{}
			} else if e.Kind != logs.Withdrawn {
				s.content(f.SHA256)
			}
		}
	}
	return s.hide(gone, true)
}

func (s *show) content(h kvstore.Hash) {
	if _, ok := s.kept[h]; ok {
		return
	}
	s.kept[h] = struct{}{}
	s.put(contentPath+h.String(), func() ([]byte, error) { return s.Store.Identity(h) })
}

// hide takes away those contents that no release that is served has.
func (s *show) hide(gone map[kvstore.Hash]struct{}, sure bool) error {
	if len(gone) == 0 || !sure {
		return nil
	}
	for h := range gone {
		standing, err := views.StandingOf(s.Store, h)
		if err != nil {
			return err
		}
		if _, kept := s.kept[h]; kept || standing == views.NamedLive {
			continue
		}
		s.group.Go(func() error { return s.Bucket.Delete(s.ctx, publicPrefix+contentPath+h.String()) })
	}
	return nil
}

// How a bucket is requested that does not respond.
const (
	tries      = 3
	firstPause = 200 * time.Millisecond
	longPause  = 2 * time.Second
)
