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

// A verdict is the result of a request's conditions.
type verdict int

const (
	proceed     verdict = iota
	notModified         // 304
	failed              // 412
)

// evaluateConditions evaluates If-Match, If-Unmodified-Since, If-None-Match and If-Modified-Since of a GET or HEAD against the representation, in the
// order of RFC 9110 §13.2.2. For notModified it also returns the entity tag of the 304 response; for other verdicts the string is "".
func (r *representation) evaluateConditions(f *requests.Fields) (verdict, string) {
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

// rangeApplies evaluates the lines of an If-Range field (RFC 9110 §13.1.5) and reports whether the request's Range applies; without a line it does. A
// date is a strong validator of identity only: encoded bytes may have been replaced by smaller ones since, and a client must not combine parts of
// both.
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
	return ok && r.isIdentity() && !r.released.IsZero() && date.Equal(r.released)
}

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.DCZ) + 1

// storedCodings is how many codings there are without deltas.
const storedCodings = int(coding.Gzip) + 1

// An entity tag is `"CONTENT.CODING.CODED"`: 16 bytes of the content's SHA-256,
// the coding, and 8 bytes of the SHA-256 of the coded bytes. So it is strong (RFC
// 9110 §8.8.1), every node gives the same, and a tag of an older encoding differs
// from that of another content.
const (
	tagContentBytes = 16
	tagCodedBytes   = 8
)

var tagEncoding = base64.RawURLEncoding

// tagLength is that of every tag.
const tagLength = len(`"`) + (tagContentBytes*8+5)/6 + len(".id.") + (tagCodedBytes*8+5)/6 + len(`"`)

// appendETag appends to b the strong entity tag, in quotes, of a content in the representation r.
func appendETag(b []byte, content kvstore.Hash, r kvstore.Representation) []byte {
	name := [codings]string{coding.Identity: ".id.", coding.Brotli: ".br.", coding.Gzip: ".gz.", coding.DCZ: ".dz."}[r.Coding]
	b = tagEncoding.AppendEncode(append(b, '"'), content[:tagContentBytes])
	b = tagEncoding.AppendEncode(append(b, name...), r.Sum[:tagCodedBytes])
	return append(b, '"')
}

// isOlderEncoding reports whether tag is an entity tag, in quotes, of the same content in the same coding as the tag current, with any encoded bytes:
// the client may have an encoding that was replaced by a smaller one. It is true for current itself, too. It is false for identity, which has only
// one form.
func isOlderEncoding(tag, current string) bool {
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

// matchWeak searches the lines of an If-None-Match field for the entity tag current by weak comparison, and for tags of older encodings of the same
// content. If ok, the client has the content, and tag is the entity tag for the 304 response: current if the field has it or "*", else the tag as the
// client sent it, because a cache finds by that what it may refresh (RFC 9111 §4.3.4).
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
			case tag == "" && (named.Opaque == current || isOlderEncoding(named.Opaque, current)):
				tag = named.String()
			}
			list = rest
		}
	}
	return tag, tag != ""
}

// maxRanges is how many ranges a request may name; with more it gets the complete representation.
const maxRanges = 10

// A span is a range of a representation: length bytes from start on.
type span struct{ start, length int64 }

// contentRange returns the value of Content-Range (RFC 9110 §14.4) for the span of a representation of size bytes.
func (s span) contentRange(size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", s.start, s.start+s.length-1, size)
}

// parseRanges parses the lines of a Range field for a representation of size bytes (RFC 9110 §14.2). It returns the satisfiable spans, in the
// client's order. If none is satisfiable, it returns false: the response is 416. It ignores a field, and returns nil and true, that is missing,
// malformed, in another unit, repeated, or greedy, as the RFC allows (§17.15): more than maxRanges ranges, overlapping ones, or ones that add up to
// the whole. It also ignores any range of an empty file, because none can be satisfied and some clients always send one.
func parseRanges(lines []string, size int64) (spans []span, satisfiable bool) {
	if len(lines) != 1 || size == 0 {
		return nil, true
	}
	unit, set, ok := strings.Cut(lines[0], "=")
	if !ok || !strings.EqualFold(unit, "bytes") {
		return nil, true
	}
	members := 0
	for more := true; more; {
		var member string
		member, set, more = strings.Cut(set, ",")
		if member = strings.Trim(member, " \t"); member == "" {
			continue
		}
		if members++; members > maxRanges {
			return nil, true
		}
		s, ok := parseSpan(member, size)
		if !ok {
			return nil, true
		}
		if s.length > 0 {
			spans = append(spans, s)
		}
	}
	if len(spans) > 1 && areGreedy(spans, size) {
		return nil, true
	}
	return spans, members == 0 || len(spans) > 0
}

// parseSpan parses one range, "first-last", "first-" or "-suffix", of a representation of size bytes. The result is false if it is malformed. A range
// that cannot be satisfied has the length 0.
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

// parsePosition parses a decimal number without a sign; the result is false if it is malformed. A number that exceeds int64 becomes one that is
// beyond the end of any file.
func parsePosition(digits string) (int64, bool) {
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		const beyond = 1 << 62
		return beyond, true
	}
	return n, true
}

// areGreedy reports whether any two spans overlap, or all together have at least as many bytes as the whole representation of size bytes.
func areGreedy(spans []span, size int64) bool {
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

// newMultipart returns a random boundary, the head of each part, and the total length in bytes of a multipart/byteranges body for spans of a
// representation of size bytes and type contentType.
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
