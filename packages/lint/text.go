package lint

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// WriteText writes each problem as a line that begins with file:line:column, and below it an excerpt of the line in the file,
// with a mark under the column.
func WriteText(w io.Writer, results []*Result) error {
	out := bufio.NewWriter(w)
	for _, r := range results {
		for _, p := range r.Problems {
			fmt.Fprintf(out, "%s:%d:%d: %s: %s [%s]\n", Plain(r.File), p.Line, p.Column, p.Severity, Plain(p.Message), p.Rule)
			if shown, mark := excerpt(r.Data, p.Line, p.Column); shown != "" {
				number := fmt.Sprint(p.Line)
				fmt.Fprintf(out, "  %s | %s\n  %s | %s^\n", number, shown, strings.Repeat(" ", len(number)), mark)
			}
		}
	}
	return out.Flush()
}

// excerpt returns, for display in a terminal, the line with that number of a file (the first is 1), cut around a column if it
// is long. mark is spaces as wide as the text before that column. Both are "" if there is no such line or if it is blank.
func excerpt(data []byte, line, column int) (shown, mark string) {
	const before, most = 60, 100 // characters
	for ; line > 1; line-- {
		_, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return "", ""
		}
		data = rest
	}
	data, _, _ = bytes.Cut(data, []byte("\n"))
	// A line may be a megabyte long; what comes after the place is cut before it is looked at.
	at := 0
	for n := 1; n < column && at < len(data); n++ {
		_, size := utf8.DecodeRune(data[at:])
		at += size
	}
	left, right := string(data[:at]), string(data[at:min(len(data), at+4*most)])
	if runes := []rune(left); len(runes) > before {
		left = "…" + string(runes[len(runes)-before:])
	}
	if cut := text.CutRunes(right, most-before); cut != right {
		right = cut + "…"
	}
	if strings.TrimSpace(left+right) == "" {
		return "", ""
	}
	right = strings.TrimRight(right, "\r")
	return Plain(left + right), strings.Repeat(" ", runewidth.StringWidth(Plain(left)))
}

// Plain returns a text that a stranger may have written in a form that is safe within a line in a terminal, or in the log of
// GitHub Actions, where "##[" starts a command. It replaces control characters by spaces.
func Plain(s string) string { return strings.ReplaceAll(text.Line(s, ' '), "##[", "## [") }

// WriteTable writes a table of the rules that files break, those with the most errors first: how many errors and warnings
// there are in how many files, and where the first one is. A line with the [Summary] follows; without problems it is the only one.
func WriteTable(w io.Writer, results []*Result) error {
	type row struct {
		rule                    string
		errors, warnings, files int
		example                 string
	}
	byRule := make(map[string]*row)
	for _, r := range results {
		seen := make(map[string]bool)
		for _, p := range r.Problems {
			t := byRule[p.Rule]
			if t == nil {
				t = &row{rule: p.Rule, example: fmt.Sprintf("%s:%d", r.File, p.Line)}
				byRule[p.Rule] = t
			}
			if p.Severity == packages.Error {
				t.errors++
			} else {
				t.warnings++
			}
			if !seen[p.Rule] {
				seen[p.Rule] = true
				t.files++
			}
		}
	}
	rows := slices.SortedFunc(maps.Values(byRule), func(a, b *row) int {
		return cmp.Or(cmp.Compare(b.errors, a.errors), cmp.Compare(b.warnings, a.warnings), cmp.Compare(a.rule, b.rule))
	})
	if len(rows) > 0 {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "RULE\tERRORS\tWARNINGS\tFILES\tFIRST")
		for _, row := range rows {
			fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\n", row.rule, row.errors, row.warnings, row.files, Plain(row.example))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(w, Summary(results))
	return err
}

// Summary returns a sentence about how many files were checked, and how many errors and warnings they have.
func Summary(results []*Result) string {
	refused, errors, warnings := Totals(results)
	return fmt.Sprintf("%s checked: %s in %s, %s.", text.Count(len(results), "file", "files"), text.Count(errors, "error", "errors"), text.Count(refused, "file", "files"), text.Count(warnings, "warning", "warnings"))
}

// Totals returns how many of the files have errors (refused), and how many errors and warnings the results list. Those of a file beyond
// the limit of problems are not counted.
func Totals(results []*Result) (refused, errors, warnings int) {
	for _, r := range results {
		e, w := r.Count()
		if e > 0 {
			refused++
		}
		errors, warnings = errors+e, warnings+w
	}
	return refused, errors, warnings
}

// WriteJSON writes one JSON object: how many files were checked, how many errors and warnings they have, and the problems
// with file, line and column.
func WriteJSON(w io.Writer, results []*Result) error {
	type problem struct {
		File string `json:"file"`
		packages.Problem
	}
	report := struct {
		Files    int       `json:"files"`
		Errors   int       `json:"errors"`
		Warnings int       `json:"warnings"`
		Problems []problem `json:"problems"`
	}{Files: len(results), Problems: []problem{}}
	_, report.Errors, report.Warnings = Totals(results)
	for _, r := range results {
		for _, p := range r.Problems {
			report.Problems = append(report.Problems, problem{r.File, p})
		}
	}
	return text.WriteJSON(w, report)
}

// WriteGitHub writes each problem as a workflow command of GitHub Actions, which shows it beside the line:
//
//	::error file=packages/x/x.json,line=3,col=5,title=unknown-property::message
//
// (https://docs.github.com/actions/reference/workflow-commands-for-github-actions).
func WriteGitHub(w io.Writer, results []*Result) error {
	out := bufio.NewWriter(w)
	for _, r := range results {
		for _, p := range r.Problems {
			fmt.Fprintf(out, "::%s file=%s,line=%d,col=%d,title=%s::%s\n",
				p.Severity, propertyEscapes.Replace(r.File), p.Line, p.Column, propertyEscapes.Replace(p.Rule), dataEscapes.Replace(p.Message))
		}
	}
	return out.Flush()
}

// The escapes of @actions/core: nothing that a stranger wrote ends the line, or the property.
var (
	dataEscapes     = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	propertyEscapes = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)
