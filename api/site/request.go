package site

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/larder-cdn/larder/api/address"
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
	origin, ok := address.Origin(q.Request)
	if !ok && (o.SiteBase == "" || o.AssetBase == "") {
		// The host becomes part of what people copy into their pages.
		return refuse(http.StatusBadRequest, "This address is broken", "The request's Host is not a name or an address.")
	}
	q.siteBase, q.assetBase = or(o.SiteBase, origin), or(o.AssetBase, origin)
	if len(q.URL.RawQuery) > maxQuery {
		return refuse(http.StatusRequestURITooLong, "This address is too long", "What follows the question mark may have 8 KiB.")
	}
	if q.query, ok = address.Query(q.URL.RawQuery); !ok {
		return refuse(http.StatusBadRequest, "This address is broken", "What follows the question mark is not valid UTF-8, or wrongly percent-encoded.")
	}
	return nil
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
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

func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	return path + "?" + query
}
