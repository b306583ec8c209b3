package coding

import (
	"encoding/binary"
	"math"
	"math/bits"
)

const (
	endOfBlock = 256
	firstLen   = 257 // the symbol of the shortest lengths
	litSymbols = 286 // literals, end of block, lengths
	disSymbols = 30
)

// lengthSymbol and lengthExtra are the table of RFC 1951 §3.2.5: the symbol of
// a match's length and how many bits follow it.
var lengthSymbol, lengthExtra = lengthTables()

// lengthTables returns two tables by the length of a DEFLATE match: its symbol, and how many extra bits follow the symbol. Lengths below minMatch
// have 0 in both.
func lengthTables() (symbol [maxMatch + 1]uint16, extra [maxMatch + 1]uint8) {
	for length := minMatch; length < maxMatch; length++ {
		n := length - minMatch
		e := max(0, bits.Len(uint(n))-3)
		symbol[length] = uint16(firstLen + 4*e + n>>e)
		extra[length] = uint8(e)
	}
	symbol[maxMatch] = litSymbols - 1
	return symbol, extra
}

// distanceSymbol returns the DEFLATE symbol of a match distance, given as the distance less one.
func distanceSymbol(d uint16) int {
	if d < 2 {
		return int(d)
	}
	n := bits.Len16(d)
	return 2*(n-1) + int(d>>(n-2)&1)
}

// distanceExtra returns how many extra bits follow the given distance symbol in a DEFLATE stream.
func distanceExtra(symbol int) int { return max(0, symbol/2-1) }

// A histogram counts the symbols of a block.
type histogram struct {
	lit [litSymbols]uint32
	dis [disSymbols]uint32
}

// countSymbols returns the histogram of the tokens that encode src.
func countSymbols(src []byte, tokens []token) *histogram {
	h := new(histogram)
	pos := 0
	for _, t := range tokens {
		if t.isLiteral() {
			h.lit[src[pos]]++
		} else {
			h.lit[lengthSymbol[t.length]]++
			h.dis[distanceSymbol(t.distance)]++
		}
		pos += int(t.length)
	}
	h.lit[endOfBlock] = 1
	return h
}

// merge returns a new histogram with the sums of h and o, for a block that joins theirs; it has one end-of-block symbol.
func (h *histogram) merge(o *histogram) *histogram {
	sum := *h
	for i, n := range o.lit {
		sum.lit[i] += n
	}
	for i, n := range o.dis {
		sum.dis[i] += n
	}
	sum.lit[endOfBlock] = 1
	return &sum
}

// size estimates the bits of a DEFLATE block with dynamic codes and these symbols: their entropy, their extra bits, and the header.
func (h *histogram) size() float64 {
	var lengths [litSymbols + disSymbols]uint8
	size := entropy(h.lit[:], lengths[:litSymbols]) + entropy(h.dis[:], lengths[litSymbols:])
	for i, n := range h.lit[firstLen : litSymbols-1] {
		size += float64(n) * float64(distanceExtra(i/2))
	}
	for i, n := range h.dis {
		size += float64(n) * float64(distanceExtra(i))
	}
	return size + headerSize(lengths[:])
}

// entropy returns the bits that all counted symbols take by their entropy. It sets lengths, one per symbol, to the approximate lengths of their
// codes; that of a symbol with a count of 0 stays as it is.
func entropy(counts []uint32, lengths []uint8) float64 {
	total := sumCounts(counts)
	if total == 0 {
		return 0
	}
	size, logTotal := 0.0, math.Log2(total)
	for i, n := range counts {
		if n != 0 {
			b := logTotal - math.Log2(float64(n))
			size += b * float64(n)
			lengths[i] = uint8(min(max(b+0.5, 1), 15))
		}
	}
	return size
}

// sumCounts returns the sum of counts as a floating point number.
func sumCounts(counts []uint32) float64 {
	total := 0.0
	for _, n := range counts {
		total += float64(n)
	}
	return total
}

// headerSize estimates the bits of the header of a DEFLATE block with dynamic codes. lengths are the code lengths, which are written with runs (RFC
// 1951 §3.2.7).
func headerSize(lengths []uint8) float64 {
	var counts [19]uint32
	extra := 0
	for i := 0; i < len(lengths); {
		run := 1
		for i+run < len(lengths) && lengths[i+run] == lengths[i] {
			run++
		}
		length := lengths[i]
		i += run
		if length != 0 {
			counts[length]++
			for run--; run >= 3; run -= min(run, 6) {
				counts[16]++
				extra += 2
			}
		} else {
			for ; run >= 11; run -= min(run, 138) {
				counts[18]++
				extra += 7
			}
			if run >= 3 {
				counts[17]++
				extra += 3
				run = 0
			}
		}
		counts[length] += uint32(run)
	}
	const fixed = 3 + 5 + 5 + 4 + 14*3 // block type, three counts, about 14 lengths
	var unused [len(counts)]uint8
	return fixed + float64(extra) + entropy(counts[:], unused[:])
}

// A model says what each choice costs, in 1/32 of a bit: a whole chunk of the
// dearest literals fits in 32 bits.
type model struct {
	lit    [256]uint32
	length [maxMatch + 1]uint32
	dis    [disSymbols]uint32
}

const costScale = 32

// setCosts sets the costs of literals, match lengths and distances to those that they have in a block with the counts of h.
func (m *model) setCosts(h *histogram) {
	logTotal := math.Log2(max(sumCounts(h.lit[:]), 2))
	for i := range m.lit {
		m.lit[i] = symbolCost(logTotal, h.lit[i], 0)
	}
	for i := minMatch; i <= maxMatch; i++ {
		m.length[i] = symbolCost(logTotal, h.lit[lengthSymbol[i]], int(lengthExtra[i]))
	}
	logTotal = math.Log2(max(sumCounts(h.dis[:]), 2))
	for i, n := range h.dis {
		m.dis[i] = symbolCost(logTotal, n, distanceExtra(i))
	}
}

// symbolCost returns the cost, in 1/32 of a bit, of a symbol that occurs n times and is followed by extra bits; logTotal is the base 2 logarithm of
// the count of all symbols. The symbol itself costs at least one bit. One that does not occur costs as much as one that occurs once, so that it may
// come to be used.
func symbolCost(logTotal float64, n uint32, extra int) uint32 {
	b := logTotal - math.Log2(float64(max(n, 1)))
	return uint32((max(b, 1)+float64(extra))*costScale + 0.5)
}

const (
	hashBits3 = 15
	hashBits4 = 16
	hashMul   = 0x9E3779B1 // 2^32 divided by the golden ratio

	// maxDepth bounds the walk down a tree, and so the time on input that is
	// made to be slow. Ordinary text needs a tenth of it.
	maxDepth = 300
)

// A finder finds the matches at each position of a chunk. Of all positions in
// the window that begin with the same four bytes it keeps a binary tree,
// sorted by the bytes that follow, with the newest position at the root: one
// walk down finds, for every length, the nearest match, and inserts the
// position itself. (The design is that of LZMA's and libdeflate's finders.)
type finder struct {
	// Positions are stored plus one: 0 is none.
	head3 [1 << hashBits3]uint32 // newest position of three bytes
	head4 [1 << hashBits4]uint32 // root of the tree of four bytes
	nodes [windowSize]node

	matches []match
	first   []uint32 // where the matches of each position begin, and the end
}

// node is a position in a tree: the roots of the trees of smaller and larger positions, plus one.
type node struct{ smaller, larger uint32 }

// A match says that the next length bytes also occur distance bytes back. It
// packs the distance less one (15 bits), the length (9) and the distance's
// symbol (5).
type match uint32

// newMatch packs the length, distance and distance symbol of a match into one integer.
func newMatch(length, distance int) match {
	d := uint16(distance - 1)
	return match(d) | match(length)<<15 | match(distanceSymbol(d))<<24
}

// distance returns the distance of the match less one.
func (m match) distance() uint16 { return uint16(m & (windowSize - 1)) }

// length returns the length of the match in bytes.
func (m match) length() int { return int(m >> 15 & (1<<9 - 1)) }

// symbol returns the DEFLATE symbol of the match's distance.
func (m match) symbol() int { return int(m >> 24) }

// reset makes the finder forget all positions, so that another input can follow.
func (f *finder) reset() {
	clear(f.head3[:])
	clear(f.head4[:])
}

// findMatches replaces the finder's list of matches by those at the positions start to end, excluded, of src. Matches may reach back into positions
// of earlier calls, which have to be consecutive. It records none inside a match of maximal length, and none at the last three positions of src.
func (f *finder) findMatches(src []byte, start, end int) {
	f.matches, f.first = f.matches[:0], f.first[:0]
	quiet := 0
	for pos := start; pos < end; pos++ {
		n := len(f.matches)
		f.first = append(f.first, uint32(n))
		if pos+4 > len(src) {
			continue
		}
		f.insert(src, pos, pos >= quiet)
		if m := len(f.matches); m > n && f.matches[m-1].length() == maxMatch {
			// Nothing beats the longest match: its inside is not searched,
			// which keeps runs and repeated text from costing 258 times more.
			quiet = pos + maxMatch
		}
	}
	f.first = append(f.first, uint32(len(f.matches)))
}

// matchesAt returns the matches at a position, counted from the start of the chunk of the last findMatches: longer ones later, each the nearest of
// its length. The slice is valid until the next findMatches, and may be empty.
func (f *finder) matchesAt(pos int) []match {
	return f.matches[f.first[pos]:f.first[pos+1]]
}

// insert adds the position pos of src to the finder's hash tables and trees. If collect is set, it appends the matches at pos to f.matches.
func (f *finder) insert(src []byte, pos int, collect bool) {
	here := src[pos:min(pos+maxMatch, len(src))]
	word := binary.LittleEndian.Uint32(here)

	best := 2
	head := &f.head3[(word<<8*hashMul)>>(32-hashBits3)]
	if at := int(*head) - 1; collect && at >= 0 && pos-at <= windowSize && string(src[at:at+3]) == string(here[:3]) {
		best = 3
		f.matches = append(f.matches, newMatch(best, pos-at))
	}
	*head = uint32(pos + 1)

	root := &f.head4[(word*hashMul)>>(32-hashBits4)]
	at := int(*root) - 1
	*root = uint32(pos + 1)

	// The walk splits the old tree into what is smaller than this position and
	// what is larger; smaller and larger are where the next piece belongs.
	smaller, larger := &f.nodes[pos%windowSize].smaller, &f.nodes[pos%windowSize].larger
	equalSmaller, equalLarger := 0, 0
	for depth := 0; at >= 0 && pos-at < windowSize && depth < maxDepth; depth++ {
		n := matchLength(here, src[at:], min(equalSmaller, equalLarger))
		child := &f.nodes[at%windowSize]
		if n > best {
			best = n
			if collect {
				f.matches = append(f.matches, newMatch(n, pos-at))
			}
		}
		switch {
		case n == len(here):
			*smaller, *larger = child.smaller, child.larger
			return
		case src[at+n] < here[n]:
			*smaller = uint32(at + 1)
			smaller, equalSmaller = &child.larger, n
			at = int(child.larger) - 1
		default:
			*larger = uint32(at + 1)
			larger, equalLarger = &child.smaller, n
			at = int(child.smaller) - 1
		}
	}
	*smaller, *larger = 0, 0
}

// matchLength returns how many bytes at the beginning of a and b are equal. The caller knows that the first n are; b is at least as long as a.
func matchLength(a, b []byte, n int) int {
	b = b[:len(a)]
	for ; n+8 <= len(a); n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return n + bits.TrailingZeros64(x)/8
		}
	}
	for n < len(a) && a[n] == b[n] {
		n++
	}
	return n
}
