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

// ErrNewerPublished says that the bucket shows a newer checkpoint already.
var ErrNewerPublished = errors.New("the bucket shows a newer checkpoint")

// UpdatePublic brings public/ up to a signed checkpoint: tiles and contents first, the checkpoint last. It deletes the contents that only
// withdrawn releases have by now.
func (n *Node) UpdatePublic(ctx context.Context, signed signing.Signed) error {
	n.showing.Lock()
	defer n.showing.Unlock()
	shown, err := n.publishedSize()
	if err != nil {
		return err
	}
	s := &publication{Node: n, put: map[kvstore.Hash]struct{}{}}
	s.group, s.ctx = errgroup.WithContext(ctx)
	s.group.SetLimit(showAtOnce)
	for _, t := range tlog.NewTiles(tileHeight, shown, signed.Size) {
		for _, path := range tilePaths(t) {
			s.start(path, func() ([]byte, error) { return s.readLog(path) })
		}
	}
	err = s.putContents(shown, signed.Size)
	if err = errors.Join(err, s.group.Wait()); err != nil {
		return err
	}
	for _, path := range keyPaths {
		data, err := s.readLog(path)
		if err == nil {
			err = n.Bucket.Put(ctx, publicPrefix+path, data)
		}
		if err != nil {
			return err
		}
	}
	if err := n.putCheckpoint(ctx, signed); err != nil {
		return err
	}
	return n.setPublishedSize(signed.Size)
}

// setPublishedSize records in the store how many entries public/ has.
func (n *Node) setPublishedSize(size int64) error {
	b := n.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, shownKey, binary.BigEndian.AppendUint64(nil, uint64(size)))
	return b.Commit()
}

// publishedSize returns how many entries public/ has with everything that they name, as far as this store knows.
func (n *Node) publishedSize() (int64, error) {
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

// putCheckpoint replaces the checkpoint in public/ by a larger one. If the one there is larger, the error is [ErrNewerPublished]. A leader
// that was paused fails, because the object has another version by then.
func (n *Node) putCheckpoint(ctx context.Context, signed signing.Signed) error {
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
			size, bad := signing.CheckpointSize(have)
			if bad != nil {
				return fmt.Errorf("%s: %s: %w", n.Bucket, key, bad)
			}
			if size > signed.Size {
				return ErrNewerPublished
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

// A publication is one bringing up to date of public/.
type publication struct {
	*Node
	group *errgroup.Group
	ctx   context.Context
	put   map[kvstore.Hash]struct{} // contents that are put
}

// start puts the bytes that fn returns at a path below public/, concurrently.
func (s *publication) start(path string, fn func() ([]byte, error)) {
	s.group.Go(func() error {
		data, err := fn()
		if err != nil {
			return err
		}
		return s.Bucket.Put(s.ctx, publicPrefix+path, data)
	})
}

// tilePaths returns the path of a tile and, on the lowest level, that of the bundle of entries with the same hashes.
func tilePaths(t tlog.Tile) []string {
	paths := []string{tiles.TilePath(t)}
	if t.L == 0 {
		paths = append(paths, tiles.EntriesPath(t.N, t.W))
	}
	return paths
}

// readLog returns what a Larder with this node's store serves at a path of the log.
func (s *publication) readLog(path string) ([]byte, error) {
	data, err := tiles.ReadLog(s.Store, path)
	if err != nil {
		return nil, fmt.Errorf("the log of this node: %s: %w", path, err)
	}
	return data, nil
}

// putContents puts the contents that the entries from one index to another name, and deletes those that no live release has by now.
func (s *publication) putContents(from, to int64) error {
	gone := map[kvstore.Hash]struct{}{}
	for e, err := range logs.Entries(s.Store, from) {
		if err != nil || e.Index >= to || s.ctx.Err() != nil {
			return errors.Join(err, s.deleteContents(gone, err == nil))
		}
		for _, h := range e.Contents() {
			s.startContent(h)
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
				s.startContent(f.SHA256)
			}
		}
	}
	return s.deleteContents(gone, true)
}

// startContent puts a content, concurrently, unless that was started before.
func (s *publication) startContent(h kvstore.Hash) {
	if _, ok := s.put[h]; ok {
		return
	}
	s.put[h] = struct{}{}
	s.start(contentPath+h.String(), func() ([]byte, error) { return s.Store.Identity(h) })
}

// deleteContents deletes the contents in gone that no live release has. It does nothing unless sure.
func (s *publication) deleteContents(gone map[kvstore.Hash]struct{}, sure bool) error {
	if len(gone) == 0 || !sure {
		return nil
	}
	for h := range gone {
		standing, err := views.StandingOf(s.Store, h)
		if err != nil {
			return err
		}
		if _, kept := s.put[h]; kept || standing == views.NamedLive {
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
