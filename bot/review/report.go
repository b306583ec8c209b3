package review

import (
	"fmt"
	"slices"
	"strings"

	gogithub "github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/bot/submission"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/lint"
)

// What a check run may have.
const (
	mostSummary     = 55_000 // bytes, but for a few lines; GitHub takes 65,535 characters
	mostMessage     = 4_000  // bytes
	mostAnnotations = 500    // of a run; each batch of them is a request
)

// A report is what was found in a pull request.
type report struct {
	files   []*reviewed
	removed []string
	other   []string
	left    int
	cut     bool
	notes   []string // what could not be found out
}

// reviewed is a file of it.
type reviewed struct {
	*lint.Result
	section string   // of the summary
	notes   []string // what could not be found out
}

func (r *report) note(text string) {
	if !slices.Contains(r.notes, text) {
		r.notes = append(r.notes, text)
	}
}

func (r *report) results() []*lint.Result {
	results := make([]*lint.Result, len(r.files))
	for i, f := range r.files {
		results[i] = f.Result
	}
	return results
}

// The conclusions of a check run.
const (
	success = "success"
	failure = "failure"
	neutral = "neutral"
)

// conclusion is failure where there is an error, or something that was not looked at though it counts.
func (r *report) conclusion() string {
	_, errors, _ := lint.Totals(r.results())
	switch {
	case errors > 0 || r.left > 0 || r.cut:
		return failure
	case len(r.files) == 0 && len(r.removed) == 0:
		return neutral
	}
	return success
}

// title says in a line what was found.
func (r *report) title() string {
	_, errors, warnings := lint.Totals(r.results())
	files := text.Count(len(r.files), "package JSON file", "package JSON files")
	switch {
	case r.left > 0 || r.cut:
		return "There are too many files to look at all of them"
	case len(r.files) == 0 && len(r.removed) == 0:
		return "No package JSON file is changed"
	case len(r.files) == 0:
		return text.Count(len(r.removed), "package JSON file", "package JSON files") + " removed"
	case errors == 0 && warnings == 0:
		return files + " without a problem"
	case errors == 0:
		return text.Count(warnings, "warning", "warnings") + " in " + files
	}
	return text.Count(errors, "error", "errors") + " and " + text.Count(warnings, "warning", "warnings") + " in " + files
}

// annotations are shown beside the lines, errors before warnings, as many as there may be.
func (r *report) annotations() (annotations []*gogithub.CheckRunAnnotation, more int) {
	for _, severity := range []packages.Severity{packages.Error, packages.Warning} {
		for _, f := range r.files {
			for _, p := range f.Problems {
				if p.Severity != severity {
					continue
				}
				if len(annotations) == mostAnnotations {
					more++
					continue
				}
				annotations = append(annotations, annotation(f.File, p))
			}
		}
	}
	return annotations, more
}

func annotation(file string, p packages.Problem) *gogithub.CheckRunAnnotation {
	level := "failure"
	if p.Severity == packages.Warning {
		level = "warning"
	}
	return &gogithub.CheckRunAnnotation{
		Path: &file, StartLine: &p.Line, EndLine: &p.Line, StartColumn: &p.Column, EndColumn: &p.Column,
		AnnotationLevel: &level, Title: &p.Rule, Message: new(clip(lint.Plain(p.Message), mostMessage)),
	}
}

// clip keeps the beginning of a text, of valid UTF-8.
func clip(s string, most int) string { return text.Short(strings.ToValidUTF8(s, "\uFFFD"), most) }

// summary is the report in Markdown. Of strangers' text nothing is taken for Markdown.
func (r *report) summary() string {
	var s summary
	for i, f := range r.files {
		if !s.add(f.section) {
			s.addAlways(fmt.Sprintf("There is no room for %s more.\n\n", text.Count(len(r.files)-i, "package", "packages")))
			break
		}
	}
	if len(r.files) == 0 && len(r.removed) == 0 {
		s.addAlways("Only the files `packages/**.json` are looked at, and none of them is added, changed or removed.\n\n")
	}
	if r.left > 0 {
		s.addAlways(fmt.Sprintf("**%s not looked at**: a pull request may change %d of them, of %d MiB in all. Make several of it.\n\n", text.Count(r.left, "package JSON file", "package JSON files")+" were", mostFiles, mostBytes>>20))
	}
	if r.cut {
		s.addAlways(fmt.Sprintf("**Not all files were looked at**: GitHub tells of the first %d only. Make several pull requests of it.\n\n", mostChanged))
	}
	if len(r.removed) > 0 {
		s.addAlways("Removed, so that no release follows; what is published of their packages stays: " + names(r.removed) + ".\n\n")
	}
	if len(r.other) > 0 {
		s.addAlways("Not looked at, as only `packages/**.json` is: " + names(r.other) + ".\n\n")
	}
	notes := r.notes
	for _, f := range r.files {
		for _, note := range f.notes {
			if !slices.Contains(notes, note) {
				notes = append(notes, note)
			}
		}
	}
	const mostNotes = 10
	for _, note := range notes[:min(len(notes), mostNotes)] {
		s.addAlways("Not checked: " + submission.Code(clip(note, 300)) + "\n\n")
	}
	if _, more := r.annotations(); more > 0 {
		s.addAlways(text.Count(more, "problem", "problems") + " more than are shown beside the lines.\n\n")
	}
	return s.String()
}

// summary is Markdown up to a size.
type summary struct{ strings.Builder }

// add adds a section, unless it is too long. There is room left for a few lines then.
func (s *summary) add(section string) bool {
	if s.Len()+len(section) > mostSummary {
		return false
	}
	s.WriteString(section)
	return true
}

// addAlways adds one of few lines of bounded length.
func (s *summary) addAlways(line string) { s.WriteString(line) }

// names lists files, a few of them by name.
func names(all []string) string {
	const most = 5
	var shown []string
	for _, name := range all[:min(len(all), most)] {
		shown = append(shown, submission.Code(clip(name, 120)))
	}
	text := strings.Join(shown, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// mostSection is how long the part about one package may be, in bytes, before it is told in short.
const mostSection = 20_000

// describe is the part about one package, once all of its problems are known. preview and published are nil
// where there is none.
func (f *reviewed) describe(preview *submission.Preview, published *Published, tags []string) string {
	var b strings.Builder
	if preview != nil {
		_ = preview.WriteMarkdown(&b) // into memory
		if b.Len() > mostSection {
			b.Reset()
			latest := &preview.Latest
			fmt.Fprintf(&b, "### %s %s\n\n%s.\n\n", submission.Code(clip(preview.Package.Name, 120)), submission.Code(clip(latest.Name, 120)), latest.Describe())
		}
	} else {
		fmt.Fprintf(&b, "### %s\n\n", submission.Code(clip(f.File, 200)))
	}
	errors, warnings := f.Count()
	if errors+warnings == 0 {
		b.WriteString("No problem was found.\n\n")
	} else {
		fmt.Fprintf(&b, "%s and %s; they are beside the lines of %s.\n\n", text.Count(errors, "error", "errors"), text.Count(warnings, "warning", "warnings"), submission.Code(clip(f.File, 200)))
	}
	if len(tags) > 0 {
		b.WriteString("Pages load it with:\n\n" + submission.Block(clip(strings.Join(tags, "\n"), 4_000)+"\n") + "\n")
	}
	if preview != nil && published != nil {
		b.WriteString(describeDifference(&preview.Latest, published))
	}
	return b.String()
}

// describeDifference tells in what the latest release would differ from the one that is published.
func describeDifference(latest *submission.Release, published *Published) string {
	d := compare(latest, published)
	text := fmt.Sprintf("Compared with %s, which is published: %s more, %s fewer, %s with other content.", submission.Code(clip(published.Version, 120)),
		text.Count(len(d.added), "file", "files"), text.Count(len(d.removed), "file", "files"), text.Count(len(d.changed), "file", "files"))
	if latest.Name == published.Version {
		text += " What is published stays as it is; the change counts for the releases to come."
	}
	const most = 60
	var b strings.Builder
	for _, part := range []struct {
		mark  string
		files []string
	}{{"+", d.added}, {"-", d.removed}, {"!", d.changed}} {
		for _, name := range part.files[:min(len(part.files), most)] {
			fmt.Fprintf(&b, "%s %s\n", part.mark, clip(lint.Plain(name), 120))
		}
		if more := len(part.files) - most; more > 0 {
			fmt.Fprintf(&b, "%s … and %d more\n", part.mark, more)
		}
	}
	if b.Len() == 0 {
		return text + "\n\n"
	}
	block := submission.Block(b.String())
	fence := block[:strings.IndexByte(block, '\n')]
	return text + "\n\n<details><summary>The differences</summary>\n\n" + fence + "diff" + block[len(fence):] + "\n</details>\n\n"
}
