package lane

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"time"
	"unsafe"

	"github.com/larder-cdn/larder/server/negotiate"
)

// A Request is what a client asks for. Its strings are parts of the connection's
// buffer: they hold for as long as the request is being answered, and who keeps
// one longer has to clone it.
type Request struct {
	Head   bool   // whether the method is HEAD; else it is GET
	Target string // as it came: a path, and a query where there is one
	Path   string // as it came: Target without the query
	Host   string // as it came: the value of the field
	Fields negotiate.Fields

	closes bool // whether the client wants the connection to end

	lines              [collected][maxLines]string // of Fields
	hosts, connections int                         // how many of these fields there are
}

// Now returns the time when the request came. It asks no clock.
func (x *Exchange) Now() time.Time { return x.c.now }

// The fields that are collected.
const (
	accept = iota
	acceptEncoding
	ifMatch
	ifNoneMatch
	ifModifiedSince
	ifUnmodifiedSince
	collected
)

// maxLines is how often a field may be there.
const maxLines = 2

// A verdict is what bytes are.
type verdict int

const (
	complete verdict = iota // a request
	partial                 // the beginning of one, as far as one can tell
	odd                     // for net/http to judge
)

// parse reads the head of a request from the beginning of b and returns its length.
// It takes each line as it is there, so what is odd is found before the head is
// complete, as net/http would. Each byte is looked at once: what ends a line also is what
// must not be in it.
func (r *Request) parse(b []byte) (int, verdict) {
	pos, ok := r.first(b)
	if !ok {
		if isWhole(b) {
			return 0, odd
		}
		return 0, beginning(b)
	}
	r.Fields, r.hosts, r.connections, r.closes = negotiate.Fields{}, 0, 0, false
	var lower name // of a field
	for {
		end := visible(b, pos)
		if end+1 >= len(b) || b[end] != '\r' || b[end+1] != '\n' {
			return 0, notALine(b[pos:])
		}
		line := b[pos:end]
		pos = end + len("\r\n")
		if len(line) == 0 {
			if r.hosts != 1 || r.connections > 1 {
				return 0, odd
			}
			return pos, complete
		}
		n := lower.read(line)
		if n == 0 || n == len(line) || line[n] != ':' || n <= len(lower) && !r.field(lower[:n], line[n+1:]) {
			return 0, odd
		}
	}
}

// beginning tells whether a request line that is not complete may become simple.
func beginning(b []byte) verdict {
	for _, method := range [...]string{"GET /", "HEAD /"} {
		n := min(len(b), len(method))
		if string(b[:n]) == method[:n] {
			return partial
		}
	}
	return odd
}

// notALine tells whether what is no line yet may become one.
func notALine(line []byte) verdict {
	if isWhole(line) {
		return odd
	}
	return partial
}

// isWhole reports whether there is a line in b to its end.
func isWhole(b []byte) bool { return bytes.IndexByte(b, '\n') >= 0 }

func hasPrefix(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix
}

// first reads the request line and returns its length, with its end.
func (r *Request) first(b []byte) (int, bool) {
	begin := len("GET ")
	switch {
	case hasPrefix(b, "GET /"):
		r.Head = false
	case hasPrefix(b, "HEAD /"):
		r.Head = true
		begin = len("HEAD ")
	default:
		return 0, false
	}
	n, query := begin, 0
	for ; n+8 <= len(b); n += 8 {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		if others := highs &^ (between(x|0x20*ones, 'a', 'z') | between(x, '-', '9')); others != 0 {
			n += bits.TrailingZeros64(others) / 8
			break
		}
	}
	for ; n < len(b); n++ {
		c := b[n]
		if targetBytes[c] {
			continue
		}
		if c == '?' {
			if query == 0 {
				query = n
			}
			continue
		}
		if c != '%' {
			break
		}
		if n+2 >= len(b) || !isHex(b[n+1]) || !isHex(b[n+2]) {
			return 0, false
		}
	}
	const version = " HTTP/1.1\r\n"
	if !hasPrefix(b[n:], version) {
		return 0, false
	}
	r.Target = text(b[begin:n])
	r.Path = r.Target
	if query > 0 {
		r.Path = r.Target[:query-begin]
	}
	return n + len(version), true
}

// field reads a field, and returns false where net/http is to judge. A name that is not
// known says nothing about the message or the connection, and no handler asks for it.
func (r *Request) field(lower, value []byte) bool {
	switch string(lower) {
	case "host":
		r.hosts++
		value = trim(value)
		r.Host = text(value)
		return isHost(value)
	case "connection":
		r.connections++
		value = trim(value)
		r.closes = !is(value, "keep-alive")
		return !r.closes || is(value, "close")
	case "accept":
		return r.add(&r.Fields.Accept, accept, value)
	case "accept-encoding":
		return r.add(&r.Fields.AcceptEncoding, acceptEncoding, value)
	case "if-match":
		return r.add(&r.Fields.IfMatch, ifMatch, value)
	case "if-none-match":
		return r.add(&r.Fields.IfNoneMatch, ifNoneMatch, value)
	case "if-modified-since":
		return r.add(&r.Fields.IfModifiedSince, ifModifiedSince, value)
	case "if-unmodified-since":
		return r.add(&r.Fields.IfUnmodifiedSince, ifUnmodifiedSince, value)
	case "te", "range", "expect", "upgrade", "trailer", "if-range", "content-length", "http2-settings", "proxy-connection", "transfer-encoding":
		return false
	}
	return true
}

// add gives the handler one more line of a field.
func (r *Request) add(to *[]string, field int, value []byte) bool {
	n := len(*to)
	if n == maxLines {
		return false
	}
	r.lines[field][n] = text(trim(value))
	*to = r.lines[field][: n+1 : n+1]
	return true
}

// trim cuts off the spaces around a value; tabs do not get here.
func trim(value []byte) []byte {
	for len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	for len(value) > 0 && value[len(value)-1] == ' ' {
		value = value[:len(value)-1]
	}
	return value
}

// text returns b as a string without copying it; see [Request].
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// is compares what is visible with a token in lower case that has letters and hyphens. Setting
// the bit that tells cases apart maps no other visible byte to one of those.
func is(b []byte, lower string) bool {
	return string(b) == lower || len(b) == len(lower) && isFolded(b, lower)
}

func isFolded(b []byte, lower string) bool {
	for i := range b {
		if b[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// A name is the name of a field in lower case; no name that matters here is longer.
type name [24]byte

// read reads the token that b begins with, and returns its length. It takes eight bytes at a
// time, as long as they are letters and hyphens; that is how names mostly are.
func (m *name) read(b []byte) int {
	n := 0
	for ; n+8 <= len(b); n += 8 {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		lower := x | 0x20*ones
		if n < len(m) {
			binary.LittleEndian.PutUint64(m[n:n+8], lower)
		}
		if others := highs &^ (between(lower, 'a', 'z') | between(x, '-', '-')); others != 0 {
			n += bits.TrailingZeros64(others) / 8
			break
		}
	}
	for ; n < len(b) && tokenBytes[b[n]]; n++ {
		if n < len(m) {
			m[n] = b[n] | 0x20
		}
	}
	return n
}

// visible returns where in b the first control character is, tabs included, from n on, and
// len(b) where there is none. It takes eight bytes at a time, and those that are not ASCII
// one by one.
func visible(b []byte, n int) int {
	for n+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		// What is visible makes no carry, so the first byte that is marked is none of it.
		found := ((x - 0x20*ones) | (x + ones)) & highs
		if found == 0 {
			n += 8
			continue
		}
		n += bits.TrailingZeros64(found) / 8
		if b[n] < 0x80 {
			return n
		}
		n++
	}
	for n < len(b) && b[n] >= 0x20 && b[n] != 0x7f {
		n++
	}
	return n
}

// The lowest bit of each byte of a word, and the highest.
const ones, highs = 0x0101010101010101, 0x8080808080808080

// between marks, by their highest bits, the bytes of x from first to last, which are ASCII.
// A byte that is not makes carries, so what is above the first unmarked byte means nothing.
func between(x, first, last uint64) uint64 {
	return (x + (0x80-first)*ones) &^ (x + (0x7f-last)*ones)
}

// isHost reports whether a Host field's value has only what names, addresses and ports
// consist of.
func isHost(b []byte) bool {
	for _, c := range b {
		if !hostBytes[c] {
			return false
		}
	}
	return len(b) > 0
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' || 'a' <= c && c <= 'f'
}

// What stands in tokens (RFC 9110 §5.6.2), and what this package takes in targets (RFC
// 3986 §3.3, §3.4), beside what is encoded and where the query begins, and in Host.
var (
	tokenBytes  = alphanumericAnd("!#$%&'*+-.^_`|~")
	targetBytes = alphanumericAnd("-._~!$&'()*+,;=:@/")
	hostBytes   = alphanumericAnd("-._:[]")
)

func alphanumericAnd(others string) (set [256]bool) {
	for c := range set {
		set[c] = '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
	}
	for _, c := range []byte(others) {
		set[c] = true
	}
	return set
}
