package git_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
)

const token = "ghp_0123456789secret"

type hubRig struct {
	*githubtest.Server
	*git.Client
	url string
	log bytes.Buffer
}

func newHub(t *testing.T) *hubRig {
	t.Helper()
	r := &hubRig{Server: githubtest.New(token)}
	url, stop := r.Start()
	t.Cleanup(stop)
	r.url = url
	hub, err := git.NewGitHubClient(git.GitHubOptions{URL: url, Token: token, Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	f, err := fetch.New(fetch.Options{Tries: 1}) // no host is allowed but the API's own
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	r.Client = git.New(git.Options{Fetch: f, GitHub: hub})
	return r
}

func (r *hubRig) add(t *testing.T, name string) *gittest.Repository {
	t.Helper()
	if err := r.Add(name, t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	return gittest.Use(t, r.Repository(name))
}

// asked are the paths that were asked for since the last time, with their statuses.
func (r *hubRig) asked(from int) string {
	var all []string
	for _, q := range r.Requests()[from:] {
		all = append(all, fmt.Sprintf("%d %s", q.Status, q.Path))
	}
	return strings.Join(all, "\n")
}

func TestGitHub(t *testing.T) {
	r := newHub(t)
	first, second := releases(r.add(t, "owner/name"))
	listing := wantReleases(t, r.Client, r.url+"/owner/name", first, second)
	if listing.About == nil || len(listing.About.Notes()) > 0 {
		t.Errorf("%+v", listing.About)
	}
	if strings.Contains(r.log.String(), token) {
		t.Error("the token is in the log")
	}
}

// Whatever form the address of a repository at GitHub has, its API is asked.
func TestGitHubAddresses(t *testing.T) {
	server := githubtest.New(token)
	if err := server.Add("owner/name", t.TempDir(), "main"); err != nil {
		t.Fatal(err)
	}
	gittest.Use(t, server.Repository("owner/name")).Release("v1", noon, gittest.Files{"a": "a"})
	hub, err := git.NewGitHubClient(git.GitHubOptions{Token: token, Transport: server})
	if err != nil {
		t.Fatal(err)
	}
	f, err := fetch.New(fetch.Options{Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c := git.New(git.Options{Fetch: f, GitHub: hub})
	for _, target := range []string{
		"https://github.com/owner/name", "https://github.com/owner/name.git", "https://www.GitHub.com/owner/name/", "http://github.com/owner/name",
		"git://github.com/owner/name.git", "git+https://github.com/owner/name.git", "git@github.com:owner/name.git", "ssh://git@github.com/owner/name.git",
		"git+ssh://git@github.com:22/owner/name.git", "https://github.com/owner/name.git?a=b#c", "  https://github.com/owner/name\n",
	} {
		if listing, err := c.Tags(t.Context(), target, ""); err != nil || len(listing.Tags) != 1 {
			t.Errorf("%s: %+v, %v", target, listing, err)
		}
	}
}

// What has not changed is asked for with entity tags, which GitHub does not count.
func TestGitHubConditional(t *testing.T) {
	r := newHub(t)
	repository := r.add(t, "owner/name")
	commit := repository.Commit(noon, gittest.Files{"a": "a"})
	for i := range 250 {
		repository.Tag(fmt.Sprintf("v1.0.%d", i), commit)
	}
	target := r.url + "/owner/name"
	listing, err := r.Tags(t.Context(), target, "")
	if err != nil || len(listing.Tags) != 250 {
		t.Fatalf("%d tags, %v", len(listing.Tags), err)
	}
	r.Limit(2, time.Hour) // which only what is conditional and unchanged stays below
	from := len(r.Requests())
	again, err := r.Tags(t.Context(), target, listing.Validator)
	if err != nil || !again.Unchanged || again.About != nil {
		t.Errorf("%+v, %v", again, err)
	}
	if got := r.asked(from); strings.Count(got, "304 ") != 4 || strings.Count(got, "\n") != 3 {
		t.Errorf("asked\n%s", got)
	}
	r.Limit(5000, time.Hour)
	repository.Tag("v0.0.1", commit) // on the last page
	if again, err = r.Tags(t.Context(), target, listing.Validator); err != nil || again.Unchanged || len(again.Tags) != 251 {
		t.Fatalf("with a tag more: %+v, %v", again, err)
	}
	for i := range 49 {
		repository.Tag(fmt.Sprintf("v0.1.%d", i), commit)
	}
	full, err := r.Tags(t.Context(), target, again.Validator)
	if err != nil || len(full.Tags) != 300 {
		t.Fatalf("%+v, %v", full, err)
	}
	repository.Tag("v0.0.0", commit) // alone on a page that was not there
	if again, err = r.Tags(t.Context(), target, full.Validator); err != nil || again.Unchanged || len(again.Tags) != 301 {
		t.Errorf("with a page more: %d tags, %v", len(again.Tags), err)
	}
}

func TestGitHubRenamedAndArchived(t *testing.T) {
	r := newHub(t)
	commit := r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target := r.url + "/owner/name.git"
	before, err := r.Tags(t.Context(), target, "")
	if err != nil {
		t.Fatal(err)
	}
	r.Archive("owner/name")
	listing, err := r.Tags(t.Context(), target, before.Validator)
	if err != nil || !listing.Unchanged || listing.About == nil || !listing.About.Archived {
		t.Errorf("archived: %+v, %v", listing, err)
	}
	r.Rename("owner/name", "company/library")
	for range 2 { // the second time with what the first has told
		listing, err = r.Tags(t.Context(), target, listing.Validator)
		if err != nil || listing.About == nil || listing.About.Moved != "https://github.com/company/library" || !listing.About.Archived {
			t.Fatalf("renamed: %+v, %v", listing, err)
		}
	}
	if notes := strings.Join(listing.About.Notes(), "; "); !strings.Contains(notes, "moved to https://github.com/company/library") || !strings.Contains(notes, "archived") {
		t.Errorf("%q", notes)
	}
	release, err := r.Release(t.Context(), target, git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}, temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); got["a"] != "a" {
		t.Errorf("%q", got)
	}
	r.Remove("company/library")
	if _, err := r.Tags(t.Context(), target, listing.Validator); err == nil {
		t.Error("it is gone")
	}
	if _, err := r.Tags(t.Context(), r.url+"/owner/none", ""); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	for _, path := range []string{"/owner", "/owner/name/tree/main", "/../user", "/owner/.."} {
		if _, err := r.Tags(t.Context(), r.url+path, ""); err == nil || !strings.Contains(err.Error(), "not that of a repository at GitHub") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A long wait is not sat out: it is said until when it lasts.
func TestGitHubLimit(t *testing.T) {
	r := newHub(t)
	r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target := r.url + "/owner/name"
	r.Limit(2, time.Hour)
	if _, err := r.Tags(t.Context(), target, ""); err != nil {
		t.Fatal(err)
	}
	from := len(r.Requests())
	var limit *git.LimitError
	if _, err := r.Tags(t.Context(), target, ""); !errors.As(err, &limit) {
		t.Fatalf("%v", err)
	}
	if wait := time.Until(limit.Until); wait < 50*time.Minute || wait > 61*time.Minute {
		t.Errorf("until %s", limit.Until)
	}
	if got := r.asked(from); got != "" {
		t.Errorf("asked although it had to wait:\n%s", got)
	}
}

func TestGitHubTrouble(t *testing.T) {
	r := newHub(t)
	commit := r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target, tag := r.url+"/owner/name", git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}
	for _, tt := range []struct {
		fault githubtest.Fault
		want  string
	}{
		{githubtest.Fault{Path: "/tags", Status: 502}, "502 Bad Gateway"},
		{githubtest.Fault{Path: "/tarball", Status: 500}, "500 Internal Server Error"},
		{githubtest.Fault{Path: "/tarball", Status: 302, Header: map[string]string{"Location": "http://10.0.0.1/a.tar.gz"}}, "not https"},
		{githubtest.Fault{Path: "/tarball", Status: 302, Header: map[string]string{"Location": "https://10.0.0.1/a.tar.gz"}}, "not public"},
		{githubtest.Fault{Path: "/owner/name", Status: 301, Header: map[string]string{"Location": "https://other.example/repositories/1001"}}, "301 Moved Permanently"},
		{githubtest.Fault{Path: "/owner/name", Status: 301, Header: map[string]string{"Location": r.url + "/user"}}, "301 Moved Permanently"},
		{githubtest.Fault{Path: "/owner/name", Status: 403, Message: "Repository access blocked"}, "Repository access blocked"},
		{githubtest.Fault{Path: "/owner/name", Lose: true}, "EOF"},
	} {
		r.ClearFaults()
		r.Break(tt.fault)
		_, err := r.Tags(t.Context(), target, "")
		if err == nil {
			_, err = r.Release(t.Context(), target, tag, temp(t))
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), token) {
			t.Errorf("%+v: %v", tt.fault, err)
		}
	}
}
