package negotiate

import (
	"strings"

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
//     who does not ask for a coding in practice cannot decode one.
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
// else what it has where nobody says anything.
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
// where none is acceptable it is identity, because a 406 would help nobody more.
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
