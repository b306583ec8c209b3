package lane

import (
	"bytes"
	"encoding/binary"
	"unsafe"

	"github.com/larder-cdn/larder/server/negotiate"
)

// A Request is what a client asks for. Its strings are parts of the connection's
// buffer: they hold for as long as the request is being answered, and who keeps
// one longer has to clone it.
type Request struct {
	Head   bool   // whether the method is HEAD; else it is GET
	Target string // as it came: a path, and a query where there is one
	Host   string // as it came: the value of the field
	Fields negotiate.Fields

	closes bool // whether the client wants the connection to end

	lines  [collected][maxLines]string
	counts [collected]int
	hosts  int
}

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
// complete, as net/http would.
func (r *Request) parse(b []byte) (int, verdict) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		return 0, beginning(b)
	}
	if !r.first(b[:end]) {
		return 0, odd
	}
	r.counts, r.hosts, r.closes = [collected]int{}, 0, false
	connections := 0
	for pos := end + 1; ; {
		end := bytes.IndexByte(b[pos:], '\n')
		if end < 0 {
			return 0, partial
		}
		line := b[pos : pos+end]
		pos += end + 1
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return 0, odd
		}
		if line = line[:len(line)-1]; len(line) == 0 {
			if r.hosts != 1 || connections > 1 {
				return 0, odd
			}
			r.collect()
			return pos, complete
		}
		switch r.field(line) {
		case fieldOdd:
			return 0, odd
		case fieldConnection:
			connections++
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

// first reads the request line.
func (r *Request) first(line []byte) bool {
	const version = " HTTP/1.1\r"
	n := len(line) - len(version)
	if n < 0 || string(line[n:]) != version {
		return false
	}
	switch line = line[:n]; {
	case bytes.HasPrefix(line, []byte("GET /")):
		r.Head, line = false, line[len("GET "):]
	case bytes.HasPrefix(line, []byte("HEAD /")):
		r.Head, line = true, line[len("HEAD "):]
	default:
		return false
	}
	for i, c := range line {
		if !targetBytes[c] {
			return false
		}
		if c == '%' && (i+2 >= len(line) || !isHex(line[i+1]) || !isHex(line[i+2])) {
			return false
		}
	}
	r.Target = text(line)
	return true
}

type fieldKind int

const (
	fieldOdd fieldKind = iota
	fieldPlain
	fieldConnection
)

// field reads the line of a field. A name that is not known says nothing about the message
// or the connection, and no handler asks for it.
func (r *Request) field(line []byte) fieldKind {
	n := 0
	for n < len(line) && tokenBytes[line[n]] {
		n++
	}
	if n == 0 || n == len(line) || line[n] != ':' {
		return fieldOdd
	}
	name, value := line[:n], line[n+1:]
	if !plain(value) {
		return fieldOdd
	}
	for len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	for len(value) > 0 && value[len(value)-1] == ' ' {
		value = value[:len(value)-1]
	}
	switch len(name) {
	case 2:
		return unless(is(name, "te"))
	case 4:
		if is(name, "host") {
			r.hosts++
			r.Host = text(value)
			return unless(!isHost(value))
		}
	case 5:
		return unless(is(name, "range"))
	case 6:
		if is(name, "accept") {
			return r.add(accept, value)
		}
		return unless(is(name, "expect"))
	case 7:
		return unless(is(name, "upgrade") || is(name, "trailer"))
	case 8:
		if is(name, "if-match") {
			return r.add(ifMatch, value)
		}
		return unless(is(name, "if-range"))
	case 10:
		if is(name, "connection") {
			switch {
			case is(value, "close"):
				r.closes = true
			case !is(value, "keep-alive"):
				return fieldOdd
			}
			return fieldConnection
		}
	case 13:
		if is(name, "if-none-match") {
			return r.add(ifNoneMatch, value)
		}
	case 14:
		return unless(is(name, "content-length") || is(name, "http2-settings"))
	case 15:
		if is(name, "accept-encoding") {
			return r.add(acceptEncoding, value)
		}
	case 16:
		return unless(is(name, "proxy-connection"))
	case 17:
		if is(name, "if-modified-since") {
			return r.add(ifModifiedSince, value)
		}
		return unless(is(name, "transfer-encoding"))
	case 19:
		if is(name, "if-unmodified-since") {
			return r.add(ifUnmodifiedSince, value)
		}
	}
	return fieldPlain
}

func unless(isOdd bool) fieldKind {
	if isOdd {
		return fieldOdd
	}
	return fieldPlain
}

func (r *Request) add(field int, value []byte) fieldKind {
	n := r.counts[field]
	if n == maxLines {
		return fieldOdd
	}
	r.lines[field][n] = text(value)
	r.counts[field]++
	return fieldPlain
}

// collect gives the handler the lines of each field, nil where there is none.
func (r *Request) collect() {
	of := func(field int) []string {
		if n := r.counts[field]; n > 0 {
			return r.lines[field][:n:n]
		}
		return nil
	}
	r.Fields = negotiate.Fields{
		Accept:            of(accept),
		AcceptEncoding:    of(acceptEncoding),
		IfMatch:           of(ifMatch),
		IfNoneMatch:       of(ifNoneMatch),
		IfModifiedSince:   of(ifModifiedSince),
		IfUnmodifiedSince: of(ifUnmodifiedSince),
	}
}

// text returns b as a string without copying it; see [Request].
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// is compares what can only be a token with one in lower case. Setting the bit that tells
// cases apart maps no other token byte to a letter or a hyphen.
func is(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i := range b {
		if b[i]|0x20 != lower[i] {
			return false
		}
	}
	return true
}

// plain reports whether a field's value has no control characters, tabs included.
func plain(b []byte) bool {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for len(b) >= 8 {
		x := binary.LittleEndian.Uint64(b)
		deleted := x ^ 0x7f*ones
		if ((x-0x20*ones)&^x|(deleted-ones)&^deleted)&highs != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c < 0x20 || c == 0x7f {
			return false
		}
	}
	return true
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
// 3986 §3.3, §3.4) and in Host.
var (
	tokenBytes  = alphanumericAnd("!#$%&'*+-.^_`|~")
	targetBytes = alphanumericAnd("-._~!$&'()*+,;=:@/?%")
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
