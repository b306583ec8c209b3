package bot_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/internal/testkit/npmtest"
	"github.com/larder-cdn/larder/logs"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

func fromGit(target string, globs ...string) string {
	return strings.Replace(fromNpm(target, globs...), `"npm"`, `"git"`, 1)
}

// setCatalogue has the bot take the catalogue as it is now.
func (r *rig) setCatalogue() {
	r.Helper()
	c, err := packages.Open(r.catalogue)
	if err != nil {
		r.Fatal(err)
	}
	if err := r.bot.SetCatalogue(r.Context(), c); err != nil {
		r.Fatal(err)
	}
}

func TestReleasesFromGit(t *testing.T) {
	r := newRig(t)
	repository := gittest.New(t).Repository(t, "a.git")
	first := repository.Release("v1.0.0", hour(1), gittest.Files{"a.js": "alert(1)", "notes.txt": "not selected"})
	second := repository.Commit(hour(2), gittest.Files{
		"a.js": "alert(2)", "link:b.js": "/etc/passwd", "submodule:vendor": first,
		"lfs.js": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 7\n",
	})
	repository.Annotate("1.1.0", second)
	repository.Tag("v1.1.0", first)
	repository.Tag("docs/1", first)
	r.register("a", fromGit(repository.URL, "*.js"))
	r.open()
	if sum := r.once(); sum.Published != 2 || sum.Failed > 0 || sum.Refused != 1 {
		t.Fatalf("%+v\n%s", sum, r.states("a"))
	}
	m := r.manifest("a", "1.1.0")
	if want := (logs.Source{Type: "git", Name: repository.URL, Tag: "1.1.0", Commit: second, Tree: m.Source.Tree}); m.Source != want || len(want.Tree) != 40 || !m.Released.Equal(hour(2)) {
		t.Errorf("%+v, released %s", m.Source, m.Released)
	}
	if got := r.file("a", "1.1.0", "a.js"); got != "alert(2)" {
		t.Errorf("%q", got)
	}
	if notes := strings.Join(m.Notes, "\n"); !strings.Contains(notes, `the tags "v1.1.0" and "1.1.0"; this is the second`) || !strings.Contains(notes, `submodule "vendor" was left out`) {
		t.Errorf("notes\n%s", notes)
	}
	left := fmt.Sprint(m.LeftOut)
	if len(m.LeftOut) != 2 || !strings.Contains(left, "{b.js symbolic link}") || !strings.Contains(left, "{lfs.js a Git LFS pointer") {
		t.Errorf("left out %s", left)
	}
	if m := r.manifest("a", "1.0.0"); m.Source.Tag != "v1.0.0" || m.Source.Commit != first || !m.Released.Equal(hour(1)) {
		t.Errorf("%+v", m.Source)
	}

	// A new tag is a new release; that of an old commit, too.
	repository.Tag("v1.0.1", first)
	r.poll()
	if m := r.manifest("a", "1.0.1"); m.Source.Commit != first {
		t.Errorf("%+v", m.Source)
	}
	if err := r.bot.Add(t.Context(), "a", "3"); err == nil || !strings.Contains(err.Error(), "git's "+repository.URL+" has no version 3") {
		t.Errorf("%v", err)
	}
	r.sound()
}

// A tag that moves, or goes, is told of, and what was published stays.
func TestTagsThatMove(t *testing.T) {
	r := newRig(t)
	repository := gittest.New(t).Repository(t, "a.git")
	first := repository.Release("v1.0.0", hour(1), gittest.Files{"a.js": "alert(1)"})
	r.register("a", fromGit(repository.URL, "*.js"))
	r.open()
	r.once()
	r.poll()
	second := repository.Release("v1.0.0", hour(2), gittest.Files{"a.js": "evil()"})
	r.poll()
	if got := r.changes(); got != "" {
		t.Errorf("seen once, and the log says %s", got)
	}
	r.poll()
	r.poll()
	if e := r.one(logs.UpstreamChanged); e.Upstream != (logs.UpstreamChange{Old: first, New: second}) || !strings.Contains(e.Reason, "another commit") {
		t.Errorf("%+v", e.Entry)
	}
	repository.Untag("v1.0.0")
	r.poll()
	r.poll()
	repository.Tag("v1.0.0", first)
	r.poll()
	r.poll()
	want := fmt.Sprintf("1.0.0 %.10s>%.10s\n1.0.0 %.10s>\n1.0.0 >%.10s", first, second, second, first)
	if got := r.changes(); got != want {
		t.Errorf("the log says\n%s\nwant\n%s", got, want)
	}
	if reason := r.entries(logs.UpstreamChanged)[2].Reason; !strings.Contains(reason, "names the commit again") {
		t.Errorf("%q", reason)
	}
	if got := r.file("a", "1.0.0", "a.js"); got != "alert(1)" {
		t.Errorf("%q", got)
	}
}

// A first look costs one request to GitHub's API, a look at unchanged tags none, and releases none. At GitHub's limit a new
// repository's releases do not wait, and those of a known one do, because another repository may have its name.
func TestGitHubRequests(t *testing.T) {
	r := newRig(t)
	hub, url := r.gitHub()
	var repositories []*gittest.Repository
	for _, name := range []string{"a", "b"} {
		if err := hub.Add("owner/"+name, t.TempDir(), "main"); err != nil {
			t.Fatal(err)
		}
		repository := gittest.Use(t, hub.Repository("owner/"+name))
		for i := range 3 {
			repository.Release(fmt.Sprintf("v1.0.%d", i), hour(i), gittest.Files{"a.js": fmt.Sprint(i), "docs/large": "not selected", "README.md": "# " + name})
		}
		repositories = append(repositories, repository)
		r.register(name, fromGit(url+"/owner/"+name, "*.js"))
	}
	hub.Archive("owner/a")
	r.setNow(time.Now())
	r.open()
	requests := func() (api int) {
		for _, q := range hub.Requests() {
			if strings.HasPrefix(q.Path, "/repos/") || strings.HasPrefix(q.Path, "/repositories/") {
				api++
			}
		}
		return api
	}
	hub.Limit(1, time.Hour)
	if sum := r.once(); sum.Published != 6 || sum.Failed != 0 {
		t.Fatalf("%+v\n%s%s", sum, r.states("a"), r.states("b"))
	}
	if m := r.manifest("a", "1.0.2"); len(m.Files) != 2 || m.About == nil || m.About.Readme != "# a" {
		t.Errorf("%s, %+v", paths(m), m.About)
	}
	known := 0
	for _, name := range []string{"a", "b"} {
		u, err := sources.LookupUpstream(r.store, name)
		if err != nil || name == "a" && u.Repository.ID != 0 && (len(u.Notes) != 1 || !strings.Contains(u.Notes[0], "archived")) {
			t.Errorf("%+v, %v", u, err)
		}
		if u.Repository.ID != 0 {
			known++
		}
	}
	if got := requests(); known != 1 || got != 1 {
		t.Errorf("%d ids are known, after %d requests", known, got)
	}
	r.reopenGitHub(url)
	hub.Limit(5000, time.Hour)
	r.setNow(r.now.Add(3 * time.Hour))
	r.open()
	r.once()
	if got := requests(); got != 2 {
		t.Errorf("%d requests for two repositories", got)
	}
	r.setNow(r.now.Add(3 * time.Hour))
	r.once()
	if got := requests(); got != 2 {
		t.Errorf("%d requests, although no tag changed", got)
	}

	hub.Limit(1, time.Hour)
	for i, repository := range repositories {
		repository.Release("v2.0.0", hour(9+i), gittest.Files{"a.js": "two"})
	}
	r.setNow(r.now.Add(3 * time.Hour))
	if sum := r.once(); sum.Published != 1 || sum.Failed != 0 || sum.Refused != 0 {
		t.Errorf("%+v\n%s%s", sum, r.states("a"), r.states("b"))
	}
	waiting := 0
	for _, name := range []string{"a", "b"} {
		if u, err := sources.LookupUpstream(r.store, name); err != nil {
			t.Error(err)
		} else if strings.Contains(u.Reason, "GitHub accepts no more requests until") && u.Next.Sub(r.now) < 2*time.Hour {
			waiting++
		}
	}
	if waiting != 1 {
		t.Errorf("%d packages wait for the limit", waiting)
	}
	r.reopenGitHub(url)
	hub.Limit(5000, time.Hour)
	r.setNow(r.now.Add(3 * time.Hour))
	r.open()
	if sum := r.once(); sum.Published != 1 {
		t.Errorf("%+v\n%s%s", sum, r.states("a"), r.states("b"))
	}
	r.sound()
}

// A repository that is renamed is followed. Another one that takes its name is not, until the package JSON says so.
func TestReplacedRepository(t *testing.T) {
	r := newRig(t)
	hub, url := r.gitHub()
	add := func(version string) {
		t.Helper()
		if err := hub.Add("owner/a", t.TempDir(), "main"); err != nil {
			t.Fatal(err)
		}
		gittest.Use(t, hub.Repository("owner/a")).Release(version, hour(1), gittest.Files{"a.js": version})
	}
	add("v1.0.0")
	r.register("a", fromGit(url+"/owner/a", "*.js"))
	r.open()
	r.once()
	hub.Rename("owner/a", "company/a")
	gittest.Use(t, hub.Repository("company/a")).Release("v1.1.0", hour(2), gittest.Files{"a.js": "moved"})
	r.poll()
	if u, err := sources.LookupUpstream(r.store, "a"); err != nil || len(u.Notes) != 1 || !strings.Contains(u.Notes[0], "moved to "+url+"/company/a.git") {
		t.Errorf("%+v, %v", u, err)
	}
	if got := r.file("a", "1.1.0", "a.js"); got != "moved" {
		t.Errorf("%q", got)
	}
	add("v9.0.0")
	for range 2 {
		r.poll()
	}
	if states := r.states("a"); strings.Contains(states, "9.0.0") {
		t.Errorf("it was taken: %s", states)
	}
	if got := r.changes(); got != "" {
		t.Errorf("the releases of the other repository are compared: %s", got)
	}
	if err := r.bot.Add(t.Context(), "a", "9.0.0"); err == nil || !strings.Contains(err.Error(), "another repository under this address") {
		t.Errorf("%v", err)
	}
	status, err := bot.ReadStatus(r.store, "")
	if err != nil || len(status.Problems) != 1 || status.Problems[0].Kind != bot.ReplacedProblem || !strings.Contains(status.Problems[0].Cause, "another repository under this address") {
		t.Errorf("%+v, %v", status.Problems, err)
	}
	r.register("a", fromGit(url+"/owner/a.git", "*.js"))
	r.setCatalogue()
	r.poll()
	if got := r.file("a", "9.0.0", "a.js"); got != "v9.0.0" {
		t.Errorf("%q", got)
	}
	r.sound()
}

// A catalogue that changes while the bot is there.
func TestSetCatalogue(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"a", "b"} {
		r.registry.Add(name, "1.0.0", hour(1), map[string]string{name + ".js": name, "more.css": "a{}"})
		r.register(name, fromNpm(name, "*.js"))
	}
	r.open()
	r.once()
	file := filepath.Join(r.catalogue, "packages", "a", "a.json")

	// Gone: no updates, and what is published stays.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	r.registry.Add("a", "1.1.0", hour(2), map[string]string{"a.js": "new"})
	r.setCatalogue()
	r.setCatalogue() // no news
	r.poll()
	removed := r.one(logs.PackageRemoved)
	if p, err := views.LookupPackage(r.store, "a"); err != nil || !p.Removed || removed.Package != "a" || !strings.Contains(r.content(removed.PackageJSON), `"keywords": ["test"]`) {
		t.Errorf("%+v, %v, %+v", p, err, removed.Entry)
	}
	if got := r.file("a", "1.0.0", "a.js"); got != "a" {
		t.Errorf("%q", got)
	}
	if err := r.bot.Add(t.Context(), "a", ""); err == nil {
		t.Error("it can be added")
	}

	// Back again: with what came meanwhile.
	r.register("a", fromNpm("a", "*.js"))
	r.setCatalogue()
	r.poll()
	if got := r.file("a", "1.1.0", "a.js"); got != "new" {
		t.Errorf("%q", got)
	}
	if n := len(r.entries(logs.PackageAdded)); n != 3 {
		t.Errorf("added %d times", n)
	}

	// Broken: what it was stays, in this process and in the next one.
	if err := os.WriteFile(file, []byte(`{"name": "a"`), 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		r.registry.Add("a", fmt.Sprintf("1.2.%d", i), hour(3+i), map[string]string{"a.js": "newer"})
		r.setCatalogue()
		r.poll()
		if got := r.file("a", fmt.Sprintf("1.2.%d", i), "a.js"); got != "newer" {
			t.Errorf("%q", got)
		}
		r.close()
		good, err := packages.Open(r.catalogue)
		if err != nil || len(good.Problems()) != 1 {
			t.Fatalf("%v, %v", good.Problems(), err)
		}
		r.openWith(good)
	}
	if n := len(r.entries(logs.PackageChanged)) + len(r.entries(logs.PackageRemoved)); n != 1 {
		t.Errorf("a broken file changed the log: %s", r.kinds())
	}

	// Changed: from the next release on.
	r.register("a", fromNpm("a", "*.js", "*.css"))
	r.setCatalogue()
	r.registry.Add("a", "1.3.0", hour(9), map[string]string{"a.js": "a", "more.css": "a{}"})
	r.poll()
	if got, before := paths(r.manifest("a", "1.3.0")), paths(r.manifest("a", "1.0.0")); !strings.Contains(got, "more.css") || strings.Contains(before, "more.css") {
		t.Errorf("%s, and before %s", got, before)
	}
	if e := r.one(logs.PackageChanged); !strings.Contains(r.content(e.Diff), "*.css") {
		t.Errorf("%+v", e.Entry)
	}

	// What waits of a package that goes is not fetched.
	r.registry.Add("b", "2.0.0", hour(10), map[string]string{"b.js": "b"})
	r.registry.Fail(npmtest.Fault{Path: "/b/-/", Status: 503})
	r.poll()
	r.registry.ClearFaults()
	if s := r.state("b", "2.0.0"); s.Kind != views.Failed {
		t.Fatalf("%+v", s)
	}
	if err := os.Remove(filepath.Join(r.catalogue, "packages", "b", "b.json")); err != nil {
		t.Fatal(err)
	}
	r.setCatalogue()
	r.poll()
	if s := r.state("b", "2.0.0"); s.Kind != views.Refused || s.Reason != "the catalogue has the package no more" {
		t.Errorf("%+v", s)
	}
	r.sound()
}

// What the catalogue says of a package while its upstream is being asked counts as soon as that is over.
func TestSetCatalogueWhileAsking(t *testing.T) {
	r := newRig(t)
	for _, version := range []string{"1.0.0", "2.0.0", "~refused"} {
		r.registry.Add("a", version, hour(1), map[string]string{"a.js": "a"})
	}
	asked := fromNpm("a", "*.js")
	r.register("a", strings.TrimSuffix(asked, "}")+`, "ignoreVersions": ["2.*"]}`)
	r.open()
	changed := false
	r.during = func(e sources.Event) {
		if e.Kind == sources.Refused && !changed { // the answer is there, and not yet taken in whole
			changed = true
			r.register("a", asked)
			r.setCatalogue()
		}
	}
	r.once()
	if u, err := sources.LookupUpstream(r.store, "a"); err != nil || u.Next.After(r.clock()) {
		t.Errorf("%+v, %v", u, err)
	}
	r.poll()
	if s := r.state("a", "2.0.0"); s.Kind != views.Published || !changed {
		t.Errorf("%+v", s)
	}
	r.sound()
}

// A package JSON that is corrected while its upstream is being asked has what was refused by the old one tried again.
func TestMendedWhileAsking(t *testing.T) {
	r := newRig(t)
	r.registry.Add("a", "1.0.0", hour(1), map[string]string{"dist/a.js": "a"})
	r.register("a", fromNpm("a", "*.js"))
	r.open()
	r.once()
	if s := r.state("a", "1.0.0"); s.Kind != views.Refused {
		t.Fatalf("%+v", s)
	}
	r.settle()
	corrected := false
	r.during = func(e sources.Event) {
		if e.Kind == sources.Checked && !corrected { // what is remembered of upstream is not written yet
			corrected = true
			r.register("a", fromNpm("a", "dist/*.js"))
			r.setCatalogue()
		}
	}
	r.once()
	if u, err := sources.LookupUpstream(r.store, "a"); err != nil || u.Next.After(r.clock()) {
		t.Errorf("%+v, %v", u, err)
	}
	r.once()
	if s := r.state("a", "1.0.0"); s.Kind != views.Published || !corrected {
		t.Errorf("%+v", s)
	}
	r.sound()
}

// Another target has versions of the same names, of which those that were refused are tried again.
func TestAnotherTarget(t *testing.T) {
	r := newRig(t)
	for _, version := range []string{"1.0.0", "2.0.0"} {
		r.registry.Add("wrong", version, hour(1), map[string]string{"readme.md": "wrong"})
		r.registry.Add("right", version, hour(1), map[string]string{"a.js": version})
	}
	r.register("a", fromNpm("wrong", "*.js"))
	r.open()
	r.settle()
	r.register("a", fromNpm("right", "*.js"))
	r.setCatalogue()
	r.once()
	for _, version := range []string{"1.0.0", "2.0.0"} {
		if s := r.state("a", version); s.Kind != views.Published {
			t.Errorf("%+v", s)
		}
	}
	r.sound()
}
