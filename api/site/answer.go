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
	"github.com/larder-cdn/larder/internal/client"
	"github.com/larder-cdn/larder/internal/lazyregexp"
	"github.com/larder-cdn/larder/internal/requests"
	"github.com/larder-cdn/larder/internal/text"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/logs/views"
)

// An answer is what comes of a request: a page, or where to look for it.
type answer struct {
	status   int    // 0 for 200
	location string // of a redirect
	view     string // the name of its template
	refresh  int    // seconds after which a browser without scripts loads the page again, 0 for never

	title       string // without the service's name
	description string // for readers of a list of pages
	canonical   string // path of the address that search engines should know, "" where they should not
	section     string // path in the navigation that the page is under
	searched    string // what the search box holds
	feed        string // path of the Atom feed of what the page is about, "" where there is only that of everything
	data        any    // for the template
}

// contentSecurityPolicy allows what the pages need and no more: their own style
// sheet, scripts and marks, the search, and forms that lead to pages.
const contentSecurityPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// setSafety keeps pages and what they are made with to this origin: scripts of other origins use the API, under whose fields
// the site is mounted.
func setSafety(h http.Header) {
	h.Del("Access-Control-Allow-Origin")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

func redirect(w http.ResponseWriter, a *answer) {
	h := w.Header()
	setSafety(h)
	h.Set("Location", a.location)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Length", "0")
	w.WriteHeader(a.status)
}

// send answers with a page, unless the client has it.
func (s *Site) send(w http.ResponseWriter, r *http.Request, p *page) {
	a := p.answer
	h := w.Header()
	setSafety(h)
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "same-origin")
	f := answers.Failure{Status: a.status, Caching: answers.Revalidated}
	if s.options.SiteBase == "" || s.options.AssetBase == "" || p.inputs.unrendered {
		f.Caching = answers.NoStore // it has addresses made of the request's Host, or text that a worker has not rendered yet
	}
	switch a.status {
	case 0, http.StatusOK:
		f.Caching.SetHeader(h)
		p.body.Send(w, r, http.StatusOK)
		return
	case http.StatusNotFound, http.StatusGone, http.StatusInternalServerError: // programs get other answers there
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

// readOnly are the methods of pages and what belongs to them.
const readOnly = "GET, HEAD"

// A refusal is a failure that the client can do something about.
type refusal struct {
	status         int
	title, message string
	sought         string // what the libraries are searched for that the page suggests, "" for none
}

func (e *refusal) Error() string { return e.title + ": " + e.message }

func refuse(status int, title, message string) error {
	return &refusal{status: status, title: title, message: message}
}

// A failed page says what went wrong, and what to do.
type failed struct {
	Status         int
	Title, Message string
	Reference      string // under which the log has it
	// Missing is the name of a library that does not exist, Near those that it may be mistaken for.
	Missing string
	Near    []*library.Library
	// Addable is a name that may be one of a package, and that can be an argument of a command as it is.
	Addable string
	// Library and Version are what could not be shown of a library that is there.
	Library, Version string
	Withdrawn        *library.WithdrawnError
	State            *views.Account // what became of a version that is not published
	Links            []crumb        // where else to look
}

// addable are names that mean nothing but themselves in a command that a user copies
// from a page, whose address a stranger may have made up.
var addable = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// failure returns the page for an error. It is the one place where errors become
// status codes.
func (s *Site) failure(q *request, err error) *answer {
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
			f.Near = s.near(q, refused.sought)
		}
	case errors.Is(err, library.ErrNoLibrary) && len(q.segments) > 0:
		f = failed{Status: http.StatusNotFound, Title: "Library not found", Missing: q.segments[0]}
		f.Message = fmt.Sprintf("No library here is called “%s”.", text.Cut(f.Missing, maxText))
		f.Near = s.near(q, f.Missing)
		if addable.MatchString(f.Missing) {
			f.Addable = f.Missing
		}
	case errors.As(err, &withdrawn):
		f = failed{Status: http.StatusGone, Title: "Version withdrawn", Library: withdrawn.Package, Version: withdrawn.Version, Withdrawn: withdrawn}
		f.Message = fmt.Sprintf("%s %s was published here once and is served no longer.", withdrawn.Package, withdrawn.Version)
	case errors.As(err, &missing):
		f = failed{Status: http.StatusNotFound, Title: "File not found", Library: missing.release.Library, Version: missing.release.Version, Links: missing.near()}
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
		if errors.Is(err, kvstore.ErrCorrupt) { // the files themselves may be whole, or be brought back
			f.Status, f.Title = http.StatusServiceUnavailable, "This cannot be shown at the moment"
			f.Message += " Please try again later."
		}
		s.logger.Error("site: couldn't show a page", "ref", f.Reference, "method", q.Method, "path", q.URL.Path, "err", err, "stack", string(debug.Stack()))
	}
	return &answer{status: f.Status, view: "failure", title: f.Title, description: f.Message, data: f}
}

// near returns the libraries that a visitor may have meant whose names are spelt like the text.
func (s *Site) near(q *request, sought string) []*library.Library {
	found, err := s.library.Search(q.Context(), text.Cut(sought, maxText), []string{"name", "alternativeNames"})
	if err != nil {
		return nil
	}
	return found[:min(len(found), 5)]
}

// What a request may ask for.
const (
	maxQuery = 8 << 10 // bytes of a query string
	maxText  = 512     // bytes of what is searched or filtered for, as in the API
	maxPage  = 1 << 20
)

// A request is one for a page.
type request struct {
	*http.Request
	segments  []string // decoded, those that the route leaves open
	query     url.Values
	siteBase  string
	assetBase string
	inputs    inputs // of the page that is being made
}

// parse reads what the pages need of a request and refuses what makes no sense.
func (q *request) parse(o Options) error {
	origin, ok := requests.Origin(q.Request)
	if !ok && (o.SiteBase == "" || o.AssetBase == "") {
		// The host becomes part of what people copy into their pages.
		return refuse(http.StatusBadRequest, "This address is broken", "The request's Host is not a name or an address.")
	}
	q.siteBase, q.assetBase = cmp.Or(o.SiteBase, origin), cmp.Or(o.AssetBase, origin)
	if len(q.URL.RawQuery) > maxQuery {
		return refuse(http.StatusRequestURITooLong, "This address is too long", "What follows the question mark may have 8 KiB.")
	}
	q.query = requests.ParseQuery(q.URL.RawQuery)
	return nil
}

// client returns who requests the page.
func (q *request) client() netip.Prefix {
	c, _ := client.Of(q.RemoteAddr)
	return c
}

// text returns a parameter as what the user typed: without control characters and
// white space around, cut to maxText bytes.
func (q *request) text(name string) string {
	return cleanText(q.query.Get(name))
}

func cleanText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	return strings.TrimSpace(text.Cut(strings.TrimSpace(s), maxText))
}

// page returns the number of the page that is asked for, from 1. What is no number is 1.
func (q *request) page() int { return pageNumber(q.query.Get("page")) }

func pageNumber(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 1
	}
	return min(max(n, 1), maxPage)
}

func withQuery(path, query string) string {
	if query == "" {
		return path
	}
	return path + "?" + query
}
