package api

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/internal/text"
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

func TestLibrary(t *testing.T) {
	s := newService(t)
	file := func(name, content string) string { return fmt.Sprintf("%q:%q", name, sri(content)) }
	assets := `[{"version":"3.7.1","files":["jquery.js","jquery.min.js","jquery.min.map","sub/.css"],` +
		`"rawFiles":["LICENSE","README.md","UPPER.JS","jquery.js","jquery.min.js","jquery.min.map","sub/.css","sub/folder.js/none"],"sri":{` +
		strings.Join([]string{file("LICENSE", "free"), file("README.md", "#"), file("UPPER.JS", "up"), file("jquery.js", "long 3.7.1"), file("jquery.min.js", "min 3.7.1"),
			file("jquery.min.map", "{}"), file("sub/.css", "dot"), file("sub/folder.js/none", "none")}, ",") + `}}]`
	jquery := `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js","sri":"` + sri("min 3.7.1") + `",` +
		`"filename":"jquery.min.js","description":"The <b>DOM</b> & more.","version":"3.7.1","keywords":["dom","ajax"],"homepage":"https://jquery.example/",` +
		`"license":"MIT","repository":{"type":"git","url":"https://github.com/jquery/jquery.git"},"author":"A. Author <a@example.com> (https://a.example/),B. Author",` +
		`"autoupdate":{"source":"npm","target":"jquery"},"versions":["4.0.0-beta.2","4.0.0-beta","3.7.1","3.7.0","1.10.0","1.9.0","v1.3","1.2","r100","r20"],"assets":` + assets + `}`
	for _, tt := range []struct{ target, want string }{
		{"/libraries/jquery", jquery},
		{"/libraries/jquery?fields=*", jquery},
		{"/libraries/jquery?fields=name,*", jquery},
		{"/libraries/jquery?fields=", jquery},
		{"/libraries/jquery?fields=,+,", jquery},
		{"/libraries/jquery?output=human&utm=x", jquery},
		{"/libraries/jquery?fields=name", `{"name":"jquery"}`},
		{"/libraries/jquery?fields=Version,NAME", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name+version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name%20version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name&fields=version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery?fields=name,license+version&fields=x&fields=filename", `{"name":"jquery","filename":"jquery.min.js","version":"3.7.1","license":"MIT"}`},
		{"/libraries/jquery?fields=name,name", `{"name":"jquery"}`},
		{"/libraries/jquery?fields=unknown", `{}`},
		{"/libraries/jquery?fields=optimization,authors,fileMap", `{}`},
		{"/libraries/jquery?fields=assets", `{"assets":` + assets + `}`},
		{"/libraries/bare", `{"name":"bare","latest":null,"sri":null,"description":"Nothing is published.","keywords":["bare"],` +
			`"repository":{"type":"git","url":"https://git.example/bare.git"},"versions":[],"assets":[]}`},
		{"/libraries/bare?fields=version,latest,homepage", `{"latest":null}`},
		{"/libraries/mainless", `{"name":"mainless","latest":null,"sri":null,"description":"It has no main file.","version":"1.0.0","keywords":["mainless"],` +
			`"repository":{"type":"git","url":"https://git.example/mainless.git"},"versions":["1.0.0"],"assets":[{"version":"1.0.0","files":["a.css"],"rawFiles":["a.css"],"sri":{` + file("a.css", "a") + `}}]}`},
		{"/libraries/odd?fields=latest,filename,sri", `{"latest":"https://assets.example/ajax/libs/odd/1.0.0+build.1/a%20b%23%3F%2541.js","sri":"` + sri("odd") + `","filename":"a b#?%41.js"}`},
		{"/libraries/gone?fields=version,versions,latest", `{"latest":"https://assets.example/ajax/libs/gone/1.0.0/gone.js","version":"1.0.0","versions":["1.0.0"]}`},
		{"/libraries/hidden?fields=autoupdate", `{"autoupdate":{"source":"git","target":"https://git.example/hidden.git"}}`},
		{"/libraries/%6aquery?fields=name", `{"name":"jquery"}`},

		{"/libraries/jquery/3.7.1", `{"name":"jquery","version":"3.7.1",` + assets[strings.Index(assets, `"rawFiles"`):strings.Index(assets, `,"sri"`)] + `,` +
			assets[strings.Index(assets, `"files"`):strings.Index(assets, `,"rawFiles"`)] + assets[strings.Index(assets, `,"sri"`):len(assets)-1]},
		{"/libraries/jquery/3.7.1?fields=files", `{` + assets[strings.Index(assets, `"files"`):strings.Index(assets, `,"rawFiles"`)] + `}`},
		{"/libraries/jquery/3.7.1?fields=name,version", `{"name":"jquery","version":"3.7.1"}`},
		{"/libraries/jquery/3.7.1?fields=assets", `{}`},
		{"/libraries/mainless/1.0.0?fields=FILES&fields=sri", `{"files":["a.css"],"sri":{` + file("a.css", "a") + `}}`},
		{"/libraries/odd/1.0.0+build.1?fields=version,rawFiles", `{"version":"1.0.0+build.1","rawFiles":["A.js","a b#?%41.js","ünïcødé/文.js"]}`},
		{"/libraries/odd/1.0.0%2Bbuild.1?fields=version", `{"version":"1.0.0+build.1"}`},
		{"/libraries/%6Fdd/1.0.0+build.1?fields=version", `{"version":"1.0.0+build.1"}`},
	} {
		if got := s.get(tt.target); got.status != 200 || got.body != tt.want {
			t.Errorf("%s: %d\n got %s\nwant %s", tt.target, got.status, got.body, tt.want)
		}
	}
}

func TestLibraries(t *testing.T) {
	s := newService(t)
	jquery := `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js","filename":"jquery.min.js","description":"The <b>DOM</b> & more.",` +
		`"version":"3.7.1","keywords":["dom","ajax"],"alternativeNames":[],"fileType":"js","github":{"user":"jquery","repo":"jquery"},"objectID":"jquery","license":"MIT",` +
		`"homepage":"https://jquery.example/","repository":{"type":"git","url":"https://github.com/jquery/jquery.git"},` +
		`"author":"A. Author <a@example.com> (https://a.example/),B. Author","originalName":"jquery","sri":"` + sri("min 3.7.1") + `"}`
	bare := `{"name":"bare","latest":null,"filename":"","description":"Nothing is published.","version":"","keywords":["bare"],"alternativeNames":[],"fileType":"",` +
		`"github":null,"objectID":"bare","license":"","homepage":"","repository":{"type":"git","url":"https://git.example/bare.git"},"author":"","originalName":"bare","sri":""}`
	one := func(result string) string { return `{"results":[` + result + `],"total":1,"available":1}` }
	const short = `{"name":"jquery","latest":"https://assets.example/ajax/libs/jquery/3.7.1/jquery.min.js"}`
	for _, tt := range []struct{ target, want string }{
		{"/libraries?search=jquery&fields=*", one(jquery)},
		{"/libraries?search=bare&fields=*", one(bare)},
		{"/libraries?search=jquery", one(short)},
		{"/libraries?search=jquery&fields=", one(short)},
		{"/libraries?search=jquery&fields=name", one(short)},
		{"/libraries?search=jquery&fields=unknown,assets,versions", one(short)},
		{"/libraries?search=jquery&fields=filetype+VERSION&fields=objectid,+sri", one(short[:len(short)-1] + `,"version":"3.7.1","fileType":"js","objectID":"jquery","sri":"` + sri("min 3.7.1") + `"}`)},
		{"/libraries?search=jquery&search=bare", one(short)},
		{"/libraries?search=jquery&limit=0", one(short)},
		{"/libraries?search=jquery&limit=99999999999999999999999", one(short)},
		{"/libraries?search=jquery&limit=", one(short)},
		{"/libraries?search=jquery&output=human", one(short)},
		{"/libraries?search=jquery;&fields=name", one(short)},
		{"/libraries?search=zzzzqqqq", `{"results":[],"total":0,"available":0}`},
		{"/libraries?search=hidden", `{"results":[],"total":0,"available":0}`},
		{"/libraries?limit=1", `{"results":[{"name":"bare","latest":null}],"total":1,"available":7}`},
		{"/libraries?limit=001&search=", `{"results":[{"name":"bare","latest":null}],"total":1,"available":7}`},
		{"/libraries?limit=1&limit=x&search=+", `{"results":[{"name":"bare","latest":null}],"total":1,"available":7}`},
	} {
		if got := s.get(tt.target); got.status != 200 || got.body != tt.want {
			t.Errorf("%s: %d\n got %s\nwant %s", tt.target, got.status, got.body, tt.want)
		}
	}
	type libraries struct {
		Results          []map[string]any
		Total, Available int
	}
	all := decode[libraries](t, s.get("/libraries?fields=version"))
	var names []string
	for _, r := range all.Results {
		names = append(names, r["name"].(string))
		if len(r) != 3 {
			t.Errorf("a result has %v", r)
		}
	}
	if !slices.Equal(names, []string{"bare", "font-awesome", "gone", "hidden", "jquery", "mainless", "odd"}) || all.Total != 7 || all.Available != 7 {
		t.Errorf("all are %v, %d of %d", names, all.Total, all.Available)
	}
	for _, query := range []string{"font%20awesome", "fontawesome", "font-awesome", "font", "fnot-awesome"} {
		if got := decode[libraries](t, s.get("/libraries?search="+query)); got.Available == 0 || got.Results[0]["name"] != "font-awesome" {
			t.Errorf("%s finds %v", query, got)
		}
	}
	for fields, found := range map[string]bool{
		"description": true, "DESCRIPTION": true, "name": false, "keywords,filename": false, "name+description": true, "*": true,
		"unknown": true, "": true, "github.repo": false, "name&search_fields=description": true, "unknown,name": false,
	} {
		if got := decode[libraries](t, s.get("/libraries?search=icons&search_fields="+fields)); (got.Available == 1) != found {
			t.Errorf("in %s finds %v", fields, got)
		}
	}
}

func TestLongSearch(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{strings.Repeat("a", 512), strings.Repeat("a", 512)},
		{strings.Repeat("a", 513), strings.Repeat("a", 512)},
		{strings.Repeat("a", 511) + "é", strings.Repeat("a", 511)},
		{strings.Repeat("a", 510) + "é", strings.Repeat("a", 510) + "é"},
		{strings.Repeat("a", 509) + "😀", strings.Repeat("a", 509)},
		{"", ""},
	} {
		equal(t, "cut", text.Cut(tt.text, maxSearch), tt.want)
	}
	s := newService(t)
	if got := s.get("/libraries?search=" + strings.Repeat("%C3%A9", 600)); got.status != 200 {
		t.Errorf("a long search: %d", got.status)
	}
}

func TestBadRequests(t *testing.T) {
	s := newService(t)
	for _, tt := range []struct {
		target string
		status int
	}{
		{"/libraries?limit=-1", 400}, {"/libraries?limit=1.5", 400}, {"/libraries?limit=x", 400}, {"/libraries?limit=%2B1", 400}, {"/libraries?limit=+1", 400},
		{"/libraries?limit=0x10", 400}, {"/libraries?limit=1e3", 400}, {"/libraries?limit=%D9%A1", 400}, {"/libraries?limit=x&search=jquery", 400},
		{"/libraries?search=%ff", 400}, {"/libraries?search=%", 400}, {"/libraries?search=%zz", 400}, {"/libraries?%ff=1", 400}, {"/libraries/jquery?fields=%c3", 400},
		{"/stats?fields=%f", 400}, {"/whitelist?%", 400}, {"/packages?%zz", 400}, {"/libraries/jquery/3.7.1?a=%80", 400},
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
