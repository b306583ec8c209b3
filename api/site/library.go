package site

import (
	"cmp"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// libraryPage is the page of one release of a library, or of a library without releases.
type libraryPage struct {
	*library.Library
	origin

	Release  *library.Release // nil if nothing is published
	Latest   bool             // Release is the library's latest one
	Versions []views.Version
	Previous string // the next older published version, "" for the oldest
	Marks    library.Marks
	Glance   *glance

	chosenFile
	fileList
	unpublishedVersions
	upstreamFacts
	charts
}

// chosenFile is the file whose tags a library's page displays.
type chosenFile struct {
	Chosen  *use       // nil for none
	Pair    string     // tags of the file and of the style sheet or script that belongs to it, "" for none
	Wanted  string     // path of the file that was requested, "" for none
	Lacks   bool       // the release does not have the requested file
	Modules []fileLink // to some ES modules of the release, unless the file is one
}

// fileList is the list of a release's files, or the part of it that a filter selects.
type fileList struct {
	Files     []fileRow // on this page
	Shown     string    // the filter, "" for none
	Pager     pager
	FileCount int            // of the release
	LeftOut   []logs.LeftOut // some of the files that were selected and are not published
	LeftOuts  int            // how many there are
	Notes     []string       // what went wrong without stopping the release
}

// unpublishedVersions are the versions of a library that are not published.
type unpublishedVersions struct {
	Unpublished []views.State // the newest of those newer than the latest one
	HasWaiting  bool          // versions newer than the latest one wait for the bot or are in progress
	NotMirrored int           // how many versions upstream has or had that the bot never tried
	Withdrawn   *views.State  // the newest withdrawn version; only if nothing is published
}

// upstreamFacts are the facts from upstream about a release, and the comparison of the release with upstream.
type upstreamFacts struct {
	Readme           *readme    // nil for none
	MonthDownloads   *downloads // from npm, nil if unknown or 0
	Dependencies     []dependency
	MoreDependencies int                 // how many are not in Dependencies
	Deprecated       string              // why upstream deprecated the release, "" if it did not or that is not known
	Advisories       []packages.Advisory // some of the known vulnerabilities of the release
	Built            *built              // where the release was built, nil if that could not be read
	Upstream         string              // a sentence about what upstream has of the release, "" if unknown
	UpstreamDiffers  bool                // that is not what was published
}

// charts are drawings of numbers over time. One is nil if there are too few numbers, or they could not be read.
type charts struct {
	Usage *usageChart
	Sizes *sizeChart
}

// An origin is where a library comes from, with links that a page may have.
type origin struct {
	HomepageLink, RepositoryLink string // "" if the library has no URL that a page may link to
	RepositoryName               string // USER/REPOSITORY at GitHub, or else the URL; "" for none
	People                       []person
	MorePeople                   int // that are not shown
}

// newOrigin returns the links to a library's homepage and repository, the name of the repository, and the first five
// authors.
func newOrigin(l *library.Library) origin {
	a := origin{HomepageLink: text.WebLink(l.Homepage), RepositoryLink: repositoryLink(l)}
	if l.Repository != nil {
		a.RepositoryName = l.Repository.URL
	}
	if g := l.GitHub(); g != nil {
		a.RepositoryName = g.User + "/" + g.Repo
	}
	a.People, a.MorePeople = listAuthors(l.Authors)
	return a
}

const (
	filesShown       = 50 // on a page
	unpublishedShown = 3
	modulesShown     = 4
	leftOutShown     = 20
	notesShown       = 5
	mostManifest     = 2000 // files of a release whose manifest is read for its page
)

// libraryPage returns the page of a library's latest release, or if nothing is published one that says why. If the query
// has a version, which the version picker submits, it returns a redirect to the page of that version, with the file in the
// query; it does not check that the version exists.
func (s *Site) libraryPage(q *request, l *library.Library) (*pageAnswer, error) {
	if version := q.textParam("version"); version != "" {
		return &pageAnswer{status: http.StatusSeeOther, location: withQuery(versionPath(l.Name, version), encodeQuery("file", q.query.Get("file")))}, nil
	}
	if l.Version == "" {
		return s.unpublishedPage(q, l)
	}
	return s.releasePage(q, l, l.Version)
}

// redirectToLibrary returns a redirect to a library's page, for the address /files/LIBRARY, which lacks a version.
func (s *Site) redirectToLibrary(_ *request, l *library.Library) (*pageAnswer, error) {
	return &pageAnswer{status: http.StatusSeeOther, location: libraryPath(l.Name)}, nil
}

// versionPage returns the page of the version of a library that the request's path names. The errors for a version that is
// not published are those of readRelease.
func (s *Site) versionPage(q *request, l *library.Library) (*pageAnswer, error) {
	return s.releasePage(q, l, q.segments[1])
}

// unpublishedPage returns the page of a library that has no published version. The page lists up to three of the newest
// versions that the bot tried and did not publish, each with the reason, and the newest withdrawn one.
func (s *Site) unpublishedPage(q *request, l *library.Library) (*pageAnswer, error) {
	page := libraryPage{Library: l, origin: newOrigin(l)}
	s.useCounts(q) // and of what upstream has
	states, err := s.library.States(l.Name)
	if err != nil {
		return nil, err
	}
	if page.NotMirrored, err = s.library.NotMirrored(l.Name); err != nil {
		return nil, err
	}
	page.addUnpublished(states)
	if i := slices.IndexFunc(states, func(state views.State) bool { return state.Kind == views.Withdrawn }); i >= 0 {
		page.Withdrawn = &states[i]
	}
	return &pageAnswer{
		view: "library", Title: l.Name, Section: "/search", Description: descriptionOf(l), Data: page,
		canonical: libraryPath(l.Name), Feed: feedPath(l.Name),
	}, nil
}

// findInitial returns the file that the page of a release is about if the user chooses none: the minified form of the main
// file, or else the main file. If the release has no main file, it is the first file. The result is false if the release
// has no files.
func findInitial(r *library.Release) (views.PublishedFile, bool) {
	if f, ok := r.Find(r.Default); ok {
		return minifiedOf(r, f), true
	}
	if len(r.Files) == 0 {
		return views.PublishedFile{}, false
	}
	return r.Files[0], true
}

// releasePage returns the page of a version of a library: the tags of one file, the list of files, and what is known about
// the release. The file is that in the query, or if the release lacks it, as the page then says, the one of findInitial. It
// returns the errors of readRelease, and of reading versions, files, modules or deltas. Marks, manifest, README,
// dependencies, provenance and charts that cannot be read are logged and left out.
func (s *Site) releasePage(q *request, l *library.Library, version string) (*pageAnswer, error) {
	r, err := s.readRelease(q, l.Name, version)
	if err != nil {
		return nil, err
	}
	page := libraryPage{Library: l, origin: newOrigin(l), Release: r, Latest: version == l.Version}
	page.FileCount = len(r.Files)
	if page.Versions, err = s.library.Versions(l.Name); err != nil {
		return nil, err
	}
	if page.NotMirrored, err = s.library.NotMirrored(l.Name); err != nil {
		return nil, err
	}
	page.Previous = versionBefore(page.Versions, version)
	self := versionPath(l.Name, version)
	canonical := self
	if page.Latest {
		canonical = libraryPath(l.Name)
	}
	page.Shown = q.textParam("filter")
	wanted := q.query.Get("file")
	chosen, ok := r.Find(wanted)
	page.Wanted, page.Lacks = wanted, wanted != "" && !ok
	q.inputs.arbitrary = page.Shown != "" || page.Lacks
	s.useCounts(q)
	initial, hasFiles := findInitial(r)
	if !ok {
		wanted, chosen, ok = "", initial, hasFiles
	}
	if page.Marks, err = s.library.Marks(l, s.options.Advisories, library.VersionNames(page.Versions)); err != nil {
		s.logger.Error("site: couldn't read what is wrong with versions; the page is shown without", "package", l.Name, "err", err)
	}
	if ok {
		page.Pair = pairTags(q, r, chosen)
		if page.Chosen, err = s.newUse(q, l, r, chosen); err != nil {
			return nil, err
		}
	}
	shown := filterFiles(r, page.Shown)
	page.Pager = q.newPager(len(shown), filesShown, "files", func(n string) string {
		return withQuery(self, encodeQuery("filter", page.Shown, "page", n, "file", wanted)) + "#files"
	})
	pageNumber := ""
	if page.Pager.Page > 1 {
		pageNumber = strconv.Itoa(page.Pager.Page)
	}
	minified, about := s.addManifest(&page)
	s.addAbout(q, &page, about)
	s.addOrigin(&page)
	s.addSizes(&page)
	if page.Chosen != nil {
		row, err := s.newFileRow(q, r, chosen)
		if err != nil {
			return nil, err
		}
		page.Glance = s.newGlance(&page, &row)
		if page.Glance.Upgrades, err = s.library.Upgrades(r, chosen, page.Versions); err != nil {
			return nil, err
		}
	}
	address := func(path string) fileLink {
		if path == initial.Path {
			return fileLink{path, withQuery(self, encodeQuery("filter", page.Shown, "page", pageNumber)) + "#use"}
		}
		return fileLink{path, withQuery(self, encodeQuery("file", path, "filter", page.Shown, "page", pageNumber)) + "#use"}
	}
	for _, i := range sliceOf(page.Pager, shown) {
		f := r.Files[i]
		row, err := s.newFileRow(q, r, f)
		if err != nil {
			return nil, err
		}
		row.fileLink, row.Minified = address(f.Path), minified[f.Path]
		row.Chosen = page.Chosen != nil && f.Path == page.Chosen.Path
		page.Files = append(page.Files, row)
	}
	s.addUsage(&page)
	if page.Chosen != nil && page.Chosen.Kind != library.Module {
		page.Modules = listModules(r, address)
	}
	if page.Latest {
		states, err := s.library.States(l.Name)
		if err != nil {
			return nil, err
		}
		page.addUnpublished(states)
	}
	return &pageAnswer{
		view: "library", Title: l.Name + " " + version, Section: "/search", Description: descriptionOf(l), Data: page,
		canonical: canonical, Feed: feedPath(l.Name),
	}, nil
}

// addManifest reads the manifest of the page's release. It adds to the page up to 20 left-out files, their number, and up
// to five notes. It returns the paths of files that were minified here, and what upstream says about the release, which is
// empty if the manifest has nothing. Both results are nil, and the page is unchanged, if the release has over 2,000 files,
// because that takes long, or if the manifest cannot be read, which is logged.
func (s *Site) addManifest(page *libraryPage) (minified map[string]bool, about *logs.About) {
	if len(page.Release.Files) > mostManifest {
		return nil, nil
	}
	m, err := s.library.Manifest(page.Release)
	if err != nil {
		s.logger.Error("site: couldn't read a manifest; the page is shown without", "package", page.Name, "version", page.Release.Version, "err", err)
		return nil, nil
	}
	page.LeftOuts = len(m.LeftOut)
	page.LeftOut, page.Notes = m.LeftOut[:min(leftOutShown, len(m.LeftOut))], m.Notes[:min(notesShown, len(m.Notes))]
	minified = map[string]bool{}
	for _, f := range m.Files {
		if f.Origin == logs.Minified {
			minified[f.Path] = true
		}
	}
	about = new(logs.About)
	if m.About != nil {
		about = m.About
	}
	return minified, about
}

// descriptionOf returns a library's description, cut to maxText bytes at a whole character, or a substitute if it has none.
func descriptionOf(l *library.Library) string {
	return cmp.Or(text.Cut(l.Description, maxText), "The files of "+l.Name+", with tags that check their integrity.")
}

// addUnpublished adds to page.Unpublished up to three of states, which are sorted newest first: the newest of those that
// are newer than the latest published version and neither published nor withdrawn. It sets page.HasWaiting if one of them,
// added or not, waits for its turn or is in progress; failed ones do not count.
func (page *libraryPage) addUnpublished(states []views.State) {
	for _, state := range states {
		if state.Version == page.Version {
			break
		}
		switch state.Kind {
		case views.Published, views.Mirrored, views.Withdrawn:
			continue
		case views.Detected, views.Processing:
			page.HasWaiting = true
		}
		if len(page.Unpublished) < unpublishedShown {
			page.Unpublished = append(page.Unpublished, state)
		}
	}
}

// An unpublishedError says that a version is not published, of a library that exists here.
type unpublishedError struct {
	library, version string
	state            *views.Account // says why; nil if nothing is known of the version
	near             []string       // published versions that the visitor may have meant
}

// Error says which version of which library is not published.
func (e *unpublishedError) Error() string { return e.library + " " + e.version + " is not published" }

// readRelease returns a published release with its files, which the caller must not change. The error is a
// [*library.WithdrawnError] if the version was withdrawn, an [*unpublishedError], which says why, if it is not published
// otherwise, [library.ErrNoLibrary], or one of reading.
func (s *Site) readRelease(q *request, name, version string) (*library.Release, error) {
	r, err := s.library.Release(q.Context(), name, version)
	if !errors.Is(err, library.ErrNoVersion) {
		return r, err
	}
	return nil, s.newUnpublishedError(name, version)
}

// newUnpublishedError returns an [*unpublishedError] with the state of the version and similar published versions, or the
// error of reading them. It does not check that the version is unpublished.
func (s *Site) newUnpublishedError(name, version string) error {
	states, err := s.library.Accounts(name)
	if err != nil {
		return err
	}
	e := &unpublishedError{library: name, version: version}
	if i := slices.IndexFunc(states, func(a views.Account) bool { return a.Version == version }); i >= 0 {
		e.state = &states[i]
	}
	versions, err := s.library.Versions(name)
	if err != nil {
		return err
	}
	e.near = library.NearVersions(versions, version)
	return e
}

// A use is how a page loads one file.
type use struct {
	Path string
	library.Snippet
	ImportMap string   // tags that import the module by name, "" for other files
	Preload   string   // tags that preload the module and its imports, "" for other files
	Modules   int      // how many modules load: the file and its imports
	Problems  []string // with these modules
	Main      bool     // it is the main file
}

// modulesPending is the problem that a page displays in place of an import map while a worker still reads what modules
// import.
const modulesPending = "What these modules import is being found out, for their import map. Please reload this page in a moment."

// A fileLink is the path of a file, and the address of the page with its tags.
type fileLink struct{ Path, Address string }

// A fileRow is a file in the list of a release's files.
type fileRow struct {
	fileLink
	library.Snippet
	Size         int64 // not compressed
	Gzip, Brotli int64 // sizes, 0 if the file is not stored in that encoding
	Main, Chosen bool
	Minified     bool // here, from another file
}

// Incompressible reports whether the file is stored neither in gzip nor in Brotli, or has been erased.
func (f fileRow) Incompressible() bool { return f.Gzip == 0 && f.Brotli == 0 }

// newUse returns the tag and the URL by which a page loads the file f of a release. For an ES module it adds the tags of
// the import map and of a script that imports the module by name, the tags that preload it and all that it imports, and
// problems with these. While a worker still reads what they import, the result has the problem modulesPending and no such
// tags.
func (s *Site) newUse(q *request, l *library.Library, r *library.Release, f views.PublishedFile) (*use, error) {
	u := &use{Path: f.Path, Snippet: library.NewSnippet(q.assetBase, r.Library, r.Version, f), Main: f.Path == r.Default}
	if u.Kind != library.Module {
		return u, nil
	}
	g, err := s.importGraph(q, r, []views.PublishedFile{f})
	if err != nil {
		return nil, err
	}
	name, _, err := s.library.BuiltModule(l, r, f.Path)
	if err != nil {
		return nil, err
	}
	name = cmp.Or(name, l.ModuleName())
	m := g.ImportMap
	if m.Imports[name] == "" {
		m.Imports = map[string]string{name: u.URL}
		maps.Copy(m.Imports, g.Imports)
	}
	u.ImportMap = importMap(m) + "\n" + importStatement(name)
	u.Preload = modulePreloads(g.Modules)
	u.Modules, u.Problems = len(g.Modules), g.Problems
	if g.Pending {
		u.ImportMap, u.Preload = "", ""
		u.Problems = append(u.Problems, modulesPending)
	}
	return u, nil
}

// newFileRow returns a file of a release for the list of files, with its tag, integrity, and sizes in each encoding. If its
// content has been erased, the sizes in gzip and Brotli are 0. The caller sets path, address, Chosen and Minified.
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

// filterFiles returns the indexes in r.Files of the files whose paths contain each word of the text, in any order and
// regardless of case; all files for an empty text. If the main file is among them, it comes first. The others are in the
// order of r.Files.
func filterFiles(r *library.Release, text string) []int {
	words := strings.Fields(strings.ToLower(text))
	files := make([]int, 0, len(r.Files))
	main := -1
	for i := range r.Files {
		f := &r.Files[i]
		if len(words) > 0 {
			path := strings.ToLower(f.Path)
			if slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(path, word) }) {
				continue
			}
		}
		if f.Path == r.Default {
			main = len(files)
		}
		files = append(files, i)
	}
	if main > 0 {
		first := files[main]
		files = slices.Insert(slices.Delete(files, main, main+1), 0, first)
	}
	return files
}

// listModules returns links to up to four of the ES modules of a release, likely entry points first; nil if it has none. It
// calls address for the link of each path.
func listModules(r *library.Release, address func(string) fileLink) []fileLink {
	var links []fileLink
	all := r.Modules()
	for _, f := range all[:min(modulesShown, len(all))] {
		links = append(links, address(f.Path))
	}
	return links
}

// newIdentifier returns the name of a JavaScript variable for a package or a module specifier: the part after the last
// slash, without .js or .mjs, in camel case and with ASCII letters, digits, _ and $ only. It returns "library" if that is
// empty or reserved.
func newIdentifier(name string) string {
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		name = name[i+1:] // the scope
	}
	name = strings.TrimSuffix(strings.TrimSuffix(name, ".js"), ".mjs")
	var b strings.Builder
	upper := false
	for _, r := range name {
		switch {
		case r < unicode.MaxASCII && (unicode.IsLetter(r) || r == '_' || r == '$' || unicode.IsDigit(r) && b.Len() > 0):
			if upper {
				r = unicode.ToUpper(r)
			}
			b.WriteRune(r)
			upper = false
		default:
			upper = b.Len() > 0
		}
	}
	if id := b.String(); id != "" && !slices.Contains(reserved, id) {
		return id
	}
	return "library"
}

// reserved are the words that cannot be the name of a variable in a module.
var reserved = strings.Fields(`await break case catch class const continue debugger default delete do else enum export extends false
	finally for function if implements import in instanceof interface let new null package private protected public return static super
	switch this throw true try typeof var void while with yield arguments eval`)
