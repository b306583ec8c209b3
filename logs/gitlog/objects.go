package gitlog

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/go-github/v60/github"
)

// A tip is the last commit of the branch, or the one that will be.
type tip struct {
	position Position
	commit   string // hash, or ""
	tree     string // its hash
	// empty says that the repository has nothing at all: then GitHub makes objects of no
	// kind, and the first commit in another way.
	empty bool
}

// notPushed is what to do about a branch that another program has committed to.
const notPushed = "nothing is pushed there: give a new branch or an empty repository, or take the branch back to Larder's last commit"

// readTip requests the last commit of the branch from GitHub, and how far it has come. A missing branch and an empty
// repository have the position -1. A last commit that Larder has not made is an error.
func (p *Pusher) readTip(ctx context.Context) (tip, error) {
	r := p.Remote
	none := tip{position: Position{Index: -1}}
	ref, _, err := newClient(p).Git.GetRef(ctx, r.Owner, r.Name, r.ref().String())
	switch statusOf(err) {
	case http.StatusNotFound: // the branch, or all of it
		_, err = p.getRepository(ctx)
		return none, err
	case http.StatusConflict: // "Git Repository is empty."
		about, err := p.getRepository(ctx)
		if err != nil {
			return tip{}, err
		}
		// GitHub makes the first commit on its default branch.
		if b := about.GetDefaultBranch(); b != "" && b != r.Branch {
			return tip{}, fmt.Errorf("the repository is empty, and GitHub makes its first commit on %s: name it %s/%s@%s, or make any first commit there", b, r.Owner, r.Name, b)
		}
		none.empty = true
		return none, nil
	}
	if err != nil {
		return tip{}, p.describeError("read the branch", err)
	}
	sha := ref.GetObject().GetSHA()
	commit, _, err := newClient(p).Git.GetCommit(ctx, r.Owner, r.Name, sha)
	if err != nil {
		return tip{}, p.describeError("read the last commit of the branch", err)
	}
	at, err := ParseMessage(commit.GetMessage())
	if err != nil {
		return tip{}, fmt.Errorf("the last commit of the branch, %s, was not made by Larder; %s", sha, notPushed)
	}
	return newTip(at, sha, commit.GetTree())
}

// getRepository requests the description of the repository.
func (p *Pusher) getRepository(ctx context.Context) (*github.Repository, error) {
	about, _, err := newClient(p).Repositories.Get(ctx, p.Remote.Owner, p.Remote.Name)
	return about, p.describeError("find the repository", err)
}

// push creates a commit for each change and moves the branch to the last one. If a commit fails, it moves the branch to the
// one before; if ctx ends, it does not move the branch. It returns the branch's last commit as far as it knows, also with an
// error. batch must not be empty.
func (p *Pusher) push(ctx context.Context, from tip, batch []Change) (tip, error) {
	at := from
	var err error
	if from.empty {
		if from, err = p.createFirstCommit(ctx, batch[0]); err != nil {
			return at, err
		}
		at, batch = from, batch[1:]
	}
	files := map[string][]byte{} // that the batch has written
	for _, c := range batch {
		var next tip
		if next, err = p.createCommit(ctx, at, from, c, files); err != nil {
			err = fmt.Errorf("entry %d: %w", c.Index, err)
			break
		}
		at = next
	}
	if at == from || ctx.Err() != nil {
		return from, errors.Join(err, ctx.Err())
	}
	// The branch moves to the last commit that was made, so that the next attempt does not repeat it.
	if failed := p.moveBranch(ctx, from, at); failed != nil {
		return from, cmp.Or(err, failed)
	}
	return at, err
}

// createFirstCommit creates the first commit of an empty repository, by which GitHub also creates the branch.
func (p *Pusher) createFirstCommit(ctx context.Context, c Change) (tip, error) {
	r := p.Remote
	who, message := author(c), c.Message()
	made, _, err := newClient(p).Repositories.CreateFile(ctx, r.Owner, r.Name, escapePath(c.Path), &github.RepositoryContentFileOptions{
		Message: &message, Content: c.Append(nil), Author: who, Committer: who,
	})
	if err != nil {
		return tip{}, p.describeError("make the first commit", err)
	}
	return newTip(c.Position(), made.Commit.GetSHA(), made.Commit.GetTree())
}

// createCommit creates the commit of a change after the commit at, and returns it; the branch does not move. The branch is at
// the commit from; files has the content of the files that the commits between have written, by path, and gets that of this
// one.
func (p *Pusher) createCommit(ctx context.Context, at, from tip, c Change, files map[string][]byte) (tip, error) {
	r := p.Remote
	before, written := files[c.Path]
	if !written {
		var err error
		if before, err = p.getFile(ctx, from, c.Path); err != nil {
			return tip{}, err
		}
	}
	content := c.Append(before[:len(before):len(before)])
	entry := &github.TreeEntry{Path: &c.Path, Mode: github.String("100644"), Type: github.String("blob")}
	if len(content) <= inlineBytes && utf8.Valid(content) {
		entry.Content = github.String(string(content))
	} else {
		blob, _, err := newClient(p).Git.CreateBlob(ctx, r.Owner, r.Name, &github.Blob{
			Content: github.String(base64.StdEncoding.EncodeToString(content)), Encoding: github.String("base64"),
		})
		if err != nil {
			return tip{}, p.describeError("make a file", err)
		}
		entry.SHA = blob.SHA
	}
	tree, _, err := newClient(p).Git.CreateTree(ctx, r.Owner, r.Name, at.tree, []*github.TreeEntry{entry})
	if err != nil {
		return tip{}, p.describeError("make a tree", err)
	}
	who, message := author(c), c.Message()
	commit := &github.Commit{Message: &message, Tree: tree, Author: who, Committer: who}
	if at.commit != "" {
		commit.Parents = []*github.Commit{{SHA: &at.commit}}
	}
	made, _, err := newClient(p).Git.CreateCommit(ctx, r.Owner, r.Name, commit, nil)
	if err != nil {
		return tip{}, p.describeError("make a commit", err)
	}
	files[c.Path] = content
	return newTip(c.Position(), made.GetSHA(), tree)
}

// inlineBytes is what a file may have that is sent with its tree.
const inlineBytes = 1 << 20

// getFile returns the content of a file on the branch, nil if there is no such file. The library's own function refuses paths
// with two dots, which versions may have.
func (p *Pusher) getFile(ctx context.Context, at tip, path string) ([]byte, error) {
	if at.commit == "" {
		return nil, nil
	}
	r := p.Remote
	request, err := newClient(p).NewRequest(http.MethodGet, fmt.Sprintf("repos/%s/%s/contents/%s?ref=%s", r.Owner, r.Name, escapePath(path), at.commit), nil)
	if err != nil {
		return nil, err
	}
	var found github.RepositoryContent
	_, err = newClient(p).Do(ctx, request, &found)
	if e := (*github.ErrorResponse)(nil); errors.As(err, &e) && statusOf(err) == http.StatusNotFound && !strings.Contains(e.Message, "ref") {
		return nil, nil // and not the commit, of which it says so
	}
	if err != nil {
		return nil, p.describeError("read "+path, err)
	}
	if found.GetType() != "file" {
		return nil, fmt.Errorf("%s is not a file there", path)
	}
	var content []byte
	if found.GetEncoding() == "base64" && found.Content != nil {
		content, err = base64.StdEncoding.DecodeString(strings.ReplaceAll(*found.Content, "\n", ""))
	} else { // one of more than a megabyte
		content, _, err = newClient(p).Git.GetBlobRaw(ctx, r.Owner, r.Name, found.GetSHA())
	}
	if err != nil {
		return nil, p.describeError("read "+path, err)
	}
	if len(content) != found.GetSize() {
		return nil, fmt.Errorf("%s came with %d bytes of %d", path, len(content), found.GetSize())
	}
	return append([]byte{}, content...), nil // an empty file is one
}

// moveBranch moves the branch to a commit, or creates it if from has no commit. It fails if another program has moved the
// branch.
func (p *Pusher) moveBranch(ctx context.Context, from, to tip) (err error) {
	r := p.Remote
	ref := &github.Reference{Ref: github.String(r.ref().String()), Object: &github.GitObject{SHA: &to.commit}}
	if from.commit == "" {
		_, _, err = newClient(p).Git.CreateRef(ctx, r.Owner, r.Name, ref)
	} else {
		_, _, err = newClient(p).Git.UpdateRef(ctx, r.Owner, r.Name, ref, false)
	}
	return p.describeError("move the branch", err)
}

// newTip returns the tip of a commit, by its hash, with its tree. A response of GitHub that lacks a hash is an error.
func newTip(at Position, commit string, tree *github.Tree) (tip, error) {
	if commit == "" || tree.GetSHA() == "" {
		return tip{}, errors.New("GitHub's answer does not name the commit and its tree")
	}
	return tip{position: at, commit: commit, tree: tree.GetSHA()}, nil
}

// author returns the author of a change's commit.
func author(c Change) *github.CommitAuthor {
	return &github.CommitAuthor{Name: github.String(AuthorName), Email: github.String(AuthorEmail), Date: &github.Timestamp{Time: c.Time.UTC().Truncate(time.Second)}}
}

// escapePath returns a path percent-encoded; its slashes stay.
func escapePath(path string) string { return (&url.URL{Path: path}).EscapedPath() }

// statusOf returns the HTTP status of an error of GitHub's API, 0 if it has none.
func statusOf(err error) int {
	if e := (*github.ErrorResponse)(nil); errors.As(err, &e) && e.Response != nil {
		return e.Response.StatusCode
	}
	return 0
}

// describeError returns an error that says which action failed, and what to do about it if that is known; nil for nil.
func (p *Pusher) describeError(what string, err error) error {
	if err == nil {
		return nil
	}
	advice := ""
	switch s := statusOf(err); {
	case s == http.StatusUnauthorized:
		advice = "; the token is wrong, or has expired: make another one, and start again with it"
	case s == http.StatusForbidden:
		advice = "; the token must be allowed to write the contents of the repository, and the branch must not be protected from it"
	case s == http.StatusNotFound:
		advice = "; there is no such repository, or the token must not know of it"
	case s >= 300 && s < 400:
		advice = "; the repository has moved: name it as it is called now"
	case s == http.StatusUnprocessableEntity && what == "move the branch":
		advice = "; another writer has moved it, or it is protected"
	}
	return fmt.Errorf("couldn't %s: %s%s", what, p.Describe(err), advice)
}
