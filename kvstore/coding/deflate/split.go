package deflate

// segmentTokens is how finely block boundaries are placed.
const segmentTokens = 128

// A segment is a block that may yet be joined with the next.
type segment struct {
	block
	symbols *histogram
	size    float64 // in bits
	gain    float64 // bits saved by joining it with the next
}

// split divides a chunk's tokens into blocks: it begins with short segments and
// joins neighbours, those that gain most first, while a common set of codes
// costs less than a second header.
func split(src []byte, tokens []token) []block {
	var segments []segment
	for start := 0; len(tokens) > 0; {
		n := min(segmentTokens, len(tokens))
		s := segment{block: block{start: start, end: start, tokens: tokens[:n]}}
		for _, t := range s.tokens {
			s.end += int(t.length)
		}
		s.symbols = count(src[s.start:s.end], s.tokens)
		s.size = s.symbols.size()
		segments = append(segments, s)
		start, tokens = s.end, tokens[n:]
	}
	for i := range segments {
		measure(segments, i)
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
		segments = join(segments, best)
	}
	blocks := make([]block, len(segments))
	for i, s := range segments {
		blocks[i] = s.block
	}
	return blocks
}

// measure sets the gain of joining segment i with the next.
func measure(segments []segment, i int) {
	if i < 0 || i+1 >= len(segments) {
		return
	}
	a, b := &segments[i], &segments[i+1]
	a.gain = a.size + b.size - a.symbols.plus(b.symbols).size()
}

// join makes segments i and i+1 one.
func join(segments []segment, i int) []segment {
	a, b := &segments[i], segments[i+1]
	a.end = b.end
	a.tokens = a.tokens[:len(a.tokens)+len(b.tokens)] // they are neighbours in one slice
	a.symbols = a.symbols.plus(b.symbols)
	a.size += b.size - a.gain
	segments = append(segments[:i+1], segments[i+2:]...)
	measure(segments, i)
	measure(segments, i-1)
	return segments
}
