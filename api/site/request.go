package site

import (
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// What a request may ask for.
const (
	maxQuery = 8 << 10 // bytes of a query string
	maxText  = 512     // bytes of what is searched or filtered for, as in the API
	maxPage  = 1 << 20
)

// A request is one for a page.
type request struct {
	*http.Request
	segments  []string // decoded, those that the route leaves open
	query     url.Values
	siteBase  string
	assetBase string
}

// parse reads what the pages need of a request and refuses what makes no sense.
func (q *request) parse(o Options) error {
	origin := "http://"
	if q.TLS != nil {
		origin = "https://"
	}
	if !plausibleHost(q.Host) && (o.SiteBase == "" || o.AssetBase == "") {
		// The host becomes part of what people copy into their pages.
		return refuse(http.StatusBadRequest, "This address is broken", "The request's Host is not a name or an address.")
	}
	origin += q.Host
	q.siteBase, q.assetBase = or(o.SiteBase, origin), or(o.AssetBase, origin)
	if len(q.URL.RawQuery) > maxQuery {
		return refuse(http.StatusRequestURITooLong, "This address is too long", "What follows the question mark may have 8 KiB.")
	}
	query, ok := parseQuery(q.URL.RawQuery)
	if !ok {
		return refuse(http.StatusBadRequest, "This address is broken", "What follows the question mark is not valid UTF-8, or wrongly percent-encoded.")
	}
	q.query = query
	return nil
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}

// parseQuery is url.ParseQuery, but a semicolon is a character like any other, as
// in browsers, and all must be valid UTF-8.
func parseQuery(raw string) (url.Values, bool) {
	values := url.Values{}
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		name, value, _ := strings.Cut(pair, "=")
		name, err := url.QueryUnescape(name)
		if err != nil || !utf8.ValidString(name) {
			return nil, false
		}
		value, err = url.QueryUnescape(value)
		if err != nil || !utf8.ValidString(value) {
			return nil, false
		}
		if name != "" {
			values.Add(name, value)
		}
	}
	return values, true
}

// text returns a parameter as what somebody typed: without control characters and
// white space around, cut to maxText bytes.
func (q *request) text(name string) string {
	s := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, q.query.Get(name))
	return strings.TrimSpace(cut(strings.TrimSpace(s), maxText))
}

// page returns the number of the page that is asked for, from 1. What is no number is 1.
func (q *request) page() int {
	n, err := strconv.Atoi(q.query.Get("page"))
	if err != nil {
		return 1
	}
	return min(max(n, 1), maxPage)
}

// cut returns the first n bytes of s, or fewer where that would split a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// plain reports whether a segment of a path is text: valid UTF-8 without control
// characters.
func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_.])?(:[0-9]{1,5})?$`)

// plausibleHost reports whether a Host field (RFC 9110 §7.2) could be one's own: a
// name or an address, with a port or without.
func plausibleHost(host string) bool {
	if address, ok := strings.CutPrefix(host, "["); ok {
		address, port, ok := strings.Cut(address, "]")
		ip, err := netip.ParseAddr(address)
		return ok && err == nil && ip.Is6() && ip.Zone() == "" && (port == "" || port[0] == ':' && hostName.MatchString("x"+port))
	}
	return hostName.MatchString(host)
}

func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	return path + "?" + query
}
