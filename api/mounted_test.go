package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/answers"
)

func TestOrigin(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.AssetBase, o.SiteBase = "", "" })
	for host, want := range map[string]string{
		"example.com": "http://example.com", "EXAMPLE.com:8080": "http://example.com:8080", "[::1]:8080": "http://[::1]:8080", "127.0.0.1": "http://127.0.0.1",
		"": "", "a b": "", "evil.example/path": "", "user@evil.example": "", "example.com:x": "", `"><script>`: "", "example.com:123456": "", "[::1": "",
	} {
		for _, target := range []string{"/libraries?search=jquery", "/libraries?limit=9", "/libraries/jquery?fields=latest", "/opensearch.xml", "/openapi.json", "/logs.atom"} {
			got := s.get(target, "Host: "+host)
			if want == "" {
				if got.status != 400 || got.get("Cache-Control") != never {
					t.Errorf("%s at %q: %d %s", target, host, got.status, got.body)
				}
			} else if got.status != 200 || !strings.Contains(got.body, want+"/") && target != "/openapi.json" || !strings.Contains(got.body, want) {
				t.Errorf("%s at %q: %d %s", target, host, got.status, got.body)
			} else if got.get("Cache-Control") != never {
				t.Errorf("%s at %q may be kept, and has what the client wrote in Host", target, host)
			}
		}
		if got := s.get("/health", "Host: "+host); got.status != 200 {
			t.Errorf("health at %q: %d", host, got.status)
		}
	}
}

// A request without a valid Host that needs its own address is refused before anything else is done for it: the answer does not
// depend on what it asks for, and no cache gets an entry.
func TestBadHostFirst(t *testing.T) {
	s := newService(t, func(o *PublicOptions) { o.AssetBase, o.SiteBase = "", "" })
	targets := []string{"/libraries", "/openapi.json", "/opensearch.xml", "/sitemap.xml", "/logs.atom?package=none", "/packages/jquery/modules/9.9.9"}
	for _, target := range targets {
		if got := s.get(target, "Host: a b"); got.status != 400 || !strings.Contains(got.body, badHost.Message) {
			t.Errorf("%s: %d %s", target, got.status, got.body)
		}
	}
	s.public.lists.Remove(func(k listKey) bool {
		t.Errorf("the list %v is cached", k)
		return true
	})
	s.public.documents.Remove(func(at string) bool {
		t.Errorf("the document for %q is cached", at)
		return true
	})
}

// A browser gets the search description even if no turn comes.
func TestOpenSearchWaitsForNoTurn(t *testing.T) {
	turns := answers.NewTurns(1)
	_, leave, err := turns.Enter(t.Context(), "192.0.2.1:1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	s := newService(t, func(o *PublicOptions) { o.Turns = turns })
	r := newRequest("GET", "/opensearch.xml")
	ctx, cancel := context.WithCancel(r.Context())
	cancel() // a request that waits fails at once
	if got := serve(s.handler, r.WithContext(ctx)); got.status != 200 {
		t.Errorf("%d %s", got.status, got.body)
	}
}

// ownedSite owns the paths below /library/ and the one of the home page.
type ownedSite struct{ http.Handler }

func (ownedSite) Owns(path string) bool { return path == "/" || strings.HasPrefix(path, "/library/") }

// The site and the downloads get their paths and no others; what they answer goes out as it is.
func TestMounted(t *testing.T) {
	named := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Query().Get("as") {
			case "404":
				w.WriteHeader(http.StatusNotFound)
			case "panic":
				panic("boom")
			default:
				fmt.Fprintf(w, "%s %s", name, r.URL.Path)
			}
		})
	}
	s := newService(t, func(o *PublicOptions) { o.Site, o.Downloads = ownedSite{named("site")}, named("download") })
	for target, want := range map[string]string{
		"/": "site /", "/library/jquery": "site /library/jquery", "/library/a%2Fb/1": "site /library/a/b/1", "/download/jquery/1.zip": "download /download/jquery/1.zip",
		"/library": "", "/download": "", "/downloads/x": "", "/Library/x": "", "/x": "", "//": "", "//library/x": "", "/%6cibrary/x": "", "/library%2Fx": "",
	} {
		r := newRequest("GET", target)
		got := serve(s.handler, r)
		if want == "" && got.status != 404 || want != "" && (got.status != 200 || got.body != want) {
			t.Errorf("%s: %d %s", target, got.status, got.body)
		}
		if got := serve(s.handler, newRequest("POST", target)); got.status != 404 || got.body != errorText(404, "Endpoint not found") {
			t.Errorf("POST %s: %d %s", target, got.status, got.body)
		}
	}
	for _, method := range []string{"GET", "HEAD"} {
		if got := serve(s.handler, newRequest(method, "/library/x?as=404")); got.status != 404 || got.body != "" || got.get("Content-Type") != "" {
			t.Errorf("%s of a page that is not there: %d %q %v", method, got.status, got.body, got.header)
		}
	}
	if got := serve(s.handler, newRequest("GET", "/library/x?as=panic")); got.status != 500 || !json.Valid([]byte(got.body)) {
		t.Errorf("a panic: %d %s", got.status, got.body)
	}
	if got := serve(s.handler, newRequest("GET", "/", "Host: api.example")); got.status != 301 {
		t.Errorf("/ at the API's host: %d", got.status)
	}
}

// pages is a site that has a home page only, and says for every other path that it has none.
type pages struct{}

func (pages) Owns(path string) bool { return path == "/" }

func (pages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html")
	if r.URL.Path != "/" {
		w.WriteHeader(http.StatusNotFound)
	}
	io.WriteString(w, "a page")
}

// TestForPeople holds that a person is answered with a page, wherever that is, and a program never.
func TestForPeople(t *testing.T) {
	const browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	s := newService(t, func(o *PublicOptions) { o.Site, o.SiteBase, o.APIHost = pages{}, siteBase, "api.example" })
	get := func(target string, headers ...string) reply {
		return serve(s.handler, newRequest("GET", target, headers...))
	}
	for _, tt := range []struct {
		target, host, accept string
		status               int
		contentType, control string
	}{
		{"/nowhere", "site.example", browser, 404, "text/html", "no-store"},
		{"/packages/jquery/nothing", "site.example", browser, 404, "text/html", "no-store"},
		{"/nowhere", "site.example", "Accept: */*", 404, asJSON, never},
		{"/nowhere", "api.example", browser, 404, asJSON, hour},
		{"/libraries/nothing", "site.example", browser, 404, asJSON, hour},
		{"/sitemap.xml", "site.example", browser, 200, "application/xml", "public, max-age=21600"},
		{"/sitemap.xml", "api.example", browser, 404, asJSON, hour},
	} {
		got := get(tt.target, "Host: "+tt.host, tt.accept)
		if got.status != tt.status || got.get("Content-Type") != tt.contentType || tt.contentType != "text/html" && got.get("Cache-Control") != tt.control {
			t.Errorf("%s at %s, %s: %d %s %s", tt.target, tt.host, tt.accept, got.status, got.get("Content-Type"), got.get("Cache-Control"))
		}
	}
	if got := get("/libraries?search=font+awesome&fields=name", "Host: site.example"); got.status != 303 || got.get("Location") != siteBase+"/search?q=font+awesome" {
		t.Errorf("a search on the site's host: %d, to %q", got.status, got.get("Location"))
	}
	for _, target := range []string{"/libraries?search=jquery", "/libraries"} {
		if got := get(target, "Host: api.example"); got.status != 200 {
			t.Errorf("%s on the API's host: %d", target, got.status)
		}
	}
	if got := get("/libraries?fields=name", "Host: site.example"); got.status != 200 {
		t.Errorf("all libraries on the site's host: %d", got.status)
	}
	if got := get("/robots.txt", "Host: site.example").body; got != "User-agent: *\nDisallow: /search\nSitemap: https://site.example/sitemap.xml\n" {
		t.Errorf("robots: %q", got)
	}
	sitemap := get("/sitemap.xml", "Host: site.example").body
	for _, want := range []string{"<loc>https://site.example/library/jquery</loc><lastmod>2", "<loc>https://site.example/</loc>"} {
		if !strings.Contains(sitemap, want) {
			t.Errorf("the sitemap lacks %s:\n%s", want, sitemap)
		}
	}
	if strings.Contains(sitemap, "library/bare<") || strings.Contains(sitemap, "library/hidden<") {
		t.Errorf("the sitemap has what nobody should find:\n%s", sitemap)
	}
}
