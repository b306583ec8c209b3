// Package address reads what a request says of the address that it came to: the
// origin that it was asked at and the query behind the question mark.
//
// Both are strangers' bytes. An origin ends up in the tags that people copy, so it
// is one that can be nothing else. The package must not know what is served there.
package address

import (
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Origin returns the scheme and host under which a client reached us, false where the
// Host field is missing or no name or address. What a proxy in front says of itself
// is not heard, because any client can say it too: behind one, the bases are configured.
func Origin(r *http.Request) (string, bool) {
	if !plausible(r.Host) {
		return "", false
	}
	host := strings.ToLower(r.Host)
	if r.TLS != nil {
		return "https://" + host, true
	}
	return "http://" + host, true
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?(:[0-9]{1,5})?$`)

// plausible reports whether a Host field (RFC 9110 §7.2) could be one's own: a name
// or an address, with a port or without.
func plausible(host string) bool {
	if address, ok := strings.CutPrefix(host, "["); ok {
		address, port, ok := strings.Cut(address, "]")
		ip, err := netip.ParseAddr(address)
		return ok && err == nil && ip.Is6() && ip.Zone() == "" && (port == "" || port[0] == ':' && hostName.MatchString("x"+port))
	}
	return hostName.MatchString(host)
}

// Query reads a query as browsers write it, false where it is wrongly percent-encoded
// or not UTF-8. Unlike url.ParseQuery it takes a semicolon for itself: people search
// for what they like.
func Query(raw string) (url.Values, bool) {
	values := url.Values{}
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, errName := url.QueryUnescape(name)
		value, errValue := url.QueryUnescape(value)
		if errName != nil || errValue != nil || !utf8.ValidString(name) || !utf8.ValidString(value) {
			return nil, false
		}
		values[name] = append(values[name], value)
	}
	return values, true
}
