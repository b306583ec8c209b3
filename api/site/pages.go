package site

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/logs/views"
)

// This file makes pages, and caches those that depend on libraries only until one of these changes. A page of a release
// with thousands of files takes a hundred times as long to make as to send.

// A page is a response with its encoded body, and what it was made from. It may be cached and sent to several clients, so
// nothing may change it then.
type page struct {
	*pageAnswer
	body   *answers.Body // nil for a redirect
	inputs inputs
}

// A pageKey is the cache key of a page, see newPageKey.
type pageKey struct {
	path, query         string // the route's pattern with the decoded segments, and the canonical query
	siteBase, assetBase string
}

// inputs are the versions of the data from which a page was made, and what the page still lacks.
type inputs struct {
	moment       uint64                  // of [library.Changes]
	libraries    []string                // names of those that it depends on
	hour         int64                   // in which it was made, see currentHour; 0 unless useCounts was called
	advisories   uint64                  // the version of the known vulnerabilities; only with hour
	arbitrary    bool                    // a parameter has a value that any client can make up, so the page is not cached
	pending      []*library.PendingError // queued documents for which the page can wait
	isUnrendered bool                    // a part is missing or plain text until it is rendered
}

const (
	maxCached      = 1000
	maxCachedBytes = 32 << 20
	// renderTimeout is how long a page waits for its documents to be rendered before it shows plain text.
	renderTimeout = 4 * time.Second
)

// addLibraries records that the page with these inputs depends on the named libraries, so that a change of one makes the
// page stale. [library.Catalogue] stands for the set of all libraries. The caller reads the libraries afterwards, so that
// it misses no change.
func (n *inputs) addLibraries(libraries ...string) {
	for _, l := range libraries {
		if !slices.Contains(n.libraries, l) {
			n.libraries = append(n.libraries, l)
		}
	}
}

// addPending records that the page lacks a document that is not rendered yet. If the document is queued, the page can wait for it.
func (n *inputs) addPending(pending *library.PendingError) {
	n.isUnrendered = true
	if pending.Done != nil {
		n.pending = append(n.pending, pending)
	}
}

// useCounts records in q.inputs that the page depends on the known vulnerabilities, and on data that changes without a
// change of a library, such as counts of requests and downloads and what upstream has. The page becomes stale when the hour
// or the vulnerabilities change.
func (s *Site) useCounts(q *request) {
	q.inputs.hour = s.currentHour()
	q.inputs.advisories = s.options.Advisories.Version()
}

// currentHour returns the number of hours since 1970.
func (s *Site) currentHour() int64 { return s.now().Unix() / int64(time.Hour/time.Second) }

// isStale reports whether a page must be made again, because one of the inputs n from which it was made has changed: a
// library, or, if useCounts recorded an hour, the hour or the known vulnerabilities.
func (s *Site) isStale(n *inputs) bool {
	return n.hour != 0 && (n.hour != s.currentHour() || n.advisories != s.options.Advisories.Version()) || s.library.Changes().Since(n.moment, n.libraries)
}

// getPage parses the request into q and returns the page for a path, percent-encoded: from the cache, or newly made when it
// is the client's turn. Concurrent requests of one client for a page share the work. Unknown query parameters lead to a
// redirect without them. The page /new is made at once and not cached. A failure is a page, too; an error means that not
// even that could be made.
func (s *Site) getPage(q *request, path string) (*page, error) {
	if err := q.parse(s.options); err != nil {
		return s.renderAnswer(q, s.failurePage(q, err))
	}
	route, stars, ok := s.findRoute(path)
	get := q.Method == http.MethodGet || q.Method == http.MethodHead
	if !ok || !get {
		return s.makeInTurn(q, path)
	}
	query, known := canonicalQuery(route.query, q.query)
	if !known {
		return &page{pageAnswer: &pageAnswer{status: http.StatusPermanentRedirect, location: withQuery(path, query)}}, nil
	}
	if route.pattern == "/new" { // it waits for an upstream, and has limits of its own
		return s.makePage(q, path)
	}
	names, err := route.decodeSegments(stars)
	if err != nil || path != "/" && strings.HasSuffix(path, "/") { // a failure, or a redirect
		return s.makeInTurn(q, path)
	}
	key := newPageKey(route, names, query, q)
	if p, ok := s.cachedPage(key); ok {
		return p, nil
	}
	p, err := s.flights.do(q.Context(), flightKey{key, q.client()}, func(ctx context.Context) (*page, error) {
		own := *q
		own.Request = q.WithContext(ctx)
		p, err := s.makeRendered(&own, path, key)
		if err == nil && route.cached && p.isCacheable() && s.hosts.admit(s, q) {
			p.Data = nil // the body contains it
			_, _ = s.cachedPages.Get(key, func() (*page, int, error) { return p, 2 * p.body.Len(), nil })
		}
		return p, err
	})
	if err != nil {
		return s.renderAnswer(q, s.failurePage(q, err))
	}
	return p, nil
}

// cachedPage returns the page with this key from the cache; the result is false if none is cached, or a library or other
// data from which it was made has changed.
func (s *Site) cachedPage(key pageKey) (*page, bool) {
	return s.cachedPages.CachedIf(key, func(p *page) bool { return !s.isStale(&p.inputs) })
}

// newPageKey returns the cache key of a page from its route, names (the decoded segments of the path at the stars of the
// route's pattern), the canonical query (see canonicalQuery), and the base URLs in q. It is the same for all encodings of
// the path.
func newPageKey(r route, names []string, query string, q *request) pageKey {
	return pageKey{strings.Join(append([]string{r.pattern}, names...), "\x00"), query, q.siteBase, q.assetBase}
}

// A cachedHosts has the origins whose pages may be cached although they contain the address at which they were requested. A
// client can make hosts up, so only the first mostHosts of each hour count.
type cachedHosts struct {
	mu    sync.Mutex
	hour  int64    // see currentHour
	hosts []string // base URLs of pages and of assets, with a space between; of this hour
}

// mostHosts is how many hosts have cached pages in one hour.
const mostHosts = 8

// admit reports whether the page of a request may be cached. It may if the options of s have both base URLs. Otherwise
// pages contain the requested host, and only those of the first mostHosts hosts in each hour may be cached; admit records a
// new host that it admits.
func (k *cachedHosts) admit(s *Site, q *request) bool {
	if s.options.SiteBase != "" && s.options.AssetBase != "" {
		return true
	}
	host := q.siteBase + " " + q.assetBase
	k.mu.Lock()
	defer k.mu.Unlock()
	if hour := s.currentHour(); hour != k.hour {
		k.hour, k.hosts = hour, nil
	}
	known := slices.Contains(k.hosts, host)
	if !known && len(k.hosts) < mostHosts {
		k.hosts, known = append(k.hosts, host), true
	}
	return known
}

// isCacheable reports whether a page, if its route permits, may be cached: it is successful and no redirect, completely
// rendered, depends on a library, and no query parameter that affects it has a value that any client can make up.
func (p *page) isCacheable() bool {
	return p.body != nil && (p.status == 0 || p.status == http.StatusOK) && !p.inputs.isUnrendered && !p.inputs.arbitrary && len(p.inputs.libraries) > 0
}

// makeRendered makes a page when it is the client's turn, or returns the one with this key if it has been cached meanwhile.
// If documents of it are queued, it waits for them without holding a turn and makes the page again. Once s.renderTimeout
// has passed since the call, or q's context ends, it returns the page with plain text. In the latter case it withdraws the
// client's requests for the documents. Failures and errors are those of makePage and takeTurn.
func (s *Site) makeRendered(q *request, path string, key pageKey) (*page, error) {
	ctx, cancel := context.WithTimeout(q.Context(), s.renderTimeout)
	defer cancel()
	for {
		again := *q
		p, err := s.takeTurn(&again, func() (*page, error) {
			if p, ok := s.cachedPage(key); ok { // another client's request made it
				return p, nil
			}
			return s.makePage(&again, path)
		})
		if err != nil || len(p.inputs.pending) == 0 {
			return p, err
		}
		if err := awaitDocuments(ctx, p.inputs.pending); err != nil {
			if q.Context().Err() != nil { // otherwise the client gets plain text, and may reload the page
				for _, pending := range p.inputs.pending {
					pending.Leave()
				}
			}
			return p, nil
		}
	}
}

// awaitDocuments waits until each document has been rendered, with or without success, or has left the queue. If ctx ends
// before, it returns the error of ctx.
func awaitDocuments(ctx context.Context, all []*library.PendingError) error {
	for _, pending := range all {
		select {
		case <-pending.Done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// makeInTurn waits until it is the client's turn and makes the page of a path. It neither reads nor fills the cache of
// pages. A failure is a page, too, such as "not found", or 503 if the client gets no turn; an error means that not even
// that could be made.
func (s *Site) makeInTurn(q *request, path string) (*page, error) {
	return s.takeTurn(q, func() (*page, error) { return s.makePage(q, path) })
}

// takeTurn waits for a turn of the client, so that few pages are made at once, calls do and returns its results. It does
// not call do, and returns a failure page with status 503, if no turn comes within answers.TurnTimeout, too many requests
// of the client wait already, or q's context ends.
func (s *Site) takeTurn(q *request, do func() (*page, error)) (*page, error) {
	_, leave, err := s.options.Turns.Enter(q.Context(), q.RemoteAddr, answers.TurnTimeout)
	if err != nil {
		if errors.Is(err, answers.ErrNoPlace) {
			err = newRefusal(http.StatusServiceUnavailable, "Just a moment", "Many pages are being made at this moment. Please try again in a few seconds.")
		}
		return s.renderAnswer(q, s.failurePage(q, err))
	}
	defer leave()
	return do()
}

// makePage makes the page of a path without the cache, and encodes its body as the client accepts it. It resets q.inputs,
// which then has what the page was made from. A redirect has no body. An error becomes a failure page; makePage returns an
// error only if that cannot be made either.
func (s *Site) makePage(q *request, path string) (*page, error) {
	q.inputs = inputs{moment: s.library.Changes().Now()}
	a, err := s.runRoute(q, path)
	if err != nil {
		a = s.failurePage(q, err)
	}
	if a.location != "" {
		return &page{pageAnswer: a}, nil
	}
	p, err := s.renderAnswer(q, a)
	if err != nil { // a failure page cannot fail
		p, err = s.renderAnswer(q, s.failurePage(q, err))
	}
	if err == nil {
		p.inputs = q.inputs
		p.body.Prepare(q.Request)
	}
	return p, err
}

// getRendered returns the cached result of rendering a document. ok is false if the page has to display plain text instead,
// because a worker has refused the document or has not rendered it yet. In the latter case getRendered queues the document
// if it may be queued (see [library.Renderer.Get]), does not wait, and records in q.inputs that the page is unrendered.
// Refusal and pending are no errors.
func (s *Site) getRendered(q *request, d library.RenderRequest) (r document.Result, ok bool, err error) {
	r, err = s.options.Renderer.Get(q.client(), d)
	var pending *library.PendingError
	switch {
	case errors.As(err, &pending):
		q.inputs.addPending(pending)
		return r, false, nil
	case errors.As(err, new(*document.RefusedError)):
		return r, false, nil
	}
	return r, err == nil, err
}

// documentsFor returns functions by which package library reads rendered documents (what modules import, what ranges of
// versions mean) for a page. They do not wait: a document that is not rendered yet is queued and recorded in q.inputs, so
// that the page is not cached.
func (s *Site) documentsFor(q *request) library.Documents {
	return s.options.Renderer.Documents(q.client(), s.library.File, q.inputs.addPending)
}

// A graphKey identifies a graph: release is its release (NAME@VERSION), files are the paths of the imported modules, each
// with a newline after it, assetBase is the URL in front of the paths of assets.
type graphKey struct{ release, files, assetBase string }

// A cachedGraph stays valid until one of the libraries that it depends on changes.
type cachedGraph struct {
	*library.Graph
	moment uint64 // of [library.Changes], before the graph was read
}

const (
	maxGraphs     = 500
	maxGraphBytes = 32 << 20
)

// importGraph returns the graph of all modules that load when a page imports some modules of a release: these, and what
// they import, directly or not. It comes from the cache, so the caller must not change it, or is made by following imports.
// If what a module imports is pending, so is the graph, which is then not cached. It records the libraries in the graph as
// inputs of the page, and pending documents in q.inputs.
func (s *Site) importGraph(q *request, r *library.Release, modules []views.PublishedFile) (*library.Graph, error) {
	key := graphKey{r.Owner(), "", q.assetBase}
	for _, f := range modules {
		key.files += f.Path + "\n"
	}
	g, ok := s.graphs.CachedIf(key, func(g cachedGraph) bool { return !s.library.Changes().Since(g.moment, g.Libraries) })
	if !ok {
		g.moment = s.library.Changes().Now()
		var err error
		if g.Graph, err = s.library.Graph(q.Context(), q.assetBase, r, modules, s.documentsFor(q)); err != nil {
			return nil, err
		}
		if !g.Pending {
			_, _ = s.graphs.Get(key, func() (cachedGraph, int, error) { return g, g.Bytes(), nil })
		}
	}
	q.inputs.addLibraries(g.Libraries...)
	return g.Graph, nil
}

// canonicalQuery returns the query with only the parameters in names, in that order, so that equal pages have equal keys.
// It leaves out empty values and a page number of 1, and cleans values (see cleanText) other than those of "file". known is
// false if the query has other parameters. A name in names that ends in "+" may occur several times; of others the first
// value counts.
func canonicalQuery(names []string, query url.Values) (canonical string, known bool) {
	var pairs []string
	found := 0
	for _, name := range names {
		name, several := strings.CutSuffix(name, "+")
		values := query[name]
		if len(values) > 0 {
			found++
		}
		if len(values) > 1 && !several {
			values = values[:1]
		}
		for _, value := range values {
			switch name {
			case "page":
				if value = strconv.Itoa(parsePageNumber(value)); value == "1" {
					value = ""
				}
			case "file":
			default:
				value = cleanText(value)
			}
			pairs = append(pairs, name, value)
		}
	}
	return encodeQuery(pairs...), found == len(query)
}

// flights are the pages that are being made. Requests of a client for the same page wait for the same flight. Clients do
// not share flights, since a flight waits for the turn of its client: a client with many requests would delay the others.
type flights struct {
	mu    sync.Mutex
	under map[flightKey]*flight
}

// A flightKey identifies a flight.
type flightKey struct {
	pageKey
	client netip.Prefix
}

// A flight is a page that is being made.
type flight struct {
	done    chan struct{} // closed when page and err are set
	page    *page
	err     error
	waiting int                // how many requests wait for it; guarded by mu of flights
	cancel  context.CancelFunc // of the context with which it is made
}

// do calls produce in a new goroutine and returns its result, or waits for that of a call that is under way for an earlier
// request with the same key. The context of produce has the values of the first request's. It ends after libraryTimeout, or
// when no request waits for it any longer. If ctx ends before, do returns its error. A panic of produce becomes an error.
func (f *flights) do(ctx context.Context, key flightKey, produce func(context.Context) (*page, error)) (*page, error) {
	f.mu.Lock()
	flying := f.under[key]
	if flying == nil {
		under, cancel := context.WithTimeout(context.WithoutCancel(ctx), libraryTimeout)
		flying = &flight{done: make(chan struct{}), cancel: cancel}
		if f.under == nil {
			f.under = map[flightKey]*flight{}
		}
		f.under[key] = flying
		go f.run(under, key, flying, produce)
	}
	flying.waiting++
	f.mu.Unlock()
	select {
	case <-flying.done:
		return flying.page, flying.err
	case <-ctx.Done():
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if flying.waiting--; flying.waiting == 0 {
		flying.cancel()
		f.remove(key, flying)
	}
	return nil, ctx.Err()
}

// run calls produce and stores its result, or its panic as an error, in flying. Then it removes the flight from f, cancels its
// context, and closes flying.done, so that the requests that wait for it go on.
func (f *flights) run(ctx context.Context, key flightKey, flying *flight, produce func(context.Context) (*page, error)) {
	defer close(flying.done)
	defer flying.cancel()
	defer func() {
		if p := recover(); p != nil {
			flying.err = fmt.Errorf("site: panic: %v\n%s", p, debug.Stack())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.remove(key, flying)
	}()
	flying.page, flying.err = produce(ctx)
}

// remove removes a flight from f.under, unless another one with the same key has replaced it. The caller holds mu.
func (f *flights) remove(key flightKey, flying *flight) {
	if f.under[key] == flying {
		delete(f.under, key)
	}
}
