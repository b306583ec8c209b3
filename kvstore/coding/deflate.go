package coding

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

// A deflater makes DEFLATE streams (RFC 1951) as small as it can in reasonable time: within a fraction of a percent of
// zopfli, several times faster. The same bytes give the same stream.
//
// Entropy coding is the library's (andybalholm/brotli/flate). What is added is the choice of what to code, which the
// libraries' own encoders make once and by rough costs: here every match at every position is found, the cheapest path
// through them is computed by what symbols really cost, and that is repeated with the costs that follow from the path
// before. Blocks begin where the statistics change.
//
// It holds about 16 MB once it has been used on a large input; it is not safe for concurrent use.
type deflater struct {
	chunk   int // chunkSize; smaller in tests
	finder  finder
	parser  parser
	huffman matchfinder.Encoder
	matches []matchfinder.Match
}

// newDeflater returns an encoder, which may be used any number of times, by one goroutine at a time.
func newDeflater() *deflater {
	return &deflater{chunk: chunkSize, huffman: flate.NewEncoder()}
}

// Append compresses src and appends it as one complete DEFLATE stream to dst, and returns the extended slice. It keeps neither src nor dst.
func (e *deflater) Append(dst, src []byte) []byte {
	e.huffman.Reset()
	e.finder.reset()
	if len(src) == 0 {
		return e.huffman.Encode(dst, nil, nil, true)
	}
	for start := 0; start < len(src); start += e.chunk {
		end := min(start+e.chunk, len(src))
		e.finder.findMatches(src, start, end)
		blocks := e.parser.parse(&e.finder, src[start:end])
		for i, b := range blocks {
			last := end == len(src) && i == len(blocks)-1
			e.matches = appendMatches(e.matches[:0], b.tokens)
			dst = e.huffman.Encode(dst, src[start+b.start:start+b.end], e.matches, last)
		}
	}
	return dst
}

// appendMatches appends tokens to dst in the form of the library's Huffman encoder, in which a match carries the number of literals before it.
func appendMatches(dst []matchfinder.Match, tokens []token) []matchfinder.Match {
	literals := 0
	for _, t := range tokens {
		if t.isLiteral() {
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

// segmentTokens is how finely block boundaries are placed.
const segmentTokens = 128

// A segment is a block that may yet be joined with the next.
type segment struct {
	block
	symbols *histogram
	size    float64 // in bits
	gain    float64 // bits saved by joining it with the next
}

// splitBlocks divides the tokens of a chunk into blocks that have Huffman codes of their own. It starts with segments of segmentTokens tokens and
// joins neighbours, those that save most first, as long as common codes cost less than a second block header. Offsets of the blocks count from the
// beginning of src, the chunk's bytes.
func splitBlocks(src []byte, tokens []token) []block {
	var segments []segment
	for start := 0; len(tokens) > 0; {
		n := min(segmentTokens, len(tokens))
		s := segment{block: block{start: start, end: start, tokens: tokens[:n]}}
		for _, t := range s.tokens {
			s.end += int(t.length)
		}
		s.symbols = countSymbols(src[s.start:s.end], s.tokens)
		s.size = s.symbols.size()
		segments = append(segments, s)
		start, tokens = s.end, tokens[n:]
	}
	for i := range segments {
		setGain(segments, i)
	}
	for len(segments) > 1 {
		best := 0
		for i := range segments[:len(segments)-1] {
			if segments[i].gain > segments[best].gain {
				best = i
			}
		}
		if segments[best].gain <= 0 {
			break
		}
		segments = joinSegments(segments, best)
	}
	blocks := make([]block, len(segments))
	for i, s := range segments {
		blocks[i] = s.block
	}
	return blocks
}

// setGain computes how many bits joining segment i with the next saves, negative if that costs bits, and stores that in segment i. It does nothing if
// either does not exist.
func setGain(segments []segment, i int) {
	if i < 0 || i+1 >= len(segments) {
		return
	}
	a, b := &segments[i], &segments[i+1]
	a.gain = a.size + b.size - a.symbols.merge(b.symbols).size()
}

// joinSegments joins segments i and i+1 in place, computes the gains anew that this changes, and returns the shortened slice.
func joinSegments(segments []segment, i int) []segment {
	a, b := &segments[i], segments[i+1]
	a.end = b.end
	a.tokens = a.tokens[:len(a.tokens)+len(b.tokens)] // they are neighbours in one slice
	a.symbols = a.symbols.merge(b.symbols)
	a.size += b.size - a.gain
	segments = append(segments[:i+1], segments[i+2:]...)
	setGain(segments, i)
	setGain(segments, i-1)
	return segments
}

const (
	// passes bounds how often a block is parsed again with the costs that
	// follow from the parse before. Most blocks settle after four.
	passes = 8

	// enough is the gain of a pass, as a share of the block's bits, below which
	// there is no further one.
	enough = 1.0 / 5000

	// near is how many lengths below a match's own are tried besides the ones
	// that no shorter match has. To cut a match by more hardly ever pays:
	// 0.05 % of the bytes for a third of the time.
	near = 8
)

// A token is a literal, which has length 1, or a match. The distance is less one.
type token struct{ length, distance uint16 }

// isLiteral reports whether the token is a literal.
func (t token) isLiteral() bool { return t.length == 1 }

// A block is a stretch of a chunk with one set of codes.
type block struct {
	start, end int
	tokens     []token
}

// A parser decides which matches to use.
type parser struct {
	model model
	cost  [chunkSize + 1]uint32 // from a position to the block's end
	step  [chunkSize]token      // the first token on the cheapest way there
}

// parse chooses the tokens of a chunk, whose matches f has found and whose bytes are src, divides them into blocks and improves each block's tokens.
func (p *parser) parse(f *finder, src []byte) []block {
	p.model.setCosts(priorHistogram(src))
	tokens := p.cheapestPath(f, src, 0, len(src))
	p.model.setCosts(countSymbols(src, tokens))
	tokens = p.cheapestPath(f, src, 0, len(src))

	blocks := splitBlocks(src, tokens)
	for i := range blocks {
		p.improveBlock(f, src, &blocks[i])
	}
	return blocks
}

// priorHistogram returns the symbol counts that are assumed before the first pass: those of the literals as in src, all match lengths one count,
// which grows with src, and all distances the count 1.
func priorHistogram(src []byte) *histogram {
	h := new(histogram)
	for _, b := range src {
		h.lit[b]++
	}
	for i := firstLen; i < litSymbols; i++ {
		h.lit[i] = uint32(len(src)/64 + 1)
	}
	for i := range h.dis {
		h.dis[i] = 1
	}
	return h
}

// improveBlock computes the tokens of a block again with the costs that follow from its last tokens, up to passes times and until that saves less
// than a share of enough of the block's bits. It replaces b.tokens only by tokens of which the estimate is smaller.
func (p *parser) improveBlock(f *finder, src []byte, b *block) {
	own := src[b.start:b.end]
	h := countSymbols(own, b.tokens)
	size := h.size()
	for range passes {
		p.model.setCosts(h)
		tokens := p.cheapestPath(f, src, b.start, b.end)
		h = countSymbols(own, tokens)
		gain := size - h.size()
		if gain <= 0 {
			return
		}
		b.tokens = tokens
		size -= gain
		if gain < size*enough {
			return
		}
	}
}

// cheapestPath returns the tokens with the lowest total cost, by the parser's model, that encode src[start:end]: a shortest path, computed from the
// end backwards. f has the matches at each position of src.
func (p *parser) cheapestPath(f *finder, src []byte, start, end int) []token {
	n := end - start
	cost, step, m := p.cost[:n+1], p.step[:n], &p.model
	cost[n] = 0
	for i := n - 1; i >= 0; i-- {
		low, best := cost[i+1]+m.lit[src[start+i]], token{length: 1}
		length := minMatch
		for _, found := range f.matchesAt(start + i) {
			longest := min(found.length(), n-i)
			if longest < length {
				break
			}
			length = max(length, longest-near)
			distance := m.dis[found.symbol()]
			rest := cost[i+length : i+longest+1]
			own := m.length[length : longest+1][:len(rest)]
			for k, c := range rest {
				if c += own[k] + distance; c < low {
					low, best = c, token{uint16(length + k), found.distance()}
				}
			}
			length = longest + 1
		}
		cost[i], step[i] = low, best
	}
	count := 0
	for i := 0; i < n; i += int(step[i].length) {
		count++
	}
	tokens := make([]token, 0, count)
	for i := 0; i < n; i += int(step[i].length) {
		tokens = append(tokens, step[i])
	}
	return tokens
}
