package git

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	gogithub "github.com/google/go-github/v60/github"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/lazyregexp"
)

// hub requests descriptions of repositories from GitHub's API.
type hub struct {
	client   *GitHubClient
	api, web string // hosts, with ports where they have one
	// turn is held by the one request that is under way: GitHub wants them one after
	// the other, and the next one then knows of a limit that this one has met.
	turn chan struct{}
}

func newHub(client *GitHubClient) *hub {
	api := strings.ToLower(client.BaseURL.Host)
	// GitHub itself: api.github.com; with data residency: api.NAME.ghe.com; a server: HOST/api/v3.
	return &hub{client: client, api: api, web: strings.TrimPrefix(api, "api."), turn: make(chan struct{}, 1)}
}

// repositoryPath is an owner and a name, as GitHub allows them.
var repositoryPath = lazyregexp.New(`^/([A-Za-z0-9_.-]{1,100})/([A-Za-z0-9_.-]{1,100})$`)

// has reports whether a repository is one of GitHub's.
func (h *hub) has(at *url.URL) bool {
	return IsGitHubHost(h.client.BaseURL.String(), at.Host)
}

// ownerAndName returns OWNER/NAME of a repository at GitHub.
func (h *hub) ownerAndName(at *url.URL) (string, error) {
	m := repositoryPath.FindStringSubmatch(strings.TrimSuffix(at.Path, ".git"))
	if m == nil || strings.Trim(m[1], ".") == "" || strings.Trim(m[2], ".") == "" {
		return "", refuse("the address is not that of a repository at GitHub: https://%s/OWNER/NAME", h.web)
	}
	return m[1] + "/" + m[2], nil
}

// repositoryAddress returns the address at which git reads a repository at GitHub.
func (h *hub) repositoryAddress(at *url.URL) (*url.URL, error) {
	name, err := h.ownerAndName(at)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: h.client.BaseURL.Scheme, Host: h.web, Path: "/" + name + ".git"}, nil
}

// trusted reports whether an address is on the host that the operator named,
// and no less protected on its way than the API.
func (h *hub) trusted(u *url.URL) bool {
	return strings.ToLower(u.Host) == h.web && (u.Scheme == "https" || u.Scheme == h.client.BaseURL.Scheme)
}

// requestTimeout bounds a request, short waits for limits included. A longer wait is for
// the scheduler, which has other things to do meanwhile.
const requestTimeout = 90 * time.Second

// errNotModified says that a response is the known one.
var errNotModified = errors.New("not modified")

// get requests JSON, unless it is the one with that entity tag, and returns the new entity tag.
func (h *hub) get(ctx context.Context, path, etag string, into any) (fresh string, err error) {
	err = h.request(ctx, func(ctx context.Context) error {
		request, err := API(h.client).NewRequest(http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		if etag != "" {
			request.Header.Set("If-None-Match", etag)
		}
		response, err := API(h.client).Do(ctx, request, into)
		if err == nil {
			fresh = response.Header.Get("ETag")
		}
		return err
	})
	return fresh, err
}

// request runs a function that sends a request to GitHub, unless that has to wait for long.
func (h *hub) request(parent context.Context, do func(context.Context) error) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-parent.Done():
		return context.Cause(parent)
	}
	if until := h.client.Waiting(); time.Until(until) > requestTimeout {
		return &LimitError{until}
	}
	ctx, cancel := context.WithTimeout(parent, requestTimeout)
	defer cancel()
	err := do(ctx)
	if err == nil {
		return nil
	}
	if parent.Err() != nil {
		return context.Cause(parent)
	}
	if until := h.client.Waiting(); ctx.Err() != nil && !until.IsZero() {
		return &LimitError{until}
	}
	switch GitHubStatus(err) {
	case http.StatusNotModified:
		return errNotModified
	case http.StatusNotFound:
		return fmt.Errorf("%w (%s)", fetch.ErrNotFound, DescribeGitHubError(err))
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return err // for moved
	}
	return errors.New(DescribeGitHubError(err))
}

var movedTo = lazyregexp.New(`/repositories/([0-9]{1,20})(?:/|$)`)

// moved returns the path that GitHub says a repository has now; "" where err says nothing like that.
func (h *hub) moved(err error) string {
	var answered *gogithub.ErrorResponse
	if !errors.As(err, &answered) || answered.Response == nil {
		return ""
	}
	location, err := answered.Response.Request.URL.Parse(answered.Response.Header.Get("Location"))
	if err != nil || strings.ToLower(location.Host) != h.api {
		return ""
	}
	m := movedTo.FindStringSubmatch(location.Path)
	if m == nil {
		return ""
	}
	return "repositories/" + m[1]
}

// describe requests the description of a repository, and follows it where it has been renamed. It is nil if it is the one
// with the entity tag.
func (h *hub) describe(ctx context.Context, at *url.URL, etag string) (found *Repository, fresh string, err error) {
	name, err := h.ownerAndName(at)
	if err != nil {
		return nil, "", err
	}
	found = new(Repository)
	fresh, err = h.get(ctx, "repos/"+name, etag, found)
	if to := h.moved(err); to != "" {
		fresh, err = h.get(ctx, to, etag, found)
	}
	if errors.Is(err, errNotModified) && etag != "" { // without an entity tag there is no known description
		return nil, etag, nil
	}
	if GitHubStatus(err)/100 == 3 { // a redirect that leads nowhere
		err = errors.New(DescribeGitHubError(err))
	}
	if err == nil && found.ID == 0 {
		err = errors.New("GitHub's description of the repository has no id")
	}
	if err != nil {
		return nil, "", err
	}
	return found, fresh, nil
}

// sensible is a commit's time, zero for one that cannot be true: a committer may write any.
func sensible(seconds int64) time.Time {
	at := time.Unix(seconds, 0).UTC()
	if at.Year() < 1990 || at.Year() > 2200 {
		return time.Time{}
	}
	return at
}
