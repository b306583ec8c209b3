// Package deflate makes DEFLATE streams (RFC 1951) as small as it can and still
// finish: within a fraction of a percent of zopfli, several times faster.
//
// Entropy coding is the library's (andybalholm/brotli/flate). What is added is
// the choice of what to code, which in the libraries' own encoders is made
// once and by rough costs: here every match at every position is found, the
// cheapest path through them is computed by what symbols really cost, and that
// is repeated with the costs that follow from the path before. Blocks begin
// where the statistics change.
//
// The package guarantees that the same bytes give the same stream. It knows
// bytes only.
package deflate

import (
	"github.com/andybalholm/brotli/flate"
	"github.com/andybalholm/brotli/matchfinder"
)

// Limits of the format.
const (
	minMatch   = 3
	maxMatch   = 258
	windowSize = 1 << 15
)

// chunkSize is how many bytes are parsed at a time. Memory grows with it; a
// block never spans two chunks, which at this size costs 0.01 %.
const chunkSize = 1 << 19

// An Encoder makes DEFLATE streams, one after the other. It holds about 16 MB
// once it has been used on a large input; it is not safe for concurrent use.
type Encoder struct {
	chunk   int // chunkSize; smaller in tests
	finder  finder
	parser  parser
	huffman matchfinder.Encoder
	matches []matchfinder.Match
}

// NewEncoder returns an encoder, which may be used any number of times.
func NewEncoder() *Encoder {
	return &Encoder{chunk: chunkSize, huffman: flate.NewEncoder()}
}

// Append appends src as one complete DEFLATE stream to dst.
func (e *Encoder) Append(dst, src []byte) []byte {
	e.huffman.Reset()
	e.finder.reset()
	if len(src) == 0 {
		return e.huffman.Encode(dst, nil, nil, true)
	}
	for start := 0; start < len(src); start += e.chunk {
		end := min(start+e.chunk, len(src))
		e.finder.find(src, start, end)
		blocks := e.parser.parse(&e.finder, src[start:end])
		for i, b := range blocks {
			last := end == len(src) && i == len(blocks)-1
			e.matches = appendMatches(e.matches[:0], b.tokens)
			dst = e.huffman.Encode(dst, src[start+b.start:start+b.end], e.matches, last)
		}
	}
	return dst
}

// appendMatches translates tokens to the library's form, in which a match
// carries the number of literals before it.
func appendMatches(dst []matchfinder.Match, tokens []token) []matchfinder.Match {
	literals := 0
	for _, t := range tokens {
		if t.literal() {
			literals++
			continue
		}
		dst = append(dst, matchfinder.Match{Unmatched: literals, Length: int(t.length), Distance: int(t.distance) + 1})
		literals = 0
	}
	if literals > 0 {
		dst = append(dst, matchfinder.Match{Unmatched: literals})
	}
	return dst
}
