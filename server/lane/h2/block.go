package h2

import (
	"strconv"

	"golang.org/x/net/http2/hpack"
)

// This file makes header blocks of responses. They are the same for every connection, because
// nothing of them goes into a dynamic table, so they can be prepared.

// AppendStatus appends the field :status to a header block.
func AppendStatus(b []byte, status int) []byte {
	s := strconv.Itoa(status)
	for i := range statics {
		if e := &statics[i]; e.name == ":status" && e.value == s {
			return append(b, 0x80|byte(i))
		}
	}
	return appendText(appendName(b, ":status"), s)
}

// AppendField appends a field, whose name is in lower case, to a header block, in as few bytes as possible without a dynamic table.
func AppendField(b []byte, name, value string) []byte {
	for i := range statics {
		if e := &statics[i]; i > 0 && e.name == name && e.value == value {
			return append(b, 0x80|byte(i))
		}
	}
	b = appendName(b, name)
	return appendText(b, value)
}

// AppendableName returns the encoded name of a field that is not indexed. AppendValue appends its value.
func AppendableName(name string) string { return string(appendName(nil, name)) }

// AppendValue appends the value of a field without Huffman coding, which is fast.
func AppendValue[T string | []byte](b []byte, value T) []byte {
	return append(AppendLength(b, len(value)), value...)
}

// AppendLength appends the length of a value of n bytes without Huffman coding. The caller appends the value.
func AppendLength(b []byte, n int) []byte { return appendNumber(b, 0, 0x7f, n) }

// appendName appends the name of a field, as an index if the static table has it.
func appendName(b []byte, name string) []byte {
	for i := range statics {
		if i > 0 && statics[i].name == name {
			return appendNumber(b, 0, 0x0f, i)
		}
	}
	return appendText(append(b, 0), name)
}

// appendText appends a string with or without Huffman coding, whichever is shorter.
func appendText(b []byte, s string) []byte {
	n := int(hpack.HuffmanEncodeLength(s))
	if n >= len(s) {
		return AppendValue(b, s)
	}
	return hpack.AppendHuffmanString(appendNumber(b, 0x80, 0x7f, n), s)
}

// appendNumber appends an integer with a prefix of some bits, after flags (RFC 7541 §5.1).
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
