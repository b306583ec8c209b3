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

// markUnclean stores a mark that says: if the process ends without [Publisher.Close], contents may be stored that no release
// names. If an earlier process has left this mark, markUnclean stores nothing and sets pb.leftovers, so that
// [Publisher.RemoveLeftovers] looks for such contents.
func (pb *Publisher) markUnclean() error {
	switch _, err := pb.store.Get(kvstore.Meta, uncleanKey); {
	case err == nil:
		pb.leftovers.Store(true)
		return nil
	case !errors.Is(err, kvstore.ErrNotFound):
		return err
	}
	return pb.store.WriteBatch(func(b *kvstore.Batch) error {
		b.Set(kvstore.Meta, uncleanKey, nil)
		return nil
	})
}

// markClean deletes the mark that markUnclean stored, so that the next process does not look for contents without a release. It
// keeps the mark while such contents may exist, whichever process left them.
func (pb *Publisher) markClean() error {
	if pb.leftovers.Load() {
		return nil
	}
	return pb.store.WriteBatch(func(b *kvstore.Batch) error {
		b.Delete(kvstore.Meta, uncleanKey)
		return nil
	})
}

// RemoveLeftovers deletes the contents that no release names, which interrupted and failed publications have left. It does
// nothing unless pb.leftovers says that such contents may exist. It spares contents that are pinned. After an error, also that of
// ctx, the next call tries again; it logs the error unless ctx was cancelled. A call waits while another one runs.
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
