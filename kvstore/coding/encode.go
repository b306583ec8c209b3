package coding

import (
	"bytes"
	"fmt"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
)

// An Effort says how much time an encoder may spend.
type Effort int

const (
	Quick Effort = iota // good enough to publish with, at once
	Best                // the smallest form, for ever after
)

// Encode returns src in the coding c. The same arguments give the same bytes.
// Before it returns, the coded bytes have been decoded and compared with src.
func Encode(c Coding, e Effort, src []byte) ([]byte, error) {
	coded, err := encode(c, e, src)
	if err != nil {
		return nil, fmt.Errorf("coding: encode %d bytes as %v: %w", len(src), c, err)
	}
	back, err := Decode(c, coded, int64(len(src)))
	if err != nil {
		return nil, fmt.Errorf("coding: the encoder's own output: %w", err)
	}
	if !bytes.Equal(back, src) {
		return nil, fmt.Errorf("coding: %d bytes encoded as %v decode to something else; nothing was kept", len(src), c)
	}
	return coded, nil
}

func encode(c Coding, e Effort, src []byte) ([]byte, error) {
	var out bytes.Buffer
	switch c {
	case Identity:
		return bytes.Clone(src), nil
	case Brotli:
		quality := 5
		if e == Best {
			quality = brotli.BestCompression
		}
		w := brotli.NewWriterOptions(&out, brotli.WriterOptions{Quality: quality, LGWin: 24})
		if _, err := w.Write(src); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
	case Gzip:
		level := 6
		if e == Best {
			level = gzip.BestCompression
		}
		w, err := gzip.NewWriterLevel(&out, level)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(src); err != nil {
			return nil, err
		}
		if err := w.Close(); err != nil {
			return nil, err
		}
	default:
		return nil, errUnknown
	}
	return out.Bytes(), nil
}
