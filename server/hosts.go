package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/server/lane"
)

// Hosts are two hosts that share what a server has: one for files, which strangers made, and one
// for the site. Each answers its own paths only, so that no file is under the site's origin. Every
// other host has both, and a nil Hosts means that all have.
type Hosts struct {
	files, site string   // names, without ports: cookies, too, are for all ports of a host
	shared      []string // prefixes of paths that both answer
	notFiles    *answers.Failure
	notSite     *answers.Failure
}

// NewHosts returns which host serves which paths, by the base URLs of files and of pages, and the host of the API. It returns nil, which means that
// all hosts serve everything, unless files and pages have two different hosts. All hosts serve the paths with the prefixes in shared. If apiHost is
// the host of files, that host serves everything.
func NewHosts(filesBase, siteBase, apiHost string, shared ...string) *Hosts {
	files, site := hostOf(filesBase), hostOf(siteBase)
	if files == "" || site == "" || files == site {
		return nil
	}
	elsewhere := func(message string) *answers.Failure {
		return &answers.Failure{Status: http.StatusNotFound, Message: message} // which is not to be kept
	}
	h := &Hosts{
		files: files, site: site, shared: shared,
		notFiles: elsewhere("Files are not on this host. They are at " + filesBase + Prefix + "."),
		notSite:  elsewhere("This host has files only. The site and the API are at " + siteBase + "/."),
	}
	if hasName(apiHost, files) {
		h.files = ""
	}
	return h
}

// hostOf returns the host of a URL in lower case, without port and final dot; "" if none exists or the URL is malformed.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(trimPort(u.Host), "."))
}

// trimPort returns a Host field's value without its last colon and what follows, a port or not, so that an invalid port does not make another
// host of it. It leaves the colons of an address in brackets.
func trimPort(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return host
}

// hasName reports whether host, the value of a Host field, has the given name, on any port and in any case. It is false for an empty name.
func hasName(host, name string) bool {
	return name != "" && strings.EqualFold(strings.TrimSuffix(trimPort(host), "."), name)
}

// Handler returns a handler that passes requests to next if their host serves their path, and responds 404 to others. For nil Hosts it returns next.
func (h *Hosts) Handler(next http.Handler) http.Handler {
	if h == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var f *answers.Failure
		begins := func(prefix string) bool { return strings.HasPrefix(r.URL.Path, prefix) }
		if resemblesAsset(r.URL.Path) {
			if hasName(r.Host, h.site) {
				f = h.notFiles
			}
		} else if hasName(r.Host, h.files) && !slices.ContainsFunc(h.shared, begins) {
			f = h.notSite
		}
		if f == nil {
			next.ServeHTTP(w, r)
			return
		}
		writeFailure(w, f, false, r.Method == http.MethodHead, r.Header["Accept"])
	})
}

// Lane returns a handler of the fast lane that passes requests to next. It leaves requests for the host of pages, and those in which a proxy names
// another host, to net/http and so to [Hosts.Handler]. For nil Hosts it returns next.
func (h *Hosts) Lane(next lane.Handler) lane.Handler {
	if h == nil {
		return next
	}
	return filesOnly{h, next}
}

// filesOnly is a lane that answers for files only.
type filesOnly struct {
	hosts *Hosts
	next  lane.Handler
}

// Answer implements lane.Handler. It returns false, which leaves the request to net/http, for the host of pages, for requests with a host from a
// proxy, and if next does.
func (o filesOnly) Answer(x *lane.Exchange) bool {
	return !x.Forwarded && !hasName(x.Host, o.hosts.site) && o.next.Answer(x)
}
