package verify

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// errNotThere is that the server has no such path. It is [fs.ErrNotExist].
var errNotThere = fmt.Errorf("there is no such thing: %w", fs.ErrNotExist)

const (
	maxHeaders   = 64 << 10 // of one answer, with all that come before it, such as 103
	maxRedirects = 5
	maxExcerpt   = 300
	parallel     = 8 // requests at once
)

// NewClient returns a client for requests to servers that may be hostile: the headers of
// an answer are bounded, and a redirect does not lead to another host. How long an answer
// may take is up to the context of the request.
func NewClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxHeaders
	transport.MaxIdleConnsPerHost = parallel
	transport.MaxConnsPerHost = parallel
	transport.ResponseHeaderTimeout = time.Minute
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

// checkRedirect refuses other hosts: a server that the user has named must not make this
// program send requests into the user's own network.
func checkRedirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server redirects over %d times", maxRedirects)
	case next.URL.Scheme == first.Scheme && next.URL.Host == first.Host:
		return nil
	case first.Scheme == "http" && next.URL.Scheme == "https" && next.URL.Hostname() == first.Hostname() && standardPort(first) && standardPort(next.URL):
		return nil
	}
	return fmt.Errorf("the server redirects to %.200q; if that is right, verify what is there", next.URL.Scheme+"://"+next.URL.Host)
}

func standardPort(u *url.URL) bool {
	return u.Port() == "" || u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443"
}

// remote asks one server. What it holds of an answer is bounded.
type remote struct {
	base   string // without a slash at the end
	client *http.Client
	agent  string
	// read, where set, has what would be asked for.
	read func(ctx context.Context, path string, limit int64) ([]byte, error)
}

// get returns the body under a path, of no more than limit bytes.
func (r *remote) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	if r.read != nil {
		return r.read(ctx, path, limit)
	}
	response, err := r.ask(ctx, r.base+path, "")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, fmt.Errorf("%s%s: %w", r.base, path, errNotThere)
	default:
		return nil, fmt.Errorf("%s%s: the server answered %s%s", r.base, path, status(response), excerpt(response))
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s%s: %w", r.base, path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%s%s has over %d bytes", r.base, path, limit)
	}
	return body, nil
}

// ask returns an answer, whose body the caller closes. With an accepted coding the body is
// as it came; without, as the client likes.
func (r *remote) ask(ctx context.Context, url, accept string, fields ...string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", r.agent)
	for i := 0; i < len(fields); i += 2 {
		request.Header.Set(fields[i], fields[i+1])
	}
	if accept != "" {
		request.Header.Set("Accept-Encoding", accept)
	}
	return r.client.Do(request)
}

// status is a server's status line, cut to what a person can read.
func status(response *http.Response) string { return fmt.Sprintf("%.100s", response.Status) }

// excerpt is what a server says in an answer that is no success, as far as it can be
// shown to a person.
func excerpt(response *http.Response) string {
	contentType := response.Header.Get("Content-Type")
	if !strings.HasPrefix(contentType, "application/json") && !strings.HasPrefix(contentType, "text/plain") {
		return ""
	}
	body := make([]byte, maxExcerpt)
	n, _ := io.ReadFull(response.Body, body) // a part of it is better than nothing
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(": %q", body[:n])
}
