package lint

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"

	"github.com/larder-cdn/larder/packages"
)

// WriteText writes each problem as a line that begins with file:line:column, and below it the line that
// it is about with a mark under the place.
func WriteText(w io.Writer, results []*Result) error {
	out := bufio.NewWriter(w)
	for _, r := range results {
		for _, p := range r.Problems {
			fmt.Fprintf(out, "%s:%d:%d: %s: %s [%s]\n", Plain(r.File), p.Line, p.Column, p.Severity, Plain(p.Message), p.Rule)
			if text, mark := excerpt(r.Data, p.Line, p.Column); text != "" {
				number := fmt.Sprint(p.Line)
				fmt.Fprintf(out, "  %s | %s\n  %s | %s^\n", number, text, strings.Repeat(" ", len(number)), mark)
			}
		}
	}
	return out.Flush()
}

// excerpt returns a line of a file, or the part of it around a column, and blanks as wide as what stands
// before that column.
func excerpt(data []byte, line, column int) (text, mark string) {
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
	left, right = lastRunes(left, before), firstRunes(right, most-before)
	if strings.TrimSpace(left+right) == "" {
		return "", ""
	}
	right = strings.TrimRight(right, "\r")
	return Plain(left + right), strings.Repeat(" ", runewidth.StringWidth(Plain(left)))
}

func lastRunes(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	at := len(s)
	for ; n > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:at])
		at -= size
	}
	return "…" + s[at:]
}

func firstRunes(s string, n int) string {
	for at := range s {
		if n--; n < 0 {
			return s[:at] + "…"
		}
	}
	return s
}

// blank puts a blank for each character that would move the cursor, change colours or turn the
// direction of what follows, and for bytes that are no text.
func blank(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, s)
}

// Plain is a name that a stranger chose as it may go into a line of text, for terminals and for logs of
// GitHub Actions, which take "##[" anywhere in a line for a command.
func Plain(s string) string { return strings.ReplaceAll(blank(s), "##[", "## [") }

// WriteTable writes how many problems there are of each rule and in how many files, the most frequent
// first, and a sentence about all of them.
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
	rows := make([]*row, 0, len(byRule))
	for _, t := range byRule {
		rows = append(rows, t)
	}
	slices.SortFunc(rows, func(a, b *row) int {
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

// Summary says in a sentence how many files were checked and what was found.
func Summary(results []*Result) string {
	refused, errors, warnings := Totals(results)
	return fmt.Sprintf("%s checked: %s in %s, %s.", many(len(results), "file"), many(errors, "error"), many(refused, "file"), many(warnings, "warning"))
}

// Totals counts the files with errors, the errors and the warnings.
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

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON writes one object: how many files were checked, the counts, and the problems.
func WriteJSON(w io.Writer, results []*Result) error {
	type problem struct {
		File     string `json:"file"`
		Line     int    `json:"line"`
		Column   int    `json:"column"`
		Property string `json:"property,omitempty"`
		Severity string `json:"severity"`
		Rule     string `json:"rule"`
		Message  string `json:"message"`
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
			report.Problems = append(report.Problems, problem{r.File, p.Line, p.Column, p.Property, p.Severity.String(), p.Rule, p.Message})
		}
	}
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
