package site

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// A pageAnswer is the result of a request before rendering: the data of a page and the template for it, or a redirect.
// Templates use the exported fields.
type pageAnswer struct {
	status   int    // 0 for 200
	location string // of a redirect, "" for a page
	view     string // the name of its template
	Refresh  int    // seconds after which a browser without scripts loads the page again, 0 for never

	Title       string // without the service's name, which the template adds
	Description string // for search engines and previews of links
	canonical   string // path of the address for search engines, "" to exclude the page
	Section     string // path of the link in the navigation that the page belongs to, "" for none
	Searched    string // text in the search box
	Feed        string // path of the Atom feed about the page's library, "" for the feed of all libraries
	Data        any    // for the template
}

// contentSecurityPolicy allows only what the pages need: their own style sheet, scripts and images, the search, and
// forms that lead to pages.
const contentSecurityPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// setIsolation sets header fields that keep pages and their resources to this origin. It deletes
// Access-Control-Allow-Origin, which lets scripts of other origins read a response: the site inherits that field from the
// API.
func setIsolation(h http.Header) {
	h.Del("Access-Control-Allow-Origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// sendRedirect responds with the status of a, which must be set, and a redirect to a.location, without a body. Caches must
// check a stored redirect each time.
func sendRedirect(w http.ResponseWriter, a *pageAnswer) {
	h := w.Header()
	setIsolation(h)
	h.Set("Location", a.location)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", "0")
	w.WriteHeader(a.status)
}

// sendPage responds with the page p, its status and header fields, or with 304 if the page is successful and the client has
// it. Caches must check a stored page each time. They must not store one that contains the request's Host, that is not
// completely rendered, or that has the status 404, 410, 429, 500 or 503. With 429 and 503 it sends Retry-After.
func (s *Site) sendPage(w http.ResponseWriter, r *http.Request, p *page) {
	a := p.pageAnswer
	h := w.Header()
	setIsolation(h)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "same-origin")
	f := answers.Failure{Status: a.status, Caching: answers.Revalidated}
	if s.options.SiteBase == "" || s.options.AssetBase == "" || p.inputs.isUnrendered {
		f.Caching = answers.NoStore // it contains the request's Host, or text that a worker has not rendered yet
	}
	switch a.status {
	case 0, http.StatusOK:
		f.Caching.SetHeader(h)
		p.body.Send(w, r, http.StatusOK)
		return
	case http.StatusNotFound, http.StatusGone, http.StatusInternalServerError: // programs get other responses there
		f.Caching = answers.NoStore
	case http.StatusServiceUnavailable:
		f.Caching, f.Retry = answers.NoStore, 5
	case http.StatusTooManyRequests:
		f.Caching, f.Retry = answers.NoStore, int(draftsWindow.Seconds())
	case http.StatusMethodNotAllowed:
		f.Fields = []answers.Field{{Name: "Allow", Value: readOnly}}
	}
	f.SendPage(w, r, p.body)
}

// readOnly are the methods that pages and their resources allow.
const readOnly = "GET, HEAD"

// A refusal is an error with its own status and text for the failure page: the client can correct the request or try again
// later.
type refusal struct {
	status         int
	title, message string
	sought         string // text to search for the libraries that the page suggests, "" for none
}

// Error returns the title and the message of the failure page, separated by a colon.
func (e *refusal) Error() string { return e.title + ": " + e.message }

// newRefusal returns a *refusal: an error to which the site responds with a page of this HTTP status, title and message.
// The page suggests no libraries.
func newRefusal(status int, title, message string) error {
	return &refusal{status: status, title: title, message: message}
}

// A failed is the content of a failure page: what went wrong, and what to do.
type failed struct {
	Status         int
	Title, Message string
	Reference      string // under which the error is logged, "" if it is not logged
	// Missing is the name of a library that does not exist. Near are libraries with similar names.
	Missing string
	Near    []*library.Library
	// Addable is Missing if it may be the name of a package and needs no quotes in a command, "" otherwise.
	Addable string
	// Library and Version are the release that is missing or that lacks a file, "" for other errors.
	Library, Version string
	Withdrawn        *library.WithdrawnError
	State            *views.Account // of a version that is not published, nil if nothing is known of it
	Links            []crumb        // to similar versions or files
}

// addable matches names that are safe in a command that a user copies from a page. An attacker may have chosen the page's
// address, and so the name.
var addable = text.NewRegexp(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// failurePage returns the page for an error of a request. Its status is that of a refusal, 404 for something missing, 410
// for a withdrawn version, 503 if the libraries are not read yet, q's context ended or the store is damaged, and else 500.
// If a page, library, version or file is missing, the page suggests others. Errors with 500 and of a damaged store are
// logged, with a reference that the page displays.
func (s *Site) failurePage(q *request, err error) *pageAnswer {
	var (
		refused     *refusal
		withdrawn   *library.WithdrawnError
		unpublished *unpublishedError
		missing     *noFileError
		f           failed
	)
	switch {
	case errors.As(err, &refused):
		f = failed{Status: refused.status, Title: refused.title, Message: refused.message}
		if refused.sought != "" {
			f.Near = s.suggestLibraries(q, refused.sought)
		}
	case errors.Is(err, library.ErrNoLibrary) && len(q.segments) > 0:
		f = failed{Status: http.StatusNotFound, Title: "Library not found", Missing: q.segments[0]}
		f.Message = fmt.Sprintf("No library here is called “%s”.", text.Cut(f.Missing, maxText))
		f.Near = s.suggestLibraries(q, f.Missing)
		if addable.MatchString(f.Missing) {
			f.Addable = f.Missing
		}
	case errors.As(err, &withdrawn):
		f = failed{Status: http.StatusGone, Title: "Version withdrawn", Library: withdrawn.Package, Version: withdrawn.Version, Withdrawn: withdrawn}
		f.Message = fmt.Sprintf("%s %s was published here once and is served no longer.", withdrawn.Package, withdrawn.Version)
	case errors.As(err, &missing):
		f = failed{Status: http.StatusNotFound, Title: "File not found", Library: missing.release.Library, Version: missing.release.Version, Links: missing.suggestFiles()}
		f.Message = fmt.Sprintf("%s %s has no file “%s”.", f.Library, f.Version, text.Short(missing.path, maxText))
		f.Links = append(f.Links, crumb{"All files of " + f.Library + " " + f.Version, filesPath(f.Library, f.Version, "")})
	case errors.As(err, &unpublished):
		f = failed{Status: http.StatusNotFound, Title: "Version not found", Library: unpublished.library, Version: unpublished.version, State: unpublished.state}
		f.Message = fmt.Sprintf("%s %s is not published here.", f.Library, text.Short(f.Version, 100))
		for _, version := range unpublished.near {
			f.Links = append(f.Links, crumb{f.Library + " " + version, versionPath(f.Library, version)})
		}
	case errors.Is(err, library.ErrNotReady), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		f = failed{Status: http.StatusServiceUnavailable, Title: "Just a moment", Message: "The libraries are still being read. Please try again in a few seconds."}
	default:
		f = failed{Status: http.StatusInternalServerError, Title: "Something went wrong here", Reference: rand.Text()}
		f.Message = "It is not your fault, and the log of this service knows more."
		if errors.Is(err, kvstore.ErrCorrupt) { // the files may be intact, or be repaired
			f.Status, f.Title = http.StatusServiceUnavailable, "This cannot be shown at the moment"
			f.Message += " Please try again later."
		}
		s.logger.Error("site: couldn't show a page", "ref", f.Reference, "method", q.Method, "path", q.URL.Path, "err", err, "stack", string(debug.Stack()))
	}
	return &pageAnswer{status: f.Status, view: "failure", Title: f.Title, Description: f.Message, Data: f}
}

// suggestLibraries returns up to five libraries whose names are spelt like the text that a visitor searched for, nearest
// first (see [library.Index.Near]). It returns none if the libraries cannot be read.
func (s *Site) suggestLibraries(q *request, sought string) []*library.Library {
	found, _ := s.library.Near(q.Context(), sought, librariesSuggested) // the page says that the library does not exist
	return found
}

// librariesSuggested is how many libraries a page suggests.
const librariesSuggested = 5

// Limits of a request.
const (
	maxQuery = 8 << 10 // bytes of a query string
	maxText  = 512     // bytes of what is searched or filtered for, as in the API
	maxPage  = 1 << 20
)

// A request is an HTTP request for a page, with what the site has parsed of it and recorded about the page.
type request struct {
	*http.Request
	segments  []string // of the path at the stars of the route's pattern, decoded
	query     url.Values
	siteBase  string // URL in front of the paths of pages, without a slash at its end
	assetBase string // URL in front of the paths of assets, without a slash at its end
	inputs    inputs // of the page that is being made
}

// parse sets q.siteBase and q.assetBase, the URLs in front of the paths of pages and assets, and q.query, the parsed query.
// A base that the options do not have is the origin of the request: its scheme and its Host. If the Host is needed and
// malformed, parse returns a refusal (400) and sets nothing. If the query is over 8 KiB, it returns a refusal (414) and
// does not set q.query.
func (q *request) parse(o Options) error {
	origin, ok := requests.Origin(q.Request)
	if !ok && (o.SiteBase == "" || o.AssetBase == "") {
		// The host becomes part of the tags that users copy into their pages.
		return newRefusal(http.StatusBadRequest, "This address is broken", "The request's Host is not a name or an address.")
	}
	q.siteBase, q.assetBase = cmp.Or(o.SiteBase, origin), cmp.Or(o.AssetBase, origin)
	if len(q.URL.RawQuery) > maxQuery {
		return newRefusal(http.StatusRequestURITooLong, "This address is too long", "What follows the question mark may have 8 KiB.")
	}
	q.query = requests.ParseQuery(q.URL.RawQuery)
	return nil
}

// client returns the client as limits count it: its IPv4 address, or the /64 prefix of its IPv6 address. The zero prefix
// stands for all clients without a network address, such as those of a Unix socket.
func (q *request) client() netip.Prefix {
	c, _ := requests.ClientOf(q.RemoteAddr)
	return c
}

// textParam returns the first value of the query parameter with this name as cleanText returns it, "" if the parameter is
// missing.
func (q *request) textParam(name string) string {
	return cleanText(q.query.Get(name))
}

// cleanText returns a text with each ASCII control character replaced by a space, cut to maxText bytes at a whole
// character, without white space around it.
func cleanText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(text.Cut(strings.TrimSpace(s), maxText))
}

// pageNumber returns the page number in the query parameter "page", see parsePageNumber; 1 if it is missing.
func (q *request) pageNumber() int { return parsePageNumber(q.query.Get("page")) }

// parsePageNumber parses a text as a decimal page number and limits it to 1 to maxPage. It returns 1 for a text that is no
// number or too large for an int.
func parsePageNumber(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return min(max(n, 1), maxPage)
}

// withQuery returns a path with "?" and a query appended, or the path alone if the query is empty.
func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	return path + "?" + query
}
