// Package bucket keeps objects where several machines reach them: in an object store that speaks
// S3's API, or in a folder that processes of one machine share.
//
// What it guarantees: of several writers that create one object, or replace one version of it, one
// succeeds, and the others get [ErrExists] or [ErrChanged]. [Probe] finds out whether a store keeps
// that. An object appears whole or not at all.
//
// What it does not: a write that fails with any other error may have happened, or happen later. Only
// the caller can find that out, by reading the object and trying the same write again. So this package
// tries nothing twice.
//
// It must not know what the objects are for.
package bucket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// Errors that callers decide on. Any other error of a write leaves open whether it happened.
var (
	ErrNotFound = errors.New("there is no such object")
	ErrExists   = errors.New("the object is there already")
	ErrChanged  = errors.New("the object is another version by now")
	ErrTooLarge = errors.New("the object is larger than allowed")
)

// errBusy is what a store may say instead of deciding between writers of one object.
var errBusy = errors.New("the object is being written by another client")

// A Version names the state of an object between two writes. Callers only compare versions and pass them back. The
// version "" is none.
type Version string

// An Object is an element of a listing.
type Object struct {
	Key  string
	Size int64
}

// MaxKey bounds a key in bytes, with what the bucket puts before it.
const MaxKey = 900

// A Bucket holds objects. It is safe for concurrent use.
//
// A key is a path without a leading slash, whose parts do not begin with a dot, of letters,
// digits and the characters ".", "-", "_" and "=".
type Bucket interface {
	// String returns what the bucket is called in messages.
	String() string
	// Create creates an object and returns its version. If the object exists, the error is ErrExists.
	Create(ctx context.Context, key string, data []byte) (Version, error)
	// Replace replaces an object that still has the version old by data, and returns the new version. If it has another version or is gone, the error
	// is ErrChanged.
	Replace(ctx context.Context, key string, data []byte, old Version) (Version, error)
	// Put creates or replaces an object, whatever its version.
	Put(ctx context.Context, key string, data []byte) error
	// Get returns an object of up to most bytes and its version, or ErrNotFound, or ErrTooLarge.
	Get(ctx context.Context, key string, most int64) ([]byte, Version, error)
	// GetOther is Get unless the object is of the version known: then it returns nil data, that version, and no error. With
	// "" for known it is Get.
	//
	// A store that keeps versions apart from bytes, as versitygw does in a sidecar folder, may respond to a Get that a write
	// overtakes with the old bytes and the new version. A caller that sends this version later does not get the new bytes.
	GetOther(ctx context.Context, key string, most int64, known Version) ([]byte, Version, error)
	// List iterates over the objects whose keys begin with prefix and come after the key after, or over all with
	// the prefix if that is "", in the order of the keys' bytes. An error is the last thing it yields, with a zero Object.
	List(ctx context.Context, prefix, after string) iter.Seq2[Object, error]
	// Delete removes an object, whatever its version. It returns nil if the object does not exist.
	Delete(ctx context.Context, key string) error
}

// checkKey returns an error if key is not a valid key of an object: it is empty or has over [MaxKey] bytes, or a part of it is empty, begins with a
// dot, as one that would lead out of a bucket's folder, or has a character that keys cannot have.
func checkKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fmt.Errorf("%q cannot be the key of an object", key)
	}
	for part := range strings.SplitSeq(key, "/") {
		if part == "" || part[0] == '.' || strings.ContainsFunc(part, isInvalidRune) {
			return fmt.Errorf("%q cannot be the key of an object", key)
		}
	}
	return nil
}

// isInvalidRune reports whether a key cannot have this character.
func isInvalidRune(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(".-_=", r))
}

// objectError wraps err with the names of the bucket and the object; it returns nil for nil.
func objectError(b Bucket, key string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: object %s: %w", b, key, err)
}

// readUpTo reads r to its end and returns the bytes. If these are more than most, it stops, and the error is [ErrTooLarge]. With an error of r, it
// returns the bytes before that too.
func readUpTo(r io.Reader, most int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, most+1))
	if err == nil && int64(len(data)) > most {
		return nil, ErrTooLarge
	}
	return data, err
}
