package kvstore

import (
	"errors"
	"slices"
	"strings"
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

// plain returns an error with err's text on one line, without the marker that
// Pebble joins to it, and none of the stack traces that a log that formats it
// at length would get. It wraps err.
func plain(err error) error {
	if err == nil {
		return nil
	}
	return plainError{err}
}

type plainError struct{ cause error }

func (e plainError) Error() string {
	lines := strings.FieldsFunc(e.cause.Error(), func(r rune) bool { return r == '\n' })
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "<corruption detail carrier>" })
	return strings.Join(lines, "; ")
}

func (e plainError) Unwrap() error { return e.cause }
