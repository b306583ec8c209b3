package bot

import (
	"context"
	"errors"
	"sync"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// A liveSet holds the contents that the log names.
type liveSet struct {
	mu     sync.Mutex
	hashes map[kvstore.Hash]struct{}
}

func (l *liveSet) add(h kvstore.Hash) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hashes[h] = struct{}{}
}

func (l *liveSet) has(h kvstore.Hash) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.hashes[h]
	return ok
}

// spare keeps a content from a collection that may be running. Whoever publishes
// calls it before the pin on the content ends.
func (b *Bot) spare(h kvstore.Hash) {
	if live := b.collecting.Load(); live != nil {
		live.add(h)
	}
}

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
	// From here on publications report what they name, so what the log does not
	// yet say while it is being read below is in the set all the same.
	live := &liveSet{hashes: make(map[kvstore.Hash]struct{})}
	b.collecting.Store(live)
	defer b.collecting.Store(nil)
	err := views.Contents(ctx, b.store, b.store, live.add)
	if err == nil {
		var n int
		var bytes int64
		n, bytes, err = b.store.CollectOrphans(ctx, live.has)
		if n > 0 {
			b.logger.Info("removed what interrupted releases left", "contents", n, "bytes", bytes)
		}
	}
	if err != nil {
		b.leftovers.Store(true)
		if !errors.Is(err, context.Canceled) {
			b.logger.Warn("couldn't remove what interrupted releases left", "err", err)
		}
	}
}
