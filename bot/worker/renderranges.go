package worker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/document"
)

// This file reads the ranges of versions in package.json files, by the grammar of npm
// (https://github.com/npm/node-semver#ranges), and writes each as alternatives of plain comparisons.

// renderVersionRanges parses the version ranges r.Ranges, and returns in Ranges the alternatives of each in the same order. A
// text that is not a valid range has none, which is not an error. It returns an error if the ranges have too many bytes
// together.
func renderVersionRanges(r document.Request) (document.Result, error) {
	var result document.Result
	size := 0
	for _, wanted := range r.Ranges {
		if size += len(wanted); int64(size) > r.Kind.MaxInput() {
			return result, fmt.Errorf("ranges of over %d bytes", r.Kind.MaxInput())
		}
		result.Ranges = append(result.Ranges, parseRange(wanted))
	}
	return result, nil
}

// parseRange returns the alternatives of a version range such as "^1.2 || 2.x", each as comparisons that must all hold.
// "latest" means any version. It returns none for a text that is too long or no range, such as the address of a repository.
func parseRange(wanted string) document.Range {
	wanted = strings.TrimSpace(wanted)
	if len(wanted) > document.MaxRange {
		return nil
	}
	if wanted == "latest" {
		wanted = "*"
	}
	var all document.Range
	for alternative := range strings.SplitSeq(wanted, "||") {
		bounds, ok := parseAlternative(alternative)
		if !ok {
			return nil
		}
		all = append(all, bounds)
	}
	return all
}

// anything is the comparison that every release satisfies.
var anything = document.Bound{Operator: ">=", Version: "0.0.0"}

// parseAlternative returns the comparisons that one alternative of a range means, which is without "||". All of them must hold.
// If ok is false, the text is not valid and bounds has no meaning. An empty text means any version, >=0.0.0.
func parseAlternative(text string) (bounds []document.Bound, ok bool) {
	fields := strings.Fields(text)
	if len(fields) == 3 && fields[1] == "-" {
		from, ok1 := parsePartial(fields[0])
		to, ok2 := parsePartial(fields[2])
		return slices.Concat(boundsOf(">=", from), boundsOf("<=", to)), ok1 && ok2
	}
	for i := 0; i < len(fields); i++ {
		operator, version := cutOperator(fields[i])
		if version == "" && operator != "" && i+1 < len(fields) { // a space after the operator
			i++
			version = fields[i]
		}
		p, ok := parsePartial(version)
		if !ok {
			return nil, false
		}
		bounds = append(bounds, boundsOf(operator, p)...)
	}
	if bounds == nil {
		bounds = append(bounds, anything)
	}
	return bounds, true
}

// cutOperator splits a comparison such as ">=1.2" into its operator and the rest, its version. Without an operator, operator
// is "".
func cutOperator(s string) (operator, version string) {
	for _, operator := range []string{">=", "<=", "~>", ">", "<", "=", "~", "^"} {
		if version, ok := strings.CutPrefix(s, operator); ok {
			return operator, version
		}
	}
	return "", s
}

// A partial is a version whose last numbers may be missing.
type partial struct {
	numbers    [3]uint64
	given      int    // how many numbers there are
	prerelease string // with its hyphen
}

// parsePartial parses a version that may lack numbers or have wildcards for them, such as 1.x. It ignores leading v and =, the
// part after a plus sign, numbers behind a wildcard, and a prerelease if numbers are missing. An empty text has no numbers and is
// valid. ok is false if the version is not valid; then p has no meaning.
func parsePartial(s string) (p partial, ok bool) {
	s = strings.TrimLeft(s, "v=")
	s, _, _ = strings.Cut(s, "+") // of a build, which is not compared
	s, prerelease, hasPrerelease := strings.Cut(s, "-")
	wild := s == ""
	if !wild {
		numbers := strings.Split(s, ".")
		if len(numbers) > len(p.numbers) {
			return p, false
		}
		for i, number := range numbers {
			if wild = wild || number == "x" || number == "X" || number == "*"; wild {
				continue
			}
			n, err := strconv.ParseUint(number, 10, 53)
			if err != nil {
				return p, false
			}
			p.numbers[i], p.given = n, i+1
		}
	}
	if hasPrerelease && p.given == len(p.numbers) {
		if prerelease == "" {
			return p, false
		}
		p.prerelease = "-" + prerelease
	}
	return p, true
}

// lowest returns the lowest version that a partial version such as 1.2 covers, as text: the one with zeros for the missing
// numbers, and with its prerelease if it has one.
func (p partial) lowest() string {
	return fmt.Sprintf("%d.%d.%d%s", p.numbers[0], p.numbers[1], p.numbers[2], p.prerelease)
}

// increment returns the version in which the number with this index (0 for major, 1 for minor, 2 for patch) is greater by
// one, those after it are 0, and there is no prerelease.
func (p partial) increment(number int) string {
	n := p.numbers
	n[number]++
	clear(n[number+1:])
	return fmt.Sprintf("%d.%d.%d", n[0], n[1], n[2])
}

// boundsOf returns the comparisons with complete versions, all of which must hold, that an operator such as "^" ("" for none)
// with a partial version means. An upper bound that it adds excludes prereleases of the version that it names. A partial version
// without numbers means any version, but with < or > none.
func boundsOf(operator string, p partial) []document.Bound {
	from := document.Bound{Operator: ">=", Version: p.lowest()}
	below := func(number int) document.Bound {
		return document.Bound{Operator: "<", Version: p.increment(number) + "-0"}
	}
	last := p.given - 1 // the number that may be greater in what a partial version covers
	switch {
	case p.given == 0 && (operator == "<" || operator == ">"):
		return []document.Bound{{Operator: "<", Version: "0.0.0-0"}}
	case p.given == 0:
		return []document.Bound{anything}
	case operator == "^":
		first := slices.IndexFunc(p.numbers[:p.given], func(n uint64) bool { return n > 0 })
		if first < 0 {
			first = last
		}
		return []document.Bound{from, below(first)}
	case operator == "~", operator == "~>":
		return []document.Bound{from, below(min(last, 1))}
	case operator == ">=":
		return []document.Bound{from}
	case operator == ">" && p.given < len(p.numbers):
		return []document.Bound{{Operator: ">=", Version: p.increment(last)}}
	case operator == "<" && p.given < len(p.numbers):
		return []document.Bound{{Operator: "<", Version: p.lowest() + "-0"}}
	case operator == "<=" && p.given < len(p.numbers):
		return []document.Bound{below(last)}
	case p.given < len(p.numbers):
		return []document.Bound{from, below(last)}
	case operator == "":
		operator = "="
	}
	return []document.Bound{{Operator: operator, Version: p.lowest()}}
}
