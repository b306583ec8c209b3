// Package terminal shows people at a terminal what goes on: bars, the lines above them, and text that is cut to its
// width. Where what is written goes to a file or a pipe, nothing is drawn and nothing is cut.
//
// The package must not know commands and flags, nor how the work that it shows is done.
package terminal

import (
	"io"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// Width is how many columns w has where it is a terminal, else 0: what is written to a file or a pipe is not cut.
func Width(w io.Writer) int {
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

// LeastCut is the least that is left of a text, however narrow the terminal.
const LeastCut = 20

// Cut shortens a text to so many columns; 0 leaves it whole.
func Cut(s string, width int) string {
	if width == 0 {
		return s
	}
	return runewidth.Truncate(s, max(width, LeastCut), "…")
}

// Wrap puts words into lines of so many columns, separated by commas; 0 is one line.
func Wrap(words []string, width int) []string {
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
		case runewidth.StringWidth(line)+1+runewidth.StringWidth(word) <= max(width, LeastCut):
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}

// A Terminal is standard error as a running process uses it. While bars are shown, what is written goes above them.
type Terminal struct {
	stderr      io.Writer
	Interactive bool // bars can be drawn on it

	mu sync.Mutex
	to io.Writer
}

// New returns a terminal that writes to stderr.
func New(stderr io.Writer) *Terminal {
	file, ok := stderr.(*os.File)
	return &Terminal{stderr: stderr, to: stderr, Interactive: ok && term.IsTerminal(int(file.Fd()))}
}

// Write implements [io.Writer].
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.to.Write(p); err == nil {
		return n, nil
	}
	return t.stderr.Write(p) // the bars have just been taken away
}

// divert has everything written to w from now on.
func (t *Terminal) divert(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to = w
}
