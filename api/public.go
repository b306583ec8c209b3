package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/api/address"
	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/server/cachetag"
	"github.com/larder-cdn/larder/server/clients"
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
	// Rooms are the waiting rooms. Default: there are none.
	Rooms Rooms
	// Stopping is closed when the process is to stop, which ends the streams of the log. Default: they end when their
	// clients go.
	Stopping <-chan struct{}
	// CacheTags are the fields that say which release an answer is about, on those that are cached for good: a CDN
	// purges by them what was withdrawn. Default: none.
	CacheTags cachetag.Headers
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
	lists      prepared[listKey, *list]
	names      prepared[*library.Listing, *body]
	catalogues prepared[*library.Library, *body]
	documents  prepared[string, *body]
	newest     atomic.Pointer[library.Listing] // that lists may be of
	sending    room
	searching  chan struct{}  // holds a token for each search whose answer is being made
	streams    chan struct{}  // holds a token for each stream of the log
	following  *clients.Bound // of streams
	heartbeat  time.Duration  // of streams
}

func newPublic(o PublicOptions) *public {
	if o.Name == "" {
		o.Name = "Larder"
	}
	p := &public{PublicOptions: o}
	p.lists.most, p.lists.mostBytes = 8, 64<<20
	p.names.most, p.names.mostBytes = 1, 8<<20
	p.catalogues.most, p.catalogues.mostBytes = 8, 32<<20
	p.documents.most, p.documents.mostBytes = 8, 1<<20
	p.sending.most = 128 << 20
	p.streams, p.heartbeat = make(chan struct{}, maxStreams), heartbeat
	p.following = clients.NewBound(maxStreamsOfOne)
	p.searching = make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	return p
}

func (p *public) engine() *gin.Engine {
	e := newEngine(p.Logger)
	e.Use(cors, bounded)
	p.about(e)
	get(e, "/stats", p.answering(p.stats))
	get(e, "/whitelist", p.answering(p.whitelist))
	get(e, "/libraries", p.answering(p.libraries))
	get(e, "/libraries/:library", p.answering(p.library))
	get(e, "/libraries/:library/:version", p.answering(p.version))
	get(e, "/packages", p.answering(p.packages))
	get(e, "/packages/:library", p.answering(p.pkg))
	get(e, "/packages/:library/all", p.answering(p.pkgAll))
	get(e, "/packages/:library/states", p.answering(p.pkgStates))
	get(e, "/packages/:library/versions", p.answering(p.pkgVersions))
	get(e, "/packages/:library/versions/:version", p.answering(p.pkgFiles))
	get(e, "/packages/:library/sris/:version", p.answering(p.pkgSRIs))
	get(e, "/logs", p.answering(p.logEntries))
	get(e, "/logs.atom", p.answering(p.logFeed))
	get(e, "/logs/stream", p.logStream)
	get(e, "/logs/:library", p.answering(p.logEntries))
	get(e, "/logs/:library/:version", p.answering(p.logEntries))
	get(e, "/rooms/:room/status", p.answering(p.roomStatus))
	get(e, "/rooms/:room/analytics", p.answering(p.roomAnalytics))
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

// param returns a part of the path, decoded. An empty part names nothing, so that is no endpoint.
func param(c *gin.Context, name string) (string, error) {
	value := c.Param(name)
	if c.Request.URL.RawPath != "" { // else the path was decoded, and had no encoded slash
		var err error
		if value, err = url.PathUnescape(value); err != nil {
			return "", noEndpoint
		}
	}
	if value == "" {
		return "", noEndpoint
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

// bounded refuses queries that are longer than anybody's.
func bounded(c *gin.Context) {
	if len(c.Request.URL.RawQuery) > maxQuery {
		queryTooLong.send(c)
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
	for _, f := range p.CacheTags.Fields(name, version) {
		r.c.Header(f.Name, f.Value)
	}
}

// patience is how long a request waits for the libraries to be read after a start.
const patience = 10 * time.Second

// answering makes a handler of a function that returns the answer.
func (p *public) answering(answer func(context.Context, *request) (*body, caching, error)) gin.HandlerFunc {
	return func(c *gin.Context) {
		query, ok := address.Query(c.Request.URL.RawQuery)
		if !ok {
			badQuery.send(c)
			return
		}
		ctx, cancel := context.WithTimeout(c.Request.Context(), patience)
		defer cancel()
		b, k, err := answer(ctx, &request{c.Request, c, query})
		if err != nil {
			fail(c, p.Logger, err)
			return
		}
		if !p.sending.enter(b) {
			busy.send(c)
			return
		}
		defer p.sending.leave(b)
		send(c, http.StatusOK, k, b)
	}
}

// mounted returns who answers a path that has no route here, nil for nobody.
func (p *public) mounted(r *http.Request) http.Handler {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		return nil
	}
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	switch {
	case strings.HasPrefix(path, "/download/") && p.Downloads != nil:
		return p.Downloads
	case p.Site != nil && p.Site.Owns(path):
		return p.Site
	}
	return nil
}

// elsewhere answers what has no route of its own.
func (p *public) elsewhere(c *gin.Context) {
	h := p.mounted(c.Request)
	if h == nil {
		noEndpoint.send(c)
		return
	}
	c.Status(http.StatusOK) // where the handler says nothing else; gin would have it a 404
	h.ServeHTTP(c.Writer, c.Request)
	c.Writer.WriteHeaderNow() // a 404 without a body would get gin's
}
