package verify

import (
	"strings"
	"unicode/utf8"
)

// lineBreaks replaces what ends a line in CSS by line feeds (css-syntax-3, section 3.3).
var lineBreaks = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\f", "\n")

// styleReferences returns the addresses in a CSS text in their order, not resolved, with CSS escapes decoded: in imports
// those of @import rules, quoted or in url(), and in urls those of all other url(). It returns each as often as it is
// there, also an empty one. Quoted addresses elsewhere, as in image-set(), are left out. It may return some that browsers
// ignore, such as an import that is not at the beginning.
func styleReferences(text string) (imports, urls []string) {
	s := styleScanner{rest: lineBreaks.Replace(text)}
	importing := false
	take := func(to string) {
		if importing {
			imports, importing = append(imports, to), false
		} else {
			urls = append(urls, to)
		}
	}
	for s.rest != "" {
		switch c := s.rest[0]; {
		case strings.HasPrefix(s.rest, "/*"):
			_, s.rest, _ = strings.Cut(s.rest[2:], "*/")
		case c == '"' || c == '\'':
			if to := s.readString(); importing {
				take(to)
			}
		case c == '@':
			s.rest = s.rest[1:]
			importing = strings.EqualFold(s.readIdentifier(), "import")
		case c == ';' || c == '{' || c == '}':
			s.rest, importing = s.rest[1:], false
		default:
			name := s.readIdentifier()
			if name == "" {
				s.rest = s.rest[1:]
			} else if strings.HasPrefix(s.rest, "(") && strings.EqualFold(name, "url") {
				s.rest = s.rest[1:]
				take(s.readURL())
			}
		}
	}
	return imports, urls
}

// A styleScanner reads the tokens of https://www.w3.org/TR/css-syntax-3/ that addresses are made of.
type styleScanner struct{ rest string }

const styleSpace = " \t\r\n\f"

// readIdentifier reads the letters, digits, hyphens, underscores, characters beyond ASCII and escapes at the scanner's
// position, and returns them with the escapes decoded. It returns "" if none of these is there. Unlike a CSS identifier,
// the result may begin with a digit.
func (s *styleScanner) readIdentifier() string {
	var b strings.Builder
	for s.rest != "" {
		c := s.rest[0]
		switch {
		case c == '_' || c == '-' || c >= utf8.RuneSelf || '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z':
			b.WriteByte(c)
			s.rest = s.rest[1:]
		case c == '\\' && len(s.rest) > 1 && s.rest[1] != '\n':
			b.WriteString(s.readEscape())
		default:
			return b.String()
		}
	}
	return b.String()
}

// readEscape reads an escape sequence, at whose backslash the scanner is, and returns its character: that of up to six
// hexadecimal digits, with one space after them, or else the character after the backslash. It returns U+FFFD for an
// invalid code, and "" at the end of the text.
func (s *styleScanner) readEscape() string {
	s.rest = s.rest[1:]
	digits, r := 0, rune(0)
	for digits < 6 && digits < len(s.rest) {
		d := strings.IndexByte("0123456789abcdef", s.rest[digits]|0x20)
		if s.rest[digits] < '0' || d < 0 {
			break
		}
		r, digits = r<<4|rune(d), digits+1
	}
	if digits == 0 {
		_, size := utf8.DecodeRuneInString(s.rest)
		literal := s.rest[:size]
		s.rest = s.rest[size:]
		return literal
	}
	s.rest = s.rest[digits:]
	if s.rest != "" && strings.IndexByte(styleSpace, s.rest[0]) >= 0 {
		s.rest = s.rest[1:]
	}
	if r == 0 || !utf8.ValidRune(r) {
		r = utf8.RuneError
	}
	return string(r)
}

// readString reads a quoted string, whose quotation mark is at the scanner's position, and returns the text in it with its
// escapes decoded. A line feed without a backslash, or the end of the text, ends it too.
func (s *styleScanner) readString() string {
	mark := s.rest[0]
	s.rest = s.rest[1:]
	return s.readUntil(func(c byte) bool { return c == mark || c == '\n' })
}

// readURL reads the rest of a url(…), after the opening parenthesis and including the closing one, or to the end of the
// text. It returns the address in it, without quotes and with its escapes decoded. It ignores what follows a quoted
// address.
func (s *styleScanner) readURL() string {
	s.rest = strings.TrimLeft(s.rest, styleSpace)
	var to string
	if s.rest != "" && (s.rest[0] == '"' || s.rest[0] == '\'') {
		to = s.readString()
		s.readUntil(func(c byte) bool { return c == ')' })
	} else {
		to = strings.TrimRight(s.readUntil(func(c byte) bool { return c == ')' }), styleSpace)
	}
	return to
}

// readUntil reads up to and including the first byte for which isEnd returns true, or to the end of the text, and returns
// the text before it with its escapes decoded. A byte after a backslash is no end, and an escaped line feed is left out.
func (s *styleScanner) readUntil(isEnd func(c byte) bool) string {
	var b strings.Builder
	for s.rest != "" {
		c := s.rest[0]
		switch {
		case isEnd(c):
			s.rest = s.rest[1:]
			return b.String()
		case strings.HasPrefix(s.rest, "\\\n"):
			s.rest = s.rest[2:]
		case c == '\\' && len(s.rest) > 1:
			b.WriteString(s.readEscape())
		default:
			b.WriteByte(c)
			s.rest = s.rest[1:]
		}
	}
	return b.String()
}

// queueStyleReferences adds to the queue c.pending what a CSS text at the address base loads, each address once as an
// import and once as a URL, to be checked next. line is that of the page's tag; from is the style sheet's URL, or that of
// the frame that has it. It searches an imported style sheet in a data: address at once, and ignores addresses that are
// empty or only a fragment, and those in url() without a host, such as pictures in data:. If the queue is full, it adds a
// note, the report becomes [Unproven], and the rest is not queued.
func (c *pageCheck) queueStyleReferences(p *page, text string, base *webURL, line int, from string) {
	imports, urls := styleReferences(text)
	for _, of := range []struct {
		kind string
		all  []string
	}{{StyleImport, imports}, {StyleURL, urls}} {
		for _, to := range of.all {
			r := Reference{Kind: of.kind, Line: line, From: from, page: p}
			at, err := parseWebURL(to, base)
			switch {
			case to == "" || strings.HasPrefix(to, "#"): // such as a part of the page's own pictures
				continue
			case err != nil:
				r.URL, r.problem = to[:min(len(to), maxURL)], "its address cannot be read: "+err.Error()
			case at.opaque && of.kind == StyleURL:
				continue
			case at.opaque && at.scheme == "data":
				if c.count++; c.count > maxModules {
					r.URL, r.problem = "data:", "too many style sheets are imported"
				} else if _, body, err := parseDataURL(at.path); err != nil {
					r.URL, r.problem = "data:", "its data: address cannot be read: "+err.Error()
				} else {
					c.queueStyleReferences(p, body, at, line, from)
					continue
				}
			default:
				r.URL = at.String()
			}
			key := of.kind + " " + r.URL
			switch {
			case c.followed[key+" listed"]:
			case len(c.pending) >= maxReferences:
				p.addNote("line %d: over %d files are loaded by scripts and style sheets, and the rest is not checked", line, maxReferences)
				c.report.Outcome = Worse(c.report.Outcome, Unproven)
				return
			default:
				c.followed[key+" listed"] = true
				c.pending = append(c.pending, r)
			}
		}
	}
}
