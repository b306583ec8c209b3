package server

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
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
func (r *representation) evaluate(f *requests.Fields) (verdict, string) {
	if f.PreconditionFailed(r.tag, r.released) {
		return failed, ""
	}
	if f.IfNoneMatch != nil {
		if tag, ok := matchWeak(f.IfNoneMatch, r.tag); ok {
			return notModified, tag
		}
	} else if f.NotModified(r.tag, r.released) {
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
	if tag, rest, ok := requests.CutTag(lines[0]); ok {
		return rest == "" && !tag.Weak && tag.Opaque == r.tag
	}
	date, ok := requests.ParseDate(lines)
	return ok && r.identity() && !r.released.IsZero() && date.Equal(r.released)
}

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.Gzip) + 1

// An entity tag is `"CONTENT.CODING.CODED"`: 16 bytes of the content's SHA-256,
// the coding, and 8 bytes of the SHA-256 of the coded bytes. So it is strong (RFC
// 9110 §8.8.1), every node gives the same, and a tag of an older coded form can
// be told from that of another content.
const (
	tagContentBytes = 16
	tagCodedBytes   = 8
)

var tagEncoding = base64.RawURLEncoding

// tagLength is that of every tag.
const tagLength = len(`"`) + (tagContentBytes*8+5)/6 + len(".id.") + (tagCodedBytes*8+5)/6 + len(`"`)

// appendTag appends the tag of a content in the representation r.
func appendTag(b []byte, content kvstore.Hash, r kvstore.Representation) []byte {
	name := [codings]string{coding.Identity: ".id.", coding.Brotli: ".br.", coding.Gzip: ".gz."}[r.Coding]
	b = tagEncoding.AppendEncode(append(b, '"'), content[:tagContentBytes])
	b = tagEncoding.AppendEncode(append(b, name...), r.Sum[:tagCodedBytes])
	return append(b, '"')
}

// isOlderForm reports whether tag names the same content in the same coding as
// current, in whatever bytes. Identity has one form only.
func isOlderForm(tag, current string) bool {
	i := strings.LastIndexByte(current, '.') + 1
	if len(tag) != len(current) || tag[:i] != current[:i] || strings.HasSuffix(current[:i], ".id.") {
		return false
	}
	if tag[len(tag)-1] != '"' {
		return false
	}
	_, err := tagEncoding.DecodeString(tag[i : len(tag)-1])
	return err == nil
}

// matchWeak looks for current in an If-None-Match field by weak comparison, and
// for older coded forms of the same. It returns the tag that the answer carries:
// current where the client has it, else the tag as the client sent it, because
// that is the one by which a cache finds what it may refresh (RFC 9111 §4.3.4).
func matchWeak(lines []string, current string) (tag string, ok bool) {
	if requests.IsAny(lines) {
		return current, true
	}
	for _, list := range lines {
		for {
			named, rest, more := requests.CutTag(list)
			if !more {
				break
			}
			switch {
			case named.Opaque == current && !named.Weak:
				return current, true
			case tag == "" && (named.Opaque == current || isOlderForm(named.Opaque, current)):
				tag = named.String()
			}
			list = rest
		}
	}
	return tag, tag != ""
}

// maxRanges is how many ranges a request may name; with more it gets the whole.
const maxRanges = 10

// A span is a range of a representation: length bytes from start on.
type span struct{ start, length int64 }

// contentRange is the value of Content-Range (RFC 9110 §14.4).
func (s span) contentRange(size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", s.start, s.start+s.length-1, size)
}

// A rangeVerdict is what a Range field comes to.
type rangeVerdict int

const (
	whole         rangeVerdict = iota // there is no range, or none that we honour: 200
	partial                           // 206
	unsatisfiable                     // 416
)

// parseRanges reads a Range field for a representation of the given size (RFC
// 9110 §14.2). A field that is malformed, in another unit, repeated, or greedy
// (too many ranges, ranges that overlap, or ranges that add up to the whole) is
// ignored, as the RFC allows (§17.15). So is any range of an empty file, since no range
// of it can be satisfied and clients exist that always ask for one.
func parseRanges(lines []string, size int64) ([]span, rangeVerdict) {
	if len(lines) != 1 || size == 0 {
		return nil, whole
	}
	unit, set, ok := strings.Cut(lines[0], "=")
	if !ok || !strings.EqualFold(unit, "bytes") {
		return nil, whole
	}
	var spans []span
	members := 0
	for more := true; more; {
		var member string
		member, set, more = strings.Cut(set, ",")
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		if members++; members > maxRanges {
			return nil, whole
		}
		s, ok := parseSpan(member, size)
		if !ok {
			return nil, whole
		}
		if s.length > 0 {
			spans = append(spans, s)
		}
	}
	switch {
	case members == 0:
		return nil, whole
	case len(spans) == 0:
		return nil, unsatisfiable
	case len(spans) > 1 && greedy(spans, size):
		return nil, whole
	}
	return spans, partial
}

// parseSpan reads "first-last", "first-" or "-suffix". A range that cannot be
// satisfied has the length 0.
func parseSpan(member string, size int64) (span, bool) {
	first, last, ok := strings.Cut(member, "-")
	if !ok {
		return span{}, false
	}
	if first == "" {
		suffix, ok := parsePosition(last)
		suffix = min(suffix, size)
		return span{size - suffix, suffix}, ok
	}
	start, ok := parsePosition(first)
	if !ok {
		return span{}, false
	}
	end := size - 1
	if last != "" {
		n, ok := parsePosition(last)
		if !ok || n < start {
			return span{}, false
		}
		end = min(end, n)
	}
	return span{start, max(0, end-start+1)}, true
}

// parsePosition reads digits. A number that does not fit is as good as the
// greatest that does: it lies beyond any file.
func parsePosition(digits string) (int64, bool) {
	if digits == "" {
		return 0, false
	}
	for i := 0; i < len(digits); i++ {
		if digits[i] < '0' || digits[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		const beyond = 1 << 62
		return beyond, true
	}
	return n, true
}

// greedy reports whether ranges overlap or cost as much as the whole.
func greedy(spans []span, size int64) bool {
	var total int64
	for i, s := range spans {
		total += s.length
		for _, o := range spans[:i] {
			if s.start < o.start+o.length && o.start < s.start+s.length {
				return true
			}
		}
	}
	return total >= size
}

// multipart prepares the parts of a multipart/byteranges body (RFC 9110 §14.6):
// what goes before each span and after the last, and the length of it all.
type multipart struct {
	boundary string
	heads    []string
	tail     string
	length   int64
}

func newMultipart(spans []span, size int64, contentType string) multipart {
	m := multipart{boundary: rand.Text()}
	for i, s := range spans {
		head := "--" + m.boundary + "\r\nContent-Type: " + contentType + "\r\nContent-Range: " + s.contentRange(size) + "\r\n\r\n"
		if i > 0 {
			head = "\r\n" + head
		}
		m.heads = append(m.heads, head)
		m.length += int64(len(head)) + s.length
	}
	m.tail = "\r\n--" + m.boundary + "--\r\n"
	m.length += int64(len(m.tail))
	return m
}
