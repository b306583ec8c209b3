package server

import (
	"net/http"
	"net/url"
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

// NewHosts returns the hosts that the URLs of files and site name, nil unless there are two. An
// apiHost has the API, even if it is the host of files: then it answers everything.
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
	if isHost(apiHost, files) {
		h.files = ""
	}
	return h
}

func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(nameOf(u.Host), "."))
}

// nameOf returns a Host field's value without the port. The colons of an address in brackets are its own.
func nameOf(host string) string {
	if i := strings.LastIndexByte(host, ':'); i >= 0 && strings.IndexByte(host[i:], ']') < 0 {
		host = host[:i]
	}
	return host
}

// isHost reports whether a Host field's value has that name, on any port.
func isHost(host, name string) bool {
	return name != "" && strings.EqualFold(strings.TrimSuffix(nameOf(host), "."), name)
}

// Handler returns next for the paths that the request's host answers, and 404 for others.
func (h *Hosts) Handler(next http.Handler) http.Handler {
	if h == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var f *answers.Failure
		if resemblesAsset(r.URL.Path) {
			if isHost(r.Host, h.site) {
				f = h.notFiles
			}
		} else if isHost(r.Host, h.files) && !h.both(r.URL.Path) {
			f = h.notSite
		}
		if f == nil {
			next.ServeHTTP(w, r)
			return
		}
		sendFailure(w, f, false, r.Method == http.MethodHead, r.Header["Accept"])
	})
}

func (h *Hosts) both(path string) bool {
	for _, prefix := range h.shared {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}

// Lane returns next for requests that come to no host of the site, and leaves the others to
// net/http, and so to [Hosts.Handler]; so it does with those that a proxy says came to another host.
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

// Answer implements lane.Handler.
func (o filesOnly) Answer(x *lane.Exchange) bool {
	return !x.Forwarded && !isHost(x.Host, o.hosts.site) && o.next.Answer(x)
}
