package submission

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/selection"
)

// listed is how many files of a release a summary lists.
const listed = 500

// WriteMarkdown writes a preview for a pull request: what of the latest release would be published, and
// how many files of the older ones. Nothing that a stranger chose is taken for Markdown.
func (p *Preview) WriteMarkdown(w io.Writer) error {
	out := bufio.NewWriter(w)
	r := &p.Latest
	fmt.Fprintf(out, "### %s %s\n\n", Code(p.Package.Name), Code(r.Name))
	if r.Refused != "" {
		fmt.Fprintf(out, "Nothing would be published: %s\n\n", Code(r.Refused))
	} else {
		fmt.Fprintf(out, "%s.", r.Describe())
		if r.Default != "" {
			fmt.Fprintf(out, " The main file is %s.", Code(r.Default))
		}
		fmt.Fprint(out, "\n\n<details><summary>The files</summary>\n\n")
		var b strings.Builder
		for i, f := range r.Files {
			if i == listed {
				fmt.Fprintf(&b, "… and %d more\n", len(r.Files)-listed)
				break
			}
			fmt.Fprintf(&b, "%9s  %s\n", Size(f), line(f.Path))
		}
		fmt.Fprintf(out, "%s\n</details>\n\n", Block(b.String()))
	}
	if len(p.Older) > 0 {
		fmt.Fprint(out, "| release | files | size |\n| --- | --- | --- |\n")
		for i := range p.Older {
			older := &p.Older[i]
			files, size := older.Count()
			fmt.Fprintf(out, "| %s | %s | %s |\n", cell(older.Name), files, size)
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

// Describe says in words what would be published of a release.
func (r *Release) Describe() string {
	text := fmt.Sprintf("%s of the release's %s would be published, %s in all", many(len(r.Files)-r.Made(), "file"), humanize.Comma(int64(r.Entries)), humanize.Bytes(uint64(r.Bytes())))
	if made := r.Made(); made > 0 {
		text += fmt.Sprintf("; %s would be made", many(made, "minified file"))
	}
	if n := len(r.LeftOut); n > 0 {
		text += fmt.Sprintf("; %s left out", many(n, "file"))
	}
	return text
}

// Size is a file's size for people; of one that is made, which has none yet, it says that.
func Size(f selection.File) string {
	if f.Minified {
		return "made"
	}
	return humanize.Bytes(uint64(f.Size))
}

// Count says how many files of a release there would be, and of what size.
func (r *Release) Count() (files, size string) {
	switch {
	case r.Err != nil:
		return "not known", ""
	case r.Refused != "":
		return "none", ""
	}
	return humanize.Comma(int64(len(r.Files))), humanize.Bytes(uint64(r.Bytes()))
}

func many(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return humanize.Comma(int64(n)) + " " + what + "s"
}

// Code makes a code span of Markdown, on one line, which nothing inside can end.
func Code(text string) string {
	text = line(text)
	fence := strings.Repeat("`", longestRun(text)+1)
	if strings.HasPrefix(text, "`") || strings.HasSuffix(text, "`") || text == "" {
		text = " " + text + " "
	}
	return fence + text + fence
}

// cell is code in a table.
func cell(text string) string { return strings.ReplaceAll(Code(text), "|", `\|`) }

// Block makes a code block of Markdown from whole lines, which nothing inside can end.
func Block(text string) string {
	fence := strings.Repeat("`", max(3, longestRun(text)+1))
	return fence + "\n" + text + fence + "\n"
}

func longestRun(text string) (longest int) {
	run := 0
	for _, r := range text {
		run++
		if r != '`' {
			run = 0
		}
		longest = max(longest, run)
	}
	return longest
}

// line puts strangers' text on one line of sensible length.
func line(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	if runes := []rune(text); len(runes) > 500 {
		return string(runes[:500]) + "…"
	}
	return text
}
