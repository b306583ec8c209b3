package site

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/larder-cdn/larder/internal/answers"
	"github.com/larder-cdn/larder/internal/client"
)

// This file makes pages: each client in its turn, and what is large once while nothing has changed. A page of a release
// with thousands of files takes a hundred times as long to make as to send.

// A page is an answer as it is sent.
type page struct {
	*answer
	body *answers.Body // nil where it only leads elsewhere
}

// A pageKey says what a page was made of.
type pageKey struct {
	path, query         string
	siteBase, assetBase string
	logged, seen        int64 // how many entries the log had, and the index had followed
	since               int64 // the span of time that it is kept for
}

const (
	mostKept      = 1000
	mostKeptBytes = 32 << 20
	// keptFor is how long a page is kept: states of releases that wait or fail are in no log.
	keptFor = 10 * time.Second
)

// keeps are the first parts of the paths of pages that depend on nothing but what is in the key.
var keeps = []string{"library", "compare", "history", "files", "recipe"}

// page returns the page of a path, or one that says what is wrong with it. An error is that of the latter.
func (s *Site) page(q *request, path string) (*page, error) {
	if err := q.parse(s.options); err != nil {
		return s.render(q, s.failure(q, err))
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	keep := slices.Contains(keeps, first) && (q.Method == http.MethodGet || q.Method == http.MethodHead)
	key := pageKey{path, q.URL.RawQuery, q.siteBase, q.assetBase, s.library.LogSize(), s.library.Seen(), s.now().UnixNano() / int64(keptFor)}
	if p, ok := s.kept.Kept(key); ok && keep {
		return p, nil
	}
	if first == "new" { // it waits for an upstream, and has bounds of its own
		return s.make(q, path)
	}
	_, leave, err := s.options.Turns.Enter(q.Context(), q.RemoteAddr, client.Patience)
	if err != nil {
		if errors.Is(err, client.ErrNoPlace) {
			err = refuse(http.StatusServiceUnavailable, "Just a moment", "Many pages are being made at this moment. Please try again in a few seconds.")
		}
		return s.render(q, s.failure(q, err))
	}
	defer leave()
	if !keep {
		return s.make(q, path)
	}
	// Others may wait for the page when this client has gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.Context()), patience)
	defer cancel()
	q.Request = q.WithContext(ctx)
	p, err := s.kept.Get(key, func() (*page, int, error) {
		p, err := s.make(q, path)
		if err == nil && (p.body == nil || p.status != 0 && p.status != http.StatusOK) {
			err = errNotKept
		}
		if err != nil {
			return p, 0, err
		}
		p.data = nil                    // it is in the body
		return p, 2 * p.body.Len(), nil // and its codings
	})
	if errors.Is(err, errNotKept) {
		err = nil
	}
	return p, err
}

// errNotKept is that of a page that is made anew each time.
var errNotKept = errors.New("site: such a page is not kept")

// make makes the page of a path.
func (s *Site) make(q *request, path string) (*page, error) {
	a, err := s.answer(q, path)
	if err != nil {
		a = s.failure(q, err)
	}
	if a.location != "" {
		return &page{answer: a}, nil
	}
	p, err := s.render(q, a)
	if err != nil { // a failure's page has nothing that could fail
		p, err = s.render(q, s.failure(q, err))
	}
	if err == nil {
		p.body.Prepare(q.Request)
	}
	return p, err
}
