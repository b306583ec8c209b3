package glob

import (
	"slices"
	"strings"
)

// A token is one element of the regular expression that a portion means.
type token struct {
	op         op
	unit       uint16 // of opChar
	class      *class // of opClass
	quantifier byte   // of opClose: 0, '?', '*' or '+'
}

type op uint8

const (
	opChar     op = iota // one character
	opAny                // any character
	opClass              // any character of a class
	opStar               // any characters
	opOpen               // begins a group
	opLook               // begins a group that must not match from here on
	opAlt                // separates a group's alternatives
	opClose              // ends a group
	opEnd                // nothing, at the end of the name
	opNoDot              // nothing, not before a dot
	opNotEmpty           // nothing, not at the end nor before the end of a line
)

// specials are the characters that a backslash makes ordinary. After any other one
// the backslash is dropped.
const specials = `().*{}+?[]^$\!`

// A group is an extended form that scan has not seen the end of.
type group struct {
	sign  uint16
	start int // its first token
}

// A span is the tokens of a closed !(…).
type span struct{ start, end int }

// scan translates a portion of a pattern, in UTF-16, into the tokens of a regular
// expression, as minimatch 3 does, and reports whether it has any wildcard. depth is
// 0 for a whole portion, more for a part of one.
//
// minimatch goes through the portion once and appends to a regular expression.
// Some of its habits show, and patterns in use rely on some of them:
//
//   - An extended form's sign is held back until the next character, and )
//     or ] or | that means nothing here is appended before it.
//   - !(a|b)rest becomes "not (a|b)rest from here on, then anything, then rest".
//     The copy of rest is cut short: for every group opened before the !( the copy
//     loses the first closing parenthesis in it, and it reaches to the name's end
//     only if nothing is left of it. Copying may leave parentheses that don't
//     balance; then the portion matches nothing.
//   - An extended form that is not closed is a plain wildcard and a parenthesis,
//     and every | after it is plain.
//   - A class that isn't closed, or whose ranges are upside down, is a plain [
//     followed by its content scanned by itself.
//   - Classes have no names: [[:alpha:]] is a class of [:alph and a plain ].
func scan(raw []uint16, depth int) (tokens []token, magic bool, err error) {
	if depth > maxDepth {
		return nil, false, errDepth
	}
	var (
		sign       uint16 // the sign held back
		escaping   bool
		groups     []group
		negations  []span
		inClass    bool
		classStart = -1     // where its [ is in raw
		items      []uint16 // the class's content
		inverted   bool
	)
	char := func(c uint16) { tokens = append(tokens, token{op: opChar, unit: c}) }
	flush := func() {
		if sign != 0 {
			t := signToken(sign)
			tokens, magic = append(tokens, t), magic || t.op != opChar
		}
		sign = 0
	}
	literalClass := func(content []uint16) error {
		char('[')
		inner, innerMagic, err := scan(content, depth+1)
		tokens = append(tokens, inner...)
		magic = magic || innerMagic
		return err
	}

	for i, c := range raw {
		if escaping && c < 0x80 && strings.IndexByte(specials, byte(c)) >= 0 {
			if inClass {
				items = append(items, c)
			} else {
				char(c)
			}
			escaping = false
			continue
		}
		if c == '\\' {
			flush()
			escaping = true
			continue
		}
		if inClass {
			if c == ']' && i != classStart+1 {
				inClass = false
				content := raw[classStart+1 : i]
				if !validClass(content) {
					if err := literalClass(content); err != nil {
						return nil, false, err
					}
					char(']')
					continue
				}
				magic = true
				tokens = append(tokens, token{op: opClass, class: newClass(items, inverted)})
				continue
			}
			// An escaped sign leaves the escape in force, here as outside.
			if i == classStart+1 && (c == '!' || c == '^' && !escaping) {
				inverted = true
			} else {
				items = append(items, c)
			}
			if !isSign(c) && c != '(' && c != ')' && c != '[' {
				escaping = false
			}
			continue
		}
		switch {
		case isSign(c):
			if c == '*' && sign == '*' {
				continue
			}
			flush()
			sign = c
		case c == '(' && sign != 0:
			if len(groups) == maxDepth {
				return nil, false, errDepth
			}
			groups = append(groups, group{sign: sign, start: len(tokens)})
			tokens = append(tokens, token{op: opOpen})
			if sign == '!' {
				tokens = append(tokens, token{op: opLook}, token{op: opOpen})
			}
			sign = 0
		case c == ')' && len(groups) > 0:
			flush()
			magic = true
			g := groups[len(groups)-1]
			groups = groups[:len(groups)-1]
			if g.sign == '!' {
				tokens = append(tokens, token{op: opClose}, token{op: opClose}, token{op: opStar}, token{op: opClose})
				negations = append(negations, span{g.start, len(tokens)})
			} else {
				quantifier := byte(g.sign)
				if g.sign == '@' {
					quantifier = 0
				}
				tokens = append(tokens, token{op: opClose, quantifier: quantifier})
			}
		case c == '|' && len(groups) > 0 && !escaping:
			flush()
			tokens = append(tokens, token{op: opAlt})
		case c == '[':
			flush()
			inClass, classStart = true, i
			items, inverted = nil, false
		case c == '(' || c == ')':
			char(c)
		case c == '|' || c == ']':
			char(c)
			escaping = false
		default:
			flush()
			escaping = false
			char(c)
		}
	}

	if inClass {
		if err := literalClass(raw[classStart+1:]); err != nil {
			return nil, false, err
		}
	}
	for i := len(groups) - 1; i >= 0; i-- {
		tokens = unclose(tokens, groups[i], negations)
		magic = true
	}
	flush()
	if escaping {
		char('\\')
	}

	isPart := depth > 0
	noDot := isPart && len(tokens) > 0 && raw[0] != '.' &&
		slices.Contains([]op{opClass, opAny, opStar, opOpen}, tokens[0].op)
	for i := len(negations) - 1; i >= 0; i-- {
		if tokens, err = closeOver(tokens, negations[i], isPart); err != nil {
			return nil, false, err
		}
	}
	if isPart && magic && len(tokens) > 0 {
		tokens = slices.Insert(tokens, 0, token{op: opNotEmpty})
	}
	if noDot {
		tokens = slices.Insert(tokens, 0, token{op: opNoDot})
	}
	return tokens, magic, nil
}

// isSign reports whether a character starts an extended form before a parenthesis: ? * + @ !
func isSign(c uint16) bool {
	return c < 0x80 && strings.IndexByte("?*+@!", byte(c)) >= 0
}

// signToken returns the token of the sign of an extended form that no parenthesis follows.
func signToken(sign uint16) token {
	switch sign {
	case '*':
		return token{op: opStar}
	case '?':
		return token{op: opAny}
	}
	return token{op: opChar, unit: sign}
}

// unclose returns the tokens with plain characters in place of the opening of the extended form g, which is never closed, and
// in place of every | after it. It adapts the positions of the negations behind it.
func unclose(tokens []token, g group, negations []span) []token {
	width := 1
	if g.sign == '!' {
		width = 3
	}
	plain := []token{signToken(g.sign), {op: opChar, unit: '('}}
	tokens = slices.Replace(tokens, g.start, g.start+width, plain...)
	for i := g.start; i < len(tokens); i++ {
		if tokens[i].op == opAlt {
			tokens[i] = token{op: opChar, unit: '|'}
		}
	}
	for i := range negations {
		if negations[i].start > g.start {
			negations[i].start += len(plain) - width
			negations[i].end += len(plain) - width
		}
	}
	return tokens
}

// closeOver returns the tokens with a copy of what comes after a closed !(…) inserted into its lookahead, so that the pattern
// matches "not this and then the rest". For each group that is open before the !(, the copy loses one closing parenthesis, as
// in minimatch (see scan). If nothing follows, the end of the name is inserted instead, unless isPart is set.
func closeOver(tokens []token, negation span, isPart bool) ([]token, error) {
	opened := 0
	for _, t := range tokens[:negation.start] {
		if t.op == opOpen || t.op == opLook || t.op == opNoDot || t.op == opNotEmpty {
			opened++
		}
	}
	var rest []token
	for _, t := range tokens[negation.end:] {
		if t.op == opClose && opened > 0 {
			opened--
			continue
		}
		rest = append(rest, t)
	}
	if len(rest) == 0 && !isPart {
		rest = append(rest, token{op: opEnd})
	}
	if len(tokens)+len(rest) > maxInstructions {
		return nil, errInstructions
	}
	// The !(…) ends with the closing of its alternatives, of the look ahead, the
	// star and the closing of all. The copy goes behind the first of them.
	return slices.Insert(tokens, negation.end-3, rest...), nil
}
