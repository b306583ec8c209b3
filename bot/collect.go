package bot

import (
	"context"
	"errors"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// uncleanKey is the row of the Meta namespace that is there while a bot is at
// work, and stays where it ended without tidying up.
var uncleanKey = kvstore.Key("bot unclean")

// begin notes that contents may be left behind from here on, and whether an
// earlier bot left some.
func (b *Bot) begin() error {
	switch _, err := b.store.Get(kvstore.Meta, uncleanKey); {
	case err == nil:
		b.leftovers.Store(true)
		return nil
	case !errors.Is(err, kvstore.ErrNotFound):
		return err
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	batch.Set(kvstore.Meta, uncleanKey, nil)
	return batch.Commit()
}

// end is begin's counterpart.
func (b *Bot) end() error {
	if b.leftovers.Load() {
		return nil
	}
	batch := b.store.NewBatch()
	defer batch.Close()
	batch.Delete(kvstore.Meta, uncleanKey)
	return batch.Commit()
}

// collect removes the contents that interrupted and failed releases left. They
// are harmless but take space.
func (b *Bot) collect(ctx context.Context) {
	b.collects.Lock()
	defer b.collects.Unlock()
	if !b.leftovers.Swap(false) {
		return
	}
	var needed map[kvstore.Hash]struct{}
	var unread error
	n, bytes, err := b.store.CollectOrphans(ctx, func(h kvstore.Hash) bool {
		if needed == nil {
			// What is pinned since CollectOrphans was called is spared, so whatever
			// is published, restored or noted while the log is read here is too.
			needed = make(map[kvstore.Hash]struct{})
			unread = views.Contents(ctx, b.store, b.store, func(h kvstore.Hash) { needed[h] = struct{}{} })
		}
		_, ok := needed[h]
		return ok || unread != nil
	})
	if n > 0 {
		b.logger.Info("removed what interrupted releases left", "contents", n, "bytes", bytes)
	}
	err = errors.Join(unread, err)
	if err != nil {
		b.leftovers.Store(true)
		if !errors.Is(err, context.Canceled) {
			b.logger.Warn("couldn't remove what interrupted releases left", "err", err)
		}
	}
}
