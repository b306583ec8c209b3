package configstore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/kvstore/bucket"
)

// MaxStored bounds a stored version in bytes. The content is base64 in it.
const MaxStored = 64 << 20

// Limits of numbers. Changes count up by one, so an object beyond one of them is no version.
const (
	maxNumber = 1 << 53
	maxGap    = 1 << 32 // from a version to the next one
)

// A CorruptError reports a stored version that cannot be read: it was changed, truncated, or sealed with another key.
type CorruptError struct {
	Where string // the object
	Err   error
}

func (e *CorruptError) Error() string { return fmt.Sprintf("%s is damaged: %v", e.Where, e.Err) }

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// A Sealer encodes versions before they are stored and decodes them afterwards. Open must fail for bytes that Seal has not
// returned. It may accept those of another number, as [Checksum] does, because the number is also in the version.
type Sealer interface {
	// Seal returns data, the encoded version of that number, as it is stored.
	Seal(number int64, data []byte) ([]byte, error)
	// Open returns the data that Seal received for stored, or an error if stored is not the result of Seal.
	Open(number int64, stored []byte) ([]byte, error)
}

// A Backend stores versions, each under its number.
type Backend struct {
	bucket bucket.Bucket
	prefix string
	sealer Sealer
}

// NewBackend returns a backend that stores versions in b, under keys that begin with prefix.
func NewBackend(b bucket.Bucket, prefix string, sealer Sealer) *Backend {
	return &Backend{b, prefix, sealer}
}

// A stored is a version that a backend lists.
type stored struct {
	number int64
	size   int64
}

// key returns the object key of the version with a number.
func (b *Backend) key(number int64) string { return fmt.Sprintf("%s%020d", b.prefix, number) }

// list returns number and size of the stored versions, oldest first. It ignores objects that no Backend has written. It returns
// all or an error.
func (b *Backend) list(ctx context.Context) (all []stored, err error) {
	for o, err := range b.bucket.List(ctx, b.prefix, "") {
		if err != nil {
			return nil, err
		}
		number, err := strconv.ParseInt(strings.TrimPrefix(o.Key, b.prefix), 10, 64)
		if err == nil && number > 0 && number < maxNumber && number-newestNumber(all) <= maxGap && b.key(number) == o.Key {
			all = append(all, stored{number, o.Size})
		}
	}
	return all, nil
}

// newestNumber returns the number of the newest version in a listing, 0 for none.
func newestNumber(all []stored) int64 {
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].number
}

// read returns the version with a number. The error is [bucket.ErrNotFound] if it does not exist, a [*CorruptError] if it is damaged,
// and otherwise says that the bucket cannot be read.
func (b *Backend) read(ctx context.Context, number int64) (v Version, err error) {
	data, _, err := b.bucket.Get(ctx, b.key(number), MaxStored)
	if err != nil && !errors.Is(err, bucket.ErrTooLarge) {
		return v, err
	}
	if err == nil {
		data, err = b.sealer.Open(number, data)
	}
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err == nil && (v.Number != number || v.Format != format) {
		err = fmt.Errorf("it is version %d in format %d, not version %d in format %d", v.Number, v.Format, number, format)
	}
	if err != nil {
		return Version{}, &CorruptError{b.bucket.String() + "/" + b.key(number), err}
	}
	return v, nil
}

// readNewest returns the newest sound version of a listing, the zero value if it has none. An error says that the bucket cannot be read.
func (b *Backend) readNewest(ctx context.Context, all []stored) (Version, error) {
	for _, at := range slices.Backward(all) {
		v, err := b.read(ctx, at.number)
		if !isCorrupt(err) && !errors.Is(err, bucket.ErrNotFound) {
			return v, err
		}
	}
	return Version{}, nil
}

// create stores a new version. It returns [bucket.ErrExists] if the number is in use, and changes nothing then. After another
// error of the bucket the version may be stored or not.
func (b *Backend) create(ctx context.Context, v Version) error {
	data, err := b.encode(v)
	if err == nil {
		_, err = b.bucket.Create(ctx, b.key(v.Number), data)
	}
	return err
}

// put stores a version, and overwrites any version with the same number.
func (b *Backend) put(ctx context.Context, v Version) error {
	data, err := b.encode(v)
	if err == nil {
		err = b.bucket.Put(ctx, b.key(v.Number), data)
	}
	return err
}

// encode returns a version as it is stored: JSON, sealed. A version of more than MaxStored bytes is an error.
func (b *Backend) encode(v Version) ([]byte, error) {
	v.Format = format
	data, err := json.Marshal(v)
	if err == nil {
		data, err = b.sealer.Seal(v.Number, data)
	}
	if err == nil && len(data) > MaxStored {
		err = fmt.Errorf("a version of %d bytes is over the limit of %d", len(data), MaxStored)
	}
	return data, err
}

// delete removes the version with a number.
func (b *Backend) delete(ctx context.Context, number int64) error {
	return b.bucket.Delete(ctx, b.key(number))
}

// Checksum is the Sealer of a folder that only this machine writes: the first line of a file is the SHA-256 of the rest.
type Checksum struct{}

// Seal implements [Sealer]: it returns data after a line with its checksum. The checksum does not depend on the version's number.
func (Checksum) Seal(_ int64, data []byte) ([]byte, error) {
	return append([]byte(checksum(data)+"\n"), data...), nil
}

// Open implements [Sealer]: it returns the data after the line with its checksum, or an error if the checksum is wrong. The
// checksum does not depend on the version's number.
func (Checksum) Open(_ int64, stored []byte) ([]byte, error) {
	line, data, _ := strings.Cut(string(stored), "\n")
	if line != checksum([]byte(data)) {
		return nil, errors.New("its checksum is wrong")
	}
	return []byte(data), nil
}

// checksum returns the SHA-256 of data in hexadecimal digits.
func checksum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

// ReadOnly is a bucket whose versions cannot be changed for a reason.
type ReadOnly struct {
	bucket.Bucket
	Why error
}

// Create implements [bucket.Bucket]: it stores nothing, and returns Why.
func (r ReadOnly) Create(context.Context, string, []byte) (bucket.Version, error) {
	return "", r.Why
}

// Replace implements [bucket.Bucket]: it stores nothing, and returns Why.
func (r ReadOnly) Replace(context.Context, string, []byte, bucket.Version) (bucket.Version, error) {
	return "", r.Why
}

// Put implements [bucket.Bucket]: it stores nothing, and returns Why.
func (r ReadOnly) Put(context.Context, string, []byte) error { return r.Why }

// Delete implements [bucket.Bucket]: it deletes nothing, and returns Why.
func (r ReadOnly) Delete(context.Context, string) error { return r.Why }
