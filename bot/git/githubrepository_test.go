package git_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/bot/git"
	"github.com/larder-cdn/larder/internal/testkit/githubtest"
	"github.com/larder-cdn/larder/internal/testkit/gittest"
	"github.com/larder-cdn/larder/packages/archive"
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

// requested returns the paths of requests, without those before from, with their statuses.
func (r *hubRig) requested(from int) string {
	var all []string
	for _, q := range r.Requests()[from:] {
		all = append(all, fmt.Sprintf("%d %s", q.Status, q.Path))
	}
	return strings.Join(all, "\n")
}

func TestGitHub(t *testing.T) {
	r := newHub(t)
	first, second := releases(r.add(t, "owner/name"))
	wantReleases(t, r.Client, r.url+"/owner/name", first, second)
	if strings.Contains(r.log.String(), token) {
		t.Error("the token is in the log")
	}
	for _, q := range r.Requests() {
		if strings.HasPrefix(q.Path, "/repos/") {
			t.Errorf("the API was requested: %s", q.Path)
		}
	}
}

// Files are the ones of the commit. GitHub's archive of the same commit has others.
func TestGitHubExportAttributes(t *testing.T) {
	r := newHub(t)
	files := gittest.Files{".gitattributes": "secret.js export-ignore\nversion.js export-subst\n", "secret.js": "x", "version.js": "v = '$Format:%H$'", "a.js": "a"}
	commit := r.add(t, "owner/name").Release("v1.0.0", noon, files)
	response, err := http.Get(r.url + "/owner/name/archive/" + commit + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	dst := temp(t)
	if _, err := io.Copy(dst, response.Body); err != nil {
		t.Fatal(err)
	}
	source, err := archive.OpenDownload(dst)
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, source); len(got) != 3 || got["version.js"] != "v = '"+commit+"'" {
		t.Errorf("the archive does not apply the attributes: %q", got)
	}
	release, err := r.Release(t.Context(), r.url+"/owner/name", git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}, nil, temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); !maps.Equal(got, files) {
		t.Errorf("%q", got)
	}
}

// Whatever form the address of a repository at GitHub has, its API is requested.
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
		if found, _, err := c.Describe(t.Context(), target, ""); err != nil || found.ID == 0 {
			t.Errorf("%s: %+v, %v", target, found, err)
		}
	}
}

// A renamed repository keeps its id, and another one of the same name has another.
func TestGitHubRenamedAndReplaced(t *testing.T) {
	r := newHub(t)
	commit := r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target := r.url + "/owner/name.git"
	before, etag, err := r.Describe(t.Context(), target, "")
	if err != nil || before.ID == 0 || before.Archived || before.Stars != 250 {
		t.Fatalf("%+v, %v", before, err)
	}
	if again, _, err := r.Describe(t.Context(), target, etag); err != nil || again != nil {
		t.Errorf("unchanged: %+v, %v", again, err)
	}
	r.Archive("owner/name")
	if now, _, err := r.Describe(t.Context(), target, etag); err != nil || now == nil || !now.Archived {
		t.Errorf("archived: %+v, %v", now, err)
	}
	r.Rename("owner/name", "company/library")
	now, _, err := r.Describe(t.Context(), target, etag)
	if err != nil || now.ID != before.ID || now.Address != "https://github.com/company/library" {
		t.Fatalf("renamed: %+v, %v", now, err)
	}
	if listing, err := r.Tags(t.Context(), target, ""); err != nil || listing.Moved != r.url+"/company/library.git" || len(listing.Tags) != 1 {
		t.Errorf("renamed: %+v, %v", listing, err)
	}
	release, err := r.Release(t.Context(), target, git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}, nil, temp(t))
	if err != nil {
		t.Fatal(err)
	}
	if got := contents(t, release.Archive); got["a"] != "a" {
		t.Errorf("%q", got)
	}
	r.add(t, "owner/name")
	if now, _, err := r.Describe(t.Context(), target, ""); err != nil || now.ID == before.ID {
		t.Errorf("replaced: %+v, %v", now, err)
	}
	if _, _, err := r.Describe(t.Context(), r.url+"/owner/none", ""); !errors.Is(err, fetch.ErrNotFound) {
		t.Errorf("none: %v", err)
	}
	for _, path := range []string{"/owner", "/owner/name/tree/main", "/../user", "/owner/.."} {
		_, err := r.Tags(t.Context(), r.url+path, "")
		if _, _, described := r.Describe(t.Context(), r.url+path, ""); err == nil || described == nil || !strings.Contains(err.Error(), "not that of a repository at GitHub") {
			t.Errorf("%s: %v, %v", path, err, described)
		}
	}
}

// A long wait is not sat out: it is said until when it lasts.
func TestGitHubLimit(t *testing.T) {
	r := newHub(t)
	r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target := r.url + "/owner/name"
	r.Limit(1, time.Hour)
	if _, _, err := r.Describe(t.Context(), target, ""); err != nil {
		t.Fatal(err)
	}
	from := len(r.Requests())
	var limit *git.LimitError
	if _, _, err := r.Describe(t.Context(), target, ""); !errors.As(err, &limit) {
		t.Fatalf("%v", err)
	}
	if wait := time.Until(limit.Until); wait < 50*time.Minute || wait > 61*time.Minute {
		t.Errorf("until %s", limit.Until)
	}
	if got := r.requested(from); got != "" {
		t.Errorf("requests before the limit ended:\n%s", got)
	}
	if listing, err := r.Tags(t.Context(), target, ""); err != nil || len(listing.Tags) != 1 {
		t.Errorf("tags need no API: %+v, %v", listing, err)
	}
}

func TestGitHubErrors(t *testing.T) {
	r := newHub(t)
	commit := r.add(t, "owner/name").Release("v1.0.0", noon, gittest.Files{"a": "a"})
	target, tag := r.url+"/owner/name", git.Tag{Version: "1.0.0", Name: "v1.0.0", Commit: commit}
	for _, tt := range []struct {
		fault githubtest.Fault
		want  string
	}{
		{githubtest.Fault{Path: "/info/refs", Status: 502}, "502 Bad Gateway"},
		{githubtest.Fault{Path: "/git-upload-pack", Skip: 1, Status: 500}, "500 Internal Server Error"},
		{githubtest.Fault{Path: "/info/refs", Status: 302, Header: map[string]string{"Location": "http://10.0.0.1/a.git/info/refs"}}, "not https"},
		{githubtest.Fault{Path: "/info/refs", Status: 302, Header: map[string]string{"Location": "https://10.0.0.1/a.git/info/refs"}}, "not public"},
		{githubtest.Fault{Path: "/git-upload-pack", Status: 302, Header: map[string]string{"Location": "/other.git/git-upload-pack"}}, "302 Found"},
		{githubtest.Fault{Path: "/repos/owner/name", Status: 301, Header: map[string]string{"Location": "https://other.example/repositories/1001"}}, "301 Moved Permanently"},
		{githubtest.Fault{Path: "/repos/owner/name", Status: 301, Header: map[string]string{"Location": r.url + "/user"}}, "301 Moved Permanently"},
		{githubtest.Fault{Path: "/repos/owner/name", Status: 403, Message: "Repository access blocked"}, "Repository access blocked"},
		{githubtest.Fault{Path: "/repos/owner/name", Lose: true}, "EOF"},
	} {
		r.ClearFaults()
		r.Break(tt.fault)
		_, err := r.Tags(t.Context(), target, "")
		if err == nil {
			_, err = r.Release(t.Context(), target, tag, nil, temp(t))
		}
		if err == nil {
			_, _, err = r.Describe(t.Context(), target, "")
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), token) {
			t.Errorf("%+v: %v", tt.fault, err)
		}
	}
}
