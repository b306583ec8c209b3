package githubtest

import (
	"cmp"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	git "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/revlist"
)

// collaboration is what repositories have besides git.
type collaboration struct {
	pulls  []*pull
	hooks  []hook
	events int // that were sent
	seen   map[string]string
}

// A pull is a pull request.
type pull struct {
	number       int
	title        string
	base, head   *repository
	onto, branch string // of base and of head
	sha          string // of head, as it was last seen
	closed       bool
	merged       string // the commit, "" before
}

func (s *Server) pullRoutes() {
	s.handle("POST /forks", s.createFork)
	s.handle("POST /pulls", s.createPull)
	s.handle("PUT /pulls/{number}/merge", s.mergePull)
	s.handle("POST /hooks", s.createHook)
}

func (s *Server) fork(from *repository, to, dir string) error {
	made, err := git.PlainInitWithOptions(dir, &git.PlainInitOptions{
		Bare: true, InitOptions: git.InitOptions{DefaultBranch: plumbing.NewBranchReferenceName(from.defaultBranch)},
	})
	if err != nil {
		return err
	}
	s.ids++
	r := &repository{Repository: made, server: s, dir: dir, id: 1000 + s.ids, name: to, defaultBranch: from.defaultBranch}
	refs, err := from.Branches()
	if err != nil {
		return err
	}
	err = refs.ForEach(func(ref *plumbing.Reference) error {
		if err := carry(from, r, ref.Hash()); err != nil {
			return err
		}
		return r.Storer.SetReference(ref)
	})
	s.repositories[to] = r
	return err
}

func (s *Server) createFork(r *repository, q *http.Request) (int, any, error) {
	in, err := read[struct{ Organization string }](q)
	if err != nil {
		return 0, nil, err
	}
	_, short, _ := strings.Cut(r.name, "/")
	name := in.Organization + "/" + short
	if s.Folder == "" || s.repositories[name] != nil {
		return 0, nil, problem{http.StatusForbidden, "The repository exists or its owner does not allow forks"}
	}
	if err := s.fork(r, name, filepath.Join(s.Folder, filepath.FromSlash(name)+".git")); err != nil {
		return 0, nil, err
	}
	_, body, err := s.repositories[name].get(q)
	return http.StatusAccepted, body, err
}

// carry copies what a commit needs from one repository to another.
func carry(from, to *repository, commit plumbing.Hash) error {
	if _, err := to.CommitObject(commit); err == nil || from == to {
		return nil
	}
	hashes, err := revlist.Objects(from.Storer, []plumbing.Hash{commit}, nil)
	if err != nil {
		return err
	}
	for _, h := range hashes {
		if to.Storer.HasEncodedObject(h) == nil {
			continue
		}
		o, err := from.Storer.EncodedObject(plumbing.AnyObject, h)
		if err != nil {
			return err
		}
		if _, err := to.Storer.SetEncodedObject(o); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) open(base, head *repository, branch, title string) (*pull, error) {
	p := &pull{number: 1, title: title, base: base, head: head, onto: base.defaultBranch, branch: branch}
	for _, other := range s.pulls {
		if other.base == base {
			p.number = max(p.number, other.number+1)
		}
	}
	if err := p.follow(); err != nil {
		return nil, err
	}
	s.pulls = append(s.pulls, p)
	s.tell(base, "pull_request", p.event("opened"))
	return p, nil
}

// follow notes the head that a pull request has now; the base gets it, too, as at GitHub.
func (p *pull) follow() error {
	c, err := p.head.head("heads/" + p.branch)
	if err != nil {
		return problem{http.StatusUnprocessableEntity, "Validation Failed: head is not valid"}
	}
	if err := carry(p.head, p.base, c.Hash); err != nil {
		return err
	}
	p.sha = c.Hash.String()
	return p.base.set(fmt.Sprintf("refs/pull/%d/head", p.number), p.sha)
}

// Notice looks for what was pushed since the last time, tells webhooks of it, and moves pull requests to
// their new heads.
func (s *Server) Notice() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string]string{}
	}
	for _, r := range s.repositories {
		refs, err := r.Branches()
		if err != nil {
			continue
		}
		_ = refs.ForEach(func(ref *plumbing.Reference) error {
			key, now := r.name+" "+ref.Name().String(), ref.Hash().String()
			before := cmp.Or(s.seen[key], plumbing.ZeroHash.String())
			if s.seen[key] = now; before != now {
				s.tell(r, "push", map[string]any{"ref": ref.Name().String(), "before": before, "after": now, "deleted": false, "commits": []any{}})
			}
			return nil
		})
	}
	for _, p := range s.pulls {
		before := p.sha
		if p.closed {
			continue
		}
		if err := p.follow(); err == nil && p.sha != before {
			s.tell(p.base, "pull_request", p.event("synchronize"))
		}
	}
}

func (s *Server) pull(base *repository, number string) (*pull, error) {
	for _, p := range s.pulls {
		if p.base == base && strconv.Itoa(p.number) == number {
			return p, nil
		}
	}
	return nil, notFound
}

func (p *pull) body() map[string]any {
	state := "open"
	if p.closed {
		state = "closed"
	}
	onto := ""
	if c, err := p.base.head("heads/" + p.onto); err == nil {
		onto = c.Hash.String()
	}
	side := func(r *repository, branch, sha string) map[string]any {
		owner, _, _ := strings.Cut(r.name, "/")
		_, repo, _ := r.get(nil)
		return map[string]any{"label": owner + ":" + branch, "ref": branch, "sha": sha, "repo": repo, "user": map[string]any{"login": owner}}
	}
	return map[string]any{
		"number": p.number, "title": p.title, "state": state, "merged": p.merged != "", "draft": false,
		"head": side(p.head, p.branch, p.sha), "base": side(p.base, p.onto, onto),
	}
}

func (p *pull) event(action string) map[string]any {
	return map[string]any{"action": action, "number": p.number, "pull_request": p.body()}
}

func (s *Server) createPull(r *repository, q *http.Request) (int, any, error) {
	in, err := read[struct{ Title, Head, Base string }](q)
	if err != nil {
		return 0, nil, err
	}
	_, short, _ := strings.Cut(r.name, "/")
	head, branch := r, in.Head
	if owner, rest, ok := strings.Cut(in.Head, ":"); ok {
		head, branch = s.repositories[owner+"/"+short], rest
	}
	if head == nil || in.Base != r.defaultBranch {
		return 0, nil, problem{http.StatusUnprocessableEntity, "Validation Failed: head or base is not valid"}
	}
	p, err := s.open(r, head, branch, in.Title)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, p.body(), nil
}

// mergePull makes a merge commit, where the base has not changed meanwhile.
func (s *Server) mergePull(r *repository, q *http.Request) (int, any, error) {
	p, err := s.pull(r, q.PathValue("number"))
	if err != nil {
		return 0, nil, err
	}
	base, err := r.head("heads/" + p.onto)
	if err != nil {
		return 0, nil, err
	}
	head, err := r.CommitObject(plumbing.NewHash(p.sha))
	if err != nil {
		return 0, nil, err
	}
	if forward, err := base.IsAncestor(head); err != nil || !forward || p.closed {
		return 0, nil, problem{http.StatusMethodNotAllowed, "Pull Request is not mergeable"}
	}
	who := object.Signature{Name: "GitHub", Email: "noreply@github.com", When: time.Now()}
	merge, err := r.store(&object.Commit{
		Author: who, Committer: who, Message: fmt.Sprintf("Merge pull request #%d", p.number),
		TreeHash: head.TreeHash, ParentHashes: []plumbing.Hash{base.Hash, head.Hash},
	})
	if err != nil {
		return 0, nil, err
	}
	ref := "refs/heads/" + p.onto
	if err := r.set(ref, merge.String()); err != nil {
		return 0, nil, err
	}
	p.closed, p.merged = true, merge.String()
	if s.seen == nil {
		s.seen = map[string]string{}
	}
	s.seen[r.name+" "+ref] = p.merged
	s.tell(r, "pull_request", p.event("closed"))
	s.tell(r, "push", map[string]any{"ref": ref, "before": base.Hash.String(), "after": p.merged, "deleted": false, "commits": []any{}})
	return http.StatusOK, map[string]any{"sha": p.merged, "merged": true, "message": "Pull Request successfully merged"}, nil
}
