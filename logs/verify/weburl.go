package verify

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// A webURL is an address as browsers read it: https://url.spec.whatwg.org/. Go's net/url differs from browsers in backslashes, line
// breaks, spaces and hosts, so an address that it reads may be another than the one that a browser requests. Fragments are
// dropped. A test compares this parser with Chromium's.
type webURL struct {
	scheme string
	user   string // with the @ at the end
	host   string // with the port, unless it is the scheme's own
	path   string // begins with a slash, or is all that follows the scheme of an opaque address
	query  string // with the question mark
	opaque bool   // not http or https, such as data:
}

var defaultPorts = map[string]string{"http": "80", "https": "443"}

// Limits of an address, in bytes.
const (
	maxURL    = 4096     // of one that is requested
	maxOpaque = 64 << 10 // of one that contains what it stands for, such as data:
)

// parseWebURL parses an address that is written in a document, and drops its fragment. A relative address is resolved
// against base; it is an error if base is nil or opaque. An address of a scheme other than http and https is opaque; file,
// ftp, ws and wss are errors, and so is an address of over 4,096 bytes, or 64 KiB for data:.
func parseWebURL(text string, base *webURL) (*webURL, error) {
	text, _, _ = strings.Cut(cleanAddress(text), "#")
	if len(text) > maxURL && (len(text) > maxOpaque || !strings.EqualFold(text[:5], "data:")) {
		return nil, fmt.Errorf("the address has over %d bytes", maxURL)
	}
	scheme, rest := cutScheme(text)
	switch {
	case defaultPorts[scheme] != "":
		if base == nil || base.scheme != scheme || countSlashes(rest) >= 2 {
			return parseAuthority(scheme, strings.TrimLeft(rest, `/\`))
		}
		return base.resolveRelative(rest)
	case scheme == "file" || scheme == "ftp" || scheme == "ws" || scheme == "wss":
		return nil, fmt.Errorf("%s: addresses are not supported", scheme)
	case scheme != "":
		return &webURL{scheme: scheme, path: rest, opaque: true}, nil
	case base == nil || base.opaque:
		return nil, errors.New("a relative address, and nothing is known that it is relative to")
	}
	return base.resolveRelative(text)
}

// cleanAddress returns an address without what browsers ignore in it: white space and control characters around it, tabs and line
// breaks within.
func cleanAddress(text string) string {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
	return ignoredInAddress.Replace(text)
}

// ignoredInAddress removes what browsers ignore within an address.
var ignoredInAddress = strings.NewReplacer("\t", "", "\n", "", "\r", "")

// cutScheme returns the scheme of an address in lower case, and what follows its colon. Without a scheme it returns "" and the
// text.
func cutScheme(text string) (scheme, rest string) {
	before, after, ok := strings.Cut(text, ":")
	for i, c := range []byte(before) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		ok = ok && (letter || i > 0 && ('0' <= c && c <= '9' || c == '+' || c == '-' || c == '.'))
	}
	if !ok || before == "" {
		return "", text
	}
	return strings.ToLower(before), after
}

// countSlashes returns the number of slashes and backslashes at the beginning of text.
func countSlashes(text string) int { return len(text) - len(strings.TrimLeft(text, `/\`)) }

// resolveRelative returns the address text, which has neither scheme nor fragment, resolved against u, which must not be
// opaque and stays as it is. For "" that is u itself, with its query. Text after two slashes begins with another host.
func (u *webURL) resolveRelative(text string) (*webURL, error) {
	slashes := countSlashes(text)
	if slashes >= 2 {
		return parseAuthority(u.scheme, text[slashes:])
	}
	to := *u
	path, query, ok := strings.Cut(text, "?")
	if path != "" || ok {
		to.query = encodeQuery(query, ok)
	}
	switch {
	case slashes == 1:
		to.path = resolvePath("/", path)
	case path != "":
		to.path = resolvePath(u.path[:strings.LastIndexByte(u.path, '/')+1], path)
	}
	return &to, nil
}

// parseAuthority parses an address without a fragment from the characters after the scheme's slashes on: user, host, port,
// path and query. scheme is http or https.
func parseAuthority(scheme, text string) (*webURL, error) {
	end := strings.IndexAny(text, `/\?`)
	if end < 0 {
		end = len(text)
	}
	authority, rest := text[:end], text[end:]
	u := &webURL{scheme: scheme}
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		name, password, ok := strings.Cut(authority[:at], ":")
		if authority, name = authority[at+1:], percentEncode(name, userinfoSet); ok && password != "" {
			name += ":" + percentEncode(password, userinfoSet)
		}
		if name != "" {
			u.user = name + "@"
		}
	}
	host, port := authority, ""
	if colon := strings.LastIndexByte(authority, ':'); colon > strings.LastIndexByte(authority, ']') {
		host, port = authority[:colon], authority[colon+1:]
	}
	var err error
	if u.host, err = parseHost(host); err != nil {
		return nil, err
	}
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("the port %.20q is not a number up to 65535", port)
		}
		if port = strconv.FormatUint(n, 10); port != defaultPorts[scheme] {
			u.host += ":" + port
		}
	}
	path, query, ok := strings.Cut(rest, "?")
	u.path, u.query = resolvePath("/", path), encodeQuery(query, ok)
	return u, nil
}

// hosts are read as browsers do: without the limits of DNS, and not as of the transitional time.
var hosts = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.CheckHyphens(false), idna.CheckJoiners(true), idna.StrictDomainName(false), idna.VerifyDNSLength(false))

// parseHost returns the host of an address, which may be a name or an IP address, in the canonical form of browsers. A host
// that browsers reject is an error.
func parseHost(text string) (string, error) {
	if strings.HasPrefix(text, "[") {
		address, err := netip.ParseAddr(strings.TrimSuffix(text[1:], "]"))
		if err != nil || !strings.HasSuffix(text, "]") || !address.Is6() || address.Is4In6() || address.Zone() != "" {
			return "", fmt.Errorf("%.100q is not an IPv6 address", text)
		}
		return "[" + address.String() + "]", nil
	}
	decoded := percentDecode(text)
	host, err := hosts.ToASCII(decoded)
	if err != nil {
		return "", fmt.Errorf("the host %.100q: %w", text, err)
	}
	if host == "" || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune("#%/:<>?@[\\]^|", r) }) {
		return "", fmt.Errorf("the host %.100q has characters that no host has, or none", text)
	}
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	last := labels[len(labels)-1]
	if _, err := parseIPv4Part(last); err == nil || last != "" && strings.Trim(last, "0123456789") == "" {
		return parseIPv4(labels)
	}
	return host, nil
}

// parseIPv4Part parses a part of an IPv4 address in lower case, which may be decimal, octal (0…) or hexadecimal (0x…, with
// 0x for 0). An error means that it is not a number of 64 bits.
func parseIPv4Part(label string) (uint64, error) {
	switch {
	case label == "":
		return 0, strconv.ErrSyntax
	case strings.HasPrefix(label, "0x"):
		if label == "0x" {
			return 0, nil
		}
		return strconv.ParseUint(label[2:], 16, 64)
	case len(label) > 1 && label[0] == '0':
		return strconv.ParseUint(label[1:], 8, 64)
	}
	return strconv.ParseUint(label, 10, 64)
}

// parseIPv4 returns the canonical form, such as 127.0.0.1, of an IPv4 address of one to four parts, the last of which
// stands for all remaining bytes. More parts, or a part that is no number or too large, are an error.
func parseIPv4(labels []string) (string, error) {
	bad := fmt.Errorf("%.100q is not an IPv4 address", strings.Join(labels, "."))
	if len(labels) > 4 {
		return "", bad
	}
	var address uint64
	for i, label := range labels {
		n, err := parseIPv4Part(label)
		last := i == len(labels)-1
		if err != nil || !last && n > math.MaxUint8 || last && n >= 1<<(8*(5-len(labels))) {
			return "", bad
		}
		if last {
			address += n
		} else {
			address += n << (8 * (3 - i))
		}
	}
	return netip.AddrFrom4([4]byte{byte(address >> 24), byte(address >> 16), byte(address >> 8), byte(address)}).String(), nil
}

// resolvePath resolves a path, also with the steps . and .., against a folder, which begins and ends with a slash and is
// percent-encoded, and percent-encodes the path. A path that begins with a slash is resolved against the root instead.
// Backslashes are slashes. Steps above the root are ignored.
func resolvePath(folder, path string) string {
	path = strings.ReplaceAll(path, `\`, "/")
	if strings.HasPrefix(path, "/") {
		folder, path = "/", path[1:]
	}
	var segments []string
	if folder != "/" {
		segments = strings.Split(strings.TrimSuffix(folder[1:], "/"), "/")
	}
	steps := strings.Split(path, "/")
	for i, step := range steps {
		dots := strings.ReplaceAll(strings.ToLower(step), "%2e", ".")
		if dots == ".." {
			segments = segments[:max(0, len(segments)-1)]
		}
		switch {
		case dots != "." && dots != "..":
			segments = append(segments, percentEncode(step, pathSet))
		case i == len(steps)-1:
			segments = append(segments, "")
		}
	}
	return "/" + strings.Join(segments, "/")
}

// encodeQuery returns the percent-encoded query with its question mark. ok says whether the address has a query; if not, it
// returns "".
func encodeQuery(query string, ok bool) string {
	if !ok {
		return ""
	}
	return "?" + percentEncode(query, querySet)
}

// The characters that are percent-encoded in each part of a URL, besides controls and characters beyond ASCII.
const (
	querySet    = ` "#<>'`
	pathSet     = " \"#<>?^`{|}" // the standard leaves | as it is, Chromium does not
	userinfoSet = pathSet + `/:;=@[\]`
)

// percentEncode percent-encodes controls, all bytes that are not ASCII, and the characters in set. It leaves percent signs
// as they are.
func percentEncode(text, set string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < ' ' || c > '~' || strings.IndexByte(set, c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// percentDecode decodes percent-encoded bytes, and leaves a percent sign that begins no such byte as it is.
func percentDecode(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = after
		if n, err := strconv.ParseUint(after[:min(2, len(after))], 16, 8); err == nil && len(after) >= 2 {
			b.WriteByte(byte(n))
			text = after[2:]
		} else {
			b.WriteByte('%')
		}
	}
}

// String returns the absolute address, with its user and query and without a fragment.
func (u *webURL) String() string {
	if u.opaque {
		return u.scheme + ":" + u.path
	}
	return u.scheme + "://" + u.user + u.host + u.path + u.query
}

// origin returns the scheme, host and port, without the scheme's own port, by which browsers compare origins; "" for an
// opaque address, which has no origin.
func (u *webURL) origin() string {
	if u.opaque {
		return ""
	}
	return u.scheme + "://" + u.host
}
