package kvstore

import (
	"errors"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// The errors that callers decide on. They come wrapped with what they concern.
var (
	// ErrNotFound says that a row, a content or a coding of it isn't stored.
	ErrNotFound = errors.New("not found")
	// ErrLocked says that another process has the folder open.
	ErrLocked = errors.New("the store is locked")
	// ErrDiskFull says that the disk has no room for a write.
	ErrDiskFull = errors.New("the disk is full")
	// ErrCorrupt says that what is on the disk is not what was written there.
	ErrCorrupt = errors.New("the store is damaged")
)

// noSpace reports whether err says that the disk, or the user's share of it,
// is used up.
func noSpace(err error) bool {
	return vfs.IsNoSpaceError(err) || errors.Is(err, syscall.EDQUOT)
}
