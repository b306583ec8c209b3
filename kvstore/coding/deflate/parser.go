package deflate

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

func (t token) literal() bool { return t.length == 1 }

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

// parse returns the blocks of a chunk.
func (p *parser) parse(f *finder, src []byte) []block {
	p.model.learn(prior(src))
	tokens := p.path(f, src, 0, len(src))
	p.model.learn(count(src, tokens))
	tokens = p.path(f, src, 0, len(src))

	blocks := split(src, tokens)
	for i := range blocks {
		p.improve(f, src, &blocks[i])
	}
	return blocks
}

// prior is what the symbols are taken to be before the first pass: literals as
// in src, and all lengths and distances alike.
func prior(src []byte) *histogram {
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

// improve parses a block again until that gains little.
func (p *parser) improve(f *finder, src []byte, b *block) {
	own := src[b.start:b.end]
	h := count(own, b.tokens)
	size := h.size()
	for range passes {
		p.model.learn(h)
		tokens := p.path(f, src, b.start, b.end)
		h = count(own, tokens)
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

// path returns the cheapest tokens for src[start:end]: a shortest path,
// computed from the end backwards.
func (p *parser) path(f *finder, src []byte, start, end int) []token {
	n := end - start
	cost, step, m := p.cost[:n+1], p.step[:n], &p.model
	cost[n] = 0
	for i := n - 1; i >= 0; i-- {
		low, best := cost[i+1]+m.lit[src[start+i]], token{length: 1}
		length := minMatch
		for _, found := range f.at(start + i) {
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
