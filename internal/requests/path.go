// Package requests parses untrusted requests: the path as it came, the query, the origin of the request, which content coding a response has
// (Accept-Encoding), whether the client has it already (the conditions), and whether a failure
// is sent as JSON or as text (Accept). It also identifies the client: an IPv4 address or an IPv6 /64, which a
// subscriber gets, of the connection, or what a proxy names if the operator trusts that proxy.
//
// What it guarantees:
//
//   - It takes header fields as net/http has them, a string for each line, and any
//     bytes in them. What is malformed is ignored, as RFC 9110 asks; there are no
//     errors. Several lines mean the same as one line with all their members.
//   - An origin, which ends up in the tags that people copy, is one that can be nothing else.
//   - Accept-Encoding and entity tags are read without an allocation.
//   - [Proxies.Handler] runs before all other handlers, removes what a client claims about itself, and sets Request.RemoteAddr to
//     the client's address, so limits, waiting rooms and logs need not know proxies.
//
// It must not know what is being sent: neither assets nor pages, nor how an entity
// tag is made.
package requests

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/internal/text"
)

// MaxLine bounds the request line in bytes: method, target and version. A longer one is
// answered with 414 (RFC 9110 §15.5.15).
const MaxLine = 8 << 10

// LineTooLong reports whether the request line (method, target and version) is longer than [MaxLine].
func LineTooLong(r *http.Request) bool {
	return len(r.Method)+len(r.RequestURI)+len(r.Proto)+len("  ") > MaxLine
}

// RawPath returns the path of a request's URL percent-encoded as the client sent it. URL.EscapedPath differs if the client left
// bytes unencoded that should be encoded: it encodes the decoded path again, and then every "%2F" is a "/".
func RawPath(u *url.URL) string {
	switch {
	case u.RawPath != "":
		return u.RawPath
	case u.Path == "": // of "GET http://host HTTP/1.1" (RFC 9112 §3.2.2)
		return "/"
	}
	return u.EscapedPath() // the client encoded it in the same way
}

// Origin returns scheme and host of the address at which the client reached this server, such as https://cdn.example.com, in
// lower case. ok is false if the Host field is neither a name nor an address.
func Origin(r *http.Request) (origin string, ok bool) {
	if !isHost(r.Host) {
		return "", false
	}
	return Scheme(r) + "://" + strings.ToLower(r.Host), true
}

var hostName = text.NewRegexp(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?(:[0-9]{1,5})?$`)

// isHost reports whether the value of a Host field (RFC 9110 §7.2) is a name or an IP address, with or without a port.
func isHost(host string) bool {
	if address, ok := strings.CutPrefix(host, "["); ok {
		address, port, ok := strings.Cut(address, "]")
		ip, err := netip.ParseAddr(address)
		return ok && err == nil && ip.Is6() && ip.Zone() == "" && (port == "" || port[0] == ':' && hostName.MatchString("x"+port))
	}
	return hostName.MatchString(host)
}

// ParseQuery parses the query of a URL as browsers write it. Percent-encoding that is invalid, or is not of UTF-8, stays as it
// is, because people search for "50%" by hand. Other bytes that are not UTF-8 become U+FFFD. Unlike url.ParseQuery it takes a
// semicolon literally.
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
var encoded = text.NewRegexp(`(?:%[0-9A-Fa-f]{2})+`)

// decodeQueryPart decodes a name or a value of a query by the rules of ParseQuery; "+" is a space.
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
