package purge

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/larder-cdn/larder/kvstore"
)

// What stands in a hook's URL for what is to be purged.
const (
	urlHolder  = "{url}"  // the whole URL
	pathHolder = "{path}" // its path, which begins with a slash
)

// A Hook is what to call. The zero value is none.
type Hook struct {
	method   string
	template string
}

// ParseHook reads a hook: a URL, with an HTTP method in front where that is not to be
// the default. One with {url} or {path} in it is called with the method PURGE for each
// URL, another once for each withdrawal, by POST, with JSON.
func ParseHook(s string) (Hook, error) {
	var h Hook
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
		return h, errors.New("begins with what is no HTTP method: write it in capitals, such as PURGE")
	case h.method != "" && !h.Each() && h.method != http.MethodPost && h.method != http.MethodPut:
		return h, errors.New("has neither {url} nor {path} in it, so JSON is sent to it: by POST or PUT")
	case strings.Contains(h.template, "/"+pathHolder):
		return h, errors.New("has a slash before {path}, which begins with one itself: leave that out, or no cache finds what is meant")
	case h.method == "" && h.Each():
		h.method = "PURGE"
	case h.method == "":
		h.method = http.MethodPost
	}
	if _, err := h.expand("https://example.com/ajax/libs/a/1/a.js"); err != nil {
		return h, err
	}
	return h, nil
}

var methods = regexp.MustCompile(`^[A-Z]{1,20}$`)

// Each reports whether the hook is called for each URL.
func (h Hook) Each() bool {
	return strings.Contains(h.template, urlHolder) || strings.Contains(h.template, pathHolder)
}

// NeedsHost reports whether it does not do to know the paths of what is to be purged.
func (h Hook) NeedsHost() bool { return !h.Each() || strings.Contains(h.template, urlHolder) }

// expand returns the URL to call for something that is to be purged. Its errors do
// not repeat the hook, in which there may be a password.
func (h Hook) expand(target string) (*url.URL, error) {
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

// id tells this hook from others without giving it away.
func (h Hook) id() string { return kvstore.Sum([]byte(h.method + " " + h.template)).String()[:16] }
