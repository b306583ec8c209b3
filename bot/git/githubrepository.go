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
	"github.com/larder-cdn/larder/internal/text"
)

// webHost returns the host of the repositories, with a port if it has one: for api.github.com, or api.NAME.ghe.com with data residency,
// without "api."; a server has its API at HOST/api/v3.
func (c *GitHubClient) webHost() string {
	return strings.TrimPrefix(strings.ToLower(c.BaseURL.Host), "api.")
}

// repositoryPath is an owner and a name, as GitHub allows them.
var repositoryPath = text.NewRegexp(`^/([A-Za-z0-9_.-]{1,100})/([A-Za-z0-9_.-]{1,100})$`)

// hosts reports whether the repository at an address is on the GitHub whose API the client requests.
func (c *GitHubClient) hosts(at *url.URL) bool {
	return IsGitHubHost(c.BaseURL.String(), at.Host)
}

// ownerAndName returns OWNER/NAME of the repository at an address on GitHub, without ".git". The error is a *[RefusedError] if
// the address has another form.
func (c *GitHubClient) ownerAndName(at *url.URL) (string, error) {
	m := repositoryPath.FindStringSubmatch(strings.TrimSuffix(at.Path, ".git"))
	if m == nil || strings.Trim(m[1], ".") == "" || strings.Trim(m[2], ".") == "" {
		return "", refusef("the address is not that of a repository at GitHub: https://%s/OWNER/NAME", c.webHost())
	}
	return m[1] + "/" + m[2], nil
}

// repositoryAddress returns the URL at which git reads the repository at, one on this GitHub, without parts that GitHub ignores.
// It returns an error if at is not of the form HOST/OWNER/NAME.
func (c *GitHubClient) repositoryAddress(at *url.URL) (*url.URL, error) {
	name, err := c.ownerAndName(at)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: c.BaseURL.Scheme, Host: c.webHost(), Path: "/" + name + ".git"}, nil
}

// isTrusted reports whether a URL is on this GitHub's web host, with https or with the scheme of the API, so that the operator
// has chosen it.
func (c *GitHubClient) isTrusted(u *url.URL) bool {
	return strings.ToLower(u.Host) == c.webHost() && (u.Scheme == "https" || u.Scheme == c.BaseURL.Scheme)
}

// requestTimeout bounds a request, short waits for limits included. A longer wait is for
// the scheduler, which has other things to do meanwhile.
const requestTimeout = 90 * time.Second

// errNotModified says that a response is the known one.
var errNotModified = errors.New("not modified")

// get requests the JSON at a path of GitHub's API, after other requests have ended and with a time limit. It decodes it into the
// pointer into, and returns its entity tag. If the JSON is still the one with the entity tag etag, which may be "", the error is
// errNotModified and into stays as it is. It is fetch.ErrNotFound for what GitHub does not have, and a *[LimitError] if the rate
// limit would delay the request for long. Redirects stay errors of the library, for movedPath.
func (c *GitHubClient) get(parent context.Context, path, etag string, into any) (fresh string, err error) {
	if c.turn.Acquire(parent, 1) != nil {
		return "", context.Cause(parent)
	}
	defer c.turn.Release(1)
	if until := c.LimitedUntil(); time.Until(until) > requestTimeout {
		return "", &LimitError{until}
	}
	ctx, cancel := context.WithTimeout(parent, requestTimeout)
	defer cancel()
	api := API(c)
	request, err := api.NewRequest(http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	if etag != "" {
		request.Header.Set("If-None-Match", etag)
	}
	response, err := api.Do(ctx, request, into)
	if err == nil {
		return response.Header.Get("ETag"), nil
	}
	if parent.Err() != nil {
		return "", context.Cause(parent)
	}
	if until := c.LimitedUntil(); ctx.Err() != nil && !until.IsZero() {
		return "", &LimitError{until}
	}
	switch GitHubStatus(err) {
	case http.StatusNotModified:
		return "", errNotModified
	case http.StatusNotFound:
		return "", fmt.Errorf("%w (%s)", fetch.ErrNotFound, DescribeGitHubError(err))
	case http.StatusMovedPermanently, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		return "", err // for movedPath
	}
	return "", errors.New(DescribeGitHubError(err))
}

var movedTo = text.NewRegexp(`/repositories/([0-9]{1,20})(?:/|$)`)

// movedPath returns the path in GitHub's API to which err, an error of get, says that a repository has moved; "" for other
// errors.
func (c *GitHubClient) movedPath(err error) string {
	answered, ok := errors.AsType[*gogithub.ErrorResponse](err)
	if !ok || answered.Response == nil {
		return ""
	}
	location, err := answered.Response.Request.URL.Parse(answered.Response.Header.Get("Location"))
	if err != nil || !strings.EqualFold(location.Host, c.BaseURL.Host) {
		return ""
	}
	m := movedTo.FindStringSubmatch(location.Path)
	if m == nil {
		return ""
	}
	return "repositories/" + m[1]
}

// describe requests the description of the repository at an address from GitHub's API, and follows a redirect to its new name.
// found is nil if the description is still the one with the entity tag etag; fresh is the present entity tag. Errors are those of
// get, or a *[RefusedError] for an address of another form.
func (c *GitHubClient) describe(ctx context.Context, at *url.URL, etag string) (found *Repository, fresh string, err error) {
	name, err := c.ownerAndName(at)
	if err != nil {
		return nil, "", err
	}
	found = new(Repository)
	fresh, err = c.get(ctx, "repos/"+name, etag, found)
	if to := c.movedPath(err); to != "" {
		fresh, err = c.get(ctx, to, etag, found)
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

// plausibleTime returns the time at a number of seconds since 1970, the time of a commit. It returns the zero time for years
// before 1990 or after 2200, because a committer may write any.
func plausibleTime(seconds int64) time.Time {
	at := time.Unix(seconds, 0).UTC()
	if at.Year() < 1990 || at.Year() > 2200 {
		return time.Time{}
	}
	return at
}
