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

// collect removes the contents that interrupted releases left, where an earlier
// process ended in the middle of one. They are harmless but take space.
func (b *Bot) collect(ctx context.Context) {
	if !b.interrupted {
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
	if err != nil && !errors.Is(err, context.Canceled) {
		b.logger.Warn("couldn't remove what interrupted releases left", "err", err)
	}
}

// wasInterrupted reports whether an earlier process ended in the middle of a
// release.
func wasInterrupted(r kvstore.Reader) (bool, error) {
	states, err := views.States(r, "")
	if err != nil {
		return false, err
	}
	for _, s := range states {
		if s.Kind == views.Processing {
			return true, nil
		}
	}
	return false, nil
}
