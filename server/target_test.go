package server

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/larder-cdn/larder/internal/text"
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
			if err != errNoFile && err != text.ErrMalformedPath || got != (target{}) {
				t.Fatalf("%+v: unknown error %v", got, err)
			}
			return
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil || decoded != Prefix+got.key || got.key != got.pkg+"/"+got.version+"/"+got.path {
			t.Fatalf("%+v is not the path decoded once, %q (%v)", got, decoded, err)
		}
		if !resemblesAsset(decoded) {
			t.Fatalf("%q names a file and is not routed to assets", escaped)
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
