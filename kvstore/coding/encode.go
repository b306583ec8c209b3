package coding

import (
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

	"github.com/larder-cdn/larder/kvstore/coding/deflate"
)

// An Effort says how much time an encoder may take. The speeds are those of one
// core over files of npm packages; gzip -9 makes them 0.262 of their size.
type Effort int

const (
	Quick Effort = iota // publish now: Brotli 36 MB/s to 0.237, gzip 100 MB/s to 0.276
	Best                // the smallest: Brotli 0.4 MB/s to 0.206, gzip 2.4 MB/s to 0.249
)

// Encode returns src in the coding c, decoded again and compared with src. The
// same arguments give the same bytes, on every machine.
//
// An error means that this content cannot be stored in this coding, and says
// nothing about others: not even a panic in an encoder gets past it.
func Encode(c Coding, e Effort, src []byte) (coded []byte, err error) {
	defer func() {
		// The encoders are libraries fed with strangers' bytes.
		if p := recover(); p != nil {
			coded, err = nil, fmt.Errorf("coding: encode %d bytes as %v: the encoder panicked: %v", len(src), c, p)
		}
	}()
	coded, err = encode(c, e, src)
	if err != nil {
		return nil, fmt.Errorf("coding: encode %d bytes as %v: %w", len(src), c, err)
	}
	back, err := Decode(c, coded, int64(len(src)))
	if err != nil {
		return nil, fmt.Errorf("coding: encode %d bytes as %v: own output: %w", len(src), c, err)
	}
	if !bytes.Equal(back, src) {
		return nil, fmt.Errorf("coding: encode %d bytes as %v: own output decodes to something else", len(src), c)
	}
	return coded, nil
}

var (
	errUnknown = errors.New("unknown content coding")
	errEffort  = errors.New("unknown effort")
)

func encode(c Coding, e Effort, src []byte) ([]byte, error) {
	if e != Quick && e != Best {
		return nil, errEffort
	}
	switch c {
	case Identity:
		return bytes.Clone(src), nil
	case Brotli:
		if e == Quick {
			return write(&quickBrotli, src)
		}
		return write(bestBrotli[window(int64(len(src)))], src)
	case Gzip:
		return encodeGzip(e, src)
	}
	return nil, errUnknown
}

// An encoder is what the libraries' writers have in common.
type encoder interface {
	io.WriteCloser
	Reset(io.Writer)
}

// Encoders are reused: each owns tables of a megabyte and more.
var (
	// The library's newer implementation at level 5 is as small as its older
	// one at 5 (0.237 of the size), in two thirds of the time; at 9 it needs
	// twice the time for 0.229.
	quickBrotli = sync.Pool{New: func() any { return brotli.NewWriterV2(nil, 5) }}

	quickDeflate = sync.Pool{New: func() any {
		w, err := flate.NewWriter(nil, 6)
		if err != nil {
			panic(err) // not a level
		}
		return w
	}}

	bestDeflate = sync.Pool{New: func() any { return deflate.NewEncoder() }}

	// One for each size of window.
	bestBrotli = func() []*sync.Pool {
		pools := make([]*sync.Pool, maxWindow+1)
		for w := range pools {
			pools[w] = &sync.Pool{New: func() any {
				return brotli.NewWriterOptions(nil, brotli.WriterOptions{Quality: brotli.BestCompression, LGWin: w})
			}}
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

// window returns the smallest window that spans size bytes, as Google's command
// does. A larger one only costs memory.
func window(size int64) int {
	w := minWindow
	for w < maxWindow && size > 1<<w-16 {
		w++
	}
	return w
}

// write encodes src with an encoder of the pool.
func write(pool *sync.Pool, src []byte) ([]byte, error) {
	w := pool.Get().(encoder)
	var out bytes.Buffer
	w.Reset(&out)
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	w.Reset(nil) // lets go of out
	pool.Put(w)  // not after an error or a panic: who knows its state
	return bytes.Clone(out.Bytes()), nil
}

// encodeGzip wraps a DEFLATE stream in the header and trailer of RFC 1952. There is no
// name, no time and no operating system in them (the libraries' own writers put
// the time, or a constant that is none), so that nothing depends on where and
// when it was made.
func encodeGzip(e Effort, src []byte) ([]byte, error) {
	out := []byte{
		0x1f, 0x8b, 8, // magic number, DEFLATE
		0,          // no optional fields
		0, 0, 0, 0, // no modification time
		0,    // neither fastest nor slowest
		0xff, // unknown operating system
	}
	if e == Quick {
		stream, err := write(&quickDeflate, src)
		if err != nil {
			return nil, err
		}
		out = append(out, stream...)
	} else {
		d := bestDeflate.Get().(*deflate.Encoder)
		out = d.Append(slices.Grow(out, len(src)/3), src)
		bestDeflate.Put(d)
	}
	out = binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(src))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(src)))
	return bytes.Clone(out), nil
}

// Memory returns about how many bytes Encode takes for an input of size bytes,
// the input itself and the output included, so that a caller can bound how many
// run at once. Measured as peak heap, garbage included, at Go's default GOGC.
func Memory(c Coding, e Effort, size int64) int64 {
	const mib = 1 << 20
	switch {
	case c == Identity:
		return 2 * size
	case e == Quick:
		return 8*mib + 3*size
	case c == Gzip:
		return 40*mib + 3*size
	default:
		return 64*mib + 26<<window(size) + 3*size
	}
}
