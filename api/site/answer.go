package site

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"strconv"

	"github.com/larder-cdn/larder/api/library"
	"github.com/larder-cdn/larder/kvstore"
	"github.com/larder-cdn/larder/kvstore/coding"
	"github.com/larder-cdn/larder/logs/views"
	"github.com/larder-cdn/larder/server/negotiate"
)

// An answer is what comes of a request: a page, or where to look for it.
type answer struct {
	status   int    // 0 for 200
	location string // of a redirect
	view     string // the name of its template
	refresh  int    // seconds after which the browser loads the page again, 0 for never

	title       string // without the service's name
	description string // for whoever finds the page in a list
	canonical   string // path of the address that search engines should know, "" where they should not
	section     string // path in the navigation that the page is under
	searched    string // what the search box holds
	data        any    // for the template
}

// contentSecurityPolicy allows what the pages need and no more: their own style
// sheet, scripts and marks, the search, and forms that lead to pages.
const contentSecurityPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

func setSafety(h http.Header) {
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
func (s *Site) send(w http.ResponseWriter, r *http.Request, a *answer, body []byte) {
	h := w.Header()
	setSafety(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", contentSecurityPolicy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Vary", "Accept-Encoding")
	status := a.status
	if status == 0 {
		status = http.StatusOK
	}
	h.Set("Cache-Control", "no-cache")
	switch status {
	case http.StatusGone, http.StatusInternalServerError:
		h.Set("Cache-Control", "no-store")
	case http.StatusServiceUnavailable:
		h.Set("Cache-Control", "no-store")
		h.Set("Retry-After", "5")
	case http.StatusTooManyRequests:
		h.Set("Cache-Control", "no-store")
		h.Set("Retry-After", strconv.Itoa(int(draftsWindow.Seconds())))
	case http.StatusMethodNotAllowed:
		h.Set("Allow", "GET, HEAD")
	}
	if a.refresh > 0 {
		h.Set("Refresh", strconv.Itoa(a.refresh))
	}
	c := negotiate.ParseAcceptEncoding(r.Header["Accept-Encoding"]).Prefer()
	if status == http.StatusOK {
		tag := entityTag(body, c)
		h.Set("ETag", tag)
		if !negotiate.NoneMatch(r.Header["If-None-Match"], tag) {
			h.Del("Content-Type")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	if c != coding.Identity {
		if coded, err := coding.Encode(c, coding.Quick, body); err != nil {
			s.logger.Error("site: couldn't compress a page", "path", r.URL.Path, "err", err)
		} else {
			body = coded
			h.Set("Content-Encoding", c.String())
		}
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // a client that has gone needs no answer
	}
}

func entityTag(body []byte, c coding.Coding) string {
	sum := sha256.Sum256(body)
	tag := base64.RawURLEncoding.EncodeToString(sum[:15])
	if c != coding.Identity {
		tag += "-" + c.String()
	}
	return `"` + tag + `"`
}

// A refusal is a failure that the client can do something about.
type refusal struct {
	status         int
	title, message string
}

func (e *refusal) Error() string { return e.title + ": " + e.message }

func refuse(status int, title, message string) error { return &refusal{status, title, message} }

// A failed page says what went wrong, and what to do.
type failed struct {
	Status         int
	Title, Message string
	Reference      string // under which the log has it
	// Missing is the library that there is none of, Near those that it may be mistaken for.
	Missing string
	Near    []*library.Library
	// Addable is a name that may be one of a package, and that a command can be told as it is.
	Addable string
	// Library and Version are what could not be shown of a library that is there.
	Library, Version string
	Withdrawn        *library.WithdrawnError
	State            *views.State // what became of a version that is not published
}

// addable are names that mean nothing but themselves in a command that somebody copies
// from a page, whoever made up its address.
var addable = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// failure returns the page for an error. It is the one place where errors become
// status codes.
func (s *Site) failure(q *request, err error) *answer {
	var (
		refused     *refusal
		withdrawn   *library.WithdrawnError
		unpublished *unpublishedError
		f           failed
	)
	switch {
	case errors.As(err, &refused):
		f = failed{Status: refused.status, Title: refused.title, Message: refused.message}
	case errors.Is(err, library.ErrNoLibrary) && len(q.segments) > 0:
		f = failed{Status: http.StatusNotFound, Title: "Library not found", Missing: q.segments[0]}
		f.Message = fmt.Sprintf("No library here is called “%s”.", cut(f.Missing, maxText))
		if near, err := s.library.Search(q.Context(), cut(f.Missing, maxText), nil); err == nil {
			f.Near = near[:min(len(near), 5)]
		}
		if addable.MatchString(f.Missing) {
			f.Addable = f.Missing
		}
	case errors.As(err, &withdrawn):
		f = failed{Status: http.StatusGone, Title: "Version withdrawn", Library: withdrawn.Package, Version: withdrawn.Version, Withdrawn: withdrawn}
		f.Message = fmt.Sprintf("%s %s was published here once and is served no longer.", withdrawn.Package, withdrawn.Version)
	case errors.As(err, &unpublished):
		f = failed{Status: http.StatusNotFound, Title: "Version not found", Library: unpublished.library, Version: unpublished.version, State: unpublished.state}
		f.Message = fmt.Sprintf("%s %s is not published here.", f.Library, shorten(100, f.Version))
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
