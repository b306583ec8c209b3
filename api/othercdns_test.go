package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

// TestOtherCDNAddresses tests that exact addresses of npm files redirect to the same bytes here, and that others say why they do not.
func TestOtherCDNAddresses(t *testing.T) {
	shelf := testkit.NewShelf(t)
	register := func(name, target, fileMap string) {
		shelf.Source = logs.Source{Type: "npm", Name: target}
		shelf.Register(name, `{"name":"`+name+`","description":"A library.","keywords":["a"],"repository":{"type":"git","url":"https://git.example/a.git"},`+
			`"autoupdate":{"source":"npm","target":"`+target+`","fileMap":[`+fileMap+`]}}`)
	}
	const dist, all = `{"basePath":"dist","files":["**/*.js"]}`, `{"basePath":"","files":["**/*.js"]}`
	register("scoped", "@org/scoped", dist)
	shelf.Publish("scoped", "1.0.0", "a.js", map[string]string{"a.js": "a", "sub/b c.js": "b"})
	register("twice", "twice", dist+`,{"basePath":"src","files":["a.js"]}`)
	shelf.Publish("twice", "1.0.0", "a.js", map[string]string{"a.js": "a", "b.js": "b"})
	register("moved", "moved", dist)
	shelf.Publish("moved", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	register("moved", "moved", all)
	shelf.Publish("moved", "2.0.0", "dist/a.js", map[string]string{"dist/a.js": "a"})
	s := serviceOf(t, shelf, func(o *PublicOptions) { o.OtherCDNURLs = true })
	for _, tt := range []struct{ address, location, message string }{
		{"@org/scoped@1.0.0/dist/a.js", "scoped/1.0.0/a.js", ""},
		{"%40org/scoped@1.0.0/dist/sub/b%20c.js", "scoped/1.0.0/sub/b%20c.js", ""},
		{"@org/scoped@1.0.0/a.js", "", "not published here"},
		{"@org/scoped@1.0.0/dist/none.js", "", "not published here"},
		{"@org/scoped@1/dist/a.js", "", "/npm/@org/scoped@1.0.0/dist/a.js"},
		{"@org/scoped@latest/dist/a.js", "", "/npm/@org/scoped@1.0.0/dist/a.js"},
		{"@org/scoped/dist/a.js", "", "/npm/@org/scoped@1.0.0/dist/a.js"},
		{"@org/scoped@^1.0.0/dist/a.js", "", "/npm/@org/scoped@1.0.0/dist/a.js"},
		{"twice@1.0.0/dist/b.js", "twice/1.0.0/b.js", ""},
		{"twice@1.0.0/dist/a.js", "", "not published here"}, // or is it that of src?
		{"moved@1.0.0/dist/a.js", "moved/1.0.0/a.js", ""},
		{"moved@2.0.0/dist/a.js", "moved/2.0.0/dist/a.js", ""},
		{"unknown@1.0.0/a.js", "", "No library here"},
		{"moved@1.0.0", "", "has the form"},
		{"moved@1.0.0/../a.js", "", "has the form"},
		{"", "", "has the form"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := serve(s.handler, newRequest(method, "https://assets.example"+NPMPrefix+tt.address, "Accept: application/json"))
			if got.get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%s has no CORS header", tt.address)
			}
			want := http.StatusNotFound
			if tt.location != "" {
				want = http.StatusFound
				tt.message = ""
				if location := assetBase + "/ajax/libs/" + tt.location; got.get("Location") != location {
					t.Errorf("%s leads to %s, want %s", tt.address, got.get("Location"), location)
				}
			}
			if got.status != want || method == http.MethodGet && !strings.Contains(got.body, tt.message) {
				t.Errorf("%s: %d %s, want %d %s", tt.address, got.status, got.body, want, tt.message)
			}
		}
	}
	off := serviceOf(t, shelf)
	if got := serve(off.handler, newRequest("GET", "https://assets.example/npm/moved@2.0.0/dist/a.js")); got.status != http.StatusNotFound {
		t.Errorf("without the option: %d", got.status)
	}
}
