package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/google/go-github/v60/github"
	"golang.org/x/sync/semaphore"

	"github.com/larder-cdn/larder/bot/fetch"
	"github.com/larder-cdn/larder/internal/text"
)

// GitHubURL is the base of GitHub's own API.
const GitHubURL = "https://api.github.com"

// GitHubOptions configures a GitHubClient.
type GitHubOptions struct {
	// URL is the base of the API: https://HOST/api/v3 for GitHub Enterprise Server; default [GitHubURL].
	URL string
	// Token authorizes requests. Default: none.
	Token string
	// UserAgent is sent with every request. Default "larder".
	UserAgent string
	// Pause is the least time from one request that changes something to the next.
	// Default: the second that GitHub requires.
	Pause time.Duration
	// Transport sends requests. Default: a copy of http.DefaultTransport.
	Transport http.RoundTripper
	// Logger logs each wait for a limit. Default: none.
	Logger *slog.Logger
}

// A GitHubClient sends requests to GitHub's API; see [API] for its calls. It is safe for concurrent use, but GitHub
// asks its clients to send one request after the other.
type GitHubClient struct {
	// BaseURL is the address of the API, with a slash at its end.
	BaseURL *url.URL
	// HTTP sends requests, with the credentials and within the limits.
	HTTP      *http.Client
	transport *githubTransport
	// turn is held by the one request of a [Client] that is under way: GitHub wants them one after
	// the other, and the next one then knows of a limit that this one has met.
	turn *semaphore.Weighted
}

// API returns the calls of GitHub's API.
//
// It is a function and makes them each time, because a field or a method of Client would mention the library's type. The linker
// keeps all exported methods of types that reflection can reach from a value in an interface: here 1.5 MB of calls that nothing makes.
func API(c *GitHubClient) *github.Client {
	api := github.NewClient(c.HTTP)
	api.BaseURL = c.BaseURL
	return api
}

// NewGitHubClient returns a client of GitHub's API. It sends no request yet. It returns an error for an invalid address or token,
// and for plain http to another machine.
func NewGitHubClient(o GitHubOptions) (*GitHubClient, error) {
	base, err := url.Parse(strings.TrimRight(cmp.Or(o.URL, GitHubURL), "/") + "/")
	if err != nil || base.Host == "" || base.User != nil || base.RawQuery != "" || base.Fragment != "" || base.Scheme != "https" && base.Scheme != "http" {
		return nil, errors.New("github: the address of the API must be a URL such as " + GitHubURL)
	}
	if base.Scheme == "http" && !isLoopback(base.Hostname()) {
		return nil, fmt.Errorf("github: the address of the API must begin with https: over http every machine between here and %s could read the token", base.Host)
	}
	if strings.ContainsFunc(o.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, errors.New("github: the token has a character that no token has, such as a space or the end of a line")
	}
	if o.Transport == nil {
		o.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	t := &githubTransport{base: o.Transport, host: base.Host, userAgent: cmp.Or(o.UserAgent, "larder"), token: o.Token, pause: cmp.Or(o.Pause, time.Second), logger: o.Logger}
	client := &http.Client{
		Transport: t,
		// A redirect is an error for the caller. Following it would send the token to another address, and change the method to GET.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &GitHubClient{BaseURL: base, HTTP: client, transport: t, turn: semaphore.NewWeighted(1)}, nil
}

// Authorized reports whether the client has a token.
func (c *GitHubClient) Authorized() bool { return c.transport.token != "" }

// IsGitHubHost reports whether host, that of a repository's address, belongs to the GitHub whose API is at apiURL, "" for
// GitHub's own.
func IsGitHubHost(apiURL, host string) bool {
	base, err := url.Parse(cmp.Or(apiURL, GitHubURL))
	return err == nil && base.Host != "" && strings.TrimPrefix(strings.ToLower(base.Host), "api.") == strings.TrimPrefix(strings.ToLower(host), "www.")
}

// LimitedUntil returns the time until which GitHub's rate limits delay requests, zero if they do not.
func (c *GitHubClient) LimitedUntil() time.Time {
	c.transport.mu.Lock()
	defer c.transport.mu.Unlock()
	if time.Now().Before(c.transport.until) {
		return c.transport.until
	}
	return time.Time{}
}

// isLoopback reports whether a host is localhost or a loopback address.
func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback() || host == "localhost"
}

// Stars returns a function that requests the number of stars of the repository owner/repository from GitHub. The function's error
// is [fetch.ErrNotFound] if the repository does not exist.
func Stars(c *GitHubClient) func(ctx context.Context, owner, repository string) (int64, error) {
	return func(ctx context.Context, owner, repository string) (int64, error) {
		found, _, err := API(c).Repositories.Get(ctx, owner, repository)
		switch {
		case GitHubStatus(err) == http.StatusNotFound:
			return 0, fetch.ErrNotFound
		case err != nil:
			return 0, errors.New(DescribeGitHubError(err))
		}
		return int64(found.GetStargazersCount()), nil
	}
}

// GitHubStatus returns the HTTP status of GitHub's response that caused err, 0 for nil and for an error without a response.
func GitHubStatus(err error) int {
	if e, ok := errors.AsType[*github.ErrorResponse](err); ok && e.Response != nil {
		return e.Response.StatusCode
	}
	return 0
}

// DescribeGitHubError returns a text for people about an error of a GitHubClient: GitHub's response, or why there is none,
// without the address. The same failure has the same text each time.
func DescribeGitHubError(err error) string {
	if e := (*github.ErrorResponse)(nil); errors.As(err, &e) && e.Response != nil {
		text := fmt.Sprintf("GitHub answered %d %s", e.Response.StatusCode, http.StatusText(e.Response.StatusCode))
		if e.Response.StatusCode >= http.StatusInternalServerError {
			return text // with which it sends another number each time
		}
		if e.Message != "" {
			text += ": " + shorten(e.Message)
		}
		for _, detail := range e.Errors {
			if detail.Message != "" {
				text += "; " + shorten(detail.Message)
			}
		}
		return text
	}
	if e := (*url.Error)(nil); errors.As(err, &e) {
		err = e.Err
	}
	// The local port differs each time.
	if e := (*net.OpError)(nil); errors.As(err, &e) && e.Op != "dial" {
		return fmt.Sprintf("couldn't %s: %v", e.Op, e.Err)
	}
	return err.Error()
}

// shorten returns a text of another server on one line, as valid UTF-8 and cut to 300 bytes.
func shorten(s string) string {
	const most = 300
	return text.Short(strings.ToValidUTF8(strings.Join(strings.Fields(s), " "), ""), most)
}
