package api

import (
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

const (
	hour   = "public, max-age=3600"
	six    = "public, max-age=21600"
	year   = "public, max-age=30672000, immutable"
	five   = "public, max-age=300"
	day    = "public, max-age=86400"
	never  = "no-cache, no-store, must-revalidate"
	asJSON = "application/json"
	asText = "text/plain; charset=utf-8"
)

func errorText(status int, message string) string {
	return fmt.Sprintf(`{"error":true,"status":%d,"message":"%s"}`, status, message)
}

func TestRoutes(t *testing.T) {
	s := newService(t)
	notFound := errorText(404, "Endpoint not found")
	noLibrary, noVersion := errorText(404, "Library not found"), errorText(404, "Version not found")
	for _, tt := range []struct {
		target      string
		status      int
		contentType string
		cache       string
		body        string // "*" for any
	}{
		{"/health", 200, asText, never, "OK"},
		{"/robots.txt", 200, asText, day, "User-agent: *\nDisallow: /search\n"},
		{"/opensearch.xml", 200, "application/opensearchdescription+xml", year, "*"},
		{"/favicon.ico", 200, "image/x-icon", year, "*"},
		{"/favicon.png", 200, "image/png", year, "*"},
		{"/favicon.svg", 200, "image/svg+xml", year, "*"},
		{"/banner.png", 200, "image/png", year, "*"},
		{"/openapi.json", 200, asJSON, six, "*"},
		{"/stats", 200, asJSON, six, `{"libraries":7}`},
		{"/stats?fields=libraries", 200, asJSON, six, `{"libraries":7}`},
		{"/stats?fields=LIBRARIES,x", 200, asJSON, six, `{"libraries":7}`},
		{"/stats?fields=x", 200, asJSON, six, `{}`},
		{"/stats?fields=", 200, asJSON, six, `{"libraries":7}`},
		{"/whitelist", 200, asJSON, six, "*"},
		{"/whitelist?fields=nothing", 200, asJSON, six, `{}`},
		{"/libraries", 200, asJSON, six, "*"},
		{"/libraries/jquery", 200, asJSON, six, "*"},
		{"/libraries/jquery/3.7.1", 200, asJSON, year, "*"},
		{"/libraries/JQUERY", 404, asJSON, hour, noLibrary},
		{"/libraries/nothing", 404, asJSON, hour, noLibrary},
		{"/libraries/nothing/1.0.0", 404, asJSON, hour, noLibrary},
		{"/libraries/jquery/9.9.9", 404, asJSON, hour, noVersion},
		{"/libraries/jquery/9.9.9?fields=name", 404, asJSON, hour, noVersion},
		{"/libraries/bare/1.0.0", 404, asJSON, hour, noVersion},
		{"/libraries/gone/2.0.0", 410, asJSON, never, errorText(410, `Version withdrawn: it stole <cookies> & \"more\"`)},
		{"/libraries/gone/2.0.0?fields=name", 410, asJSON, never, errorText(410, `Version withdrawn: it stole <cookies> & \"more\"`)},
		{"/libraries/gone/3.0.0", 404, asJSON, hour, noVersion},
		{"/packages", 200, asJSON, five, `["bare","font-awesome","gone","hidden","jquery","mainless","odd"]`},
		{"/packages/jquery", 200, asJSON, five, "*"},
		{"/packages/jquery/all", 200, asJSON, five, "*"},
		{"/packages/gone/versions", 200, asJSON, five, `["1.0.0"]`},
		{"/packages/bare/versions", 200, asJSON, five, `[]`},
		{"/packages/gone/versions/1.0.0", 200, asJSON, year, `["gone.js"]`},
		{"/packages/gone/sris/1.0.0", 200, asJSON, year, `{"gone/1.0.0/gone.js":"` + sri("1") + `"}`},
		{"/packages/gone/versions/2.0.0", 410, asJSON, never, "*"},
		{"/packages/gone/sris/2.0.0", 410, asJSON, never, "*"},
		{"/packages/gone/sris/3.0.0", 404, asJSON, hour, noVersion},
		{"/packages/nothing", 404, asJSON, hour, noLibrary},
		{"/packages/nothing/all", 404, asJSON, hour, noLibrary},
		{"/packages/nothing/states", 404, asJSON, hour, noLibrary},
		{"/packages/nothing/versions", 404, asJSON, hour, noLibrary},
		{"/packages/nothing/sris/1.0.0", 404, asJSON, hour, noLibrary},
		{"/packages/bare/states", 200, asJSON, never, `[]`},
		{"/nowhere", 404, asJSON, hour, notFound},
		{"/", 404, asJSON, hour, notFound},
		{"/about", 404, asJSON, hour, notFound},
		{"/api", 404, asJSON, hour, notFound},
		{"/libraries/jquery/3.7.1/jquery.js", 404, asJSON, hour, notFound},
		{"/packages/jquery/nothing", 404, asJSON, hour, notFound},
		{"/Health", 404, asJSON, hour, notFound},
		{"/download/jquery/3.7.1.zip", 404, asJSON, hour, notFound},
	} {
		for _, target := range []string{tt.target, slashed(tt.target)} {
			got := s.get(target)
			if got.status != tt.status || got.get("Content-Type") != tt.contentType || got.get("Cache-Control") != tt.cache || tt.body != "*" && got.body != tt.body {
				t.Errorf("%s: %d %s %s %s", target, got.status, got.get("Content-Type"), got.get("Cache-Control"), got.body)
			}
			head := s.ask("HEAD", target)
			for _, name := range []string{"Content-Type", "Content-Length", "Cache-Control", "Etag", "Vary"} {
				equal(t, "HEAD "+target+" "+name, head.get(name), got.get(name))
			}
			if head.status != got.status || head.body != "" {
				t.Errorf("HEAD %s: %d %s", target, head.status, head.body)
			}
			options := s.ask("OPTIONS", target)
			if options.status != 204 || options.body != "" ||
				options.get("Access-Control-Allow-Headers") != "Accept,Accept-Version,Content-Length,Content-MD5,Content-Type,Date" ||
				options.get("Access-Control-Allow-Methods") != "GET,OPTIONS" {
				t.Errorf("OPTIONS %s: %d %v", target, options.status, options.header)
			}
			if post := s.ask("POST", target); post.status != 404 || post.body != notFound || post.get("Cache-Control") != hour {
				t.Errorf("POST %s: %d %s", target, post.status, post.body)
			}
		}
	}
}

// slashed returns the target with a slash at the end of its path.
func slashed(target string) string {
	path, query, ok := strings.Cut(target, "?")
	if path == "/" {
		return target
	}
	if ok {
		query = "?" + query
	}
	return path + "/" + query
}

func TestAPIHost(t *testing.T) {
	s := newService(t)
	for _, host := range []string{"api.example", "API.EXAMPLE", "api.example:8080"} {
		for target, want := range map[string]string{"/": siteBase + "/api", "/about": siteBase + "/about", "/about/": siteBase + "/about"} {
			got := s.get(target, "Host: "+host)
			if got.status != 301 || got.get("Location") != want || got.get("Cache-Control") != year {
				t.Errorf("%s at %s: %d %v", target, host, got.status, got.header)
			}
		}
		got := s.get("/robots.txt", "Host: "+host)
		if got.body != "User-agent: *\nDisallow: /" || got.get("Cache-Control") != year {
			t.Errorf("robots at %s: %s", host, got.body)
		}
		if got := s.get("/libraries/jquery", "Host: "+host); got.status != 200 {
			t.Errorf("a library at %s: %d", host, got.status)
		}
	}
	for _, host := range []string{"example", "api.example.com", "xapi.example", "", "[::1]:80"} {
		if got := s.get("/", "Host: "+host); got.status != 404 {
			t.Errorf("/ at %q: %d", host, got.status)
		}
	}
	s = newService(t, func(o *PublicOptions) { o.APIHost = "api.example:8080" })
	for host, want := range map[string]int{"api.example": 404, "api.example:80": 404, "Api.example:8080": 301} {
		if got := s.get("/", "Host: "+host); got.status != want {
			t.Errorf("/ at %s: %d", host, got.status)
		}
	}
	s = newService(t, func(o *PublicOptions) { o.SiteBase, o.Self = "", "http://127.0.0.1:8080" })
	for target, want := range map[string]string{"/": "http://127.0.0.1:8080/api", "/about": "http://127.0.0.1:8080/about"} {
		if got := s.get(target, "Host: api.example"); got.status != 301 || got.get("Location") != want || got.get("Cache-Control") != year {
			t.Errorf("%s without a name for the site: %d %v", target, got.status, got.header)
		}
	}
	for _, base := range []string{"http://api.example", "https://API.example:8443"} {
		s = newService(t, func(o *PublicOptions) { o.SiteBase = base })
		if got := s.get("/about", "Host: api.example"); got.status != 404 {
			t.Errorf("/about with the site at %s: %d %s", base, got.status, got.get("Location"))
		}
	}
}

func TestError(t *testing.T) {
	s := newService(t)
	for _, target := range []string{"/error", "/error/"} {
		got := s.get(target)
		e := decode[map[string]any](t, got)
		ref, _ := e["ref"].(string)
		if got.status != 500 || e["message"] != "An unexpected error occurred" || len(e) != 4 || ref == "" || got.get("Cache-Control") != never {
			t.Errorf("%s: %d %s %v", target, got.status, got.body, got.header)
		}
		if !strings.Contains(s.log.String(), ref) {
			t.Error("the log does not have the reference")
		}
	}
}

func TestWhitelist(t *testing.T) {
	s := newService(t)
	want := strings.Fields("js mjs ts wasm map swf json css scss png gif jpg jpeg svg webp cur ttf eot woff woff2 otf aac mp3 ogg lang hpb")
	got := decode[struct {
		Extensions []string
		Categories map[string]string
	}](t, s.get("/whitelist"))
	equal(t, "extensions", got.Extensions, want)
	equal(t, "categories", len(got.Categories), len(want))
	for extension, category := range map[string]string{
		"mjs": "JavaScript", "ts": "TypeScript", "wasm": "WebAssembly", "map": "Source Maps", "swf": "Flash", "json": "JSON",
		"scss": "Styling", "webp": "Images", "woff2": "Fonts", "aac": "Audio", "hpb": "Other",
	} {
		equal(t, extension, got.Categories[extension], category)
	}
	one := decode[map[string]any](t, s.get("/whitelist?fields=Extensions"))
	if len(one) != 1 || one["extensions"] == nil {
		t.Errorf("one field: %v", one)
	}
}

func TestBadRequests(t *testing.T) {
	s := newService(t)
	for _, tt := range []struct {
		target string
		status int
	}{
		{"/logs?limit=x", 400}, {"/logs?kind=%", 400}, {"/whitelist?%", 200}, {"/packages?%zz", 200}, {"/libraries/jquery/3.7.1?a=%80", 200},
		{"/libraries?a;b=c&&=&search=jquery", 200},
		{"/libraries?search=" + strings.Repeat("a", 8185), 200}, {"/libraries?search=" + strings.Repeat("a", 8186), 414},
		{"/nowhere?" + strings.Repeat("a", 8193), 414},
	} {
		got := s.get(tt.target)
		if got.status != tt.status || tt.status != 200 && got.get("Cache-Control") != never {
			t.Errorf("%.80s: %d %s %.100s", tt.target, got.status, got.get("Cache-Control"), got.body)
		}
	}
}

func TestPaths(t *testing.T) {
	s := newService(t)
	for _, target := range []string{
		"/libraries/..%2f", "/libraries/..%2fjquery", "//libraries", "/libraries//jquery", "/libraries//", "//", "/libraries/jquery//", "/libraries/jquery/%00", "/libraries/%00", "/libraries/jquery%00",
		"/libraries/jquery%2f3.7.1", "/libraries/%2e%2e/health", "/x/../health", "/libraries/../health", "/libraries/jquery/../health", "/libraries%2fjquery", "/%6cibraries/jquery//",
		"/libraries/jquery/3.7.1%2f", "/libraries/%ff", "/libraries/%2541", "/libraries/a%20b", "/libraries/%E6%96%87/1", "/libraries/jquery/a b%2f", `/libraries/a"b%2Fc`,
		"/packages//versions", "/packages/%2e/versions", "/packages/jquery/versions/..%2f3.7.1", "/packages/jquery/sris/%00", "/libraries/*", "/libraries/:library", "/libraries/jquery/:version",
		"/libraries/" + strings.Repeat("a", 4000), "/libraries/jquery/" + strings.Repeat("1", 4000), "/site", "/library", "/download", "/download/", "/search//",
	} {
		r := newRequest("GET", "/")
		var err error
		if r.URL, err = url.ParseRequestURI(target); err != nil { // as net/http does
			t.Fatal(err)
		}
		got := serve(s.handler, r)
		for _, problem := range problems(r, got) {
			t.Errorf("%s: %s", target, problem)
		}
		if got.status != 404 {
			t.Errorf("%s: %d %s", target, got.status, got.body)
		}
	}
}

func TestPackages(t *testing.T) {
	s := newService(t)
	const fields = `"name":"jquery","filename":"jquery.min.js","description":"The <b>DOM</b> & more.","keywords":["dom","ajax"],"homepage":"https://jquery.example/","license":"MIT",` +
		`"repository":{"type":"git","url":"https://github.com/jquery/jquery.git"},"authors":[{"name":"A. Author","email":"a@example.com","url":"https://a.example/"},{"name":"B. Author"}],` +
		`"autoupdate":{"source":"npm","target":"jquery","fileMap":[{"basePath":"dist","files":["*"]}],"ignoreVersions":["*-alpha*"]},"optimization":{"js":false},` +
		`"version":"3.7.1","author":"A. Author <a@example.com> (https://a.example/),B. Author"`
	equal(t, "jquery", s.get("/packages/jquery").body, "{"+fields+"}")
	// What is served is named alike everywhere, whatever the package JSON says.
	s.shelf.Register("other", `{"name":"other","filename":"other.js","description":"D.","keywords":["other"],"repository":{"type":"git","url":"https://git.example/other.git"}}`)
	testkit.Await(t, s.index, s.shelf.Log)
	equal(t, "unpublished", decode[map[string]any](t, s.get("/packages/other"))["filename"], "other.js")
	s.shelf.Publish("other", "1.0.0", "other.min.js", map[string]string{"other.min.js": "a"})
	testkit.Await(t, s.index, s.shelf.Log)
	for _, target := range []string{"/packages/other", "/packages/other/all", "/libraries/other"} {
		equal(t, target, decode[map[string]any](t, s.get(target))["filename"], "other.min.js")
	}
	if got := s.get("/packages/mainless").body; strings.Contains(got, "filename") {
		t.Errorf("a library without a main file names one: %s", got)
	}
	equal(t, "bare", s.get("/packages/bare").body, plainJSON("bare", "Nothing is published."))

	all := s.get("/packages/jquery/all")
	if !strings.HasPrefix(all.body, "{"+fields+`,"assets":[{"version":"4.0.0-beta.2","files":["LICENSE","README.md",`) {
		t.Errorf("all: %s", all.body)
	}
	versions := decode[struct {
		Assets []struct {
			Version string
			Files   []string
		}
	}](t, all).Assets
	if len(versions) != 10 || versions[2].Version != "3.7.1" || len(versions[2].Files) != 8 {
		t.Errorf("all: %v", versions)
	}
	again := s.get("/packages/jquery/all")
	equal(t, "again", again.get("Etag"), all.get("Etag"))
	s.shelf.Publish("jquery", "3.8.0", "jquery.js", map[string]string{"jquery.js": "new"})
	testkit.Await(t, s.index, s.shelf.Log)
	if changed := s.get("/packages/jquery/all"); changed.get("Etag") == all.get("Etag") || !strings.Contains(changed.body, `{"version":"3.8.0","files":["jquery.js"]}`) {
		t.Error("a publication does not show")
	}

	equal(t, "states", s.get("/packages/gone/states").body, `[`+
		`{"version":"4.0.0","state":"failed","reason":"time out","updated":"2024-02-29T12:30:45Z","attempts":2,"next":"2024-02-29T13:30:45Z"},`+
		`{"version":"3.0.0","state":"refused","reason":"a bomb","released":"2024-02-29T12:30:45Z","updated":"2024-02-29T12:30:45Z"},`+
		`{"version":"2.0.0","state":"withdrawn","reason":"it stole <cookies> & \"more\"","updated":"2024-02-29T12:30:45Z"},`+
		`{"version":"1.0.0","state":"published","released":"2024-02-29T12:30:45Z","updated":"2024-02-29T12:30:45Z"}]`)
}

// TestNotMirrored checks that the states of a library say how many versions were never tried.
func TestNotMirrored(t *testing.T) {
	shelf := testkit.NewShelf(t)
	stock(shelf)
	index := shelf.Index(library.Options{Accounts: func(_ kvstore.Reader, name string) (all []views.Account, err error) {
		for _, kind := range []views.StateKind{views.Published, views.Refused, views.Failed, views.Withdrawn, views.Older, views.Prerelease, views.Ignored, views.Gone} {
			all = append(all, views.Account{State: views.State{Package: name, Version: string(kind), Kind: kind}})
		}
		return all, nil
	}})
	s := newService(t, func(o *PublicOptions) { o.Library = index })
	equal(t, "not mirrored", s.get("/packages/gone/states").get("Larder-Not-Mirrored"), "4")
}

// TestStatesOfUnsafeVersions checks that the states of a library say which versions are deprecated and vulnerable.
func TestStatesOfUnsafeVersions(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("jar", `{"name":"jar","filename":"jar.js","description":"d","keywords":["k"],"license":"MIT","repository":{"type":"git","url":"https://git.example/jar.git"},`+
		`"autoupdate":{"source":"npm","target":"jar","fileMap":[{"basePath":"","files":["*"]}]}}`)
	for _, version := range []string{"1.0.0", "1.1.0"} {
		shelf.Publish("jar", version, "jar.js", map[string]string{"jar.js": version})
	}
	file := filepath.Join(t.TempDir(), "osv.json")
	if err := os.WriteFile(file, []byte(`{"id":"GHSA-1","summary":"It leaks.","affected":[{"package":{"ecosystem":"npm","name":"jar"},"versions":["1.0.0"]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	advisories, err := library.OpenAdvisories(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	index := shelf.Index(library.Options{Deprecations: func(kvstore.Reader, string) (map[string]string, error) {
		return map[string]string{"1.1.0": "broken"}, nil
	}})
	for _, known := range []*library.Advisories{advisories, nil} {
		s := newService(t, func(o *PublicOptions) { o.Library, o.Advisories = index, known })
		body := s.get("/packages/jar/states").body
		if !strings.Contains(body, `"deprecated":"broken"`) {
			t.Errorf("no version is deprecated: %s", body)
		}
		if strings.Contains(body, `"vulnerable":true`) != (known != nil) || strings.Contains(body, `"vulnerable":false`) != (known != nil) {
			t.Errorf("advisories known: %v; the states are %s", known != nil, body)
		}
		facts := `"size":5,"brotli":null,"downloads":null,"deprecated":true,"vulnerable":null,"provenance":null,"safeVersion":null`
		if known != nil {
			facts = `"size":5,"brotli":null,"downloads":null,"deprecated":true,"vulnerable":false,"provenance":null,"safeVersion":""`
		}
		const named = "size,brotli,downloads,deprecated,vulnerable,provenance,SafeVersion"
		equal(t, "facts of a library", s.get("/libraries/jar?fields=name,"+named).body, "{"+facts+`,"name":"jar"}`)
		result := `{"results":[{"name":"jar","latest":"https://assets.example/ajax/libs/jar/1.1.0/jar.js",` + facts + `}],"total":1,"available":1}`
		for _, search := range []string{"", "search=jar&"} {
			equal(t, "facts of results", s.get("/libraries?"+search+"fields="+named).body, result)
		}
		if all := s.get("/libraries?fields=*").body + s.get("/libraries/jar").body; strings.Contains(all, "safeVersion") {
			t.Errorf("a response has facts that the query does not name: %s", all)
		}
	}
}

func TestMarks(t *testing.T) {
	s := newService(t)
	for target, width := range map[string]int{"/favicon.png": 192, "/banner.png": 1280} {
		picture, err := png.DecodeConfig(strings.NewReader(s.get(target).body))
		if err != nil || picture.Width != width {
			t.Errorf("%s is %d wide: %v", target, picture.Width, err)
		}
	}
	if got := s.get("/favicon.ico").body; !strings.HasPrefix(got, "\x00\x00\x01\x00\x03\x00") {
		t.Errorf("the icon begins with %q", got[:6])
	}
	d := xml.NewDecoder(strings.NewReader(s.get("/favicon.svg").body))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenSearch(t *testing.T) {
	for _, tt := range []struct{ name, base, apiHost, shortName, template string }{
		{"", siteBase, "", "Larder", "https://site.example/search?q={searchTerms}"},
		{"", siteBase, "api.example", "Larder", "https://site.example/libraries?search={searchTerms}"},
		{"A <name> & more of it", "", "", "A <name> & more ", "http://example.com/search?q={searchTerms}"},
	} {
		s := newService(t, func(o *PublicOptions) { o.Name, o.SiteBase, o.APIHost = tt.name, tt.base, tt.apiHost })
		got := s.get("/opensearch.xml")
		var d openSearchDescription
		if err := xml.Unmarshal([]byte(got.body), &d); err != nil {
			t.Fatal(err)
		}
		if d.XMLName.Space != "http://a9.com/-/spec/opensearch/1.1/" || d.ShortName != tt.shortName || d.URL.Template != tt.template || d.URL.Type != "text/html" || d.Description == "" {
			t.Errorf("%s: %+v", got.body, d)
		}
	}
}
