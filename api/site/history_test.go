package site

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/testkit"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// accounted returns a shelf with one library, and a site that knows of many more versions of it that were never tried.
func accounted(t testing.TB, older int) *Site {
	t.Helper()
	shelf := testkit.NewShelf(t)
	shelf.Register("jar", packageJSON(t, "jar", nil))
	shelf.Publish("jar", "9000.0.0", "jar.js", map[string]string{"jar.js": script(3)})
	shelf.Refuse("jar", "9001.0.0", "a bomb")
	return newSite(t, shelf, func(o *Options) {
		o.Library = shelf.Index(library.Options{Accounts: func(r kvstore.Reader, name string) ([]views.Account, error) {
			states, err := views.States(r, name)
			all := make([]views.Account, 0, older+4)
			all = append(all, []views.Account{{State: states[1], Command: "larder add --retry jar@9001.0.0"}, {State: states[0]}}...)
			add := func(version string, kind views.StateKind, reason string) {
				all = append(all, views.Account{State: views.State{Package: name, Version: version, Kind: kind, Reason: reason}, Command: "larder add jar@" + version})
			}
			add("8999.0.0-beta.1", views.Prerelease, "at most two prereleases")
			add("8998.0.0-x<y", views.Ignored, `the pattern "*<y"`)
			for i := range older {
				add(fmt.Sprintf("%d.0.0", older-i), views.Older, "older")
			}
			return all, err
		}})
	})
}

func TestHistoryListsWhatIsNotMirrored(t *testing.T) {
	const older = 1234
	site := accounted(t, older)
	body := get(t, site, "/history/jar").Body.String()
	var folds []string
	for _, n := range find(t, body, func(n *html.Node) bool { return n.Data == "summary" }) {
		folds = append(folds, wordsOf(n))
	}
	if got := strings.Join(folds, ", "); got != "1,234 older than the first mirrored releases, 1 prereleases, 1 ignored by a pattern" {
		t.Errorf("the folds are %s", got)
	}
	for _, want := range []string{
		`href="/history/jar?state=refused"`, `<code>larder add --retry jar@9001.0.0</code>`, `<code>larder add jar@8999.0.0-beta.1</code>`, `<code>larder add jar@1234.0.0</code>`,
		`the pattern &#34;*&lt;y&#34;`, `<a href="/history/jar?state=older">All 1,234</a>`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	if strings.Contains(body, "jar@1000.0.0") || len(body) > 30_000 {
		t.Errorf("the page of %d bytes has what should be behind a link", len(body))
	}

	// Every one of them is on one of the pages that follow each other.
	seen := map[string]bool{}
	for next := "/history/jar?state=older"; next != ""; {
		body := get(t, site, next).Body.String()
		for _, n := range find(t, body, func(n *html.Node) bool { return n.Data == "code" }) {
			seen[wordsOf(n)] = true
		}
		if len(body) > 100_000 {
			t.Errorf("%s has %d bytes", next, len(body))
		}
		next = ""
		for _, n := range find(t, body, func(n *html.Node) bool { return n.Data == "a" && attr(n, "rel") == "next" }) {
			next = attr(n, "href")
		}
	}
	if len(seen) != older {
		t.Errorf("%d versions are on the pages, want %d", len(seen), older)
	}
	if body := get(t, site, "/history/jar?state=refused").Body.String(); strings.Contains(body, "9000.0.0") || !strings.Contains(body, "9001.0.0") {
		t.Error("a state shows others")
	}
	for address, want := range map[string]string{"/history/jar": ">1,236 not mirrored</h2>", "/library/jar": `<a href="/history/jar#not-mirrored">1,236 not mirrored</a>`} {
		if body := get(t, site, address).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s does not have %s", address, want)
		}
	}
	w := get(t, site, "/library/jar/1000.0.0")
	if body := w.Body.String(); w.Code != http.StatusNotFound || !strings.Contains(body, "1000.0.0 is not mirrored: older. The operator of this service gets it with <code>larder add jar@1000.0.0</code>") {
		t.Errorf("the page of a version that is not mirrored answers %d:\n%s", w.Code, body)
	}
}

// BenchmarkHistory shows the page of the library with the most versions that may be accounted for.
func BenchmarkHistory(b *testing.B) {
	site := accounted(b, 20_000)
	for b.Loop() {
		if w := get(b, site, "/history/jar"); w.Code != http.StatusOK {
			b.Fatal(w.Code)
		}
	}
}
