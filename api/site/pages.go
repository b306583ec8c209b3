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
	"github.com/larder-cdn/larder/api/rendering"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/document"
	"github.com/larder-cdn/larder/logs/views"
)

// This file makes pages, and caches those that depend on libraries only until one of these changes. A page of a release
// with thousands of files takes a hundred times as long to make as to send.

// A page is a response with its encoded body.
type page struct {
	*pageAnswer
	body   *answers.Body // nil for a redirect
	inputs inputs
}

// A pageKey is the cache key of a page: its decoded path, and its known parameters in canonical form.
type pageKey struct {
	path, query         string
	siteBase, assetBase string
}

// inputs are the versions of the data from which a page was made.
type inputs struct {
	moment       uint64   // of [library.Changes]
	libraries    []string // that it depends on
	hour         int64    // of counts of requests and downloads; 0 if it has none
	advisories   uint64   // the version of the known vulnerabilities
	arbitrary    bool     // a parameter has a value that any client can make up, so the page is not cached
	pending      []*rendering.PendingError
	isUnrendered bool // a part is plain text until it is rendered
}

const (
	maxCached      = 1000
	maxCachedBytes = 32 << 20
	// renderTimeout is how long a page waits for its documents to be rendered before it shows plain text.
	renderTimeout = 4 * time.Second
)

// addLibraries records that the page with these inputs depends on the named libraries, so that a change of one makes the
// page stale. The caller reads the libraries afterwards, so that it misses no change.
func (n *inputs) addLibraries(libraries ...string) {
	for _, l := range libraries {
		if !slices.Contains(n.libraries, l) {
			n.libraries = append(n.libraries, l)
		}
	}
}

// useCounts records in q.inputs that the page depends on counts of requests and downloads, and on the known vulnerabilities.
// The page becomes stale when the hour or the vulnerabilities change.
func (s *Site) useCounts(q *request) {
	q.inputs.hour = s.currentHour()
	q.inputs.advisories = s.options.Advisories.Version()
}

// currentHour returns the number of hours since 1970.
func (s *Site) currentHour() int64 { return s.now().Unix() / int64(time.Hour/time.Second) }

// isStale reports whether a page must be made again, because one of the inputs n from which it was made has changed: a
// library, and if it has counts, the hour or the known vulnerabilities.
func (s *Site) isStale(n *inputs) bool {
	return n.hour != 0 && (n.hour != s.currentHour() || n.advisories != s.options.Advisories.Version()) || s.library.Changes().Since(n.moment, n.libraries)
}

// getPage returns the page for a request with this path, percent-encoded, from the cache, or newly made when it is the
// client's turn. Unknown query parameters lead to a redirect without them. A failure is a page, too; an error means that not
// even that could be made. Concurrent requests of one client for a page share the work.
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
			p.data = nil // the body contains it
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
// route's pattern), the canonical query, and the base URLs in q. It is the same for all encodings of the path.
func newPageKey(r route, names []string, query string, q *request) pageKey {
	return pageKey{strings.Join(append([]string{r.pattern}, names...), "\x00"), query, q.siteBase, q.assetBase}
}

// A cachedHosts has the hosts whose pages are cached if pages contain the address at which they were requested. A
// client can make hosts up, so only the first mostHosts of each hour count.
type cachedHosts struct {
	mu    sync.Mutex
	hour  int64
	hosts []string
}

const mostHosts = 8

// admit reports whether the page of a request may be cached. It may if the options have both base URLs; otherwise pages
// contain the requested host, and only those of the first mostHosts hosts in each hour may be. It records a new host that it
// admits.
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
	if slices.Contains(k.hosts, host) {
		return true
	}
	if len(k.hosts) == mostHosts {
		return false
	}
	k.hosts = append(k.hosts, host)
	return true
}

// isCacheable reports whether a page may be cached: it is successful, completely rendered, depends on libraries, and no
// query parameter that affects it has a value that any client can make up.
func (p *page) isCacheable() bool {
	return p.body != nil && (p.status == 0 || p.status == http.StatusOK) && !p.inputs.isUnrendered && !p.inputs.arbitrary && len(p.inputs.libraries) > 0
}

// makeRendered makes a page when it is the client's turn, or returns the one with this key if it has been cached meanwhile.
// If a worker is still rendering a document of it, it waits up to s.renderTimeout without holding a turn, and makes the page
// again; if the time is up, it returns the page with plain text. If the client leaves, it withdraws the request for the
// documents.
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

// awaitDocuments waits until the rendering of all the documents has ended, with or without success. If ctx ends before, it
// returns its error.
func awaitDocuments(ctx context.Context, all []*rendering.PendingError) error {
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
// pages. A failure is a page, too, such as "not found", or 503 if no turn comes in time; an error means that not even that
// could be made.
func (s *Site) makeInTurn(q *request, path string) (*page, error) {
	return s.takeTurn(q, func() (*page, error) { return s.makePage(q, path) })
}

// takeTurn calls do when it is the client's turn, and returns its results, so that few pages are made at once. If no turn
// comes in time, it does not call do and returns a failure page with status 503.
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

// makePage makes the page of a path without the cache, with its body encoded for the client, and resets and fills q.inputs.
// An error becomes a failure page; makePage returns one only if that cannot be made either.
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

// getRendered returns the result of rendering a document by a worker, from the cache if there is one; otherwise it requests
// the rendering and does not wait. ok is false if the page has to display plain text instead, because the result is pending,
// which is recorded in q.inputs, or was refused.
func (s *Site) getRendered(q *request, d rendering.Document) (r document.Result, ok bool, err error) {
	r, err = s.options.Renderer.Get(q.client(), d)
	var pending *rendering.PendingError
	switch {
	case errors.As(err, &pending):
		q.inputs.isUnrendered = true
		if pending.Done != nil {
			q.inputs.pending = append(q.inputs.pending, pending)
		}
		return r, false, nil
	case errors.As(err, new(*document.RefusedError)):
		return r, false, nil
	}
	return r, err == nil, err
}

// documentsFor returns functions by which package library reads rendered documents (what modules import, what ranges of
// versions mean) for a page. A document that is still pending is recorded in q.inputs, so that the page is not cached.
func (s *Site) documentsFor(q *request) library.Documents {
	return s.options.Renderer.Documents(q.client(), s.library.File, func(pending *rendering.PendingError) {
		q.inputs.isUnrendered = true
		if pending.Done != nil {
			q.inputs.pending = append(q.inputs.pending, pending)
		}
	})
}

// A graphKey identifies what loads when a page imports modules of a release.
type graphKey struct{ release, files, assetBase string }

// A cachedGraph stays valid until one of the libraries that it depends on changes.
type cachedGraph struct {
	*library.Graph
	moment uint64 // of [library.Changes]
}

const (
	maxGraphs     = 500
	maxGraphBytes = 32 << 20
)

// importGraph returns the graph of all modules that load when a page imports some modules of a release: these, and what they
// import, directly or not. It comes from the cache or is made by following imports. If some of these are pending, so is the
// graph, and it is not cached. It records the libraries in it as inputs of the page.
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

// canonicalQuery returns the query with only the parameters in names, in that order and in one form, without empty values
// and a page number of 1, so that equal pages have equal keys. known is false if the query has other parameters. A name in
// names that ends in "+" may occur several times; otherwise the first value counts.
func canonicalQuery(names []string, query url.Values) (canonical string, known bool) {
	var b strings.Builder
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
			if value == "" {
				continue
			}
			if b.Len() > 0 {
				b.WriteByte('&')
			}
			b.WriteString(name + "=" + url.QueryEscape(value))
		}
	}
	return b.String(), found == len(query)
}

// flights are the pages that are being made. Requests of a client for the same page wait for the same flight. Clients
// do not share flights, since a flight waits for the turn of its client: a client with many requests would delay the
// others.
type flights struct {
	mu    sync.Mutex
	under map[flightKey]*flight
}

type flightKey struct {
	pageKey
	client netip.Prefix
}

// A flight is a page that is being made.
type flight struct {
	done    chan struct{} // closed at the end
	page    *page
	err     error
	waiting int // requests
	cancel  context.CancelFunc
}

// do calls make in a new goroutine and returns its result, or waits for that of a call that is under way for an earlier
// request with the same key. The context of make ends after libraryTimeout, or when no request waits for it any longer. If
// ctx ends before, do returns its error. A panic of make becomes an error.
func (f *flights) do(ctx context.Context, key flightKey, make func(context.Context) (*page, error)) (*page, error) {
	f.mu.Lock()
	flying := f.under[key]
	if flying == nil {
		under, cancel := context.WithTimeout(context.WithoutCancel(ctx), libraryTimeout)
		flying = &flight{done: newSignal(), cancel: cancel}
		if f.under == nil {
			f.under = map[flightKey]*flight{}
		}
		f.under[key] = flying
		go f.run(under, key, flying, make)
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

// newSignal returns a channel for the field done of a flight. It is for functions in which a parameter called make hides the
// builtin one.
func newSignal() chan struct{} { return make(chan struct{}) }

// run calls make for a flight and stores its result in it. It turns a panic into an error, removes the flight from f,
// cancels its context, and wakes the requests that wait for it.
func (f *flights) run(ctx context.Context, key flightKey, flying *flight, make func(context.Context) (*page, error)) {
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
	flying.page, flying.err = make(ctx)
}

// remove removes a flight from those under way, unless another one has replaced it. The caller holds mu.
func (f *flights) remove(key flightKey, flying *flight) {
	if f.under[key] == flying {
		delete(f.under, key)
	}
}
