// Package git reads releases, and catalogues, from git repositories: which tags there are, and the files
// of one commit.
//
// Tags and files come over git's own protocol (smart HTTP) from every host, GitHub included: archives that a host makes
// of a commit leave out and change files (export-ignore, export-subst), and nothing verifies them. GitHub's API supplies only a
// [Repository]: its number, which tells a renamed repository from another one that took its name, and its counts. What
// the package guarantees:
//
//   - Addresses are strangers': https only, under package fetch's rules, at every redirect. Credentials go
//     to GitHub's API, and to the origin of a [Remote] that has a token; nowhere else. So packages' repositories have to be public.
//   - Nothing is checked out. The files of a commit become an archive, in a file that the caller names,
//     which is read under package archive's rules. A pack has bounds on its bytes,
//     its objects, how large they become and how deep they are built on each other.
//   - Files are those of the commit that the tag named when it was listed: objects are found by their
//     hash, computed here.
//   - Submodules, symbolic links and Git LFS pointers are left out and reported, never followed.
//   - The client waits for GitHub's limits, and a long wait is a [LimitError] that says until when.
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
	"github.com/go-git/go-git/v5/plumbing/storer"
	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/baregit"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/packages/archive"
)

// Options say what a [Client] works with. Fetch is required.
type Options struct {
	// Fetch gets what strangers name.
	Fetch *fetch.Client
	// GitHub describes the repositories on its host. Nil: those are as all others.
	GitHub *GitHubClient
	// PackBytes is the most bytes that a pack may have; default 512 MiB.
	PackBytes int64
	// RefBytes is the most bytes that the list of a repository's references may have; default 16 MiB.
	RefBytes int64
}

// A Client reads repositories. It is safe for concurrent use.
type Client struct {
	o    Options
	pack *semaphore.Weighted // see receivePack
}

// New returns a client of git repositories. It sends no request yet.
func New(o Options) *Client {
	o.PackBytes = cmp.Or(o.PackBytes, 512<<20)
	o.RefBytes = cmp.Or(o.RefBytes, 16<<20)
	return &Client{o: o, pack: semaphore.NewWeighted(1)}
}

// A Tag is a tag of a repository, which stands for a release.
type Tag struct {
	// Version is the tag's name without a "v" in front of a digit; Name is the tag's own.
	Version, Name string
	// Commit is what the tag names, in hexadecimal digits.
	Commit string
	// Note is a remark about an unusual tag, for people; "" for nearly all.
	Note string
}

// A Listing is the tags of a repository.
type Listing struct {
	// Unchanged says that the tags are those which the validator that was given describes; Tags is nil then.
	Unchanged bool
	// Tags has each version once, sorted by version as text.
	Tags []Tag
	// Validator describes the tags, for the next time.
	Validator string
	// Moved is the address to which the repository redirects; "" for the requested one.
	Moved string
}

// A Repository is the data of a repository from GitHub's API.
type Repository struct {
	// ID is GitHub's number for the repository. A renamed repository keeps it; another one that takes the name has another.
	ID int64 `json:"id"`
	// Address is that of its page.
	Address string `json:"html_url"`
	// Archived says that the owner has made it read-only, so that no release follows.
	Archived bool `json:"archived"`
	Counts
}

// Counts are a repository's stars, forks and subscribers at GitHub.
type Counts struct {
	Stars       int64 `json:"stargazers_count"`
	Forks       int64 `json:"forks"`
	Subscribers int64 `json:"subscribers_count"`
}

// AtGitHub reports whether target, a repository's address in any of git's forms, is on the GitHub whose API the client uses:
// GitHub's own or a GitHub Enterprise Server. It is false if the client uses none. It sends no request.
func (c *Client) AtGitHub(target string) bool {
	at, err := parseAddress(target)
	return err == nil && c.o.GitHub != nil && c.o.GitHub.hosts(at)
}

// Describe requests the description of a repository, which must be AtGitHub, from GitHub's API. found is nil if the description
// is still the one with the entity tag etag; fresh is the entity tag of the present one. Errors are those of Tags and, if
// GitHub's rate limit is used up, a *[LimitError].
func (c *Client) Describe(ctx context.Context, target, etag string) (found *Repository, fresh string, err error) {
	at, err := parseAddress(target)
	if err != nil {
		return nil, "", err
	}
	found, fresh, err = c.o.GitHub.describe(ctx, at, etag)
	return found, fresh, nameRepository(target, err)
}

// Authorized reports whether the client has a token for GitHub's API.
func (c *Client) Authorized() bool { return c.o.GitHub != nil && c.o.GitHub.Authorized() }

// CanonicalAddress returns host and path of a repository's address, in lower case and without ".git", so that all forms of an
// address are equal. target has any of git's forms; the result is "" if it is not an address.
func CanonicalAddress(target string) string {
	at, err := parseAddress(target)
	if err != nil {
		return ""
	}
	return strings.ToLower(at.Host + "/" + strings.TrimSuffix(strings.Trim(at.Path, "/"), ".git"))
}

// A Release has the files of a commit.
type Release struct {
	// Archive has the files, in the file that the caller passed.
	Archive archive.Source
	Tree    string // the hash of the commit's tree
	// Date is that of the commit, zero for an implausible one.
	Date time.Time
	// Notes say what is not in the archive, and why.
	Notes []string
}

// nameRepository adds the repository's address to an error, if err is not nil: that of target without a user, a password and a
// query, which may be secret. It adds nothing if target is not an address.
func nameRepository(target string, err error) error {
	if err == nil {
		return nil
	}
	at, malformed := parseAddress(target)
	if malformed != nil {
		return err
	}
	return fmt.Errorf("git repository %.200s: %w", at, err)
}

// A RefusedError says why a repository or a commit is not accepted. Trying again does not help.
type RefusedError struct {
	// Reason is for people.
	Reason string
}

// Error returns why Larder does not accept the repository or the commit.
func (e *RefusedError) Error() string { return e.Reason }

// refusef returns a [RefusedError] whose reason is formatted as by fmt.Sprintf.
func refusef(format string, args ...any) error {
	return &RefusedError{Reason: fmt.Sprintf(format, args...)}
}

// A LimitError says that the rate limit of GitHub's API is used up.
type LimitError struct {
	Until time.Time // when GitHub accepts requests again
}

// Error says until when GitHub accepts no more requests.
func (e *LimitError) Error() string {
	return fmt.Sprintf("GitHub accepts no more requests until %s", e.Until.UTC().Format(time.RFC3339))
}

// scpLike is git's short form of an ssh address: [user@]host:path.
var scpLike = text.NewRegexp(`^(?:[A-Za-z0-9._-]+@)?([A-Za-z0-9.-]+):([^/:\s]\S*)$`)

// maxAddress is the longest address of a repository, in bytes.
const maxAddress = 2048

// parseAddress parses a repository's address in any of git's forms, and returns its http or https URL, without a query or a slash
// at the end. Of git:// and ssh addresses, which old package JSONs have, it returns the https URL, because hosts serve the same
// repositories there. The error is a *[RefusedError], also for an address with a user or a password.
func parseAddress(target string) (*url.URL, error) {
	target = strings.TrimSpace(target)
	if len(target) > maxAddress {
		return nil, refusef("the address of the repository has %d bytes, over the limit of %d", len(target), maxAddress)
	}
	if !strings.Contains(target, "://") {
		if m := scpLike.FindStringSubmatch(target); m != nil {
			target = "ssh://" + m[1] + "/" + m[2]
		}
	}
	at, err := url.Parse(strings.TrimPrefix(target, "git+"))
	if err != nil || at.Hostname() == "" || strings.Trim(at.Path, "/") == "" {
		// url.Error repeats the URL, which may hold credentials.
		return nil, refusef("the address of the repository is no URL such as https://example.com/owner/name.git")
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
		return nil, refusef("the address of the repository begins with %.20q; https: is what can be asked", at.Scheme+":")
	}
	if at.User != nil {
		return nil, refusef("the address of the repository has a user or a password in it, which Larder does not send")
	}
	at.Host = strings.ToLower(at.Host)
	at.RawQuery, at.Fragment, at.RawFragment = "", "", ""
	at.Path, at.RawPath = strings.TrimRight(at.Path, "/"), ""
	return at, nil
}

const (
	maxTags    = 10_000
	maxTagName = 1024 // bytes
)

// tagsByVersion returns one tag for each version, sorted by version as text. commits has the commits by the names of tags. Of the
// tags "v1.0" and "1.0" it returns the second, with a note. Invalid versions stay, for the bot to refuse. The error is a
// *[RefusedError] for over 10,000 tags.
func tagsByVersion(commits map[string]string) ([]Tag, error) {
	if len(commits) > maxTags {
		return nil, refusef("the repository has %d tags, over the limit of %d", len(commits), maxTags)
	}
	tags := make([]Tag, 0, len(commits))
	for name, commit := range commits {
		version, short := versionOfTag(name)
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

// versionOfTag returns the version that the name of a tag stands for: the name without a "v" before a digit. short reports
// whether there was one. "vanilla-1.0" stays as it is.
func versionOfTag(name string) (version string, short bool) {
	if rest, ok := strings.CutPrefix(name, "v"); ok && startsWithDigit(rest) {
		return rest, true
	}
	return name, false
}

// startsWithDigit reports whether the first byte of s is an ASCII digit.
func startsWithDigit(s string) bool { return s != "" && '0' <= s[0] && s[0] <= '9' }

// A Remote is a repository that the operator names, so it may have any address and plain http.
type Remote struct {
	// URL is where it is, without a user or a password.
	URL *url.URL
	// Branch is the branch to read; "" for the default one.
	Branch string
	// Token is sent to the host of URL, if it is not "" and goes over TLS or stays on this machine.
	Token string
}

// A Head is the last commit of a branch.
type Head struct {
	// Commit is in hexadecimal digits.
	Commit string
	// Branch is its name; "" if the host does not say it.
	Branch string
}

// access returns how requests to the remote are sent: URLs with its origin are trusted, and get the token if they use TLS or stay
// on this machine.
func (r Remote) access() fetch.TransportOptions {
	host := *r.URL
	return fetch.TransportOptions{
		Trusted: func(u *url.URL) bool { return fetch.SameOrigin(u, &host) },
		Authorization: func(u *url.URL) string {
			if r.Token == "" || !fetch.SameOrigin(u, &host) || u.Scheme != "https" && !isLoopback(host.Hostname()) {
				return ""
			}
			// GitHub, Gitea and GitLab accept any user name, with the token as the password.
			return "Basic " + base64.StdEncoding.EncodeToString([]byte("x-access-token:"+r.Token))
		},
	}
}

// Head requests the last commit of a remote's branch. The error wraps [fetch.ErrNotFound] if there is no such repository or
// branch; for a repository without a commit it is another one.
func (c *Client) Head(ctx context.Context, r Remote) (Head, error) {
	_, head, err := c.openBranch(ctx, r)
	return head, nameRepository(fetch.Redact(r.URL), err)
}

// Snapshot fetches the files of the last commit of a remote's branch into dst, which is emptied first, as an archive. It returns
// the commit, and the release with the archive. With an error the release is nil, and dst has no meaning.
func (c *Client) Snapshot(ctx context.Context, r Remote, dst *os.File) (Head, *Release, error) {
	if err := fetch.Truncate(dst); err != nil {
		return Head{}, nil, err
	}
	var release *Release
	s, head, err := c.openBranch(ctx, r)
	if err == nil {
		release, err = c.fetchCommit(ctx, s, plumbing.NewHash(head.Commit), head.Commit, nil, dst)
	}
	return head, release, nameRepository(fetch.Redact(r.URL), err)
}

// openBranch opens a session with a remote and returns it with the last commit of the remote's branch. Its errors are those of
// Head, without the address.
func (c *Client) openBranch(ctx context.Context, r Remote) (*session, Head, error) {
	s, err := c.open(ctx, r.URL, r.access())
	if err != nil {
		return nil, Head{}, err
	}
	name := plumbing.HEAD.String()
	if r.Branch != "" {
		name = plumbing.NewBranchReferenceName(r.Branch).String()
	}
	refs, err := c.listReferences(ctx, s, name)
	if err != nil {
		return nil, Head{}, err
	}
	i := slices.IndexFunc(refs, func(ref reference) bool { return ref.name == name })
	switch {
	case i < 0 && r.Branch != "":
		return nil, Head{}, fmt.Errorf("the branch %.100q: %w", r.Branch, fetch.ErrNotFound)
	case i < 0:
		return nil, Head{}, errors.New("the repository has no commit yet")
	}
	return s, Head{refs[i].hash.String(), cmp.Or(r.Branch, strings.TrimPrefix(refs[i].target, "refs/heads/"))}, nil
}

// IsRepository reports whether a folder looks like a bare git repository, such as one made with `git clone --bare`: it has the
// entries HEAD, objects and refs.
func IsRepository(dir string) bool {
	return !slices.ContainsFunc([]string{"HEAD", "objects", "refs"}, func(name string) bool {
		_, err := os.Stat(dir + string(os.PathSeparator) + name)
		return err != nil
	})
}

// ReadLocalHead returns the last commit of a branch, "" for the default one, of the bare repository in the folder dir.
func ReadLocalHead(dir, branch string) (Head, error) {
	_, head, err := openLocalBranch(dir, branch)
	return head, err
}

// openLocalBranch opens the bare repository in the folder dir, and returns its objects and the last commit of a branch, "" for
// the default one. If HEAD names a commit and no branch, Branch of the result is "HEAD". A missing repository or branch is an
// error.
func openLocalBranch(dir, branch string) (storer.Storer, Head, error) {
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

// LocalSnapshot writes the files of the last commit of a branch, "" for the default one, of the bare repository in the folder dir
// into dst, which is emptied first, as an archive. It returns the commit, and the release with the archive.
func LocalSnapshot(ctx context.Context, dir, branch string, dst *os.File) (Head, *Release, error) {
	if err := fetch.Truncate(dst); err != nil {
		return Head{}, nil, err
	}
	r, head, err := openLocalBranch(dir, branch)
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
	release, err := exportCommit(ctx, get, commit, nil, dst)
	return head, release, err
}
