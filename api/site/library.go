package site

import (
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/logs"
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
	LeftOut    []logs.LeftOut // some of the files that were selected and are not published
	LeftOuts   int            // how many there are
	Notes      []string       // what went wrong without stopping the release
	Troubles   []views.State  // newest versions that are not published
	HasWaiting bool           // some of them will be tried
	Withdrawn  *views.State   // newest version that was withdrawn; only where nothing is published
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

const (
	filesShown    = 100 // on a page
	troublesShown = 3
	modulesShown  = 4
	leftOutShown  = 20
	notesShown    = 5
	mostManifest  = 2000 // files of a release whose manifest is read for its page
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
	states, err := s.library.States(l.Name)
	if err != nil {
		return nil, err
	}
	page.addTroubles(states)
	if i := slices.IndexFunc(states, func(state views.State) bool { return state.Kind == views.Withdrawn }); i >= 0 {
		page.Withdrawn = &states[i]
	}
	return &answer{
		view: "library", title: l.Name, section: "/search", description: describe(l), data: page,
		canonical: libraryPath(l.Name),
	}, nil
}

func (s *Site) showRelease(q *request, l *library.Library, version string) (*answer, error) {
	r, err := s.release(q, l.Name, version)
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
		pageNumber = strconv.Itoa(page.Pager.Page)
	}
	minified := s.addManifest(&page)
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
		row.fileLink, row.Minified = address(f.Path), minified[f.Path]
		row.Chosen = page.Chosen != nil && f.Path == page.Chosen.Path
		page.Files = append(page.Files, row)
	}
	if page.Chosen != nil && page.Chosen.Kind != library.Module {
		page.Modules = modules(r, address)
	}
	if page.Latest {
		states, err := s.library.States(l.Name)
		if err != nil {
			return nil, err
		}
		page.addTroubles(states)
	}
	return &answer{
		view: "library", title: l.Name + " " + version, section: "/search", description: describe(l), data: page,
		canonical: canonical,
	}, nil
}

// addManifest adds what only the manifest knows: what was left out, and which files were
// minified here. A page does without for a release of so many files that reading its
// manifest takes longer than all else.
func (s *Site) addManifest(page *libraryPage) (minified map[string]bool) {
	if len(page.Release.Files) > mostManifest {
		return nil
	}
	m, err := s.library.Manifest(page.Release)
	if err != nil {
		s.logger.Error("site: couldn't read a manifest; the page is shown without", "package", page.Name, "version", page.Release.Version, "err", err)
		return nil
	}
	page.LeftOuts = len(m.LeftOut)
	page.LeftOut, page.Notes = m.LeftOut[:min(leftOutShown, len(m.LeftOut))], m.Notes[:min(notesShown, len(m.Notes))]
	minified = map[string]bool{}
	for _, f := range m.Files {
		if f.Origin == logs.Minified {
			minified[f.Path] = true
		}
	}
	return minified
}

// describe returns a library's description, or what stands for one.
func describe(l *library.Library) string {
	return or(cut(l.Description, maxText), "The files of "+l.Name+", with tags that check their integrity.")
}

// addTroubles adds the newest versions, newer than what is published, that are not.
func (page *libraryPage) addTroubles(states []views.State) {
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
}

// An unpublishedError says that a version of a library that is here is not.
type unpublishedError struct {
	library, version string
	state            *views.State // why, nil where it has never been seen
}

func (e *unpublishedError) Error() string { return e.library + " " + e.version + " is not published" }

// release reads a release, or finds out why there is none.
func (s *Site) release(q *request, name, version string) (*library.Release, error) {
	r, err := s.library.Release(q.Context(), name, version)
	if !errors.Is(err, library.ErrNoVersion) {
		return r, err
	}
	return nil, s.unpublished(name, version)
}

// unpublished says what became of a version that there is nothing to show of.
func (s *Site) unpublished(name, version string) error {
	states, err := s.library.States(name)
	if err != nil {
		return err
	}
	e := &unpublishedError{library: name, version: version}
	if i := slices.IndexFunc(states, func(state views.State) bool { return state.Version == version }); i >= 0 {
		e.state = &states[i]
	}
	return e
}
