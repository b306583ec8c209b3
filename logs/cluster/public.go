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

// The objects below public/ have the paths at which a Larder serves them, so that a web server in front of the bucket is a
// mirror. Nothing else of a bucket may be exposed.
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

// UpdatePublic brings the copy of the log below public/ in the bucket up to a signed checkpoint: tiles and contents first, the checkpoint last. It
// deletes the contents that only withdrawn releases have by now. If the bucket has a larger checkpoint, the error is [ErrNewerPublished].
func (n *Node) UpdatePublic(ctx context.Context, signed signing.Signed) error {
	n.showing.Lock()
	defer n.showing.Unlock()
	shown, err := n.publishedSize()
	if err != nil {
		return err
	}
	if err := n.publicCopy().Update(ctx, shown, signed); err != nil {
		return err
	}
	return n.setPublishedSize(signed.Size)
}

// publicCopy returns the copy of the log that the node publishes in the cluster's bucket, without changing it.
func (n *Node) publicCopy() PublicCopy { return PublicCopy{Store: n.Store, Bucket: n.Bucket} }

// A PublicCopy is a signed log with its contents in a bucket, below public/, with the paths at which a Larder serves them.
type PublicCopy struct {
	// Store has the log.
	Store  *kvstore.Store
	Bucket bucket.Bucket
	// Retain, for a backup, has the contents of withdrawn releases too, and those of erased ones until [PublicCopy.Prune]. It does not send a
	// content again that the bucket has.
	Retain bool
	// Progress, if set, is called with the number of entries whose contents are on their way, from one goroutine.
	Progress func(entries, of int64)
}

// Update brings a copy in the bucket, which has everything about the first from entries, up to a signed checkpoint: tiles and contents first, the
// checkpoint last. Unless p.Retain, it deletes the contents that only withdrawn releases have by now.
func (p PublicCopy) Update(ctx context.Context, from int64, signed signing.Signed) error {
	s := newPublication(ctx, p)
	for _, t := range tlog.NewTiles(tileHeight, from, signed.Size) {
		for _, path := range tilePaths(t) {
			s.start(path, func() ([]byte, error) { return s.readLog(path) })
		}
	}
	err := s.putContents(from, signed.Size)
	if err = errors.Join(err, s.group.Wait()); err != nil {
		return err
	}
	for _, path := range keyPaths {
		data, err := s.readLog(path)
		if err == nil {
			err = p.Bucket.Put(ctx, publicPrefix+path, data)
		}
		if err != nil {
			return err
		}
	}
	return p.putCheckpoint(ctx, signed)
}

// Prune deletes from the bucket the contents that the entries from one index to another, exclusive, erase, unless the store has them again or a later
// entry erases them, too.
func (p PublicCopy) Prune(ctx context.Context, from, to int64) error {
	s := newPublication(ctx, p)
	gone := map[kvstore.Hash]struct{}{}
	for e, err := range logs.Entries(p.Store, from) {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if e.Kind != logs.Erased {
			continue
		}
		list, err := logs.ReadErasure(p.Store, e.Erasure)
		if err != nil {
			return err
		}
		for _, h := range list.Contents {
			if e.Index >= to {
				s.put[h] = struct{}{} // it stays
			} else {
				gone[h] = struct{}{}
			}
		}
	}
	for h := range gone {
		if _, err := p.Store.Identity(h); !errors.Is(err, kvstore.ErrNotFound) {
			delete(gone, h)
		}
	}
	return errors.Join(s.deleteContents(gone), s.group.Wait())
}

// newPublication returns a publication, whose requests run concurrently, at most showAtOnce, and end with ctx. The caller waits for its group.
func newPublication(ctx context.Context, p PublicCopy) *publication {
	s := &publication{PublicCopy: p, put: map[kvstore.Hash]struct{}{}}
	s.group, s.ctx = errgroup.WithContext(ctx)
	s.group.SetLimit(showAtOnce)
	return s
}

// setPublishedSize records in the store that public/ in the bucket has everything about the first size entries.
func (n *Node) setPublishedSize(size int64) error {
	b := n.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Meta, shownKey, binary.BigEndian.AppendUint64(nil, uint64(size)))
	return b.Commit()
}

// publishedSize returns how many entries public/ in the bucket has with everything that they name, as far as this store knows.
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

// putCheckpoint replaces the checkpoint in public/ by a signed one that is not smaller. If the one there is larger, the error is [ErrNewerPublished].
// A leader that was paused fails, because the object has another version by then.
func (p PublicCopy) putCheckpoint(ctx context.Context, signed signing.Signed) error {
	const key = publicPrefix + checkpointPath
	for attempt := 1; ; attempt++ {
		have, version, err := p.Bucket.Get(ctx, key, maxNote)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			_, err = p.Bucket.Create(ctx, key, signed.Note)
		case err != nil:
			return err
		case bytes.Equal(have, signed.Note):
			return nil
		default:
			size, bad := signing.CheckpointSize(have)
			if bad != nil {
				return fmt.Errorf("%s: %s: %w", p.Bucket, key, bad)
			}
			if size > signed.Size {
				return ErrNewerPublished
			}
			_, err = p.Bucket.Replace(ctx, key, signed.Note, version)
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
	PublicCopy
	group *errgroup.Group
	ctx   context.Context
	put   map[kvstore.Hash]struct{} // contents that are put, or stay
}

// start puts the bytes that fn returns into the bucket at a path below public/, in a goroutine of the group.
func (s *publication) start(path string, fn func() ([]byte, error)) {
	s.group.Go(func() error {
		data, err := fn()
		if err != nil {
			return err
		}
		return s.Bucket.Put(s.ctx, publicPrefix+path, data)
	})
}

// tilePaths returns the path of a tile of hashes and, on the lowest level, also that of the bundle of the entries that have these hashes.
func tilePaths(t tlog.Tile) []string {
	paths := []string{tiles.TilePath(t)}
	if t.L == 0 {
		paths = append(paths, tiles.EntriesPath(t.N, t.W))
	}
	return paths
}

// readLog returns what a Larder with this node's store serves at a path of the log, such as a tile.
func (s *publication) readLog(path string) ([]byte, error) {
	data, err := tiles.ReadLog(s.Store, path)
	if err != nil {
		return nil, fmt.Errorf("the log of this node: %s: %w", path, err)
	}
	return data, nil
}

// putContents starts to put the contents that the entries from one index to another, exclusive, name, and to delete those that no live release has by
// now.
func (s *publication) putContents(from, to int64) error {
	gone := map[kvstore.Hash]struct{}{}
	for e, err := range logs.Entries(s.Store, from) {
		if err != nil || e.Index >= to || s.ctx.Err() != nil {
			if err == nil && !s.Retain {
				err = s.deleteContents(gone)
			}
			return err
		}
		if s.Progress != nil {
			s.Progress(e.Index, to)
		}
		for _, h := range e.Contents() {
			s.startContent(h, false)
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
			switch {
			case s.Retain:
				s.startContent(f.SHA256, v.Withdrawn != nil)
			case v.Withdrawn != nil:
				gone[f.SHA256] = struct{}{}
			case e.Kind != logs.Withdrawn:
				s.startContent(f.SHA256, false)
			}
		}
	}
	if s.Retain {
		return nil
	}
	return s.deleteContents(gone)
}

// startContent puts a content into public/, in a goroutine of the group, unless that was started before or the bucket of a backup has it. If
// mayBeErased is set, a content that the store does not have is left out; otherwise it is an error.
func (s *publication) startContent(h kvstore.Hash, mayBeErased bool) {
	if _, ok := s.put[h]; ok {
		return
	}
	s.put[h] = struct{}{}
	path := contentPath + h.String()
	s.group.Go(func() error {
		if s.Retain {
			_, _, err := s.Bucket.Get(s.ctx, publicPrefix+path, 0)
			if err == nil || errors.Is(err, bucket.ErrTooLarge) {
				return nil
			}
			if !errors.Is(err, bucket.ErrNotFound) {
				return err
			}
		}
		data, err := s.Store.Identity(h)
		if mayBeErased && errors.Is(err, kvstore.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.Bucket.Put(s.ctx, publicPrefix+path, data)
	})
}

// deleteContents starts to delete from public/ those contents in gone that no live release has and that this publication has not put.
func (s *publication) deleteContents(gone map[kvstore.Hash]struct{}) error {
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
