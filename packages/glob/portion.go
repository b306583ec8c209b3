package glob

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf16"
)

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

// alternative compiles a pattern without braces; nil where it selects no file,
// whatever its path.
func (c *compiler) alternative(text string) ([]portion, error) {
	portions := []portion{}
	for i, raw := range splitSlashes(text) {
		p, ok := c.portions[raw]
		if !ok {
			var err error
			if p, err = c.portion(raw); err != nil {
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
	if len(portions) == 0 {
		return nil, nil
	}
	return portions, nil
}

// splitSlashes splits at slashes, several in a row being one.
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

func (c *compiler) portion(raw string) (portion, error) {
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
	return name[0] == '\n' || name[0] == '\r' ||
		name[0] == 0xe2 && (strings.HasPrefix(name, "\u2028") || strings.HasPrefix(name, "\u2029"))
}
