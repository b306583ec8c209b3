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

// A Request is a request of a client. Its strings are parts of the connection's
// buffer, or of the stream's memory: they hold for as long as the request is being answered, and a handler that
// keeps one longer has to clone it.
type Request struct {
	Head   bool   // whether the method is HEAD; else it is GET
	Target string // as it came: a path, and a query if there is one
	Path   string // as it came: Target without the query
	Host   string // as it came: the value of the field
	Fields requests.Fields
	// Forwarded says whether the request has a field Forwarded or X-Forwarded-Host, by which a proxy may name the host.
	Forwarded bool
	// Referer and UserAgent are as they came, for a log.
	Referer, UserAgent string
	// Relayed are the lines of the field in which [Options.Proxies] name the client.
	Relayed []string

	relay  string // that field, in lower case
	closes bool   // whether the client wants the connection to end

	hosts, connections int // how many of these fields there are

	// The lines of Fields, and of Relayed.
	accept, acceptEncoding, availableDictionary, ifMatch, ifNoneMatch, ifModifiedSince, ifUnmodifiedSince, relayed lines
}

// lines is the memory for the lines of one field, of which the lane accepts at most two.
type lines [2]string

// Now returns the time when the request was read, over HTTP/2 about when its turn came, without reading the clock.
func (x *Exchange) Now() time.Time { return x.c.now }

// A verdict is the result of parsing bytes.
type verdict int

const (
	complete verdict = iota // a request
	partial                 // probably the beginning of one
	odd                     // for net/http to judge
)

// parse parses the head of a request at the beginning of b. It returns the head's length and complete, or 0 and partial if more
// bytes are needed, or 0 and odd if net/http has to judge. It judges each line as soon as it is there, as net/http does, so that
// an invalid line is found before the head is complete. The strings of r refer to b.
func (r *Request) parse(b []byte) (int, verdict) {
	pos, ok := r.parseRequestLine(b)
	if !ok {
		return 0, classifyPartial(b)
	}
	r.Fields, r.Forwarded, r.hosts, r.connections, r.closes = requests.Fields{}, false, 0, 0, false
	r.Referer, r.UserAgent, r.Relayed = "", "", nil
	var lower name // of a field
	for {
		end := findControl(b, pos)
		if end+1 >= len(b) || b[end] != '\r' || b[end+1] != '\n' {
			return 0, classifyRest(b[pos:])
		}
		line := b[pos:end]
		pos = end + len("\r\n")
		if len(line) == 0 {
			if r.hosts != 1 || r.connections > 1 {
				return 0, odd
			}
			return pos, complete
		}
		n := lower.readToken(line)
		if n == 0 || n == len(line) || line[n] != ':' || n <= len(lower) && !r.parseField(lower[:n], line[n+1:]) {
			return 0, odd
		}
	}
}

// classifyPartial judges b, at whose beginning parseRequestLine found no request line. It returns partial if b contains no line
// feed, and begins with GET or HEAD, a space and a slash, or is the beginning of these; else odd. It does not look for other
// mistakes, so a malformed line is odd only once its end has come.
func classifyPartial(b []byte) verdict {
	for _, method := range [...]string{"GET /", "HEAD /"} {
		if n := min(len(b), len(method)); string(b[:n]) == method[:n] {
			return classifyRest(b)
		}
	}
	return odd
}

// classifyRest judges the rest of a head in which parse found no complete line. It returns odd if that contains a line feed,
// because the line is malformed then, else partial.
func classifyRest(line []byte) verdict {
	if bytes.IndexByte(line, '\n') >= 0 {
		return odd
	}
	return partial
}

// parseRequestLine parses the request line at the beginning of b, sets Head, Target and Path, and returns the line's length, its
// end included. It returns false if the line is incomplete, or not a GET or HEAD of HTTP/1.1 for a path in plain characters.
func (r *Request) parseRequestLine(b []byte) (int, bool) {
	begin := len("GET ")
	switch {
	case strings.HasPrefix(asString(b), "GET /"):
		r.Head = false
	case strings.HasPrefix(asString(b), "HEAD /"):
		r.Head = true
		begin = len("HEAD ")
	default:
		return 0, false
	}
	n, query, ok := scanTarget(b, begin)
	const version = " HTTP/1.1\r\n"
	if !ok || !strings.HasPrefix(asString(b[n:]), version) {
		return 0, false
	}
	r.Target = asString(b[begin:n])
	r.Path = r.Target
	if query > 0 {
		r.Path = r.Target[:query-begin]
	}
	return n + len(version), true
}

// scanTarget scans the target of a request that starts at b[begin]. n is where it ends: at the first byte that the lane does not
// accept, or at the end of b. query is the index of the first "?" in b, 0 for none. It returns false for invalid
// percent-encoding, also if the end of b cuts it off.
func scanTarget(b []byte, begin int) (n, query int, ok bool) {
	n = begin
	for ; n+8 <= len(b); n += 8 {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		if others := highs &^ (markRange(x|0x20*ones, 'a', 'z') | markRange(x, '-', '9')); others != 0 {
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

// parseField stores a header field; lower is its name in lower case. It ignores unknown fields, which describe neither message
// nor connection. It returns false if net/http has to judge the request, such as one with a body or a range.
func (r *Request) parseField(lower, value []byte) bool {
	if r.relay != "" && string(lower) == r.relay && !r.relayed.add(&r.Relayed, value) {
		return false
	}
	switch string(lower) {
	case "host":
		r.hosts++
		r.Host = trimSpaces(value)
		return isHost(r.Host)
	case "connection":
		r.connections++
		connection := trimSpaces(value)
		r.closes = !equalToken(connection, "keep-alive")
		return !r.closes || equalToken(connection, "close")
	case "accept":
		return r.accept.add(&r.Fields.Accept, value)
	case "accept-encoding":
		return r.acceptEncoding.add(&r.Fields.AcceptEncoding, value)
	case "available-dictionary":
		return r.availableDictionary.add(&r.Fields.AvailableDictionary, value)
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
		r.Referer = trimSpaces(value)
	case "user-agent":
		r.UserAgent = trimSpaces(value)
	case "te", "range", "expect", "upgrade", "trailer", "if-range", "content-length", "http2-settings", "proxy-connection", "transfer-encoding", "larder-log-size":
		return false
	}
	return true
}

// add appends value, without spaces around it, to to, the lines of one field, whose memory is l. It returns false if there are
// too many lines.
func (l *lines) add(to *[]string, value []byte) bool { return l.put(to, trimSpaces(value)) }

// put appends value as it is, which must stay in memory, to to, the lines of one field, whose memory is l. It returns false if
// there are too many lines.
func (l *lines) put(to *[]string, value string) bool {
	n := len(*to)
	if n == len(l) {
		return false
	}
	l[n] = value
	*to = l[: n+1 : n+1]
	return true
}

// trimSpaces returns a field's value without the spaces around it, as a string that shares the memory of value. Tabs do not occur
// here.
func trimSpaces(value []byte) string {
	for len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	for len(value) > 0 && value[len(value)-1] == ' ' {
		value = value[:len(value)-1]
	}
	return asString(value)
}

// asString returns b as a string without copying it. The string changes with b.
func asString(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// equalToken reports whether value equals lower, a token in lower case, in any case.
func equalToken(value, lower string) bool {
	return value == lower || len(value) == len(lower) && strings.EqualFold(value, lower)
}

// A name is the name of a field in lower case; no name that matters here is longer.
type name [24]byte

// readToken reads the token at the beginning of b, stores it in lower case in m as far as it fits, and returns its length, 0 for
// none. It changes some characters other than letters, digits and hyphens, which no name has that matters here. The bytes of m
// behind the token are undefined. It takes eight bytes at a time while they are letters and hyphens, as in most names.
func (m *name) readToken(b []byte) int {
	n := 0
	for ; n+8 <= len(b); n += 8 {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		lower := x | 0x20*ones
		if n < len(m) {
			binary.LittleEndian.PutUint64(m[n:n+8], lower)
		}
		if others := highs &^ (markRange(lower, 'a', 'z') | markRange(x, '-', '-')); others != 0 {
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

// findControl returns the index of the first control character in b from n on, tabs included; len(b) if b has none. It takes
// eight bytes at a time, and those that are not ASCII one by one.
func findControl(b []byte, n int) int {
	for n+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[n : n+8])
		// A visible character makes no carry, so the first marked byte is a control character.
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

// markRange marks, by their highest bits, the bytes of x from first to last, which must be ASCII. A byte that is not marked may
// carry, so marks above the first unmarked byte are meaningless.
func markRange(x, first, last uint64) uint64 {
	return (x + (0x80-first)*ones) &^ (x + (0x7f-last)*ones)
}

// isHost reports whether a Host field is not empty and has only the characters of names, addresses and ports.
func isHost(s string) bool {
	for i := range len(s) {
		if !hostBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

// isHex reports whether c is a hexadecimal digit, in either case.
func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'F' || 'a' <= c && c <= 'f'
}

// The characters of tokens (RFC 9110 §5.6.2), and those that this package accepts in targets (RFC 3986 §3.3, §3.4), besides
// percent-encoded bytes and the question mark, and in Host.
var (
	tokenBytes  = alphanumericAnd("!#$%&'*+-.^_`|~")
	targetBytes = alphanumericAnd("-._~!$&'()*+,;=:@/")
	hostBytes   = alphanumericAnd("-._:[]")
)

// alphanumericAnd returns the set of bytes that are ASCII letters, digits or in others.
func alphanumericAnd(others string) (set [256]bool) {
	for c := range set {
		set[c] = '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
	}
	for _, c := range []byte(others) {
		set[c] = true
	}
	return set
}
