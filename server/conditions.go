package server

import (
	"net/http"
	"time"

	"github.com/larder-cdn/larder/server/negotiate"
)

// A verdict is what a request's conditions come to.
type verdict int

const (
	proceed     verdict = iota
	notModified         // 304
	failed              // 412
)

// evaluate applies a GET's or HEAD's conditions in the order of RFC 9110 §13.2.2.
// For notModified it returns the tag that the answer carries.
func (r *representation) evaluate(f *negotiate.Fields) (verdict, string) {
	if f.IfMatch != nil {
		if !negotiate.Match(f.IfMatch, r.tag) {
			return failed, ""
		}
	} else if since, ok := parseDate(f.IfUnmodifiedSince); ok && r.released.After(since) {
		return failed, ""
	}
	if f.IfNoneMatch != nil {
		if tag, ok := matchWeak(f.IfNoneMatch, r.tag); ok {
			return notModified, tag
		}
	} else if since, ok := parseDate(f.IfModifiedSince); ok && !r.released.IsZero() && !r.released.After(since) {
		return notModified, r.tag
	}
	return proceed, ""
}

// rangeApplies evaluates If-Range (RFC 9110 §13.1.5). A date is a strong
// validator of identity only: coded bytes may have been replaced since by smaller
// ones, and a part of those spliced into the old ones is neither.
func (r *representation) rangeApplies(lines []string) bool {
	switch {
	case lines == nil:
		return true
	case len(lines) > 1:
		return false
	}
	if tag, rest, ok := negotiate.NextTag(lines[0]); ok {
		return rest == "" && !tag.Weak && tag.Opaque == r.tag
	}
	date, ok := parseDate(lines)
	return ok && r.identity() && !r.released.IsZero() && date.Equal(r.released)
}

// parseDate reads an HTTP date (RFC 9110 §5.6.7). A field that is absent,
// repeated or malformed is ignored.
func parseDate(lines []string) (time.Time, bool) {
	if len(lines) != 1 {
		return time.Time{}, false
	}
	t, err := http.ParseTime(lines[0])
	return t, err == nil
}
