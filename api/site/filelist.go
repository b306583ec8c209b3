package site

import (
	"errors"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// A use is how one file is loaded.
type use struct {
	Path string
	library.Snippet
	ImportMap string // for modules
	Preload   string // for modules
	Main      bool
}

// A fileLink leads to the uses of a file.
type fileLink struct{ Path, Address string }

// A fileRow is a file in the list.
type fileRow struct {
	fileLink
	library.Snippet
	Size         int64
	Gzip, Brotli int64 // 0 where the file is not kept in that coding
	Main, Chosen bool
	Minified     bool // here, from another file
}

// Incompressible reports whether no coding was worth while.
func (f fileRow) Incompressible() bool { return f.Gzip == 0 && f.Brotli == 0 }

func newUse(q *request, l *library.Library, r *library.Release, f views.PublishedFile) *use {
	u := &use{Path: f.Path, Snippet: library.NewSnippet(q.assetBase, r.Library, r.Version, f), Main: f.Path == r.Default}
	if u.Kind == library.Module {
		name := l.Name
		if l.Autoupdate != nil && l.Autoupdate.Source == "npm" {
			name = l.Autoupdate.Target // what its own documentation imports it as
		}
		u.ImportMap, u.Preload = importMap(name, u.Snippet), modulePreload(u.Snippet)
	}
	return u
}

func (s *Site) newFileRow(q *request, r *library.Release, f views.PublishedFile) (fileRow, error) {
	row := fileRow{Snippet: library.NewSnippet(q.assetBase, r.Library, r.Version, f), Size: f.Size, Main: f.Path == r.Default}
	content, err := s.library.Content(f.Hash)
	switch {
	case errors.Is(err, kvstore.ErrNotFound): // withdrawn and erased since
		return row, nil
	case err != nil:
		return row, err
	}
	if c, ok := content.Find(coding.Gzip); ok {
		row.Gzip = c.Length
	}
	if c, ok := content.Find(coding.Brotli); ok {
		row.Brotli = c.Length
	}
	return row, nil
}

// filter returns the files whose paths have all the words, the main one first.
func filter(r *library.Release, text string) []views.PublishedFile {
	words := strings.Fields(strings.ToLower(text))
	files := make([]views.PublishedFile, 0, len(r.Files))
	main := -1
	for _, f := range r.Files {
		path := strings.ToLower(f.Path)
		if slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(path, word) }) {
			continue
		}
		if f.Path == r.Default {
			main = len(files)
		}
		files = append(files, f)
	}
	if main > 0 {
		first := files[main]
		copy(files[1:main+1], files[:main])
		files[0] = first
	}
	return files
}

// modules returns the files of a release that are modules, those
// first that a page would load.
func modules(r *library.Release, address func(string) fileLink) []fileLink {
	var found []string
	for _, f := range r.Files {
		if library.KindOf(f.Path, f.Module) == library.Module {
			found = append(found, f.Path)
		}
	}
	rank := func(path string) int {
		rank := strings.Count(path, "/") * 4
		if !strings.Contains(path, ".min.") && !strings.Contains(path, ".prod.") {
			rank += 2
		}
		return rank
	}
	slices.SortStableFunc(found, func(a, b string) int { return rank(a) - rank(b) })
	var links []fileLink
	for _, path := range found[:min(modulesShown, len(found))] {
		links = append(links, address(path))
	}
	return links
}
