package h2

import (
	"strconv"

	"golang.org/x/net/http2/hpack"
)

// This file makes header blocks of responses. They are the same for every connection, because
// nothing of them goes into a dynamic table, so they can be prepared.

// AppendStatus appends the pseudo-header field :status to the header block b of a response, and returns the block.
func AppendStatus(b []byte, status int) []byte {
	return AppendField(b, ":status", strconv.Itoa(status))
}

// AppendField appends a field, whose name is in lower case, to the header block b, in as few bytes as possible without a dynamic
// table, and returns the block.
func AppendField(b []byte, name, value string) []byte {
	for i := range statics {
		if e := &statics[i]; i > 0 && e.name == name && e.value == value {
			return append(b, 0x80|byte(i))
		}
	}
	return appendText(appendName(b, name), value)
}

// AppendableName returns the encoded name of a field, which is in lower case, for a header block. The caller appends the value
// behind it with AppendValue.
func AppendableName(name string) string { return string(appendName(nil, name)) }

// AppendValue appends the length and the bytes of a field's value to a header block, without Huffman coding, which is fast.
func AppendValue[T string | []byte](b []byte, value T) []byte {
	return append(AppendLength(b, len(value)), value...)
}

// AppendLength appends the length of a field's value of n bytes to a header block. The caller appends the value itself, without
// Huffman coding.
func AppendLength(b []byte, n int) []byte { return appendNumber(b, 0, 0x7f, n) }

// appendName appends the name of a field that does not go into the dynamic table: as an index if the static table has it, else as
// text, with Huffman coding where that is shorter.
func appendName(b []byte, name string) []byte {
	for i := range statics {
		if i > 0 && statics[i].name == name {
			return appendNumber(b, 0, 0x0f, i)
		}
	}
	return appendText(append(b, 0), name)
}

// appendText appends the length and the bytes of a string to a header block, with or without Huffman coding, whichever is
// shorter.
func appendText(b []byte, s string) []byte {
	n := int(hpack.HuffmanEncodeLength(s))
	if n >= len(s) {
		return AppendValue(b, s)
	}
	return hpack.AppendHuffmanString(appendNumber(b, 0x80, 0x7f, n), s)
}

// appendNumber appends n as an HPACK integer (RFC 7541 §5.1). prefix is the mask of the bits in the first byte that the integer
// may take, and flags are the other bits of that byte.
func appendNumber(b []byte, flags, prefix byte, n int) []byte {
	if n < int(prefix) {
		return append(b, flags|byte(n))
	}
	b = append(b, flags|prefix)
	for n -= int(prefix); n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}
