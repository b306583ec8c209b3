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

	"github.com/gin-gonic/gin"
)

// about routes what is about the service and not about libraries.
func (p *public) about(e *gin.Engine) {
	get(e, "/", p.toSite("/api"))
	get(e, "/about", p.toSite("/about"))
	get(e, "/api", p.onAPIHost(p.answering(p.openAPI)))
	get(e, "/openapi.json", p.answering(p.openAPI))
	get(e, "/health", func(c *gin.Context) { sendText(c, notCached, "OK") })
	get(e, "/error", func(c *gin.Context) { fail(c, p.Logger, errors.New("somebody asked for an error, to see one")) })
	get(e, "/robots.txt", p.robots)
	get(e, "/opensearch.xml", p.openSearch)
	for _, m := range readMarks() {
		get(e, m.path, func(c *gin.Context) { send(c, http.StatusOK, cachedForGood, m.body) })
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
		cachedForGood.set(c.Writer.Header())
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
		sendText(c, oneDay, "User-agent: *\nDisallow: /search\n")
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
	text, err := xml.MarshalIndent(openSearchDescription{
		ShortName:     firstRunes(p.Name, maxShortName),
		Description:   firstRunes("Search the front-end libraries on "+p.Name, maxDescription),
		InputEncoding: "UTF-8",
		Image:         openSearchImage{Width: 16, Height: 16, Type: "image/x-icon", URL: base + "/favicon.ico"},
		URL:           openSearchURL{Type: "text/html", Method: "get", Template: base + "/search?q={searchTerms}"},
	}, "", "  ")
	if err != nil {
		fail(c, p.Logger, err)
		return
	}
	send(c, http.StatusOK, cachedForGood, newBody("application/opensearchdescription+xml", append([]byte(xml.Header), text...)))
}

func firstRunes(text string, n int) string {
	for i := range text {
		if n--; n < 0 {
			return text[:i]
		}
	}
	return text
}

//go:embed marks
var marks embed.FS

// A mark is one of the pictures that browsers ask every site for.
type mark struct {
	path string
	body *body
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
		all = append(all, mark{"/" + name, newBody(contentType, data)})
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

func (p *public) openAPI(_ context.Context, r *request) (*body, caching, error) {
	server, err := origin(r.Request)
	if err != nil {
		return nil, caching{}, err
	}
	b, err := p.documents.get(server, func() (*body, int, error) {
		text := OpenAPI(p.Name, server)
		return newJSON(text), 2 * len(text), nil
	})
	return b, sixHours, err
}
