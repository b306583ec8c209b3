// Package requests parses untrusted requests: the path as it came and the names and
// files in it, the query, the origin that a client asked at, which content coding an answer has
// (Accept-Encoding), whether the client has it already (the conditions), and whether a failure
// is sent as JSON or as text (Accept).
//
// What it guarantees:
//
//   - A path is decoded once, after it was split, and nothing in it leads out of what it names.
//   - It takes header fields as net/http has them, a string for each line, and any
//     bytes in them. What is malformed is ignored, as RFC 9110 asks; there are no
//     errors. Several lines mean the same as one line with all their members.
//   - An origin, which ends up in the tags that people copy, is one that can be nothing else.
//   - Paths that are not encoded, Accept-Encoding and entity tags are read without an allocation.
//
// It must not know what is being sent: neither assets nor pages, nor how an entity
// tag is made.
package requests

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/lazyregexp"
)

var (
	// ErrMalformed says that a path could mean something else to a store, a proxy or a file
	// system than it means here.
	ErrMalformed = errors.New("the path is malformed")
	// ErrEmpty says that a part of a path is missing.
	ErrEmpty = errors.New("a part of the path is empty")
)

// MaxLine bounds the request line in bytes: method, target and version. A longer one is
// answered with 414 (RFC 9110 §15.5.15).
const MaxLine = 8 << 10

// LineTooLong reports whether a request's line is over [MaxLine].
func LineTooLong(r *http.Request) bool {
	return len(r.Method)+len(r.RequestURI)+len(r.Proto)+len("  ") > MaxLine
}

// RawPath returns the path of a URL percent-encoded as the client sent it. URL.EscapedPath differs if the client left bytes
// unencoded that should be encoded: it encodes the decoded path again, and then every "%2F" is a "/".
func RawPath(u *url.URL) string {
	switch {
	case u.RawPath != "":
		return u.RawPath
	case u.Path == "": // of "GET http://host HTTP/1.1" (RFC 9112 §3.2.2)
		return "/"
	}
	return u.EscapedPath() // the client encoded it in the same way
}

// DecodeName decodes a segment of a raw path that is a name: of a package, a version or a room. It decodes after the path was
// split, so that an encoded slash never moves the border between two segments; "+" is itself (RFC 3986). A name is valid UTF-8
// without slash, backslash and control characters, and neither "." nor "..". The error is [ErrEmpty] or [ErrMalformed].
func DecodeName(segment string) (string, error) {
	name, found, err := decode(segment)
	switch {
	case err != nil:
		return "", err
	case name == "":
		return "", ErrEmpty
	case found&(never|notInNames) != 0, name == ".", name == "..", found&notASCII != 0 && !utf8.ValidString(name):
		return "", ErrMalformed
	}
	return name, nil
}

// DecodeFile decodes the part of a raw path that is the path of a file in a release. It may have any byte but NUL and the
// backslash. None of its segments is empty, "." or "..", whether its slashes are encoded or not. The error is [ErrEmpty] or
// [ErrMalformed].
func DecodeFile(part string) (string, error) {
	file, found, err := decode(part)
	if err != nil {
		return "", err
	}
	if found&never != 0 {
		return "", ErrMalformed
	}
	empty := false
	for rest, more := file, true; more; {
		var segment string
		segment, rest, more = strings.Cut(rest, "/")
		if len(segment) <= len("..") {
			if segment == "." || segment == ".." {
				return "", ErrMalformed
			}
			empty = empty || segment == ""
		}
	}
	if empty {
		return "", ErrEmpty
	}
	return file, nil
}

// A class is a set of kinds of bytes.
type class uint8

const (
	never      class = 1 << iota // NUL separates the parts of the store's keys, and some servers take a backslash for a slash
	notInNames                   // a slash, a control character
	notASCII
	percent
)

var classes = func() (of [256]class) {
	for c := range byte(' ') {
		of[c] = notInNames
	}
	for c := 0x80; c < len(of); c++ {
		of[c] = notASCII
	}
	of['/'], of[0x7f], of['%'] = notInNames, notInNames, percent
	of[0], of['\\'] = never, never
	return of
}()

// classesOf returns the classes of the bytes in s.
func classesOf(s string) (found class) {
	for i := range len(s) {
		found |= classes[s[i]]
	}
	return found
}

// decode percent-decodes a part of a path, and returns the classes of its bytes, encoded and decoded. The error is [ErrMalformed].
func decode(part string) (decoded string, found class, err error) {
	if found = classesOf(part); found&percent == 0 {
		return part, found, nil
	}
	if decoded, err = url.PathUnescape(part); err != nil {
		return "", 0, ErrMalformed
	}
	return decoded, found | classesOf(decoded), nil
}

// Origin returns the scheme and host at which a client reached this server, such as https://cdn.example.com; ok is false if the
// Host field is neither a name nor an address.
func Origin(r *http.Request) (origin string, ok bool) {
	if !isHost(r.Host) {
		return "", false
	}
	return client.Scheme(r) + "://" + strings.ToLower(r.Host), true
}

var hostName = lazyregexp.New(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?(:[0-9]{1,5})?$`)

// isHost reports whether a Host field (RFC 9110 §7.2) is a name or an address, with or without a port.
func isHost(host string) bool {
	if address, ok := strings.CutPrefix(host, "["); ok {
		address, port, ok := strings.Cut(address, "]")
		ip, err := netip.ParseAddr(address)
		return ok && err == nil && ip.Is6() && ip.Zone() == "" && (port == "" || port[0] == ':' && hostName.MatchString("x"+port))
	}
	return hostName.MatchString(host)
}

// ParseQuery parses a query as browsers write it. Invalid percent-encoding, and what does not decode to UTF-8, stays as it is,
// because people search for "50%" by hand. Unlike url.ParseQuery it takes a semicolon literally.
func ParseQuery(raw string) url.Values {
	values := url.Values{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair != "" {
			name, value, _ := strings.Cut(pair, "=")
			name = decodeQueryPart(name)
			values[name] = append(values[name], decodeQueryPart(value))
		}
	}
	return values
}

// encoded are the parts of a text that are percent-encoded.
var encoded = lazyregexp.New(`(?:%[0-9A-Fa-f]{2})+`)

// decodeQueryPart decodes a name or a value of a query as ParseQuery says; "+" is a space.
func decodeQueryPart(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(s, "+", " "), "\uFFFD")
	if !strings.Contains(s, "%") {
		return s
	}
	return encoded.ReplaceAllStringFunc(s, func(part string) string {
		if text, err := url.PathUnescape(part); err == nil && utf8.ValidString(text) {
			return text
		}
		return part
	})
}
