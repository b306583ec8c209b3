package kvstore

import "errors"

// The errors callers decide on. They come wrapped with what they concern.
var (
	ErrNotFound = errors.New("not found")
	ErrLocked   = errors.New("the store is locked")
	ErrDiskFull = errors.New("the disk is full")
	ErrCorrupt  = errors.New("the store is damaged")
)
