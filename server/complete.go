package server

import (
	"errors"
	"log/slog"

	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
)

// The sizes of files whose gzip encoding is made when they are requested, in bytes.
const (
	completedAtOnce = 2 << 20  // while the first client waits: some 60 ms at most
	completedLater  = 64 << 20 // in the background; those that are larger stay as they are
)

// A completer makes the gzip form of files that are kept in Brotli alone, as a mirror takes them over: nearly every
// client takes Brotli, and making it for all files took a mirror longer than all else that it does with them.
type completer struct {
	store  *kvstore.Store
	slot   chan struct{} // held while one is made, so that a flood of requests has one processor at most
	logger *slog.Logger
}

// addGzip stores the gzip encoding of the content h if have says that it is stored in Brotli only and not recompressed, and returns the content with
// it. It encodes a content above 2 MiB in the background, and none above 64 MiB. While another content is being encoded it returns have: the next
// read of the asset, a minute later, tries again.
func (c *completer) addGzip(h kvstore.Hash, have kvstore.Content) kvstore.Content {
	_, brotli := have.Find(coding.Brotli)
	_, gzip := have.Find(coding.Gzip)
	if !brotli || gzip || have.Squeezed || have.Size > completedLater {
		return have
	}
	select {
	case c.slot <- struct{}{}:
	default:
		return have
	}
	if have.Size > completedAtOnce {
		go c.makeGzip(h)
		return have
	}
	c.makeGzip(h)
	if now, err := c.store.Content(h); err == nil {
		return now
	}
	return have
}

// makeGzip stores the gzip encoding of a content if it saves enough bytes, and releases c.slot, which the caller has acquired. It ignores a content
// that cannot be read or has been removed, and logs other errors at level DEBUG.
func (c *completer) makeGzip(h kvstore.Hash) {
	defer func() { <-c.slot }()
	data, err := c.store.Identity(h)
	if err != nil {
		return
	}
	quick, err := coding.Encode(coding.Gzip, coding.Quick, data)
	if err == nil && coding.Worthwhile(len(data), len(quick)) {
		err = c.store.ImproveContent(h, int64(len(data)), false, []kvstore.Coded{{Coding: coding.Gzip, Bytes: quick}})
	}
	if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
		c.logger.Debug("server: couldn't make a gzip form", "content", h, "err", err)
	}
}
