package document

import (
	"errors"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
)

// A Range is the versions that a dependency may have: those that satisfy all comparisons of one of its alternatives. One without alternatives has
// no versions.
type Range [][]Bound

// A Bound is a comparison with a complete version.
type Bound struct {
	Operator string // one of operators
	Version  string
}

// operators are those of comparisons. None is the beginning of one after it.
var operators = []string{">=", "<=", ">", "<", "="}

// Has reports whether the range has a version, by npm's rules: a prerelease is in it only if one of the comparisons names a prerelease of the same version.
func (r Range) Has(version string) bool {
	v, err := semver.StrictNewVersion(version)
	return err == nil && slices.ContainsFunc(r, func(all []Bound) bool { return satisfies(v, all) })
}

func satisfies(v *semver.Version, all []Bound) bool {
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

// The form of ranges is a line for each: alternatives with " || " between them, of comparisons with spaces between them.
const betweenAlternatives = " || "

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
