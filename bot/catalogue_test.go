package bot_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/larder-cdn/larder/bot"
	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/bubble"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages"
)

func soundPackage(name string) string {
	return `{"name": "` + name + `", "description": "A.", "keywords": ["a"], "repository": {"type": "git", "url": "https://example.com/a.git"}}`
}

// A catalogueTaker is what changes are applied to.
type catalogueTaker struct {
	mu   sync.Mutex
	all  []string
	fail error
}

func (t *catalogueTaker) apply(_ context.Context, c *packages.Catalogue) error {
	if t.fail != nil {
		return t.fail
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.all = append(t.all, packageNames(c))
	return nil
}

func (t *catalogueTaker) taken() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.Join(t.all, ", ")
}

func packageNames(c *packages.Catalogue) string {
	var all []string
	for _, p := range c.Packages() {
		all = append(all, p.Name)
	}
	return strings.Join(all, " ")
}

func newCatalogueWatcher(t *testing.T, source, dir string) *bot.CatalogueWatcher {
	t.Helper()
	f, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	k, err := bot.NewCatalogueWatcher(bot.CatalogueOptions{Source: source, Dir: dir, Git: git.New(git.Options{Fetch: f}), Now: func() time.Time { return noon }})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What is wrong with the source never takes away what was good.
func TestLastGood(t *testing.T) {
	server := gittest.New(t)
	r := server.Repository(t, "c.git")
	dir := filepath.Join(t.TempDir(), "kept")
	k := newCatalogueWatcher(t, r.URL, dir)
	if !k.Remote() || k.Static() {
		t.Error("what it is")
	}
	to := &catalogueTaker{}
	look := func(want string, problem bool) {
		t.Helper()
		err := k.Poll(t.Context(), to.apply)
		s := k.State()
		if (err != nil) != problem || (s.Problem != "") != problem || s.Since.IsZero() == problem {
			t.Errorf("%v, %+v", err, s)
		}
		if got := to.taken(); got != want {
			t.Errorf("taken: %q, want %q", got, want)
		}
	}
	if _, ok := k.UseCached(); ok {
		t.Error("something was kept of nothing")
	}
	look("", true) // no commit yet
	r.Commit(noon, gittest.Files{"packages/a/a.json": soundPackage("a"), "link:packages/l/l.json": "/etc/passwd"})
	look("a", false)
	look("a", false)
	r.Commit(noon, gittest.Files{"README": "nothing else"})
	look("a", true)
	look("a", true)
	r.Commit(noon, gittest.Files{"packages/a/a.json": "{", "packages/b/b.json": "{"})
	look("a", true) // all are broken: that is no catalogue
	r.Commit(noon, gittest.Files{"packages/a/a.json": "{", "packages/b/b.json": soundPackage("b")})
	look("a, b", false)
	if s := k.State(); len(s.Refused) != 1 || s.Refused[0].File != "packages/a/a.json" || s.Packages != 1 || s.Branch != "main" || len(s.Commit) != 40 {
		t.Errorf("%+v", s)
	}

	// What could not be applied is tried again.
	r.Commit(noon, gittest.Files{"packages/c/c.json": soundPackage("c")})
	to.fail = errors.New("the disk is full")
	look("a, b", true)
	to.fail = nil
	look("a, b, c", false)

	// Another start needs no network; another source needs another catalogue.
	server.Answer(nil)
	if c, ok := newCatalogueWatcher(t, r.URL, dir).UseCached(); !ok || packageNames(c) != "c" {
		t.Errorf("kept: %v", ok)
	}
	if _, ok := newCatalogueWatcher(t, r.URL+"#other", dir).UseCached(); ok {
		t.Error("that is another branch")
	}
	if err := os.WriteFile(filepath.Join(dir, "catalogue.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok := newCatalogueWatcher(t, r.URL, dir).UseCached(); ok {
		t.Error("that is damaged")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(left) != 2 {
		t.Errorf("left behind: %q, %v", left, err)
	}
}

func TestSources(t *testing.T) {
	for source, want := range map[string]string{
		"https://user:secret@example.com/c.git": "a user or a password",
		"https:///c.git":                        "must be a URL",
		"https://example.com/c.git?token=x":     "must be a URL",
		"ssh://git@example.com/c.git":           "https: is what can be fetched",
		"file:///srv/c.git":                     "https: is what can be fetched",
		"https://example.com/c.git#main":        "",
		"starter":                               "",
	} {
		k, err := bot.NewCatalogueWatcher(bot.CatalogueOptions{Source: source})
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@")) {
			t.Errorf("%s: %v", source, err)
		}
		if err == nil && k.Static() != (source == "starter") {
			t.Errorf("%s: static %v", source, k.Static())
		}
	}
	if _, err := newCatalogueWatcher(t, filepath.Join(t.TempDir(), "none"), "").Open(t.Context()); err == nil || !strings.Contains(err.Error(), "give a folder") {
		t.Errorf("nothing there: %v", err)
	}
}

// Run looks at once, each interval, and when it is told to; a folder is read again only
// where something in it was written.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name+".json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("a", soundPackage("a"))
	bubble.Test(t, func(t *testing.T) {
		k := newCatalogueWatcher(t, dir, "")
		to := &catalogueTaker{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			k.Run(ctx, to.apply)
		}()
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			if got := to.taken(); got != want {
				t.Errorf("taken: %q, want %q", got, want)
			}
		}
		expect("a")
		time.Sleep(11 * time.Minute)
		expect("a")
		write("b", soundPackage("b"))
		expect("a")
		time.Sleep(5 * time.Minute)
		expect("a, a b")
		write("c", soundPackage("c"))
		k.Refresh()
		k.Refresh()
		expect("a, a b, a b c")
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Minute)
		expect("a, a b, a b c")
		if s := k.State(); s.Problem == "" || s.Packages != 3 {
			t.Errorf("%+v", s)
		}
		cancel()
		<-done
	})
}

// A catalogueFolder may be behind a link, and be replaced at once by another one.
func TestLinkedFolder(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		at := filepath.Join(dir, name)
		if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, name+".json"), []byte(soundPackage(name)), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "current")
	k := newCatalogueWatcher(t, link, "")
	to := &catalogueTaker{}
	look := func(want string) {
		t.Helper()
		if err := k.Poll(t.Context(), to.apply); err != nil {
			t.Error(err)
		}
		if got := to.taken(); got != want {
			t.Errorf("taken: %q, want %q", got, want)
		}
	}
	if err := os.Symlink("one", link); err != nil {
		t.Fatal(err)
	}
	look("one")
	look("one")
	if err := os.WriteFile(filepath.Join(dir, "one", "more.json"), []byte(soundPackage("more")), 0o600); err != nil {
		t.Fatal(err)
	}
	look("one, more one")
	if err := errors.Join(os.Remove(link), os.Symlink("two", link)); err != nil {
		t.Fatal(err)
	}
	look("one, more one, two")
}
