package notify

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
)

// The placeholders in a purge hook's URL.
const (
	urlHolder  = "{url}"  // the complete URL
	pathHolder = "{path}" // its path, which begins with a slash
)

// A PurgeHook is the request that has a cache purge withdrawn releases. The zero value is none.
type PurgeHook struct {
	method   string
	template string
}

// ParsePurgeHook reads a hook: a URL, preceded by an HTTP method unless the default is meant. A hook that contains {url} or
// {path} is requested for each URL of a release, by default with PURGE. Any other is requested once for each withdrawal with
// JSON, by default with POST; PUT is allowed too. Its errors do not repeat the hook.
func ParsePurgeHook(s string) (PurgeHook, error) {
	var h PurgeHook
	fields := strings.Fields(s)
	switch len(fields) {
	case 1:
		h.template = fields[0]
	case 2:
		h.method, h.template = fields[0], fields[1]
	default:
		return h, errors.New("must be a URL, or an HTTP method and a URL")
	}
	switch {
	case h.method != "" && !methods.MatchString(h.method):
		return h, errors.New("begins with what is not an HTTP method: write it in capitals, such as PURGE")
	case h.method != "" && !h.PerURL() && h.method != http.MethodPost && h.method != http.MethodPut:
		return h, errors.New("has neither {url} nor {path} in it, so JSON is sent to it: by POST or PUT")
	case strings.Contains(h.template, "/"+pathHolder):
		return h, errors.New("has a slash before {path}, which begins with one itself: leave that out, or no cache finds what is meant")
	case h.method == "" && h.PerURL():
		h.method = "PURGE"
	case h.method == "":
		h.method = http.MethodPost
	}
	if _, err := h.expand("https://example.com/ajax/libs/a/1/a.js"); err != nil {
		return h, err
	}
	return h, nil
}

var methods = text.NewRegexp(`^[A-Z]{1,20}$`)

// PerURL reports whether the hook is requested for each URL of a withdrawn release, because it has {url} or {path}; else once for
// each withdrawal.
func (h PurgeHook) PerURL() bool {
	return strings.Contains(h.template, urlHolder) || strings.Contains(h.template, pathHolder)
}

// NeedsHost reports whether requests to the hook contain complete URLs of releases, so that the host under which they are served
// must be known.
func (h PurgeHook) NeedsHost() bool { return !h.PerURL() || strings.Contains(h.template, urlHolder) }

// expand returns the URL of a request to the hook: its template with target, the URL to purge, in place of {url}, and the path of
// target in place of {path}. Its errors do not repeat the hook, which may contain a password.
func (h PurgeHook) expand(target string) (*url.URL, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("%q is not a URL to purge", target)
	}
	path := u.EscapedPath()
	front, query, hasQuery := strings.Cut(h.template, "?")
	if rest, ok := strings.CutPrefix(front, urlHolder); ok {
		front = target + strings.ReplaceAll(rest, urlHolder, url.PathEscape(target))
	} else {
		front = strings.ReplaceAll(front, urlHolder, url.PathEscape(target))
	}
	expanded := strings.ReplaceAll(front, pathHolder, path)
	if hasQuery {
		query = strings.ReplaceAll(query, urlHolder, url.QueryEscape(target))
		expanded += "?" + strings.ReplaceAll(query, pathHolder, url.QueryEscape(path))
	}
	if strings.ContainsAny(expanded, "{}") {
		return nil, errors.New("may have {url} and {path} in braces, and nothing else")
	}
	called, err := url.Parse(expanded)
	if err != nil || called.Host == "" || called.Scheme != "http" && called.Scheme != "https" {
		return nil, errors.New("must be an http or https URL with a host")
	}
	return called, nil
}

// id returns an identifier of the hook that does not reveal it, the start of a hash; "" for the zero hook.
func (h PurgeHook) id() string {
	if h == (PurgeHook{}) {
		return ""
	}
	return kvstore.Sum([]byte(h.method + " " + h.template)).String()[:16]
}
