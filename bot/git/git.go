// Package git reads releases, and catalogues, from git repositories: which tags there are, and the files
// of one commit.
//
// Repositories at GitHub are read through its API, all others over git's own protocol (smart HTTP). What
// it guarantees:
//
//   - Addresses are strangers': https only, under package fetch's rules, at every redirect. Credentials go
//     to GitHub's API, and to the origin of a [Remote] that has a token; nowhere else.
//   - Nothing is checked out. The files of a commit become an archive, in a file that the caller names,
//     which is read under package archive's rules. A pack that it takes has bounds on its bytes,
//     its objects, how large they become and how deep they are built on each other.
//   - Files are those of the commit that the tag named when it was listed: objects are found by their
//     hash, computed here; GitHub is asked for the commit, not for the tag.
//   - Submodules, symbolic links and Git LFS pointers are left out and told of, never followed.
//   - GitHub's limits are waited for, and a wait that is long is a [LimitError] that says until when.
//
// A [GitHubClient] is a client of GitHub's REST API, for GitHub itself and GitHub Enterprise Server. It sends the token only to the
// configured host, over TLS unless that is this machine; the token is in no error and no log. A request that would exceed a rate limit
// waits as long as its context allows, and is sent again if GitHub reports that it exceeded one. Nothing else is sent twice.
// Responses have a limit on size and time. A [Webhook] verifies the signature of what a git host or an npm registry sends.
//
// The package must not know what becomes of a release, nor keep anything on disk.
package git

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/storer"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/baregit"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/packages/archive"
)

// Options say what a [Client] works with. Fetch is required.
type Options struct {
	// Fetch gets what strangers name.
	Fetch *fetch.Client
	// GitHub is asked about the repositories on its host. Nil: those are read like all others.
	GitHub *GitHubClient
	// PackBytes is the most bytes that a pack, or GitHub's archive of a commit, may have; default 512 MiB.
	PackBytes int64
	// RefBytes is the most bytes that the list of a repository's references may have; default 16 MiB.
	RefBytes int64
}

// A Client reads repositories. It is safe for concurrent use.
type Client struct {
	o    Options
	hub  *hub          // nil where GitHub is not asked
	pack chan struct{} // held while a pack is taken apart, because that takes memory
}

// New returns a client. It asks for nothing yet.
func New(o Options) *Client {
	o.PackBytes = cmp.Or(o.PackBytes, 512<<20)
	o.RefBytes = cmp.Or(o.RefBytes, 16<<20)
	c := &Client{o: o, pack: make(chan struct{}, 1)}
	if o.GitHub != nil {
		c.hub = newHub(o.GitHub, o.Fetch, o.PackBytes)
	}
	return c
}

// A Tag is a release.
type Tag struct {
	// Version is the tag's name without a "v" in front of a digit; Name is the tag's own.
	Version, Name string
	// Commit is what the tag names, in hexadecimal digits.
	Commit string
	// Note is what is odd about it, for people; "" for nearly all.
	Note string
}

// A Listing is what a repository has.
type Listing struct {
	// Unchanged says that the tags are those which the validator that was given describes; Tags is nil then.
	Unchanged bool
	// Tags are by version, each version once.
	Tags []Tag
	// Validator describes the tags, for the next time.
	Validator string
	// About is what to say of the repository. Nil: what was said the last time.
	About *About
}

// About is what there is to say of a repository, beside what is in it.
type About struct {
	// Moved is the address that it has now; "" for the one that was asked.
	Moved string
	// Archived: its owner has put it away, and no release will follow.
	Archived bool
}

// Notes says it in sentences; none for nearly all repositories.
func (a About) Notes() []string {
	var notes []string
	if a.Moved != "" {
		notes = append(notes, fmt.Sprintf("the repository has moved to %.200s; the package JSON should name that", a.Moved))
	}
	if a.Archived {
		notes = append(notes, "the repository is archived, so no release will follow")
	}
	return notes
}

// Tags returns the tags of the repository at target, an address as package JSONs have it. validator is
// that of an earlier Listing, or "".
//
// Errors are package fetch's, among them [fetch.ErrNotFound], a *[RefusedError] and a *[LimitError].
func (c *Client) Tags(ctx context.Context, target, validator string) (*Listing, error) {
	at, err := parseAddress(target)
	if err != nil {
		return nil, err
	}
	if c.hub != nil && c.hub.has(at) {
		listing, err := c.hub.tags(ctx, at, validator)
		return listing, named(target, err)
	}
	listing, err := c.remoteTags(ctx, at, validator)
	return listing, named(target, err)
}

// Metered reports whether each look at a repository counts against a small limit: GitHub's where there is no token, so
// that even what has not changed counts.
func (c *Client) Metered(target string) bool {
	return c.AtGitHub(target) && !c.Authorized()
}

// AtGitHub reports whether a repository is one that GitHub's API is asked about.
func (c *Client) AtGitHub(target string) bool {
	at, err := parseAddress(target)
	return err == nil && c.hub != nil && c.hub.has(at)
}

// Authorized reports whether GitHub knows the client that asks it.
func (c *Client) Authorized() bool { return c.hub != nil && c.hub.client.Authorized() }

// Counts are a repository's stars, forks and subscribers at GitHub.
type Counts struct {
	Stars       int64 `json:"stargazers_count"`
	Forks       int64 `json:"forks"`
	Subscribers int64 `json:"subscribers_count"`
}

// Counts asks for those of a repository that is AtGitHub. They are nil where they are those that came with the entity tag;
// errors are as those of Tags.
func (c *Client) Counts(ctx context.Context, target, etag string) (found *Counts, fresh string, err error) {
	at, err := parseAddress(target)
	if err != nil {
		return nil, "", err
	}
	found, fresh, err = c.hub.counts(ctx, at, etag)
	return found, fresh, named(target, err)
}

// Place writes the address of a repository in one way, whichever of git's forms it has; "" where it is none.
func Place(target string) string {
	at, err := parseAddress(target)
	if err != nil {
		return ""
	}
	return strings.ToLower(at.Host + "/" + strings.TrimSuffix(strings.Trim(at.Path, "/"), ".git"))
}

// A Release is what a tag has.
type Release struct {
	// Archive has the files of its commit, in the file that was given.
	Archive archive.Source
	// Date is that of the commit; zero where it makes no sense.
	Date time.Time
	// Notes say what is not in the archive, and why.
	Notes []string
}

// Release gets the files of a tag that [Client.Tags] returned into dst, which is emptied first. Where dst
// cannot be written, the error is a *[fetch.LocalError]; others are those of Tags.
func (c *Client) Release(ctx context.Context, target string, tag Tag, dst *os.File) (*Release, error) {
	at, err := parseAddress(target)
	if err != nil {
		return nil, err
	}
	if err := empty(dst); err != nil {
		return nil, err
	}
	var r *Release
	if c.hub != nil && c.hub.has(at) {
		r, err = c.hub.release(ctx, at, tag, dst)
	} else {
		r, err = c.remoteRelease(ctx, at, tag, dst)
	}
	if err != nil {
		return nil, named(target, fmt.Errorf("tag %.100q: %w", tag.Name, err))
	}
	r.Archive = r.Archive.LeaveOut(maxPointer, leaveOutPointer)
	if tag.Note != "" {
		r.Notes = append([]string{tag.Note}, r.Notes...)
	}
	return r, nil
}

func empty(dst *os.File) error {
	if _, err := dst.Seek(0, 0); err != nil {
		return fetch.NewLocalError(err)
	}
	if err := dst.Truncate(0); err != nil {
		return fetch.NewLocalError(err)
	}
	return nil
}

// named says which repository an error is about.
func named(target string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("git repository %.200s: %w", target, err)
}

// A RefusedError says that a repository, or a commit in it, has what is not taken. Trying again does not
// help.
type RefusedError struct {
	// Reason is for people.
	Reason string
}

func (e *RefusedError) Error() string { return e.Reason }

func refuse(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// A LimitError says that GitHub takes no more requests for a while.
type LimitError struct {
	// Until is when it takes some again.
	Until time.Time
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("GitHub takes no more requests until %s", e.Until.UTC().Format(time.RFC3339))
}

func sameHost(a, b *url.URL) bool { return a.Hostname() == b.Hostname() && a.Port() == b.Port() }

// scpLike is git's short form of an ssh address: [user@]host:path.
var scpLike = lazyregexp.New(`^(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9.-]+):([^/:\s]\S*)$`)

// maxAddress is the longest address of a repository, in bytes.
const maxAddress = 2048

// parseAddress reads the address of a repository in any of git's forms, and returns where it is over
// https. Old package JSONs have git://, which hosts have stopped answering, and ssh, which needs a key
// that Larder does not have; the same repositories answer over https.
func parseAddress(target string) (*url.URL, error) {
	target = strings.TrimSpace(target)
	if len(target) > maxAddress {
		return nil, refuse("the address of the repository has %d bytes, over the limit of %d", len(target), maxAddress)
	}
	if !strings.Contains(target, "://") {
		if m := scpLike.FindStringSubmatch(target); m != nil {
			target = "ssh://" + m[1] + "/" + m[2]
		}
	}
	at, err := url.Parse(strings.TrimPrefix(target, "git+"))
	if err != nil || at.Hostname() == "" || strings.Trim(at.Path, "/") == "" {
		// url.Error repeats the URL, which may hold credentials.
		return nil, refuse("the address of the repository is no URL such as https://example.com/owner/name.git")
	}
	switch at.Scheme {
	case "git", "ssh":
		at.Scheme, at.User = "https", nil
		at.Host = at.Hostname() // their ports are not that of https
		if strings.Contains(at.Host, ":") {
			at.Host = "[" + at.Host + "]"
		}
	case "https", "http":
	default:
		return nil, refuse("the address of the repository begins with %.20q; https: is what can be asked", at.Scheme+":")
	}
	if at.User != nil {
		return nil, refuse("the address of the repository has a user or a password in it, which Larder does not send")
	}
	at.Host = strings.ToLower(at.Host)
	at.RawQuery, at.Fragment, at.RawFragment = "", "", ""
	at.Path, at.RawPath = strings.TrimRight(at.Path, "/"), ""
	return at, nil
}

// commitHash is a SHA-1, or a SHA-256 where the repository uses that.
var commitHash = lazyregexp.New(`^(?:[0-9a-f]{40}|[0-9a-f]{64})$`)

const (
	maxTags    = 10_000
	maxTagName = 1024 // bytes
)

// versions makes releases of tags: name to commit. Of "v1.0" and "1.0" the second counts, because that is
// how the version is written; the first is told of. What has no place in a version stays, for the
// bot to refuse.
func versions(commits map[string]string) ([]Tag, error) {
	if len(commits) > maxTags {
		return nil, refuse("the repository has %d tags, over the limit of %d", len(commits), maxTags)
	}
	tags := make([]Tag, 0, len(commits))
	for name, commit := range commits {
		version, short := shortened(name)
		if _, exact := commits[version]; short && exact {
			continue
		}
		tag := Tag{Version: version, Name: name, Commit: commit}
		if _, both := commits["v"+name]; both && !short && startsWithDigit(name) {
			tag.Note = fmt.Sprintf("the repository has the tags %.100q and %.100q; this is the second", "v"+name, name)
		}
		tags = append(tags, tag)
	}
	slices.SortFunc(tags, func(a, b Tag) int { return strings.Compare(a.Version, b.Version) })
	return tags, nil
}

// shortened drops the "v" of "v1.0"; "vanilla-1.0" begins with a word and stays.
func shortened(name string) (version string, short bool) {
	if rest, ok := strings.CutPrefix(name, "v"); ok && startsWithDigit(rest) {
		return rest, true
	}
	return name, false
}

func startsWithDigit(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }

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

func localHead(dir, branch string) (storer.Storer, Head, error) {
	r, err := baregit.Open(dir)
	if err != nil {
		return nil, Head{}, fmt.Errorf("git repository %s: %w", dir, err)
	}
	name := plumbing.HEAD
	if branch != "" {
		name = plumbing.NewBranchReferenceName(branch)
	}
	ref, err := storer.ResolveReference(r, name)
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
		return r.EncodedObject(plumbing.AnyObject, h)
	}
	commit, err := readCommit(get, plumbing.NewHash(head.Commit))
	if err != nil {
		return Head{}, nil, err
	}
	release, err := exported(ctx, get, commit, dst)
	return head, release, err
}
