package packages

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/larder-cdn/larder/packages/archive"
	"github.com/larder-cdn/larder/packages/glob"
)

const (
	// MaxFile is the largest file that is published, in bytes.
	MaxFile = 25 << 20
	// MaxMinify is the largest file that is minified, in bytes.
	MaxMinify = 4 << 20
)

// A Plan is the selection of one release's files for publication: which files, and where, which are left out, and which get a
// minified form that upstream does not have. The bot publishes by it, and the checks on a submission show it, so what a
// contributor sees before the merge is what is served after it. It takes the archive's names and sizes, never the
// files' bytes.
type Plan struct {
	// Targets are the paths that a file is published at, by its path in the release.
	Targets map[string][]string
	// LeftOut are the files that the package selects but that are not published, by path.
	LeftOut []LeftOut
	// Entries is how many files the release has, selected or not.
	Entries int

	optimization Optimization
	paths        map[string]bool  // every published path, before minifying
	sizes        map[string]int64 // of every file in the release, by its path there
}

// LeftOut is a file that is not published although the package selects it, and why.
type LeftOut struct{ Path, Reason string }

// A PlannedFile is a file that is going to be published.
type PlannedFile struct {
	// Path is where it is published, below the package and the version.
	Path string
	// Source is its path in the release; for a minified file, that of the file it is made from; "" for a file that was built from several.
	Source string
	// Size in bytes; 0 for a file that is made, whose size is not known yet.
	Size int64
	// Minified says that the bot makes the file, because upstream has none.
	Minified bool
}

// NewPlan walks an archive with [archive.DefaultLimits] and selects from it by the package's fileMap; of a
// package without autoupdate it selects all files. Its errors are those of [archive.Walk]. An archive of which
// nothing can be published is not an error, see [Plan.Nothing].
func NewPlan(ctx context.Context, p *Package, source archive.Source) (*Plan, error) {
	s := &Plan{
		Targets:      make(map[string][]string),
		optimization: p.Optimization,
		paths:        make(map[string]bool),
		sizes:        make(map[string]int64),
	}
	var names []string
	leftOut := make(map[string]string)
	err := archive.Walk(ctx, source, archive.DefaultLimits, func(e archive.Entry, _ io.Reader) error {
		switch {
		case e.Skipped != "":
			leftOut[e.Name] = e.Skipped
		case e.Size > MaxFile:
			leftOut[e.Name] = fmt.Sprintf("%d bytes, over the limit of %d", e.Size, MaxFile)
		}
		names = append(names, e.Name)
		s.sizes[e.Name] = e.Size
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.Entries = len(names)
	for _, selected := range selectPlanned(p, names) {
		if reason, ok := leftOut[selected.Source]; ok {
			s.LeftOut = append(s.LeftOut, LeftOut{selected.Path, reason})
			continue
		}
		s.Targets[selected.Source] = append(s.Targets[selected.Source], selected.Path)
		s.paths[selected.Path] = true
	}
	return s, nil
}

// selectPlanned returns the files among names that are published, and at which paths.
func selectPlanned(p *Package, names []string) []Selected {
	if p.Autoupdate != nil {
		return p.Select(names)
	}
	all := make([]Selected, len(names))
	for i, name := range names {
		all[i] = Selected{Path: name, Source: name}
	}
	return all
}

// FoldersNote begins the last part of what [Plan.Nothing] says, about the folders that one release has.
const FoldersNote = "; its folders and their numbers of files: "

// Nothing returns why nothing is published, "" if something is.
func (s *Plan) Nothing() string {
	switch {
	case len(s.Targets) > 0:
		return ""
	case s.Entries == 0:
		return "there are no files in it"
	case len(s.LeftOut) > 0:
		l := s.LeftOut[0]
		return fmt.Sprintf("nothing is left to publish: all %d selected files are left out, such as %q (%s)", len(s.LeftOut), l.Path, l.Reason)
	}
	return fmt.Sprintf("the package JSON's fileMap selects none of the release's %d files; `basePath` or `files` does not fit this release%s", s.Entries, s.describeFolders())
}

// describeFolders returns up to ten folders at the top of the release with their numbers of files in words, after
// [FoldersNote], for the end of a message about a file map that names a missing folder; "" if the release has no folders.
func (s *Plan) describeFolders() string {
	counts := make(map[string]int)
	for source := range s.sizes {
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
	return FoldersNote + strings.Join(shown, ", ")
}

// Minified returns the path at which the bot publishes the minified form that it makes of the file at source, for its published
// path, and the extension for its kind, ".js" or ".css". Both are "" if the bot makes none: the file is of another kind, the
// package does not want it, the file is minified itself, or upstream has a minified form beside it, published or not. Minified
// does not look at the file's size or content: the caller makes nothing of a file over MaxMinify, nor of one that does not parse.
func (s *Plan) Minified(source, published string) (target, extension string) {
	for _, kind := range []struct {
		extension string
		wanted    bool
	}{{".js", s.optimization.JS}, {".css", s.optimization.CSS}} {
		stem, ok := strings.CutSuffix(published, kind.extension)
		if !ok || !kind.wanted || strings.HasSuffix(stem, ".min") || strings.HasSuffix(stem, "-min") {
			continue
		}
		target := stem + ".min" + kind.extension
		_, beside := s.sizes[strings.TrimSuffix(source, kind.extension)+".min"+kind.extension]
		if !s.paths[target] && !beside {
			return target, kind.extension
		}
	}
	return "", ""
}

// Files returns all files that will be published, with the minified ones that the bot makes, sorted by path.
func (s *Plan) Files() []PlannedFile {
	var files []PlannedFile
	for source, paths := range s.Targets {
		for _, published := range paths {
			files = append(files, PlannedFile{Path: published, Source: source, Size: s.sizes[source]})
			if target, _ := s.Minified(source, published); target != "" && s.sizes[source] <= MaxMinify {
				files = append(files, PlannedFile{Path: target, Source: source, Minified: true})
			}
		}
	}
	slices.SortFunc(files, func(a, b PlannedFile) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// Sources returns the paths of all files in the release, sorted, also of those that are skipped, such as links.
func (s *Plan) Sources() []string { return slices.Sorted(maps.Keys(s.sizes)) }

// DefaultFile returns a release's main file among its published paths: the one at filename, which the package JSON gives,
// else the one with the same extension whose base name is most similar, or "" if no file has that extension or filename is "".
// Libraries rename their files now and then, and a package without a default file looks broken.
func DefaultFile(filename string, paths []string) string {
	if filename == "" {
		return ""
	}
	var candidates []string
	for _, p := range paths {
		if p == filename {
			return filename
		}
		if path.Ext(p) == path.Ext(filename) {
			candidates = append(candidates, p)
		}
	}
	if len(candidates) == 0 {
		return ""
	}
	base := strings.ToLower(path.Base(filename))
	return slices.MinFunc(candidates, func(a, b string) int {
		return cmp.Or(
			cmp.Compare(baseDistance(base, a), baseDistance(base, b)),
			cmp.Compare(strings.Count(a, "/"), strings.Count(b, "/")),
			strings.Compare(a, b),
		)
	})
}

// baseDistance returns the edit distance between base, which is in lower case, and the last part of the path p in lower case.
func baseDistance(base, p string) int {
	return levenshtein.ComputeDistance(base, strings.ToLower(path.Base(p)))
}

// Selected is a file of a release that the package publishes.
type Selected struct {
	// Path is the published path: the part of Source below the fileMap
	// entry's basePath. It is relative and clean, without "." and "..".
	Path string
	// Source is the file's path in the release.
	Source string
}

// selector is one entry of a fileMap, compiled.
type selector struct {
	base  string // "" or a clean path that ends in "/"
	globs []*glob.Glob
}

// Select returns which of a release's files the package publishes, sorted by
// published path. The given paths are slash-separated and relative to the
// release's root. Where several files would be published at the same path, the
// first fileMap entry that selects one wins, and within it the first in paths.
//
// A package without autoupdate selects nothing. It is safe for concurrent use.
func (p *Package) Select(paths []string) []Selected {
	published := make(map[string]bool)
	var selected []Selected
	for _, s := range p.selectors {
		for _, source := range paths {
			name, below := strings.CutPrefix(source, s.base)
			// ValidPath keeps whatever a release is called inside the package,
			// should its archive have let a ".." or an absolute name through.
			if !below || !fs.ValidPath(source) || published[name] || !s.matches(name) {
				continue
			}
			published[name] = true
			selected = append(selected, Selected{Path: name, Source: source})
		}
	}
	slices.SortFunc(selected, func(a, b Selected) int { return cmp.Compare(a.Path, b.Path) })
	return selected
}

// A GlobUse is the effect of one glob of a fileMap on a release.
type GlobUse struct {
	// Entry and Index say which glob it is: autoupdate.fileMap[Entry].files[Index].
	Entry, Index int
	// Matches is how many of the release's files it matches, whatever other
	// globs do.
	Matches int
}

// GlobUses returns, for each glob of the fileMap in its order, how many of a release's paths below its basePath it matches; nil
// for a package without autoupdate.
func (p *Package) GlobUses(paths []string) []GlobUse {
	var uses []GlobUse
	for i, s := range p.selectors {
		for j, g := range s.globs {
			use := GlobUse{Entry: i, Index: j}
			for _, source := range paths {
				if name, below := strings.CutPrefix(source, s.base); below && g.Match(name) {
					use.Matches++
				}
			}
			uses = append(uses, use)
		}
	}
	return uses
}

// IgnoresVersion reports whether a glob of autoupdate.ignoreVersions matches
// version.
func (p *Package) IgnoresVersion(version string) bool { return p.IgnoredBy(version) != "" }

// IgnoredBy returns the first glob of autoupdate.ignoreVersions that matches version, or "".
func (p *Package) IgnoredBy(version string) string {
	for _, g := range p.ignored {
		if g.Match(version) {
			return g.String()
		}
	}
	return ""
}

// matches reports whether a glob of the selector matches a path below its base.
func (s selector) matches(name string) bool {
	return slices.ContainsFunc(s.globs, func(g *glob.Glob) bool { return g.Match(name) })
}

// newBase returns basePath as the prefix of the paths below it, such as "dist/", and "" for the whole release; false if it
// has a ".." part, even one that stays in the release. It accepts "dist", "dist/", "/dist" and "./dist".
func newBase(basePath string) (string, bool) {
	if slices.Contains(strings.Split(basePath, "/"), "..") {
		return "", false
	}
	base := strings.TrimPrefix(path.Clean("/"+basePath), "/")
	if base == "" {
		return "", true
	}
	return base + "/", true
}
