// Package git reads releases, and catalogues, from git repositories: which tags there are, and the files
// of one commit.
//
// Repositories at GitHub are read through its API, all others over git's own protocol (smart HTTP). What
// it guarantees:
//
//   - Addresses are strangers': https only, under package fetch's rules, at every redirect. Credentials go
//     to GitHub's API, and to the origin of a [Remote] that has a token; to nobody else.
//   - Nothing is checked out. The files of a commit become an archive, in a file that the caller names,
//     and whoever reads that has package archive's rules. A pack that it takes has bounds on its bytes,
//     its objects, how large they become and how deep they are built on each other.
//   - Files are those of the commit that the tag named when it was listed: objects are found by their
//     hash, computed here; GitHub is asked for the commit, not for the tag.
//   - Submodules, symbolic links and Git LFS pointers are left out and told of, never followed.
//   - GitHub's limits are waited for, and a wait that is long is a [LimitError] that says until when.
//
// The package must not know what becomes of a release, nor keep anything on disk.
package git

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/github"
	"github.com/larder-cdn/larder/packages/archive"
)

// Options say what a [Client] works with. Fetch is required.
type Options struct {
	// Fetch gets what strangers name.
	Fetch *fetch.Client
	// GitHub is asked about the repositories on its host. Nil: those are read like all others.
	GitHub *github.Client
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
	if o.PackBytes <= 0 {
		o.PackBytes = 512 << 20
	}
	if o.RefBytes <= 0 {
		o.RefBytes = 16 << 20
	}
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
