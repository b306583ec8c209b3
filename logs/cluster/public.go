package cluster

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

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

// UpdatePublic brings the copy of the log below public/ in the bucket up to a signed checkpoint: tiles and contents first, the checkpoint last. Then
// it records in the store how far the copy is. Of the contents that the new entries and their manifests name, it deletes those that only withdrawn
// releases have by now. If the bucket has a larger checkpoint, the error is [ErrNewerPublished].
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
// checkpoint last. Unless p.Retain, it deletes those contents of the later entries that only withdrawn releases have by now. If the bucket has a
// larger checkpoint, the error is [ErrNewerPublished], and the rest was written.
func (p PublicCopy) Update(ctx context.Context, from int64, signed signing.Signed) error {
	s := newPublication(ctx, p)
	for _, t := range tlog.NewTiles(tileHeight, from, signed.Size) {
		for _, path := range tilePaths(t) {
			s.group.Go(func() error { return s.putLog(s.ctx, path) })
		}
	}
	err := s.startContents(from, signed.Size)
	if err = errors.Join(err, s.group.Wait()); err != nil {
		return err
	}
	for _, path := range keyPaths {
		if err := p.putLog(ctx, path); err != nil {
			return err
		}
	}
	return p.putCheckpoint(ctx, signed)
}

// Prune deletes from the bucket the contents that the entries from one index to another, exclusive, erase, unless the store has them again, its row
// of them is damaged, or a later entry erases them, too.
func (p PublicCopy) Prune(ctx context.Context, from, to int64) error {
	gone, stays := map[kvstore.Hash]struct{}{}, map[kvstore.Hash]struct{}{}
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
		erased := gone
		if e.Index >= to {
			erased = stays
		}
		for _, h := range list.Contents {
			erased[h] = struct{}{}
		}
	}
	s := newPublication(ctx, p)
	for h := range gone {
		if _, later := stays[h]; later {
			continue
		}
		s.group.Go(func() error {
			_, err := p.Store.Content(h)
			if errors.Is(err, kvstore.ErrNotFound) {
				err = p.Bucket.Delete(s.ctx, contentKey(h))
			}
			if errors.Is(err, kvstore.ErrCorrupt) {
				return nil // the store may have the content: the bucket keeps it
			}
			return err
		})
	}
	return s.group.Wait()
}

// newPublication returns the state of one update of public/ in the bucket. It starts no request yet. Those in its group run concurrently, at most
// showAtOnce, and end with ctx; the caller waits for the group.
func newPublication(ctx context.Context, p PublicCopy) *publication {
	s := &publication{PublicCopy: p, started: map[kvstore.Hash]struct{}{}}
	s.group, s.ctx = errgroup.WithContext(ctx)
	s.group.SetLimit(showAtOnce)
	return s
}

// setPublishedSize records in the store that public/ in the bucket has everything about the first size entries.
func (n *Node) setPublishedSize(size int64) error {
	return n.setMeta(shownKey, binary.BigEndian.AppendUint64(nil, uint64(size)))
}

// publishedSize returns how many entries public/ in the bucket has with everything that they name, as far as this store knows.
func (n *Node) publishedSize() (size int64, err error) {
	err = n.readNumbers(shownKey, &size)
	return size, err
}

// putCheckpoint puts a signed checkpoint into public/, in place of one that is not larger. If the one there is larger, the error is
// [ErrNewerPublished]. If another node changes it meanwhile, putCheckpoint compares again, up to three times: so a leader that was paused never
// overwrites a larger one.
func (p PublicCopy) putCheckpoint(ctx context.Context, signed signing.Signed) error {
	const key = publicPrefix + checkpointPath
	final := func(err error) bool { return !errors.Is(err, bucket.ErrExists) && !errors.Is(err, bucket.ErrChanged) }
	return retry.Transient(ctx, final, func(ctx context.Context) error {
		have, version, err := p.Bucket.Get(ctx, key, maxNote)
		switch {
		case errors.Is(err, bucket.ErrNotFound):
			_, err = p.Bucket.Create(ctx, key, signed.Note)
			return err
		case err != nil || bytes.Equal(have, signed.Note):
			return err
		}
		size, err := logs.CheckpointSize(have)
		if err != nil {
			return fmt.Errorf("%s: %s: %w", p.Bucket, key, err)
		}
		if size > signed.Size {
			return ErrNewerPublished
		}
		_, err = p.Bucket.Replace(ctx, key, signed.Note, version)
		return err
	})
}

// A publication is one bringing up to date of public/.
type publication struct {
	PublicCopy
	group   *errgroup.Group
	ctx     context.Context
	started map[kvstore.Hash]struct{} // contents that are brought up to date
}

// tilePaths returns the path of a tile of hashes and, on the lowest level, also that of the bundle of the entries that have these hashes.
func tilePaths(t tlog.Tile) []string {
	paths := []string{tiles.TilePath(t)}
	if t.L == 0 {
		paths = append(paths, tiles.EntriesPath(t.N, t.W))
	}
	return paths
}

// putLog puts what a Larder with this store serves at a path of the log, such as a tile, into the bucket.
func (p PublicCopy) putLog(ctx context.Context, path string) error {
	data, err := tiles.ReadLog(p.Store, path)
	if err != nil {
		return fmt.Errorf("the log of this node: %s: %w", path, err)
	}
	return p.Bucket.Put(ctx, publicPrefix+path, data)
}

// startContents starts a goroutine of the group for each content that the entries from one index to another, exclusive, and the manifests of their
// releases name, once for each. The goroutine calls updateContent. It calls Progress, if that is set, for each entry. If a goroutine of the group
// has failed, startContents ends with nil; the group has the error.
func (s *publication) startContents(from, to int64) error {
	start := func(h kvstore.Hash) {
		if _, ok := s.started[h]; !ok {
			s.started[h] = struct{}{}
			s.group.Go(func() error {
				_, err := s.updateContent(h)
				return err
			})
		}
	}
	for e, err := range logs.Entries(s.Store, from) {
		if err != nil || e.Index >= to || s.ctx.Err() != nil {
			return err
		}
		if s.Progress != nil {
			s.Progress(e.Index, to)
		}
		change, err := views.Load(s.Store, e)
		if err != nil {
			return err
		}
		for _, h := range e.Contents() {
			start(h)
		}
		if change.Manifest != nil {
			for _, f := range change.Manifest.Files {
				start(f.SHA256)
			}
		}
	}
	return nil
}

// updateContent deletes a content from public/ in the bucket, and returns true, if only withdrawn releases name it by now. Otherwise it puts the
// content's bytes there. For a backup (Retain) it deletes nothing, and puts only what the bucket lacks. A content that the store lacks is left out,
// unless a live release or an entry names it: then that is an error.
func (s *publication) updateContent(h kvstore.Hash) (deleted bool, err error) {
	standing, err := views.StandingOf(s.Store, h)
	switch {
	case err != nil:
		return false, err
	case s.Retain:
		_, _, err := s.Bucket.Get(s.ctx, contentKey(h), 0)
		if err == nil || errors.Is(err, bucket.ErrTooLarge) {
			return false, nil
		}
		if !errors.Is(err, bucket.ErrNotFound) {
			return false, err
		}
	case standing == views.NamedOnce:
		return true, s.Bucket.Delete(s.ctx, contentKey(h))
	}
	data, err := s.Store.Identity(h)
	if standing != views.NamedLive && errors.Is(err, kvstore.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return false, s.Bucket.Put(s.ctx, contentKey(h), data)
}

// contentKey returns the key of the object in the bucket that has a content below public/.
func contentKey(h kvstore.Hash) string { return publicPrefix + contentPath + h.String() }
