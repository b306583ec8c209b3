package api

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"encoding/xml"
	"errors"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
)

// addServiceRoutes adds the routes that concern the service and no library, such as /health and /robots.txt, to the engine.
func (p *public) addServiceRoutes(e *gin.Engine) {
	addGet(e, "/", p.redirectToSite("/api"))
	addGet(e, "/about", p.redirectToSite("/about"))
	addGet(e, "/api", p.onAPIHost(p.handle(p.openAPI)))
	addGet(e, "/openapi.json", p.handle(p.openAPI))
	addGet(e, "/health", func(c *gin.Context) { sendText(c, notCached, "OK") })
	addGet(e, "/error", func(c *gin.Context) { respondError(c, p.Logger, errors.New("a client requested /error")) })
	addGet(e, "/robots.txt", p.serveRobots)
	addGet(e, "/opensearch.xml", p.serveOpenSearch)
	addGet(e, "/sitemap.xml", p.handle(p.sitemap))
	for name, contentType := range icons {
		data, err := marks.ReadFile("marks/" + name)
		if err != nil {
			panic(err) // the binary lacks it
		}
		body := answers.NewBody(contentType, data)
		addGet(e, "/"+name, func(c *gin.Context) { send(c, cachedForGood, body) })
	}
}

// onAPIHost returns a handler that calls handler for requests to the API's host, and handleUnrouted for requests to other
// hosts, where the path may be the site's. Without an API host in the options, it calls handleUnrouted for all requests.
func (p *public) onAPIHost(handler gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if isHost(c.Request.Host, p.APIHost) {
			handler(c)
		} else {
			p.handleUnrouted(c)
		}
	}
}

// redirectToSite returns a handler that redirects requests to the API's host permanently to a path of the site, and calls
// handleUnrouted for requests to other hosts. If the site is on the same host as the API, or its URL is malformed, the
// handler is handleUnrouted: the page would redirect to itself, and caches would keep that for 355 days.
func (p *public) redirectToSite(path string) gin.HandlerFunc {
	base := cmp.Or(p.SiteBase, p.Self)
	if u, err := url.Parse(base); err != nil || isHost(u.Host, p.APIHost) {
		return p.handleUnrouted
	}
	return p.onAPIHost(func(c *gin.Context) { redirect(c, cachedForGood, http.StatusMovedPermanently, base+path) })
}

// serveRobots handles /robots.txt. On the API's host it keeps crawlers out of everything. On others it keeps them out of
// /search, whose results they find by links, and names the sitemap if there is a site whose base URL is configured.
func (p *public) serveRobots(c *gin.Context) {
	if isHost(c.Request.Host, p.APIHost) {
		sendText(c, cachedForGood, "User-agent: *\nDisallow: /")
	} else {
		lines := "User-agent: *\nDisallow: /search\n"
		if p.Site != nil && p.SiteBase != "" {
			lines += "Sitemap: " + p.SiteBase + "/sitemap.xml\n"
		}
		sendText(c, oneDay, lines)
	}
}

// openSearchDescription is the document by which browsers add the site to their search engines
// (https://github.com/dewitt/opensearch, 1.1 draft 6).
type openSearchDescription struct {
	XMLName       xml.Name        `xml:"http://a9.com/-/spec/opensearch/1.1/ OpenSearchDescription"`
	ShortName     string          `xml:"ShortName"`
	Description   string          `xml:"Description"`
	InputEncoding string          `xml:"InputEncoding"`
	Image         openSearchImage `xml:"Image"`
	URL           openSearchURL   `xml:"Url"`
}

// An openSearchImage is an icon of the site: its address, and its size in pixels.
type openSearchImage struct {
	Width  int    `xml:"width,attr"`
	Height int    `xml:"height,attr"`
	Type   string `xml:"type,attr"`
	URL    string `xml:",chardata"`
}

// An openSearchURL is the address of the search page, with {searchTerms} in place of the text.
type openSearchURL struct {
	Type     string `xml:"type,attr"`
	Method   string `xml:"method,attr"`
	Template string `xml:"template,attr"`
}

// Limits of OpenSearch, in characters.
const (
	maxShortName   = 16
	maxDescription = 1024
)

// serveOpenSearch handles /opensearch.xml, by which a browser adds the site to its search engines. It waits for no turn.
func (p *public) serveOpenSearch(c *gin.Context) {
	r := &request{Request: c.Request, c: c}
	base, err := r.base(p.SiteBase)
	if err != nil {
		respondError(c, p.Logger, err)
		return
	}
	document, err := xml.MarshalIndent(openSearchDescription{
		ShortName:     text.CutRunes(p.Name, maxShortName),
		Description:   text.CutRunes("Search the front-end libraries on "+p.Name, maxDescription),
		InputEncoding: "UTF-8",
		Image:         openSearchImage{Width: 16, Height: 16, Type: "image/x-icon", URL: base + "/favicon.ico"},
		URL:           openSearchURL{Type: "text/html", Method: "get", Template: base + p.searchTemplate()},
	}, "", "  ")
	if err != nil {
		respondError(c, p.Logger, err)
		return
	}
	send(c, r.caching(cachedForGood), answers.NewBody("application/opensearchdescription+xml", append([]byte(xml.Header), document...)))
}

// searchTemplate returns the path and query of the search page as an OpenSearch template. With an API host it is that of the
// public service, /libraries?search=, which redirects to the page, see redirectSearch.
func (p *public) searchTemplate() string {
	if p.APIHost != "" {
		return "/libraries?search={searchTerms}"
	}
	return "/search?q={searchTerms}"
}

// redirectSearch returns a handler that redirects a request for the site's host with the query parameter "search" to the
// search page. It calls next for other requests, and for all if there is no site, its base URL is not configured, or the API
// has no host of its own.
func (p *public) redirectSearch(next gin.HandlerFunc) gin.HandlerFunc {
	u, err := url.Parse(p.SiteBase)
	if err != nil || p.Site == nil || p.APIHost == "" || u.Host == "" || isHost(p.APIHost, u.Host) || isHost(u.Host, p.APIHost) {
		return next
	}
	return func(c *gin.Context) {
		query := requests.ParseQuery(c.Request.URL.RawQuery)
		if !query.Has("search") || !isHost(c.Request.Host, u.Host) {
			next(c)
			return
		}
		redirect(c, notCached, http.StatusSeeOther, p.SiteBase+"/search?q="+url.QueryEscape(query.Get("search")))
	}
}

// maxSitemap is how many addresses a sitemap may have (https://www.sitemaps.org/protocol.html).
const maxSitemap = 50_000

// sitemap returns the response to /sitemap.xml, for search engines: the URLs of the main pages and of the pages of published
// libraries that are not hidden from search, up to maxSitemap together. On a host without pages the error is
// [answers.NoEndpoint].
func (p *public) sitemap(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	base, err := r.base(p.SiteBase)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if !p.servesPages(r.Request) {
		return nil, answers.Caching{}, answers.NoEndpoint
	}
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	var b bytes.Buffer
	b.WriteString(xml.Header + `<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">` + "\n")
	add := func(path string, changed time.Time) {
		b.WriteString("<url><loc>")
		_ = xml.EscapeText(&b, []byte(base+path)) // a buffer takes everything
		b.WriteString("</loc>")
		if changed.Unix() > 0 {
			b.WriteString("<lastmod>" + changed.UTC().Format(time.DateOnly) + "</lastmod>")
		}
		b.WriteString("</url>\n")
	}
	pages := []string{"/", "/search", "/statistics", "/docs", "/about"}
	for _, path := range pages {
		add(path, time.Time{})
	}
	left := maxSitemap - len(pages)
	for _, l := range listing.Libraries {
		if l.Version == "" || l.Hidden || left == 0 {
			continue
		}
		left--
		add("/library/"+url.PathEscape(l.Name), l.Released)
	}
	b.WriteString("</urlset>\n")
	return answers.NewBody("application/xml", b.Bytes()), sixHours, nil
}

//go:embed marks
var marks embed.FS

// icons are the pictures that browsers request from every site, and the banner, with their content types.
var icons = map[string]string{
	"favicon.ico": "image/x-icon",
	"favicon.png": "image/png",
	"favicon.svg": "image/svg+xml",
	"banner.png":  "image/png",
}

//go:embed openapi.json
var openAPIDocument []byte

// The texts that [OpenAPI] replaces in openapi.json.
const (
	documentName   = `"Larder API"`
	documentServer = `"https://larder.example"`
)

// OpenAPI returns the OpenAPI document, as JSON, of a service with this name, whose API is at the URL server, without a
// slash at its end.
func OpenAPI(name, server string) []byte {
	text := bytes.Replace(openAPIDocument, []byte(documentName), quoteJSON(name+" API"), 1)
	return bytes.Replace(text, []byte(documentServer), quoteJSON(server), 1)
}

// quoteJSON returns a text as a JSON string.
func quoteJSON(text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings do not fail
	}
	return quoted
}

// openAPI returns the response to /openapi.json and, on the API's host, /api: the OpenAPI document as JSON. The API's URL in
// it is the API's host if the request is to that, or else the configured base of the site, or else the origin of the
// request. It caches the document for each URL.
func (p *public) openAPI(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	base := p.SiteBase
	if isHost(r.Host, p.APIHost) {
		base = requests.Scheme(r.Request) + "://" + p.APIHost
	}
	server, err := r.base(base)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.documents.Get(server, func() (*answers.Body, int, error) {
		text := OpenAPI(p.Name, server)
		return newJSON(text), 2 * len(text), nil
	})
	return b, sixHours, err
}

// A category says what files with an extension are.
type category struct{ extension, name string }

// categories are the extensions of the files that the API lists, with what they are, in the contract's order.
var categories = []category{
	{"js", "JavaScript"}, {"mjs", "JavaScript"},
	{"ts", "TypeScript"},
	{"wasm", "WebAssembly"},
	{"map", "Source Maps"},
	{"swf", "Flash"},
	{"json", "JSON"},
	{"css", "Styling"}, {"scss", "Styling"},
	{"png", "Images"}, {"gif", "Images"}, {"jpg", "Images"}, {"jpeg", "Images"}, {"svg", "Images"}, {"webp", "Images"}, {"cur", "Images"},
	{"ttf", "Fonts"}, {"eot", "Fonts"}, {"woff", "Fonts"}, {"woff2", "Fonts"}, {"otf", "Fonts"},
	{"aac", "Audio"}, {"mp3", "Audio"}, {"ogg", "Audio"},
	{"lang", "Other"}, {"hpb", "Other"},
}

// filePaths returns the paths of the files, in their order; never nil.
func filePaths(files []views.PublishedFile) []string {
	return text.Each(files, func(f views.PublishedFile) string { return f.Path })
}

// whitelistedPaths returns the paths of the files whose extension is on the whitelist, in their order; never nil. As in the
// public service, case matters.
func whitelistedPaths(files []views.PublishedFile) []string {
	return slices.DeleteFunc(filePaths(files), func(file string) bool {
		extension := strings.TrimPrefix(path.Ext(file), ".")
		return !slices.ContainsFunc(categories, func(c category) bool { return c.extension == extension })
	})
}

var whitelistFields = vocabulary{"extensions", "categories"}

// whitelist returns the response to /whitelist: the extensions of the files that responses list as "files" ("rawFiles" has
// all), and the category of each extension, or only what the query parameter "fields" names of both.
func (p *public) whitelist(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	var extensions []string
	var named jsonWriter
	named.beginObject()
	for _, c := range categories {
		extensions = append(extensions, c.extension)
		named.writeField(c.extension, c.name)
	}
	named.endObject()
	values := map[string]any{"extensions": extensions, "categories": json.RawMessage(named.bytes())}
	var w jsonWriter
	w.beginObject()
	for _, name := range whitelistFields.names(whitelistFields.parseOrAll(r.query["fields"])) {
		w.writeField(name, values[name])
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}

var statsFields = vocabulary{"libraries"}

// stats returns the response to /stats: the number of all libraries, unless the query parameter "fields" leaves it out.
func (p *public) stats(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	var w jsonWriter
	w.beginObject()
	for _, name := range statsFields.names(statsFields.parseOrAll(r.query["fields"])) {
		w.writeField(name, len(listing.Libraries))
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}
