package glob

import "strings"

// A class is a set of UTF-16 units.
type class struct {
	inverted bool
	ranges   []unitRange
}

type unitRange struct{ first, last uint16 }

func (c *class) contains(unit uint16) bool {
	for _, r := range c.ranges {
		if r.first <= unit && unit <= r.last {
			return !c.inverted
		}
	}
	return c.inverted
}

// newClass makes a class of its content; nil where a range in it is upside down.
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
