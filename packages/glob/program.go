package glob

import "unicode/utf16"

// A program is a nondeterministic automaton for one name. It is run from the
// name's end to its beginning: at each position the instructions are found from
// which the rest of the name leads to acceptance. That way a negation needs no
// search of its own. It is a section whose instructions are found at the same
// time, and what it says about a position is known before the instructions that
// ask for it are looked at. Each instruction is visited once a position.
type program struct {
	instructions []instruction
	// sections are the negations, inner ones before those around them, and last the
	// whole.
	sections []section
	// before lists, for each instruction, those that lead to it without a character.
	before [][]int32
}

type instruction struct {
	op      op
	unit    uint16
	class   *class
	next    int32
	other   int32 // of opAlt: the second way to go
	section int32 // of opLook
}

type section struct {
	start, accept int32
	consuming     []int32 // the instructions that take a character
}

// compileProgram returns the program that matches the tokens; nil if the regular expression of minimatch would be invalid,
// which then matches nothing.
func compileProgram(tokens []token) (*program, error) {
	p := parser{tokens: tokens}
	parsed, ok := p.parseAlternatives()
	if !ok || p.at != len(tokens) {
		return nil, nil
	}
	b := builder{program: &program{}}
	accept := b.emit(instruction{op: opAccept})
	start := b.emitAlternatives(parsed, accept)
	b.endSection(start, accept, nil)
	if len(b.instructions) > maxInstructions {
		return nil, errInstructions
	}
	b.before = make([][]int32, len(b.instructions))
	for i, in := range b.instructions {
		switch in.op {
		case opAlt:
			b.before[in.next] = append(b.before[in.next], int32(i))
			if in.other != in.next {
				b.before[in.other] = append(b.before[in.other], int32(i))
			}
		case opLook, opEnd, opNoDot, opNotEmpty:
			b.before[in.next] = append(b.before[in.next], int32(i))
		}
	}
	return b.program, nil
}

const opAccept op = opNotEmpty + 1

// A node is a token, or a group with its alternatives.
type node struct {
	token
	inside [][]node
}

type parser struct {
	tokens []token
	at     int
}

// parseAlternatives parses alternatives up to a closing parenthesis or the end; false if they are not a valid expression.
func (p *parser) parseAlternatives() ([][]node, bool) {
	all := [][]node{nil}
	for ; p.at < len(p.tokens); p.at++ {
		last := &all[len(all)-1]
		switch t := p.tokens[p.at]; t.op {
		case opClose:
			return all, true
		case opAlt:
			all = append(all, nil)
		case opClass:
			if t.class == nil {
				return nil, false
			}
			*last = append(*last, node{token: t})
		case opOpen, opLook:
			p.at++
			inside, ok := p.parseAlternatives()
			if !ok || p.at == len(p.tokens) {
				return nil, false
			}
			t.quantifier = p.tokens[p.at].quantifier
			*last = append(*last, node{token: t, inside: inside})
		default:
			*last = append(*last, node{token: t})
		}
	}
	return all, true
}

// A builder emits instructions from the last to the first, so that each knows where
// to go next.
type builder struct {
	*program
	consuming []int32 // of the section being built
}

// emit appends an instruction and returns its index.
func (b *builder) emit(in instruction) int32 {
	b.instructions = append(b.instructions, in)
	return int32(len(b.instructions) - 1)
}

// emitConsuming appends an instruction that consumes a character and returns its index.
func (b *builder) emitConsuming(in instruction) int32 {
	i := b.emit(in)
	b.consuming = append(b.consuming, i)
	return i
}

// endSection adds the section of the program that starts at start and is completed by the instruction accept, and returns
// its index. The builder goes on with the section around it, whose consuming instructions are around.
func (b *builder) endSection(start, accept int32, around []int32) int32 {
	b.sections = append(b.sections, section{start: start, accept: accept, consuming: b.consuming})
	b.consuming = around
	return int32(len(b.sections) - 1)
}

// emitAlternatives appends the instructions of all alternatives, each continuing at next, and returns the index to start at.
func (b *builder) emitAlternatives(all [][]node, next int32) int32 {
	start := b.emitSequence(all[len(all)-1], next)
	for i := len(all) - 2; i >= 0; i-- {
		start = b.emit(instruction{op: opAlt, next: b.emitSequence(all[i], next), other: start})
	}
	return start
}

// emitSequence appends the instructions of nodes in a row, continuing at next, and returns the index to start at.
func (b *builder) emitSequence(nodes []node, next int32) int32 {
	for i := len(nodes) - 1; i >= 0; i-- {
		next = b.emitNode(nodes[i], next)
	}
	return next
}

// emitNode appends the instructions of a node, continuing at next, and returns the index to start at.
func (b *builder) emitNode(n node, next int32) int32 {
	switch n.op {
	case opStar:
		loop := b.emit(instruction{op: opAlt, other: next})
		b.instructions[loop].next = b.emitConsuming(instruction{op: opAny, next: loop})
		return loop
	case opOpen:
		switch n.quantifier {
		case '?':
			return b.emit(instruction{op: opAlt, next: b.emitAlternatives(n.inside, next), other: next})
		case '*', '+':
			loop := b.emit(instruction{op: opAlt, other: next})
			start := b.emitAlternatives(n.inside, loop)
			b.instructions[loop].next = start
			if n.quantifier == '+' {
				return start
			}
			return loop
		}
		return b.emitAlternatives(n.inside, next)
	case opLook:
		if n.quantifier == '?' || n.quantifier == '*' {
			return next
		}
		around := b.consuming
		b.consuming = nil
		accept := b.emit(instruction{op: opAccept})
		start := b.emitAlternatives(n.inside, accept)
		return b.emit(instruction{op: opLook, next: next, section: b.endSection(start, accept, around)})
	case opEnd, opNoDot, opNotEmpty:
		return b.emit(instruction{op: n.op, next: next})
	}
	return b.emitConsuming(instruction{op: n.op, unit: n.unit, class: n.class, next: next})
}

// A run is a program at one position of a name.
type run struct {
	*program
	units []uint16
	at    int
	// live is a set of the instructions that lead to acceptance here; later, of
	// those that do at the next position.
	live, later []uint64
	matched     []bool // by section: it matches from here on
	marks       int    // instructions added to live so far
	steps       *int
}

// match reports whether the program accepts the complete name, and adds its steps to steps.
func (p *program) match(name string, steps *int) bool {
	var roomUnits [64]uint16
	var room [2][4]uint64
	var roomMatched [8]bool
	r := run{program: p, units: appendUnits(roomUnits[:0], name), matched: roomMatched[:], steps: steps}
	r.live, r.later = room[0][:], room[1][:]
	if words := (len(p.instructions) + 63) / 64; words <= len(r.live) {
		r.live, r.later = r.live[:words], r.later[:words]
	} else {
		r.live, r.later = make([]uint64, words), make([]uint64, words)
	}
	if len(p.sections) > len(r.matched) {
		r.matched = make([]bool, len(p.sections))
	}
	whole := len(p.sections) - 1
	for r.at = len(r.units); r.at >= 0; r.at-- {
		clear(r.live)
		var before int
		for i := range p.sections {
			s := &p.sections[i]
			before = r.marks
			if i != whole || r.at == len(r.units) {
				r.addInstruction(s.accept)
			}
			if r.at < len(r.units) {
				r.consume(s)
			}
			r.matched[i] = bitSetContains(r.live, s.start)
		}
		if r.marks == before {
			return false // the whole is last: nothing leads from here to acceptance
		}
		r.live, r.later = r.later, r.live
	}
	return r.matched[whole]
}

// consume adds to r.live those instructions of a section that match the character at r.at and lead to a live instruction at
// the next position.
func (r *run) consume(s *section) {
	unit := r.units[r.at]
	*r.steps += len(s.consuming)
	for _, i := range s.consuming {
		in := &r.instructions[i]
		if !bitSetContains(r.later, in.next) {
			continue
		}
		switch in.op {
		case opChar:
			if in.unit != unit {
				continue
			}
		case opClass:
			if !in.class.contains(unit) {
				continue
			}
		}
		r.addInstruction(i)
	}
}

// addInstruction adds an instruction to r.live, and also those that lead to it without consuming a character, if their
// condition holds at r.at.
func (r *run) addInstruction(i int32) {
	if bitSetContains(r.live, i) {
		return
	}
	r.live[i/64] |= 1 << (i % 64)
	r.marks++
	*r.steps++
	for _, b := range r.before[i] {
		*r.steps++
		switch in := &r.instructions[b]; in.op {
		case opLook:
			if r.matched[in.section] {
				continue
			}
		case opEnd:
			if r.at < len(r.units) {
				continue
			}
		case opNoDot:
			if r.at < len(r.units) && r.units[r.at] == '.' {
				continue
			}
		case opNotEmpty:
			if r.at == len(r.units) || isLineEnd(r.units[r.at]) {
				continue
			}
		}
		r.addInstruction(b)
	}
}

// bitSetContains reports whether a set, with a bit for each number, contains i.
func bitSetContains(set []uint64, i int32) bool { return set[i/64]&(1<<(i%64)) != 0 }

// isLineEnd reports whether a UTF-16 code unit ends a line in JavaScript.
func isLineEnd(unit uint16) bool {
	return unit == '\n' || unit == '\r' || unit == 0x2028 || unit == 0x2029
}

// appendUnits appends the name in UTF-16, in which minimatch counts characters.
func appendUnits(units []uint16, name string) []uint16 {
	for _, r := range name {
		units = utf16.AppendRune(units, r)
	}
	return units
}
