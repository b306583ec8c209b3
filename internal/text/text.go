// Package text handles text that strangers wrote: it cuts it to a length, makes it safe to
// show on one line, and suggests the known name for a misspelt one. It decodes names and file paths
// in percent-encoded paths of URLs, of requests to this server and of files at other CDNs. It also
// counts things in words, and compiles regular expressions on first use.
//
// A cut never splits a character. A part of a path is decoded once, after the path was split, and
// nothing in it leads out of what it names; what is not encoded is read without an allocation. A test
// compiles every regular expression of the module. The package must not know where a text comes from,
// nor what it means or where it is shown.
package text

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"
	"github.com/dustin/go-humanize"
)

// mark is the end of a text that was cut.
const mark = "…"

// Cut returns the longest beginning of s that has at most n bytes and ends with a whole
// character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for least := n - utf8.UTFMax; n > 0 && n > least && !utf8.RuneStart(s[n]); {
		n--
	}
	return s[:n]
}

// CutRunes returns the first n characters of s.
func CutRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for i := range s {
		if n--; n < 0 {
			return s[:i]
		}
	}
	return s
}

// Short returns s in at most n bytes, n being 3 or more. Where something was cut off, it ends with "…", without white space before
// it.
func Short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.TrimRightFunc(Cut(s, max(0, n-len(mark))), unicode.IsSpace) + mark
}

// Unprintable reports whether a character moves the cursor, ends a line, changes colours or
// turns the direction of what follows.
func Unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// Line returns s on one line, with instead in place of each unprintable character, of each
// byte that is not UTF-8 and of U+FFFD.
func Line(s string, instead rune) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || Unprintable(r) {
			return instead
		}
		return r
	}, s)
}

// Nearest returns the known name that name is probably a slip of: the one that differs in
// the fewest characters, and among equals the first in alphabetical order.
// Case does not count. It may differ in two characters, and from a name of two or three
// characters in one. ok is false, and nearest "", if no name is that similar.
func Nearest(name string, known []string) (nearest string, ok bool) {
	name = strings.ToLower(name)
	length := utf8.RuneCountInString(name)
	least := min(length/2, 2) + 1
	for _, k := range known {
		most := least - 1
		if ok { // one that is as near may be first in the alphabet
			most = least
		}
		if more := length - utf8.RuneCountInString(k); more > most || more < -most {
			continue // by the lengths alone: a stranger's name may be endless
		}
		distance := levenshtein.ComputeDistance(name, strings.ToLower(k))
		if distance < least || ok && distance == least && k < nearest {
			nearest, least, ok = k, distance, true
		}
	}
	return nearest, ok
}

// Plain returns strangers' text as it may go to a terminal: one line, without the characters that move the cursor, change colours or
// turn the direction of what follows. If it has such characters or is not UTF-8, they become white space, bytes that are not UTF-8 become
// U+FFFD, and all white space in it becomes single spaces.
func Plain(s string) string {
	if !strings.ContainsFunc(s, Unprintable) && utf8.ValidString(s) {
		return s
	}
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if Unprintable(r) {
			return ' '
		}
		return r
	}, s)), " ")
}

// Count returns a number with its noun: "1 file", "2,000 files".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return humanize.Comma(int64(n)) + " " + many
}

// WebLink returns a URL that strangers wrote as one that a page may link to, or "" if it does not lead to a web site, has
// credentials or is over 2 KiB.
func WebLink(raw string) string {
	u, err := url.Parse(strings.TrimSpace(raw))
	if err != nil || u.Host == "" || u.User != nil || len(raw) > 2<<10 {
		return ""
	}
	switch strings.ToLower(u.Scheme) {
	case "http", "https":
		return u.String()
	}
	return ""
}

// Each returns format(element) for each element of list, in order. The result is never nil.
func Each[T any](list []T, format func(T) string) []string {
	texts := make([]string, len(list))
	for i, element := range list {
		texts[i] = format(element)
	}
	return texts
}
