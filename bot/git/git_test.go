package git_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages/archive"
)

var noon = time.Date(2025, 3, 4, 12, 0, 0, 0, time.UTC)

const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"

func client(t *testing.T, o git.Options, allow ...string) *git.Client {
	t.Helper()
	f, err := fetch.New(fetch.Options{Tries: 1, Allow: append(allow, "127.0.0.1")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	o.Fetch = f
	return git.New(o)
}

func temp(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "release"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// contents are an archive's files by name; of what is left out, why.
func contents(t *testing.T, a archive.Source) map[string]string {
	t.Helper()
	all, err := walk(a)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func walk(a archive.Source) (map[string]string, error) {
	all := map[string]string{}
	err := archive.Walk(context.Background(), a, archive.DefaultLimits, func(e archive.Entry, r io.Reader) error {
		data, err := io.ReadAll(r)
		all[e.Name] = string(data)
		if e.Skipped != "" {
			all[e.Name] = "- " + e.Skipped
		}
		return err
	})
	return all, err
}

func find(t *testing.T, tags []git.Tag, version string) git.Tag {
	t.Helper()
	i := slices.IndexFunc(tags, func(tag git.Tag) bool { return tag.Version == version })
	if i < 0 {
		t.Fatalf("no version %s in %+v", version, tags)
	}
	return tags[i]
}

// releases makes the repository that both kinds of hosts are asked for.
func releases(r *gittest.Repository) (first, second string) {
	first = r.Release("v1.0.0", noon, gittest.Files{"dist/a.js": "alert(1)", "README": "read"})
	second = r.Commit(noon.Add(time.Hour), gittest.Files{
		"dist/a.js": "alert(2)", "dist/large.bin": pointer, "link:dist/link.js": "/etc/passwd",
		".gitmodules": "[submodule]", "submodule:vendor/other": first,
	})
	r.Annotate("1.1.0", second)
	r.Tag("v1.1.0", first)
	r.Tag("vanilla-2", first)
	r.Tag("release/3", first)
	return first, second
}

func wantReleases(t *testing.T, c *git.Client, target, first, second string) *git.Listing {
	t.Helper()
	listing, err := c.Tags(t.Context(), target, "")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tag := range listing.Tags {
		got = append(got, tag.Version+"="+tag.Name)
	}
	if want := "1.0.0=v1.0.0 1.1.0=1.1.0 release/3=release/3 vanilla-2=vanilla-2"; strings.Join(got, " ") != want {
		t.Errorf("tags %q", got)
	}
	one, two := find(t, listing.Tags, "1.0.0"), find(t, listing.Tags, "1.1.0")
	if one.Commit != first || two.Commit != second || one.Note != "" || !strings.Contains(two.Note, `"v1.1.0" and "1.1.0"; this is the second`) {
		t.Errorf("%+v and %+v", one, two)
	}
	dst := temp(t)
	release, err := c.Release(t.Context(), target, two, nil, dst)
	if err != nil {
		t.Fatal(err)
	}
	if !release.Date.Equal(noon.Add(time.Hour)) {
		t.Errorf("the date is %s", release.Date)
	}
	if notes := strings.Join(release.Notes, "\n"); len(release.Notes) != 2 || !strings.Contains(notes, "the tags") || !strings.Contains(notes, "submodule") {
		t.Errorf("notes %q", notes)
	}
	if got, want := contents(t, release.Archive), map[string]string{
		"dist/a.js": "alert(2)", "dist/link.js": "- symbolic link", ".gitmodules": "[submodule]",
		"dist/large.bin": "- a Git LFS pointer: the file itself, of 12345 bytes, is not in the repository",
	}; !maps.Equal(got, want) {
		t.Errorf("files %q", got)
	}
	if release, err = c.Release(t.Context(), target, one, nil, dst); err != nil { // into the same file
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); !maps.Equal(got, map[string]string{"dist/a.js": "alert(1)", "README": "read"}) || len(release.Notes) > 0 {
		t.Errorf("files %q, notes %q", got, release.Notes)
	}
	if again, err := c.Tags(t.Context(), target, listing.Validator); err != nil || !again.Unchanged || again.Tags != nil || again.Validator != listing.Validator {
		t.Errorf("asked again: %+v, %v", again, err)
	}
	return listing
}

func TestOtherHosts(t *testing.T) {
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprint(packed), func(t *testing.T) {
			server := gittest.New(t)
			r := server.Repository(t, "owner/name.git")
			first, second := releases(r)
			if packed {
				server.Repack(t, "owner/name.git")
			}
			c := client(t, git.Options{})
			listing := wantReleases(t, c, r.URL, first, second)

			// A tag that moves between the listing and the fetch is not what was asked for.
			moved := find(t, listing.Tags, "1.0.0")
			r.Tag("v1.0.0", second)
			if _, err := c.Release(t.Context(), r.URL, moved, nil, temp(t)); err == nil || !strings.Contains(err.Error(), "is at "+second+" now") {
				t.Errorf("a tag that moved: %v", err)
			}
			r.Untag("v1.0.0")
			if _, err := c.Release(t.Context(), r.URL, moved, nil, temp(t)); err == nil || !strings.Contains(err.Error(), "is at none now") {
				t.Errorf("a tag that is gone: %v", err)
			}
			if again, err := c.Tags(t.Context(), r.URL, listing.Validator); err != nil || again.Unchanged || len(again.Tags) != 3 {
				t.Errorf("after that: %+v, %v", again, err)
			}
			for _, q := range server.Requests() {
				if q.Header.Get("Authorization") != "" {
					t.Errorf("%s with credentials", q.URL)
				}
			}
		})
	}
}

func TestEmptyAndMissing(t *testing.T) {
	server := gittest.New(t)
	r := server.Repository(t, "empty.git")
	c := client(t, git.Options{})
	if listing, err := c.Tags(t.Context(), r.URL, ""); err != nil || len(listing.Tags) > 0 {
		t.Errorf("%+v, %v", listing, err)
	}
	if _, err := c.Tags(t.Context(), server.URL+"/none.git", ""); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("%v", err)
	}
	for status, want := range map[int]error{401: fetch.ErrNotFound, 410: fetch.ErrNotFound} {
		server.Answer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		if _, err := c.Tags(t.Context(), r.URL, ""); !errors.Is(err, want) {
			t.Errorf("%d: %v", status, err)
		}
	}
	server.Answer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(429)
	}))
	if _, err := c.Tags(t.Context(), r.URL, ""); err == nil {
		t.Error("429 is no listing")
	} else if at, ok := fetch.RetryAt(err); !ok || time.Until(at) < 50*time.Minute {
		t.Errorf("429: %v, again at %s", err, at)
	}
	server.Answer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	if _, err := c.Tags(t.Context(), r.URL, ""); err == nil || !strings.Contains(err.Error(), "no git repository") {
		t.Errorf("a web page: %v", err)
	}
}

// A redirect is followed under the rules for addresses, and told.
func TestMoved(t *testing.T) {
	server, elsewhere := gittest.New(t), gittest.New(t)
	r := elsewhere.Repository(t, "new/name.git")
	commit := r.Release("v1", noon, gittest.Files{"a": "a"})
	server.Answer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, elsewhere.URL+"/new/name.git"+strings.TrimPrefix(q.URL.Path, "/old.git")+"?"+q.URL.RawQuery, http.StatusMovedPermanently)
	}))
	c := client(t, git.Options{})
	listing, err := c.Tags(t.Context(), server.URL+"/old.git", "")
	if err != nil {
		t.Fatal(err)
	}
	if listing.Moved != r.URL {
		t.Errorf("moved to %q", listing.Moved)
	}
	release, err := c.Release(t.Context(), server.URL+"/old.git", git.Tag{Version: "1", Name: "v1", Commit: commit}, nil, temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); got["a"] != "a" {
		t.Errorf("%q", got)
	}

	// Not to where the rules let no request go.
	asked := len(elsewhere.Requests())
	f, err := fetch.New(fetch.Options{Tries: 1, Allow: []string{strings.TrimPrefix(server.URL, "http://")}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := git.New(git.Options{Fetch: f}).Tags(t.Context(), server.URL+"/old.git", ""); !errors.Is(err, fetch.ErrForbidden) {
		t.Errorf("a redirect to a private address: %v", err)
	}
	if got := len(elsewhere.Requests()); got != asked {
		t.Errorf("it was asked %d times", got-asked)
	}
}

// TestErrorsNameNoSecret has a repository's address with secrets that are ignored: errors do not have them.
func TestErrorsNameNoSecret(t *testing.T) {
	f, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := git.New(git.Options{Fetch: f})
	for _, target := range []string{"ssh://user:hunter2@127.0.0.1/owner/name.git", "git://user:hunter2@127.0.0.1/owner/name", "https://127.0.0.1/owner/name?token=hunter2"} {
		_, err := c.Tags(t.Context(), target, "")
		if err == nil || strings.Contains(err.Error(), "hunter2") || !strings.Contains(err.Error(), "https://127.0.0.1/owner/name") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

func TestAddresses(t *testing.T) {
	f, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := git.New(git.Options{Fetch: f})
	for target, want := range map[string]string{
		"":                                       "no URL",
		"name":                                   "no URL",
		"https://127.0.0.1":                      "no URL",
		"file:///etc/passwd":                     "no URL",
		"file://host/etc/passwd":                 `begins with "file:"`,
		"ext::sh -c whoami":                      "no URL",
		"https://user:secret@127.0.0.1/a.git":    "a user or a password",
		"http://127.0.0.1:1/a.git":               "not https",
		"https://127.0.0.1:1/a.git":              "not public",
		"https://[::1]:1/a.git":                  "not public",
		"git://127.0.0.1:9418/a.git":             "not public",
		"ssh://git@127.0.0.1:22/a.git":           "not public",
		"git@127.0.0.1:a/b.git":                  "not public",
		"git+https://169.254.169.254/a":          "not public",
		"https://x/" + strings.Repeat("a", 3000): "over the limit",
	} {
		_, err := c.Tags(t.Context(), target, "")
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret@") {
			t.Errorf("%s: %v", target, err)
		}
	}
}

// A commit may have any tree that its author wrote by hand. What breaks a rule of archives is refused when
// it is read, and nothing of it is ever a path here.
func TestTreesByHand(t *testing.T) {
	server := gittest.New(t)
	c := client(t, git.Options{})
	for i, tt := range []struct {
		files gittest.Files
		want  string
	}{
		{gittest.Files{"raw:..": "x"}, `".." in the name`},
		{gittest.Files{"raw:../../x": "x"}, `".." in the name`},
		{gittest.Files{"raw:/etc/passwd": "x"}, "absolute name"},
		{gittest.Files{`raw:a\b`: "x"}, "backslash"},
		{gittest.Files{"raw:a/b": "x", "a/b": "y"}, "same name twice"},
		{gittest.Files{"../x": "x"}, `".." in the name`},
		{gittest.Files{"a/../../x": "x"}, `".." in the name`},
		{gittest.Files{strings.Repeat("a/", 200) + "x": "x"}, "more than 100 deep"},
	} {
		r := server.Repository(t, fmt.Sprintf("%d.git", i))
		tag := git.Tag{Version: "1", Name: "1", Commit: r.Release("1", noon, tt.files)}
		release, err := c.Release(t.Context(), r.URL, tag, nil, temp(t))
		if err == nil {
			_, err = walk(release.Archive)
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: %v", slices.Collect(maps.Keys(tt.files)), err)
		}
	}
}

func TestPackLimit(t *testing.T) {
	server := gittest.New(t)
	r := server.Repository(t, "a.git")
	var noise strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&noise, "%x", i*i*7919)
	}
	tag := git.Tag{Version: "1", Name: "1", Commit: r.Release("1", noon, gittest.Files{"a": noise.String()})}
	if _, err := client(t, git.Options{PackBytes: 4096}).Release(t.Context(), r.URL, tag, nil, temp(t)); !errors.Is(err, fetch.ErrTooLarge) {
		t.Errorf("a pack over the limit: %v", err)
	}
	if _, err := client(t, git.Options{RefBytes: 20}).Tags(t.Context(), r.URL, ""); !errors.Is(err, fetch.ErrTooLarge) {
		t.Errorf("references over the limit: %v", err)
	}
	if _, err := client(t, git.Options{}).Release(t.Context(), r.URL, tag, nil, temp(t)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := client(t, git.Options{}).Release(ctx, r.URL, tag, nil, temp(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSnapshot(t *testing.T) {
	server := gittest.New(t)
	r := server.Repository(t, "catalogue.git")
	at, err := url.Parse(r.URL)
	if err != nil {
		t.Fatal(err)
	}
	f, err := fetch.New(fetch.Options{Tries: 1}) // the operator's word needs no other
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := git.New(git.Options{Fetch: f})
	remote := git.Remote{URL: at, Token: "ghp_secret"}
	if _, err := c.Head(t.Context(), remote); err == nil || !strings.Contains(err.Error(), "no commit yet") {
		t.Errorf("an empty repository: %v", err)
	}
	commit := r.Commit(noon, gittest.Files{"packages/a/a.json": "{}"})
	head, release, err := c.Snapshot(t.Context(), remote, temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); head != (git.Head{Commit: commit, Branch: "main"}) || got["packages/a/a.json"] != "{}" {
		t.Errorf("%+v, %q", head, got)
	}
	if now, err := c.Head(t.Context(), remote); err != nil || now != head {
		t.Errorf("%+v, %v", now, err)
	}
	for _, q := range server.Requests() {
		if user, password, _ := q.BasicAuth(); user != "x-access-token" || password != "ghp_secret" {
			t.Errorf("%s as %q", q.URL, user)
		}
	}
	remote.Branch = "none"
	if _, err := c.Head(t.Context(), remote); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("no such branch: %v", err)
	}

	dir := filepath.Join(server.Dir, "catalogue.git")
	if !git.IsRepository(dir) || git.IsRepository(server.Dir) {
		t.Error("what is a repository")
	}
	local, release, err := git.LocalSnapshot(t.Context(), dir, "", temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); local != head || got["packages/a/a.json"] != "{}" {
		t.Errorf("%+v, %q", local, got)
	}
	if now, err := git.ReadLocalHead(dir, "main"); err != nil || now != head {
		t.Errorf("%+v, %v", now, err)
	}
	if _, err := git.ReadLocalHead(dir, "none"); err == nil {
		t.Error("no such branch")
	}
}
