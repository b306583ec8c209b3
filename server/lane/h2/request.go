package h2

import (
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// A Kind says which field a field is, if its name is one of those that this package or its callers look at; [Other] is any other
// field.
type Kind uint8

const (
	Other Kind = iota
	Host
	Accept
	AcceptEncoding
	AvailableDictionary
	IfMatch
	IfNoneMatch
	IfModifiedSince
	IfUnmodifiedSince
	Range
	IfRange
	Expect
	ContentLength
	Trailer
	Cookie
	Forwarded // Forwarded or X-Forwarded-Host, by which a proxy names the host
	Referer
	UserAgent
	LogSize // Larder-Log-Size: how many entries of the log the response has to cover

	priority
	te
	method
	scheme
	authority
	path
	hop // it belongs to a connection of HTTP/1.1
	odd // its name is invalid, or that of a pseudo-field which no request has
)

var kinds = map[string]Kind{
	"host": Host, "accept": Accept, "accept-encoding": AcceptEncoding, "available-dictionary": AvailableDictionary,
	"if-match": IfMatch, "if-none-match": IfNoneMatch, "if-modified-since": IfModifiedSince, "if-unmodified-since": IfUnmodifiedSince,
	"range": Range, "if-range": IfRange, "expect": Expect, "content-length": ContentLength, "trailer": Trailer, "cookie": Cookie,
	"forwarded": Forwarded, "x-forwarded-host": Forwarded, "referer": Referer, "user-agent": UserAgent, "larder-log-size": LogSize,
	"priority": priority, "te": te, ":method": method, ":scheme": scheme, ":authority": authority, ":path": path,
	"connection": hop, "keep-alive": hop, "proxy-connection": hop, "transfer-encoding": hop, "upgrade": hop,
}

// kindOf returns the kind of a field by its name in lower case: Other for an unknown field, odd for an unknown pseudo-header
// field.
func kindOf(name string) Kind {
	k := kinds[name]
	if k == Other && name != "" && name[0] == ':' {
		return odd
	}
	return k
}

// A Field is a field of a request. Its text holds as long as the request.
type Field struct {
	Kind        Kind
	Name, Value string
}

// A Request is a request of a client.
type Request struct {
	Method, Scheme, Authority, Path string
	// Fields are in the order in which they came, without the pseudo-fields.
	Fields []Field
	// Length is what Content-Length says, -1 if it says nothing.
	Length int64
	// Bodiless says that the head is all of it.
	Bodiless bool
	// TooLarge says that there are more or longer fields than the limit allows. Those beyond it
	// are missing, pseudo-fields too.
	TooLarge bool

	bytes, most int // of the header list, as RFC 9113 §6.5.2 counts it
	malformed   bool
	trailer     bool // these are the fields after a body
	seen        uint8
	urgency     string
	scratch     []byte
}

// bits of seen
const (
	sawMethod = 1 << iota
	sawScheme
	sawAuthority
	sawPath
	sawField
)

// reset empties the request, for a new one with the same buffers. most bounds the size of its fields in bytes; others beyond it
// set TooLarge.
func (r *Request) reset(most int) {
	clear(r.Fields)
	*r = Request{Fields: r.Fields[:0], scratch: r.scratch[:0], Length: -1, most: most}
	if cap(r.scratch) > scratchKept {
		r.scratch = nil
	}
	if cap(r.Fields) > fieldsKept {
		r.Fields = nil
	}
}

// How large buffers of a finished request may be for the next one to reuse them.
const scratchKept, fieldsKept = 4 << 10, 64

// addField adds a decoded field to the request. It marks the request as malformed if the field must not occur, and as too large,
// without the field, if it exceeds the limit.
func (r *Request) addField(e *entry) {
	if r.bytes += e.size(); r.bytes > r.most {
		r.TooLarge = true
		return
	}
	if e.odd {
		r.malformed = true
		return
	}
	switch e.kind {
	case method:
		r.setPseudo(sawMethod, &r.Method, e.value)
		return
	case scheme:
		r.setPseudo(sawScheme, &r.Scheme, e.value)
		return
	case authority:
		r.setPseudo(sawAuthority, &r.Authority, e.value)
		return
	case path:
		r.setPseudo(sawPath, &r.Path, e.value)
		return
	case hop, odd:
		r.malformed = true
		return
	case te:
		if e.value != "trailers" { // RFC 9113 §8.2.2
			r.malformed = true
			return
		}
	case ContentLength:
		n, err := strconv.ParseUint(e.value, 10, 63)
		if err != nil || e.value[0] == '+' || r.Length >= 0 && r.Length != int64(n) {
			r.malformed = true
			return
		}
		r.Length = int64(n)
	case priority:
		r.urgency = e.value
	}
	r.seen |= sawField
	r.Fields = append(r.Fields, Field{e.kind, e.name, e.value})
}

// setPseudo stores the value of a pseudo-header field in to. bit says which one. It marks the request as malformed if that came
// before, or after a regular field, or in a trailer.
func (r *Request) setPseudo(bit uint8, to *string, value string) {
	if r.seen&(bit|sawField) != 0 || r.trailer {
		r.malformed = true
	}
	r.seen |= bit
	*to = value
}

// isComplete reports whether the fields make a valid request (RFC 9113 §8.3.1). A request with too many fields passes, unless it
// is malformed, because the missing ones may be beyond the limit.
func (r *Request) isComplete() bool {
	const most = sawMethod | sawScheme | sawPath
	switch {
	case r.malformed:
		return false
	case r.TooLarge:
		return true // what is missing may be beyond the limit
	case r.Method == "CONNECT":
		return r.seen&(sawScheme|sawPath) == 0 && r.Authority != ""
	case r.seen&most != most || r.Path == "" || r.Scheme != "https" && r.Scheme != "http":
		return false
	case r.Path[0] != '/' && (r.Path != "*" || r.Method != "OPTIONS"):
		return false
	}
	return httpguts.ValidHeaderFieldName(r.Method) && r.hostsAgree() && (!r.Bodiless || r.Length <= 0)
}

// hostsAgree reports whether the request has at most one Host field, which names the same host as :authority if there is both, and
// :authority has no user information (RFC 9113 §8.3.1).
func (r *Request) hostsAgree() bool {
	hosts := 0
	for i := range r.Fields {
		if f := &r.Fields[i]; f.Kind == Host {
			hosts++
			if hosts > 1 || r.Authority != "" && !strings.EqualFold(f.Value, r.Authority) {
				return false
			}
		}
	}
	return !strings.Contains(r.Authority, "@")
}

// IsName reports whether s is valid as the name of a field: a token in lower case (RFC 9113 §8.2.1).
func IsName(s string) bool {
	return httpguts.ValidHeaderFieldName(s) && strings.ToLower(s) == s
}

// IsValue reports whether s is valid as the value of a field: no control characters but tabs, and no white space at its beginning
// or end (RFC 9113 §8.2.1).
func IsValue(s string) bool {
	return httpguts.ValidHeaderFieldValue(s) && (s == "" || !isSpace(s[0]) && !isSpace(s[len(s)-1]))
}

// isSpace reports whether c is a space or a tab.
func isSpace(c byte) bool { return c == ' ' || c == '\t' }
