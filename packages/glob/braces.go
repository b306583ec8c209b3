package glob

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
)

// A character that was escaped before the braces were expanded is carried through
// the expansion as this plus itself, which is no Unicode character.
const escaped rune = 0x200000

var (
	braces         = text.NewRegexp(`\{[^{\n]*\}`)
	commaThenBrace = text.NewRegexp(`,(?:[^,\n].*)?\}`)
	numbers        = text.NewRegexp(`^(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?$`)
	letters        = text.NewRegexp(`^([a-zA-Z])\.\.([a-zA-Z])(?:\.\.(-?\d+))?$`)
	padded         = text.NewRegexp(`^-?0\d`)
)

var (
	errAlternatives = fmt.Errorf("its braces stand for more than %d patterns; write it with fewer or smaller ones", maxAlternatives)
	errExpanded     = errors.New("its braces stand for too much text; write it with fewer or smaller ones")
	errDepth        = fmt.Errorf("it is nested more than %d levels deep", maxDepth)
)

// expandBraces returns the patterns that a pattern with braces stands for, by
// Bash's rules as the brace-expansion 1 module has them: {a,b} is each of its
// parts, {1..9..2} and {a..e} are ranges, {a} and {} are themselves, ${a,b} and
// all that follows it is itself. Escapes of a backslash, a brace, a comma and a
// dot are used up, but only in a pattern that has braces at all.
func expandBraces(pattern string) ([]string, error) {
	if !braces.MatchString(pattern) {
		return []string{pattern}, nil
	}
	var text []rune
	in := []rune(pattern)
	for i := 0; i < len(in); i++ {
		r := in[i]
		if r == '\\' && i+1 < len(in) && strings.ContainsRune(`\{},.`, in[i+1]) {
			i++
			r = escaped + in[i]
		} else if (i == 0 && r == '{' || i == 1 && in[0] == '{' && r == '}') && in[1] == '}' {
			r += escaped // a leading {} is itself, and not the beginning of {},a}
		}
		text = append(text, r)
	}
	var e expander
	expanded, err := e.expandNext(text, 0)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(expanded))
	for i, runes := range expanded {
		for j, r := range runes {
			if r >= escaped {
				runes[j] = r - escaped
			}
		}
		out[i] = string(runes)
	}
	return out, nil
}

// An expander makes the list for a text and, on the way, for its parts; it counts
// the characters it writes.
type expander struct{ written int }

// expandNext returns the texts that a text with braces stands for. It expands the first pair of braces, calls itself for what
// follows them, and combines both; depth is how many braces are around the text. Too many or too long texts are an error.
func (e *expander) expandNext(text []rune, depth int) ([][]rune, error) {
	if depth > maxDepth {
		return nil, errDepth
	}
	opening, closing := balancedBraces(text)
	if opening < 0 || opening > 0 && text[opening-1] == '$' {
		return [][]rune{text}, nil
	}
	before, body, after := text[:opening], text[opening+1:closing], text[closing+1:]

	values, err := rangeValues(string(body))
	switch {
	case err != nil:
		return nil, err
	case values != nil:
	case slices.Contains(body, ','):
		if values, err = e.expandList(body, depth); err != nil {
			return nil, err
		}
	case commaThenBrace.MatchString(string(after)):
		// In {a},b} the first closing brace closes nothing.
		literal := slices.Clone(text)
		literal[closing] += escaped
		return e.expandNext(literal, depth)
	default:
		return [][]rune{text}, nil
	}

	rest, err := e.expandNext(after, depth)
	if err != nil {
		return nil, err
	}
	if len(values)*len(rest) > maxAlternatives {
		return nil, errAlternatives
	}
	out := make([][]rune, 0, len(values)*len(rest))
	for _, value := range values {
		for _, tail := range rest {
			if e.written += len(before) + len(value) + len(tail); e.written > maxExpanded {
				return nil, errExpanded
			}
			out = append(out, slices.Concat(before, value, tail))
		}
	}
	return out, nil
}

// expandList returns the alternatives of a list between braces.
func (e *expander) expandList(body []rune, depth int) ([][]rune, error) {
	parts := splitCommas(body)
	if len(parts) == 1 {
		// The only commas are in braces further in: {{a,b}} is {a} and {b}, and
		// those may be ranges.
		inner, err := e.expandNext(parts[0], depth+1)
		if err != nil {
			return nil, err
		}
		for i := range inner {
			inner[i] = slices.Concat([]rune{'{'}, inner[i], []rune{'}'})
		}
		if len(inner) == 1 {
			return inner, nil
		}
		parts = inner
	}
	var values [][]rune
	for _, part := range parts {
		expanded, err := e.expandNext(part, depth+1)
		if err != nil {
			return nil, err
		}
		if values = append(values, expanded...); len(values) > maxAlternatives {
			return nil, errAlternatives
		}
	}
	return values, nil
}

// balancedBraces returns where the first opening brace is that has a closing one,
// and where that is; -1 if no brace has one.
func balancedBraces(text []rune) (opening, closing int) {
	opening, closing = -1, -1
	var open []int
	for i, r := range text {
		switch {
		case r == '{':
			open = append(open, i)
		case r == '}' && len(open) > 0:
			last := open[len(open)-1]
			open = open[:len(open)-1]
			if opening < 0 || last < opening {
				opening, closing = last, i
			}
			if len(open) == 0 {
				return opening, closing
			}
		}
	}
	return opening, closing
}

// splitCommas splits at the commas that are in no braces.
func splitCommas(text []rune) [][]rune {
	var parts [][]rune
	depth, start := 0, 0
	for i, r := range text {
		switch r {
		case '{':
			depth++
		case '}':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, text[start:])
}

// rangeValues returns the values of a range such as 1..9..2 or a..e, nil if body is not a range.
func rangeValues(body string) ([][]rune, error) {
	m := numbers.FindStringSubmatch(body)
	isLetters := m == nil
	if isLetters {
		if m = letters.FindStringSubmatch(body); m == nil {
			return nil, nil
		}
	}
	var first, last int64
	var err error
	if isLetters {
		first, last = int64(m[1][0]), int64(m[2][0])
	} else if first, err = parseNumber(m[1]); err != nil {
		return nil, err
	} else if last, err = parseNumber(m[2]); err != nil {
		return nil, err
	}
	step := int64(1)
	if m[3] != "" {
		if step, err = parseNumber(m[3]); err != nil {
			return nil, err
		}
		step = max(step, -step, 1)
	}
	count := max(last-first, first-last)/step + 1
	if count > maxAlternatives {
		return nil, errAlternatives
	}
	if first > last {
		step = -step
	}
	width := 0
	if padded.MatchString(m[1]) || padded.MatchString(m[2]) || padded.MatchString(m[3]) {
		width = max(len(m[1]), len(m[2]))
	}
	values := make([][]rune, 0, count)
	for i := range count {
		n := first + i*step
		switch {
		case !isLetters:
			values = append(values, []rune(fmt.Sprintf("%0*d", width, n)))
		case n == '\\':
			values = append(values, nil) // it would escape what follows
		default:
			values = append(values, []rune{rune(n)})
		}
	}
	return values, nil
}

// parseNumber parses a number of a range; it refuses one so large that JavaScript cannot add 1 to it.
func parseNumber(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 54)
	if err != nil {
		return 0, fmt.Errorf("the number %s in its braces is too large", s)
	}
	return n, nil
}
