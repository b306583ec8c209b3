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
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/document"
)

// This file makes pages, and keeps those that are functions of libraries until one of these changes. A page of a release with thousands of files takes a
// hundred times as long to make as to send.

// A page is an answer as it is sent.
type page struct {
	*answer
	body   *answers.Body // nil where it only leads elsewhere
	inputs inputs
}

// A pageKey says what a page was requested as: its path, decoded, and its known parameters in their canonical form.
type pageKey struct {
	path, query         string
	siteBase, assetBase string
}

// inputs are what a page was made of, at a moment.
type inputs struct {
	moment     uint64   // of [library.Changes]
	libraries  []string // that it depends on
	hour       int64    // of counts of requests and downloads; 0 where it has none
	advisories uint64   // the version of the known vulnerabilities
	free       bool     // a parameter has a value that any client can make up, so the page is not kept
	pending    []*rendering.PendingError
	unrendered bool // some of it shows plain text until it is rendered
}

const (
	mostKept      = 1000
	mostKeptBytes = 32 << 20
	// renderTimeout is how long a page waits for what is being rendered, before it shows plain text.
	renderTimeout = 4 * time.Second
)

// use has the page depend on libraries. What is read of them is read afterwards.
func (n *inputs) use(libraries ...string) {
	for _, l := range libraries {
		if !slices.Contains(n.libraries, l) {
			n.libraries = append(n.libraries, l)
		}
	}
}

// useCounts has the page depend on counts of requests and downloads, which it shows as they are at some time of the hour.
func (s *Site) useCounts(q *request) {
	q.inputs.hour = s.hour()
	q.inputs.advisories = s.options.Advisories.Version()
}

func (s *Site) hour() int64 { return s.now().Unix() / int64(time.Hour/time.Second) }

// stale reports whether something that a page was made of has changed.
func (s *Site) stale(n *inputs) bool {
	return n.hour != 0 && (n.hour != s.hour() || n.advisories != s.options.Advisories.Version()) || s.library.Changes().Since(n.moment, n.libraries)
}

// page returns the page of a path, or one that says what is wrong with it. An error is that of the latter.
func (s *Site) page(q *request, path string) (*page, error) {
	if err := q.parse(s.options); err != nil {
		return s.render(q, s.failure(q, err))
	}
	route, stars, ok := s.route(path)
	get := q.Method == http.MethodGet || q.Method == http.MethodHead
	if !ok || !get {
		return s.inTurn(q, path)
	}
	query, known := canonicalQuery(route.query, q.query)
	if !known {
		return &page{answer: &answer{status: http.StatusPermanentRedirect, location: withQuery(path, query)}}, nil
	}
	if route.pattern == "/new" { // it waits for an upstream, and has bounds of its own
		return s.make(q, path)
	}
	names, err := route.names(stars)
	if err != nil || path != "/" && strings.HasSuffix(path, "/") { // a failure, or a redirect
		return s.inTurn(q, path)
	}
	key := newPageKey(route, names, query, q)
	if p, ok := s.keptPage(key); ok {
		return p, nil
	}
	p, err := s.flights.do(q.Context(), flightKey{key, q.client()}, func(ctx context.Context) (*page, error) {
		own := *q
		own.Request = q.WithContext(ctx)
		p, err := s.makeRendered(&own, path, key)
		if err == nil && route.kept && p.keepable() && s.hosts.admit(s, q) {
			p.data = nil // it is in the body
			_, _ = s.kept.Get(key, func() (*page, int, error) { return p, 2 * p.body.Len(), nil })
		}
		return p, err
	})
	if err != nil {
		return s.render(q, s.failure(q, err))
	}
	return p, nil
}

// keptPage returns a page that is kept, if nothing has changed since.
func (s *Site) keptPage(key pageKey) (*page, bool) {
	p, ok := s.kept.Cached(key)
	if ok && s.stale(&p.inputs) {
		s.kept.Remove(func(k pageKey) bool { return k == key })
		ok = false
	}
	return p, ok
}

// newPageKey returns the key of a page. A path has many encodings, all of which have the same key.
func newPageKey(r route, names []string, query string, q *request) pageKey {
	return pageKey{strings.Join(append([]string{r.pattern}, names...), "\x00"), query, q.siteBase, q.assetBase}
}

// keptHosts are the hosts whose pages are kept where pages have the address at which they were requested. A client can make hosts up, so
// within an hour only those of the first mostHosts are kept.
type keptHosts struct {
	mu    sync.Mutex
	hour  int64
	hosts []string
}

const mostHosts = 8

// admit reports whether a page may be kept that was requested at some host.
func (k *keptHosts) admit(s *Site, q *request) bool {
	if s.options.SiteBase != "" && s.options.AssetBase != "" {
		return true
	}
	host := q.siteBase + " " + q.assetBase
	k.mu.Lock()
	defer k.mu.Unlock()
	if hour := s.hour(); hour != k.hour {
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

// keepable reports whether a page is the same until its inputs change.
func (p *page) keepable() bool {
	return p.body != nil && (p.status == 0 || p.status == http.StatusOK) && !p.inputs.unrendered && !p.inputs.free && len(p.inputs.libraries) > 0
}

// makeRendered makes a page. If some of it is being rendered, it waits a moment for that without a turn, and makes the page again.
func (s *Site) makeRendered(q *request, path string, key pageKey) (*page, error) {
	ctx, cancel := context.WithTimeout(q.Context(), s.renderTimeout)
	defer cancel()
	for {
		again := *q
		p, err := s.takeTurn(&again, func() (*page, error) {
			if p, ok := s.keptPage(key); ok { // another client's turn came first
				return p, nil
			}
			return s.make(&again, path)
		})
		if err != nil || len(p.inputs.pending) == 0 {
			return p, err
		}
		if err := await(ctx, p.inputs.pending); err != nil {
			if q.Context().Err() != nil { // else the client sees plain text, and may request the page again
				for _, pending := range p.inputs.pending {
					pending.Leave()
				}
			}
			return p, nil
		}
	}
}

// await returns when documents are rendered or given up.
func await(ctx context.Context, all []*rendering.PendingError) error {
	for _, pending := range all {
		select {
		case <-pending.Done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// inTurn makes the page of a path when it is the client's turn.
func (s *Site) inTurn(q *request, path string) (*page, error) {
	return s.takeTurn(q, func() (*page, error) { return s.make(q, path) })
}

// takeTurn calls do when it is the client's turn.
func (s *Site) takeTurn(q *request, do func() (*page, error)) (*page, error) {
	_, leave, err := s.options.Turns.Enter(q.Context(), q.RemoteAddr, client.Timeout)
	if err != nil {
		if errors.Is(err, client.ErrNoPlace) {
			err = refuse(http.StatusServiceUnavailable, "Just a moment", "Many pages are being made at this moment. Please try again in a few seconds.")
		}
		return s.render(q, s.failure(q, err))
	}
	defer leave()
	return do()
}

// make makes the page of a path.
func (s *Site) make(q *request, path string) (*page, error) {
	q.inputs = inputs{moment: s.library.Changes().Now()}
	a, err := s.answer(q, path)
	if err != nil {
		a = s.failure(q, err)
	}
	if a.location != "" {
		return &page{answer: a}, nil
	}
	p, err := s.render(q, a)
	if err != nil { // a failure's page has nothing that could fail
		p, err = s.render(q, s.failure(q, err))
	}
	if err == nil {
		p.inputs = q.inputs
		p.body.Prepare(q.Request)
	}
	return p, err
}

// rendered returns what comes of a document. Without an error, ok is false if the page has to show plain text instead, now or for good.
func (s *Site) rendered(q *request, d rendering.Document) (r document.Result, ok bool, err error) {
	r, err = s.options.Renderer.Get(q.client(), d)
	var pending *rendering.PendingError
	switch {
	case errors.As(err, &pending):
		q.inputs.unrendered = true
		if pending.Done != nil {
			q.inputs.pending = append(q.inputs.pending, pending)
		}
		return r, false, nil
	case errors.As(err, new(*document.RefusedError)):
		return r, false, nil
	}
	return r, err == nil, err
}

// documents find out for a page what documents say. While that is not known, the page is not kept.
func (s *Site) documents(q *request) library.Documents {
	return s.options.Renderer.Documents(q.client(), s.library.File, func(pending *rendering.PendingError) {
		q.inputs.unrendered = true
		if pending.Done != nil {
			q.inputs.pending = append(q.inputs.pending, pending)
		}
	})
}

// graph follows the imports of a module.
func (s *Site) graph(q *request, r *library.Release, file string) (*library.Graph, error) {
	f, _ := r.Find(file)
	g, err := s.library.Graph(q.Context(), q.assetBase, r, f, s.documents(q))
	if err == nil {
		q.inputs.use(g.Libraries...)
	}
	return g, err
}

// canonicalQuery writes the known parameters of a query in one form, and reports whether there are no others. A name that ends in "+" is
// one that may occur several times.
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
				if value = strconv.Itoa(pageNumber(value)); value == "1" {
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

// flights are the pages that are being made. Requests of a client for the same page wait for the same flight. Clients share none, since a
// flight waits for the turn of its client: one that has many requests would have the others wait for its turn, and fail with it.
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

// do returns what make returns, for this request or for another one of the client for the same page. Making it ends when no request waits for it
// any longer.
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
		go f.fly(under, key, flying, make)
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
		f.land(key, flying)
	}
	return nil, ctx.Err()
}

func newSignal() chan struct{} { return make(chan struct{}) }

func (f *flights) fly(ctx context.Context, key flightKey, flying *flight, make func(context.Context) (*page, error)) {
	defer close(flying.done)
	defer flying.cancel()
	defer func() {
		if p := recover(); p != nil {
			flying.err = fmt.Errorf("site: panic: %v\n%s", p, debug.Stack())
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.land(key, flying)
	}()
	flying.page, flying.err = make(ctx)
}

// land removes a flight; the caller holds mu.
func (f *flights) land(key flightKey, flying *flight) {
	if f.under[key] == flying {
		delete(f.under, key)
	}
}
