package submission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/npm"
	"github.com/larder-cdn/larder/packages"
)

// What a release may have before it is worth asking whether all of it is needed.
const (
	manyFiles = 2000
	manyBytes = 100 << 20
)

// Problems returns what a package JSON should change, as its latest release shows.
func (p *Preview) Problems() []packages.Problem {
	var problems []packages.Problem
	add := func(severity packages.Severity, rule string, at []string, format string, args ...any) {
		problems = append(problems, packages.ProblemAt(p.Package.JSON, severity, rule, fmt.Sprintf(format, args...), at...))
	}
	r, fileMap := &p.Latest, []string{"autoupdate", "fileMap"}
	if r.Refused != "" {
		add(packages.Error, "selection", fileMap, "nothing of %s would be published: %s%s", r.Name, r.Refused, p.folders())
	}
	if r.Entries > 0 {
		p.globs(add)
	}
	const most = 5
	for i, left := range r.LeftOut {
		if i == most {
			add(packages.Warning, "selection", fileMap, "%d more selected files of %s would be left out", len(r.LeftOut)-most, r.Name)
			break
		}
		add(packages.Warning, "selection", fileMap, "%q of %s would be left out: %s", left.Path, r.Name, left.Reason)
	}
	if filename := p.Package.Filename; filename != "" && r.Refused == "" && r.Default != filename {
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

// globs tells of globs that select nothing, or everything there is.
func (p *Preview) globs(add func(severity packages.Severity, rule string, at []string, format string, args ...any)) {
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

// folders names the folders at the top of a release, for whoever has named one that is not there.
func (p *Preview) folders() string {
	counts := map[string]int{}
	for _, source := range p.Latest.Sources {
		if folder, _, ok := strings.Cut(source, "/"); ok {
			counts[folder]++
		}
	}
	const most = 10
	var shown []string
	for _, folder := range slices.Sorted(maps.Keys(counts)) {
		if len(shown) == most {
			shown = append(shown, "…")
			break
		}
		shown = append(shown, fmt.Sprintf("%.60q (%d)", folder, counts[folder]))
	}
	if shown == nil {
		return ""
	}
	return "; its folders and their numbers of files: " + strings.Join(shown, ", ")
}

// Trouble makes a problem of an error of [Look]. What is unknown is an error, too: a check that could not
// be made has not been passed.
func Trouble(p *packages.Package, err error) packages.Problem {
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
