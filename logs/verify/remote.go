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

const (
	maxHeaders   = 64 << 10 // bytes, of a response with its informational responses, such as 103
	maxRedirects = 5
	maxExcerpt   = 300 // bytes
	maxParallel  = 8   // connections to a host, and requests for tiles, at once
)

// NewClient returns a client for requests to servers that may be hostile: the headers of a response are bounded and must
// come within a minute, and a redirect to another host is refused. It opens up to 8 connections to a host at a time. Bodies
// are not bounded, and the context of a request bounds its time.
func NewClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxResponseHeaderBytes = maxHeaders
	transport.MaxIdleConnsPerHost = maxParallel
	transport.MaxConnsPerHost = maxParallel
	transport.ResponseHeaderTimeout = time.Minute
	return &http.Client{Transport: transport, CheckRedirect: checkRedirect}
}

// checkRedirect refuses redirects to other hosts, ports or schemes, because a server that the user has named must not make
// this program send requests into the user's own network. It allows up to maxRedirects to those of the first request, and
// from http to https with standard ports. via are the requests so far.
func checkRedirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server redirects over %d times", maxRedirects)
	case next.URL.Scheme == first.Scheme && next.URL.Host == first.Host:
		return nil
	case first.Scheme == "http" && next.URL.Scheme == "https" && next.URL.Hostname() == first.Hostname() && hasStandardPort(first) && hasStandardPort(next.URL):
		return nil
	}
	return fmt.Errorf("the server redirects to %.200q; if that is right, verify that address", next.URL.Scheme+"://"+next.URL.Host)
}

// hasStandardPort reports whether a URL has the standard port of its scheme.
func hasStandardPort(u *url.URL) bool {
	return u.Port() == "" || u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443"
}

// A remote sends requests to one server. It bounds what it stores of a response.
type remote struct {
	base   string // without a slash at the end
	client *http.Client
	agent  string
	// read, where set, replaces requests; see [Options.Read].
	read func(ctx context.Context, path string, limit int64) ([]byte, error)
}

// get returns the body under a path of the server, decoded, of at most limit bytes; a longer one is an error. The error for
// status 404 or 410 is [fs.ErrNotExist]. If r.read is set, get returns what that returns, without a request.
func (r *remote) get(ctx context.Context, path string, limit int64) ([]byte, error) {
	if r.read != nil {
		return r.read(ctx, path, limit)
	}
	response, err := r.sendGetOK(ctx, r.base+path, "")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s%s: %w", r.base, path, err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%s%s has over %d bytes", r.base, path, limit)
	}
	return body, nil
}

// sendGetOK does what sendGet does, but any status except 200 is an error, for 404 and 410 [fs.ErrNotExist]; then it closes
// the body. Without an error, the caller must close it.
func (r *remote) sendGetOK(ctx context.Context, url, accept string, fields ...string) (*http.Response, error) {
	response, err := r.sendGet(ctx, url, accept, fields...)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound || response.StatusCode == http.StatusGone {
		return nil, fmt.Errorf("the server has no %s: %w", url, fs.ErrNotExist)
	}
	return nil, fmt.Errorf("%s: the server answered %s%s", url, statusLine(response), excerpt(response))
}

// sendGet sends a GET request to an absolute URL and returns the response, whatever its status; the caller must close its
// body. accept is the value of Accept-Encoding, with which the body is not decoded; with "", the client decodes gzip.
// fields are the names and values of more headers, in turn.
func (r *remote) sendGet(ctx context.Context, url, accept string, fields ...string) (*http.Response, error) {
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

// statusLine returns the status of a response, such as "404 Not Found", cut to 100 bytes.
func statusLine(response *http.Response) string { return fmt.Sprintf("%.100s", response.Status) }

// excerpt returns ": " and the first 300 bytes of the body of a response that reports an error, quoted, to be appended to a
// message. It returns "" if the body is empty, or neither application/json nor text/plain. The caller closes the body.
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
