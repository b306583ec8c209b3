package main

import (
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// plain is strangers' text as it may go to a terminal: one line, without the characters that move the cursor, change
// colours or turn the direction of what follows.
func plain(s string) string {
	if !strings.ContainsFunc(s, unprintable) && utf8.ValidString(s) {
		return s
	}
	return strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if unprintable(r) {
			return ' '
		}
		return r
	}, s)), " ")
}

func unprintable(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029'
}

// widthOf is how many columns w has where it is a terminal, else 0: what is written to a file or a pipe is not cut.
func widthOf(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// leastCut is the least that is left of a text, however narrow the terminal.
const leastCut = 20

// cut shortens a text to so many columns; 0 leaves it whole.
func cut(s string, width int) string {
	if width == 0 {
		return s
	}
	return runewidth.Truncate(s, max(width, leastCut), "…")
}

// wrap puts words into lines of so many columns, separated by commas; 0 is one line.
func wrap(words []string, width int) []string {
	if width == 0 {
		return []string{strings.Join(words, ", ")}
	}
	var lines []string
	line := ""
	for i, word := range words {
		if i < len(words)-1 {
			word += ","
		}
		switch {
		case line == "":
			line = word
		case runewidth.StringWidth(line)+1+runewidth.StringWidth(word) <= max(width, leastCut):
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
