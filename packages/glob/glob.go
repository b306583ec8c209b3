// Package glob selects a release's files as node-glob 7 does, the library that
// the patterns in package JSON files were written for.
//
// It knows *, ?, character classes, **, braces with lists and ranges, backslash
// escapes and the extended forms @(a|b), +(a|b), *(a|b), ?(a|b) and !(a|b),
// nested too. A leading dot is matched only by a dot that stands in the pattern.
// There is no negated pattern and no comment: node-glob turns both off, so a
// leading ! or # is an ordinary character.
//
// What it guarantees: Compile and Match do bounded work whatever the pattern and
// the path. A pattern beyond the limits is refused by Compile; what compiles is
// matched in time proportional to its size times the path's length, without
// backtracking. A Glob is immutable and safe for use by several goroutines.
//
// node-glob is minimatch 3 applied to a walk over a folder, and minimatch builds
// a regular expression out of text. Its habits are part of the contract, because
// real patterns rely on them: see the comment on scan, and Differences below.
//
// # Differences
//
// If minimatch 3 is wrong, or differs from the walk, this package selects what the walk would select:
//
//   - Paths are files in a release: a path that is empty, absolute, ends with a
//     slash or has an empty, "." or ".." portion is never selected.
//   - A "." portion in a pattern is skipped (./dist/*.js is dist/*.js); a ".."
//     portion selects nothing.
//   - A portion with wildcards matches a leading dot only where it begins with a
//     plain dot; minimatch alone would also take an escaped one.
//   - With two or more ** in a pattern, minimatch 3.1.5 loses some matches: it
//     forbids a leading dot in the portions after the last **, and counts too
//     many portions between three of them.
//   - An extended form that is not closed and holds a closed !(…) or a backslash,
//     and a literal parenthesis beside a nested !(…), make minimatch cut its own
//     regular expression in the wrong place.
//   - A character class that begins with ] or holds a backslash before a letter
//     is read as a class; minimatch asks the regular expression compiler first,
//     which sees something else there. And [** is no class, nor "[undefined".
//   - A line break in a pattern is a character like any other.
//
// As in JavaScript, a character is a UTF-16 unit: an emoji takes two question marks.
package glob

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The limits of a pattern. The longest of the public catalogue has 76 bytes, three
// levels of nesting and a dozen alternatives.
const (
	maxPattern      = 1024    // bytes
	maxAlternatives = 4096    // patterns that the braces stand for
	maxExpanded     = 1 << 20 // characters in them, all together
	maxDepth        = 32      // levels of braces, of extended forms, of open brackets
	maxInstructions = 1 << 14 // of the programs made from it, all together
)

// A Glob is a compiled pattern.
type Glob struct {
	pattern string
	// alternatives are what the braces stand for, each split at its slashes. A path
	// is selected where one of them matches all of it.
	alternatives [][]portion
}

// Compile reads a pattern. It fails only for a pattern that is empty or beyond the
// limits: what is not a well-formed wildcard stands for itself, as in a shell.
func Compile(pattern string) (*Glob, error) {
	g := &Glob{pattern: pattern}
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("glob: the pattern that begins with %.40q has %d bytes; the limit is %d", pattern, len(pattern), maxPattern)
	}
	trimmed := strings.TrimFunc(pattern, isSpace)
	if trimmed == "" {
		return nil, fmt.Errorf("glob: the pattern %q is empty; ** selects every file", pattern)
	}
	expanded, err := expandBraces(trimmed)
	if err != nil {
		return nil, fmt.Errorf("glob: pattern %q: %w", pattern, err)
	}
	c := compiler{portions: make(map[string]portion)}
	for _, text := range expanded {
		portions, err := c.compileAlternative(text)
		if err != nil {
			return nil, fmt.Errorf("glob: pattern %q: %w", pattern, err)
		}
		if portions != nil {
			g.alternatives = append(g.alternatives, portions)
		}
	}
	return g, nil
}

// String returns the pattern as it was given to Compile.
func (g *Glob) String() string { return g.pattern }

// Match reports whether the pattern selects the file at path: relative to the
// folder the pattern is for, with slashes, without empty, "." and ".." portions.
// A single name, such as a version, is a path of one portion.
func (g *Glob) Match(path string) bool {
	var steps int
	return g.match(path, &steps)
}

// match reports what Match does, and adds to steps how many comparisons it made, for tests.
func (g *Glob) match(path string, steps *int) bool {
	var room [16]string
	names, ok := splitPath(path, room[:0])
	if !ok {
		return false
	}
	for _, portions := range g.alternatives {
		if matchPortions(portions, names, steps) {
			return true
		}
	}
	return false
}

// splitPath appends the names in a path to names; false if it is not the path of a file.
func splitPath(path string, names []string) ([]string, bool) {
	for {
		name, rest, more := strings.Cut(path, "/")
		if name == "" || name == "." || name == ".." {
			return nil, false
		}
		names = append(names, name)
		if !more {
			return names, true
		}
		path = rest
	}
}

// matchPortions reports whether the portions match all the names. For each portion it keeps the set of how many names the
// portions so far may have matched, so that each portion meets each name once at most, however many ** there are.
func matchPortions(portions []portion, names []string, steps *int) bool {
	var room [2][32]bool
	reached, next := room[0][:], room[1][:]
	if len(names) >= len(reached) {
		reached, next = make([]bool, len(names)+1), make([]bool, len(names)+1)
	}
	reached, next = reached[:len(names)+1], next[:len(names)+1]
	reached[0] = true
	for i := range portions {
		p := &portions[i]
		clear(next)
		found := false
		if p.kind == globstar {
			// ** matches any number of names without a leading dot; the last
			// portion must be a file, so there it matches one at least.
			last := i == len(portions)-1
			running := false
			for j := range next {
				*steps++
				if running && names[j-1][0] == '.' {
					running = false
				}
				next[j] = running || reached[j] && !last
				running = running || reached[j]
				found = found || next[j]
			}
		} else {
			for j, name := range names {
				*steps++
				if reached[j] && p.match(name, steps) {
					next[j+1], found = true, true
				}
			}
		}
		if !found {
			return false
		}
		reached, next = next, reached
	}
	return reached[len(names)]
}

// isSpace reports whether JavaScript's trim removes r.
func isSpace(r rune) bool {
	return r == '\ufeff' || r != '\u0085' && unicode.IsSpace(r)
}

// A class is a set of UTF-16 units.
type class struct {
	inverted bool
	ranges   []unitRange
}

type unitRange struct{ first, last uint16 }

// contains reports whether the class has a UTF-16 code unit.
func (c *class) contains(unit uint16) bool {
	for _, r := range c.ranges {
		if r.first <= unit && unit <= r.last {
			return !c.inverted
		}
	}
	return c.inverted
}

// newClass returns the class of these characters and ranges, where items are UTF-16 units and a '-' between two of them makes
// a range; nil if a range is reversed. An inverted class has all other characters.
func newClass(items []uint16, inverted bool) *class {
	c := &class{inverted: inverted}
	for i := 0; i < len(items); i++ {
		r := unitRange{items[i], items[i]}
		if i+2 < len(items) && items[i+1] == '-' {
			r.last = items[i+2]
			i += 2
		}
		if r.first > r.last {
			return nil
		}
		c.ranges = append(c.ranges, r)
	}
	return c
}

// validClass reports whether the content of a class, as it stands in the pattern,
// is one in a JavaScript regular expression too.
func validClass(content []uint16) bool {
	const set = -1 // an escape that stands for several characters makes no range
	var items []int
	for i := 0; i < len(content); i++ {
		c := int(content[i])
		if i == 0 && c == '^' {
			continue
		}
		if c == '\\' {
			if i++; i == len(content) {
				return false
			}
			c = int(content[i])
			if c < 0x80 && strings.IndexByte("dDsSwW", byte(c)) >= 0 {
				c = set
			}
		}
		items = append(items, c)
	}
	for i := 0; i+2 < len(items); i++ {
		if items[i+1] == '-' {
			if items[i] != set && items[i+2] != set && items[i] > items[i+2] {
				return false
			}
			i += 2
		}
	}
	return true
}

// A portion matches one name between slashes; a globstar any number of them.
type portion struct {
	kind kind
	// dotted is set where the portion begins with a dot, so that it may match a
	// name that does.
	dotted bool
	// prefix and suffix are what a name must begin and end with: all that there is
	// to compare but for a program. A literal has a prefix only.
	prefix, suffix string
	program        *program
}

type kind uint8

const (
	globstar kind = iota // **
	literal              // prefix
	star                 // prefix*suffix
	general              // program
)

// A compiler compiles alternatives. Braces repeat portions, so it keeps them.
type compiler struct {
	portions     map[string]portion
	instructions int
}

// compileAlternative compiles a pattern without braces; nil if it can select no file.
func (c *compiler) compileAlternative(text string) ([]portion, error) {
	var portions []portion
	for i, raw := range splitSlashes(text) {
		p, ok := c.portions[raw]
		if !ok {
			var err error
			if p, err = c.compilePortion(raw); err != nil {
				return nil, err
			}
			c.portions[raw] = p
		}
		switch {
		case p.kind == literal && p.prefix == ".":
		case p.kind == literal && (p.prefix == "" || p.prefix == ".."),
			p.kind == general && p.program == nil:
			return nil, nil
		case p.kind == globstar && i > 0 && len(portions) > 0 && portions[len(portions)-1].kind == globstar:
		default:
			portions = append(portions, p)
		}
	}
	return portions, nil
}

// splitSlashes splits a text at slashes; several in a row count as one. A slash at the beginning or the end gives an empty part
// there.
func splitSlashes(text string) []string {
	parts := strings.Split(text, "/")
	out := parts[:0]
	for i, part := range parts {
		if part != "" || i == 0 || i == len(parts)-1 {
			out = append(out, part)
		}
	}
	return out
}

// compilePortion compiles the part of a pattern between two slashes.
func (c *compiler) compilePortion(raw string) (portion, error) {
	if raw == "**" {
		return portion{kind: globstar}, nil
	}
	tokens, magic, err := scan(utf16.Encode([]rune(raw)), 0)
	if err != nil {
		return portion{}, err
	}
	if !magic {
		return portion{kind: literal, prefix: unescape(raw)}, nil
	}
	p := portion{kind: general, dotted: raw[0] == '.'}
	var middle []token
	p.prefix, middle, p.suffix = trimLiterals(tokens)
	if len(middle) == 1 && middle[0].op == opStar {
		p.kind = star
		return p, nil
	}
	if p.program, err = compileProgram(tokens); err != nil {
		return portion{}, err
	}
	if p.program != nil {
		if c.instructions += len(p.program.instructions); c.instructions > maxInstructions {
			return portion{}, errInstructions
		}
	}
	return p, nil
}

var errInstructions = fmt.Errorf("it stands for a program of more than %d instructions; write it with fewer or shorter alternatives and negations", maxInstructions)

// unescape removes the backslashes from a pattern without wildcards.
func unescape(raw string) string {
	var b strings.Builder
	for i := 0; i < len(raw); i++ {
		if raw[i] == '\\' && i+1 < len(raw) {
			i++
		}
		b.WriteByte(raw[i])
	}
	return b.String()
}

// trimLiterals splits off the characters at both ends of the tokens.
func trimLiterals(tokens []token) (prefix string, middle []token, suffix string) {
	var before, after []uint16
	for len(tokens) > 0 && tokens[0].op == opChar {
		before = append(before, tokens[0].unit)
		tokens = tokens[1:]
	}
	for len(tokens) > 0 && tokens[len(tokens)-1].op == opChar {
		after = append(after, tokens[len(tokens)-1].unit)
		tokens = tokens[:len(tokens)-1]
	}
	slices.Reverse(after)
	return string(utf16.Decode(before)), tokens, string(utf16.Decode(after))
}

// match reports whether the portion matches a name, and adds its comparisons to steps.
func (p *portion) match(name string, steps *int) bool {
	*steps++
	if p.kind == literal {
		return name == p.prefix
	}
	if name[0] == '.' && !p.dotted || beginsLine(name) ||
		!strings.HasPrefix(name, p.prefix) || !strings.HasSuffix(name, p.suffix) {
		return false
	}
	if p.kind == star {
		return len(name) >= len(p.prefix)+len(p.suffix)
	}
	return p.program.match(name, steps)
}

// beginsLine reports whether the name's first character is a line terminator: no
// wildcard of minimatch's matches such a name.
func beginsLine(name string) bool {
	first, _ := utf8.DecodeRuneInString(name)
	return first <= 0xffff && isLineEnd(uint16(first))
}
