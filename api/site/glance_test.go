package site

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
)

// TestGlance answers at the top of a page what people ask of a release.
func TestGlance(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("jar", `{"name":"jar","filename":"jar.js","description":"d","keywords":["k"],"license":"MIT","repository":{"type":"git","url":"https://git.example/jar.git"},`+
		`"autoupdate":{"source":"npm","target":"@glass/jar","fileMap":[{"basePath":"","files":["*"]}]}}`)
	files := map[string]string{"jar.js": "long", "jar.min.js": "min", "jar.css": "c", "jar.min.css": "m", "lid.js": "lid", "lid.css": "lid", "other.js": "o"}
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0", "2.0.0-beta.1"} {
		shelf.Publish("jar", version, "jar.js", files)
	}
	shelf.Register("lidless", `{"name":"lidless","description":"d","keywords":["k"],"license":"MIT","repository":{"type":"git","url":"https://git.example/lidless.git"}}`)
	shelf.Publish("lidless", "1.2.0", "", map[string]string{"a.js": "a"})
	osv := filepath.Join(t.TempDir(), "osv.json")
	if err := os.WriteFile(osv, []byte(`{"id":"GHSA-1","summary":"It leaks.","affected":[{"package":{"ecosystem":"npm","name":"@glass/jar"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"1.1.0"}]}]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	advisories, err := library.OpenAdvisories(osv, nil)
	if err != nil {
		t.Fatal(err)
	}
	index := shelf.Index(library.Options{Deprecations: func(kvstore.Reader, string) (map[string]string, error) {
		return map[string]string{"1.2.0": "broken"}, nil
	}})
	checked := newSite(t, shelf, func(o *Options) { o.Advisories, o.Library = advisories, index })
	unchecked := newSite(t, shelf, func(o *Options) { o.Library = index })
	mirror := newSite(t, shelf, func(o *Options) { o.Advisories = advisories })
	later := newSite(t, shelf, func(o *Options) {
		o.Advisories, o.Library = library.FollowAdvisories(filepath.Join(t.TempDir(), "later.json"), nil), index
	})
	for _, test := range []struct {
		site   *Site
		target string
		want   []string
	}{
		{checked, "/library/jar/1.0.0", []string{"<dd>MIT</dd>", `<dd><a href="#known">1 known</a></dd>`, "<dt>Deprecated</dt><dd>no</dd>", `<dt>Newest safe version</dt><dd><a href="/library/jar/1.1.0">1.1.0</a></dd>`,
			`<option value="1.2.0">1.2.0 (deprecated)`, `<option value="1.0.0" selected>1.0.0 (vulnerable)`, "<option>1.1.0</option>"}},
		{checked, "/library/jar/1.1.0", []string{"<dd>none known</dd>", "<dt>Newest safe version</dt><dd>this one</dd>", "Use <span class=\"path\">jar.min.js</span>"}},
		{checked, "/library/jar/1.2.0", []string{"<dt>Deprecated</dt><dd>yes</dd>", "broken", `href="/library/jar/1.1.0">1.1.0</a></dd>`}},
		{unchecked, "/library/jar/1.1.0", []string{"<dd>not checked</dd>", "<dt>Newest version</dt><dd>this one</dd>", "<dt>Provenance</dt><dd>not checked <span class=\"hint\">not an npm release</span></dd>"}},
		{mirror, "/library/jar/1.1.0", []string{"<dt>Deprecated</dt><dd>not checked</dd>", "<dt>Newest version</dt>"}},
		{later, "/library/jar/1.1.0", []string{"<dd>not checked</dd>"}},
		{checked, "/search?q=jar", []string{`<span class="state state-failed">deprecated</span>`, "<li>3 B</li>", "/jar.min.js", "<li>no known vulnerabilities</li><li>provenance not checked</li>", `<li>newest safe version: <a href="/library/jar/1.1.0">1.1.0</a></li>`}},
		{unchecked, "/search?q=jar", []string{"<li>vulnerabilities and provenance not checked</li>"}},
		{checked, "/search?q=lidless", []string{`<span class="state state-failed">deprecated</span>`}}, // it has no main file
		{unchecked, "/library/jar/1.1.0?file=jar.js", []string{"Use <span class=\"path\">jar.js</span>"}},
	} {
		body := get(t, test.site, test.target).Body.String()
		for _, want := range test.want {
			if !strings.Contains(body, want) {
				t.Errorf("%s lacks %s", test.target, want)
			}
		}
		if strings.HasPrefix(test.target, "/library") && strings.Index(body, `id="files"`) > strings.Index(body, `id="about-title"`) {
			t.Errorf("%s has the files behind what it says about the library", test.target)
		}
	}
}

// TestUpgradesOnPage tests that the page and `larder info` say what a browser downloads that has the file of a version before.
func TestUpgradesOnPage(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("lib", `{"name":"lib","filename":"lib.js","description":"d","keywords":["k"],"license":"MIT","repository":{"type":"git","url":"https://git.example/lib.git"},"autoupdate":{"source":"npm","target":"lib","fileMap":[{"basePath":"","files":["*"]}]}}`)
	for _, version := range []string{"1.0.0", "1.1.0", "1.1.1"} {
		shelf.Publish("lib", version, "lib.js", map[string]string{"lib.js": testkit.VersionedScript(version), "LICENSE": "MIT"})
	}
	text, deltas := testkit.VersionedScript("1.1.1"), map[string]int64{}
	for _, before := range []string{"1.0.0", "1.1.0", "1.1.1"} { // the last one is the same file, not of a version before
		delta, err := coding.EncodeDelta([]byte(testkit.VersionedScript(before)), []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if stored, err := shelf.Store.PutDelta(kvstore.Sum([]byte(text)), delta); err != nil || !stored {
			t.Fatal(stored, err)
		}
		deltas[before] = int64(len(delta))
	}
	index := shelf.Index(library.Options{Dictionaries: true})
	s := newSite(t, shelf, func(o *Options) { o.Library = index })
	want := fmt.Sprintf("<dt>Upgrade</dt><dd>%d B <span class=\"hint\">from 1.1.0</span> %d B <span class=\"hint\">from 1.0.0</span></dd>", deltas["1.1.0"], deltas["1.0.0"])
	if body := get(t, s, "/library/lib/1.1.1").Body.String(); !strings.Contains(body, want) {
		t.Errorf("the page lacks %s", want)
	}
	if body := get(t, s, "/library/lib/1.1.0").Body.String(); strings.Contains(body, "<dt>Upgrade</dt>") {
		t.Error("the page of a version without deltas has an upgrade")
	}
	if body := get(t, newSite(t, shelf, nil), "/library/lib/1.1.1").Body.String(); strings.Contains(body, "<dt>Upgrade</dt>") {
		t.Error("the page has an upgrade while the server sends no deltas")
	}
	d := library.Directory{Dictionaries: true, Store: shelf.Store, Index: func() (*library.Index, error) { return index, nil }}
	info, err := d.Info(t.Context(), library.InfoRequest{Library: "lib", Version: "1.1.1"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(info.Release.Files[1].Upgrades), fmt.Sprint([]library.Upgrade{{From: "1.1.0", Bytes: deltas["1.1.0"]}, {From: "1.0.0", Bytes: deltas["1.0.0"]}}); got != want || info.Release.Files[0].Upgrades != nil {
		t.Errorf("info has the upgrades %s, want %s", got, want)
	}
}

// TestCompanion finds the style sheet of a script, and the script of a style sheet.
func TestCompanion(t *testing.T) {
	release := func(name string, paths ...string) *library.Release {
		r := &library.Release{Library: name}
		for _, p := range paths {
			r.Files = append(r.Files, views.PublishedFile{Path: p})
		}
		return r
	}
	bootstrap := release("bootstrap", "css/bootstrap-grid.min.css", "css/bootstrap.css", "css/bootstrap.min.css", "css/bootstrap.rtl.min.css", "js/bootstrap.bundle.min.js", "js/bootstrap.min.js")
	for _, test := range []struct {
		release      *library.Release
		chosen, want string
	}{
		{bootstrap, "js/bootstrap.min.js", "css/bootstrap.min.css"},
		{bootstrap, "js/bootstrap.bundle.min.js", "css/bootstrap.min.css"},
		{bootstrap, "css/bootstrap.min.css", "js/bootstrap.bundle.min.js"},
		{release("Swiper", "swiper-bundle.css", "swiper-bundle.min.css", "swiper-bundle.min.js", "swiper.min.css"), "swiper-bundle.min.js", "swiper-bundle.min.css"},
		{release("leaflet", "images/marker.png", "leaflet.css", "leaflet.js"), "leaflet.js", "leaflet.css"},
		{release("jquery", "jquery.js", "theme.css"), "jquery.js", ""},
	} {
		found, _ := companionOf(test.release, views.PublishedFile{Path: test.chosen})
		if found.Path != test.want {
			t.Errorf("of %s: %q, want %q", test.chosen, found.Path, test.want)
		}
	}
}
