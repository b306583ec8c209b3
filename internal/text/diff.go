package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/aymanbagabas/go-udiff"
)

// A hunk is a run of lines that are not the same in both, as half-open ranges.
type hunk struct{ from, fromEnd, to, toEnd int }

// Diff returns the hunks of a unified diff, as `diff -u` writes them below its two first lines; "" where the texts are the
// same. The library's own writer counts lines anew for each edit, and gets the numbers of the second text wrong.
func Diff(before, after string) string {
	a, b := slices.Collect(strings.Lines(before)), slices.Collect(strings.Lines(after))
	runs := runsOf(a, b, before, udiff.Lines(before, after))
	var out strings.Builder
	for len(runs) > 0 {
		n := 1 // of them are in one hunk
		for n < len(runs) && runs[n].from-runs[n-1].fromEnd <= 2*udiff.DefaultContextLines {
			n++
		}
		writeHunk(&out, a, b, runs[:n])
		runs = runs[n:]
	}
	return out.String()
}

// runsOf returns the runs of lines that edits change from a, the lines of before, to b, each as far down as it may be, where people
// expect it. The edits are of whole lines and in order.
func runsOf(a, b []string, before string, edits []udiff.Edit) []hunk {
	var runs []hunk
	line, at, grown := 0, 0, 0
	lineAt := func(offset int) int { // offsets come in order
		line += strings.Count(before[at:offset], "\n")
		at = offset
		if offset == len(before) {
			return len(a)
		}
		return line
	}
	for _, e := range edits {
		from := lineAt(e.Start)
		end := lineAt(e.End)
		added := strings.Count(e.New, "\n")
		if e.New != "" && !strings.HasSuffix(e.New, "\n") {
			added++
		}
		r := hunk{from, end, from + grown, from + grown + added}
		grown += added - (end - from)
		if n := len(runs); n > 0 && runs[n-1].fromEnd == r.from {
			runs[n-1].fromEnd, runs[n-1].toEnd = r.fromEnd, r.toEnd
			continue
		}
		runs = append(runs, r)
	}
	for i := range runs {
		r := &runs[i]
		for r.fromEnd < len(a) && r.toEnd < len(b) && (i+1 == len(runs) || r.fromEnd+1 < runs[i+1].from) &&
			(r.to == r.toEnd && a[r.from] == a[r.fromEnd] || r.from == r.fromEnd && b[r.to] == b[r.toEnd]) {
			*r = hunk{r.from + 1, r.fromEnd + 1, r.to + 1, r.toEnd + 1}
		}
	}
	return runs
}

// writeHunk writes one hunk of a unified diff of the lines a and b, with its context. runs are the changes in it.
func writeHunk(out *strings.Builder, a, b []string, runs []hunk) {
	const around = udiff.DefaultContextLines
	first, last := runs[0], runs[len(runs)-1]
	from, end := max(0, first.from-around), min(len(a), last.fromEnd+around)
	to, toEnd := first.to-(first.from-from), last.toEnd+(end-last.fromEnd)
	fmt.Fprintf(out, "@@ -%s +%s @@\n", lineSpan(from, end), lineSpan(to, toEnd))
	write := func(mark byte, lines []string) {
		for _, l := range lines {
			out.WriteByte(mark)
			out.WriteString(l)
			if !strings.HasSuffix(l, "\n") {
				out.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	for _, r := range runs {
		write(' ', a[from:r.from])
		write('-', a[r.from:r.fromEnd])
		write('+', b[r.to:r.toEnd])
		from = r.fromEnd
	}
	write(' ', a[from:end])
}

// lineSpan returns the half-open range of lines from index from to end, counted from 0, as `diff -u` writes it.
func lineSpan(from, end int) string {
	switch end - from {
	case 0:
		return strconv.Itoa(from) + ",0"
	case 1:
		return strconv.Itoa(from + 1)
	}
	return strconv.Itoa(from+1) + "," + strconv.Itoa(end-from)
}
