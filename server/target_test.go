package server

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// The request scripts in testdata/paths.txt have the table; this has what holds
// for every path.
func FuzzParseTarget(f *testing.F) {
	for _, path := range []string{
		"/ajax/libs/demo/1.0.0/demo.js", "/ajax/libs/demo/1.0.0/a%20b%2Bc", "/ajax/libs/demo/1/%2e%2e/x", "/ajax/libs/a%2Fb/1/x",
		"/ajax/libs/demo/1.0.0//x", "/ajax/libs/demo/1.0.0/x%00", "/ajax/libs/demo/1.0.0/%5c", "/ajax/libs/demo/1.0.0/%", "/ajax/libs/../../etc/passwd", "/", "",
		"/ajax/libs/demo/1.0.0/\xff", "/ajax/libs/%2e/1/x", "/ajax/libs/demo/1.0.0/%252e%252e/x",
	} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, escaped string) {
		got, err := parseTarget(escaped)
		if err != nil {
			if err != errNoFile && err != errMalformed {
				t.Fatalf("unknown error %v", err)
			}
			return
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil || decoded != Prefix+got.key {
			t.Fatalf("the key %q is not the path decoded once, %q (%v)", got.key, decoded, err)
		}
		if got.key != got.pkg+"/"+got.version+"/"+got.path {
			t.Fatalf("the key of %+v has other parts", got)
		}
		if strings.ContainsAny(got.key, "\x00\\") || strings.ContainsAny(got.pkg+got.version, "/") {
			t.Fatalf("%+v holds what it must not", got)
		}
		for _, segment := range strings.Split(got.key, "/") {
			if segment == "" || segment == "." || segment == ".." {
				t.Fatalf("%q has the segment %q", got.key, segment)
			}
		}
	})
}

func BenchmarkParseTarget(b *testing.B) {
	for name, path := range map[string]string{"plain": Prefix + "jquery/3.7.1/jquery.min.js", "deep": Prefix + "highlight.js/11.9.0/languages/es/javascript.min.js", "encoded": Prefix + "demo/1.0.0/a%20b%2Bc"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := parseTarget(path); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func TestRoute(t *testing.T) {
	saw := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.Write([]byte(name + " " + r.RequestURI)) })
	}
	h := Route(saw("assets"), saw("rest"))
	for target, want := range map[string]string{
		"/ajax/libs/p/1/a.js":          "assets",
		"/ajax/libs/p/1/../../x":       "assets",
		"/ajax/libs/../../x":           "assets",
		"/ajax/libs//p":                "assets",
		"/ajax/libs/p/1/%2e%2e/%2fa.b": "assets",
		"/%61jax/libs/p/1/a.js":        "assets",
		"/ajax%2Flibs/p/1/a.js":        "assets",
		"/ajax/libs":                   "assets",
		"/ajax":                        "assets",
		"/ajax//libs/p":                "assets",
		"//ajax/libs/p":                "assets",
		"/x/../ajax/libs/p":            "assets",
		"/x/%2e%2e/ajax/libs/p":        "assets",
		"/x/ajax/libs/p":               "rest",
		"/ajaxlibs":                    "rest",
		"/Ajax/libs/p":                 "rest",
		"/":                            "rest",
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if got := w.Body.String(); got != want+" "+target {
			t.Errorf("%s: %q, want %q", target, got, want+" "+target)
		}
	}
}

// The path that is cut is the one that the client wrote, whatever net/http and
// net/url think of it.
func FuzzRawPath(f *testing.F) {
	for _, target := range []string{
		"/ajax/libs/a%2F1.0.0/\"x", "/ajax/libs/a/1/%2f<>", "/%61jax/libs/a/1/x", "//ajax/libs", "/ajax/libs/a/1/\xff%2F", "/a?b%2Fc", "/a#b%2Fc", "/ajax/libs/a/1/{}|^`",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		if !strings.HasPrefix(target, "/") || strings.ContainsAny(target, " \r\n") {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n")))
		if err != nil {
			return
		}
		want, _, _ := strings.Cut(target, "?")
		if got := rawPath(r.URL); got != want {
			t.Fatalf("the path of %q is %q, want %q", target, got, want)
		}
		if _, err := parseTarget(want); err == nil && !resemblesAsset(r.URL.Path) {
			t.Fatalf("%q names a file and is not routed to assets", target)
		}
	})
}
