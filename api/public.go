// Package api handles all requests that are not for assets: the public routes beside /ajax/libs/, the private ones for the
// operator, and the admin socket of commands. The pages (api/site) and the downloads are mounted here.
//
// The public routes are cdnjs's API as its clients know it, and the metadata behind it; openapi.json describes them.
// public.go routes a request by its encoded path; a function in libraries.go, packages.go, logs.go or about.go returns
// the response with its caching, or an error that answer.go maps to the one form of errors; package answers chooses the
// coding and compares entity tags.
//
// It guarantees:
//
//   - A public response has the CORS and caching headers of the contract, and JSON is exactly application/json.
//   - A path reaches a handler as the client wrote it, neither cleaned nor redirected, and an encoded slash never
//     separates segments.
//   - A handler reads only what the requested fields need. The list of all libraries is prepared at most once a minute and
//     for each change of them, and cached; a request for it then costs microseconds.
//   - A failure of the server, or a panic, leads to a 500 with the reference under which it is logged.
//
// It must not know how assets are cached, how a release is made, or the format of the store: it uses api/library.
package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/server"
	"github.com/larder-cdn/larder/server/usage"
)

// PublicOptions are the options of the public routes.
type PublicOptions struct {
	// Library has the libraries and their releases. Required.
	Library *library.Index
	// AssetBase is the base URL of assets, SiteBase that of the pages, without a slash at the end. Default: the origin of
	// the request.
	AssetBase string
	SiteBase  string
	// APIHost is a host for the API alone, with or without a port: there "/" and "/about" redirect to the site, "/api" is
	// the OpenAPI document, and robots.txt excludes crawlers. Default: none.
	APIHost string
	// Self is the URL of this process without a slash at the end, to which "/" and "/about" redirect from the APIHost
	// without a SiteBase: the origin of such a request is the APIHost itself. Required with an APIHost and no SiteBase.
	Self string
	// Name is the name of the service. Default "Larder".
	Name string
	// Site handles the paths of pages and of their style sheets and scripts. Default: no pages.
	Site Site
	// Downloads handles the paths below /download/. Default: none.
	Downloads http.Handler
	// Renderer finds out what modules import, and what ranges of versions mean. Required for import maps.
	Renderer *library.Renderer
	// OtherCDNURLs redirects addresses below [NPMPrefix] to the same files here.
	OtherCDNURLs bool
	// Advisories are the known vulnerabilities. Nil: responses do not mention any.
	Advisories *library.Advisories
	// Usage counts requests for files. Required.
	Usage *usage.Usage
	// Rooms are the waiting rooms. Default: none.
	Rooms Rooms
	// Turns limits how many responses are made at once, which leaves processors for assets. Default:
	// [answers.PageProcessors].
	Turns *answers.Shares
	// Stopping is closed when the process stops, which ends event streams. Default: they end when their clients
	// disconnect.
	Stopping <-chan struct{}
	// CacheTags are the header fields that name the release of a response, by which a CDN purges withdrawn releases.
	// Default: none.
	CacheTags server.CacheTags
	// Logger logs errors. Required.
	Logger *slog.Logger
}

// A Site handles paths that the API does not.
type Site interface {
	http.Handler
	// Owns reports whether the site handles a path, which is percent-encoded as the client sent it.
	Owns(path string) bool
}

// Public returns the handler of all public paths except those of assets.
func Public(o PublicOptions) http.Handler { return newPublic(o).newHandler() }

// public is the state that the public handlers share.
type public struct {
	PublicOptions
	lists      answers.Cache[listKey, *list]
	names      answers.Cache[*library.Listing, *answers.Body]
	catalogues answers.Cache[*library.Library, *answers.Body]
	documents  answers.Cache[string, *answers.Body]
	releases   answers.Cache[releaseBodyKey, *answers.Body]
	newest     atomic.Pointer[library.Ranking] // of the lists in lists
	sending    sendBudget
	streams    *answers.Shares
	heartbeat  time.Duration // of streams
	roomBeat   time.Duration // of streams of rooms
}

// newPublic returns the state that the public handlers share: the options with defaults, and empty caches with their limits.
func newPublic(o PublicOptions) *public {
	o.Name = cmp.Or(o.Name, "Larder")
	o.Turns = cmp.Or(o.Turns, answers.NewTurns(answers.PageProcessors()))
	p := &public{PublicOptions: o}
	p.lists.Most, p.lists.MostBytes = 8, 64<<20
	p.names.Most, p.names.MostBytes = 1, 8<<20
	p.catalogues.Most, p.catalogues.MostBytes = 8, 32<<20
	p.releases.Most, p.releases.MostBytes = 32, 48<<20
	p.documents.Most, p.documents.MostBytes = 8, 1<<20
	p.sending.most = 128 << 20
	p.streams, p.heartbeat, p.roomBeat = answers.NewShares(maxStreams), heartbeat, roomBeat
	return p
}

// newHandler returns the handler with all public routes.
func (p *public) newHandler() *gin.Engine {
	e := newEngine(p.Logger)
	e.Use(allowCORS, limitQuery)
	p.addServiceRoutes(e)
	addGet(e, "/stats", p.handle(p.stats))
	addGet(e, "/whitelist", p.handle(p.whitelist))
	addGet(e, "/libraries", p.redirectSearch(p.handle(p.libraries)))
	addGet(e, "/libraries/:library", p.withLibrary(p.library))
	addGet(e, "/libraries/:library/:version", p.withLibrary(p.version))
	addGet(e, "/badge/:file", p.handle(p.badge))
	addGet(e, "/packages", p.handle(p.packages))
	addGet(e, "/packages/:library", p.withLibrary(p.packageJSON))
	addGet(e, "/packages/:library/all", p.withLibrary(p.packageAll))
	addGet(e, "/packages/:library/states", p.withLibrary(p.packageStates))
	addGet(e, "/packages/:library/usage", p.withLibrary(p.packageUsage))
	addGet(e, "/packages/:library/versions", p.withLibrary(p.packageVersions))
	addGet(e, "/packages/:library/versions/:version", p.withLibrary(p.respondWithRelease("paths", newPathsBody)))
	addGet(e, "/packages/:library/sris/:version", p.withLibrary(p.respondWithRelease("sris", newSRIsBody)))
	addGet(e, "/packages/:library/modules/:version", p.withLibrary(p.packageModules))
	addGet(e, "/logs", p.handle(p.logEntries))
	addGet(e, "/logs.atom", p.handle(p.logFeed))
	addGet(e, "/logs/stream", p.stream(p.streamLog))
	addGet(e, "/logs/:library", p.handle(p.logEntries))
	addGet(e, "/logs/:library/:version", p.handle(p.logEntries))
	addGet(e, "/rooms/:room/status", p.handle(p.roomStatus))
	addGet(e, "/rooms/:room/analytics", p.handle(p.roomAnalytics))
	addGet(e, "/rooms.stream", p.stream(p.streamRooms))
	addGet(e, "/rooms.history", p.handle(p.roomVersions))
	e.NoRoute(p.handleUnrouted)
	return e
}

// newEngine returns a gin engine that does not log requests, clean paths or redirect, and that recovers from panics. It
// routes by the encoded path, so that an encoded slash never separates segments. parseRequest decodes the parameters, because
// gin would turn "+" into a space.
func newEngine(logger *slog.Logger) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.UseRawPath = true
	e.UnescapePathValues = false
	e.Use(recoverPanics(logger))
	return e
}

// addGet routes GET and HEAD of path to the handler, with and without a slash at its end.
func addGet(e *gin.Engine, path string, handler gin.HandlerFunc) {
	methods := []string{http.MethodGet, http.MethodHead}
	e.Match(methods, path, handler)
	if path != "/" {
		e.Match(methods, path+"/", handler)
	}
}

// allowCORS is a middleware that lets scripts of every origin read the response, and responds to every OPTIONS request, as
// to a preflight, with 204. A handler sets Access-Control-Expose-Headers itself for header fields that CORS does not always allow.
func allowCORS(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if c.Request.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Headers", "Accept,Accept-Version,Content-Length,Content-MD5,Content-Type,Date")
		h.Set("Access-Control-Allow-Methods", "GET,OPTIONS")
		c.AbortWithStatus(http.StatusNoContent)
	}
}

// limitQuery is a middleware that refuses requests whose query is longer than maxQuery bytes with status 414.
func limitQuery(c *gin.Context) {
	if len(c.Request.URL.RawQuery) > maxQuery {
		respondFailure(c, queryTooLong)
	}
}

// A request is an HTTP request with its parsed query and path.
type request struct {
	*http.Request
	c      *gin.Context
	query  url.Values
	params map[string]string // of the route's path

	ownOrigin bool // the response has addresses that begin with the origin of the request
}

// parseRequest returns the request that gin passes to a handler. The error is [answers.NoEndpoint] if a parameter of the route's
// path cannot be a name, see [text.DecodePathName].
func parseRequest(c *gin.Context) (*request, error) {
	r := &request{Request: c.Request, c: c, query: requests.ParseQuery(c.Request.URL.RawQuery), params: map[string]string{}}
	for _, p := range c.Params {
		if c.Request.URL.RawPath == "" { // gin has routed by the decoded path, which had no encoded slash
			p.Value = url.PathEscape(p.Value)
		}
		var err error
		if r.params[p.Key], err = text.DecodePathName(p.Value); err != nil {
			return nil, answers.NoEndpoint
		}
	}
	return r, nil
}

// base returns the base of addresses in the response: the configured one, or if that is "" the scheme and host of the address at
// which the client reached this server, such as https://example.com, or the failure badHost (400) if the Host header is missing
// or malformed. A response with the origin of the request has the client's Host, so base sets r.ownOrigin.
func (r *request) base(configured string) (string, error) {
	if configured != "" {
		return configured, nil
	}
	r.ownOrigin = true
	origin, ok := requests.Origin(r.Request)
	if !ok {
		return "", badHost
	}
	return origin, nil
}

// caching returns how caches may store the response: as k says, or not at all if it has the origin of the request.
func (r *request) caching(k answers.Caching) answers.Caching {
	if r.ownOrigin {
		return notCached
	}
	return k
}

// stream returns a handler that calls send, which streams events until the client disconnects or the process stops, and responds
// with the failure that its error means, if any.
func (p *public) stream(send func(*request) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		r, err := parseRequest(c)
		if err == nil {
			err = send(r)
		}
		if err != nil {
			respondError(c, p.Logger, err)
		}
	}
}

// setCacheTags sets the header fields of the response by which a CDN purges responses about a release.
func (p *public) setCacheTags(r *request, name, version string) {
	answers.SetFields(r.c.Writer.Header(), p.CacheTags.Fields(name, version)...)
}

// libraryTimeout is how long a request may wait for its turn and for its response, including for the libraries to be read
// after a start.
const libraryTimeout = 10 * time.Second

// handle returns a handler that calls answer when it is the client's turn, and sends the response that it returns, or the
// failure that its error means. Waiting and answer have 10 s together, after which the context ends. If large responses that
// are being sent take too much memory, the client gets 503. No cache may store a response whose handler has used the origin of
// the request, see base.
func (p *public) handle(answer func(context.Context, *request) (*answers.Body, answers.Caching, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), libraryTimeout)
		defer cancel()
		var b *answers.Body
		var k answers.Caching
		r, err := parseRequest(c)
		if err == nil {
			err = p.runInTurn(ctx, c.Request, func() (err error) {
				if b, k, err = answer(ctx, r); err == nil {
					b.Prepare(c.Request)
				}
				return err
			})
		}
		if err != nil {
			respondError(c, p.Logger, err)
			return
		}
		if !p.sending.acquire(b) {
			respondFailure(c, busy)
			return
		}
		defer p.sending.release(b)
		send(c, r.caching(k), b)
	}
}

// runInTurn waits for the turn of the client of r, and calls do. If no turn comes in time, it returns a failure with status 503
// or the error of ctx, and does not call do.
func (p *public) runInTurn(ctx context.Context, r *http.Request, do func() error) error {
	_, leave, err := p.Turns.Enter(ctx, r.RemoteAddr, answers.TurnTimeout)
	if errors.Is(err, answers.ErrNoPlace) {
		return noTurn
	}
	if err != nil {
		return err
	}
	defer leave()
	return do()
}

// mountedHandler returns the handler for downloads or pages if the request is a GET or HEAD of one of their paths, else nil.
func (p *public) mountedHandler(r *http.Request) http.Handler {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	path := requests.RawPath(r.URL)
	switch {
	case strings.HasPrefix(path, "/download/") && p.Downloads != nil:
		return p.Downloads
	case p.Site != nil && p.Site.Owns(path):
		return p.Site
	}
	return nil
}

// servesPages reports whether the request is a GET or HEAD to a host with pages, so that a browser that requests an unknown
// path gets a page.
func (p *public) servesPages(r *http.Request) bool {
	return p.Site != nil && !isHost(r.Host, p.APIHost) && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// handleUnrouted handles requests that match no route of the API: redirects from addresses of other CDNs, downloads, pages,
// and unknown paths, for which browsers get a page and programs a JSON failure.
func (p *public) handleUnrouted(c *gin.Context) {
	if p.OtherCDNURLs && strings.HasPrefix(c.Request.URL.Path, NPMPrefix) {
		p.redirectNPM(c)
		return
	}
	h := p.mountedHandler(c.Request)
	if h == nil && p.servesPages(c.Request) {
		// No cache may store either: many do not distinguish browsers from programs.
		if !requests.WantsPage(c.Request.Header["Accept"]) {
			respondFailure(c, noPage)
			return
		}
		h = p.Site
	}
	if h == nil {
		respondFailure(c, answers.NoEndpoint)
		return
	}
	c.Status(http.StatusOK) // unless the handler sets another; gin's default is 404
	h.ServeHTTP(c.Writer, c.Request)
	c.Writer.WriteHeaderNow() // gin would add a body to a 404 without one
}

// isHost reports whether host, a Host header, names want, in any case. The port of host counts only if want has one. It is
// false if want is "".
func isHost(host, want string) bool {
	if want == "" {
		return false
	}
	if _, port := splitPort(want); port == "" {
		host, _ = splitPort(host)
	}
	return strings.EqualFold(host, want)
}

// splitPort splits a host from its port, which is "" if it has none. An IPv6 address in brackets keeps them.
func splitPort(host string) (name, port string) {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.IndexByte(host[i:], ']') >= 0 {
		return host, ""
	}
	return host[:i], host[i+1:]
}
