package ingest

import (
	"context"
	"errors"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// uncleanKey is the row of the Meta namespace that is there while a bot is at
// work, and stays where it ended without tidying up.
var uncleanKey = kvstore.Key("bot unclean")

// markUnclean stores a mark that contents without a release may be left if the process ends. If an earlier process has left its mark, it
// sets pb.leftovers, so that [Publisher.RemoveLeftovers] looks for them.
func (pb *Publisher) markUnclean() error {
	switch _, err := pb.store.Get(kvstore.Meta, uncleanKey); {
	case err == nil:
		pb.leftovers.Store(true)
		return nil
	case !errors.Is(err, kvstore.ErrNotFound):
		return err
	}
	batch := pb.store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Meta, uncleanKey, nil)
	return batch.Commit()
}

// markClean deletes the mark that markUnclean stored, unless contents are left over.
func (pb *Publisher) markClean() error {
	if pb.leftovers.Load() {
		return nil
	}
	batch := pb.store.NewBatch()
	defer batch.Close()
	batch.Delete(kvstore.Meta, uncleanKey)
	return batch.Commit()
}

// RemoveLeftovers deletes the contents of interrupted and failed releases, which no release names. It does nothing unless such contents may
// exist, and logs errors. After an error the next call tries again.
func (pb *Publisher) RemoveLeftovers(ctx context.Context) {
	pb.collects.Lock()
	defer pb.collects.Unlock()
	if !pb.leftovers.Swap(false) {
		return
	}
	var needed map[kvstore.Hash]struct{}
	var unread error
	n, bytes, err := pb.store.CollectOrphans(ctx, func(h kvstore.Hash) bool {
		if needed == nil {
			// CollectOrphans spares contents that were pinned since it was called: those of releases
			// that are published or restored while the log is read here.
			needed = make(map[kvstore.Hash]struct{})
			unread = views.Contents(ctx, pb.store, pb.store, func(h kvstore.Hash) { needed[h] = struct{}{} })
		}
		_, ok := needed[h]
		return ok || unread != nil
	})
	if n > 0 {
		pb.logger.Info("removed what interrupted releases left", "contents", n, "bytes", bytes)
	}
	err = errors.Join(unread, err)
	if err != nil {
		pb.leftovers.Store(true)
		if !errors.Is(err, context.Canceled) {
			pb.logger.Warn("couldn't remove what interrupted releases left", "err", err)
		}
	}
}
