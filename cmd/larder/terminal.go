package main

import (
	"io"
	"os"
	"strings"
	"sync"

	"github.com/mattn/go-runewidth"
	"golang.org/x/term"
)

// terminalWidth returns how many columns w has if it is a terminal. Otherwise, or if that is unknown, it returns 0: text in a
// file or a pipe is not cut.
func terminalWidth(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil { // not a terminal
		return 0
	}
	return width
}

// leastCut is the number of columns that a cut or wrapped text gets at least, however narrow the terminal.
const leastCut = 20

// cutText shortens s to width columns, or to leastCut if width is less, and ends what it has cut with "…"; a width of 0 leaves
// s complete.
func cutText(s string, width int) string {
	if width == 0 {
		return s
	}
	return runewidth.Truncate(s, max(width, leastCut), "…")
}

// wrapWords joins words with commas into lines of at most width columns, or leastCut if width is less; a longer word is a line
// of its own. A width of 0 is one line. Without words, it returns one empty line.
func wrapWords(words []string, width int) []string {
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

// A terminal is standard error as a running process uses it. While bars are shown, what is written goes above them. It is safe
// for concurrent use.
type terminal struct {
	stderr      io.Writer
	Interactive bool // bars can be drawn on it

	mu sync.Mutex
	to io.Writer
}

// newTerminal returns a terminal that writes to stderr. It is interactive only if stderr is an [*os.File] of a terminal.
func newTerminal(stderr io.Writer) *terminal {
	file, ok := stderr.(*os.File)
	return &terminal{stderr: stderr, to: stderr, Interactive: ok && term.IsTerminal(int(file.Fd()))}
}

// Write implements [io.Writer]. If the progress bars to which it is redirected return an error, because they have just been
// removed, it writes p to standard error.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, err := t.to.Write(p); err == nil {
		return n, nil
	}
	return t.stderr.Write(p) // the bars have just been taken away
}

// redirect has later writes go to w, which is not nil: to progress bars, which show them above the bars, or to t.stderr, which ends
// that.
func (t *terminal) redirect(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.to = w
}
