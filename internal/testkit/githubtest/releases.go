package githubtest

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	git "github.com/go-git/go-git/v5"

	"github.com/larder-cdn/larder/internal/testkit/gittest"
)

// Repository returns the git repository behind a name, to commit to and to tag in.
func (s *Server) Repository(name string) *git.Repository {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.repositories[name].Repository
}

// Rename gives a repository another name. Clients that ask for the old one are redirected.
func (s *Server) Rename(name, to string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.repositories[name]
	delete(s.repositories, name)
	r.name = to
	s.repositories[to], s.moved[name] = r, r
}

// Star has a repository have that many stars, which are 250 at first.
func (s *Server) Star(name string, stars int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repositories[name].stars = stars
}

// Archive puts a repository away.
func (s *Server) Archive(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.repositories[name].archived = true
}

// Spoil changes the responses that have packs; nil ends that.
func (s *Server) Spoil(spoil func([]byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spoil = spoil
}

// Remove removes a repository, or makes it private, which is the same to clients.
func (s *Server) Remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.repositories, name)
}

// Deliver sends an event to a webhook, signed as GitHub does it.
func Deliver(url, secret, event string, payload []byte) (*http.Response, error) {
	r, err := http.NewRequest(http.MethodPost, url, bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(payload)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "GitHub-Hookshot/0000000")
	r.Header.Set("X-GitHub-Event", event)
	r.Header.Set("X-GitHub-Delivery", "00000000-0000-0000-0000-000000000000")
	r.Header.Set("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))
	return http.DefaultClient.Do(r)
}

// find returns the repository that a request is about, nil for none, and whether it has moved.
func (s *Server) find(r *http.Request) (_ *repository, moved bool) {
	if id := r.PathValue("id"); id != "" {
		for _, repo := range s.repositories {
			if strconv.Itoa(repo.id) == id {
				return repo, false
			}
		}
		return nil, false
	}
	name := r.PathValue("owner") + "/" + r.PathValue("name")
	if repo := s.repositories[name]; repo != nil {
		return repo, false
	}
	repo := s.moved[name]
	return repo, repo != nil
}

// conditional answers a GET, with 304 where the client has the answer already.
func (s *Server) conditional(w http.ResponseWriter, r *http.Request) (unchanged bool) {
	made := httptest.NewRecorder()
	s.mux.ServeHTTP(made, r)
	for name, values := range made.Header() {
		w.Header()[name] = values
	}
	if made.Code == http.StatusOK {
		etag := fmt.Sprintf(`W/"%x"`, sha256.Sum256(made.Body.Bytes()))
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return true
		}
	}
	w.WriteHeader(made.Code)
	_, _ = w.Write(made.Body.Bytes())
	return false
}

func (r *repository) get(*http.Request) (int, any, error) {
	return http.StatusOK, map[string]any{
		"id": r.id, "full_name": r.name, "html_url": "https://github.com/" + r.name, "private": false,
		"default_branch": r.defaultBranch, "archived": r.archived, "stargazers_count": r.stars, "forks": 12, "forks_count": 12, "watchers_count": r.stars, "subscribers_count": 9,
		"clone_url": cmp.Or(r.server.Web, "https://github.com") + "/" + r.name + ".git",
	}, nil
}

// gitPath is the path at which git reads and archives a repository, beside the API.
var gitPath = regexp.MustCompile(`^/([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+?)(?:\.git)?/(info/refs|git-upload-pack|archive/[0-9a-f]{40}\.tar)$`)

// serveGit serves a repository to git, without a token, and archives of its commits.
func (s *Server) serveGit(w http.ResponseWriter, q *http.Request) {
	m := gitPath.FindStringSubmatch(q.URL.Path)
	name, rest := m[1], m[2]
	r := s.repositories[name]
	if moved := s.moved[name]; r == nil && moved != nil {
		http.Redirect(w, q, "/"+moved.name+".git/"+rest+"?"+q.URL.RawQuery, http.StatusMovedPermanently)
		return
	}
	switch {
	case q.Header.Get("Authorization") != "":
		http.Error(w, "the token is none of this host's business", http.StatusBadRequest)
	case r == nil:
		http.Error(w, "Repository not found.", http.StatusUnauthorized) // as for a private one
	case strings.HasPrefix(rest, "archive/"):
		r.archive(w, q, strings.TrimSuffix(strings.TrimPrefix(rest, "archive/"), ".tar"))
	default:
		w.Header().Del("Content-Type")
		backend, err := gittest.Backend(r.dir, strings.TrimSuffix(q.URL.Path, "/"+rest))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotImplemented)
			return
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		q.Body = io.NopCloser(bytes.NewReader(body))
		if s.spoil == nil || !bytes.Contains(body, []byte("command=fetch")) {
			backend.ServeHTTP(w, q)
			return
		}
		response := httptest.NewRecorder()
		backend.ServeHTTP(response, q)
		w.Header().Set("Content-Type", response.Header().Get("Content-Type"))
		_, _ = w.Write(s.spoil(response.Body.Bytes()))
	}
}

// archive serves the files of a commit as GitHub does, by the attributes in it.
func (r *repository) archive(w http.ResponseWriter, q *http.Request, commit string) {
	w.Header().Set("Content-Type", "application/x-tar")
	made := exec.CommandContext(q.Context(), "git", "-C", r.dir, "archive", "--format=tar", commit)
	made.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+r.dir)
	made.Stdout = w
	if err := made.Run(); err != nil {
		panic(http.ErrAbortHandler)
	}
}
