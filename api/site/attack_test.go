package site

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/logs"
)

// poison are headers and hosts by which clients have made caches keep something for others.
var poison = []string{
	"X-Forwarded-Host", "p0ison.example", "X-Forwarded-Proto", "gopher", "X-Forwarded-Scheme", "javascript", "X-Forwarded-Port", "666", "X-Forwarded-Prefix", "/p0ison",
	"X-Forwarded-For", "p0ison.example", "Forwarded", "host=p0ison.example;proto=javascript", "X-Host", "p0ison.example", "X-Original-Host", "p0ison.example", "X-Original-URL", "/p0ison", "X-Rewrite-URL", "/p0ison",
	"X-HTTP-Method-Override", "POST", "X-HTTP-Host-Override", "p0ison.example", "Origin", "https://p0ison.example", "Referer", "https://p0ison.example/", "Accept", "p0ison/p0ison",
	"Accept-Language", "p0ison", "Cookie", "p0ison=1", "Authorization", "Basic p0ison", "User-Agent", "p0ison", "Range", "bytes=0-1", "If-Range", "p0ison", "If-None-Match", `"p0ison"`,
	"If-Modified-Since", "Mon, 01 Jan 2096 00:00:00 GMT", "Content-Type", "text/p0ison", "TE", "trailers, p0ison", "Upgrade", "p0ison", "Purpose", "prefetch", "Save-Data", "on", "CF-Connecting-IP", "p0ison.example", "True-Client-IP", "p0ison",
}

// TestCachePoisoning holds that nothing but the path, the known parameters and the coding decides what other clients get: one sends each header that has poisoned
// caches, before a page is kept and after it.
func TestCachePoisoning(t *testing.T) {
	for name, bases := range map[string][2]string{"with bases": {"https://site.example", "https://cdn.example"}, "without": {}} {
		site := newSite(t, filled(t), func(o *Options) { o.SiteBase, o.AssetBase = bases[0], bases[1] })
		for _, target := range []string{"/library/pickle", "/library/pickle/1.0.0", "/compare/pickle?from=1.0.0&to=2.0.0", "/files/pickle/1.0.0/pickle.js", "/history/pickle", "/history/pickle/1.0.0", "/recipe/pickle/1.0.0", "/", "/search?q=pickle", "/about"} {
			plain := func() (string, http.Header) {
				w := get(t, site, target)
				w.Header().Del("Date")
				return w.Body.String(), w.Header()
			}
			for i := 0; i < len(poison); i += 2 {
				get(t, site, target, poison[i], poison[i+1])
			}
			for _, host := range []string{"p0ison.example", "p0ison.example:99", "larder.example:99", "LARDER.example"} {
				r := httptest.NewRequest("GET", target, nil)
				r.Host = host
				site.ServeHTTP(httptest.NewRecorder(), r)
			}
			body, header := plain()
			if strings.Contains(body+fmt.Sprint(header), "p0ison") || strings.Contains(body, "larder.example:99") {
				t.Errorf("%s, %s: another client's words come back\n%v", name, target, header)
			}
			for i := 0; i < len(poison); i += 2 { // what is kept by now stays so
				get(t, site, target, poison[i], poison[i+1])
			}
			if again, _ := plain(); again != body {
				t.Errorf("%s, %s: the page changes with what others send", name, target)
			}
			if keeps := !strings.Contains(header.Get("Cache-Control"), "no-store"); keeps != (bases[0] != "") {
				t.Errorf("%s, %s: Cache-Control %q", name, target, header.Get("Cache-Control"))
			}
		}
	}
}

// TestLyingMirror has a release whose manifest says what no bot of an honest Larder writes: all that a page shows of it is bounded and escaped.
func TestLyingMirror(t *testing.T) {
	shelf := filled(t)
	about := &logs.About{Readme: strings.Repeat("|"+strings.Repeat("a|", 500)+"\n"+hostile+"\n", 500), ReadmeFile: hostile + ".md", Dependencies: map[string]string{}, Peers: map[string]string{}}
	for n := range 20_000 {
		about.Dependencies[fmt.Sprint(hostile, n)] = strings.Repeat("^1 || ", 100) + fmt.Sprint(n)
		about.Peers[fmt.Sprint("pickle", n)] = hostile
	}
	shelf.PublishAbout("pickle", "9.0.0", hostile+".js", map[string]string{hostile + ".js": hostile, "pickle.js": "1"}, about)
	shelf.PublishAbout("preserve", "9.0.0", "a.md", map[string]string{"a.md": "1"}, &logs.About{Dependencies: map[string]string{"@jars/pickle": strings.Repeat("1 || ", 10_000), "pickle": hostile}})
	site := newSite(t, shelf, nil)
	for _, target := range []string{"/library/pickle", "/recipe/pickle/9.0.0?file=pickle.js", "/history/pickle/9.0.0", "/compare/pickle?from=2.0.0&to=9.0.0", "/library/preserve"} {
		w := get(t, site, target)
		if w.Code != 200 || w.Body.Len() > 1<<20 {
			t.Errorf("%s: %d with %d bytes", target, w.Code, w.Body.Len())
		}
		if strings.Contains(w.Body.String(), "<script>alert") || strings.Contains(w.Body.String(), "onerror=alert(1)>") && strings.Contains(w.Body.String(), "<img") {
			t.Errorf("%s has markup of the mirror", target)
		}
	}
	cost := testing.AllocsPerRun(3, func() {
		site.cachedPages.Remove(func(pageKey) bool { return true })
		get(t, site, "/library/pickle")
	})
	if cost > 10_000 {
		t.Errorf("the page of a release with 40,000 dependencies takes %v allocations", cost)
	}
}

// TestHostileComparison has addresses of comparisons that no page links.
func TestHostileComparison(t *testing.T) {
	site := newSite(t, filled(t), nil)
	for _, query := range []string{
		"from=" + url.QueryEscape(hostile) + "&to=2.0.0", "from=1.0.0&to=" + strings.Repeat("9", 4000), "from=1.0.0&to=2.0.0&file=" + url.QueryEscape(hostile), "from=1.0.0&to=2.0.0&file=..%2F..%2Fetc%2Fpasswd",
		"from=1.0.0&to=2.0.0&page=999999999999", "from=1.0.0&to=2.0.0&page=-1", "from=..%2F1.0.0&to=2.0.0", "from=%00&to=%ff", "from=1.0.0&from=2.0.0&to=1.0.0", "from=0.9.0&to=2.0.0", "from=3.0.0&to=2.0.0",
		"from=1.0.0&to=2.0.0&file=pickle.js&page=7", "from=2.0.0&to=2.0.0", "to=" + strings.Repeat("%F0%9F%A5%92", 500),
	} {
		w := get(t, site, "/compare/pickle?"+query)
		if w.Code == 500 || w.Body.Len() > 256<<10 || strings.Contains(w.Body.String(), "<script>alert") {
			t.Errorf("%.80s: %d with %d bytes", query, w.Code, w.Body.Len())
		}
	}
	if n := site.cachedPages.Len(); n > 6 {
		t.Errorf("%d pages of made-up addresses are kept", n)
	}
}
