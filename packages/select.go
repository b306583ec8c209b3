package packages

import (
	"cmp"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/packages/glob"
)

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

// A GlobUse is what one glob of a fileMap does for a release.
type GlobUse struct {
	// Entry and Index say which glob it is: autoupdate.fileMap[Entry].files[Index].
	Entry, Index int
	// Matches is how many of the release's files it matches, whatever other
	// globs do.
	Matches int
}

// GlobUses returns what each glob of the fileMap does for a release with the given
// paths, in their order.
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
func (p *Package) IgnoresVersion(version string) bool {
	return slices.ContainsFunc(p.ignored, func(g *glob.Glob) bool { return g.Match(version) })
}

func (s selector) matches(name string) bool {
	return slices.ContainsFunc(s.globs, func(g *glob.Glob) bool { return g.Match(name) })
}

// newBase returns basePath as a prefix of the paths below it, and false where it
// leaves the release. Contributors write "dist", "dist/", "/dist" and "./dist" for
// the same folder.
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
