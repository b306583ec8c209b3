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
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/logs/views"
)

// about routes what is about the service and not about libraries.
func (p *public) about(e *gin.Engine) {
	get(e, "/", p.toSite("/api"))
	get(e, "/about", p.toSite("/about"))
	get(e, "/api", p.onAPIHost(p.answering(p.openAPI)))
	get(e, "/openapi.json", p.answering(p.openAPI))
	get(e, "/health", func(c *gin.Context) { sendText(c, notCached, "OK") })
	get(e, "/error", func(c *gin.Context) { fail(c, p.Logger, errors.New("a client asked for an error, to see one")) })
	get(e, "/robots.txt", p.robots)
	get(e, "/opensearch.xml", p.openSearch)
	get(e, "/sitemap.xml", p.answering(p.sitemap))
	for _, m := range readMarks() {
		get(e, m.path, func(c *gin.Context) { send(c, cachedForGood, m.body) })
	}
}

// onAPIHost answers with the handler where the host is the API's. Elsewhere the path is the site's.
func (p *public) onAPIHost(handler gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		if isHost(c.Request.Host, p.APIHost) {
			handler(c)
		} else {
			p.elsewhere(c)
		}
	}
}

// toSite leads from the API's host to the site, unless that is said to be the same host: for 355 days the page about us
// would lead to itself.
func (p *public) toSite(path string) gin.HandlerFunc {
	base := cmp.Or(p.SiteBase, p.Self)
	if u, err := url.Parse(base); err != nil || isHost(u.Host, p.APIHost) {
		return p.elsewhere
	}
	return p.onAPIHost(func(c *gin.Context) {
		cachedForGood.SetHeader(c.Writer.Header())
		c.Writer.Header().Set("Location", base+path)
		c.Status(http.StatusMovedPermanently)
		c.Writer.WriteHeaderNow()
	})
}

// robots keeps them out of the API. On the site they find everything by links, so results of searches are of no use to
// them.
func (p *public) robots(c *gin.Context) {
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

// openSearchDescription is what browsers read to offer the site among their search engines
// (https://github.com/dewitt/opensearch, 1.1 draft 6).
type openSearchDescription struct {
	XMLName       xml.Name        `xml:"http://a9.com/-/spec/opensearch/1.1/ OpenSearchDescription"`
	ShortName     string          `xml:"ShortName"`
	Description   string          `xml:"Description"`
	InputEncoding string          `xml:"InputEncoding"`
	Image         openSearchImage `xml:"Image"`
	URL           openSearchURL   `xml:"Url"`
}

type openSearchImage struct {
	Width  int    `xml:"width,attr"`
	Height int    `xml:"height,attr"`
	Type   string `xml:"type,attr"`
	URL    string `xml:",chardata"`
}

type openSearchURL struct {
	Type     string `xml:"type,attr"`
	Method   string `xml:"method,attr"`
	Template string `xml:"template,attr"`
}

// OpenSearch bounds these, in characters.
const (
	maxShortName   = 16
	maxDescription = 1024
)

func (p *public) openSearch(c *gin.Context) {
	base, err := baseOr(p.SiteBase, c.Request)
	if err != nil {
		fail(c, p.Logger, err)
		return
	}
	document, err := xml.MarshalIndent(openSearchDescription{
		ShortName:     text.CutRunes(p.Name, maxShortName),
		Description:   text.CutRunes("Search the front-end libraries on "+p.Name, maxDescription),
		InputEncoding: "UTF-8",
		Image:         openSearchImage{Width: 16, Height: 16, Type: "image/x-icon", URL: base + "/favicon.ico"},
		URL:           openSearchURL{Type: "text/html", Method: "get", Template: base + p.searchPage()},
	}, "", "  ")
	if err != nil {
		fail(c, p.Logger, err)
		return
	}
	send(c, addressed(p.SiteBase != "", cachedForGood), answers.NewBody("application/opensearchdescription+xml", append([]byte(xml.Header), document...)))
}

// searchPage is where searches begin. With an API host it is where the public service's do, which leads to ours: see
// [public.libraries].
func (p *public) searchPage() string {
	if p.APIHost != "" {
		return "/libraries?search={searchTerms}"
	}
	return "/search?q={searchTerms}"
}

// toSearch leads a search on the site's host to its page, where the API has a host of its own.
func (p *public) toSearch(next gin.HandlerFunc) gin.HandlerFunc {
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
		notCached.SetHeader(c.Writer.Header())
		c.Writer.Header().Set("Location", p.SiteBase+"/search?q="+url.QueryEscape(query.Get("search")))
		c.Status(http.StatusSeeOther)
		c.Writer.WriteHeaderNow()
	}
}

// maxSitemap is how many addresses a sitemap may have (https://www.sitemaps.org/protocol.html).
const maxSitemap = 50_000

// sitemap lists the pages that search engines should know: those of libraries, and what leads to them.
func (p *public) sitemap(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	base, err := baseOr(p.SiteBase, r.Request)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	if !p.pagesAt(r.Request) {
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
	return answers.NewBody("application/xml", b.Bytes()), addressed(p.SiteBase != "", sixHours), nil
}

//go:embed marks
var marks embed.FS

// A mark is one of the pictures that browsers ask every site for.
type mark struct {
	path string
	body *answers.Body
}

func readMarks() []mark {
	var all []mark
	for name, contentType := range map[string]string{
		"favicon.ico": "image/x-icon",
		"favicon.png": "image/png",
		"favicon.svg": "image/svg+xml",
		"banner.png":  "image/png",
	} {
		data, err := marks.ReadFile("marks/" + name)
		if err != nil {
			panic(err) // it is not in the binary
		}
		all = append(all, mark{"/" + name, answers.NewBody(contentType, data)})
	}
	return all
}

//go:embed openapi.json
var openAPIDocument []byte

// What openapi.json says of an instance, for [OpenAPI] to replace.
const (
	documentName   = `"Larder API"`
	documentServer = `"https://larder.example"`
)

// OpenAPI returns the OpenAPI document of a service with that name, whose API is at the URL server.
func OpenAPI(name, server string) []byte {
	text := bytes.Replace(openAPIDocument, []byte(documentName), quoted(name+" API"), 1)
	return bytes.Replace(text, []byte(documentServer), quoted(server), 1)
}

func quoted(text string) []byte {
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err) // strings do not fail
	}
	return quoted
}

func (p *public) openAPI(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	server, err := baseOr(p.SiteBase, r.Request)
	onAPIHost := isHost(r.Host, p.APIHost)
	if onAPIHost {
		server, err = client.Scheme(r.Request)+"://"+p.APIHost, nil
	}
	if err != nil {
		return nil, answers.Caching{}, err
	}
	b, err := p.documents.Get(server, func() (*answers.Body, int, error) {
		text := OpenAPI(p.Name, server)
		return newJSON(text), 2 * len(text), nil
	})
	return b, addressed(onAPIHost || p.SiteBase != "", sixHours), err
}

// categories says of which extensions a version's files are shown, and what they are, in the contract's order.
var categories = []struct{ extension, category string }{
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

var whitelisted = func() map[string]bool {
	set := map[string]bool{}
	for _, c := range categories {
		set[c.extension] = true
	}
	return set
}()

// rawPaths returns the paths of all files.
func rawPaths(files []views.PublishedFile) []string {
	paths := make([]string, len(files))
	for i, f := range files {
		paths[i] = f.Path
	}
	return paths
}

// shownPaths returns the paths of the files whose extension is on the whitelist, as it is there: the public service
// regards case.
func shownPaths(files []views.PublishedFile) []string {
	paths := []string{}
	for _, f := range files {
		if whitelisted[strings.TrimPrefix(path.Ext(f.Path), ".")] {
			paths = append(paths, f.Path)
		}
	}
	return paths
}

var whitelistFields = vocabulary{"extensions", "categories"}

// whitelist answers /whitelist.
func (p *public) whitelist(_ context.Context, r *request) (*answers.Body, answers.Caching, error) {
	set := whitelistFields.parseOrAll(r.query["fields"])
	var w jsonWriter
	w.beginObject()
	if whitelistFields.has(set, "extensions") {
		w.name("extensions")
		w.beginArray()
		for _, c := range categories {
			w.value(c.extension)
		}
		w.endArray()
	}
	if whitelistFields.has(set, "categories") {
		w.name("categories")
		w.beginObject()
		for _, c := range categories {
			w.field(c.extension, c.category)
		}
		w.endObject()
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}

var statsFields = vocabulary{"libraries"}

// stats answers /stats.
func (p *public) stats(ctx context.Context, r *request) (*answers.Body, answers.Caching, error) {
	set := statsFields.parseOrAll(r.query["fields"])
	listing, err := p.Library.Listing(ctx)
	if err != nil {
		return nil, answers.Caching{}, err
	}
	var w jsonWriter
	w.beginObject()
	if statsFields.has(set, "libraries") {
		w.field("libraries", len(listing.Libraries))
	}
	w.endObject()
	return newJSON(w.bytes()), sixHours, nil
}
