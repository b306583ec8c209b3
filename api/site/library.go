package site

import (
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// libraryPage is one release of a library, or a library without any.
type libraryPage struct {
	*library.Library
	origin

	Release  *library.Release // nil where nothing is published
	Latest   bool             // it is the latest one
	Versions []views.Version
	Previous string // the version before this one, "" for the first

	Chosen     *use // the file whose tags are shown, nil for none
	Modules    []fileLink
	Files      []fileRow
	Shown      string // what the list of files is filtered by
	Pager      pager
	FileCount  int
	Troubles   []views.State // newest versions that are not published
	HasWaiting bool          // some of them will be tried
}

// An origin is where a library comes from, as links that can be followed.
type origin struct {
	HomepageLink, RepositoryLink string // "" where there is nothing to follow
	RepositoryName               string
	NPM                          string // name of the package there
}

func newOrigin(l *library.Library) origin {
	a := origin{HomepageLink: webLink(l.Homepage), RepositoryLink: repositoryLink(l)}
	if l.Repository != nil {
		a.RepositoryName = l.Repository.URL
	}
	if g := l.GitHub(); g != nil {
		a.RepositoryName = g.User + "/" + g.Repo
	}
	if l.Autoupdate != nil && l.Autoupdate.Source == "npm" {
		a.NPM = l.Autoupdate.Target
	}
	return a
}

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
}

// Incompressible reports whether no coding was worth while.
func (f fileRow) Incompressible() bool { return f.Gzip == 0 && f.Brotli == 0 }

const (
	filesShown    = 100 // on a page
	troublesShown = 3
	modulesShown  = 4
)

// showLibrary shows the latest release, or, for the version picker of a browser
// without scripts, leads to the one that was picked.
func (s *Site) showLibrary(q *request) (*answer, error) {
	l, err := s.library.Library(q.Context(), q.segments[0])
	if err != nil {
		return nil, err
	}
	if version := q.text("version"); version != "" {
		return &answer{status: http.StatusSeeOther, location: versionPath(l.Name, version)}, nil
	}
	if l.Version == "" {
		return s.showUnpublished(q, l)
	}
	return s.showRelease(q, l, l.Version)
}

func (s *Site) showVersion(q *request) (*answer, error) {
	l, err := s.library.Library(q.Context(), q.segments[0])
	if err != nil {
		return nil, err
	}
	return s.showRelease(q, l, q.segments[1])
}

// showUnpublished says why there is nothing to show of a library yet.
func (s *Site) showUnpublished(q *request, l *library.Library) (*answer, error) {
	page := libraryPage{Library: l, origin: newOrigin(l)}
	if err := s.addTroubles(&page); err != nil {
		return nil, err
	}
	return &answer{
		view: "library", title: l.Name, section: "/search", description: describe(l), data: page,
		canonical: libraryPath(l.Name),
	}, nil
}

func (s *Site) showRelease(q *request, l *library.Library, version string) (*answer, error) {
	r, err := s.library.Release(q.Context(), l.Name, version)
	if err != nil {
		return nil, err
	}
	page := libraryPage{Library: l, origin: newOrigin(l), Release: r, Latest: version == l.Version, FileCount: len(r.Files)}
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(page.Versions, func(v views.Version) bool { return v.Version == version }); i >= 0 && i+1 < len(page.Versions) {
		page.Previous = page.Versions[i+1].Version
	}
	self := versionPath(l.Name, version)
	canonical := self
	if page.Latest {
		canonical = libraryPath(l.Name)
	}
	page.Shown = q.text("filter")
	wanted := q.query.Get("file")
	chosen, ok := r.Find(wanted)
	if !ok {
		wanted = ""
		if chosen, ok = r.Find(r.Default); !ok && len(r.Files) > 0 {
			chosen, ok = r.Files[0], true
		}
	}
	if ok {
		page.Chosen = newUse(q, l, r, chosen)
	}
	shown := filter(r, page.Shown)
	page.Pager = newPager(len(shown), filesShown, q.page(), "files", func(n string) string {
		return withQuery(self, encode("filter", page.Shown, "page", n, "file", wanted)) + "#files"
	})
	pageNumber := ""
	if page.Pager.Page > 1 {
		pageNumber = q.query.Get("page")
	}
	address := func(path string) fileLink {
		if path == r.Default {
			return fileLink{path, withQuery(self, encode("filter", page.Shown, "page", pageNumber)) + "#use"}
		}
		return fileLink{path, withQuery(self, encode("file", path, "filter", page.Shown, "page", pageNumber)) + "#use"}
	}
	for _, f := range part(page.Pager, shown) {
		row, err := s.newFileRow(q, r, f)
		if err != nil {
			return nil, err
		}
		row.fileLink = address(f.Path)
		row.Chosen = page.Chosen != nil && f.Path == page.Chosen.Path
		page.Files = append(page.Files, row)
	}
	if page.Chosen != nil && page.Chosen.Kind != library.Module {
		page.Modules = modules(r, address)
	}
	if page.Latest {
		if err := s.addTroubles(&page); err != nil {
			return nil, err
		}
	}
	return &answer{
		view: "library", title: l.Name + " " + version, section: "/search", description: describe(l), data: page,
		canonical: canonical,
	}, nil
}

// describe returns a library's description, or what stands for one.
func describe(l *library.Library) string {
	return or(cut(l.Description, maxText), "The files of "+l.Name+", with tags that check their integrity.")
}

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

// modules returns the files of a release that are modules by their names, those
// first that a page would load.
func modules(r *library.Release, address func(string) fileLink) []fileLink {
	var found []string
	for _, f := range r.Files {
		if library.KindOf(f.Path) == library.Module {
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

// addTroubles adds the newest versions, newer than what is published, that are not.
func (s *Site) addTroubles(page *libraryPage) error {
	states, err := s.library.States(page.Name)
	if err != nil {
		return err
	}
	for _, state := range states {
		if state.Version == page.Version {
			break
		}
		switch state.Kind {
		case views.Published, views.Withdrawn:
			continue
		case views.Detected, views.Processing:
			page.HasWaiting = true
		}
		if len(page.Troubles) < troublesShown {
			page.Troubles = append(page.Troubles, state)
		}
	}
	return nil
}
