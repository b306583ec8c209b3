// Package gittest makes git repositories and serves them over smart HTTP on the loopback, with git's own
// server, for tests. Tests are skipped where git is not installed.
//
// It is for tests only and knows nothing of the code it tests.
package gittest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/filemode"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage"
)

// TB is what of testing.TB is used.
type TB interface {
	Helper()
	Fatal(args ...any)
	Skip(args ...any)
	TempDir() string
	Cleanup(func())
}

// A Server serves the repositories below Dir.
type Server struct {
	// URL has no slash at its end.
	URL string
	Dir string

	mu       sync.Mutex
	requests []*http.Request
	front    http.Handler
}

// New starts a server over repositories in a folder of its own.
func New(t TB) *Server {
	t.Helper()
	s, stop, err := Start(t.TempDir())
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(stop)
	return s
}

// Backend returns git's own server for the bare repositories below dir, as hosts configure it: with partial clones. root is the
// path at which requests name dir. The error is that git is not installed.
func Backend(dir, root string) (http.Handler, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	return &cgi.Handler{
		Path: program, Root: root, Args: []string{"-c", "uploadpack.allowFilter=true", "http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1", "HOME=" + dir},
	}, nil
}

// Start starts a server over the bare repositories in dir. The error is that git is not there.
func Start(dir string) (*Server, func(), error) {
	handler, err := Backend(dir, "")
	if err != nil {
		return nil, nil, err
	}
	s := &Server{Dir: dir}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		front := s.front
		s.mu.Unlock()
		if front == nil {
			front = handler
		}
		front.ServeHTTP(w, r)
	}))
	s.URL = server.URL
	return s, server.Close, nil
}

// Requests returns what came. Their bodies are gone.
func (s *Server) Requests() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Answer has another handler answer from now on; nil: git again.
func (s *Server) Answer(h http.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.front = h
}

// A Repository is a bare one.
type Repository struct {
	// URL is where it is served.
	URL string
	*git.Repository
	t TB
}

// Repository makes an empty repository, whose default branch is main.
func (s *Server) Repository(t TB, name string) *Repository {
	t.Helper()
	r, err := git.PlainInitWithOptions(filepath.Join(s.Dir, filepath.FromSlash(name)), &git.PlainInitOptions{
		Bare: true, InitOptions: git.InitOptions{DefaultBranch: plumbing.Main},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &Repository{URL: s.URL + "/" + name, Repository: r, t: t}
}

// Use makes a Repository of one that exists already.
func Use(t TB, r *git.Repository) *Repository { return &Repository{Repository: r, t: t} }

// Files are those of a commit, by path. What begins a path says what is there: "link:" a symbolic link to
// the text, "submodule:" another repository at the commit that the text is, "raw:" a tree with one entry
// of that name, which is not taken for a path.
type Files map[string]string

// Commit makes a commit on main, and returns its hash.
func (r *Repository) Commit(at time.Time, files Files) string {
	r.t.Helper()
	root := &folder{}
	for name, text := range files {
		kind, rest, ok := strings.Cut(name, ":")
		mode := filemode.Regular
		switch {
		case ok && kind == "link":
			mode, name = filemode.Symlink, rest
		case ok && kind == "submodule":
			root.put(strings.Split(rest, "/"), object.TreeEntry{Mode: filemode.Submodule, Hash: plumbing.NewHash(text)})
			continue
		case ok && kind == "raw":
			root.put([]string{rest}, object.TreeEntry{Mode: mode, Hash: r.blob(text)})
			continue
		}
		root.put(strings.Split(name, "/"), object.TreeEntry{Mode: mode, Hash: r.blob(text)})
	}
	who := object.Signature{Name: "A. Author", Email: "author@example.com", When: at}
	c := &object.Commit{Author: who, Committer: who, Message: "A commit.", TreeHash: r.tree(root)}
	if head, err := r.Reference(plumbing.NewBranchReferenceName("main"), true); err == nil {
		c.ParentHashes = []plumbing.Hash{head.Hash()}
	}
	hash := r.object(c)
	r.set("refs/heads/main", hash)
	return hash.String()
}

// Tag names a commit.
func (r *Repository) Tag(name, commit string) {
	r.t.Helper()
	r.set("refs/tags/"+name, plumbing.NewHash(commit))
}

// Annotate names a commit with a tag that has a message.
func (r *Repository) Annotate(name, commit string) {
	r.t.Helper()
	who := object.Signature{Name: "A. Author", Email: "author@example.com", When: time.Unix(1700000000, 0)}
	t := &object.Tag{Name: name, Tagger: who, Message: "A tag.", TargetType: plumbing.CommitObject, Target: plumbing.NewHash(commit)}
	r.set("refs/tags/"+name, r.object(t))
}

// Untag removes a tag.
func (r *Repository) Untag(name string) {
	r.t.Helper()
	if err := r.Storer.RemoveReference(plumbing.ReferenceName("refs/tags/" + name)); err != nil {
		r.t.Fatal(err)
	}
}

// Release commits and tags.
func (r *Repository) Release(tag string, at time.Time, files Files) string {
	r.t.Helper()
	commit := r.Commit(at, files)
	r.Tag(tag, commit)
	return commit
}

// Repack puts all objects into one pack, built on each other where git finds that worthwhile.
func (s *Server) Repack(t TB, name string) {
	t.Helper()
	c := exec.Command("git", "-C", filepath.Join(s.Dir, filepath.FromSlash(name)), "repack", "-adfq", "--depth=40")
	c.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+s.Dir)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("%w: %s", err, bytes.TrimSpace(out)))
	}
}

func (r *Repository) set(ref string, hash plumbing.Hash) {
	if err := r.Storer.SetReference(plumbing.NewHashReference(plumbing.ReferenceName(ref), hash)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *Repository) blob(text string) plumbing.Hash {
	o := r.Storer.NewEncodedObject()
	o.SetType(plumbing.BlobObject)
	w, err := o.Writer()
	if err == nil {
		_, err = w.Write([]byte(text))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return store(r.t, r.Storer, o)
}

func (r *Repository) object(v interface {
	Encode(plumbing.EncodedObject) error
}) plumbing.Hash {
	o := r.Storer.NewEncodedObject()
	if err := v.Encode(o); err != nil {
		r.t.Fatal(err)
	}
	return store(r.t, r.Storer, o)
}

func store(t TB, s storage.Storer, o plumbing.EncodedObject) plumbing.Hash {
	hash, err := s.SetEncodedObject(o)
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// folder is a tree in the making.
type folder struct {
	entries []object.TreeEntry
	folders map[string]*folder
}

func (f *folder) put(path []string, e object.TreeEntry) {
	if len(path) == 1 {
		e.Name = path[0]
		f.entries = append(f.entries, e)
		return
	}
	if f.folders == nil {
		f.folders = map[string]*folder{}
	}
	if f.folders[path[0]] == nil {
		f.folders[path[0]] = &folder{}
	}
	f.folders[path[0]].put(path[1:], e)
}

// tree writes a tree by hand, because go-git refuses names that a stranger's repository may have.
func (r *Repository) tree(f *folder) plumbing.Hash {
	entries := slices.Clone(f.entries)
	for name, below := range f.folders {
		entries = append(entries, object.TreeEntry{Name: name, Mode: filemode.Dir, Hash: r.tree(below)})
	}
	slices.SortFunc(entries, func(a, b object.TreeEntry) int { return strings.Compare(sortedAs(a), sortedAs(b)) })
	o := r.Storer.NewEncodedObject()
	o.SetType(plumbing.TreeObject)
	w, err := o.Writer()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range entries {
		if _, err := fmt.Fprintf(w, "%o %s\x00%s", e.Mode, e.Name, e.Hash[:]); err != nil {
			r.t.Fatal(err)
		}
	}
	return store(r.t, r.Storer, o)
}

func sortedAs(e object.TreeEntry) string {
	if e.Mode == filemode.Dir {
		return e.Name + "/"
	}
	return e.Name
}
