package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/logs"
)

// TestModulesRoute holds which import map a request gets, with what integrity, and which error if there is none.
func TestModulesRoute(t *testing.T) {
	shelf := testkit.NewShelf(t)
	publish := func(name, version string, about *logs.About) {
		shelf.Register(name, `{"name":"`+name+`","description":"A library.","keywords":["a"],"repository":{"type":"git","url":"https://git.example/a.git"},`+
			`"autoupdate":{"source":"npm","target":"`+name+`","fileMap":[{"basePath":"","files":["*"]}],"modules":true}}`)
		shelf.PublishAbout(name, version, "esm/index.mjs", map[string]string{"esm/index.mjs": "export{}", "esm/client.mjs": name + version}, about)
	}
	publish("ui", "19.0.0", &logs.About{Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs"}}})
	publish("ui-dom", "19.0.0", &logs.About{Peers: map[string]string{"ui": "^19.0.0"}, Modules: &logs.Modules{Program: "esbuild", Subpaths: map[string]string{".": "esm/index.mjs", "./client": "esm/client.mjs"},
		Skipped: map[string]string{"./server": "server.js imports stream"}, Imports: map[string][]string{"esm/client.mjs": {"ui", "gone"}}}})
	publish("failed", "1.0.0", &logs.About{Modules: &logs.Modules{Program: "esbuild", Problem: "index.js imports fs"}})
	publish("without", "1.0.0", nil)
	s := serviceOf(t, shelf, func(o *PublicOptions) { o.Renderer = testkit.Renderer(t, shelf.Store) })
	const client = assetBase + "/ajax/libs/ui-dom/19.0.0/esm/client.mjs"
	for target, want := range map[string]struct {
		status  int
		imports string // names and a part of the problems, or a part of the message
	}{
		"ui-dom/modules/19.0.0?subpath=./client":           {200, `ui ui-dom/client: "gone", which is not here`},
		"ui-dom/modules/19.0.0":                            {200, `ui ui-dom ui-dom/client: "gone"`},
		"ui-dom/modules/19.0.0?subpath=.&subpath=./client": {200, "ui ui-dom ui-dom/client: "},
		"ui/modules/19.0.0":                                {200, "ui: "},
		"ui-dom/modules/19.0.0?subpath=./server":           {404, "server.js imports stream"},
		"ui-dom/modules/19.0.0?subpath=./other":            {404, "no module was built for ./other; the modules are . ./client"},
		"failed/modules/1.0.0":                             {404, "failed 1.0.0 has no built modules: index.js imports fs"},
		"without/modules/1.0.0":                            {404, `\"modules\" was not in its package JSON`},
		"ui/modules/1.0.0":                                 {404, "ersion not found"},
		"nothing/modules/1.0.0":                            {404, "ibrary not found"},
	} {
		got := s.get("https://api.example/packages/" + target)
		for start := time.Now(); got.status == http.StatusServiceUnavailable && time.Since(start) < time.Minute; { // until a worker has read the ranges of versions
			time.Sleep(10 * time.Millisecond)
			got = s.get("https://api.example/packages/" + target)
		}
		text := got.body
		if got.status == 200 {
			g := decode[library.Graph](t, got)
			var names []string
			for name := range g.Imports {
				names = append(names, name)
				if g.Integrity[g.Imports[name]] == "" {
					t.Errorf("%s: %s has no integrity", target, name)
				}
			}
			slices.Sort(names)
			text = strings.Join(names, " ") + ": " + strings.Join(g.Problems, " ")
			if f, _ := mustRelease(t, s, "ui-dom").Find("esm/client.mjs"); g.Imports["ui-dom/client"] != "" && (g.Imports["ui-dom/client"] != client || g.Integrity[client] != f.SRI.String()) {
				t.Errorf("%s: %+v", target, g)
			}
		}
		first, second, _ := strings.Cut(want.imports, ": ")
		if got.status != want.status || !strings.Contains(text, first) || !strings.Contains(text, second) || got.get("Access-Control-Allow-Origin") != "*" || got.get("Cache-Control") == "" {
			t.Errorf("%s: %d %s, want %+v", target, got.status, text, want)
		}
	}
}

// mustRelease returns the release 19.0.0 of a library.
func mustRelease(t *testing.T, s *service, name string) *library.Release {
	t.Helper()
	r, err := s.index.Release(t.Context(), name, "19.0.0")
	if err != nil {
		t.Fatal(err)
	}
	return r
}
