package requests

import (
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

// Weights is what an Accept-Encoding field says about each of our codings.
type Weights struct{ identity, brotli, gzip Weight }

// ParseAcceptEncoding reads the lines of a request's Accept-Encoding field (RFC
// 9110 §12.5.3).
//
//   - Without the field any coding would be acceptable; we send identity, because
//     a client that does not ask for a coding in practice cannot decode one.
//   - Identity is acceptable unless refused; where it is not listed it is liked
//     less than everything that is.
//   - A member that is malformed is ignored, and so is an unknown coding. Of a
//     coding listed repeatedly the greatest weight counts: the client can decode it.
func ParseAcceptEncoding(lines []string) Weights {
	star, identity, brotli, gzip := unlisted, unlisted, unlisted, unlisted
	for _, line := range lines {
		for more := true; more; {
			var name string
			var w Weight
			if name, line, more = cutName(line); name != "" {
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
			case is(name, "br"):
				brotli = max(brotli, w)
			case is(name, "gzip"), is(name, "x-gzip"): // RFC 9110 §8.4.1.3
				gzip = max(gzip, w)
			case is(name, "identity"):
				identity = max(identity, w)
			}
		}
	}
	return Weights{
		identity: settle(identity, star, leastWeight),
		brotli:   settle(brotli, star, Refused),
		gzip:     settle(gzip, star, Refused),
	}
}

// settle returns the weight of a coding: what is listed, or what star says of all others, or
// else what it has where no member says anything.
func settle(listed, star, otherwise Weight) Weight {
	switch {
	case listed != unlisted:
		return listed
	case star != unlisted:
		return star
	}
	return otherwise
}

// Of returns the weight of a coding.
func (w Weights) Of(c coding.Coding) Weight {
	switch c {
	case coding.Brotli:
		return w.brotli
	case coding.Gzip:
		return w.gzip
	}
	return w.identity
}

// A Form is one of the forms that an answer could be sent in.
type Form struct {
	Coding coding.Coding
	Length int64 // in bytes, of what would be sent
}

// Choose returns the index of the acceptable form of the greatest weight, and of
// equal ones the shortest; -1 where none is acceptable, which is a 406.
func (w Weights) Choose(forms []Form) int {
	best, heaviest := -1, Refused
	for i := range forms {
		weight := w.Of(forms[i].Coding)
		if weight > heaviest || weight == heaviest && best >= 0 && forms[i].Length < forms[best].Length {
			best, heaviest = i, weight
		}
	}
	return best
}

// Prefer returns the coding in which to make an answer that is text and not coded yet. Of
// codings that are liked as much it is the one that nearly always is the shortest;
// where none is acceptable it is identity, because a 406 would help no client more.
func (w Weights) Prefer() coding.Coding {
	best := coding.Identity
	for _, c := range [...]coding.Coding{coding.Gzip, coding.Brotli} {
		if weight := w.Of(c); weight > Refused && weight >= w.Of(best) {
			best = c
		}
	}
	return best
}

// cutName cuts a member off the list that is nothing but a name, as they mostly are. Where
// the first one is another, name is empty and rest is the list.
func cutName(list string) (name, rest string, more bool) {
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

// parseMember reads `token [ OWS ";" OWS "q=" qvalue ]`.
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

// parseQuality reads a qvalue (RFC 9110 §12.4.2) in thousandths: "0" or "1" with
// up to three decimals, and no more than 1.
func parseQuality(s string) (int, bool) {
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

// is compares a token with one in lower case.
func is(name, lower string) bool {
	return name == lower || len(name) == len(lower) && strings.EqualFold(name, lower)
}

// trimOWS removes optional white space (RFC 9110 §5.6.3).
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

// PrefersJSON reports whether an Accept field (RFC 9110 §12.5.1) likes JSON better
// than text, or as much and names only JSON.
func PrefersJSON(lines []string) bool {
	type preference struct{ precision, quality int }
	var json, text preference
	for _, line := range lines {
		for member := range strings.SplitSeq(line, ",") {
			mediaRange, parameters, _ := strings.Cut(member, ";")
			quality := 1000
			for p := range strings.SplitSeq(parameters, ";") {
				if name, value, ok := strings.Cut(trimOWS(p), "="); ok && strings.EqualFold(name, "q") {
					if q, ok := parseQuality(value); ok {
						quality = q
					}
				}
			}
			match := func(p *preference, precision int) {
				if precision > p.precision {
					*p = preference{precision, quality}
				}
			}
			switch strings.ToLower(trimOWS(mediaRange)) {
			case "*/*":
				match(&json, 1)
				match(&text, 1)
			case "application/*":
				match(&json, 2)
			case "text/*":
				match(&text, 2)
			case "application/json":
				match(&json, 3)
			case "text/plain":
				match(&text, 3)
			}
		}
	}
	return json.quality > text.quality || json.quality > 0 && json.quality == text.quality && json.precision > text.precision
}

// WantsPage reports whether an Accept field names HTML, as browsers do where a person goes to an address. What pages
// load, and programs, do not name it.
func WantsPage(lines []string) bool {
	for _, line := range lines {
		for member := range strings.SplitSeq(line, ",") {
			mediaRange, parameters, _ := strings.Cut(member, ";")
			if !strings.EqualFold(trimOWS(mediaRange), "text/html") {
				continue
			}
			name, value, _ := strings.Cut(trimOWS(parameters), "=")
			quality, ok := parseQuality(value)
			return !strings.EqualFold(name, "q") || !ok || quality > 0
		}
	}
	return false
}

// Fields are the fields of a request that choose its response: a string for each
// line, nil for an absent field.
type Fields struct {
	Accept            []string
	AcceptEncoding    []string
	IfMatch           []string
	IfNoneMatch       []string
	IfModifiedSince   []string
	IfUnmodifiedSince []string
}

// ExpectsContinue reports whether a client waits for 100 (Continue) before it sends the body. Like net/http it goes by the first line.
func ExpectsContinue(h http.Header) bool {
	lines := h["Expect"]
	return len(lines) > 0 && httpguts.HeaderValuesContainsToken(lines[:1], "100-continue")
}

// FieldsOf returns the fields of a request that net/http has read.
func FieldsOf(h http.Header) Fields {
	return Fields{
		Accept:            h["Accept"],
		AcceptEncoding:    h["Accept-Encoding"],
		IfMatch:           h["If-Match"],
		IfNoneMatch:       h["If-None-Match"],
		IfModifiedSince:   h["If-Modified-Since"],
		IfUnmodifiedSince: h["If-Unmodified-Since"],
	}
}

// Conditions are evaluated in the order of RFC 9110 §13.2.2: first Fails, then Unchanged. The
// representation has the strong tag current and was modified at that time, zero for unknown.

// Fails reports whether If-Match, or else If-Unmodified-Since, asks for another state of the
// representation: the answer is 412.
func (f *Fields) Fails(current string, modified time.Time) bool {
	if f.IfMatch != nil {
		return !match(f.IfMatch, current)
	}
	since, ok := Date(f.IfUnmodifiedSince)
	return ok && modified.After(since)
}

// Unchanged reports whether the client has the representation, by If-None-Match or else by
// If-Modified-Since: the answer is 304.
func (f *Fields) Unchanged(current string, modified time.Time) bool {
	if f.IfNoneMatch != nil {
		return !NoneMatch(f.IfNoneMatch, current)
	}
	since, ok := Date(f.IfModifiedSince)
	return ok && !modified.IsZero() && !modified.After(since)
}

// Date reads an HTTP date (RFC 9110 §5.6.7). A field that is absent, repeated or malformed is
// ignored.
func Date(lines []string) (time.Time, bool) {
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

// String returns the tag as it goes into a header.
func (t Tag) String() string {
	if t.Weak {
		return "W/" + t.Opaque
	}
	return t.Opaque
}

// NextTag cuts the first entity tag (RFC 9110 §8.8.3) off a list, with the
// separators around it. At the end of the list, or where it is malformed, ok is
// false.
func NextTag(list string) (tag Tag, rest string, ok bool) {
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

// IsAny reports whether a field is "*", which every representation matches.
func IsAny(lines []string) bool { return len(lines) == 1 && trimOWS(lines[0]) == "*" }

// match reports whether an If-Match field holds for a representation with the
// strong tag current (RFC 9110 §13.1.1). Without the field it holds.
func match(lines []string, current string) bool {
	return lines == nil || IsAny(lines) || lists(lines, current, false)
}

// NoneMatch reports whether an If-None-Match field holds for a representation with
// the strong tag current, by weak comparison (RFC 9110 §13.1.2); where not, the
// client has it and the answer is 304. Without the field it holds.
func NoneMatch(lines []string, current string) bool {
	return lines == nil || !IsAny(lines) && !lists(lines, current, true)
}

// lists reports whether the lines name current; weak ones count where weak is set.
func lists(lines []string, current string, weak bool) bool {
	for _, list := range lines {
		for {
			tag, rest, ok := NextTag(list)
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
