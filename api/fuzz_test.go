package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"
)

// answersProperly asks for what a stranger wrote.
func answersProperly(t *testing.T, h http.Handler, r *http.Request) {
	got := serve(h, r)
	if got.status >= 500 {
		t.Errorf("%s: %d %s", r.URL, got.status, got.body)
	}
	if !utf8.ValidString(got.body) && strings.HasPrefix(got.get("Content-Type"), "application/json") {
		t.Errorf("%s: the answer is not UTF-8: %q", r.URL, got.body)
	}
	for _, problem := range problems(r, got) {
		t.Errorf("%s: %s", r.URL, problem)
	}
}

func FuzzQuery(f *testing.F) {
	for _, q := range []string{
		"", "fields=*", "fields=name,version+files%20sri&fields=ASSETS", "search=font awesome&limit=2", "search=%ff", "search_fields=name;description&search=a%00b",
		"limit=18446744073709551616", "limit=-1", "%", "&&==;;", "output=human", "search=" + strings.Repeat("a ", 300), "search=%F0%9F%98%80", "search=*&fields=,,+,",
	} {
		for i := range uint8(8) {
			f.Add(i, q)
		}
	}
	s := newService(f)
	paths := []string{"/libraries", "/libraries/jquery", "/libraries/jquery/3.7.1", "/stats", "/whitelist", "/packages/gone/states", "/packages/jquery/all", "/nowhere"}
	f.Fuzz(func(t *testing.T, path uint8, query string) {
		r := newRequest("GET", paths[int(path)%len(paths)])
		r.URL.RawQuery = query
		answersProperly(t, s.handler, r)
	})
}

func FuzzPath(f *testing.F) {
	for _, p := range []string{
		"/", "//", "/libraries/jquery", "/libraries/jquery/", "/libraries/..%2f", "//libraries", "/libraries/jquery/%00", "/libraries/%2541", "/libraries/odd/1.0.0+build.1",
		"/packages/jquery/versions/3.7.1", "/packages//sris/", "/packages/jquery/all/", `/libraries/a"b%2Fc`, "/%6cibraries", "/download/../x", "/library/%zz", "/libraries/:x/*y", "/favicon.ico/",
	} {
		f.Add(p)
	}
	s := newService(f)
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || u.Scheme != "" || strings.Trim(u.Path, "/") == "error" {
			return // net/http refuses it by itself, or the answer is to be a 500
		}
		r := newRequest("GET", "/")
		r.URL = u
		answersProperly(t, s.handler, r)
	})
}
