package kvstore

import (
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options tunes a store. The zero value is what Larder runs with.
type Options struct {
	// CacheBytes bounds the memory that keeps index blocks read from disk.
	// Default 64 MiB. Lookups of keys that no longer fit pay a read each.
	CacheBytes int64
	// MemTableBytes is how much is gathered in memory before it is written
	// as a sorted table. Default 64 MiB. Up to four times as much is held.
	MemTableBytes int64
	// MinFreeBytes is the free space on the disk below which writes are
	// refused with [ErrDiskFull]. Default 256 MiB; negative never refuses.
	MinFreeBytes int64
	// ReadOnly refuses every write. The folder must hold a store.
	ReadOnly bool
	// Logger gets what happens in the background. Default: nothing is logged.
	Logger *slog.Logger
	// FS is the file system the folder is in. Default: the real one.
	FS vfs.FS
}

func (o *Options) defaults() {
	if o.CacheBytes == 0 {
		o.CacheBytes = 64 << 20
	}
	if o.MemTableBytes == 0 {
		o.MemTableBytes = 64 << 20
	}
	if o.MinFreeBytes == 0 {
		o.MinFreeBytes = 256 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.Default
	}
}
