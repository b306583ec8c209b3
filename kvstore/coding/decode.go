package coding

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
)

// ErrCorrupt marks coded bytes that are not what their coding and size promise.
var ErrCorrupt = errors.New("corrupt coded bytes")

var errUnknown = errors.New("unknown content coding")

// Decode returns the identity of coded, which must be exactly size bytes.
// It never holds more than size bytes of output, whatever the input says.
func Decode(c Coding, coded []byte, size int64) ([]byte, error) {
	if size < 0 {
		return nil, fmt.Errorf("coding: decode %v: negative size %d", c, size)
	}
	r, err := NewReader(c, bytes.NewReader(coded))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out := make([]byte, size)
	n, err := io.ReadFull(r, out)
	if err != nil {
		return nil, fmt.Errorf("coding: %w: %v ends after %d of %d bytes: %v", ErrCorrupt, c, n, size, err)
	}
	var one [1]byte
	switch m, err := io.ReadFull(r, one[:]); {
	case m > 0:
		return nil, fmt.Errorf("coding: %w: %v decodes to more than %d bytes", ErrCorrupt, c, size)
	case err != io.EOF:
		return nil, fmt.Errorf("coding: %w: %v after %d bytes: %v", ErrCorrupt, c, size, err)
	}
	return out, nil
}

// NewReader returns a reader of the identity of what coded delivers.
func NewReader(c Coding, coded io.Reader) (io.ReadCloser, error) {
	switch c {
	case Identity:
		return io.NopCloser(coded), nil
	case Brotli:
		return io.NopCloser(brotli.NewReader(coded)), nil
	case Gzip:
		r, err := gzip.NewReader(coded)
		if err != nil {
			return nil, fmt.Errorf("coding: %w: gzip header: %v", ErrCorrupt, err)
		}
		return r, nil
	}
	return nil, fmt.Errorf("coding: %w: %v", errUnknown, c)
}
