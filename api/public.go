// Package api answers everything that is not an asset: the public routes beside /ajax/libs/, and the private ones for
// the operator of the process. Administration is in api/admin; the pages (api/site) and the downloads are mounted here.
//
// The public routes are cdnjs's API as its clients know it, and the metadata behind it; openapi.json describes them. A
// request's way is route, answer, body: public.go routes by the path as it came; libraries.go, packages.go, logs.go and
// about.go each return the answer with its caching, or an error that answer.go maps to the one shape of errors; package
// answers chooses the coding and compares entity tags.
//
// It guarantees:
//
//   - A public answer has the CORS and caching headers of the contract, and JSON is exactly application/json.
//   - A path reaches a handler as the client wrote it: nothing is cleaned, nothing redirected, and an encoded slash
//     never moves the border between two parts.
//   - What the fields of a request do not need is not read. The list of all libraries is prepared once for each change
//     of them; a request for it costs microseconds.
//   - A failure of ours, and a panic, is answered with a 500 that carries the reference under which the log has it.
//
// It must not know how assets are cached, how a release is made, or what the store looks like: it asks api/library.
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
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/prepared"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/server/purge"
	"github.com/larder-cdn/larder/server/usage"
)

// PublicOptions is what the public routes need.
type PublicOptions struct {
	// Library is what is asked about. Required.
	Library *library.Index
	// AssetBase is where clients get assets, SiteBase where people find the pages: URLs without a slash at the end.
	// Where one is "", it is the origin under which a request came.
	AssetBase string
	SiteBase  string
	// APIHost is the host that belongs to the API alone, with or without a port: there "/" and "/about" lead to the site,
	// "/api" is the OpenAPI document, and robots keep out. "" for none.
	APIHost string
	// Self is the URL of this process without a slash at the end, to which "/" and "/about" lead from the APIHost where
	// there is no SiteBase: the origin of such a request is the APIHost itself. Required with an APIHost and no SiteBase.
	Self string
	// Name is what the service is called. Default "Larder".
	Name string
	// Site answers the paths of pages and of what they are made with. Default: there are no pages.
	Site Site
	// Downloads answers what is below /download/. Default: there is nothing.
	Downloads http.Handler
	// Usage is how much files are asked for. Required.
	Usage *usage.Usage
	// Rooms are the waiting rooms. Default: there are none.
	Rooms Rooms
	// Turns are those in which answers are made, so that making them leaves processors for files. Default: as many as
	// [client.PageProcessors] says.
	Turns *client.Shares
	// Stopping is closed when the process is to stop, which ends the streams of the log. Default: they end when their
	// clients go.
	Stopping <-chan struct{}
	// CacheTags are the fields that say which release an answer is about, on those that are cached for good: a CDN
	// purges by them what was withdrawn. Default: none.
	CacheTags purge.TagHeaders
	// Logger gets what goes wrong. Required.
	Logger *slog.Logger
}

// A Site answers some of the paths that the API does not.
type Site interface {
	http.Handler
	// Owns reports whether a path, percent-encoded as it came, is one of them.
	Owns(path string) bool
}

// Public returns the handler of every public path that is not an asset's.
func Public(o PublicOptions) http.Handler { return newPublic(o).engine() }

// public is what the handlers share.
type public struct {
	PublicOptions
	lists      prepared.Cache[listKey, *list]
	names      prepared.Cache[*library.Listing, *answers.Body]
	catalogues prepared.Cache[*library.Library, *answers.Body]
	documents  prepared.Cache[string, *answers.Body]
	releases   prepared.Cache[releaseBodyKey, *answers.Body]
	newest     atomic.Pointer[library.Ranking] // that lists may be of
	sending    room
	streams    *client.Shares
	heartbeat  time.Duration // of streams
	roomBeat   time.Duration // of those of rooms
}

func newPublic(o PublicOptions) *public {
	o.Name = cmp.Or(o.Name, "Larder")
	o.Turns = cmp.Or(o.Turns, client.NewTurns(client.PageProcessors()))
	p := &public{PublicOptions: o}
	p.lists.Most, p.lists.MostBytes = 8, 64<<20
	p.names.Most, p.names.MostBytes = 1, 8<<20
	p.catalogues.Most, p.catalogues.MostBytes = 8, 32<<20
	p.releases.Most, p.releases.MostBytes = 32, 48<<20
	p.documents.Most, p.documents.MostBytes = 8, 1<<20
	p.sending.most = 128 << 20
	p.streams, p.heartbeat, p.roomBeat = client.NewShares(maxStreams), heartbeat, roomBeat
	return p
}

func (p *public) engine() *gin.Engine {
	e := newEngine(p.Logger)
	e.Use(cors, bounded)
	p.about(e)
	get(e, "/stats", p.answering(p.stats))
	get(e, "/whitelist", p.answering(p.whitelist))
	get(e, "/libraries", p.toSearch(p.answering(p.libraries)))
	get(e, "/libraries/:library", p.ofLibrary(p.library))
	get(e, "/libraries/:library/:version", p.ofLibrary(p.version))
	get(e, "/badge/:file", p.answering(p.badge))
	get(e, "/packages", p.answering(p.packages))
	get(e, "/packages/:library", p.ofLibrary(p.pkg))
	get(e, "/packages/:library/all", p.ofLibrary(p.pkgAll))
	get(e, "/packages/:library/states", p.ofLibrary(p.pkgStates))
	get(e, "/packages/:library/usage", p.ofLibrary(p.pkgUsage))
	get(e, "/packages/:library/versions", p.ofLibrary(p.pkgVersions))
	get(e, "/packages/:library/versions/:version", p.ofLibrary(p.pkgFiles))
	get(e, "/packages/:library/sris/:version", p.ofLibrary(p.pkgSRIs))
	get(e, "/logs", p.answering(p.logEntries))
	get(e, "/logs.atom", p.answering(p.logFeed))
	get(e, "/logs/stream", p.logStream)
	get(e, "/logs/:library", p.answering(p.logEntries))
	get(e, "/logs/:library/:version", p.answering(p.logEntries))
	get(e, "/rooms/:room/status", p.answering(p.roomStatus))
	get(e, "/rooms/:room/analytics", p.answering(p.roomAnalytics))
	get(e, "/rooms.stream", p.roomStream)
	get(e, "/rooms.history", p.answering(p.roomHistory))
	e.NoRoute(p.elsewhere)
	return e
}

// newEngine is gin without its own logging, and with no opinion about paths. It routes by the path as it came, so that
// an encoded slash never moves the border between two parts; param decodes them, because gin would take "+" for a space.
func newEngine(logger *slog.Logger) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	e := gin.New()
	e.RedirectTrailingSlash = false
	e.RedirectFixedPath = false
	e.UseRawPath = true
	e.UnescapePathValues = false
	e.Use(recovered(logger))
	return e
}

// get routes GET and HEAD of path, with and without a trailing slash.
func get(e *gin.Engine, path string, handler gin.HandlerFunc) {
	e.GET(path, handler)
	e.HEAD(path, handler)
	if path != "/" {
		e.GET(path+"/", handler)
		e.HEAD(path+"/", handler)
	}
}

// param returns a part of the path, decoded. What can be no name is no endpoint.
func param(c *gin.Context, name string) (string, error) {
	segment := c.Param(name)
	if c.Request.URL.RawPath == "" { // gin has routed by the decoded path, which had no encoded slash
		segment = url.PathEscape(segment)
	}
	value, err := requests.DecodeName(segment)
	if err != nil {
		return "", answers.NoEndpoint
	}
	return value, nil
}

func cors(c *gin.Context) {
	h := c.Writer.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	if c.Request.Method == http.MethodOptions {
		h.Set("Access-Control-Allow-Headers", "Accept,Accept-Version,Content-Length,Content-MD5,Content-Type,Date")
		h.Set("Access-Control-Allow-Methods", "GET,OPTIONS")
		c.AbortWithStatus(http.StatusNoContent)
	}
}

// bounded refuses queries that are longer than any client's needs to be.
func bounded(c *gin.Context) {
	if len(c.Request.URL.RawQuery) > maxQuery {
		refuse(c, queryTooLong)
	}
}

// A request is what the handlers of JSON get.
type request struct {
	*http.Request
	c     *gin.Context
	query url.Values
}

// tag says which release the answer is about.
func (p *public) tag(r *request, name, version string) {
	answers.SetFields(r.c.Writer.Header(), p.CacheTags.Fields(name, version)...)
}

// libraryTimeout is how long a request waits for the libraries to be read after a start.
const libraryTimeout = 10 * time.Second

// answering makes a handler of a function that returns the answer.
func (p *public) answering(answer func(context.Context, *request) (*answers.Body, answers.Caching, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), libraryTimeout)
		defer cancel()
		b, k, err := p.inTurn(ctx, answer, &request{c.Request, c, requests.ParseQuery(c.Request.URL.RawQuery)})
		if err != nil {
			fail(c, p.Logger, err)
			return
		}
		if !p.sending.enter(b) {
			refuse(c, busy)
			return
		}
		defer p.sending.leave(b)
		send(c, k, b)
	}
}

// inTurn calls answer when it is the client's turn.
func (p *public) inTurn(ctx context.Context, answer func(context.Context, *request) (*answers.Body, answers.Caching, error), r *request) (*answers.Body, answers.Caching, error) {
	_, leave, err := p.Turns.Enter(ctx, r.RemoteAddr, client.Timeout)
	if errors.Is(err, client.ErrNoPlace) {
		return nil, answers.Caching{}, noTurn
	}
	if err != nil {
		return nil, answers.Caching{}, err
	}
	defer leave()
	b, k, err := answer(ctx, r)
	if err == nil {
		b.Prepare(r.Request)
	}
	return b, k, err
}

// mounted returns the handler of a path that has no route here, nil for none.
func (p *public) mounted(r *http.Request) http.Handler {
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

// pagesAt reports whether the request's host has pages, so that a browser that asks for an unknown address gets one.
func (p *public) pagesAt(r *http.Request) bool {
	return p.Site != nil && !isHost(r.Host, p.APIHost) && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

// elsewhere answers what has no route of its own.
func (p *public) elsewhere(c *gin.Context) {
	h := p.mounted(c.Request)
	if h == nil && p.pagesAt(c.Request) {
		// No cache may keep either: many do not tell people from programs.
		if !requests.WantsPage(c.Request.Header["Accept"]) {
			refuse(c, noPage)
			return
		}
		h = p.Site
	}
	if h == nil {
		refuse(c, answers.NoEndpoint)
		return
	}
	c.Status(http.StatusOK) // where the handler says nothing else; gin would have it a 404
	h.ServeHTTP(c.Writer, c.Request)
	c.Writer.WriteHeaderNow() // a 404 without a body would get gin's
}

// origin returns the scheme and host under which a client reached us, or badHost.
func origin(r *http.Request) (string, error) {
	o, ok := requests.Origin(r)
	if !ok {
		return "", badHost
	}
	return o, nil
}

// baseOr returns base where it is configured, else the request's origin.
func baseOr(base string, r *http.Request) (string, error) {
	if base != "" {
		return base, nil
	}
	return origin(r)
}

// addressed returns how an answer with addresses may be kept: as k says where these are configured, else not at all, because
// they are made of the Host that the client wrote.
func addressed(configured bool, k answers.Caching) answers.Caching {
	if configured {
		return k
	}
	return notCached
}

// isHost reports whether a Host header names want. The port counts only where want has one.
func isHost(host, want string) bool {
	if want == "" {
		return false
	}
	if _, port := splitPort(want); port == "" {
		host, _ = splitPort(host)
	}
	return strings.EqualFold(host, want)
}

// splitPort cuts the port off, which is "" where there is none. The colons of an address in brackets are its own.
func splitPort(host string) (name, port string) {
	i := strings.LastIndexByte(host, ':')
	if i < 0 || strings.IndexByte(host[i:], ']') >= 0 {
		return host, ""
	}
	return host[:i], host[i+1:]
}
