// Package coding holds the content codings in which a file is stored: their
// names, their encoders and their decoders.
//
// It guarantees that what Encode returns decodes to what went in, that the same
// bytes give the same coded bytes, and that Decode never takes more memory than
// the size the caller expects. It knows bytes only: neither files nor HTTP
// nor where the bytes are kept.
package coding

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// A Coding is one of the content codings a file is stored in (RFC 9110 §8.4.1).
// The numbers are part of the store's format and never change.
type Coding uint8

const (
	Identity Coding = 0 // the file's own bytes
	Brotli   Coding = 1 // RFC 7932
	Gzip     Coding = 2 // RFC 1952
)

// names are the codings' tokens as in Content-Encoding and Accept-Encoding.
var names = []string{Identity: "identity", Brotli: "br", Gzip: "gzip", DCZ: "dcz"}

// String returns the coding's token as in Content-Encoding and Accept-Encoding.
func (c Coding) String() string {
	if int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("coding(%d)", uint8(c))
}

// Parse returns the coding that a lower-case token of Content-Encoding names: identity, br or gzip. The result is false for any other token, dcz
// included.
func Parse(name string) (Coding, bool) {
	i := slices.Index(names[:DCZ], name)
	return Coding(max(i, 0)), i >= 0
}

// Worthwhile reports whether the store keeps an encoding of coded bytes for a content of identity bytes: it must save a 64th of these, and at least
// 32 bytes.
//
// Measured on 174 images, fonts and archives from npm packages: 37 save something but less than a 64th, 8 KB of 10 MB in all. For that, every browser
// would inflate them, and the server too for each client that wants identity or a range of it. The next step, up to a 32nd, already saves 23 KB. The
// lines "Content-Encoding: gzip" and "Vary: Accept-Encoding" alone take 47 bytes if the header is not compressed.
func Worthwhile(identity, coded int) bool {
	return coded+max(identity/64, 32) <= identity
}

// An Effort says how much time an encoder may take. The speeds are those of one
// core over files of npm packages; gzip -9 makes them 0.262 of their size.
type Effort int

const (
	Quick Effort = iota // publish now: Brotli 36 MB/s to 0.237, gzip 100 MB/s to 0.276
	Best                // the smallest: Brotli 0.4 MB/s to 0.206, gzip 2.4 MB/s to 0.249
	// Fast is for responses that are made for requests. Brotli takes a quarter of Quick's time for a page of 69 KB and half for one of 6 KB, which
	// are 1 % smaller than Quick's; scripts are 2 % larger, and lists in JSON 5 %. Gzip is Quick's.
	Fast
)

// Encode returns src in the coding c, in new memory. It decodes the result again and compares it with src. The same arguments give the same bytes, on
// every machine.
//
// An error means that this content cannot be stored in this coding, and says nothing about others; a panic of an encoder becomes one. [DCZ] and
// unknown codings and efforts are errors too.
func Encode(c Coding, e Effort, src []byte) (coded []byte, err error) {
	return encodeVerified(c, src,
		func() ([]byte, error) { return encode(c, e, src) },
		func(coded []byte) ([]byte, error) { return Decode(c, coded, int64(len(src))) })
}

// encodeVerified returns the result of encode, which encodes src, if decode makes src of it again. Otherwise, or after an error of either, it returns
// an error. A panic of encode becomes one, too: the encoders are libraries fed with strangers' bytes.
func encodeVerified(c Coding, src []byte, encode func() ([]byte, error), decode func(coded []byte) ([]byte, error)) (coded []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the encoder panicked: %v", p)
		}
		if err != nil {
			coded, err = nil, fmt.Errorf("coding: encode %d bytes as %v: %w", len(src), c, err)
		}
	}()
	if coded, err = encode(); err != nil {
		return nil, err
	}
	back, err := decode(coded)
	if err != nil {
		return nil, fmt.Errorf("own output: %w", err)
	}
	if !bytes.Equal(back, src) {
		return nil, errors.New("own output decodes to something else")
	}
	return coded, nil
}

var (
	errUnknown = errors.New("unknown content coding")
	errEffort  = errors.New("unknown effort")
)

// encode returns src in the coding c at the effort e. Unlike [Encode] it does not decode the result to check it, and an encoder may panic.
func encode(c Coding, e Effort, src []byte) ([]byte, error) {
	if e < Quick || e > Fast {
		return nil, errEffort
	}
	switch c {
	case Identity:
		return bytes.Clone(src), nil
	case Brotli:
		switch e {
		case Quick:
			return encodeWith(quickBrotli, src)
		case Fast:
			return encodeWith(fastBrotli, src)
		}
		return encodeWith(bestBrotli[windowBits(int64(len(src)))], src)
	case Gzip:
		return encodeGzip(e, src)
	}
	return nil, errUnknown
}

// An encoder is what the libraries' writers have in common.
type encoder interface {
	io.WriteCloser
	// Reset prepares the encoder to write a new stream to a writer.
	Reset(io.Writer)
}

// Encoders are reused: each owns tables of a megabyte and more.
var (
	// The library's newer implementation at level 5 is as small as its older
	// one at 5 (0.237 of the size), in two thirds of the time; at 9 it needs
	// twice the time for 0.229.
	quickBrotli = newPool(func() encoder { return brotli.NewWriterV2(nil, 5) })

	fastBrotli = newPool(func() encoder { return brotli.NewWriterV2(nil, 3) })

	quickDeflate = newPool(func() encoder {
		w, err := flate.NewWriter(nil, 6)
		if err != nil {
			panic(err) // not a level
		}
		return w
	})

	bestDeflate = sync.Pool{New: func() any { return newDeflater() }}

	// One for each size of window.
	bestBrotli = func() []*sync.Pool {
		pools := make([]*sync.Pool, maxWindow+1)
		for w := range pools {
			pools[w] = newPool(func() encoder {
				return brotli.NewWriterOptions(nil, brotli.WriterOptions{Quality: brotli.BestCompression, LGWin: w})
			})
		}
		return pools
	}()
)

// Base 2 logarithms of Brotli's window sizes. Below 18 a window saves a bit or
// three in the header but cuts the input into smaller blocks.
const (
	minWindow = 18
	maxWindow = 24
)

// windowBits returns the base 2 logarithm of the smallest Brotli window from 18 to 24 that spans size bytes, as Google's command does. A larger
// window only costs memory.
func windowBits(size int64) int {
	w := minWindow
	for w < maxWindow && size > 1<<w-16 {
		w++
	}
	return w
}

// A pooledEncoder writes to a buffer of its own, so that it need not be reset after use: a reset clears its tables, which takes as long as encoding a
// page.
type pooledEncoder struct {
	encoder
	out bytes.Buffer
}

// newPool returns a pool of pooledEncoders around encoders that newEncoder makes when the pool has none.
func newPool(newEncoder func() encoder) *sync.Pool {
	return &sync.Pool{New: func() any { return &pooledEncoder{encoder: newEncoder()} }}
}

// encodeWith returns src encoded with an encoder that it takes from the pool and puts back, unless encoding fails.
func encodeWith(pool *sync.Pool, src []byte) ([]byte, error) {
	w := pool.Get().(*pooledEncoder)
	w.Reset(&w.out)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	coded := bytes.Clone(w.out.Bytes())
	w.out = bytes.Buffer{} // the pool does not retain output
	pool.Put(w)            // not after an error or a panic, which may leave it in any state
	return coded, nil
}

// encodeGzip returns src as a gzip stream: a DEFLATE stream of the effort e in the header and trailer of RFC 1952. The header has no name, time or
// operating system (the libraries' own writers put the time, or a constant that is none), so that the same bytes give the same stream anywhere and at
// any time.
func encodeGzip(e Effort, src []byte) ([]byte, error) {
	out := []byte{
		0x1f, 0x8b, 8, // magic number, DEFLATE
		0,          // no optional fields
		0, 0, 0, 0, // no modification time
		0,    // neither fastest nor slowest
		0xff, // unknown operating system
	}
	if e != Best {
		stream, err := encodeWith(quickDeflate, src)
		if err != nil {
			return nil, err
		}
		out = append(out, stream...)
	} else {
		d := bestDeflate.Get().(*deflater)
		out = d.Append(slices.Grow(out, len(src)/3), src)
		bestDeflate.Put(d)
	}
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(src))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(src)))
	return bytes.Clone(out), nil
}

// Memory returns about how many bytes Encode takes for an input of size bytes,
// the input itself and the output included, so that a caller can bound how many
// run at once. Quick was measured as peak heap, garbage included, at Go's default GOGC. Best
// is what a process of package worker takes for it at its peak, without the program's own
// pages, which all share; its BenchmarkMemory measures that.
func Memory(c Coding, e Effort, size int64) int64 {
	const mib = 1 << 20
	switch {
	case c == Identity:
		return 2 * size
	case e != Best:
		return 8*mib + 3*size
	case c == Gzip:
		return 20*mib + 64*min(size, 1<<18) + 3*size
	default:
		// The memory for matches grows with a block up to 256 KiB; that for the window's tables and the commands grows further.
		return 18*mib + 48*min(size, 1<<18) + 4*(1<<windowBits(size)-1<<minWindow) + 12*size
	}
}

// ErrCorrupt marks coded bytes that are not what their coding and their size
// promise: damaged, cut short, followed by something else, or of another size.
var ErrCorrupt = errors.New("corrupt coded bytes")

// DecodeUpTo decodes coded, whose decoded size is not known. It returns all decoded bytes if they are at most limit, or else the first limit+1,
// without an error, so that the caller can tell. For Identity it returns coded itself, whatever its length. Malformed bytes are an error, mostly the
// library's and not [ErrCorrupt], with the bytes decoded before it. Unlike [Decode] it does not check that nothing follows the end of coded.
func DecodeUpTo(c Coding, coded []byte, limit int64) ([]byte, error) {
	if c == Identity {
		return coded, nil
	}
	r, err := NewReader(c, bytes.NewReader(coded))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, limit+1))
}

// Decode returns the bytes that coded decodes to, in new memory. They must be exactly size bytes, and nothing may follow the end of coded; otherwise
// the error is [ErrCorrupt]. A negative size and an unknown coding are other errors. It takes at most size bytes of memory and a decoder's window (16
// MiB at most, twice while it grows), whatever coded would inflate to.
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

// NewReader returns a reader of the bytes that the stream coded decodes to. Reading takes a decoder's window of memory (16 MiB at most), however long
// the stream is. The caller closes the reader, which does not close coded. For gzip, a malformed header is [ErrCorrupt] here; later errors are the
// library's. [DCZ] and unknown codings are an error.
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
	// Reset prepares the decoder to read a new stream from a reader.
	Reset(io.Reader) error
}

var (
	brotliReaders = sync.Pool{New: func() any { return &brotliReader{in: tailReader{bufio.NewReaderSize(nil, 64<<10)}} }}
	gzipReaders   = sync.Pool{New: func() any { return new(gzip.Reader) }}
)

// A brotliReader hands the library its input in lumps.
type brotliReader struct {
	brotli.Reader
	in tailReader
}

// Reset implements decoder: it prepares the reader to decode a new stream.
func (r *brotliReader) Reset(coded io.Reader) error {
	r.in.buffer.Reset(coded)
	return r.Reader.Reset(r.in)
}

// tailReader is a reader that never delivers less than lump bytes as its last
// piece, unless the whole is less.
//
// brotli.Reader needs that: where a symbol spans its last two pieces of input
// and the last is just enough to complete it, it reports "excessive input" for
// a good stream. With a last piece of one byte it does for 9 in 239 files, and
// it reads 32 KiB at a time, so one length in 32768 has such a piece.
type tailReader struct{ buffer *bufio.Reader }

const lump = 16

// Read implements io.Reader. It reads fewer than len(p) bytes if otherwise less than lump bytes would remain as the stream's last piece.
func (l tailReader) Read(p []byte) (int, error) {
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

// Read implements io.Reader: it reads decoded bytes. After Close it returns an error.
func (r *reader) Read(p []byte) (int, error) {
	if r.decoder == nil {
		return 0, errors.New("coding: read after close")
	}
	return r.decoder.Read(p)
}

// Close returns the decoder to its pool, once. It does not close the source.
func (r *reader) Close() error {
	if r.decoder != nil {
		r.pool.Put(r.decoder)
		r.decoder = nil
	}
	return nil
}
