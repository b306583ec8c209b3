package submission

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// A release with more files or bytes gets a warning.
const (
	manyFiles = 2000
	manyBytes = 100 << 20
)

// Problems returns the problems of the package JSON that its latest release shows: nothing to publish, globs that select nothing or everything, files
// left out or alike, modules, a missing main file, very many files, a deprecation.
func (p *Preview) Problems() []packages.Problem {
	var problems []packages.Problem
	add := func(severity packages.Severity, rule string, at []string, format string, args ...any) {
		problems = append(problems, packages.ProblemAt(p.Package.JSON, severity, rule, fmt.Sprintf(format, args...), at...))
	}
	r, fileMap := &p.Latest, []string{"autoupdate", "fileMap"}
	if r.Refused != "" {
		add(packages.Error, "selection", fileMap, "nothing of %s would be published: %s", r.Name, r.Refused)
	}
	if r.Entries > 0 {
		p.checkGlobs(add)
	}
	const most = 5
	for i, left := range r.LeftOut {
		if i == most {
			add(packages.Warning, "selection", fileMap, "%d more selected files of %s would be left out", len(r.LeftOut)-most, r.Name)
			break
		}
		add(packages.Warning, "selection", fileMap, "%q of %s would be left out: %s", left.Path, r.Name, left.Reason)
	}
	alike := packages.Alike(r.paths())
	for _, group := range alike[:min(most, len(alike))] {
		add(packages.Warning, "alike", fileMap, "%s of %s differ only in case or in Unicode form; mirrors on some file systems keep one of them: leave the others out", quotePaths(group), r.Name)
	}
	if more := len(alike) - most; more > 0 {
		add(packages.Warning, "alike", fileMap, "%d more groups of files of %s differ only in case or in Unicode form", more, r.Name)
	}
	p.addModuleProblems(add)
	if filename := p.Package.Filename; filename != "" && r.Refused == "" && r.Default != filename && (r.Modules != nil || !p.Package.MayBuild(filename)) {
		hint := "; no published file is of its kind"
		if r.Default != "" {
			hint = fmt.Sprintf("; did you mean %q?", r.Default)
		}
		add(packages.Error, "filename", []string{"filename"}, "%q is not among the files that would be published of %s%s", filename, r.Name, hint)
	}
	if len(r.Files) > manyFiles || r.Bytes() > manyBytes {
		add(packages.Warning, "size", fileMap, "%s has %s files of %s to publish, and so has about each release; leave out what no page loads",
			r.Name, humanize.Comma(int64(len(r.Files))), humanize.Bytes(uint64(r.Bytes())))
	}
	if r.Deprecated != "" {
		add(packages.Warning, "upstream", []string{"autoupdate", "target"}, "its author calls %s deprecated: %.200q", r.Name, r.Deprecated)
	}
	return problems
}

// addModuleProblems adds an error if no module of the latest release can be built. Otherwise it adds which subpaths are left out and
// why, as errors if the package JSON lists subpaths by name and as warnings if not, and a warning if modules use globals of Node.js.
func (p *Preview) addModuleProblems(add func(severity packages.Severity, rule string, at []string, format string, args ...any)) {
	const most = 5
	built, at := p.Latest.Modules, []string{"autoupdate", "modules"}
	switch {
	case built == nil:
		return
	case built.Problem != "":
		add(packages.Error, "modules", at, "no modules of %s would be built: %s", p.Latest.Name, built.Problem)
		return
	}
	severity := packages.Warning
	if len(p.Package.Autoupdate.Modules.Subpaths) > 0 {
		severity = packages.Error
	}
	for _, sentence := range built.DescribeSkipped(most) {
		add(severity, "modules", at, "%s: %s", p.Latest.Name, sentence)
	}
	if sentence := built.DescribeGlobals(); sentence != "" {
		add(packages.Warning, "modules", at, "%s: %s", p.Latest.Name, sentence)
	}
}

// quotePaths returns the first three paths and how many more there are, for a sentence. It quotes them in ASCII, so that paths that look the same
// differ. There are at least two paths.
func quotePaths(paths []string) string {
	const most = 3
	var shown []string
	for _, path := range paths[:min(most, len(paths))] {
		shown = append(shown, text.Short(strconv.QuoteToASCII(path), 100))
	}
	if len(paths) > most {
		shown = append(shown, fmt.Sprintf("%d more", len(paths)-most))
	}
	return english.WordSeries(shown, "and")
}

// checkGlobs calls add with a warning for each glob that selects all of several files, or that selects no file of a release that is not refused.
func (p *Preview) checkGlobs(add func(severity packages.Severity, rule string, at []string, format string, args ...any)) {
	r := &p.Latest
	for _, use := range p.Package.GlobUses(r.Sources) {
		set := p.Package.Autoupdate.FileMap[use.Entry]
		at := []string{"autoupdate", "fileMap", strconv.Itoa(use.Entry), "files", strconv.Itoa(use.Index)}
		pattern := set.Files[use.Index]
		switch {
		case use.Matches == 0 && r.Refused == "":
			add(packages.Warning, "glob", at, "the glob %.100q selects nothing of %s; correct or remove it", pattern, r.Name)
		case use.Matches == r.Entries && r.Entries > 1:
			add(packages.Warning, "glob", at, "the glob %.100q selects everything of %s, all %d files, such as what is for developers only; name the folder and the kinds of files that pages load, for example \"**/*.@(js|css)\"",
				pattern, r.Name, r.Entries)
		}
	}
}

// ProblemOf returns the error of [NewPreview] as a problem of the package JSON. Its severity is always an error, because a check that could not be
// made did not pass.
func ProblemOf(p *packages.Package, err error) packages.Problem {
	at, message := []string{"autoupdate", "target"}, ""
	target := p.Autoupdate.Target
	var name *npm.NameError
	var unusable *git.RefusedError
	switch {
	case errors.As(err, &name):
		message = name.Error()
	case errors.Is(err, fetch.ErrNotFound):
		message = fmt.Sprintf("%s has no %.200q; correct the name, or publish the package there first", upstreams[p.Autoupdate.Source], target)
	case errors.Is(err, ErrNoReleases):
		message = fmt.Sprintf("%.200q has no release that could be published, or \"ignoreVersions\" leaves all of them out", target)
	case errors.As(err, &unusable), errors.Is(err, fetch.ErrForbidden):
		message = fmt.Sprintf("the upstream cannot be used: %v", err) // trying again does not help
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		message = "the upstream could not be looked at in time; try again, or check with --offline"
	default:
		message = fmt.Sprintf("the upstream could not be looked at: %v; try again, or check with --offline", err)
	}
	return packages.ProblemAt(p.JSON, packages.Error, "upstream", message, at...)
}

var upstreams = map[string]string{"npm": "the npm registry", "git": "the git server"}

// maxListed is how many files of a release a summary lists.
const maxListed = 500

// WriteText writes a preview for a terminal or the log of a job. GitHub Actions would take a line that begins with "::" for a
// command, so no line begins with text that a stranger chose, except the first: with the package's name, which has no colons.
func (p *Preview) WriteText(w io.Writer) error {
	out := bufio.NewWriter(w)
	r := &p.Latest
	fmt.Fprintf(out, "%s %s: %s.\n", p.Package.Name, r.Name, r.Describe())
	for _, f := range r.Files {
		mark := ""
		if f.Path == r.Default {
			mark = "   <- the main file"
		}
		fmt.Fprintf(out, "%9s  %s%s\n", Size(f), lint.Plain(f.Path), mark)
	}
	if len(p.Older) > 0 {
		fmt.Fprintln(out, "\nOther releases:")
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  VERSION\tFILES\tSIZE\t")
		for i := range p.Older {
			older := &p.Older[i]
			files, size := older.Count()
			why := older.Refused
			if older.Err != nil {
				why = older.Err.Error()
			}
			fmt.Fprintf(t, "  %s\t%s\t%s\t%s\n", older.Name, files, size, lint.Plain(text.Short(why, 100)))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if len(p.Tags) > 0 {
		fmt.Fprintln(out, "\nTags:")
		writeLines(out, p.Tags)
	}
	if c := p.Change; c != nil {
		fmt.Fprintf(out, "\n%s\n", c.fieldsHeading())
		writeLines(out, c.Fields)
		fmt.Fprintln(out, lint.Plain(c.describe(r.Name)))
		writeLines(out, c.fileLines())
	}
	return out.Flush()
}

// writeLines writes lines, each indented and with control characters replaced by spaces.
func writeLines(w io.Writer, lines []string) {
	for _, line := range lines {
		fmt.Fprintf(w, "  %s\n", lint.Plain(line))
	}
}

// WriteMarkdown writes a preview for the summary of a job. Nothing that a stranger chose is taken for Markdown.
func (p *Preview) WriteMarkdown(w io.Writer) error {
	out := bufio.NewWriter(w)
	r := &p.Latest
	fmt.Fprintf(out, "### %s %s\n\n", codeSpan(p.Package.Name), codeSpan(r.Name))
	if r.Refused != "" {
		fmt.Fprintf(out, "Nothing would be published: %s\n\n", codeSpan(r.Refused))
	} else {
		fmt.Fprintf(out, "%s.", r.Describe())
		if r.Default != "" {
			fmt.Fprintf(out, " The main file is %s.", codeSpan(r.Default))
		}
		var lines []string
		for i, f := range r.Files {
			if i == maxListed {
				lines = append(lines, fmt.Sprintf("… and %d more", len(r.Files)-maxListed))
				break
			}
			lines = append(lines, fmt.Sprintf("%9s  %s", Size(f), shortLine(f.Path)))
		}
		fmt.Fprint(out, "\n\n"+foldedBlock("Files", "", lines))
	}
	if len(p.Tags) > 0 {
		fmt.Fprintf(out, "Pages load it with:\n\n%s\n", codeBlock("html", p.Tags))
	}
	if c := p.Change; c != nil {
		fmt.Fprintf(out, "%s\n\n", c.fieldsHeading())
		if len(c.Fields) > 0 {
			fmt.Fprintf(out, "%s\n", codeBlock("diff", c.Fields))
		}
		about := c.describe(r.Name)
		if c.Problem != "" {
			about = codeSpan(about) // an error quotes others
		}
		fmt.Fprintf(out, "%s\n\n", about)
		if files := c.fileLines(); len(files) > 0 {
			fmt.Fprint(out, foldedBlock("Differences", "diff", files))
		}
	}
	if len(p.Older) > 0 {
		fmt.Fprint(out, "| release | files | size |\n| --- | --- | --- |\n")
		for i := range p.Older {
			older := &p.Older[i]
			files, size := older.Count()
			fmt.Fprintf(out, "| %s | %s | %s |\n", tableCell(older.Name), files, size)
		}
		fmt.Fprintln(out)
	}
	return out.Flush()
}

// Describe returns a sentence, without its full stop, that counts what would be published of the release.
func (r *Release) Describe() string {
	minified, built := r.Made()
	description := fmt.Sprintf("%s of the release's %s would be published, %s in all", text.Count(len(r.Files)-minified-built, "file", "files"), humanize.Comma(int64(r.Entries)), humanize.Bytes(uint64(r.Bytes())))
	if minified > 0 {
		description += fmt.Sprintf("; %s would be made", text.Count(minified, "minified file", "minified files"))
	}
	if built > 0 {
		description += fmt.Sprintf("; %s would be built in %s", text.Count(len(r.Modules.Subpaths), "module", "modules"), text.Count(built, "file", "files"))
	}
	if n := len(r.LeftOut); n > 0 {
		description += fmt.Sprintf("; %s left out", text.Count(n, "file", "files"))
	}
	return description
}

// Size returns the size of a file for people, or "minified" for a minified file, which has no size yet.
func Size(f packages.PlannedFile) string {
	if f.Minified {
		return "minified"
	}
	return humanize.Bytes(uint64(f.Size))
}

// Count returns the number and the size of the files that would be published, for the cells of a table.
func (r *Release) Count() (files, size string) {
	switch {
	case r.Err != nil:
		return "not known", ""
	case r.Refused != "":
		return "none", ""
	}
	return humanize.Comma(int64(len(r.Files))), humanize.Bytes(uint64(r.Bytes()))
}

// codeSpan returns text, cut to 500 bytes, as a code span of Markdown on one line, which no text can end.
func codeSpan(text string) string {
	text = shortLine(text)
	fence := strings.Repeat("`", longestRun(text)+1)
	if strings.HasPrefix(text, "`") || strings.HasSuffix(text, "`") || text == "" {
		text = " " + text + " "
	}
	return fence + text + fence
}

// tableCell returns text as a code span in a table of Markdown.
func tableCell(text string) string { return strings.ReplaceAll(codeSpan(text), "|", `\|`) }

// codeBlock returns lines as a code block of Markdown, which no line can end. language may be "".
func codeBlock(language string, lines []string) string {
	text := strings.Join(lines, "\n") + "\n"
	fence := strings.Repeat("`", max(3, longestRun(text)+1))
	return fence + language + "\n" + text + fence + "\n"
}

// foldedBlock returns lines as a code block of Markdown that opens on a click on its title.
func foldedBlock(title, language string, lines []string) string {
	return "<details><summary>" + title + "</summary>\n\n" + codeBlock(language, lines) + "\n</details>\n\n"
}

// longestRun returns the length of the longest run of backticks in a text.
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

// shortLine returns untrusted text on one line of at most 500 bytes.
func shortLine(s string) string {
	return text.Short(text.Line(strings.ToValidUTF8(s, "\uFFFD"), ' '), 500)
}
