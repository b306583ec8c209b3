// Package lint checks package JSON files on their way into a catalogue, and puts right what has only one right form.
//
// Package packages says whether a file can be used at all. This one also says whether it should enter
// a catalogue: where it lies, whether its licence is one, whether another package has the same
// upstream, whether it is written like the others. It tells people and other programs what it found:
// as text with the line, as JSON, as SARIF 2.1.0, as GitHub annotations, as a table by rule. Others write
// their findings about lines of files with [WriteSARIFRun].
//
// It guarantees that every problem points into the file it is about, that whatever a stranger wrote
// cannot become a command to the terminal or the workflow that shows it, and that [Fix] changes the
// form of a file only, never what it says. The package must not know upstreams: what only they can
// tell is added to a [Result] by the caller.
package lint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages"
)

// Options says what files are checked against. The zero value is good for use.
type Options struct {
	// Catalogue is what a file's upstream is looked for in; nil: it is not. The file itself may be
	// part of it.
	Catalogue *packages.Catalogue
	// New says that the files are not in the catalogue yet. What old packages are allowed to lack
	// is an error then: autoupdate, an SPDX licence, an upstream of their own. The order of
	// properties is looked at only then.
	New bool
}

// A Linter checks files. It is safe for concurrent use.
type Linter struct {
	o       Options
	targets map[string][]*packages.Package // by what normalizeTarget makes of them
	names   map[string][]*packages.Package // by name in lower case
}

// New returns a linter that checks files as o says. It indexes the names and the upstreams of the packages in o.Catalogue, if
// there is one, to find duplicates.
func New(o Options) *Linter {
	l := &Linter{o: o, targets: map[string][]*packages.Package{}, names: map[string][]*packages.Package{}}
	if o.Catalogue == nil {
		return l
	}
	for _, p := range o.Catalogue.Packages() {
		name := strings.ToLower(p.Name)
		l.names[name] = append(l.names[name], p)
		if p.Autoupdate != nil {
			target := normalizeTarget(p.Autoupdate)
			l.targets[target] = append(l.targets[target], p)
		}
	}
	return l
}

// A Result is the problems of one file.
type Result struct {
	// File is the file's name in messages, slash-separated.
	File string
	// Data is its content.
	Data []byte
	// Package is what it says; nil where it breaks a rule that keeps it from being used.
	Package *packages.Package
	// Problems are in the file's order.
	Problems []packages.Problem
}

// Add adds problems to the result, and sorts all of its problems by their line and column.
func (r *Result) Add(problems ...packages.Problem) {
	r.Problems = append(r.Problems, problems...)
	slices.SortStableFunc(r.Problems, func(a, b packages.Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// Count returns how many of the result's problems are errors, and how many are warnings.
func (r *Result) Count() (errors, warnings int) {
	for _, p := range r.Problems {
		if p.Severity == packages.Error {
			errors++
		} else {
			warnings++
		}
	}
	return errors, warnings
}

// Unreadable returns the result for a file that could not be read: one error, with the reason. file is the name for messages.
func Unreadable(file, reason string) *Result {
	r := &Result{File: file}
	r.Add(packages.ProblemAt(nil, packages.Error, "unreadable", reason))
	return r
}

// Check checks the package JSON data and returns its problems. file is the name for messages; its base name has to be the
// package's name. place is the file's path within its catalogue, such as packages/j/jquery.json; "" if that is unknown or
// does not matter.
func (l *Linter) Check(file, place string, data []byte) *Result {
	r := &Result{File: file, Data: data}
	p, err := packages.Parse(file, data)
	if invalid := (*packages.Invalid)(nil); errors.As(err, &invalid) {
		r.Problems = invalid.Problems
		// The rest of what it says is looked at as well, so that the contributor sees all mistakes at once.
		p = new(packages.Package)
		if len(data) > packages.MaxFileSize || !json.Valid(data) {
			return r
		}
		_ = json.Unmarshal(data, p) // as far as that goes; what is wrong is among the problems
	} else {
		r.Package = p
		r.Problems = slices.Clone(p.Warnings)
	}
	l.checkPath(r, p, place)
	l.checkLicense(r, p)
	l.checkAddresses(r, p)
	l.checkDuplicates(r, p)
	if r.Package != nil {
		if l.o.New {
			r.Add(p.CheckNew()...)
		}
		l.checkForm(r)
	}
	return r
}

// lesserSeverity returns the severity of problems that old packages may have: an error if the linter checks new packages,
// else a warning.
func (l *Linter) lesserSeverity() packages.Severity {
	if l.o.New {
		return packages.Error
	}
	return packages.Warning
}

// add adds a problem with a formatted message to the result. rule is the name of a [Rule], and location the keys that lead to
// the value in the JSON, such as "repository", "url".
func (r *Result) add(severity packages.Severity, rule string, location []string, format string, args ...any) {
	r.Add(packages.ProblemAt(r.Data, severity, rule, fmt.Sprintf(format, args...), location...))
}

// checkPath adds an error to the result r if place, the file's path within its catalogue, is not the path that a catalogue
// has for the package p. It adds none if place is "", or if the file does not have the package's name, which is another
// problem.
func (l *Linter) checkPath(r *Result, p *packages.Package, place string) {
	if place == "" || p.Name == "" || path.Base(place) != p.Name+".json" { // which is said already
		return
	}
	if want := packages.Path(p.Name); place != want {
		r.add(packages.Error, "path", []string{"name"}, "the file is at %q; a catalogue keeps this package at %q: move it, or have `larder lint --fix` do so", place, want)
	}
}

// checkAddresses adds warnings to the result r for a homepage or an author's URL that is no http or https URL with a
// host and without a user name, and for a repository with the git protocol, which is not encrypted.
func (l *Linter) checkAddresses(r *Result, p *packages.Package) {
	link := func(location []string, address string) {
		if address != "" && !isWebAddress(address) {
			r.add(packages.Warning, "address", location, "%q is not the address of a web page; write it whole, with https:// in front", shorten(address))
		}
	}
	link([]string{"homepage"}, p.Homepage)
	for i, a := range p.Authors {
		link([]string{"authors", fmt.Sprint(i), "url"}, a.URL)
	}
	if p.Repository != nil {
		if host, rest, ok := splitGitAddress(p.Repository.URL); ok {
			r.add(packages.Warning, "address", []string{"repository", "url"}, "the git protocol is not encrypted, and large hosts have turned it off; write %q", "https://"+host+rest)
		}
	}
}

// isWebAddress reports whether an address is an http or https URL with a host and without a user name.
func isWebAddress(address string) bool {
	u, err := url.Parse(address)
	return err == nil && (strings.EqualFold(u.Scheme, "http") || strings.EqualFold(u.Scheme, "https")) && u.Hostname() != "" && u.User == nil
}

// splitGitAddress splits an address such as git://host/path into the host and the escaped path, rest. ok is false for other
// protocols, and for an address with a user name.
func splitGitAddress(address string) (host, rest string, ok bool) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "git" || u.Host == "" || u.User != nil {
		return "", "", false
	}
	return u.Host, u.EscapedPath(), true
}

// checkDuplicates adds problems to the result r if the catalogue has another package whose name differs from that of p only
// in case, or that has the same upstream.
func (l *Linter) checkDuplicates(r *Result, p *packages.Package) {
	for _, other := range l.names[strings.ToLower(p.Name)] {
		if other.Name != p.Name {
			r.add(l.lesserSeverity(), "duplicate", []string{"name"}, "the catalogue has %q, which differs from %q only in case; people and some file systems cannot tell them apart", other.Name, p.Name)
		}
	}
	if p.Autoupdate == nil || p.Autoupdate.Target == "" {
		return
	}
	for _, other := range l.targets[normalizeTarget(p.Autoupdate)] {
		if other.Name != p.Name {
			r.add(l.lesserSeverity(), "duplicate", []string{"autoupdate", "target"}, "the catalogue's package %q has this upstream, too; change that one instead of adding another", other.Name)
			return
		}
	}
}

// normalizeTarget returns a key for the upstream of a package that is the same for all forms in which its address can be
// written, such as a git repository over https and over ssh.
func normalizeTarget(a *packages.Autoupdate) string {
	if a.Source != "git" {
		return a.Source + " " + a.Target
	}
	target := a.Target
	if _, rest, ok := strings.Cut(target, "://"); ok {
		target = rest
	} else if host, rest, ok := strings.Cut(target, ":"); ok {
		target = host + "/" + rest // git@host:owner/repository
	}
	if _, rest, ok := strings.Cut(target, "@"); ok {
		target = rest
	}
	return "git " + strings.TrimSuffix(strings.TrimRight(strings.ToLower(target), "/"), ".git")
}

// checkForm adds a warning to the result r if [packages.Format] would change the layout of the file, at the first difference.
// For new packages it also adds one if the properties are not in the usual order.
func (l *Linter) checkForm(r *Result) {
	formatted, err := packages.Format(r.Data, false)
	if err != nil {
		return // said already
	}
	if !bytes.Equal(formatted, r.Data) {
		at := 0
		for at < len(formatted) && at < len(r.Data) && formatted[at] == r.Data[at] {
			at++
		}
		line, column := packages.LineColumn(r.Data, at)
		r.Add(packages.Problem{Line: line, Column: column, Rule: "format", Severity: packages.Warning,
			Message: "the file is not laid out as the others are, from here on: two spaces for each level, a line for each entry, a line break at the end; `larder lint --fix` does it"})
	}
	if !l.o.New {
		return
	}
	if ordered, err := packages.Format(r.Data, true); err == nil && !bytes.Equal(ordered, formatted) {
		r.Add(packages.ProblemAt(r.Data, packages.Warning, "order",
			"the properties are not in the usual order: "+strings.Join(packages.PropertyOrder(), ", ")+"; `larder lint --fix` puts them so"))
	}
}

// shorten cuts a text that a stranger wrote to 100 bytes, for a message.
func shorten(s string) string { return text.Short(s, 100) }

// A Rule is one thing that files are checked for.
type Rule struct {
	// Name is what problems call it.
	Name string
	// About says in a sentence what it asks for.
	About string
}

// Rules returns all rules, also those that package packages checks and those that need an upstream, in the order in which
// contributors meet them.
func Rules() []Rule {
	return []Rule{
		{"unreadable", "The file can be read, is a regular file and is not a link."},
		{"encoding", "The file is UTF-8 text without a byte order mark, of a sensible size."},
		{"syntax", "The file is JSON."},
		{"limit", "The document is not nested too deeply, and has not too many globs."},
		{"repeated", "No property and no entry is given twice."},
		{"required", "Every property that a package needs is there."},
		{"unknown-property", "Every property is a known one."},
		{"type", "Every value is of the kind that its property asks for."},
		{"empty", "No text and no list is empty."},
		{"value", "Names and choices are among those that can be used."},
		{"schema", "The document follows the schema."},
		{"name", "The package has the name of its file."},
		{"path", "The file lies where a catalogue keeps it: packages/{first character}/{name}.json."},
		{"autoupdate", "A new package says where its releases come from."},
		{"filename", "The package names its default file, and the newest release has it."},
		{"base-path", "A fileMap's basePath stays inside the release."},
		{"glob", "Every glob can be used, and selects something, though not everything."},
		{"license", "The license is an SPDX identifier or expression."},
		{"address", "The addresses of pages and repositories can be followed."},
		{"duplicate", "No other package of the catalogue has the name or the upstream."},
		{"order", "The properties of a new package are in the usual order."},
		{"format", "The file is laid out as the others are."},
		{"upstream", "The target exists upstream, has releases and can be asked."},
		{"popularity", "Enough people use the library: by npm's downloads in a month, or by GitHub's stars."},
		{"selection", "The fileMap selects files that can be published."},
		{"alike", "No two published paths of a release differ only in case or in Unicode form."},
		{"modules", "Modules of the newest release can be built."},
		{"size", "A release has a sensible number of files and bytes."},
	}
}
