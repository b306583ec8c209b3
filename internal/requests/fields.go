package requests

import (
	"crypto/sha256"
	"encoding/base64"
	"iter"
	"net/http"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// A Weight is a quality value (RFC 9110 §12.4.2) in thousandths, doubled. The
// doubling leaves room for leastWeight below the smallest weight that a client
// can express.
type Weight int

// Refused is the weight of what must not be sent.
const Refused Weight = 0

const (
	leastWeight Weight = 1
	fullWeight  Weight = 2 * 1000
	unlisted    Weight = -1
)

// Weights is what an Accept-Encoding field says about each of our codings, by the coding.
type Weights [coding.DCZ + 1]Weight

// ParseAcceptEncoding reads the lines of a request's Accept-Encoding field (RFC
// 9110 §12.5.3).
//
//   - Without the field any coding would be acceptable; we send identity, because
//     a client that does not request a coding in practice cannot decode one.
//   - Identity is acceptable unless refused; if it is not listed it is liked
//     less than everything that is.
//   - "*" does not include deltas: few clients can decode them.
//   - A member that is malformed is ignored, and so is an unknown coding. Of a
//     coding listed repeatedly the greatest weight counts: the client can decode it.
func ParseAcceptEncoding(lines []string) Weights {
	star := unlisted
	weights := Weights{coding.Identity: unlisted, coding.Brotli: unlisted, coding.Gzip: unlisted, coding.DCZ: Refused}
	for _, line := range lines {
		for more := true; more; {
			var name string
			var w Weight
			if name, line, more = cutToken(line); name != "" {
				w = fullWeight
			} else {
				var member string
				member, line, more = strings.Cut(line, ",")
				var ok bool
				if name, w, ok = parseMember(member); !ok {
					continue
				}
			}
			switch {
			case name == "*":
				star = max(star, w)
			case equalToken(name, "br"):
				weights[coding.Brotli] = max(weights[coding.Brotli], w)
			case equalToken(name, "gzip"), equalToken(name, "x-gzip"): // RFC 9110 §8.4.1.3
				weights[coding.Gzip] = max(weights[coding.Gzip], w)
			case equalToken(name, "identity"):
				weights[coding.Identity] = max(weights[coding.Identity], w)
			case equalToken(name, "dcz"):
				weights[coding.DCZ] = max(weights[coding.DCZ], w)
			}
		}
	}
	for c, otherwise := range [...]Weight{coding.Identity: leastWeight, coding.Brotli: Refused, coding.Gzip: Refused} {
		switch {
		case weights[c] != unlisted:
		case star != unlisted:
			weights[c] = star
		default:
			weights[c] = otherwise
		}
	}
	return weights
}

// Of returns the weight that the client gives a coding; [Refused] if the coding must not be sent, or is none that this program knows,
// such as one in a damaged row.
func (w Weights) Of(c coding.Coding) Weight {
	if int(c) >= len(w) {
		return Refused
	}
	return w[c]
}

// A Representation is one of the encoded forms in which a response could be sent.
type Representation struct {
	Coding coding.Coding
	Length int64 // in bytes, of what would be sent
}

// Choose returns the index of the representation in forms with the greatest weight, and among equal ones the shortest. It returns
// -1 if the client accepts none, for which the response is 406.
func (w Weights) Choose(forms []Representation) int {
	best, heaviest := -1, Refused
	for i := range forms {
		weight := w.Of(forms[i].Coding)
		if weight > heaviest || weight == heaviest && best >= 0 && forms[i].Length < forms[best].Length {
			best, heaviest = i, weight
		}
	}
	return best
}

// PreferredCoding returns the coding in which to encode a text for the client: identity, gzip or brotli, never a delta. Of codings
// with equal weight it prefers the one that is usually the shortest: brotli to gzip, and gzip to identity. If none is acceptable, it
// returns identity, because a 406 would not help the client.
func (w Weights) PreferredCoding() coding.Coding {
	best := coding.Identity
	for _, c := range [...]coding.Coding{coding.Gzip, coding.Brotli} {
		if weight := w.Of(c); weight > Refused && weight >= w.Of(best) {
			best = c
		}
	}
	return best
}

// cutToken cuts the first member off a comma-separated list if it is a token without parameters, as most are. Otherwise it
// returns an empty name and the list as rest. more reports whether rest has another member.
func cutToken(list string) (name, rest string, more bool) {
	begin := 0
	for begin < len(list) && (list[begin] == ' ' || list[begin] == '\t') {
		begin++
	}
	end := begin
	for end < len(list) && tokenBytes[list[end]] {
		end++
	}
	switch {
	case end == begin:
		return "", list, true
	case end == len(list):
		return list[begin:], "", false
	case list[end] == ',':
		return list[begin:end], list[end+1:], true
	}
	return "", list, true
}

// parseMember parses a member of Accept-Encoding, `token [ OWS ";" OWS "q=" qvalue ]`. w is the full weight without a qvalue. ok
// is false if the member is malformed.
func parseMember(member string) (name string, w Weight, ok bool) {
	name, parameter, weighted := strings.Cut(member, ";")
	name = trimOWS(name)
	if !isToken(name) {
		return "", 0, false
	}
	if !weighted {
		return name, fullWeight, true
	}
	parameter = trimOWS(parameter)
	if len(parameter) < 2 || parameter[0]|0x20 != 'q' || parameter[1] != '=' {
		return "", 0, false
	}
	thousandths, ok := parseQuality(parameter[2:])
	return name, Weight(2 * thousandths), ok
}

// parseQuality parses a qvalue (RFC 9110 §12.4.2): "0" or "1" with up to three decimals, not more than 1. ok is false if it is
// malformed.
func parseQuality(s string) (thousandths int, ok bool) {
	if s == "" || len(s) > len("0.000") || (s[0] != '0' && s[0] != '1') {
		return 0, false
	}
	if len(s) > 1 && s[1] != '.' {
		return 0, false
	}
	q, unit := int(s[0]-'0')*1000, 100
	for i := 2; i < len(s); i++ {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		q += int(s[i]-'0') * unit
		unit /= 10
	}
	return q, q <= 1000
}

// equalToken reports whether name equals lower, a token in lower case, in any case.
func equalToken(name, lower string) bool {
	return name == lower || len(name) == len(lower) && strings.EqualFold(name, lower)
}

// trimOWS removes optional white space (RFC 9110 §5.6.3), spaces and tabs, from both ends.
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// isToken reports whether s is a token (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return s != ""
}

var tokenBytes = func() (set [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") {
		set[c] = true
	}
	return set
}()

// mediaPrecisions says how precisely a media range names JSON and text, 0 for not at all.
var mediaPrecisions = map[string][2]int{"*/*": {1, 1}, "application/*": {2, 0}, "text/*": {0, 2}, "application/json": {3, 0}, "text/plain": {0, 3}}

// PrefersJSON reports whether the lines of an Accept field (RFC 9110 §12.5.1) prefer JSON to text: they give JSON a greater
// weight, or the same weight and name it more precisely. Without the field they do not.
func PrefersJSON(lines []string) bool {
	var best [2]struct{ precision, quality int }
	for mediaRange, parameters := range acceptMembers(lines) {
		for i, precision := range mediaPrecisions[strings.ToLower(mediaRange)] {
			if precision > best[i].precision {
				best[i].precision, best[i].quality = precision, qualityOf(parameters)
			}
		}
	}
	json, text := best[0], best[1]
	return json.quality > text.quality || json.quality > 0 && json.quality == text.quality && json.precision > text.precision
}

// WantsPage reports whether the lines of an Accept field name text/html, and do not refuse it. Browsers name it when a person opens an
// address; requests of scripts and of programs do not.
func WantsPage(lines []string) bool { return MediaQuality(lines, "text/html") > 0 }

// MediaQuality returns the greatest weight, from 0 to 1000, that the lines of an Accept field give a media type; -1 if they do not name
// it. A range such as */* names no type.
func MediaQuality(lines []string, mediaType string) int {
	quality := -1
	for named, parameters := range acceptMembers(lines) {
		if strings.EqualFold(named, mediaType) {
			quality = max(quality, qualityOf(parameters))
		}
	}
	return quality
}

// maxAcceptMembers is how many members of an Accept field are read. Browsers send ten at most.
const maxAcceptMembers = 64

// acceptMembers returns the media ranges of the lines of an Accept field, each with the parameters behind its first semicolon. It ignores
// the members after the first maxAcceptMembers.
func acceptMembers(lines []string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		n := 0
		for _, line := range lines {
			for member := range strings.SplitSeq(line, ",") {
				if n++; n > maxAcceptMembers {
					return
				}
				mediaRange, parameters, _ := strings.Cut(member, ";")
				if !yield(trimOWS(mediaRange), parameters) {
					return
				}
			}
		}
	}
}

// qualityOf returns the weight among the parameters of a member of Accept, from 0 to 1000: 1000 if it is missing, 0 if it is malformed.
func qualityOf(parameters string) int {
	for p := range strings.SplitSeq(parameters, ";") {
		if name, value, ok := strings.Cut(trimOWS(p), "="); ok && strings.EqualFold(name, "q") {
			quality, ok := parseQuality(value)
			if !ok {
				return 0
			}
			return quality
		}
	}
	return 1000
}

// FormatDictionary returns the value that the Available-Dictionary field of a request has if the client has a dictionary with
// this SHA-256.
func FormatDictionary(sum [sha256.Size]byte) string {
	return ":" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// Fields are the fields of a request that choose its response: a string for each
// line, nil for an absent field.
type Fields struct {
	Accept         []string
	AcceptEncoding []string
	// AvailableDictionary names the dictionary that the client has (RFC 9842 §2.2).
	AvailableDictionary []string
	IfMatch             []string
	IfNoneMatch         []string
	IfModifiedSince     []string
	IfUnmodifiedSince   []string
}

// ExpectsContinue reports whether a client waits for 100 (Continue) before it sends the body. Like net/http it considers only the
// first line of the field.
func ExpectsContinue(h http.Header) bool {
	lines := h["Expect"]
	return len(lines) > 0 && httpguts.HeaderValuesContainsToken(lines[:1], "100-continue")
}

// FieldsOf returns the fields of a request that choose its response, from a header of net/http.
func FieldsOf(h http.Header) Fields {
	return Fields{
		Accept:              h["Accept"],
		AcceptEncoding:      h["Accept-Encoding"],
		AvailableDictionary: h["Available-Dictionary"],
		IfMatch:             h["If-Match"],
		IfNoneMatch:         h["If-None-Match"],
		IfModifiedSince:     h["If-Modified-Since"],
		IfUnmodifiedSince:   h["If-Unmodified-Since"],
	}
}

// Conditions are evaluated in the order of RFC 9110 §13.2.2: first PreconditionFailed, then NotModified. The
// representation has the strong tag current and was modified at that time, zero for unknown.

// PreconditionFailed reports whether the response is 412, because If-Match, or without it If-Unmodified-Since, does not hold.
// current is the strong entity tag of the representation, and modified when it was changed last, zero for unknown.
func (f *Fields) PreconditionFailed(current string, modified time.Time) bool {
	if f.IfMatch != nil {
		return !ifMatch(f.IfMatch, current)
	}
	since, ok := ParseDate(f.IfUnmodifiedSince)
	return ok && modified.After(since)
}

// NotModified reports whether the response is 304, because the client has the representation by If-None-Match, or without it by
// If-Modified-Since. current is its strong entity tag, and modified when it was changed last, zero for unknown.
func (f *Fields) NotModified(current string, modified time.Time) bool {
	if f.IfNoneMatch != nil {
		return !IfNoneMatch(f.IfNoneMatch, current)
	}
	since, ok := ParseDate(f.IfModifiedSince)
	return ok && !modified.IsZero() && !modified.After(since)
}

// ParseDate parses the lines of a field whose value is an HTTP date (RFC 9110 §5.6.7). It returns false if the field is absent,
// repeated or malformed.
func ParseDate(lines []string) (time.Time, bool) {
	if len(lines) != 1 {
		return time.Time{}, false
	}
	t, err := http.ParseTime(lines[0])
	return t, err == nil
}

// A Tag is an entity tag as a client names it. Opaque has its quotes.
type Tag struct {
	Opaque string
	Weak   bool
}

// String returns the entity tag as it is written in a header field: Opaque, which has its quotes already, with W/ before it if it is weak.
func (t Tag) String() string {
	if t.Weak {
		return "W/" + t.Opaque
	}
	return t.Opaque
}

// CutTag cuts the first entity tag (RFC 9110 §8.8.3) off a comma-separated list, with the separators before it, and returns the
// rest of the list, which may begin with a separator. ok is false at the end of the list, or if the tag is malformed; rest is ""
// then.
func CutTag(list string) (tag Tag, rest string, ok bool) {
	list = strings.TrimLeft(list, " \t,")
	list, weak := strings.CutPrefix(list, "W/")
	if list == "" || list[0] != '"' {
		return Tag{}, "", false
	}
	for i := 1; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"':
			opaque, rest := list[:i+1], strings.TrimLeft(list[i+1:], " \t")
			if rest != "" && rest[0] != ',' {
				return Tag{}, "", false
			}
			return Tag{opaque, weak}, rest, true
		case c < 0x21 || c == 0x7f:
			return Tag{}, "", false
		}
	}
	return Tag{}, "", false
}

// IsAny reports whether the lines of an If-Match or If-None-Match field are "*", which matches every representation.
func IsAny(lines []string) bool { return len(lines) == 1 && trimOWS(lines[0]) == "*" }

// ifMatch reports whether an If-Match field is true for a representation with the strong tag current (RFC 9110 §13.1.1). It is
// true without the field.
func ifMatch(lines []string, current string) bool {
	return lines == nil || IsAny(lines) || containsTag(lines, current, false)
}

// IfNoneMatch reports whether an If-None-Match field is true for a representation with the strong tag current, by weak comparison
// (RFC 9110 §13.1.2). If it is false, the client has the representation and the response is 304. It is true without the field.
func IfNoneMatch(lines []string, current string) bool {
	return lines == nil || !IsAny(lines) && !containsTag(lines, current, true)
}

// containsTag reports whether lines, lists of entity tags, contain the opaque tag current. It ignores weak tags unless weak is
// set, and the rest of a line from a malformed tag on.
func containsTag(lines []string, current string, weak bool) bool {
	for _, list := range lines {
		for {
			tag, rest, ok := CutTag(list)
			if !ok {
				break
			}
			if tag.Opaque == current && (weak || !tag.Weak) {
				return true
			}
			list = rest
		}
	}
	return false
}
