package library_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

const chartJSON = `{
  "name": "Chart.js", "filename": "chart.min.js", "description": "Charts on a canvas.", "keywords": ["chart", "canvas"],
  "homepage": "https://charts.example/", "license": "MIT",
  "repository": {"type": "git", "url": "git+https://github.com/chartjs/Chart.js.git"},
  "authors": [{"name": "Chart people", "email": "chart@example.com"}],
  "autoupdate": {"source": "npm", "target": "chart.js", "fileMap": [{"basePath": "dist", "files": ["*"]}]}
}`

const plainJSON = `{
  "name": "plain", "description": "No more than it takes.", "keywords": ["plain"],
  "repository": {"type": "git", "url": "https://git.example/plain.git"}
}`

const hiddenJSON = `{
  "name": "hidden", "description": "Not for search.", "keywords": ["hidden"],
  "repository": {"type": "git", "url": "https://git.example/hidden.git"},
  "autoupdate": {"source": "npm", "target": "hidden", "fileMap": [{"basePath": "", "files": ["*"]}], "excludeFromSearch": true}
}`

func names(libraries []*library.Library) []string {
	names := []string{}
	for _, l := range libraries {
		names = append(names, l.Name)
	}
	return names
}

func TestLibrary(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	shelf.Register("Chart.js", chartJSON)
	shelf.Publish("Chart.js", "2.0.0-rc.1", "chart.min.js", map[string]string{"chart.min.js": "next"})
	shelf.Publish("Chart.js", "1.9.0", "chart.js", map[string]string{"chart.js": "nine"})
	shelf.Publish("Chart.js", "1.10.0", "chart.min.js", map[string]string{"chart.min.js": "ten", "chart.js": "ten, at length"})
	x := shelf.Index(library.Options{})
	listing, err := x.Listing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(listing.Libraries), []string{"Chart.js", "plain"}; !reflect.DeepEqual(got, want) {
		t.Errorf("libraries %q, want %q", got, want)
	}
	chart := listing.Library("Chart.js")
	if chart.Version != "1.10.0" || chart.Versions != 3 || chart.Filename != "chart.min.js" || chart.SRI != logs.SumSRI([]byte("ten")).String() || chart.FileType() != "js" {
		t.Errorf("Chart.js is %+v", chart)
	}
	if got := chart.GitHub(); got == nil || *got != (library.GitHub{User: "chartjs", Repo: "Chart.js"}) {
		t.Errorf("at GitHub it is %+v", got)
	}
	if got, want := chart.AlternativeNames(), []string{"chartjs", "chart"}; !reflect.DeepEqual(got, want) {
		t.Errorf("alternative names %q, want %q", got, want)
	}
	plain := listing.Library("plain")
	if plain.HasFile() || plain.Autoupdate != nil || plain.GitHub() != nil || len(plain.AlternativeNames()) != 0 {
		t.Errorf("plain is %+v", plain)
	}
	if listing.Library("chart.js") != nil {
		t.Error("names are found in another case")
	}

	versions, err := x.Versions("Chart.js")
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, v := range versions {
		order = append(order, v.Version)
	}
	if want := []string{"2.0.0-rc.1", "1.10.0", "1.9.0"}; !reflect.DeepEqual(order, want) {
		t.Errorf("versions %q, want %q", order, want)
	}

	release, err := x.Release(t.Context(), "Chart.js", "1.10.0")
	if err != nil {
		t.Fatal(err)
	}
	file, ok := release.Find("chart.js")
	if !ok || file.Size != int64(len("ten, at length")) || file.SRI != logs.SumSRI([]byte("ten, at length")) || release.Default != "chart.min.js" {
		t.Errorf("release %+v", release)
	}
	if _, ok := release.Find("chart"); ok {
		t.Error("a file is found by a part of its path")
	}
	manifest, err := x.Manifest(release)
	if err != nil || len(manifest.Files) != 2 {
		t.Errorf("manifest %+v, %v", manifest, err)
	}
	if data, err := x.PackageJSON("plain"); err != nil || !strings.Contains(string(data), "No more than it takes") {
		t.Errorf("package JSON %s, %v", data, err)
	}
}

// TestFactsOfLoadedFile holds that facts are about the file that a page loads, not the main file that has a minified form.
func TestFactsOfLoadedFile(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	for _, test := range []struct {
		version, main, want string
		files               map[string]string
	}{
		{"1.0.0", "plain.js", "plain.js", map[string]string{"plain.js": "whole text"}},
		{"2.0.0", "plain.js", "plain.min.js", map[string]string{"plain.js": "whole text", "plain.min.js": "small"}},
		{"3.0.0", "plain.min.js", "plain.min.js", map[string]string{"plain.js": "whole text", "plain.min.js": "small"}},
	} {
		shelf.Publish("plain", test.version, test.main, test.files)
		x := shelf.Index(library.Options{})
		listing, err := x.Listing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l := listing.Library("plain")
		facts, err := x.Facts(l, nil)
		if err != nil {
			t.Fatal(err)
		}
		if content := test.files[test.want]; l.Loaded.Path != test.want || facts.Size != int64(len(content)) || l.Loaded.SRI != logs.SumSRI([]byte(content)) {
			t.Errorf("%s: a page loads %s, the size is %d, want %s", test.version, l.Loaded.Path, facts.Size, test.want)
		}
		if l.Filename != test.main || l.SRI != logs.SumSRI([]byte(test.files[test.main])).String() {
			t.Errorf("%s: the main file is %s with %s", test.version, l.Filename, l.SRI)
		}
	}
}

func TestAbsence(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	shelf.Publish("plain", "1.0.0", "", map[string]string{"a.js": "a"})
	shelf.Withdraw("plain", "1.0.0", "it stole cookies")
	x := shelf.Index(library.Options{})
	for _, tt := range []struct {
		name, version string
		want          error
	}{
		{"nothing", "1.0.0", library.ErrNoLibrary},
		{"", "1.0.0", library.ErrNoLibrary},
		{"plain\x001.0.0", "a.js", library.ErrNoLibrary},
		{"plain", "2.0.0", library.ErrNoVersion},
		{"plain", "", library.ErrNoVersion},
		{"plain", "1.0.0\x00a.js", library.ErrNoVersion},
		{"plain", strings.Repeat("1", 1<<20), library.ErrNoVersion},
	} {
		if _, err := x.Release(t.Context(), tt.name, tt.version); !errors.Is(err, tt.want) {
			t.Errorf("%.20q %.20q: %v, want %v", tt.name, tt.version, err, tt.want)
		}
	}
	var withdrawn *library.WithdrawnError
	if _, err := x.Release(t.Context(), "plain", "1.0.0"); !errors.As(err, &withdrawn) || withdrawn.Reason != "it stole cookies" || withdrawn.Entry != 2 {
		t.Errorf("of a withdrawn version: %v", err)
	}
	l, err := x.Library(t.Context(), "plain")
	if err != nil || l.Version != "" || l.Versions != 0 {
		t.Errorf("with its only version withdrawn it is %+v, %v", l, err)
	}
	if versions, err := x.Versions("plain"); err != nil || len(versions) != 0 {
		t.Errorf("versions %v, %v", versions, err)
	}
	for _, name := range []string{"nothing", "", "plain\x00"} {
		if _, err := x.PackageJSON(name); !errors.Is(err, library.ErrNoLibrary) {
			t.Errorf("package JSON of %q: %v", name, err)
		}
		if states, err := x.States(name); err != nil || len(states) != 0 {
			t.Errorf("states of %q: %v, %v", name, states, err)
		}
	}
}

func TestFollowing(t *testing.T) {
	shelf := testkit.NewShelf(t)
	x := shelf.Index(library.Options{})
	listing := func() *library.Listing {
		t.Helper()
		testkit.Await(t, x, shelf.Log)
		l, err := x.Listing(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	empty := listing()
	if len(empty.Libraries) != 0 {
		t.Errorf("an empty store has %q", names(empty.Libraries))
	}
	shelf.Register("Chart.js", chartJSON)
	first := listing()
	if l := first.Library("Chart.js"); l == nil || l.Version != "" || l.Filename != "chart.min.js" {
		t.Errorf("registered, it is %+v", l)
	}
	shelf.Refuse("Chart.js", "0.1.0", "no files")
	if listing() != first {
		t.Error("the listing changed although nothing of it did")
	}
	shelf.Publish("Chart.js", "1.0.0", "chart.min.js", map[string]string{"chart.min.js": "one"})
	if l := listing().Library("Chart.js"); l.Version != "1.0.0" || l.Versions != 1 {
		t.Errorf("published, it is %+v", l)
	}
	if first.Library("Chart.js").Version != "" {
		t.Error("a listing changed under its reader")
	}
	shelf.Register("Chart.js", strings.Replace(chartJSON, "Charts on", "Graphs on", 1))
	if l := listing().Library("Chart.js"); l.Description != "Graphs on a canvas." {
		t.Errorf("changed, it is %+v", l)
	}
	found, err := x.Search(t.Context(), "graphs", nil)
	if err != nil || len(found) != 1 {
		t.Errorf("search finds %q, %v", names(found), err)
	}
	shelf.Withdraw("Chart.js", "1.0.0", "by mistake")
	if l := listing().Library("Chart.js"); l.Version != "" {
		t.Errorf("withdrawn, it is %+v", l)
	}
}

func TestHidden(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("hidden", hiddenJSON)
	shelf.Publish("hidden", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	x := shelf.Index(library.Options{})
	if found, err := x.Search(t.Context(), "hidden", nil); err != nil || len(found) != 0 {
		t.Errorf("search shows %q, %v", names(found), err)
	}
	if popular, err := x.Popular(t.Context(), 10); err != nil || len(popular) != 0 {
		t.Errorf("among the popular are %q, %v", names(popular), err)
	}
	if _, err := x.Release(t.Context(), "hidden", "1.0.0"); err != nil {
		t.Errorf("asked for by name: %v", err)
	}
	shelf.Register("hidden", strings.Replace(hiddenJSON, "true", "false", 1))
	testkit.Await(t, x, shelf.Log)
	if found, err := x.Search(t.Context(), "hidden", nil); err != nil || len(found) != 1 {
		t.Errorf("no longer hidden, search shows %q, %v", names(found), err)
	}
}

func TestPopular(t *testing.T) {
	shelf := testkit.NewShelf(t)
	for _, name := range []string{"a", "b", "c", "d"} {
		shelf.Register(name, strings.ReplaceAll(plainJSON, "plain", name))
	}
	files := map[string]string{"a.js": "a"}
	shelf.Publish("a", "1.0.0", "a.js", files)
	shelf.Publish("b", "1.0.0", "a.js", files)
	shelf.Publish("b", "2.0.0", "a.js", files)
	shelf.Publish("c", "1.0.0", "a.js", files)
	demand := map[string]float64{"c": 2, "d": 9}
	x := shelf.Index(library.Options{Popularity: func(l *library.Library) float64 { return demand[l.Name] }})
	got, err := x.Popular(t.Context(), 2)
	if want := []string{"c", "b"}; err != nil || !reflect.DeepEqual(names(got), want) {
		t.Errorf("popular are %q, %v; want %q", names(got), err, want)
	}
}

// Demand is asked for once a minute, or when the libraries have changed.
func TestPopularIsRemembered(t *testing.T) {
	shelf := testkit.NewShelf(t)
	files := map[string]string{"a.js": "a"}
	for _, name := range []string{"a", "b"} {
		shelf.Register(name, strings.ReplaceAll(plainJSON, "plain", name))
		shelf.Publish(name, "1.0.0", "a.js", files)
	}
	demand := map[string]float64{"a": 1}
	now := testkit.Released
	x := shelf.Index(library.Options{
		Popularity: func(l *library.Library) float64 { return demand[l.Name] },
		Now:        func() time.Time { return now },
	})
	want := func(when string, want ...string) {
		t.Helper()
		if got, err := x.Popular(t.Context(), 9); err != nil || !reflect.DeepEqual(names(got), want) {
			t.Errorf("%s popular are %q, %v; want %q", when, names(got), err, want)
		}
	}
	want("at first", "a", "b")
	demand["b"] = 2
	now = now.Add(59 * time.Second)
	want("within a minute", "a", "b")
	now = now.Add(time.Second)
	want("after a minute", "b", "a")
	demand["a"] = 3
	now = now.Add(-time.Hour)
	want("with the clock set back", "a", "b")
	demand["b"] = 4
	shelf.Publish("a", "2.0.0", "a.js", files)
	testkit.Await(t, x, shelf.Log)
	want("after a publication", "b", "a")
	if none, err := x.Popular(t.Context(), 0); err != nil || len(none) != 0 {
		t.Errorf("the first 0 are %q, %v", names(none), err)
	}
}

func setRow(t *testing.T, shelf *testkit.Shelf, name string, value []byte) {
	t.Helper()
	b := shelf.Store.NewBatch()
	defer b.Close()
	b.Set(kvstore.Packages, kvstore.Key(name), value)
	if err := b.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedPackage(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("Chart.js", chartJSON)
	shelf.Register("plain", plainJSON)
	setRow(t, shelf, "plain", []byte("nonsense"))
	x := shelf.Index(library.Options{})
	listing, err := x.Listing(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := names(listing.Libraries), []string{"Chart.js"}; !reflect.DeepEqual(got, want) {
		t.Errorf("libraries %q, want %q", got, want)
	}
	// No client may remember that there is no such library.
	if _, err := x.Library(t.Context(), "plain"); err == nil || errors.Is(err, library.ErrNoLibrary) {
		t.Errorf("of the one that cannot be read it says %v", err)
	}
	if _, err := x.Library(t.Context(), "other"); !errors.Is(err, library.ErrNoLibrary) {
		t.Errorf("of one that is not there it says %v", err)
	}
}

// A library that cannot be read for a while neither disappears nor stays as it was.
func TestUnreadLibraryIsReadAgain(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("Chart.js", chartJSON)
	shelf.Register("plain", plainJSON)
	x := shelf.Index(library.Options{})
	row, err := shelf.Store.Get(kvstore.Packages, kvstore.Key("plain"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"a.js": "a"}
	setRow(t, shelf, "plain", []byte("nonsense"))
	shelf.Publish("plain", "1.0.0", "a.js", files)
	for _, step := range []struct{ other, want string }{{"1.0.0", ""}, {"1.1.0", "1.0.0"}} {
		shelf.Publish("Chart.js", step.other, "a.js", files)
		testkit.Await(t, x, shelf.Log)
		plain, err := x.Library(t.Context(), "plain")
		if err != nil || plain.Version != step.want {
			t.Fatalf("beside Chart.js %s it is %+v, %v; want the version %q", step.other, plain, err, step.want)
		}
		if chart, err := x.Library(t.Context(), "Chart.js"); err != nil || chart.Version != step.other {
			t.Errorf("Chart.js is %+v, %v; want %s", chart, err, step.other)
		}
		setRow(t, shelf, "plain", row)
	}
}

// Where the log cannot be followed, all libraries are read instead.
func TestDamagedEntry(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("Chart.js", chartJSON)
	x := shelf.Index(library.Options{})
	shelf.Publish("Chart.js", "1.0.0", "a.js", map[string]string{"a.js": "a"})
	var last []byte
	for item, err := range shelf.Store.Scan(kvstore.LogEntries, kvstore.Range{Reverse: true}) {
		if err != nil {
			t.Fatal(err)
		}
		last = append([]byte(nil), item.Key...)
		break
	}
	last[len(last)-1]++
	changed := strings.Replace(chartJSON, "Charts on", "Graphs on", 1)
	err := shelf.Log.Update(func(tx *logs.Tx) error {
		e := logs.Entry{Kind: logs.PackageChanged, Time: testkit.Released, Actor: "bot", Package: "Chart.js", PackageJSON: kvstore.Sum([]byte(changed))}
		if err := views.Record(tx, views.Change{Entry: e, PackageJSON: []byte(changed)}); err != nil {
			return err
		}
		tx.Batch.Set(kvstore.LogEntries, last, []byte("nonsense"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Await(t, x, shelf.Log)
	if l, err := x.Library(t.Context(), "Chart.js"); err != nil || l.Version != "1.0.0" || l.Description != "Graphs on a canvas." {
		t.Errorf("it is %+v, %v", l, err)
	}
}

func TestStates(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("plain", plainJSON)
	shelf.Publish("plain", "1.9.0", "", map[string]string{"a.js": "a"})
	shelf.Refuse("plain", "1.10.0", "it has no files")
	next := testkit.Released.Add(time.Hour)
	shelf.SetState(views.State{Package: "plain", Version: "1.11.0", Kind: views.Failed, Reason: "the registry is away", Attempts: 3, Next: next})
	states, err := shelf.Index(library.Options{}).States("plain")
	if err != nil || len(states) != 3 {
		t.Fatalf("states %+v, %v", states, err)
	}
	for i, want := range []string{"1.11.0 failed the registry is away", "1.10.0 refused it has no files", "1.9.0 published "} {
		if got := states[i].Version + " " + string(states[i].Kind) + " " + states[i].Reason; got != want {
			t.Errorf("state %d is %q, want %q", i, got, want)
		}
	}
}

func TestNotReady(t *testing.T) {
	shelf := testkit.NewShelf(t)
	x := library.New(library.Options{Store: shelf.Store, Log: shelf.Log}) // whose Run is never called
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Listing(ctx); !errors.Is(err, library.ErrNotReady) || !errors.Is(err, context.Canceled) {
		t.Errorf("the listing is %v", err)
	}
}

func TestGitHub(t *testing.T) {
	for url, want := range map[string]string{
		"https://github.com/jquery/jquery.git":     "jquery/jquery",
		"git+https://github.com/jquery/jquery.git": "jquery/jquery",
		"git://github.com/jquery/jquery":           "jquery/jquery",
		"git@github.com:jquery/jquery.git":         "jquery/jquery",
		"ssh://git@github.com/jquery/jquery.git":   "jquery/jquery",
		"http://www.github.com/a/b.c.git":          "a/b.c",
		"https://github.com/a/b/tree/main":         "a/b",
		"https://GitHub.com/a/b":                   "a/b",
		"github.com/a/b":                           "a/b",
		"https://github.com/a":                     "",
		"https://gitlab.com/a/b":                   "",
		"https://evil.example/github.com/a/b":      "",
		"https://github.com.evil.example/a/b":      "",
		"https://notgithub.com/a/b":                "",
		"javascript:alert(1)//github.com/a/b":      "",
	} {
		got := ""
		if g := (&library.Library{Repository: repository(url)}).GitHub(); g != nil {
			got = g.User + "/" + g.Repo
		}
		if got != want {
			t.Errorf("%s is %q, want %q", url, got, want)
		}
	}
}

func repository(url string) *packages.Repository { return &packages.Repository{Type: "git", URL: url} }

func TestAssetPath(t *testing.T) {
	for file, want := range map[string]string{
		"dist/a.js":      "/ajax/libs/lib/1.0.0/dist/a.js",
		"a b+c@d~%41.js": "/ajax/libs/lib/1.0.0/a%20b+c@d~%2541.js",
		"who?#.js":       "/ajax/libs/lib/1.0.0/who%3F%23.js",
		"文.js":           "/ajax/libs/lib/1.0.0/%E6%96%87.js",
		"a:b.js":         "/ajax/libs/lib/1.0.0/a:b.js",
	} {
		if got := library.AssetPath("lib", "1.0.0", file); got != want {
			t.Errorf("%s is at %s, want %s", file, got, want)
		}
	}
}

// TestReleaseOnItsWay asks for a release that waits or is being fetched: the answer says so, and suggests no other.
func TestReleaseOnItsWay(t *testing.T) {
	shelf := testkit.NewShelf(t)
	shelf.Register("jar", `{"name":"jar","filename":"jar.js","description":"A jar.","keywords":["jar"],"repository":{"type":"git","url":"https://git.example/jar.git"},"autoupdate":{"source":"npm","target":"jar","fileMap":[{"basePath":"","files":["*"]}]}}`)
	shelf.Publish("jar", "2.0.0", "jar.js", map[string]string{"jar.js": "1"})
	x := shelf.Index(library.Options{})
	d := library.Directory{Documents: testkit.Renderer(t, shelf.Store).DocumentsNow(), Store: shelf.Store, AssetBase: "http://127.0.0.1", Index: func() (*library.Index, error) { return x, nil }}
	for kind, what := range map[views.StateKind]string{views.Detected: "it waits for its turn", views.Processing: "it is being fetched"} {
		shelf.SetState(views.State{Package: "jar", Version: "1.0.0", Kind: kind})
		_, err := d.Snippets(t.Context(), library.SnippetRequest{Library: "jar", Version: "1.0.0"})
		want := "jar 1.0.0 is not published yet: " + what + "; `larder info jar` lists the versions that are, `larder add jar@1.0.0` gets it now"
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", kind, err, want)
		}
	}
}
