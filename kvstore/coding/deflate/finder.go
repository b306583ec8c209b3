package deflate

import (
	"encoding/binary"
	"math/bits"
)

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

type node struct{ smaller, larger uint32 }

// A match says that the next length bytes also occur distance bytes back. It
// packs the distance less one (15 bits), the length (9) and the distance's
// symbol (5).
type match uint32

func newMatch(length, distance int) match {
	d := uint16(distance - 1)
	return match(d) | match(length)<<15 | match(distanceSymbol(d))<<24
}

func (m match) distance() uint16 { return uint16(m & (windowSize - 1)) } // less one
func (m match) length() int      { return int(m >> 15 & (1<<9 - 1)) }
func (m match) symbol() int      { return int(m >> 24) }

func (f *finder) reset() {
	clear(f.head3[:])
	clear(f.head4[:])
}

// find collects the matches of the positions from start to end, which continue
// those of the call before.
func (f *finder) find(src []byte, start, end int) {
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

// at returns the matches at a position, counted from the chunk's start: longer
// ones later, each the nearest of its length.
func (f *finder) at(pos int) []match {
	return f.matches[f.first[pos]:f.first[pos+1]]
}

// insert adds a position to the finder and, if asked to, its matches to the list.
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

// matchLength returns how many bytes of a and b are equal, which is known of
// the first n.
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
