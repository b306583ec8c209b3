// Package selection decides what becomes of a release's files: which are published, and where, which
// are left out, and which get a minified form that upstream does not have.
//
// The bot publishes by it, and the checks on a submission show by it, so that what a contributor sees
// before the merge is what is served after it. A decision takes the archive's names and sizes, never
// the files' bytes. The package must not know stores or upstreams.
package selection

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"

	"github.com/larder-cdn/larder/packages"
	"github.com/larder-cdn/larder/packages/archive"
)

const (
	// MaxFile is the largest file that is published, in bytes.
	MaxFile = 25 << 20
	// MaxMinify is the largest file that is minified, in bytes.
	MaxMinify = 4 << 20
)

// A Selection is what is to be published of one release.
type Selection struct {
	// Targets are the paths that a file is published at, by its path in the release.
	Targets map[string][]string
	// LeftOut are the files that the package selects but that are not published, by path.
	LeftOut []LeftOut
	// Entries is how many files the release has, selected or not.
	Entries int

	optimization packages.Optimization
	paths        map[string]bool  // every published path, before minifying
	sizes        map[string]int64 // of every file in the release, by its path there
}

// LeftOut is a file that is not published although the package selects it, and why.
type LeftOut struct{ Path, Reason string }

// A File is a file that is going to be published.
type File struct {
	// Path is where it is published, below the package and the version.
	Path string
	// Source is its path in the release; for a file that is made, that of the file it is made from.
	Source string
	// Size in bytes; 0 for a file that is made, which nobody knows yet.
	Size int64
	// Minified tells that the file is made, as upstream has none such.
	Minified bool
}

// Of walks an archive and selects from it by the package's fileMap; of a package without autoupdate
// everything is published. Its errors are those of [archive.Walk]; an archive of which nothing can be
// published is none, see [Selection.Nothing].
func Of(ctx context.Context, p *packages.Package, source archive.Source) (*Selection, error) {
	s := &Selection{
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
	for _, selected := range from(p, names) {
		if reason, ok := leftOut[selected.Source]; ok {
			s.LeftOut = append(s.LeftOut, LeftOut{selected.Path, reason})
			continue
		}
		s.Targets[selected.Source] = append(s.Targets[selected.Source], selected.Path)
		s.paths[selected.Path] = true
	}
	return s, nil
}

func from(p *packages.Package, names []string) []packages.Selected {
	if p.Autoupdate != nil {
		return p.Select(names)
	}
	all := make([]packages.Selected, len(names))
	for i, name := range names {
		all[i] = packages.Selected{Path: name, Source: name}
	}
	return all
}

// Nothing says why there is nothing to publish, or is "" where there is something.
func (s *Selection) Nothing() string {
	switch {
	case len(s.Targets) > 0:
		return ""
	case len(s.LeftOut) > 0:
		l := s.LeftOut[0]
		return fmt.Sprintf("nothing is left to publish: all %d selected files are left out, such as %q (%s)", len(s.LeftOut), l.Path, l.Reason)
	}
	return fmt.Sprintf("the package JSON's fileMap selects none of the release's %d files; `basePath` or `files` does not fit this release", s.Entries)
}

// Minified returns where the minified form of the file at source is published that is made for its
// published path, and the extension that says of what kind it is, ".js" or ".css". They are "" where it
// has none: the package does not want it, it is minified itself, or upstream has one beside it, be that
// published or not. Nothing is made of a file over MaxMinify, nor of one that does not parse.
func (s *Selection) Minified(source, published string) (target, extension string) {
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

// Files returns all that is going to be published, sorted by path.
func (s *Selection) Files() []File {
	var files []File
	for source, paths := range s.Targets {
		for _, published := range paths {
			files = append(files, File{Path: published, Source: source, Size: s.sizes[source]})
			if target, _ := s.Minified(source, published); target != "" && s.sizes[source] <= MaxMinify {
				files = append(files, File{Path: target, Source: source, Minified: true})
			}
		}
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return files
}

// Sources returns the paths of all files in the release, sorted.
func (s *Selection) Sources() []string { return slices.Sorted(maps.Keys(s.sizes)) }

// DefaultFile returns a release's main file among its published paths: the one at filename, which the
// package JSON gives, else the most similar of the same type, or "" where there is none. Libraries
// rename their files now and then, and a package without a default file looks broken.
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

// baseDistance is how many characters the last part of a path differs from base.
func baseDistance(base, p string) int {
	return levenshtein.ComputeDistance(base, strings.ToLower(path.Base(p)))
}
