package negotiate

import (
	"strings"

	"github.com/larder-cdn/larder/kvstore/coding"
)

// codings is how many codings there are; they are numbered from 0.
const codings = int(coding.Gzip) + 1

// A Weight is a quality value (RFC 9110 §12.4.2) in thousandths, doubled. The
// doubling leaves room for leastWeight below the smallest weight that a client
// can express.
type Weight int

// Refused is the weight of what must not be sent.
const Refused Weight = 0

const (
	leastWeight Weight = 1
	unlisted    Weight = -1
)

// Weights is what an Accept-Encoding field says about each of our codings.
type Weights [codings]Weight

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
	listed := Weights{unlisted, unlisted, unlisted}
	star := unlisted
	for _, line := range lines {
		for more := true; more; {
			var member string
			member, line, more = strings.Cut(line, ",")
			name, w, ok := parseMember(member)
			if !ok {
				continue
			}
			if name == "*" {
				star = max(star, w)
			} else if c, ok := parseCoding(name); ok {
				listed[c] = max(listed[c], w)
			}
		}
	}
	for c := range listed {
		switch {
		case listed[c] != unlisted:
		case star != unlisted:
			listed[c] = star
		case coding.Coding(c) == coding.Identity:
			listed[c] = leastWeight
		default:
			listed[c] = Refused
		}
	}
	return listed
}

// Of returns the weight of a coding.
func (w Weights) Of(c coding.Coding) Weight { return w[c] }

// A Form is one of the forms that an answer could be sent in.
type Form struct {
	Coding coding.Coding
	Length int64 // in bytes, of what would be sent
}

// Choose returns the index of the acceptable form of the greatest weight, and of
// equal ones the shortest; -1 where none is acceptable, which is a 406.
func (w Weights) Choose(forms []Form) int {
	best := -1
	for i, f := range forms {
		weight := w[f.Coding]
		if weight <= Refused {
			continue
		}
		if best < 0 || weight > w[forms[best].Coding] || weight == w[forms[best].Coding] && f.Length < forms[best].Length {
			best = i
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
		if w[c] > Refused && w[c] >= w[best] {
			best = c
		}
	}
	return best
}

// parseMember reads `token [ OWS ";" OWS "q=" qvalue ]`.
func parseMember(member string) (name string, w Weight, ok bool) {
	name, parameter, weighted := strings.Cut(member, ";")
	name = trimOWS(name)
	if !isToken(name) {
		return "", 0, false
	}
	if !weighted {
		return name, 2 * 1000, true
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

// parseCoding returns the coding with that name, in any case. "x-gzip" is gzip
// (RFC 9110 §8.4.1.3).
func parseCoding(name string) (coding.Coding, bool) {
	switch {
	case strings.EqualFold(name, "br"):
		return coding.Brotli, true
	case strings.EqualFold(name, "gzip"), strings.EqualFold(name, "x-gzip"):
		return coding.Gzip, true
	case strings.EqualFold(name, "identity"):
		return coding.Identity, true
	}
	return coding.Identity, false
}

// trimOWS removes optional white space (RFC 9110 §5.6.3).
func trimOWS(s string) string { return strings.Trim(s, " \t") }

// isToken reports whether s is a token (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0:
		default:
			return false
		}
	}
	return s != ""
}
