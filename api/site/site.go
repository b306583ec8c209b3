// Package site is the web pages: finding a library, copying the tag that loads it,
// seeing what a release holds and what became of the others.
//
// It guarantees that a page needs nothing from another host and no script, that
// nothing in a package's metadata can become markup or a link that runs something,
// and that an answer's size is bounded whatever is in the store or the query. Every
// page has an entity tag and comes compressed; the style sheet, the scripts and
// the mark have a hash in their names and may be kept for ever.
//
// All that is shown comes from package library. The package must not know the store
// behind it, the REST API, or how assets are served.
package site

import (
	"cmp"
	"context"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/api/rendering"
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/prepared"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/usage"
)

// Options says what the pages show. Only Library and Renderer are required.
type Options struct {
	// Library is what there is to browse.
	Library *library.Index
	// Renderer has what strangers wrote rendered in worker processes.
	Renderer *rendering.Renderer
	// AssetBase begins the URLs of files, without a slash at its end. Default: the
	// origin that the page was asked from.
	AssetBase string
	// SiteBase begins the pages' own addresses, without a slash at its end. Default:
	// the origin that the page was asked from.
	SiteBase string
	// Name is what the pages call the service. Default: Larder.
	Name string
	// Document returns the OpenAPI document in JSON, from which /docs is made. Nil:
	// there is no such page.
	Document func() []byte
	// Rooms are the waiting rooms. Nil: there are none, and no page of them.
	Rooms Rooms
	// Nodes returns the nodes of the cluster that this is one of and, with an error, those that can be told of without
	// the others. Nil: it is no node, and there is no page of them.
	Nodes func(ctx context.Context) ([]Node, error)
	// Catalogue tells how the catalogue stands. Nil: nothing is said of it.
	Catalogue func() Catalogue
	// Draft writes the package JSON of an npm package, or returns a *DraftError that says why not; it
	// may be called twice at once, and should end with its context. Nil: there is no page for that.
	Draft func(ctx context.Context, npmName string) (*Draft, error)
	// Advisories are the known vulnerabilities. Nil: pages tell of none.
	Advisories *library.Advisories
	// Usage is how much files are asked for. Nil: pages do without.
	Usage *usage.Usage
	// Turns are those in which pages are made, so that making them leaves processors for files. Default: as many as
	// [client.PageProcessors] says.
	Turns *client.Shares
	// Logger gets what goes wrong. Default: nothing is logged.
	Logger *slog.Logger
}

// A Site answers requests for pages and what belongs to them. It is safe for
// concurrent use.
type Site struct {
	options   Options
	library   *library.Index
	logger    *slog.Logger
	files     *files
	templates map[string]*template.Template
	routes    []route
	summary   summaryCache
	totals    totalsCache
	reference referenceCache
	drafting  gate
	kept      prepared.Cache[pageKey, *page]
	hosts     keptHosts
	flights   flights
	now       func() time.Time

	renderTimeout time.Duration
}

// New returns the site. It fails only where what is embedded is broken.
func New(o Options) (*Site, error) {
	if o.Library == nil || o.Renderer == nil {
		return nil, errors.New("site: Options.Library or Options.Renderer is missing")
	}
	o.Name = cmp.Or(o.Name, "Larder")
	o.Turns = cmp.Or(o.Turns, client.NewTurns(client.PageProcessors()))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Site{options: o, library: o.Library, logger: o.Logger, drafting: gate{now: time.Now, turns: client.NewTurns(draftsAtOnce), timeout: client.Timeout}, now: time.Now, renderTimeout: renderTimeout}
	s.kept.Most, s.kept.MostBytes = mostKept, mostKeptBytes
	var err error
	if s.files, err = loadFiles(); err != nil {
		return nil, err
	}
	if s.templates, err = parseTemplates(s.files); err != nil {
		return nil, err
	}
	s.routes = []route{
		{"/", nil, false, s.home},
		{"/search", []string{"q", "page"}, false, s.search},
		{"/library", nil, false, s.librariesElsewhere},
		{"/library/*", []string{"version", "file", "filter", "page"}, true, s.ofLibrary(s.showLibrary)},
		{"/library/*/*", []string{"file", "filter", "page"}, true, s.ofLibrary(s.showVersion)},
		{"/compare/*", []string{"from", "to", "file", "page"}, true, s.ofLibrary(s.compare)},
		{"/files", nil, false, s.librariesElsewhere},
		{"/files/*", nil, false, s.ofLibrary(s.libraryElsewhere)},
		{"/files/*/*", []string{"version", "page"}, true, s.ofLibrary(s.showFiles)},
		{"/files/*/*/**", []string{"version", "page"}, true, s.ofLibrary(s.showFiles)},
		{"/recipe/*/*", []string{"version", "file+", "filter"}, true, s.ofLibrary(s.recipe)},
		{"/history", []string{"entry", "package", "kind+", "since", "before"}, false, s.log},
		{"/history/*", []string{"state", "page"}, true, s.ofLibrary(s.history)},
		{"/history/*/*", []string{"page"}, true, s.releaseHistory},
		{"/statistics", nil, false, s.statistics},
		{"/about", nil, false, s.about},
	}
	if o.Draft != nil {
		s.routes = append(s.routes, route{"/new", []string{"npm"}, false, s.newFile})
	}
	if o.Document != nil {
		s.routes = append(s.routes, route{"/docs", nil, false, s.docs}, route{"/api", nil, false, s.docsElsewhere})
	}
	if o.Rooms != nil {
		s.routes = append(s.routes, route{"/rooms", []string{"live"}, false, s.rooms}, route{"/rooms/*", []string{"live", "people", "span"}, false, s.room})
	}
	if o.Nodes != nil {
		s.routes = append(s.routes, route{"/nodes", nil, false, s.nodes})
	}
	return s, nil
}

// A route leads to one page. A "*" in its pattern is any one segment, and "**" at its end is the path of a file.
type route struct {
	pattern string
	query   []string // names of its parameters, see [canonicalQuery]
	kept    bool     // its pages are functions of libraries, and kept until one of them changes
	show    func(*request) (*answer, error)
}

// names decodes what stands in the place of the stars.
func (r route) names(stars []string) ([]string, error) {
	var names []string
	for i, star := range stars {
		read := requests.DecodeName
		if i == len(stars)-1 && strings.HasSuffix(r.pattern, "**") {
			read = requests.DecodeFile
		}
		name, err := read(star)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// ofLibrary returns what shows a page of the library that the path names.
func (s *Site) ofLibrary(show func(*request, *library.Library) (*answer, error)) func(*request) (*answer, error) {
	return func(q *request) (*answer, error) {
		q.inputs.use(q.segments[0])
		l, err := s.library.Library(q.Context(), q.segments[0])
		if err != nil {
			return nil, err
		}
		return show(q, l)
	}
}

// Owns reports whether a path, percent-encoded as the client sent it, is one that
// people may come to: that of a page or an embedded file, or one below a page, where
// there is nothing but where people look, and find a page that says so.
func (s *Site) Owns(path string) bool {
	if s.files.byPath[path] != nil {
		return true
	}
	if _, _, ok := s.route(path); ok {
		return true
	}
	first, _, below := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return below && slices.ContainsFunc(s.routes, func(r route) bool { return strings.HasPrefix(r.pattern, "/"+first+"/*") })
}

// route finds the page of a path and what stands in the place of the stars.
func (s *Site) route(path string) (route, []string, bool) {
	if path != "/" {
		path = strings.TrimSuffix(path, "/")
		if path == "/" {
			return route{}, nil, false
		}
	}
next:
	for _, r := range s.routes {
		pattern := strings.Split(r.pattern, "/")
		segments := strings.SplitN(path, "/", len(pattern)+1)
		if pattern[len(pattern)-1] == "**" {
			segments = strings.SplitN(path, "/", len(pattern))
		}
		if len(pattern) != len(segments) {
			continue
		}
		var stars []string
		for i, p := range pattern {
			switch {
			case (p == "*" || p == "**") && segments[i] != "":
				stars = append(stars, segments[i])
			case p != segments[i]:
				continue next
			}
		}
		return r, stars, true
	}
	return route{}, nil, false
}

// soughtAt returns what to search for where there is no page: the last words of its path that are no names of our own.
func soughtAt(path string) string {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return ""
	}
	for _, part := range slices.Backward(strings.Split(strings.Trim(decoded, "/"), "/")) {
		name := strings.TrimSuffix(part, ".html")
		if version := strings.TrimPrefix(name, "v"); version == "" || '0' <= version[0] && version[0] <= '9' {
			continue
		}
		if !slices.Contains([]string{"index", "libraries", "latest"}, name) {
			return name
		}
	}
	return ""
}

// libraryTimeout is how long a page waits for the libraries to have been read, after a
// start.
const libraryTimeout = 10 * time.Second

// ServeHTTP answers a request for a path that the site owns, and any other with a
// page that says so.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := requests.RawPath(r.URL)
	if f := s.files.byPath[path]; f != nil {
		sendFile(w, r, f)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), libraryTimeout)
	defer cancel()
	q := &request{Request: r.WithContext(ctx)}
	p, err := s.page(q, path)
	if err != nil { // not even the page of a failure could be made
		http.Error(w, "An unexpected error occurred", http.StatusInternalServerError)
		return
	}
	if p.location != "" {
		redirect(w, p.answer)
		return
	}
	s.send(w, r, p)
}

func (s *Site) answer(q *request, path string) (*answer, error) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		return nil, refuse(http.StatusMethodNotAllowed, "That cannot be done here", "Pages can only be read: the method must be GET or HEAD.")
	}
	route, stars, ok := s.route(path)
	if !ok {
		return nil, &refusal{http.StatusNotFound, "Page not found", "There is no page at this address.", soughtAt(path)}
	}
	var err error
	if q.segments, err = route.names(stars); err != nil {
		return nil, refuse(http.StatusBadRequest, "This address is broken", "Its path is wrongly percent-encoded or not valid UTF-8, or holds a slash or a character that no name has.")
	}
	if path != "/" && strings.HasSuffix(path, "/") {
		return &answer{status: http.StatusPermanentRedirect, location: withQuery(strings.TrimSuffix(path, "/"), q.URL.RawQuery)}, nil
	}
	return route.show(q)
}
