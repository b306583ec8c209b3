package document

import (
	"errors"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// A Range is a set of versions: those that satisfy all comparisons of one of its alternatives. A range without alternatives is empty.
type Range [][]Bound

// A Bound is a comparison with a complete version.
type Bound struct {
	Operator string // one of operators
	Version  string
}

// operators are the operators of comparisons. None is a prefix of a later one.
var operators = []string{">=", "<=", ">", "<", "="}

// Has reports whether a version satisfies the range, that is, all comparisons of an alternative. By npm's rules a prerelease does
// only if one of these names a prerelease of the same version. A malformed version does not.
func (r Range) Has(version string) bool {
	v, err := semver.StrictNewVersion(version)
	return err == nil && slices.ContainsFunc(r, func(all []Bound) bool { return satisfiesAll(v, all) })
}

// satisfiesAll reports whether a version satisfies all comparisons. A prerelease does only if one of them names a prerelease of the
// same version.
func satisfiesAll(v *semver.Version, all []Bound) bool {
	allowed := v.Prerelease() == ""
	for _, b := range all {
		bound, err := semver.StrictNewVersion(b.Version)
		if err != nil {
			return false
		}
		c := v.Compare(bound)
		if c < 0 && strings.HasPrefix(b.Operator, ">") || c > 0 && strings.HasPrefix(b.Operator, "<") || c == 0 && !strings.HasSuffix(b.Operator, "=") || c != 0 && b.Operator == "=" {
			return false
		}
		allowed = allowed || bound.Prerelease() != "" && v.Major() == bound.Major() && v.Minor() == bound.Minor() && v.Patch() == bound.Patch()
	}
	return allowed
}

// Each range is encoded as a line: alternatives with " || " between them, of comparisons with spaces between them.
const betweenAlternatives = " || "

// encodeRanges encodes each range of versions as a line, such as ">=1.0.0 <2.0.0 || =3.1.0". An empty range is an empty line.
func encodeRanges(all []Range) string {
	var b strings.Builder
	for _, r := range all {
		for i, alternative := range r {
			if i > 0 {
				b.WriteString(betweenAlternatives)
			}
			for j, bound := range alternative {
				if j > 0 {
					b.WriteByte(' ')
				}
				b.WriteString(bound.Operator + bound.Version)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// MaxRange is the longest range that is parsed, in bytes.
const MaxRange = 214

// maxRanges limits the ranges of a document, and maxBounds the comparisons of a range.
const (
	maxRanges = 1000
	maxBounds = 500
)

// decodeRanges decodes ranges from lines, as encodeRanges writes them. Over maxRanges ranges, over maxBounds comparisons in one, or
// a comparison without an operator are an error. It does not check the versions.
func decodeRanges(body string) ([]Range, error) {
	var all []Range
	for line := range strings.Lines(body) {
		if len(all) == maxRanges {
			return nil, errors.New("it has too many ranges")
		}
		line = strings.TrimSuffix(line, "\n")
		var r Range
		bounds := 0
		for alternative := range strings.SplitSeq(line, betweenAlternatives) {
			if line == "" {
				break
			}
			var parsed []Bound
			for text := range strings.SplitSeq(alternative, " ") {
				i := slices.IndexFunc(operators, func(operator string) bool { return strings.HasPrefix(text, operator) })
				if bounds++; i < 0 || bounds > maxBounds {
					return nil, errors.New("not a list of ranges")
				}
				parsed = append(parsed, Bound{operators[i], strings.TrimPrefix(text, operators[i])})
			}
			r = append(r, parsed)
		}
		all = append(all, r)
	}
	return all, nil
}
