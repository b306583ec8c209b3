package negotiate

import "strings"

// A Tag is an entity tag as a client names it. Opaque has its quotes.
type Tag struct {
	Opaque string
	Weak   bool
}

// String returns the tag as it goes into a header.
func (t Tag) String() string {
	if t.Weak {
		return "W/" + t.Opaque
	}
	return t.Opaque
}

// NextTag cuts the first entity tag (RFC 9110 §8.8.3) off a list, with the
// separators around it. At the end of the list, or where it is malformed, ok is
// false.
func NextTag(list string) (tag Tag, rest string, ok bool) {
	list = strings.TrimLeft(list, " \t,")
	list, weak := strings.CutPrefix(list, "W/")
	if list == "" || list[0] != '"' {
		return Tag{}, "", false
	}
	for i := 1; i < len(list); i++ {
		switch c := list[i]; {
		case c == '"':
			opaque, rest := list[:i+1], strings.TrimLeft(list[i+1:], " \t")
			if rest != "" && rest[0] != ',' {
				return Tag{}, "", false
			}
			return Tag{opaque, weak}, rest, true
		case c < 0x21 || c == 0x7f:
			return Tag{}, "", false
		}
	}
	return Tag{}, "", false
}

// IsAny reports whether a field is "*", which every representation matches.
func IsAny(lines []string) bool { return len(lines) == 1 && trimOWS(lines[0]) == "*" }

// Match reports whether an If-Match field holds for a representation with the
// strong tag current (RFC 9110 §13.1.1); where not, the answer is 412. Without the
// field it holds.
func Match(lines []string, current string) bool {
	return lines == nil || IsAny(lines) || lists(lines, current, false)
}

// NoneMatch reports whether an If-None-Match field holds for a representation with
// the strong tag current, by weak comparison (RFC 9110 §13.1.2); where not, the
// client has it and the answer is 304. Without the field it holds.
func NoneMatch(lines []string, current string) bool {
	return lines == nil || !IsAny(lines) && !lists(lines, current, true)
}

// lists reports whether the lines name current; weak ones count where weak is set.
func lists(lines []string, current string, weak bool) bool {
	for _, list := range lines {
		for {
			tag, rest, ok := NextTag(list)
			if !ok {
				break
			}
			if tag.Opaque == current && (weak || !tag.Weak) {
				return true
			}
			list = rest
		}
	}
	return false
}
