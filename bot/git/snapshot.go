package git

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	gogit "github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"

	"github.com/larder-cdn/larder/bot/fetch"
)

// Remote is a repository that the operator named: it may have any address, and be asked over http.
type Remote struct {
	// URL is where it is, without a user or a password.
	URL *url.URL
	// Branch is the branch to read; "" for the default one.
	Branch string
	// Token is sent to the host of URL, where it is not "" and goes over TLS or stays on this machine.
	Token string
}

// A Head is the last commit of a branch.
type Head struct {
	// Commit is in hexadecimal digits.
	Commit string
	// Branch is its name, where that is known.
	Branch string
}

func (r Remote) access() access {
	host := *r.URL
	local := host.Hostname() == "127.0.0.1" || host.Hostname() == "::1" || host.Hostname() == "localhost"
	return access{
		trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, &host) },
		authorization: func(u *url.URL) string {
			if r.Token == "" || !fetch.SameOrigin(u, &host) || u.Scheme != "https" && !local {
				return ""
			}
			// What GitHub, Gitea and GitLab take: any user, and the token for a password.
			return "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+r.Token))
		},
	}
}

// Head returns the last commit of a remote's branch. A repository or a branch that is not there is
// [fetch.ErrNotFound].
func (c *Client) Head(ctx context.Context, r Remote) (Head, error) {
	s, err := c.open(ctx, r.URL, r.access())
	if err != nil {
		return Head{}, named(fetch.Show(r.URL), err)
	}
	defer s.Close()
	head, _, err := s.head(r.Branch)
	return head, named(fetch.Show(r.URL), err)
}

// Snapshot gets the files of the last commit of a remote's branch into dst, as an archive.
func (c *Client) Snapshot(ctx context.Context, r Remote, dst *os.File) (Head, *Release, error) {
	if err := empty(dst); err != nil {
		return Head{}, nil, err
	}
	s, err := c.open(ctx, r.URL, r.access())
	if err != nil {
		return Head{}, nil, named(fetch.Show(r.URL), err)
	}
	defer s.Close()
	head, hash, err := s.head(r.Branch)
	if err != nil {
		return Head{}, nil, named(fetch.Show(r.URL), err)
	}
	release, err := c.take(ctx, s, hash, head.Commit, dst)
	return head, release, named(fetch.Show(r.URL), err)
}

func (s *session) head(branch string) (Head, plumbing.Hash, error) {
	if branch != "" {
		hash, ok := s.refs.References[plumbing.NewBranchReferenceName(branch).String()]
		if !ok {
			return Head{}, hash, fmt.Errorf("the branch %.100q: %w", branch, fetch.ErrNotFound)
		}
		return Head{hash.String(), branch}, hash, nil
	}
	if s.refs.Head == nil {
		return Head{}, plumbing.ZeroHash, errors.New("the repository has no commit yet")
	}
	head := Head{Commit: s.refs.Head.String()}
	for _, symbolic := range s.refs.Capabilities.Get(capability.SymRef) {
		if name, ok := strings.CutPrefix(symbolic, "HEAD:refs/heads/"); ok {
			head.Branch = name
		}
	}
	return head, *s.refs.Head, nil
}

// IsRepository reports whether a folder is a bare repository, such as one made with `git clone --bare` or
// --mirror: it has no files to read but through git.
func IsRepository(dir string) bool {
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if _, err := os.Stat(dir + string(os.PathSeparator) + name); err != nil {
			return false
		}
	}
	return true
}

// LocalHead returns the last commit of a branch, "" for the default one, of a bare repository on this
// machine.
func LocalHead(dir, branch string) (Head, error) {
	_, head, err := localHead(dir, branch)
	return head, err
}

func localHead(dir, branch string) (*gogit.Repository, Head, error) {
	r, err := gogit.PlainOpen(dir)
	if err != nil {
		return nil, Head{}, fmt.Errorf("git repository %s: %w", dir, err)
	}
	name := plumbing.HEAD
	if branch != "" {
		name = plumbing.NewBranchReferenceName(branch)
	}
	ref, err := r.Reference(name, true)
	if err != nil {
		return nil, Head{}, fmt.Errorf("git repository %s: branch %q: %w", dir, branch, err)
	}
	return r, Head{ref.Hash().String(), ref.Name().Short()}, nil
}

// LocalSnapshot is Client.Snapshot for a bare repository on this machine.
func LocalSnapshot(ctx context.Context, dir, branch string, dst *os.File) (Head, *Release, error) {
	if err := empty(dst); err != nil {
		return Head{}, nil, err
	}
	r, head, err := localHead(dir, branch)
	if err != nil {
		return Head{}, nil, err
	}
	get := func(h plumbing.Hash) (plumbing.EncodedObject, error) {
		return r.Storer.EncodedObject(plumbing.AnyObject, h)
	}
	commit, err := readCommit(get, plumbing.NewHash(head.Commit))
	if err != nil {
		return Head{}, nil, err
	}
	release, err := exported(ctx, get, commit, dst)
	return head, release, err
}
