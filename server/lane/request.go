package lane

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"
	"time"
	"unsafe"

	"github.com/larder-cdn/larder/internal/requests"
)

// A Request is what a client asks for. Its strings are parts of the connection's
// buffer: they hold for as long as the request is being answered, and a handler that
// keeps one longer has to clone it.
type Request struct {
	Head   bool   // whether the method is HEAD; else it is GET
	Target string // as it came: a path, and a query where there is one
	Path   string // as it came: Target without the query
	Host   string // as it came: the value of the field
	Fields requests.Fields
	// Forwarded says that a field may tell which host a proxy was asked for.
	Forwarded bool
	// Referer and UserAgent are as they came, for a log.
	Referer, UserAgent string
	// Relayed are the lines of the field in which proxies tell clients.
	Relayed []string

	relay  string // that field, in lower case
	closes bool   // whether the client wants the connection to end

	hosts, connections int // how many of these fields there are

	// The lines of Fields, and of Relayed.
	accept, acceptEncoding, ifMatch, ifNoneMatch, ifModifiedSince, ifUnmodifiedSince, relayed lines
}

// lines are those of one field, which may be there so often.
type lines [2]string

// Now returns the time when the request came. It asks no clock.
func (x *Exchange) Now() time.Time { return x.c.now }

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
		return 0, beginning(b)
	}
	r.Fields, r.Forwarded, r.hosts, r.connections, r.closes = requests.Fields{}, false, 0, 0, false
	r.Referer, r.UserAgent, r.Relayed = "", "", nil
	var lower name // of a field
	for {
		end := visible(b, pos)
		if end+1 >= len(b) || b[end] != '\r' || b[end+1] != '\n' {
			return 0, rest(b[pos:])
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
		if n := min(len(b), len(method)); string(b[:n]) == method[:n] {
			return rest(b)
		}
	}
	return odd
}

// rest tells whether what is no simple line yet may become one: not where it has an end.
func rest(line []byte) verdict {
	if bytes.IndexByte(line, '\n') >= 0 {
		return odd
	}
	return partial
}

// first reads the request line and returns its length, with its end.
func (r *Request) first(b []byte) (int, bool) {
	begin := len("GET ")
	switch {
	case strings.HasPrefix(text(b), "GET /"):
		r.Head = false
	case strings.HasPrefix(text(b), "HEAD /"):
		r.Head = true
		begin = len("HEAD ")
	default:
		return 0, false
	}
	n, query, ok := scanTarget(b, begin)
	const version = " HTTP/1.1\r\n"
	if !ok || !strings.HasPrefix(text(b[n:]), version) {
		return 0, false
	}
	r.Target = text(b[begin:n])
	r.Path = r.Target
	if query > 0 {
		r.Path = r.Target[:query-begin]
	}
	return n + len(version), true
}

// scanTarget returns where a target ends that begins at begin, and where its query does, 0 for
// none. It returns false where what is encoded is not.
func scanTarget(b []byte, begin int) (n, query int, ok bool) {
	n = begin
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
			return n, query, false
		}
	}
	return n, query, true
}

// field reads a field, and returns false where net/http is to judge. A name that is not
// known says nothing about the message or the connection, and no handler asks for it.
func (r *Request) field(lower, value []byte) bool {
	if r.relay != "" && string(lower) == r.relay && !r.relayed.add(&r.Relayed, value) {
		return false
	}
	switch string(lower) {
	case "host":
		r.hosts++
		r.Host = trim(value)
		return isHost(r.Host)
	case "connection":
		r.connections++
		connection := trim(value)
		r.closes = !is(connection, "keep-alive")
		return !r.closes || is(connection, "close")
	case "accept":
		return r.accept.add(&r.Fields.Accept, value)
	case "accept-encoding":
		return r.acceptEncoding.add(&r.Fields.AcceptEncoding, value)
	case "if-match":
		return r.ifMatch.add(&r.Fields.IfMatch, value)
	case "if-none-match":
		return r.ifNoneMatch.add(&r.Fields.IfNoneMatch, value)
	case "if-modified-since":
		return r.ifModifiedSince.add(&r.Fields.IfModifiedSince, value)
	case "if-unmodified-since":
		return r.ifUnmodifiedSince.add(&r.Fields.IfUnmodifiedSince, value)
	case "forwarded", "x-forwarded-host":
		r.Forwarded = true
	case "referer":
		r.Referer = trim(value)
	case "user-agent":
		r.UserAgent = trim(value)
	case "te", "range", "expect", "upgrade", "trailer", "if-range", "content-length", "http2-settings", "proxy-connection", "transfer-encoding", "larder-log-size":
		return false
	}
	return true
}

// add gives the handler one more line of a field.
func (l *lines) add(to *[]string, value []byte) bool { return l.put(to, trim(value)) }

func (l *lines) put(to *[]string, value string) bool {
	n := len(*to)
	if n == len(l) {
		return false
	}
	l[n] = value
	*to = l[: n+1 : n+1]
	return true
}

// trim cuts off the spaces around a value; tabs do not get here.
func trim(value []byte) string {
	for len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	for len(value) > 0 && value[len(value)-1] == ' ' {
		value = value[:len(value)-1]
	}
	return text(value)
}

// text returns b as a string without copying it; see [Request].
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// is compares with a token in lower case. What is as long has no letters but those of ASCII,
// if it is equal.
func is(value, lower string) bool {
	return value == lower || len(value) == len(lower) && strings.EqualFold(value, lower)
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
func isHost(s string) bool {
	for i := range len(s) {
		if !hostBytes[s[i]] {
			return false
		}
	}
	return s != ""
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
