package coding

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// DCZ is Zstandard with a dictionary that the client has already (RFC 9842 §5): a delta. No content is stored in it alone, so [Parse] does not know
// it, and only EncodeDelta and DecodeDelta take it.
const DCZ Coding = 3

const (
	// MaxDictionary is the largest dictionary, in bytes, and the largest content of a delta. A client must accept a window of 8 MiB for any
	// dictionary (RFC 9842 §5), and a frame in a single segment has the content's size as its window.
	MaxDictionary = 8 << 20
	// MinDictionary is the smallest content, in bytes, that is worth a dictionary: smaller ones fit into a packet or two as they are.
	MinDictionary = 1 << 10
)

// deltaMagic begins a delta; the SHA-256 of the dictionary follows, and then the Zstandard frame.
const deltaMagic = "\x5e\x2a\x4d\x18\x20\x00\x00\x00"

// deltaHeader is the length of what precedes the frame.
const deltaHeader = len(deltaMagic) + sha256.Size

// DeltaWorthwhile reports whether the store keeps a delta of delta bytes of a content whose Brotli encoding, or smallest one, has brotli bytes: it
// must save at least half of these.
func DeltaWorthwhile(brotli, delta int64) bool { return 2*delta <= brotli }

// EncodeDelta returns src as a delta (Zstandard) against a dictionary, which must both have 1 to [MaxDictionary] bytes. The delta begins with a
// header that names the dictionary. EncodeDelta decodes the delta again and compares the result with src. The same arguments give the same bytes, on
// every machine. An error means that this content cannot be stored as this delta; a panic of the encoder becomes one.
func EncodeDelta(dictionary, src []byte) (delta []byte, err error) {
	return encodeVerified(DCZ, src, func() ([]byte, error) {
		if len(dictionary) == 0 || len(dictionary) > MaxDictionary || len(src) == 0 || len(src) > MaxDictionary {
			return nil, fmt.Errorf("it and the dictionary, which has %d, need 1 to %d bytes", len(dictionary), MaxDictionary)
		}
		w, err := zstd.NewWriter(nil, zstd.WithEncoderDictRaw(0, dictionary), zstd.WithEncoderLevel(zstd.SpeedBestCompression),
			zstd.WithEncoderConcurrency(1), zstd.WithSingleSegment(true), zstd.WithWindowSize(windowFor(len(dictionary)+len(src))))
		if err != nil {
			return nil, err
		}
		defer w.Close()
		sum := sha256.Sum256(dictionary)
		return bytes.Clone(w.EncodeAll(src, append([]byte(deltaMagic), sum[:]...))), nil
	}, func(delta []byte) ([]byte, error) { return DecodeDelta(dictionary, delta, int64(len(src))) })
}

// windowFor returns the size in bytes of the encoder's smallest window that spans size bytes, so that matches can reach the whole dictionary.
func windowFor(size int) int {
	w := zstd.MinWindowSize
	for w < size {
		w <<= 1
	}
	return w
}

// DeltaDictionary reads the header of a delta and returns the SHA-256 of the dictionary that it needs. ok is false if the bytes do not begin as a
// delta.
func DeltaDictionary(delta []byte) (sum [sha256.Size]byte, ok bool) {
	if len(delta) < deltaHeader || string(delta[:len(deltaMagic)]) != deltaMagic {
		return sum, false
	}
	return [sha256.Size]byte(delta[len(deltaMagic):]), true
}

// DecodeDelta returns the content that a delta decodes to with its dictionary. The content must be exactly size bytes long; otherwise, or if the
// delta's header names another dictionary, the error is [ErrCorrupt]. A dictionary or size above [MaxDictionary] is another error.
func DecodeDelta(dictionary, delta []byte, size int64) ([]byte, error) {
	if size < 0 || size > MaxDictionary || len(dictionary) > MaxDictionary {
		return nil, fmt.Errorf("coding: decode a delta: %d bytes with a dictionary of %d exceed %d", size, len(dictionary), MaxDictionary)
	}
	if named, ok := DeltaDictionary(delta); !ok || named != sha256.Sum256(dictionary) {
		return nil, fmt.Errorf("coding: decode a delta: %w: its header does not name the dictionary", ErrCorrupt)
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderDictRaw(0, dictionary), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
		zstd.WithDecoderMaxMemory(max(uint64(size), zstd.MinWindowSize)), zstd.WithDecoderMaxWindow(max(uint64(size), zstd.MinWindowSize)))
	if err != nil {
		return nil, fmt.Errorf("coding: decode a delta: %w", err)
	}
	defer r.Close()
	out, err := r.DecodeAll(delta[deltaHeader:], make([]byte, 0, size))
	if err != nil {
		return nil, fmt.Errorf("coding: decode a delta: %w: %v", ErrCorrupt, err)
	}
	if int64(len(out)) != size {
		return nil, fmt.Errorf("coding: decode a delta: %w: %d bytes instead of %d", ErrCorrupt, len(out), size)
	}
	return out, nil
}

// DeltaMemory returns about how many bytes of memory EncodeDelta takes for a dictionary and a content that have size bytes together: both, the tables
// of the encoder, its window, and the decoder.
func DeltaMemory(size int64) int64 {
	const tables = 80 << 20
	return tables + 8*size
}
