package bot_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/bot/sources"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/packages"
)

// TestDemand holds what is known of packages' downloads: what the catalogue says, until npm says it later.
func TestDemand(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"apple", "banana", "cherry"} {
		r.register(name, fromNpm("@fruit/"+name, "*.js"))
	}
	adopt := func(popularity string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.catalogue, packages.PopularityFile), []byte(popularity), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := packages.Open(r.catalogue)
		if err == nil {
			err = r.bot.SetCatalogue(t.Context(), c)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(when string, want map[string]int64) {
		t.Helper()
		got, err := sources.ReadAllPopularityCounts(r.store)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
		for name, n := range want {
			if got[name].Downloads != n {
				t.Errorf("%s: %s has %+v, want %d", when, name, got[name], n)
			}
		}
	}
	r.demand = func(context.Context, string) (int64, error) { return 0, fetch.ErrNotFound }
	r.open()
	adopt("# as of 2020-01-02\napple\t@fruit/apple\t5000\nbanana\t@fruit/banana\t7000\nunknown\tunknown\t9\n")
	expect("from the catalogue", map[string]int64{"apple": 5000, "banana": 7000})
	p := sources.NewPopularity(r.store, func(name string) float64 { return map[string]float64{"banana": 3}[name] })
	if p.Score("apple", "", 0) != 5 || p.Score("banana", "", 0) != 10 || p.Score("cherry", "", 0) != 0 {
		t.Errorf("the popularity is %v, %v, %v", p.Score("apple", "", 0), p.Score("banana", "", 0), p.Score("cherry", "", 0))
	}
	if p.Score("cherry", "", 4000) != 4 || p.Score("cherry", "jquery", 4000) != 4 || p.Score("cherry", "jquery", 0) <= p.Score("cherry", "lodash", 0) || p.Score("apple", "jquery", 4000) != 5 {
		t.Errorf("of a mirror: %v, %v, %v, %v", p.Score("cherry", "", 4000), p.Score("cherry", "jquery", 4000), p.Score("cherry", "jquery", 0), p.Score("apple", "jquery", 4000))
	}

	count := func(n int64, err error) string {
		t.Helper()
		r.demand = func(context.Context, string) (int64, error) { return n, err }
		name, failed := r.bot.CountDownloads(t.Context())
		if !errors.Is(failed, err) && !(failed == nil && errors.Is(err, fetch.ErrNotFound)) {
			t.Errorf("counting %s: %v", name, failed)
		}
		return name
	}
	seen := map[string]bool{}
	for _, n := range []int64{100, 200, 300} {
		seen[count(n, nil)] = true
	}
	if len(seen) != 3 || count(1, nil) != "" {
		t.Errorf("those asked about are %v, and then another", seen)
	}
	expect("from npm", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})
	adopt("# as of 2020-01-03\napple\t@fruit/apple\t5001\n")
	expect("an older word of the catalogue", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})

	r.now = r.now.Add(31 * 24 * time.Hour)
	refused := errors.New("slow down")
	first := count(0, refused)
	if first == "" || count(0, refused) != first {
		t.Error("after a month, what failed is not asked about again")
	}
	expect("after a failure", map[string]int64{"apple": 100, "banana": 200, "cherry": 300})
	if got := count(0, fetch.ErrNotFound); got != first {
		t.Errorf("%s is asked about, not %s", got, first)
	}
}

// TestReleaseCarriesDownloads publishes a release with npm's download count as the bot knows it, for mirrors.
func TestReleaseCarriesDownloads(t *testing.T) {
	r := newRig(t)
	r.registry.Add("apple", "1.0.0", hour(1), map[string]string{"apple.js": "1"})
	r.register("apple", fromNpm("apple", "*.js"))
	if err := os.WriteFile(filepath.Join(r.catalogue, packages.PopularityFile), []byte("apple\tapple\t5000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	catalogue, err := packages.Open(r.catalogue)
	if err == nil {
		err = r.bot.SetCatalogue(t.Context(), catalogue)
	}
	if err != nil {
		t.Fatal(err)
	}
	r.once()
	v, err := views.LookupVersion(r.store, "apple", "1.0.0")
	if err != nil || v.Downloads != 5000 {
		t.Errorf("the release has %d downloads, %v; want 5000", v.Downloads, err)
	}
	r.sound()
}

// TestStars holds what is known of packages' repositories at GitHub: each is asked about once a month, those first of which no
// downloads are known, with the entity tag of the answer before.
func TestStars(t *testing.T) {
	r := newRig(t)
	hub, url := r.gitHub()
	register := func(name, repository string) {
		r.registerJSON(name, fmt.Appendf(nil, `{"name": %q, "description": "A test.", "keywords": ["test"], "repository": {"type": "git", "url": %q}}`, name, repository))
	}
	for _, name := range []string{"apple", "banana", "cherry"} {
		if err := hub.Add("fruit/"+name, t.TempDir(), "main"); err != nil {
			t.Fatal(err)
		}
		register(name, url+"/fruit/"+name+".git")
	}
	register("damson", url+"/fruit/damson")
	register("elder", "https://git.example/fruit/elder")
	hub.Rename("fruit/cherry", "garden/cherry")
	if err := os.WriteFile(filepath.Join(r.catalogue, packages.PopularityFile), []byte("apple\tapple\t5000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.open()
	ask := func() (asked []string) {
		t.Helper()
		for {
			name, err := r.bot.CountStars(t.Context())
			if err != nil {
				t.Fatal(name, err)
			}
			if name == "" {
				return asked
			}
			asked = append(asked, name)
		}
	}
	known := func(name string) sources.PopularityCounts {
		t.Helper()
		all, err := sources.ReadAllPopularityCounts(r.store)
		if err != nil {
			t.Fatal(err)
		}
		return all[name]
	}
	r.setCatalogue()
	if got := ask(); !slices.Equal(got, []string{"banana", "cherry", "damson", "apple"}) {
		t.Errorf("those asked about are %q", got)
	}
	for _, name := range []string{"apple", "banana", "cherry"} {
		if g := known(name).GitHub; g == nil || g.Counts != (git.Counts{Stars: 250, Forks: 12, Subscribers: 9}) || g.ETag == "" {
			t.Errorf("%s has %+v", name, g)
		}
	}
	if g := known("damson").GitHub; g == nil || !g.Missing {
		t.Errorf("a repository that is not there: %+v", g)
	}
	if p := sources.NewPopularity(r.store, func(string) float64 { return 1 }); p.Score("banana", "", 0) != 26 || p.Score("apple", "", 0) != 6 || p.Score("elder", "", 0) != 1 {
		t.Errorf("the popularity is %v, %v, %v", p.Score("banana", "", 0), p.Score("apple", "", 0), p.Score("elder", "", 0))
	}

	// After a month only what has changed is sent; what was said of downloads stays.
	hub.Star("fruit/apple", 300)
	r.now = r.now.Add(31 * 24 * time.Hour)
	from := len(hub.Requests())
	if got := ask(); len(got) != 4 {
		t.Errorf("after a month, those asked about are %q", got)
	}
	unchanged := 0
	for _, q := range hub.Requests()[from:] {
		if q.Status == http.StatusNotModified {
			unchanged++
		}
	}
	if d := known("apple"); unchanged != 2 || d.GitHub.Stars != 300 || d.Downloads != 5000 || known("banana").GitHub.Stars != 250 {
		t.Errorf("%d answers were not sent again; apple has %+v of %+v", unchanged, d, d.GitHub)
	}

	// A repository that GitHub blocks, or says nonsense of, keeps no other waiting, and what was known stays.
	r.now = r.now.Add(31 * 24 * time.Hour)
	hub.Break(githubtest.Fault{Path: "/repos/fruit/apple", Status: http.StatusUnavailableForLegalReasons, Message: "Repository access blocked"})
	register("fig", url+"/fruit/fig")
	hub.Break(githubtest.Fault{Path: "/repos/fruit/fig", Status: http.StatusNotModified})
	r.setCatalogue()
	failed := map[string]int{}
	for range 10 {
		if name, err := r.bot.CountStars(t.Context()); err != nil {
			failed[name]++
		} else if name == "" {
			break
		}
	}
	if !maps.Equal(failed, map[string]int{"apple": 1, "fig": 1}) || !known("fig").GitHub.Missing || known("apple").GitHub.Stars != 300 {
		t.Errorf("failed: %v; fig has %+v, apple %+v", failed, known("fig").GitHub, known("apple").GitHub)
	}
	r.now = r.now.Add(25 * time.Hour)
	hub.ClearFaults()
	if got := ask(); !slices.Equal(got, []string{"fig", "apple"}) {
		t.Errorf("a day later, those asked about are %q", got)
	}

	// Another repository is another number; GitHub's limit is waited for, and what was known stays.
	register("banana", url+"/garden/cherry")
	register("cherry", url+"/fruit/banana")
	hub.Limit(1, time.Hour)
	r.setCatalogue()
	var limit *git.LimitError
	if name, err := r.bot.CountStars(t.Context()); name != "banana" || err != nil {
		t.Errorf("below the limit: %s, %v", name, err)
	}
	if name, err := r.bot.CountStars(t.Context()); name != "cherry" || !errors.As(err, &limit) {
		t.Errorf("over the limit: %s, %v", name, err)
	}
	if known("cherry").GitHub == nil {
		t.Error("over the limit, what was known is gone")
	}
}
