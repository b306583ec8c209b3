package worker

import (
	"html"
	"strings"

	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/internal/text"
)

// mostLines is how many lines of a comparison are shown.
const mostLines = 5000

// renderComparison returns the differences between the texts r.Text and r.After as the HTML of a unified diff, and counts
// all lines that were added and removed. It cuts long lines and long comparisons; then Cut is true in the result. It never
// returns an error.
func renderComparison(r document.Request) (document.Result, error) {
	var b strings.Builder
	var result document.Result
	lines := 0
	for line := range strings.Lines(text.Diff(r.Text, r.After)) {
		line = strings.TrimRight(line, "\r\n")
		element := "span"
		switch {
		case strings.HasPrefix(line, "+"):
			element = "ins"
			result.Added++
		case strings.HasPrefix(line, "-"):
			element = "del"
			result.Removed++
		}
		if len(line) > document.LongestLine {
			line, result.Cut = text.Short(line, document.LongestLine), true
		}
		markup := "<" + element + ">" + html.EscapeString(line) + "\n</" + element + ">"
		if lines++; lines > mostLines || b.Len()+len(markup) > document.MaxMarkup {
			result.Cut = true
			continue
		}
		b.WriteString(markup)
	}
	result.Markup = b.String()
	return result, nil
}
