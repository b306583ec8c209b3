// Package site has the web pages: search, the libraries with the tags that load them, the files of a release, and the
// log.
//
// It guarantees that a page needs nothing from another host and no script, that no metadata of a package can become markup
// or a link that runs a script, and that the size of a response is bounded for every store and query. Each page but a
// failure page has an entity tag. Pages come compressed to clients that accept that. The style sheet, the scripts and the
// mark have a hash in their names, and caches may store them for a year.
//
// All content about libraries comes from package library. Package site must not know the store behind it, the REST API, or
// how assets are served.
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
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/cluster"
	"github.com/larder-cdn/larder/server/usage"
)

// Options are the options of the pages. Only Library and Renderer are required.
type Options struct {
	// Library has the libraries and their releases.
	Library *library.Index
	// Renderer renders untrusted documents in worker processes.
	Renderer *library.Renderer
	// AssetBase is the base URL of assets, without a slash at the end. Default: the origin of the request.
	AssetBase string
	// SiteBase is the base URL of pages, without a slash at the end. Default: the origin of the request.
	SiteBase string
	// Name is the name of the service. Default: Larder.
	Name string
	// Document returns the OpenAPI document in JSON, from which /docs is made. Nil: the site has no /docs and no /api.
	Document func() []byte
	// Rooms are the waiting rooms. Nil: the site has no pages of waiting rooms.
	Rooms Rooms
	// Nodes returns the nodes of this node's cluster. With an error it returns the nodes that it knows. Nil: the site
	// has no page of nodes.
	Nodes func(ctx context.Context) ([]cluster.Member, error)
	// Catalogue returns the state of the catalogue for the page of statistics. Nil: that page does not mention it.
	Catalogue func() Catalogue
	// Draft writes the package JSON of an npm package, or returns a [*DraftError] that says why not. The
	// site calls it concurrently. Draft should return when its context ends. Nil: the site has no page /new.
	Draft func(ctx context.Context, npmName string) (*Draft, error)
	// Advisories are the known vulnerabilities. Nil: pages say that vulnerabilities are not checked.
	Advisories *library.Advisories
	// Usage counts requests for files. Nil: the pages of libraries have no charts of requests.
	Usage *usage.Usage
	// Turns limits how many pages are made at once, which leaves processors for assets. Default: as many as
	// [answers.PageProcessors] returns.
	Turns *answers.Shares
	// Logger logs errors. Default: no logging.
	Logger *slog.Logger
}

// A Site serves the pages with their style sheets and scripts. It is safe for concurrent use.
type Site struct {
	options   Options
	library   *library.Index
	logger    *slog.Logger
	files     *files
	templates map[string]*template.Template
	routes    []route
	drafting  draftLimiter
	caches
	flights       flights
	now           func() time.Time
	renderTimeout time.Duration
}

// caches are the responses, and parts of them, that a site stores until the data from which it made them changes.
type caches struct {
	summaries   answers.Cache[*library.Listing, *summary]
	totals      totalsCache
	references  answers.Cache[string, docsReference] // by the OpenAPI document
	cachedPages answers.Cache[pageKey, *page]
	graphs      answers.Cache[graphKey, cachedGraph]
	hosts       cachedHosts
}

// New returns the site. It fails only if Options.Library or Options.Renderer is missing, or if an embedded template or file
// is invalid.
func New(o Options) (*Site, error) {
	if o.Library == nil || o.Renderer == nil {
		return nil, errors.New("site: Options.Library or Options.Renderer is missing")
	}
	o.Name = cmp.Or(o.Name, "Larder")
	o.Turns = cmp.Or(o.Turns, answers.NewTurns(answers.PageProcessors()))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Site{options: o, library: o.Library, logger: o.Logger, drafting: draftLimiter{now: time.Now, turns: answers.NewTurns(draftsAtOnce), timeout: answers.TurnTimeout}, now: time.Now, renderTimeout: renderTimeout}
	s.cachedPages.Most, s.cachedPages.MostBytes = maxCached, maxCachedBytes
	s.graphs.Most, s.graphs.MostBytes = maxGraphs, maxGraphBytes
	s.summaries.Most, s.references.Most = 1, 1
	var err error
	if s.files, err = loadFiles(); err != nil {
		return nil, err
	}
	if s.templates, err = parseTemplates(s.files); err != nil {
		return nil, err
	}
	s.routes = []route{
		{"/", nil, false, s.homePage},
		{"/search", []string{"q", "page"}, false, s.searchPage},
		{"/library", nil, false, redirectTo(http.StatusSeeOther, "/search")}, // it lacks a name, as /files
		{"/library/*", []string{"version", "file", "filter", "page"}, true, s.withLibrary(s.libraryPage)},
		{"/library/*/*", []string{"file", "filter", "page"}, true, s.withLibrary(s.versionPage)},
		{"/compare/*", []string{"from", "to", "file", "page"}, true, s.withLibrary(s.comparePage)},
		{"/files", nil, false, redirectTo(http.StatusSeeOther, "/search")},
		{"/files/*", nil, false, s.withLibrary(s.redirectToLibrary)},
		{"/files/*/*", []string{"version", "page"}, true, s.withLibrary(s.filesPage)},
		{"/files/*/*/**", []string{"version", "page"}, true, s.withLibrary(s.filesPage)},
		{"/recipe/*/*", []string{"version", "file+", "filter"}, true, s.withLibrary(s.recipePage)},
		{"/history", []string{"entry", "package", "kind+", "since", "before"}, false, s.logPage},
		{"/history/*", []string{"state", "page"}, true, s.withLibrary(s.historyPage)},
		{"/history/*/*", []string{"page"}, true, s.releaseHistoryPage},
		{"/statistics", nil, false, s.statisticsPage},
		{"/about", nil, false, s.aboutPage},
	}
	if o.Draft != nil {
		s.routes = append(s.routes, route{"/new", []string{"npm"}, false, s.newFilePage})
	}
	if o.Document != nil {
		s.routes = append(s.routes, route{"/docs", nil, false, s.docsPage}, route{"/docs/*", nil, false, s.docsPartPage})
		s.routes = append(s.routes, route{"/api", nil, false, redirectTo(http.StatusPermanentRedirect, "/docs")}) // the API has its document there
	}
	if o.Rooms != nil {
		s.routes = append(s.routes, route{"/rooms", []string{"live"}, false, s.roomsPage}, route{"/rooms/*", []string{"live", "people", "span"}, false, s.roomPage})
	}
	if o.Nodes != nil {
		s.routes = append(s.routes, route{"/nodes", nil, false, s.nodesPage})
	}
	return s, nil
}

// A route is the address of a kind of page, and the function that makes the page. A "*" in its pattern matches one segment
// that is not empty. A "**" at its end matches the rest of the path, which is the path of a file.
type route struct {
	pattern string
	query   []string // names of the parameters that it knows, see [canonicalQuery]
	cached  bool     // its pages may be cached until their inputs change, see [Site.isStale]
	show    func(*request) (*pageAnswer, error)
}

// decodeSegments percent-decodes stars, the segments of a path that match the stars of the route's pattern, in their order.
// It returns nil for a pattern without stars, and [text.ErrEmptyPathPart] or [text.ErrMalformedPath] if a segment is
// malformed.
func (r route) decodeSegments(stars []string) ([]string, error) {
	var names []string
	for i, star := range stars {
		read := text.DecodePathName
		if i == len(stars)-1 && strings.HasSuffix(r.pattern, "**") {
			read = text.DecodePathFile
		}
		name, err := read(star)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// withLibrary returns a function for a route. That function looks up the library that the first star of the path names, and
// returns what show returns for it. If the lookup fails, it returns that error, such as [library.ErrNoLibrary]. Before the
// lookup it records in the request that the page depends on the library.
func (s *Site) withLibrary(show func(*request, *library.Library) (*pageAnswer, error)) func(*request) (*pageAnswer, error) {
	return func(q *request) (*pageAnswer, error) {
		q.inputs.addLibraries(q.segments[0])
		l, err := s.library.Library(q.Context(), q.segments[0])
		if err != nil {
			return nil, err
		}
		return show(q, l)
	}
}

// Owns reports whether the site responds to a path, percent-encoded as the client sent it. It responds to the paths of
// pages and embedded files. It also responds to every path below a kind of page that has a name in its path, such as
// /library/: for a path without a page, visitors get one that says so.
func (s *Site) Owns(path string) bool {
	if s.files.byPath[path] != nil {
		return true
	}
	if _, _, ok := s.findRoute(path); ok {
		return true
	}
	first, _, below := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return below && slices.ContainsFunc(s.routes, func(r route) bool { return strings.HasPrefix(r.pattern, "/"+first+"/*") })
}

// findRoute returns the first of s.routes that matches a percent-encoded path, with or without a slash at its end, and the still
// encoded parts of the path that match its stars: a segment for each "*", and the rest with its slashes for "**". The result is
// false if no route has the path.
func (s *Site) findRoute(path string) (route, []string, bool) {
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

// searchTextOf returns the text to search for in place of an unknown, percent-encoded path: its last segment, decoded and
// without ".html", that is neither a common name such as index nor like a version: digits, perhaps after a "v", up to the
// end or a dot. It returns "" if the path has no such segment or is malformed.
func searchTextOf(path string) string {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return ""
	}
	for _, part := range slices.Backward(strings.Split(strings.Trim(decoded, "/"), "/")) {
		name := strings.TrimSuffix(part, ".html")
		version := strings.TrimPrefix(name, "v")
		if rest := strings.TrimLeft(version, "0123456789"); rest == "" || rest != version && rest[0] == '.' {
			continue
		}
		if !slices.Contains([]string{"index", "libraries", "latest"}, name) {
			return name
		}
	}
	return ""
}

// libraryTimeout limits how long a request waits for its page, for example while the libraries are read after a start, and
// how long making a page may take.
const libraryTimeout = 10 * time.Second

// ServeHTTP implements http.Handler. It responds with a page, an embedded file or a redirect, and to unknown paths with a
// page that says that nothing is there (404). To methods other than GET and HEAD it responds with 405. The request's
// context ends after libraryTimeout. If not even a failure page can be made, the response is a line of text (500).
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := requests.RawPath(r.URL)
	if f := s.files.byPath[path]; f != nil {
		sendFile(w, r, f)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), libraryTimeout)
	defer cancel()
	q := &request{Request: r.WithContext(ctx)}
	p, err := s.getPage(q, path)
	if err != nil { // not even a failure page could be made
		http.Error(w, "An unexpected error occurred", http.StatusInternalServerError)
		return
	}
	if p.location != "" {
		sendRedirect(w, p.pageAnswer)
		return
	}
	s.sendPage(w, r, p)
}

// runRoute decodes the path's segments into q.segments and returns the response of the route with this path. For a path
// with a slash at its end it returns a redirect to the path without it. It returns a refusal for methods other than GET and
// HEAD (405), an unknown path (404) and a malformed one (400), or the error of the route.
func (s *Site) runRoute(q *request, path string) (*pageAnswer, error) {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		return nil, newRefusal(http.StatusMethodNotAllowed, "That cannot be done here", "Pages can only be read: the method must be GET or HEAD.")
	}
	route, stars, ok := s.findRoute(path)
	if !ok {
		return nil, &refusal{http.StatusNotFound, "Page not found", "There is no page at this address.", searchTextOf(path)}
	}
	var err error
	if q.segments, err = route.decodeSegments(stars); err != nil {
		return nil, newRefusal(http.StatusBadRequest, "This address is broken", "Its path is wrongly percent-encoded or not valid UTF-8, or holds a slash or a character that no name has.")
	}
	if path != "/" && strings.HasSuffix(path, "/") {
		return &pageAnswer{status: http.StatusPermanentRedirect, location: withQuery(strings.TrimSuffix(path, "/"), q.URL.RawQuery)}, nil
	}
	return route.show(q)
}
