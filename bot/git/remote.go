package git

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/packages/archive"
)

// A session speaks with one repository over smart HTTP.
type session struct {
	transport.UploadPackSession
	refs *packp.AdvRefs
	// moved is where the repository says that it is; "" for where it was asked.
	moved string
}

// access is how a repository is asked.
type access struct {
	authorization func(*url.URL) string // nil for none
	trusted       func(*url.URL) bool   // nil for no address
}

// open begins a session: it gets the list of references.
func (c *Client) open(ctx context.Context, at *url.URL, how access) (*session, error) {
	endpoint, err := transport.NewEndpoint(at.String())
	if err != nil {
		return nil, refuse("the address of the repository cannot be used: %.200v", err)
	}
	watched := &watched{
		list: c.o.Fetch.Transport(fetch.TransportOptions{Authorization: how.authorization, Trusted: how.trusted, Limit: c.o.RefBytes}),
		pack: c.o.Fetch.Transport(fetch.TransportOptions{Authorization: how.authorization, Trusted: how.trusted, Limit: c.o.PackBytes}),
		fail: c.o.Fetch.StatusError,
	}
	made, err := githttp.NewClient(&http.Client{Transport: watched}).NewUploadPackSession(endpoint, nil)
	if err != nil {
		return nil, err
	}
	s := &session{UploadPackSession: made}
	s.refs, err = made.AdvertisedReferencesContext(ctx)
	switch {
	case errors.Is(err, transport.ErrEmptyRemoteRepository), errors.Is(err, packp.ErrEmptyInput):
		s.refs = packp.NewAdvRefs()
	case err != nil:
		return nil, sessionError(ctx, err)
	}
	if home := at.JoinPath("info", "refs"); watched.listed != nil && (!sameHost(watched.listed, home) || watched.listed.Path != home.Path) {
		now := *watched.listed
		now.RawQuery, now.Path = "", strings.TrimSuffix(now.Path, "/info/refs")
		s.moved = fetch.Show(&now)
	}
	return s, nil
}

// watched is what go-git's client sends through. It tells of what that client does not: statuses, and
// where the list of references came from.
type watched struct {
	list, pack http.RoundTripper
	fail       func(*http.Response) error
	listed     *url.URL
}

// RoundTrip implements http.RoundTripper.
func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	through := w.pack
	if r.Method == http.MethodGet {
		through = w.list
	}
	response, err := through.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	switch {
	case response.StatusCode/100 == 3:
		return response, nil
	case response.StatusCode == http.StatusUnauthorized:
		// What hosts say of what is not public, and of what is not there.
		response.Body.Close()
		return nil, &fetch.Error{URL: fetch.Show(r.URL), Status: response.StatusCode, Err: fmt.Errorf("%w, or it is not public", fetch.ErrNotFound)}
	case response.StatusCode != http.StatusOK:
		response.Body.Close()
		return nil, w.fail(response)
	}
	if want := "-upload-pack-"; !strings.Contains(response.Header.Get("Content-Type"), want) {
		response.Body.Close()
		return nil, &fetch.Error{URL: fetch.Show(r.URL), Status: response.StatusCode, Err: errors.New("what answers there is no git repository (smart HTTP)")}
	}
	if r.Method == http.MethodGet {
		w.listed = r.URL
	}
	return response, nil
}

// sessionError finds what is worth telling in an error of go-git's client.
func sessionError(ctx context.Context, err error) error {
	var ours *fetch.Error
	var local *fetch.LocalError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &ours):
		return ours
	case errors.As(err, &local):
		return local
	}
	var asked *url.Error // it repeats the URL
	if errors.As(err, &asked) {
		err = asked.Err
	}
	return fmt.Errorf("couldn't speak with the repository: %.200w", err)
}

const tagPrefix = "refs/tags/"

func (c *Client) remoteTags(ctx context.Context, at *url.URL, validator string) (*Listing, error) {
	s, err := c.open(ctx, at, access{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	commits := s.tags()
	listing := &Listing{Validator: fingerprint(commits), About: &About{Moved: s.moved}}
	if listing.Unchanged = listing.Validator == validator; listing.Unchanged {
		return listing, nil
	}
	listing.Tags, err = versions(commits)
	return listing, err
}

// tags returns the tags by name, and what each names: of one that has a message, what that is about.
func (s *session) tags() map[string]string {
	commits := make(map[string]string)
	for ref, hash := range s.refs.References {
		name, ok := strings.CutPrefix(ref, tagPrefix)
		if !ok || name == "" || len(name) > maxTagName {
			continue
		}
		if peeled, ok := s.refs.Peeled[ref]; ok {
			hash = peeled
		}
		commits[name] = hash.String()
	}
	return commits
}

// fingerprint is short and different for different tags.
func fingerprint(commits map[string]string) string {
	sum := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(commits)) {
		fmt.Fprintf(sum, "%s %s\n", commits[name], name)
	}
	return "tags:" + hex.EncodeToString(sum.Sum(nil))
}

func (c *Client) remoteRelease(ctx context.Context, at *url.URL, tag Tag, dst *os.File) (*Release, error) {
	s, err := c.open(ctx, at, access{})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if now := s.tags()[tag.Name]; now != tag.Commit {
		return nil, fmt.Errorf("it was at commit %s and is at %s now", tag.Commit, cmp.Or(now, "none"))
	}
	return c.take(ctx, s, s.refs.References[tagPrefix+tag.Name], tag.Commit, dst)
}

// take gets one commit, without those before it, and writes its files to dst. want is what the repository
// has listed, which may be a tag of that commit.
func (c *Client) take(ctx context.Context, s *session, want plumbing.Hash, commit string, dst *os.File) (*Release, error) {
	select {
	case c.pack <- struct{}{}:
		defer func() { <-c.pack }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	p, err := s.fetch(ctx, want, besides(dst))
	if err != nil {
		return nil, err
	}
	defer p.close()
	found, err := readCommit(p.Get, want)
	if err != nil {
		return nil, err
	}
	if found.Hash.String() != commit {
		return nil, refuse("it names the commit %s, and not %s as the repository had said", found.Hash, commit)
	}
	return exported(ctx, p.Get, found, dst)
}

// exported makes a release of a commit's files.
func exported(ctx context.Context, get objects, c *object.Commit, dst *os.File) (*Release, error) {
	notes, err := exportTree(ctx, get, c.TreeHash, dst)
	if err != nil {
		return nil, err
	}
	source, err := archive.OpenDownload(dst)
	if err != nil {
		return nil, refuse("the commit has no files")
	}
	return &Release{Archive: source, Date: sensible(c.Committer.When.Unix()), Notes: notes}, nil
}

// fetch gets one commit in a pack.
func (s *session) fetch(ctx context.Context, want plumbing.Hash, dir string) (*pack, error) {
	request := packp.NewUploadPackRequestFromCapabilities(s.refs.Capabilities)
	request.Capabilities.Delete(capability.ThinPack) // there is nothing here to build on
	request.Wants = []plumbing.Hash{want}
	if s.refs.Capabilities.Supports(capability.Shallow) {
		request.Depth = packp.DepthCommits(1)
		if err := request.Capabilities.Set(capability.Shallow); err != nil {
			return nil, err
		}
	}
	response, err := s.UploadPack(ctx, request)
	if err != nil {
		return nil, sessionError(ctx, err)
	}
	defer response.Close()
	var r io.Reader = response
	switch {
	case request.Capabilities.Supports(capability.Sideband64k):
		r = sideband.NewDemuxer(sideband.Sideband64k, response)
	case request.Capabilities.Supports(capability.Sideband):
		r = sideband.NewDemuxer(sideband.Sideband, response)
	}
	p, err := readPack(ctx, r, dir)
	var refused *RefusedError
	if err != nil && !errors.As(err, &refused) {
		return nil, sessionError(ctx, err)
	}
	return p, err
}
