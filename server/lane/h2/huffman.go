package h2

import (
	"strings"

	"golang.org/x/net/http2/hpack"
)

// A step is what half a byte of Huffman code does in a node of the code's tree (RFC 7541
// appendix B): it leads to another node, and may end a symbol.
type step struct {
	next   uint8
	symbol byte
	flags  uint8
}

const (
	emits   = 1 << iota // a symbol ends
	accepts             // the text may end here: what came since is padding
	fails               // no text has this
)

// steps has a row for each node; there is one less than leaves: 256 symbols and the end.
var steps = newSteps()

// newSteps computes the table by which appendHuffman decodes HPACK's Huffman code, half a byte at a time.
func newSteps() *[256][16]step {
	type node struct {
		child   [2]int // another node, or a leaf below 0: ^symbol
		padding bool   // whether ones lead here, fewer than eight
	}
	nodes := make([]node, 1, 256)
	nodes[0].padding = true
	add := func(bit func(int) int, length, symbol int) {
		at := 0
		for i := range length {
			b := bit(i)
			switch next := nodes[at].child[b]; {
			case i == length-1:
				nodes[at].child[b] = ^symbol
			case next > 0:
				at = next
			default:
				nodes = append(nodes, node{padding: nodes[at].padding && b == 1 && i < 7})
				nodes[at].child[b] = len(nodes) - 1
				at = len(nodes) - 1
			}
		}
	}
	const end, endLength = 256, 30 // all ones
	for symbol := range end {
		s := string([]byte{byte(symbol)})
		code := hpack.AppendHuffmanString(nil, s)
		length := int(hpack.HuffmanEncodeLength(strings.Repeat(s, 8))) // bytes of eight, so bits of one
		add(func(i int) int { return int(code[i/8]>>(7-i%8)) & 1 }, length, symbol)
	}
	add(func(int) int { return 1 }, endLength, end)
	table := new([256][16]step)
	for from := range nodes {
		for half := range 16 {
			at, s := from, step{}
			for i := range 4 {
				next := nodes[at].child[half>>(3-i)&1]
				if next >= 0 {
					at = next
					continue
				}
				if ^next == end {
					s.flags = fails
					break
				}
				s.symbol, s.flags, at = byte(^next), emits, 0
			}
			if s.next = uint8(at); nodes[at].padding {
				s.flags |= accepts
			}
			table[from][half] = s
		}
	}
	return table
}

// appendHuffman decodes code, a string in Huffman code, and appends the text to to. It returns false if the code is malformed,
// with the text before the mistake appended.
func appendHuffman(to, code []byte) ([]byte, bool) {
	s := step{flags: accepts}
	for _, b := range code {
		if s = steps[s.next][b>>4]; s.flags&emits != 0 {
			to = append(to, s.symbol)
		}
		if s.flags&fails != 0 {
			return to, false
		}
		if s = steps[s.next][b&15]; s.flags&emits != 0 {
			to = append(to, s.symbol)
		}
		if s.flags&fails != 0 {
			return to, false
		}
	}
	return to, s.flags&accepts != 0
}
