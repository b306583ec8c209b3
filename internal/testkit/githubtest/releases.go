package githubtest

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
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

// Spoil changes what clients get as archives; nil ends that.
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

// getTags lists tags as GitHub does: by name, backwards, with the commits that they come to.
func (r *repository) getTags(q *http.Request) (int, any, error) {
	refs, err := r.Tags()
	if err != nil {
		return 0, nil, err
	}
	var tags []map[string]any
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		hash := ref.Hash()
		if t, err := r.TagObject(hash); err == nil {
			hash = t.Target
		}
		tags = append(tags, map[string]any{"name": ref.Name().Short(), "commit": map[string]any{"sha": hash.String()}})
		return nil
	})
	if err != nil {
		return 0, nil, err
	}
	slices.SortFunc(tags, func(a, b map[string]any) int { return strings.Compare(b["name"].(string), a["name"].(string)) })
	number := func(name string, otherwise int) int {
		if n, err := strconv.Atoi(q.URL.Query().Get(name)); err == nil && n > 0 {
			return n
		}
		return otherwise
	}
	per := min(number("per_page", 30), 100)
	from := min((number("page", 1)-1)*per, len(tags))
	page := tags[from:min(from+per, len(tags))]
	if page == nil {
		page = []map[string]any{}
	}
	return http.StatusOK, page, nil
}

// redirect is a body that is a path elsewhere on this server.
type redirect string

// codeload begins the paths of archives, which are on a host of their own at GitHub.
const codeload = "/_codeload/"

func (r *repository) getTarball(q *http.Request) (int, any, error) {
	c, err := r.CommitObject(plumbing.NewHash(q.PathValue("ref")))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusFound, redirect(codeload + r.name + "/legacy.tar.gz/" + c.Hash.String()), nil
}

// codeload answers with the archive of a commit, to clients without a token.
func (s *Server) codeload(w http.ResponseWriter, q *http.Request) {
	name, commit, ok := strings.Cut(strings.TrimPrefix(q.URL.Path, codeload), "/legacy.tar.gz/")
	r := s.repositories[name]
	if q.Header.Get("Authorization") != "" || !ok || r == nil {
		refuse(w, http.StatusBadRequest, "the token is none of codeload's business, or there is no such repository")
		return
	}
	c, err := r.CommitObject(plumbing.NewHash(commit))
	if err != nil {
		refuse(w, http.StatusNotFound, "Not Found")
		return
	}
	var archive bytes.Buffer
	z := gzip.NewWriter(&archive)
	out := tar.NewWriter(z)
	_ = out.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, Name: "pax_global_header", PAXRecords: map[string]string{"comment": commit}})
	if err := r.pack(out, strings.ReplaceAll(name, "/", "-")+"-"+commit[:7], c.TreeHash, c.Committer.When); err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = out.Close(), z.Close()
	data := archive.Bytes()
	if s.spoil != nil {
		data = s.spoil(data)
	}
	w.Header().Set("Content-Type", "application/x-gzip")
	_, _ = w.Write(data)
}

// pack writes a tree as `git archive` does.
func (r *repository) pack(out *tar.Writer, dir string, tree plumbing.Hash, at time.Time) error {
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o775, ModTime: at}); err != nil {
		return err
	}
	t, err := r.TreeObject(tree)
	if err != nil {
		return err
	}
	for _, e := range t.Entries {
		if err := r.packEntry(out, path.Join(dir, e.Name), e, at); err != nil {
			return err
		}
	}
	return nil
}

func (r *repository) packEntry(out *tar.Writer, name string, e object.TreeEntry, at time.Time) error {
	switch e.Mode {
	case filemode.Dir:
		return r.pack(out, name, e.Hash, at)
	case filemode.Submodule: // an empty folder, as in a clone without its submodules
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o775, ModTime: at})
	}
	blob, err := r.BlobObject(e.Hash)
	if err != nil {
		return err
	}
	data, err := content(blob)
	if err != nil {
		return err
	}
	if e.Mode == filemode.Symlink {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: string(data), ModTime: at})
	}
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o664, ModTime: at}); err != nil {
		return err
	}
	_, err = io.Copy(out, bytes.NewReader(data))
	return err
}
