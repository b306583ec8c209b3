package coding

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
)

// ErrCorrupt marks coded bytes that are not what their coding and their size
// promise: damaged, cut short, followed by something else, or of another size.
var ErrCorrupt = errors.New("corrupt coded bytes")

// Decode returns the identity of coded, which must be exactly size bytes long;
// the error is ErrCorrupt if it is not. No more than size bytes and a decoder's
// window (16 MiB at most, twice while it grows) are held, whatever coded would inflate to.
func Decode(c Coding, coded []byte, size int64) ([]byte, error) {
	if size < 0 {
		return nil, fmt.Errorf("coding: decode %v: size %d is negative", c, size)
	}
	if c == Identity {
		if int64(len(coded)) != size {
			return nil, fmt.Errorf("coding: decode %v: %w: %d bytes instead of %d", c, ErrCorrupt, len(coded), size)
		}
		return bytes.Clone(coded), nil
	}
	in := bytes.NewReader(coded)
	r, err := NewReader(c, in)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	out := make([]byte, size)
	if n, err := io.ReadFull(r, out); err != nil {
		return nil, fmt.Errorf("coding: decode %v: %w: after %d of %d bytes: %v", c, ErrCorrupt, n, size, err)
	}
	// The end has to be seen: gzip's checksum is there.
	var more [1]byte
	switch n, err := io.ReadFull(r, more[:]); {
	case n > 0:
		return nil, fmt.Errorf("coding: decode %v: %w: more than %d bytes", c, ErrCorrupt, size)
	case err != io.EOF:
		return nil, fmt.Errorf("coding: decode %v: %w: after %d bytes: %v", c, ErrCorrupt, size, err)
	case in.Len() > 0:
		return nil, fmt.Errorf("coding: decode %v: %w: %d bytes follow the end", c, ErrCorrupt, in.Len())
	}
	return out, nil
}

// NewReader returns a reader of the identity of what coded delivers. Reading
// takes a decoder's window of memory (16 MiB at most), however long it goes on.
// The caller closes the reader, which leaves coded open.
func NewReader(c Coding, coded io.Reader) (io.ReadCloser, error) {
	var pool *sync.Pool
	switch c {
	case Identity:
		return io.NopCloser(coded), nil
	case Brotli:
		pool = &brotliReaders
	case Gzip:
		pool = &gzipReaders
	default:
		return nil, fmt.Errorf("coding: decode %v: %w", c, errUnknown)
	}
	d := pool.Get().(decoder)
	if err := d.Reset(coded); err != nil { // gzip reads its header here
		pool.Put(d)
		return nil, fmt.Errorf("coding: decode %v: %w: %v", c, ErrCorrupt, err)
	}
	return &reader{decoder: d, pool: pool}, nil
}

// A decoder is what the libraries' readers have in common.
type decoder interface {
	io.Reader
	Reset(io.Reader) error
}

var (
	brotliReaders = sync.Pool{New: func() any { return &brotliReader{in: lumps{bufio.NewReaderSize(nil, 64<<10)}} }}
	gzipReaders   = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// A brotliReader hands the library its input in lumps.
type brotliReader struct {
	brotli.Reader
	in lumps
}

func (r *brotliReader) Reset(coded io.Reader) error {
	r.in.buffer.Reset(coded)
	return r.Reader.Reset(r.in)
}

// lumps is a reader that never delivers less than lump bytes as its last
// piece, unless the whole is less.
//
// brotli.Reader needs that: where a symbol spans its last two pieces of input
// and the last is just enough to complete it, it reports "excessive input" for
// a good stream. With a last piece of one byte it does for 9 in 239 files, and
// it reads 32 KiB at a time, so one length in 32768 has such a piece.
type lumps struct{ buffer *bufio.Reader }

const lump = 16

func (l lumps) Read(p []byte) (int, error) {
	ahead, err := l.buffer.Peek(min(len(p)+lump, l.buffer.Size()))
	n := min(len(p), len(ahead))
	if rest := len(ahead) - n; rest > 0 && rest < lump && n > lump {
		n -= lump
	}
	if n == 0 && len(p) > 0 {
		return 0, err
	}
	return l.buffer.Read(p[:n])
}

// A reader returns its decoder to the pool when it is closed.
type reader struct {
	decoder decoder
	pool    *sync.Pool
}

func (r *reader) Read(p []byte) (int, error) {
	if r.decoder == nil {
		return 0, errors.New("coding: read after close")
	}
	return r.decoder.Read(p)
}

func (r *reader) Close() error {
	if r.decoder != nil {
		r.pool.Put(r.decoder)
		r.decoder = nil
	}
	return nil
}
